"""From a script's reply to what goes on the wire: tools and schemas obeyed, ids given, length counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal, Protocol

from cacheprefix.errors import BodyError
from cacheprefix.profiles import Profile
from cacheprefix.prompt import Api, CountTokens, Prompt, dumps, loads
from cacheprefix.server.outcome import CacheOutcome
from cacheprefix.server.schema_values import sample
from cacheprefix.server.script import Asked, Reply, ToolCall

Stop = Literal["end", "tools", "length"]

PIECE = 24
"""Characters a stream event carries."""


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call as it goes out."""

    id: str
    name: str
    arguments: str

    @property
    def parsed(self) -> Any:
        """The arguments as an object, for wire forms that do not send them as text."""
        try:
            return loads(self.arguments or "{}")
        except BodyError:
            return {}


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """An answer, ready for a wire form."""

    seed: str
    """Hexadecimal digits that follow from the prompt: what ids are made of."""

    model: str
    created: int
    body: Mapping[str, Any]
    asked: Asked
    text: str
    thinking: str
    calls: tuple[ScriptedCall, ...]
    stop: Stop
    output_tokens: int
    usage: Mapping[str, Any] | None
    """In the wire form's own fields; None when it is left out on purpose."""

    diagnostics: Mapping[str, Any] | None = None
    """The provider's explanation of a miss, where the request asks for one."""


class Wire(Protocol):
    """One wire form; the modules ``wire_*`` are its implementations."""

    CALL_ID: str
    """What a tool-call id begins with."""

    EARLY: int
    """How many events of a stream go out as soon as the request is taken, before its prompt is read."""

    def asked(self, body: Mapping[str, Any], /) -> Asked:
        """What the body asks of the answer."""

    def check(self, body: Mapping[str, Any], profile: Profile, /) -> None:
        """Raise ``RefusedError`` where the provider answers 400 for other reasons than its cache."""

    def usage(self, outcome: CacheOutcome, output: int, profile: Profile, /) -> dict[str, Any]:
        """Usage in the provider's own fields."""

    def answer(self, turn: ScriptedTurn, /) -> dict[str, Any]:
        """The whole answer."""

    def events(self, turn: ScriptedTurn, /) -> Iterator[bytes]:
        """The answer as stream events."""

    def error(self, status: int, message: str, path: str | None, /) -> dict[str, Any]:
        """An error body."""


def seed(prompt: Prompt, occurrence: int) -> str:
    """48 hexadecimal digits from a prompt's content and how often it was sent before."""
    state = blake2b(digest_size=24)
    state.update(f"{prompt.api}\0{prompt.model}\0{occurrence}".encode())
    state.update(b"".join(section.digest for section in prompt.sections))
    return state.hexdigest()


def identifier(prefix: str, base: str, number: int = 0) -> str:
    """An id in the provider's style, the same for the same prompt."""
    return prefix + blake2b(f"{base}/{prefix}/{number}".encode(), digest_size=12).hexdigest()


def obey(reply: Reply, asked: Asked, base: str, prefix: str, api: Api) -> tuple[str, tuple[ScriptedCall, ...]]:
    """The reply's text and calls under the request's tool choice and schema."""
    calls = _allowed(reply.tool_calls, asked)
    text = reply.text
    if asked.choice == "none" or not asked.tools:
        text = text or ("" if calls else "I have what I need.")
    if asked.choice == "required" and not calls:
        names = [name for name in asked.tools if asked.allowed is None or name in asked.allowed]
        calls = tuple(ToolCall(name, sample(asked.tools[name])) for name in names[:1])
    if not asked.parallel:
        calls = calls[:1]
    if asked.schema is not None and not calls and not _is_json(text):
        text = dumps(sample(asked.schema), "schema").decode()
    made = tuple(
        ScriptedCall(call.id or identifier(prefix, base, number), call.name, _arguments(call, api))
        for number, call in enumerate(calls)
    )
    return text, made


def cut(text: str, asked: Asked, count: CountTokens, model: str) -> tuple[str, bool]:
    """The text within the request's limit of output tokens, and whether it was shortened."""
    if asked.max_output is None or count(text, model) <= asked.max_output:
        return text, False
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(text[:middle], model) <= asked.max_output else (low, middle - 1)
    return text[:low], True


def pieces(text: str) -> list[str]:
    """A text as a stream carries it."""
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)]


def event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """One server-sent event."""
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + dumps(data, "event") + b"\n\n"


def report(usage: dict[str, Any], profile: Profile, outcome: CacheOutcome) -> dict[str, Any]:
    """``usage`` with the fields that this profile names and the wire form alone does not have."""
    values = {"read": outcome.read_tokens, "write": outcome.written_tokens, "uncached": outcome.uncached_tokens}
    for name, value in values.items():
        paths = profile.usage_fields.get(name, "").split("|")
        fitting = [path for path in paths if "." not in path or path.partition(".")[0] in usage]
        for path in fitting[:1]:
            _put(usage, path, value)
    return usage


def _put(usage: dict[str, Any], path: str, value: int) -> None:
    """Set a count at a dotted path of a usage that has a place for it and none there yet."""
    first, _, rest = path.partition(".")
    if not first or "[" in path:
        return
    if rest:
        inner = usage.get(first)
        if isinstance(inner, dict):
            inner.setdefault(rest, value)
    else:
        usage.setdefault(first, value)


def _allowed(calls: Sequence[ToolCall], asked: Asked) -> tuple[ToolCall, ...]:
    if asked.choice == "none":
        return ()
    return tuple(call for call in calls if asked.allowed is None or call.name in asked.allowed)


def _arguments(call: ToolCall, api: Api) -> str:
    if isinstance(call.arguments, str):
        return call.arguments
    return dumps(call.arguments, f"{api} arguments").decode()


def _is_json(text: str) -> bool:
    try:
        loads(text)
    except BodyError:
        return False
    return True
