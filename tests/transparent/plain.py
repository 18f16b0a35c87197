"""What an application saw, as a tree of plain values: with the types in it, and without what is random."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

KIND = "is"
"""Where a tree names an object's class: a word that no field can have."""

_OPAQUE = ("_asyncio.", "_thread.", "asyncio.", "concurrent.", "httpx", "logging.", "ssl.", "threading")
_DEEP = 40


def plain(value: Any, *, shapes: Mapping[str, Callable[[Any], Any]] | None = None, opaque: Iterable[str] = ()) -> Any:
    """``value`` as dicts, lists and scalars, each object with its class under ``is``.

    Of an object its public attributes are shown, of a pydantic model also which of its fields were set. ``shapes`` says
    for classes, by full name, what stands for an instance; objects of classes whose names begin with one of ``opaque``
    are their class and nothing else.
    """
    return _Plain(shapes or {}, (*_OPAQUE, *opaque)).of(value, ())


@dataclasses.dataclass(frozen=True, slots=True)
class _Plain:
    shapes: Mapping[str, Callable[[Any], Any]]
    opaque: tuple[str, ...]

    def of(self, value: Any, above: tuple[int, ...]) -> Any:
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
            return f"<{name_of(value)}>"
        if id(value) in above or len(above) > _DEEP:
            return "<again>"
        within = (*above, id(value))
        kind = type(value)
        name = name_of(kind)
        if name in self.shapes:
            return {KIND: name, "shown": self.of(self.shapes[name](value), within)}
        if isinstance(value, enum.Enum):
            return {KIND: name, "value": self.of(value.value, within)}
        if isinstance(value, (str, int, float)):
            return {KIND: name, "value": kind.__mro__[-2](value)}
        if isinstance(value, (bytes, bytearray)):
            return {KIND: name, "value": bytes(value).decode("utf-8", "backslashreplace")}
        if isinstance(value, list):
            items = [self.of(one, within) for one in value]
            return items if kind is list else {KIND: name, "items": items}
        if isinstance(value, tuple):
            fields = getattr(kind, "_fields", None)
            if fields:
                return {KIND: name, **{field: self.of(getattr(value, field), within) for field in fields}}
            return {KIND: name, "items": [self.of(one, within) for one in value]}
        if isinstance(value, (set, frozenset)):
            return {KIND: name, "items": sorted((self.of(one, within) for one in value), key=repr)}
        if isinstance(value, Mapping):
            shown = {_key(key): self.of(one, within) for key, one in value.items()}
            return shown if kind is dict else {KIND: name, **shown}
        if isinstance(value, BaseException):
            cause = value.__cause__
            return {KIND: name, "says": str(value), "cause": None if cause is None else self.of(cause, within)}
        if name.startswith(self.opaque):
            return {KIND: name}
        return {KIND: name, **{key: self.of(one, within) for key, one in _attributes(value)}}


def name_of(kind: Any) -> str:
    """The full name of a class or function."""
    module = getattr(kind, "__module__", None)
    named = getattr(kind, "__qualname__", type(kind).__qualname__)
    return f"{module}.{named}" if module not in (None, "builtins") else str(named)


def _attributes(value: Any) -> Iterable[tuple[str, Any]]:
    fields_set = getattr(value, "__pydantic_fields_set__", None)
    if isinstance(fields_set, set):
        yield from value.__dict__.items()
        yield from (value.__pydantic_extra__ or {}).items()
        yield "fields set", sorted(fields_set)
    elif dataclasses.is_dataclass(value):
        yield from ((field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value))
    else:
        own = getattr(value, "__dict__", {})
        yield from ((key, one) for key, one in own.items() if not key.startswith("_"))


def _key(key: Any) -> str:
    return key if isinstance(key, str) else f"{type(key).__name__}: {key!r}"


_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?")
_RANDOM = (
    ("uuid", re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")),
    ("time", _TIME),
    ("id", re.compile(r"\b(?:chatcmpl|msg|resp|req|toolu|tooluse|call|fc|rs|gen|run|lc)[-_][0-9A-Za-z]{6,}\b")),
    ("hex", re.compile(r"\b(?:(?<!cacheprefix-)[0-9a-f]{24}|[0-9a-f]{32,64})\b")),
    ("address", re.compile(r"\b0x[0-9a-f]{6,16}\b")),
)
_TIMES = frozenset({"created", "created_at", "timestamp", "ts", "time", "started_at", "ended_at", "duration"})


def normalised(tree: Any, patterns: Iterable[tuple[str, re.Pattern[str]]] = ()) -> Any:
    """The tree with ids, times and addresses named by the order in which they first appear, so that equal ids stay so.

    ``patterns`` are further ones: a kind's name and what it looks like. One that begins with "a " is not told apart.
    """
    kinds = (*patterns, *_RANDOM)
    seen: dict[str, dict[str, str]] = {}

    def text(value: str, whose: str = "") -> str:
        for kind, pattern in kinds:
            known = seen.setdefault(whose + kind, {})

            def named(found: re.Match[str], kind: str = kind, known: dict[str, str] = known) -> str:
                if kind.startswith("a "):
                    return f"<{kind}>"
                return known.setdefault(found.group(), f"<{kind} {len(known) + 1}>")

            value = pattern.sub(named, value)
        return value

    def walk(value: Any, key: str = "", whose: str = "") -> Any:
        # What stands under our own key or in an object of ours is counted apart: where there is none, the others keep
        # their numbers.
        ours = key == "cacheprefix" or (isinstance(value, dict) and str(value.get("is", "")).startswith("cacheprefix"))
        whose = whose or ("cacheprefix" if ours else "")
        if isinstance(value, str):
            # Whether two are of one second, the clock decides.
            return "<a time>" if key in _TIMES and _TIME.fullmatch(value) else text(value, whose)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and key in _TIMES:
            return "<number of a time>"
        if isinstance(value, list):
            return [walk(one, "", whose) for one in value]
        if isinstance(value, dict):
            return {text(name, whose): walk(value[name], name, whose) for name in sorted(value)}
        return value

    return walk(tree)
