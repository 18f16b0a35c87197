"""What the simulated model says: scripts, deterministic to the last tool-call id."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, Protocol

from cacheprefix.prompt import Api, Prompt, Section, loads

_TEXT = (
    "the cache keeps what every branch has read before so that later answers start sooner and cost less "
    "while each role adds only its own task at the very end of the shared transcript"
)
_WORDS = tuple(_TEXT.split())


_SPOKEN = re.compile(r"\[[^\]\n]+\]\n")
"""How a message begins that names its speaker."""
_ROLE = re.compile(r"<role name=\"")
"""How a role's text begins in a fork (``layout/framing.py``), which may stand between two rounds of the role's own."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the model makes. Without an ``id`` it gets one that follows from the prompt."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    """An object, or the very text that goes out."""
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong on purpose."""

    status: int = 0
    """An HTTP error instead of an answer."""

    message: str = "the simulated provider fails on purpose"
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of the error, such as ``retry-after``."""

    cut_after: int | None = None
    """The connection breaks after this many stream events (or bytes, of an answer that does not stream)."""

    usage: Literal["omit", "nonsense"] | Mapping[str, Any] | None = None
    """Usage left out, replaced by impossible numbers, or by the given object."""

    body: bytes | None = None
    """These bytes instead of the answer, with status 200 unless ``status`` says otherwise."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of the model."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    thinking: str = ""
    output_tokens: int | None = None
    """Length of the answer as reported and as timed; counted from the text if not stated."""

    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks of the answer, whatever its wire form."""

    stream: bool = False
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Schemas of the parameters by tool name, in the order sent."""

    choice: Literal["auto", "none", "required"] = "auto"
    allowed: frozenset[str] | None = None
    """Names the answer may call; ``None``: all."""

    parallel: bool = True
    schema: Mapping[str, Any] | None = None
    """JSON schema the text must follow."""

    max_output: int | None = None
    include_usage: bool = True
    """Whether a stream ends with usage."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a script sees of a request."""

    api: Api
    body: Mapping[str, Any]
    prompt: Prompt
    asked: Asked
    index: int
    """Number of the call at this server, from 0."""

    @property
    def model(self) -> str:
        """The model asked for."""
        return self.prompt.model

    @property
    def tail(self) -> str:
        """Text of the last messages up to and including the model's own last one, at most 8 sections."""
        parts: list[str] = []
        for section in reversed(self.prompt.sections[-8:]):
            parts.append(section.text)
            if role(section) in ("assistant", "model"):
                break
        return "\n".join(reversed(parts))

    @property
    def text(self) -> str:
        """Text of the whole prompt, tools left out."""
        return "\n".join(section.text for section in self.prompt.sections if section.tier != "tools")

    @property
    def rounds(self) -> int:
        """Tool rounds that end the conversation; texts behind the last result, or a role's between them, do not count.

        One that begins with its speaker, as in ``[name]``, was said after them, and ends their count.

        0 when the model has not called a tool since it last answered or was last asked.
        """
        count, results, joined = 0, False, False
        for section in reversed(self.prompt.tier("messages")):
            if is_tool_result(section):
                results, joined = True, False
            elif section.kind == "tool_use":
                count += results
                # What stands before a call in the same message belongs to that round.
                results, joined = False, section.head in ("+", "item")
            elif section.kind == "thinking" or (joined and role(section) in ("assistant", "model", "+")):
                joined = joined and section.head == "+"
            elif count and _ROLE.match(section.text):
                continue
            elif count or results or role(section) in ("assistant", "model") or _SPOKEN.match(section.text):
                break
        return count


class Script(Protocol):
    """Decides what the model answers: a function of the request, called from several threads."""

    def __call__(self, request: Request, /) -> Reply:
        """The answer to ``request``; a text alone is taken for an answer that says it."""


class Echo:
    """Repeats the end of what was asked and goes on to ``tokens`` tokens (4 characters each)."""

    def __init__(self, tokens: int = 40) -> None:
        self._tokens = tokens

    def __call__(self, request: Request, /) -> Reply:
        """An answer that differs with the last message and with nothing else."""
        last = " ".join(request.tail.split())[-80:]
        return Reply(fill(f"You said: {last}.", self._tokens))


class Queue:
    """Gives its replies one after the other, then what ``then`` says (default: the last one again)."""

    def __init__(self, replies: Iterable[Reply | str], then: Script | None = None) -> None:
        self._replies = [Reply(one) if isinstance(one, str) else one for one in replies]
        self._then = then
        self._next = 0
        self._lock = threading.Lock()

    def __call__(self, request: Request, /) -> Reply:
        """The next reply."""
        with self._lock:
            at = self._next
            self._next += 1
        if at < len(self._replies):
            return self._replies[at]
        if self._then is not None:
            return self._then(request)
        return self._replies[-1] if self._replies else Reply("ok")


@dataclass(frozen=True, slots=True)
class Rule:
    """When ``pattern`` is found in the tail (or, with ``anywhere``, in the prompt), ``reply`` is the answer."""

    pattern: str
    reply: Reply | Callable[[Request], Reply]
    round: int | None = None
    """Only in this tool round: 0 before the first tool call."""

    anywhere: bool = False


class Rules:
    """The first rule that fits decides; ``default`` answers where none does."""

    def __init__(self, rules: Sequence[Rule], default: Script | None = None) -> None:
        self._rules = [(re.compile(rule.pattern, re.DOTALL), rule) for rule in rules]
        self._default: Script = default or Echo()

    def __call__(self, request: Request, /) -> Reply:
        """The reply of the first fitting rule."""
        tail = request.tail
        for pattern, rule in self._rules:
            if rule.round is not None and rule.round != request.rounds:
                continue
            if pattern.search(request.text if rule.anywhere else tail):
                return rule.reply if isinstance(rule.reply, Reply) else rule.reply(request)
        return self._default(request)


def fill(text: str, tokens: int) -> str:
    """``text`` continued by words that follow from it, to ``tokens`` times 4 characters."""
    wanted = tokens * 4
    at = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=2).digest()[0]
    parts, length = [text], len(text)
    while length < wanted:
        word = _WORDS[at % len(_WORDS)]
        parts.append(word)
        length += len(word) + 1
        at += 1
    return " ".join(parts)[:wanted] if len(text) < wanted else text


def role(section: Section) -> str:
    """The role of the message a section stands in; ``+`` for its further blocks, empty for items without one."""
    if section.head.startswith("{"):
        return str(loads(section.head).get("role", ""))
    if section.kind in ("tool_use", "thinking") and section.head == "item":
        return "assistant"
    return section.head


def is_tool_result(section: Section) -> bool:
    """Whether a section holds what a tool gave back."""
    return section.kind == "tool_result" or role(section) in ("tool", "function")
