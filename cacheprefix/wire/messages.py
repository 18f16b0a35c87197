"""What the messages of several APIs have in common: roles, texts, pictures, marks, answers, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args

from cacheprefix.errors import BodyError
from cacheprefix.prompt import dumps, loads
from cacheprefix.prompt.decisions import ReplaceResult
from cacheprefix.prompt.views import Count, ResultView, Role, digest_of, make_result

Message = Mapping[str, Any]

Form = Literal["openai-chat", "openai-responses", "anthropic"]
"""``openai-responses``: a message is one item of ``input`` (message, function_call, its output, reasoning)."""

MARKS = "_cacheprefix"
"""The field of a message dict that holds its key and pin; taken off before anything is sent."""

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


Asks = Literal["nothing", "system", "empty", "blanks", "words"]
"""What the messages of a request ask: ``system``, no more than a system text among them says; ``empty`` and ``blanks``,
texts without a character, or of white space; ``words``, any other, or what is no text, such as a picture or a tool's
result. Each is more than those before."""
ASKS: Sequence[Asks] = get_args(Asks)


def asks(said: Iterable[str | None], *, system: bool) -> Asks:
    """What messages ask: ``said`` holds the text of each that is no system text, None where it is more than a text."""
    found: Asks = "system" if system else "nothing"
    for text in said:
        if text is None or text.strip():
            return "words"
        found = "blanks" if text or found == "blanks" else "empty"
    return found


class Marks(TypedDict):
    """What a message is marked with, by us: never sent."""

    key: str | None
    pinned: bool
    summary: bool


def role_of(message: Message, path: str) -> Role:
    """The role in this room's four words; raises ``BodyError`` for a missing or unknown one."""
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise BodyError(f"{path}.role", f"expected one of {', '.join(_ROLES)}, found {role!r}")
    return _ROLES[role]


def marks_of(message: Message) -> Marks:
    """The marks of a message, as those of one that has none where they are missing or malformed."""
    marks = message.get(MARKS)
    if marks is None or not isinstance(marks, Mapping):
        marks = {}
    key = marks.get("key")
    return {
        "key": key if isinstance(key, str) else None,
        "pinned": bool(marks.get("pinned")),
        "summary": bool(marks.get("summary")),
    }


def texts_and_media(content: Any, path: str) -> tuple[list[str], list[str]]:
    """Texts and media fingerprints of string or block content."""
    if content is None or content == "":
        return [], []
    if isinstance(content, str):
        return [content], []
    if isinstance(content, Mapping):
        return [dumps(content, path).decode()], []
    texts: list[str] = []
    media: list[str] = []
    for part, block in enumerate(blocks_of(content, path)):
        if isinstance(block.get("text"), str):
            texts.append(block["text"])
        elif isinstance(block.get("refusal"), str):
            texts.append(block["refusal"])
        else:
            media.append(fingerprint(block, f"{path}[{part}]"))
    return texts, media


def result_of(
    call: Any, name: Any, content: Any, path: str, count: Count, *, is_error: bool | None = None, part: int = 0
) -> ResultView:
    """The result of the call ``call``; ``part`` is the number of its block where it is one of a message's."""
    texts, media = texts_and_media(content, path)
    text = "\n".join(texts) if texts else None
    return make_result(str(call or ""), str(name or ""), text, count, is_error=is_error, media=media, part=part)


def blocks_of(content: Any, path: str) -> list[Mapping[str, Any]]:
    """The blocks of a list of them; raises ``BodyError`` for anything else."""
    if not isinstance(content, Sequence) or isinstance(content, (str, bytes)):
        raise BodyError(path, f"expected text or a list of blocks, found {type(content).__name__}")
    blocks: list[Mapping[str, Any]] = []
    for part, block in enumerate(content):
        if isinstance(block, str):
            blocks.append({"type": "text", "text": block})
        elif isinstance(block, Mapping):
            blocks.append(block)
        else:
            raise BodyError(f"{path}[{part}]", f"expected a block, found {type(block).__name__}")
    return blocks


def arguments_of(value: Any, path: str) -> str:
    """The arguments of a call as JSON text."""
    if value is None:
        return ""
    return value if isinstance(value, str) else dumps(value, path).decode("utf-8", "surrogatepass")


def fingerprint(block: Mapping[str, Any], path: str) -> str:
    """What stands for a block that is no text; markers move and are no content, so they are left out."""
    plain = {name: value for name, value in block.items() if name != "cache_control"}
    return digest_of(dumps(plain, path).decode("utf-8", "surrogatepass"))


def replaced(content: Any, decision: ReplaceResult, kind: str = "text") -> Any:
    """String content stays a string; in blocks the first text takes the new one, other texts go."""
    if not isinstance(content, Sequence) or isinstance(content, str):
        return decision.text
    out: list[Any] = []
    placed = False
    for block in content:
        is_text = isinstance(block, str) or (isinstance(block, Mapping) and isinstance(block.get("text"), str))
        if is_text and not placed:
            out.append(decision.text if isinstance(block, str) else {**block, "text": decision.text})
            placed = True
        elif not is_text and decision.keep_media:
            out.append(block)
    if not placed:
        out.insert(0, {"type": kind, "text": decision.text})
    return out


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A tool call in an answer; ``arguments`` as parsed, None where they are no JSON."""

    id: str
    name: str
    arguments: Any
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A provider's answer: its text, its tool calls, and the messages that put it into the history."""

    text: str
    calls: tuple[ToolRequest, ...]
    messages: tuple[Message, ...]
    usage: Any


def requested(id: str, name: str, arguments: Any) -> ToolRequest:  # noqa: A002 - the API's own word
    """A tool call whose arguments are JSON text."""
    try:
        return ToolRequest(id, name, loads(arguments or "{}", f"arguments of {name}"))
    except BodyError as error:
        return ToolRequest(id, name, None, str(error))


Found = Iterator[tuple[str, str]]
"""Where a body is what its API refuses, and why."""


@dataclass(frozen=True, slots=True)
class Takes:
    """What a model takes, by its profile."""

    prefill: bool = True
    """A last message of its own, as the beginning of its answer."""
    mid_system: bool = True
    """A system message among the others."""


def listed(value: Any) -> bool:
    """Whether it is a JSON array."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def as_list(value: Any) -> list[Any]:
    """A JSON array; an empty one for anything else."""
    return list(value) if listed(value) else []


def repeated(names: Iterable[str]) -> list[str]:
    """The names that stand there more than once, in order."""
    seen = list(names)
    return sorted({name for name in seen if seen.count(name) > 1})


def unknown_tools(wanted: Iterable[str], names: set[str]) -> Found:
    """The tools that ``tool_choice`` names and that are not among the tools."""
    for name in wanted:
        if name not in names:
            yield "tool_choice", f"names the tool {name!r}, which is not among the tools"
