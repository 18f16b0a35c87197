"""Keys and generations: under which name a call is kept, and what outdates it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import orjson

from cacheprefix.toolcache._codec import is_plain
from cacheprefix.toolcache._spec import Rules, ToolSpec, ancestors, resources

Cacheable: TypeAlias = Callable[[ToolSpec, Mapping[str, Any]], "bool | None"]


class Plan(NamedTuple):
    """What to do with one call. A tuple, because every hit makes one and they are made fastest.

    ``key`` is where its result is kept, None when it is not cached; ``names`` are the
    generations that an answer depends on, ``writes`` those that the call bumps. ``call`` tells
    identical calls apart from others, empty when the arguments cannot be compared.
    """

    tool: str
    key: str | None
    names: tuple[str, ...]
    writes: tuple[str, ...]
    ttl: float | None
    call: bytes


class Planner:
    """Turns calls into plans. Scope, tool and arguments stand in keys as digests only."""

    def __init__(
        self,
        rules: Rules,
        *,
        namespace: str,
        environment: Mapping[str, str],
        cacheable: Cacheable | None,
        resolve: Callable[[str], str] | None,
        one_world: bool,
    ) -> None:
        self.prefix = f"{namespace}:t:"
        self._rules = rules
        self._environment = dict(environment)
        self._cacheable = cacheable
        self._resolve = resolve
        self._one_world = one_world
        self.scope_prefix = lru_cache(maxsize=4_096)(self._scope_prefix)
        self._tool_prefix = lru_cache(maxsize=4_096)(lambda s, tool: f"{self._scope_prefix(s)}{short(tool)}:")
        self._reads = lru_cache(maxsize=4_096)(self._read_names)
        self._changes = lru_cache(maxsize=4_096)(self._write_names)

    def plan(self, tool: ToolSpec, arguments: Mapping[str, Any], scope: str) -> Plan:
        """Return the plan of one call."""
        ruling = self._rules.ruling(tool.name, tool.origin, tool.cacheable, tool.mutates)
        cached, writes = ruling.cached, ruling.writes
        if self._cacheable is not None and not ruling.denied and not tool.mutates:
            word = self._cacheable(tool, arguments)
            if word is not None:
                cached = word
                writes = writes and not word
        environment = {**self._environment, **tool.environment} if tool.environment else self._environment
        call = digest(tool, arguments, environment)
        if not call or not cached:
            changed: tuple[str, ...] = ()
            if writes is True:
                changed = self._changes(scope, None)
            elif writes:
                changed = self._changes(scope, resources(arguments, writes, environment, self._resolve))
            return Plan(tool.name, None, (), changed, ruling.ttl, call)
        touched = resources(arguments, tool.reads, environment, self._resolve) if tool.reads else None
        key = self._tool_prefix(scope, tool.name) + call.hex()
        return Plan(tool.name, key, self._reads(scope, touched), (), ruling.ttl, call)

    def unreadable(self, tool: ToolSpec, scope: str) -> Plan:
        """Return the plan of a call that could not be planned: run it, and trust nothing kept before."""
        return Plan(tool.name, None, (), self._changes(scope, None), None, b"")

    def tool_of(self, key: str) -> str | None:
        """Return the tool part of one of our keys, as :func:`short` writes it."""
        if not key.startswith(self.prefix):
            return None
        return key.rpartition(":")[0].rpartition(":")[2]

    def _scope_prefix(self, scope: str) -> str:
        return f"{self.prefix}{{{short(scope)}}}:"

    def _world(self, scope: str) -> str:
        return f"{self.prefix}w:" if self._one_world else f"{self.scope_prefix(scope)}w:"

    def _read_names(self, scope: str, touched: tuple[str, ...] | None) -> tuple[str, ...]:
        world, epoch = self._world(scope), f"{self.scope_prefix(scope)}epoch"
        if touched is None:
            return (epoch, f"{world}any")
        # Changed itself or below it, or a folder above it was replaced as a whole.
        names = dict.fromkeys([epoch, f"{world}all"])
        for resource in touched:
            names[f"{world}below:{short(resource)}"] = None
            names.update(dict.fromkeys(f"{world}at:{short(above)}" for above in ancestors(resource)))
        return tuple(names)

    def _write_names(self, scope: str, touched: tuple[str, ...] | None) -> tuple[str, ...]:
        world = self._world(scope)
        if touched is None:
            return (f"{world}any", f"{world}all")
        names = dict.fromkeys([f"{world}any"])
        for resource in touched:
            names[f"{world}at:{short(resource)}"] = None
            names.update(dict.fromkeys(f"{world}below:{short(r)}" for r in (resource, *ancestors(resource))))
        return tuple(names)


def digest(tool: ToolSpec, arguments: Mapping[str, Any], environment: Mapping[str, str]) -> bytes:
    """Return 16 bytes over tool, environment and arguments; nothing when JSON cannot tell them exactly.

    Key order does not matter at any depth; 1, 1.0, True and "1" are four different values.
    """
    values = arguments if type(arguments) is dict else dict(arguments)
    try:
        data = orjson.dumps((tool.name, tool.origin, environment, values), option=orjson.OPT_SORT_KEYS)
    except (TypeError, ValueError):
        return b""
    if not is_plain(values):
        return b""
    return hashlib.blake2b(data, digest_size=16).digest()


@lru_cache(maxsize=8_192)
def short(text: str) -> str:
    """Return a digest that stands for ``text`` in a key: 128 bits, 32 characters."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
