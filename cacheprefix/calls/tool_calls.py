"""Tool calls through a session: the tool-result cache as the front doors of frameworks use it."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from cacheprefix.bounded import Bounded
from cacheprefix.effects import Call, Flow, adrive, drive
from cacheprefix.errors import SetupError
from cacheprefix.locks import Lock
from cacheprefix.notices import Notices
from cacheprefix.plugins import Plugins
from cacheprefix.stores.effects import Settle

if TYPE_CHECKING:
    from cacheprefix.toolcache import AnswerForm, Attempt, CacheStats, Origin, ToolResultCache, ToolSpec

_KEEP = 4_096
"""Calls under way or just made, by the framework's names for them."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One tool call, as a framework sees it.

    - ``conversation``, ``agent`` and ``turn``: whose identical calls are counted together. A new ``turn`` begins
      with every message of the user; it may be empty where ``ToolCalls.new_turn`` is called instead. Without
      a ``conversation`` nothing is counted.
    - ``call``: the framework's name for this very call. Made again under the same name (a retry, a node that is
      resumed) it is no repeat of the model's.
    - ``scope``: tenant or user whose results these are; the session's by default.
    - ``tool``: what runs: the function, or the object whose method it is, or a tuple of all that has a part in the
      answer. Results are its own, whatever its name; without it only a tool that is declared
      (``ToolCacheOptions.tools``) is cached.
    - ``form``: in what form this front door keeps results, so that no other takes them for its own.
    - ``stateful``: the framework hands the tool more than its arguments (a graph's state, a store), so that
      equal arguments do not mean equal answers. Such a tool is cached only when it is declared cacheable.
    - ``guarded``: something of the application's stands between the cache and the tool, which may refuse this very
      call or change its answer: the call is made each time, whatever is declared.
    """

    name: str
    arguments: Mapping[str, Any]
    origin: Origin = "local"
    conversation: str | None = None
    agent: str = ""
    turn: str = ""
    call: str = ""
    scope: str | None = None
    stateful: bool = False
    form: str = ""
    tool: Any = None
    guarded: bool = False


class _Options(TypedDict):
    """Whose call it is, and whether its result may be kept."""

    scope: str
    conversation: str | None
    cacheable: bool | None


ToolCacheOption: TypeAlias = "ToolResultCache | Iterable[str | ToolSpec] | bool | None"
"""What ``Session(tool_cache=...)`` takes: a cache, or which tools are cacheable, by name, pattern or declaration."""


class ToolCalls:
    """What an adapter calls around a tool; without a cache, and where it is not ``allowed``, the tool simply runs.

    ``owner`` is the name of the session that it was made for; its children use it too. ``scope`` is that session's;
    those of its children that are another tenant's have the same with their own (``of``).
    """

    def __init__(
        self, option: ToolCacheOption, plugins: Plugins, notices: Notices, *, owner: str, scope: str, allowed: bool
    ) -> None:
        self.cache = _cache_of(option)
        self.owner = owner
        self._plugins = plugins
        self._notices = notices
        self._own_scope = scope
        self._allowed = allowed
        # One scope's reset may clear the counts too only while it is the only one.
        self._scopes: set[str] = set()
        self._made: Bounded[str, None] = Bounded(_KEEP)
        self._lock = Lock()

    def of(self, scope: str) -> ToolCalls:
        """The same cache and counts for a session of this tenant; itself where it is that one's already."""
        if scope == self._own_scope:
            return self
        made = copy.copy(self)
        made._own_scope = scope  # noqa: SLF001 - of its own kind
        return made

    @property
    def active(self) -> bool:
        """Whether calls go through a cache at all."""
        return self.cache is not None and self.cache.enabled and self._allowed

    def run(
        self,
        use: ToolUse | Callable[[], ToolUse | None],
        run: Callable[[], Any],
        form: AnswerForm | None = None,
    ) -> Any:
        """What the tool returns, from the cache where that is allowed and known; see ``ToolResultCache.call``.

        ``use`` may be a function that describes the call: where that fails or gives None, the tool simply runs.
        """
        return drive(self._flow(use, run, form)) if self.active else run()

    async def arun(
        self,
        use: ToolUse | Callable[[], ToolUse | None],
        run: Callable[[], Awaitable[Any]],
        form: AnswerForm | None = None,
    ) -> Any:
        """``run`` for coroutines."""
        return await (adrive(self._flow(use, run, form)) if self.active else run())

    def _flow(
        self, use: ToolUse | Callable[[], ToolUse | None], run: Callable[[], Any], form: AnswerForm | None
    ) -> Flow[Any]:
        """Ask the cache, run the tool where it does not know, and hand the result on in the framework's own form."""
        described = use if isinstance(use, ToolUse) else self._notices.attempt("tool cache", use, None)
        if self.cache is None or described is None:
            return (yield Call(run))
        spec, options = self._asked(self.cache, described)
        keep = None if form is None else form.keep
        answer = yield from self.cache.flow(spec, described.arguments, run, keep=keep, **options)
        if form is not None and answer.outcome == "refused":
            return (yield Call(form.refused, answer.ran.result))
        if form is not None and answer.outcome in ("hit", "joined"):
            return (yield Call(form.known, answer.ran.result))
        return answer.ran.outcome()

    def begin(self, use: ToolUse) -> Attempt | None:
        """The first half of a call whose tool the framework runs; None where no cache is in force."""
        cache = self.cache
        if cache is None or not self.active:
            return None
        spec, options = self._asked(cache, use)
        return cache.begin(spec, use.arguments, **options)

    def new_turn(self, conversation: str, agent: str = "", scope: str | None = None) -> None:
        """The user has spoken: identical calls count from zero, for one agent or for all of a conversation."""
        if self.cache is not None:
            counted = f"{self._scope(self.cache, scope)}\0{conversation}"
            self.cache.new_turn(f"{counted}/{agent}" if agent else counted)

    def reset(self, conversation: str = "", scope: str | None = None) -> None:
        """A conversation starts again: the results of its scope are forgotten, and its repeats.

        Where no other scope has used the cache, its counts start at zero too. A store that is down keeps what it
        holds until it expires; that is noted among the failures.
        """
        work = self._reset(conversation, scope)
        if work is not None:
            work.now()

    async def areset(self, conversation: str = "", scope: str | None = None) -> None:
        """``reset`` without blocking the event loop."""
        work = self._reset(conversation, scope)
        if work is not None:
            await work.later()

    def _reset(self, conversation: str, scope: str | None) -> Settle | None:
        """The part of a reset that asks the store, still to be done; None without a cache."""
        cache = self.cache
        if cache is None:
            return None
        where = self._scope(cache, scope)
        self.new_turn(conversation, scope=scope)
        # Privacy: what other tenants hold and what is counted of them stays.
        alone = self._scopes <= {where}
        clear = partial(cache.clear, None if alone else where)
        return Settle(cache.store, partial(self._notices.attempt, "tool cache reset", clear, 0))

    def stats(self) -> CacheStats | None:
        """Counts of this process and what the store holds; None without a cache."""
        cache = self.cache
        return None if cache is None else self._notices.attempt("tool cache statistics", cache.stats, None)

    def _asked(self, cache: ToolResultCache, use: ToolUse) -> tuple[ToolSpec, _Options]:
        """The tool as the cache knows it, and how the call is looked up: whose it is, and whether it may be kept."""
        spec = cache.spec(use.name, use.origin)
        environment = {**spec.environment, "cacheprefix_form": use.form} if use.form else spec.environment
        spec = replace(spec, environment=environment, function=use.tool if spec.function is None else spec.function)
        scope = self._scope(cache, use.scope)
        if len(self._scopes) < 2:
            self._scopes.add(scope)
        agent = f"{use.agent}/{use.turn}" if use.turn else use.agent
        counted = None if use.conversation is None else f"{scope}\0{use.conversation}/{agent}"
        if counted is not None and use.call and not self._first(f"{counted}\0{use.call}"):
            counted = None
        unknown: bool | None = False
        word = self._notices.attempt("tool_cacheable", lambda: self._opinion(spec, use), unknown)
        return spec, {"scope": scope, "conversation": counted, "cacheable": word}

    def _opinion(self, spec: ToolSpec, use: ToolUse) -> bool | None:
        """Whether a call's result may be kept; None where the tool's declaration decides."""
        if use.guarded:
            # Privacy: it may have let another user's call pass.
            return False
        if spec.function is None and self.cache is not None and not self.cache.declares(use.name, use.origin):
            # Privacy: nobody says which tool it is, and a name alone may be another user's tool.
            return False
        plugins = self._plugins
        if plugins.overrides("tool_cacheable"):
            word = plugins.call_first("tool_cacheable", tool=use.name, arguments=use.arguments)
            if isinstance(word, bool):
                return word
        return False if use.stateful and spec.cacheable is None else None

    def _first(self, call: str) -> bool:
        """Whether a call is made for the first time; one that a framework repeats is no repeat of the model's."""
        with self._lock:
            first = call not in self._made
            self._made[call] = None
        return first

    def _scope(self, cache: ToolResultCache, scope: str | None) -> str:
        """Whose results a call may read: the tenant that is named, else the session's, else the cache's own."""
        return (self._own_scope or cache.scope) if scope is None else scope


def _cache_of(option: Any) -> ToolResultCache | None:
    """The cache that ``Session(tool_cache=...)`` asks for; raises ``SetupError`` for what is none of its forms."""
    if option is None or option is False:
        return None
    from cacheprefix.toolcache import ToolCacheOptions, ToolResultCache, ToolSpec  # noqa: PLC0415 - most sessions have none

    if isinstance(option, ToolResultCache):
        return option
    named = [] if option is True else list(option) if isinstance(option, Iterable) else [None]
    if isinstance(option, (str, bytes)) or not all(isinstance(each, (str, ToolSpec)) for each in named):
        raise SetupError(
            "Session(tool_cache=...) takes a ToolResultCache, a list of cacheable tools (names, patterns, ToolSpecs), "
            f"True or None, not {option!r:.80}"
        )
    return ToolResultCache(
        options=ToolCacheOptions(
            allow=tuple(each for each in named if isinstance(each, str)),
            tools=tuple(each for each in named if isinstance(each, ToolSpec)),
        )
    )
