"""What the cache has to know about a tool, and which tools it may cache."""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from functools import lru_cache
from typing import Any, Literal, TypeAlias

Origin: TypeAlias = Literal["local", "mcp"]

DEFAULT_ALLOW = ("read", "web_scrape", "search_code", "load_skill", "diagnostics")
"""Names that many tools which only read go by, for ``allow``; nothing is allowed by default."""

DEFAULT_DENY = (
    *("bash", "shell", "write", "edit", "delete", "move", "copy", "create", "set_*"),
    *("write_*", "edit_*", "delete_*", "move_*", "copy_*", "create_*"),
    *("memory_save", "memory_search", "scheduler"),
)
"""Tools that act on the world, and a search whose answer changes with every saved memory."""

_READ_BACK = "read_full_result"
# Denied because the answer goes stale, or is one conversation's, not because it changes anything.
_DENIED_READERS = frozenset({"memory_search", _READ_BACK})


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One tool, as its framework or its author declares it.

    Results belong to the tool and not to its name: two functions called ``read``, made for two users, never answer
    for each other. A tool is told apart by its ``version``, else by its ``function``, else (called by this very
    declaration, without either) by its name alone.

    - ``origin``: where the tool comes from. MCP tools are third-party code under names they
      chose themselves, so only patterns that begin with ``mcp:`` allow them.
    - ``cacheable``: True when the tool is pure (same arguments, same answer), False never to
      cache it, None to go by the patterns.
    - ``mutates``: what a call changes: names of the arguments that hold the resources
      (``("path",)``), True for anything, False for nothing. None (unknown) means anything for a
      tool that is not cached and nothing for one that is.
    - ``reads``: names of the arguments that hold all the resources an answer depends on. Empty
      means that it may depend on anything, so every change outdates it.
    - ``version``: what the author calls this state of the tool. Name and version then say which tool it is, in every
      process: only results of such a tool stand in a store that processes share, those of others stay in theirs.
    - ``function``: what runs, in this process: the function, or the object whose method it is. Front doors fill it in.
    - ``environment``: what else the answer depends on, such as ``cwd`` or a version. Part of
      the key; ``cwd`` also completes relative paths.

    Resources form a hierarchy by ``/``: a change outdates reads of the resource itself, of
    everything below it and of every folder above it. Names are paths unless the argument is
    written ``kind:argument`` (``"db:table"``). A path that cannot be completed, and an argument
    that is missing, count as anything. Symbolic links need the cache's ``resolve``.
    """

    name: str
    origin: Origin = "local"
    cacheable: bool | None = None
    mutates: bool | tuple[str, ...] | None = None
    reads: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    function: Any = field(default=None, compare=False, repr=False)


def origin_of(*made: object, mcp: tuple[str, ...]) -> Origin:
    """Whether a tool is an MCP server's or local, by the modules of the classes (with bases) and functions in ``made``.

    ``mcp`` are prefixes of modules whose tools are MCP servers', each with its closing dot: ``"fastmcp."``.
    """
    kinds = (kind for one in made for kind in (one.__mro__ if isinstance(one, type) else (one,)))
    return "mcp" if any(f"{getattr(kind, '__module__', '')}.".startswith(mcp) for kind in kinds) else "local"


Cacheable: TypeAlias = Callable[[ToolSpec, Mapping[str, Any]], "bool | None"]
"""The user's hook: whether the result of a call may be kept; None for no opinion."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the patterns and the declaration say about a tool, for any arguments."""

    denied: bool
    cached: bool
    writes: bool | tuple[str, ...]
    ttl: float | None


class Rules:
    """Allow and deny patterns (shell wildcards, any case); deny wins over allow and declarations.

    A plain pattern of the allow list matches local tools only and one of the deny list all
    tools; ``mcp:NAME`` matches MCP tools.
    """

    def __init__(
        self,
        allow: Iterable[str],
        deny: Iterable[str],
        ttl: float | None,
        ttls: Mapping[str, float | None],
        *,
        assume_writes: bool,
    ) -> None:
        self._allow = _pattern(allow)
        self._deny = _pattern(deny)
        self._ttl = ttl
        self._ttls = [(_pattern([pattern]), seconds) for pattern, seconds in ttls.items()]
        self._assume_writes = assume_writes
        # Bounded, as a model may invent any number of tool names.
        self.ruling = lru_cache(maxsize=4_096)(self._ruling)

    def _ruling(
        self,
        name: str,
        origin: Origin,
        cacheable: bool | None,  # noqa: FBT001 - called through lru_cache, whose keys are cheapest by position
        mutates: bool | tuple[str, ...] | None,  # noqa: FBT001 - the same
    ) -> Ruling:
        """Whether a tool's results are cached, for how long, and what its calls change."""
        plain = name.casefold()
        known_as = f"mcp:{plain}" if origin == "mcp" else plain
        # Privacy: our own tool that reads cut results again asks each time whether they are the conversation's.
        denied = plain == _READ_BACK or bool(self._deny.match(plain) or self._deny.match(known_as))
        cached = (
            not denied and not mutates and (cacheable if cacheable is not None else bool(self._allow.match(known_as)))
        )
        writes = mutates
        if writes is None:
            writes = self._assume_writes and not cached and plain not in _DENIED_READERS
        ttl = next((t for p, t in self._ttls if p.match(plain) or p.match(known_as)), self._ttl)
        return Ruling(denied, cached, writes, ttl)


def _pattern(patterns: Iterable[str]) -> re.Pattern[str]:
    # An MCP tool is matched as "mcp:name", which plain wildcards must not match.
    parts = [translate(p) if p.startswith("mcp:") else f"(?!mcp:){translate(p)}" for p in map(str.casefold, patterns)]
    return re.compile("|".join(parts) or r"(?!)")


def resources(
    arguments: Mapping[str, Any],
    names: Sequence[str],
    environment: Mapping[str, str],
    resolve: Callable[[str], str] | None,
) -> tuple[str, ...] | None:
    """Return the resources that the arguments ``names`` name, or None when they cannot be told (any resource)."""
    found: list[str] = []
    for name in names:
        kind, _, argument = name.rpartition(":")
        value = arguments.get(argument)
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, bool) or not isinstance(item, (str, int)):
                return None
            place = (
                f"{kind}:/{item}".casefold().rstrip("/") if kind else _path(str(item), environment.get("cwd"), resolve)
            )
            if place is None:
                return None
            found.append(place)
    return tuple(found) or None


def _path(text: str, cwd: str | None, resolve: Callable[[str], str] | None) -> str | None:
    """A path that is equal for all spellings of one file; None for a relative one where the folder is not known."""
    text = text.replace("\\", "/")
    if "://" not in text:
        if not text.startswith("/") and not re.match(r"[A-Za-z]:/", text):
            if not cwd or text.startswith("~"):
                return None
            text = f"{cwd}/{text}"
        if resolve is not None:
            text = resolve(text).replace("\\", "/")
    # Paths that differ only in case or Unicode composition are one file on some systems. The root is "", as in
    # ``ancestors``.
    return ("/" + unicodedata.normalize("NFC", posixpath.normpath(text)).casefold().lstrip("/")).rstrip("/")


@lru_cache(maxsize=4_096)
def ancestors(resource: str) -> tuple[str, ...]:
    """Return the folders above a resource, the nearest first; not the resource itself."""
    above: list[str] = []
    head = resource
    while "/" in head:
        head = head.rpartition("/")[0]
        above.append(head)
    return tuple(above)
