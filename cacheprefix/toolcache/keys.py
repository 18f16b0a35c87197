"""Decides for a tool call under which key its result is kept and which writes make it outdated."""

from __future__ import annotations

import hashlib
import itertools
import weakref
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from cacheprefix.stores.protocol import short
from cacheprefix.toolcache.codec import is_plain
from cacheprefix.toolcache.options import ToolCacheOptions
from cacheprefix.toolcache.spec import Rules, ToolSpec, ancestors, resources

_numbers = itertools.count(1)
# Numbers of objects by address (``id``), while they live: tools are often pydantic models, which cannot be hashed.
_known: dict[int, tuple[weakref.ref[Any], int]] = {}


def identity_of(function: Any) -> str:
    """Return an identifier of a function, unique in this process; empty where it cannot have one (no weak reference).

    A bound method is a new object at each access, so it is identified by its object and its function. Several that
    answer together are given as a tuple, and identified by all of them. Numbers are never used twice.
    """
    if type(function) is tuple:
        parts = [identity_of(part) for part in function]
        return "-".join(parts) if all(parts) else ""
    owner, own = getattr(function, "__self__", None), getattr(function, "__func__", None)
    numbers = [_number(part) for part in ([function] if owner is None or own is None else [owner, own])]
    return "" if None in numbers else ".".join(map(str, numbers))


def _number(thing: Any) -> int | None:
    """A number of an object that no other object of this process has; None where it cannot be told when it is gone."""
    address = id(thing)
    known = _known.get(address)
    if known is not None and known[0]() is thing:
        return known[1]
    try:
        seen = weakref.ref(thing, _forget(address))
    except TypeError:
        return None
    # Where two threads come at once, the later one's number is kept; the other costs one cache miss.
    _known[address] = (seen, number := next(_numbers))
    return number


def _forget(address: int) -> Callable[[weakref.ref[Any]], None]:
    def gone(seen: weakref.ref[Any]) -> None:
        known = _known.get(address)
        if known is not None and known[0] is seen:
            del _known[address]

    return gone


# Most calls of an agent repeat recent ones; plans of large arguments are made anew.
_RECENT = 4_096
_RECENT_BYTES = 2_048


class Plan(NamedTuple):
    """What to do with one call.

    ``key`` is where its result is kept, None when it is not cached; ``names`` are the
    generations that an answer depends on, ``writes`` those that the call bumps. ``call`` tells
    identical calls apart from others, empty when the arguments cannot be compared. ``check`` is
    a checksum of the key, which an entry must carry. ``shared``: other processes know the tool by the same key.
    ``keep`` gives what is kept of a result, by default the result itself; it raises ``NotKeptError`` for one that is
    its caller's alone.
    """

    tool: str
    key: str | None
    names: tuple[str, ...]
    writes: tuple[str, ...]
    ttl: float | None
    call: bytes
    check: int = 0
    shared: bool = False
    keep: Callable[[Any], Any] | None = None


