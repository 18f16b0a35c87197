"""Options of a tool-result cache: a frozen value, all of it optional."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cacheprefix.errors import SetupError
from cacheprefix.stores.clock import steady
from cacheprefix.toolcache.codec import Codec, JsonCodec
from cacheprefix.toolcache.errors import looks_like_error
from cacheprefix.toolcache.spec import DEFAULT_DENY, Cacheable, ToolSpec
from cacheprefix.toolcache.stats import ToolCall


@dataclass(frozen=True, slots=True)
class ToolCacheOptions:
    """Options of a ``ToolResultCache``.

    - ``allow`` and ``deny``: patterns of tool names, shell wildcards in any case; deny wins over
      everything. Nothing is allowed by default (``DEFAULT_ALLOW`` holds names that many tools which
      only read go by). A plain pattern of ``allow`` matches local tools only and one of ``deny`` all;
      ``mcp:NAME`` matches MCP tools.
    - ``tools``: declarations that ``spec`` finds by name and origin; front doors of frameworks,
      which know a tool's name and function only, ask it.
    - ``ttl``: seconds that a result is kept, None for ever; ``ttls`` by tool name or pattern.
    - ``scope``: tenant, user or session whose results these are, unless a call names another.
      Scopes never see each other's results.
    - ``one_world``: whether a write in one scope may change what another scope reads (one file
      system, one repository), so that it outdates all scopes' results. Set it to False for
      tenants with nothing in common.
    - ``assume_writes``: whether a tool that is neither cached nor declared counts as a write of
      anything. False trades safety for hits.
    - ``cacheable``: asked per call, answers True, False or None (no opinion); deny patterns and
      declared writes win over it.
    - ``environment``: as in ``ToolSpec``, for all tools; ``resolve`` makes a path
      canonical (``os.path.realpath`` where symbolic links matter).
    - ``max_entries`` and ``max_bytes``: bounds in this process, least recently used out first; None lifts one.
    - ``lease``: most seconds that a call waits for an identical running one, and that a write's mark lasts whose
      writer died or was cancelled.
    - ``repeats``: threshold of the repeat detection, 0 for none. Only calls that may be answered from the
      cache are ever refused.
    - ``observe``: called with a ``ToolCall`` after every call; see also ``ToolResultCache.subscribe``.

    Raises:
        SetupError: ``lease`` is not positive.
    """

    enabled: bool = True
    allow: Iterable[str] = ()
    deny: Iterable[str] = DEFAULT_DENY
    tools: Iterable[ToolSpec] = ()
    ttl: float | None = 300.0
    ttls: Mapping[str, float | None] = field(default_factory=dict)
    scope: str = ""
    one_world: bool = True
    assume_writes: bool = True
    cacheable: Cacheable | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    resolve: Callable[[str], str] | None = None
    max_entries: int | None = 4_096
    max_bytes: int | None = 64 * 1024 * 1024
    lease: float = 30.0
    repeats: int = 2
    codec: Codec = field(default_factory=JsonCodec)
    is_error: Callable[[Any], bool] = looks_like_error
    observe: Callable[[ToolCall], None] | None = None
    namespace: str = "cacheprefix"
    clock: Callable[[], float] = steady

    def __post_init__(self) -> None:
        if self.lease <= 0:
            raise SetupError(f"lease is {self.lease} seconds; a leader needs more than 0 to finish")
