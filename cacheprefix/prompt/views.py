"""Light views of messages: what is decided on, whatever framework or provider form they come from.

A view holds digests, token counts and references to the texts, never copies of them. One view
stands for one native message; a decision names it by its index and an adapter applies it.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from cacheprefix.prompt.sections import IMAGE_TOKENS
from cacheprefix.prompt.tool_errors import reads_as_error

Role = Literal["system", "user", "assistant", "tool"]
ResultKind = Literal["text", "json", "image", "mixed"]
Count = Callable[[str], int]
"""Tokens of a text, bound to one model."""

MESSAGE_TOKENS = 3
"""What a message's own envelope adds, as the prompt room counts it."""
_URL_SAFE = bytes.maketrans(b"+/", b"-_")


@dataclass(frozen=True, slots=True)
class CallView:
    """A tool call in an assistant message. ``digest`` covers name and arguments, not the id."""

    id: str
    name: str
    digest: str
    tokens: int


@dataclass(frozen=True, slots=True)
class ResultView:
    """A tool result: a whole message in the OpenAI form, one block of a user message in Anthropic's."""

    call_id: str
    name: str
    """The tool's name, from the result itself or from the call it answers; empty when neither says."""
    digest: str
    """Covers tool name, error flag and content; never the call id, which providers and models reuse."""
    tokens: int
    is_error: bool
    text: str | None
    """All text of the result; None when it holds none."""
    kind: ResultKind
    part: int
    """Index of the block in the message's content; 0 where the message is the result."""


@dataclass(frozen=True, slots=True)
class ThinkingView:
    """Visible or sealed reasoning in an assistant message; part -1 is a field beside the content."""

    part: int
    tokens: int


@dataclass(frozen=True, slots=True)
class MessageView:
    """One message. Equality is equality of content and marks."""

    role: Role
    digest: str
    """Covers role and content without call ids, so that re-issued ids change nothing."""
    tokens: int
    calls: tuple[CallView, ...] = ()
    results: tuple[ResultView, ...] = ()
    thinking: tuple[ThinkingView, ...] = ()
    key: str | None = None
    """The key of durable context, which never meets lossy compaction."""
    pinned: bool = False
    """Set by the user: no decision may touch the message."""
    texts: tuple[str, ...] = ()
    """The message's own texts (results excluded), by reference."""
    media: int = 0
    """Images, clips and files in the message's own content."""
    summary: bool = False
    """Whether a compaction wrote the message: no turn of the user, and replaced by the next summary."""
    item: bool = False
    """Whether it is a call or the reasoning of an answer whose parts are items (OpenAI's responses form)."""

    @property
    def text(self) -> str:
        """The message's own texts, joined by line ends."""
        return self.texts[0] if len(self.texts) == 1 else "\n".join(self.texts)

    @property
    def is_prompt(self) -> bool:
        """Whether the user says something here (a message of results alone is no new turn)."""
        if self.role != "user" or self.summary:
            return False
        return bool(self.texts) or self.media > 0 or not self.results


def with_parts(
    view: MessageView,
    tokens: int,
    calls: tuple[CallView, ...],
    results: tuple[ResultView, ...],
    thinking: tuple[ThinkingView, ...],
) -> MessageView:
    """A message with these calls, results and reasoning in place of its own; all else is as it was."""
    # As ``dataclasses.replace``, in less than half of its time: a long history has hundreds of shortened results.
    return MessageView(
        view.role,
        view.digest,
        tokens,
        calls,
        results,
        thinking,
        view.key,
        view.pinned,
        view.texts,
        view.media,
        view.summary,
        view.item,
    )


def digest_of(*parts: str) -> str:
    """16 characters (96 bits) over texts, with their borders; lone surrogates are allowed."""
    chunks: list[bytes] = []
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        chunks.append(len(data).to_bytes(8, "big"))
        chunks.append(data)
    hashed = blake2b(b"".join(chunks), digest_size=12).digest()
    return b2a_base64(hashed, newline=False).translate(_URL_SAFE).decode()


def kind_of(text: str) -> ResultKind:
    """``json`` when a text opens and closes as a JSON object or list does, else ``text``."""
    head, tail = text[:64].lstrip()[:1], text[-64:].rstrip()[-1:]
    return "json" if (head, tail) in (("{", "}"), ("[", "]")) else "text"


def make_call(id_: str, name: str, arguments: str, count: Count) -> CallView:
    """View of one tool call; ``arguments`` as the JSON text on the wire."""
    return CallView(id_, name, digest_of(name, arguments), count(name) + count(arguments))


def make_result(
    call_id: str,
    name: str,
    text: str | None,
    count: Count,
    *,
    is_error: bool | None = None,
    media: Sequence[str] = (),
    part: int = 0,
) -> ResultView:
    """View of one tool result. ``media`` holds a text for each image or file, for the digest alone.

    ``is_error`` None means that the framework does not say; then the text's beginning decides.
    """
    failed = reads_as_error(text or "") if is_error is None else is_error
    with_media: ResultKind = "mixed" if text else "image"
    kind = with_media if media else kind_of(text or "")
    digest = digest_of(name, "!" if failed else "", text or "", *media)
    tokens = (count(text) if text else 0) + IMAGE_TOKENS * len(media)
    return ResultView(call_id, name, digest, tokens, failed, text, kind, part)


def make_message(
    role: Role,
    texts: Sequence[str],
    count: Count,
    *,
    calls: Sequence[CallView] = (),
    results: Sequence[ResultView] = (),
    thinking: Sequence[tuple[int, str]] = (),
    media: Sequence[str] = (),
    key: str | None = None,
    pinned: bool = False,
    summary: bool = False,
    item: bool = False,
) -> MessageView:
    """View of one message; ``thinking`` as (part, text) pairs, ``media`` a text for each image or file."""
    # Plain loops: this is called for every new message, where a generator for each field costs most.
    kept = tuple([text for text in texts if text])
    tokens = MESSAGE_TOKENS + IMAGE_TOKENS * len(media)
    parts: list[str] = [role]
    for text in kept:
        tokens += count(text)
        parts.append(f"t{text}")
    for call in calls:
        tokens += call.tokens
        parts.append(f"c{call.digest}")
    for result in results:
        tokens += result.tokens
        parts.append(f"r{result.digest}")
    thoughts: list[ThinkingView] = []
    for part, text in thinking:
        thought = ThinkingView(part, count(text))
        thoughts.append(thought)
        tokens += thought.tokens
        parts.append(f"h{text}")
    parts += [f"m{text}" for text in media]
    return MessageView(
        role,
        digest_of(*parts),
        tokens,
        tuple(calls),
        tuple(results),
        tuple(thoughts),
        key,
        pinned,
        kept,
        len(media),
        summary,
        item,
    )