class Planner:
    """Turns calls into plans. Privacy: keys hold scope, tool and arguments only as digests."""

    def __init__(self, options: ToolCacheOptions) -> None:
        self.prefix = f"{options.namespace}:t:"
        self._rules = Rules(options.allow, options.deny, options.ttl, options.ttls, assume_writes=options.assume_writes)
        self._environment = dict(options.environment)
        self._cacheable = options.cacheable
        self._resolve = options.resolve
        self._one_world = options.one_world
        # Plans are remembered only without these hooks, which may answer differently each time.
        self._repeatable = options.cacheable is None and options.resolve is None
        self._recent: dict[tuple[object, ...], Plan] = {}
        self.scope_prefix = lru_cache(maxsize=4_096)(self._scope_prefix)
        self._tool_prefix = lru_cache(maxsize=4_096)(self._prefix_of)
        self._reads = lru_cache(maxsize=4_096)(self._read_names)
        self._changes = lru_cache(maxsize=4_096)(self._write_names)

    def plan(
        self,
        tool: ToolSpec,
        arguments: Mapping[str, Any],
        scope: str,
        word: bool | None = None,  # noqa: FBT001 - the hot path; asked by position
    ) -> Plan:
        """Return the plan of one call; ``word`` is its caller's opinion, in place of the hook's.

        Remembered for the same call, since making one takes longer than a lookup in memory.
        """
        environment = {**self._environment, **tool.environment} if tool.environment else self._environment
        exact = canonical(tool, arguments, environment)
        if not self._repeatable or not 0 < len(exact) <= _RECENT_BYTES:
            return self._make(tool, arguments, scope, environment, exact, word)
        mark = (exact, scope, tool.cacheable, tool.mutates, tool.reads, word)
        plan = self._recent.get(mark)
        if plan is None:
            if len(self._recent) >= _RECENT:
                self._recent.clear()
            plan = self._recent[mark] = self._make(tool, arguments, scope, environment, exact, word)
        return plan

    def _make(
        self,
        tool: ToolSpec,
        arguments: Mapping[str, Any],
        scope: str,
        environment: Mapping[str, str],
        exact: bytes,
        word: bool | None,  # noqa: FBT001 - as above
    ) -> Plan:
        """The key of a call, what it depends on and what it changes; ``word`` is its caller's opinion."""
        ruling = self._rules.ruling(tool.name, tool.origin, tool.cacheable, tool.mutates)
        cached, writes = ruling.cached, ruling.writes
        if not ruling.denied and not tool.mutates:
            if word is None and self._cacheable is not None:
                word = self._cacheable(tool, arguments)
            if word is not None:
                cached = word
                writes = writes and not word
        call = hashlib.blake2b(exact, digest_size=16).digest() if exact else b""
        if not call or not cached:
            changed: tuple[str, ...] = ()
            if writes is True:
                changed = self._changes(scope, None)
            elif writes:
                changed = self._changes(scope, resources(arguments, writes, environment, self._resolve))
            return Plan(tool.name, None, (), changed, ruling.ttl, call)
        touched = resources(arguments, tool.reads, environment, self._resolve) if tool.reads else None
        prefix, check = self._tool_prefix(scope, tool.name)
        key, reads = prefix + call.hex(), self._reads(scope, touched)
        return Plan(tool.name, key, reads, (), ruling.ttl, call, zlib.crc32(call, check), bool(tool.version))

    def unreadable(self, tool: ToolSpec, scope: str) -> Plan:
        """Return the plan of a call that could not be planned: run it, and outdate all results of the scope."""
        return Plan(tool.name, None, (), self._changes(scope, None), None, b"")

    def tool_of(self, key: str) -> str | None:
        """Return the tool part of one of our keys, as ``short`` writes it."""
        if not key.startswith(self.prefix):
            return None
        return key.rpartition(":")[0].rpartition(":")[2]

    def _prefix_of(self, scope: str, tool: str) -> tuple[str, int]:
        prefix = f"{self.scope_prefix(scope)}{short(tool)}:"
        return prefix, zlib.crc32(prefix.encode())

    def _scope_prefix(self, scope: str) -> str:
        return f"{self.prefix}{{{short(scope)}}}:"

    def _world(self, scope: str) -> str:
        """Prefix of generation names: one for all scopes with ``one_world``, else the scope's own."""
        return f"{self.prefix}w:" if self._one_world else f"{self.scope_prefix(scope)}w:"

    def _read_names(self, scope: str, touched: tuple[str, ...] | None) -> tuple[str, ...]:
        """Generations that a result depends on; ``touched`` are the resources read, None for anything."""
        world, epoch = self._world(scope), f"{self.scope_prefix(scope)}epoch"
        if touched is None:
            return (epoch, f"{world}any")
        # Outdated where the resource or something below it changed, or a folder above it as a whole.
        names = dict.fromkeys([epoch, f"{world}all"])
        for resource in touched:
            names[f"{world}below:{short(resource)}"] = None
            names.update(dict.fromkeys(f"{world}at:{short(above)}" for above in ancestors(resource)))
        return tuple(names)

    def _write_names(self, scope: str, touched: tuple[str, ...] | None) -> tuple[str, ...]:
        """Generations that a write renews; ``touched`` are the resources written, None for anything."""
        world = self._world(scope)
        if touched is None:
            return (f"{world}any", f"{world}all")
        names = dict.fromkeys([f"{world}any"])
        for resource in touched:
            names[f"{world}at:{short(resource)}"] = None
            names.update(dict.fromkeys(f"{world}below:{short(r)}" for r in (resource, *ancestors(resource))))
        return tuple(names)


def canonical(tool: ToolSpec, arguments: Mapping[str, Any], environment: Mapping[str, str]) -> bytes:
    """Return JSON that identifies tool, environment and arguments; empty where JSON cannot hold them exactly.

    Key order does not matter at any depth; 1, 1.0, True and "1" are four different values.
    """
    values = arguments if type(arguments) is dict else dict(arguments)
    # Privacy: tools of one name are told apart by version, else by function, so that none answers for another. Without
    # either, the name alone identifies the tool.
    which = ("version", tool.version) if tool.version else ("name", "")
    if tool.function is not None and not tool.version:
        which = ("function", identity_of(tool.function))
        if not which[1]:
            return b""
    try:
        data = orjson.dumps((tool.name, tool.origin, which, environment, values), option=orjson.OPT_SORT_KEYS)
    except (TypeError, ValueError):
        return b""
    return data if is_plain(values) else b""
