"""Reads usage reports as providers, SDKs and frameworks write them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from cacheprefix.errors import told
from cacheprefix.profiles._shapes import PLAIN, SHAPES, Shape, shape_from
from cacheprefix.profiles._usage import Usage

if TYPE_CHECKING:
    from cacheprefix.profiles._profile import Profile

_ABSENT: Final = object()
_SELECTOR = re.compile(r"^(\w+)\[(\w+)=([^\]]*)\]$")
_DEEPEST = 3


def normalise_usage(
    raw: object, api: str | None = None, provider: str | None = None, *, profile: Profile | None = None
) -> Usage:
    """A provider's, SDK's or framework's report as Usage.

    ``raw`` is the usage object, the response that carries it, or a list of a stream's events (their counts
    are cumulative). Mappings and objects with attributes are read alike. Which counts mean what is told by
    their names; ``api``, ``provider`` or a ``profile`` with its own ``usage_fields`` decide where names do
    not. Never raises: what cannot be used is left unreported and named in ``problems``.
    """
    try:
        return _normalised(raw, api, provider, profile)
    except Exception as error:  # a report may be any object, with properties that raise
        return Usage(problems=(f"usage cannot be read ({told(error)})",))


def _normalised(raw: object, api: str | None, provider: str | None, profile: Profile | None) -> Usage:
    if isinstance(raw, Usage):
        return raw
    if isinstance(raw, Sequence) and not isinstance(raw, (str, bytes)):
        raw = merge_usage(*raw)
    if raw is None:
        return Usage(problems=("no usage was reported",))
    inner, outer = _descend(raw)
    shape = _shape_of(inner, api, provider, profile)
    if shape is None:
        found = f"{type(raw).__name__}" if not isinstance(raw, Mapping) else f"keys {sorted(map(str, raw))[:6]}"
        return Usage(problems=(f"usage of no known form ({found})",))
    return _Reader(inner, outer).read(shape)


def merge_usage(*parts: object) -> dict[str, Any]:
    """One report from the events of a stream. Counts are cumulative there, so the highest holds."""
    merged: dict[str, Any] = {}
    for part in parts:
        # Runs inside a user's stream: an event that cannot be read must not end it, it only adds nothing.
        with contextlib.suppress(Exception):
            _merge(merged, _as_dict(_descend(part)[0]))
    return merged


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        old = into.get(name)
        if isinstance(value, Mapping) and isinstance(old, dict):
            _merge(old, value)
        elif isinstance(value, Mapping):
            into[name] = {}
            _merge(into[name], value)
        elif old is None or (_is_count(old) and _is_count(value) and value > old):
            into[name] = value


def _as_dict(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    dump = getattr(value, "model_dump", None)
    dumped = dump() if callable(dump) else getattr(value, "__dict__", None)
    return dict(dumped) if isinstance(dumped, Mapping) else {}


def _plain(value: object) -> object:
    return _as_dict(value) if hasattr(value, "model_dump") else value


def _descend(raw: object) -> tuple[object, object]:
    """The usage object inside ``raw``, and ``raw`` itself for counts that stand beside it."""
    inner = raw
    for _ in range(_DEEPEST):
        if any(_has(inner, mark) for shape in SHAPES for mark in shape.marks[:2]):
            break
        held = (_find(inner, key) for key in ("usage", "usageMetadata", "usage_metadata", "message", "response"))
        deeper = next((value for value in held if value is not _ABSENT and value is not None), None)
        if deeper is None or isinstance(deeper, (str, int, float)):
            break
        inner = deeper
    if inner is raw:
        beside = _find(raw, "usage")
        # llama.cpp sends timings beside usage; the usage object is the fuller report.
        return (raw if beside is _ABSENT or beside is None else beside), raw
    return inner, raw


def _shape_of(raw: object, api: str | None, provider: str | None, profile: Profile | None) -> Shape | None:
    fitting = next((shape for shape in SHAPES[:-1] if any(_has(raw, mark) for mark in shape.marks)), None)
    if fitting is None and "anthropic" in {api, provider} and _find(raw, "input_tokens") is not _ABSENT:
        return next(shape for shape in SHAPES if shape.name == "anthropic")
    if fitting is None and profile is not None and profile.usage_fields:
        own = shape_from(profile)
        if any(_find(raw, path) is not _ABSENT for path in own.marks):
            return own
    if fitting is None and _find(raw, "input_tokens") is not _ABSENT:
        return PLAIN
    return fitting


def _has(raw: object, name: str) -> bool:
    # A dict is asked for first: whether something is a Mapping takes ten times as long to tell.
    if type(raw) is dict or isinstance(raw, Mapping):
        return name in raw
    return _find(raw, name) is not _ABSENT


def _find(raw: object, path: str) -> Any:
    """The value at a dotted path, ``_ABSENT`` if there is none. Whole dotted names win (OpenTelemetry)."""
    if type(raw) is dict or isinstance(raw, Mapping):
        if path in raw:
            return raw[path]
        head, _, rest = path.partition(".")
        if "[" in head and (selected := _SELECTOR.match(head)):
            return _select(raw, selected, rest)
        if head not in raw:
            return _ABSENT
        return _find(raw[head], rest) if rest else raw[head]
    if raw is None or isinstance(raw, (str, bytes, int, float, list, tuple)):
        return _ABSENT
    head, _, rest = path.partition(".")
    value = getattr(raw, head, _ABSENT) if head.isidentifier() else _ABSENT
    return _find(value, rest) if rest and value is not _ABSENT else value


def _select(raw: Mapping[str, Any], selected: re.Match[str], rest: str) -> Any:
    name, key, wanted = selected.groups()
    items = raw.get(name)
    for item in items if isinstance(items, Sequence) and not isinstance(items, (str, bytes)) else ():
        if str(_find(item, key)) == wanted:
            return _find(item, rest) if rest else item
    return _ABSENT


@lru_cache(maxsize=256)
def _alternatives(paths: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(part.split("+")) for part in paths.split("|") if part)


def _is_count(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class _Reader:
    """Reads the counts of one report and keeps what was wrong with it."""

    def __init__(self, inner: object, outer: object) -> None:
        self._inner, self._outer = inner, outer
        self._problems: list[str] = []

    def read(self, shape: Shape) -> Usage:
        given = self._count(shape.input)
        read = self._count(shape.read)
        if read is None and shape.absent_is_zero and given is not None and not self._problems:
            read = 0
        read = self._distrusted(read)
        write = self._written(shape)
        includes = shape.includes_cached
        spent = (read or 0) + sum((write or {}).values())
        if includes and given is not None and spent > given and self._anthropic_names():
            # AutoGen and older proxies pass Anthropic's exclusive input count on as prompt_tokens.
            includes = False
            self._problems.append(f"input {given} is less than read and written {spent}: taken as exclusive")
        total = given if includes or given is None else given + spent
        if total is not None and includes:
            read, write = self._within(total, read, write)
        return Usage(
            input_tokens=total,
            cache_read_tokens=read,
            cache_write=write,
            output_tokens=self._count(shape.output),
            reasoning_tokens=self._count(shape.reasoning),
            calls=self._calls(),
            summed=self._summed(),
            problems=tuple(self._problems),
        )

    def _count(self, paths: str) -> int | None:
        for summands in _alternatives(paths):
            found = [count for path in summands if (count := self._number(path)) is not None]
            if found:
                return sum(found)
        return None

    def _number(self, path: str) -> int | None:
        value = _find(self._inner, path)
        if value is _ABSENT and self._outer is not self._inner:
            value = _find(self._outer, path)
        if value is _ABSENT or value is None:
            return None
        if type(value) is int and value >= 0:
            return value
        if not _is_count(value) or not float(value).is_integer():
            self._problems.append(f"{path} is {str(value)[:40]!r}, not a count")
            return None
        if value < 0:
            self._problems.append(f"{path} is {value}, below zero")
            return None
        return int(value)

    def _written(self, shape: Shape) -> dict[str, int] | None:
        total = self._count(shape.write)
        splits = {ttl: count for ttl, path in shape.splits.items() if (count := self._count(path)) is not None}
        if total is None and not splits:
            return None
        rest = max(0, (total or 0) - sum(splits.values()))
        written = {ttl: count for ttl, count in splits.items() if count}
        return {**written, "": rest} if rest else written

    def _within(
        self, total: int, read: int | None, write: dict[str, int] | None
    ) -> tuple[int | None, dict[str, int] | None]:
        """Counts that are parts of the input cannot exceed it; those that do are left unreported."""
        if read is not None and read > total:
            self._problems.append(f"cache read {read} exceeds the input {total} that contains it")
            read = None
        if write is not None and sum(write.values()) + (read or 0) > total:
            self._problems.append(f"cache write {sum(write.values())} and read {read or 0} exceed the input {total}")
            write = None
        return read, write

    def _distrusted(self, read: int | None) -> int | None:
        """CrewAI's UsageMetrics starts at 0 and its LiteLLM path never fills it in: 0 says nothing there."""
        return None if read == 0 and _find(self._inner, "successful_requests") is not _ABSENT else read

    def _anthropic_names(self) -> bool:
        names = ("cache_read_input_tokens", "cache_creation_input_tokens")
        return any(_is_count(_find(self._inner, name)) for name in names)

    def _calls(self) -> int:
        """CrewAI sums calls up and counts those that succeeded; a report is of one call at least."""
        return self._number("successful_requests") or 1

    def _summed(self) -> bool:
        tools = _find(self._inner, "server_tool_use")
        counts = _as_dict(tools).values() if tools is not _ABSENT and tools is not None else ()
        return any(_is_count(count) and count > 0 for count in counts)
