"""The tool-result cache: runs calls through it, whole or in two halves where a framework runs the tool."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from cacheprefix.bounded import Bounded
from cacheprefix.effects import Effect, Flow, adrive, drive, in_a_loop
from cacheprefix.errors import SetupError
from cacheprefix.locks import RLock, reset_in_child
from cacheprefix.stores import MemoryStore, Store
from cacheprefix.stores.effects import Do
from cacheprefix.stores.memory import Lru
from cacheprefix.stores.protocol import is_blocking, is_shared, short
from cacheprefix.toolcache.codec import Kept
from cacheprefix.toolcache.engine import Answer, Engine, Looked, departure_counter
from cacheprefix.toolcache.flight import Ran, Run
from cacheprefix.toolcache.keys import Plan, Planner
from cacheprefix.toolcache.options import ToolCacheOptions
from cacheprefix.toolcache.repeats import RepeatDetector, repeat_message
from cacheprefix.toolcache.spec import Origin, ToolSpec
from cacheprefix.toolcache.stats import OTHER, CacheStats, Counters, Outcome, ToolCall


class Attempt:
    """A call whose tool the caller runs; see ``ToolResultCache.begin``.

    An attempt that is dropped without ``finish`` or ``fail`` counts as failed, and calls that wait for it go on.
    """

    def __init__(
        self,
        cache: ToolResultCache,
        tool: ToolSpec,
        arguments: Mapping[str, Any],
        scope: str | None,
        conversation: str | None,
        cacheable: bool | None = None,  # noqa: FBT001 - passed through
    ) -> None:
        self.result: Any = None
        self.outcome: Outcome | None = None
        self._cache = cache
        self._began = cache._clock()  # noqa: SLF001 - the cache's own second half
        self._flow: Flow[Answer] | None = None
        self._plan: Plan | None = None
        self._aside = False
        if cache.enabled:
            self._start(tool, arguments, scope, conversation, cacheable)

    @property
    def answered(self) -> bool:
        """Whether ``result`` is the call's answer, so that the tool must not run."""
        return self.outcome in {"hit", "joined", "refused"}

    def finish(self, result: Any) -> None:
        """Say what the tool returned."""
        self._step(Ran(result))

    def fail(self, error: BaseException | None = None) -> None:
        """Say that the tool raised; nothing is kept."""
        self._step(Ran(error=error or RuntimeError("the tool failed")))

    def _start(
        self,
        tool: ToolSpec,
        arguments: Mapping[str, Any],
        scope: str | None,
        conversation: str | None,
        cacheable: bool | None,  # noqa: FBT001 - passed through
    ) -> None:
        """Plan the call and look it up, but not in a store that blocks where an event loop would have to wait."""
        cache = self._cache
        plan = cache._plan(tool, arguments, scope, cacheable)  # noqa: SLF001 - as above
        # An event loop must not wait for a blocking store: then nothing is looked up, and marks of writes are set in a
        # thread.
        self._aside = is_blocking(cache.store) and in_a_loop()
        if self._aside:
            plan = plan._replace(key=None)
        self._plan = plan
        self._flow = cache._flow(plan, _never, conversation)  # noqa: SLF001 - as above
        self._step(None)

    def _step(self, ran: Ran | None) -> None:
        """Drive the flow to where the tool must run, or to its end; ``ran`` is how the tool ended, None to start."""
        flow, plan = self._flow, self._plan
        if flow is None or plan is None:
            return
        try:
            effect = flow.send(None) if ran is None else flow.send(ran)
            while not isinstance(effect, Run):
                try:
                    value = self._done(effect)
                except BaseException as error:  # noqa: PERF203 - what an effect raises belongs to the flow, as in drive
                    effect = flow.throw(error)
                else:
                    effect = flow.send(value)
        except StopIteration as end:
            answer: Answer = end.value
            self._flow = None
            self.outcome, self.result = answer.outcome, answer.ran.result
            self._cache._note(plan, answer, self._began)  # noqa: SLF001 - as above

    def _done(self, effect: Effect) -> Any:
        if self._aside:
            self._cache._engine.tell(effect.now)  # noqa: SLF001 - the cache's own second half
            return None
        return effect.now()


def _never() -> Any:
    raise RuntimeError("an attempt's tool is run by its caller")


T = TypeVar("T")

_MAX_CONVERSATIONS = 4_096
_RUN = ("miss", "bypassed", "written")


class ToolResultCache:
    """Runs a tool once for identical calls, and again after anything it may depend on was written.

    Only tools declared pure (``ToolSpec``) or allowed by pattern are cached. Errors are
    never kept. Results come back as copies. Whatever fails in the cache or its store, the tool
    runs and its own result or exception reaches the caller; no call waits for another one, or
    for another process, longer than ``lease`` seconds.

    ``store`` is where results are kept; by default this process's memory, bounded as ``options`` say. In a store that
    processes share stand only results of tools with a declared ``version``, and only those that the codec can write
    (text and plain JSON by default); the others stay in this process, under the same bounds. ``options`` are the rest.
    """

    def __init__(self, store: Store | None = None, options: ToolCacheOptions | None = None) -> None:
        options = ToolCacheOptions() if options is None else options
        self.enabled = options.enabled
        self.scope = options.scope
        self.ttl = options.ttl
        self._observers = () if options.observe is None else (options.observe,)
        self._specs = {(tool.origin, tool.name): tool for tool in options.tools}
        self._repeats = options.repeats
        self._clock = clock = options.clock
        self._counters = Counters()
        self._names: dict[str, str] = {}
        self._conversations: Bounded[str, RepeatDetector] = Bounded(_MAX_CONVERSATIONS)
        self._lock = RLock()
        self._planner = Planner(options)
        dropped = departure_counter(self._counters, self._tool_of)
        most, size = options.max_entries, options.max_bytes
        if store is None:
            store = MemoryStore(max_entries=most, max_bytes=size, clock=clock)
        store.listen(dropped)
        objects: Lru[tuple[bytes, Kept]] = Lru(most, size, clock, dropped)
        self._engine = Engine(store, options, self._counters, objects)
        reset_in_child(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], store: Store | None = None) -> ToolResultCache:
        """Make a cache from a configuration file's table.

        ``enabled`` (default true) and ``ttl_secs`` (default 300, 0 means never expires) are
        read specially; other keys are those of ``ToolCacheOptions``.

        Raises:
            SetupError: a key is unknown or a value has the wrong type.
        """
        options = dict(config)
        seconds = options.pop("ttl_secs", 300)
        enabled = options.pop("enabled", True)
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not isinstance(enabled, bool):
            raise SetupError(f"tool-result cache: ttl_secs is a number and enabled is true or false, not {config!r}")
        try:
            return cls(store, ToolCacheOptions(enabled=enabled, ttl=float(seconds) or None, **options))
        except TypeError as error:
            raise SetupError(f"tool-result cache: {error}") from error

    @property
    def store(self) -> Store:
        """The store of results, and of the generations that outdate them."""
        return self._engine.store

    @property
    def shared(self) -> bool:
        """Whether other processes use the same store; ``stats`` then lists its entries."""
        return is_shared(self._engine.store)

    def spec(self, name: str, origin: Origin = "local") -> ToolSpec:
        """Return a tool's declaration; without one, a spec for which only the patterns decide."""
        return self._specs.get((origin, name)) or ToolSpec(name, origin)

    def declares(self, name: str, origin: Origin = "local") -> bool:
        """Whether ``tools`` holds a declaration of this tool."""
        return (origin, name) in self._specs

    def subscribe(self, observe: Callable[[ToolCall], None]) -> None:
        """Call ``observe`` after every call, in addition to earlier observers."""
        with self._lock:
            self._observers = (*self._observers, observe)

    def call(
        self,
        tool: ToolSpec,
        arguments: Mapping[str, Any],
        run: Callable[[], T],
        *,
        scope: str | None = None,
        conversation: str | None = None,
        repeated: Callable[[str], T] | None = None,
        cacheable: bool | None = None,
    ) -> T:
        """Return what ``run()`` returns, from the cache where that is allowed and known.

        ``conversation`` switches repeat detection on and names whose calls are counted (one
        agent in one thread; see ``new_turn``). ``repeated`` turns the message for a refused
        call into a result; without it the message itself is returned. ``cacheable`` is the caller's
        opinion on this very call, in place of the one that the cache's own hook would give.
        """
        if not self.enabled:
            return run()
        began = self._clock() if self._observers else 0.0
        plan = self._plan(tool, arguments, scope, cacheable)
        if plan.key is not None and conversation is None:
            # A hit without a flow, which would do the same more slowly.
            looked = self._engine.look(plan)
            if looked.kept is not None:
                self._counters.hit(plan.tool, looked.kept.seconds)
                if self._observers:
                    self._observed(ToolCall(plan.tool, "hit", self._clock() - began, looked.kept.seconds))
                return looked.value  # type: ignore[no-any-return]
            self._missed(plan, looked)
            flow = self._engine.miss(plan, run, looked)
        else:
            flow = self._flow(plan, run, conversation)
        return _given(self._note(plan, drive(flow), began), repeated)  # type: ignore[no-any-return]

    async def acall(
        self,
        tool: ToolSpec,
        arguments: Mapping[str, Any],
        run: Callable[[], Awaitable[T]],
        *,
        scope: str | None = None,
        conversation: str | None = None,
        repeated: Callable[[str], T] | None = None,
        cacheable: bool | None = None,
    ) -> T:
        """Async form of ``call``; identical calls of threads and tasks join each other."""
        flow = self.flow(tool, arguments, run, scope=scope, conversation=conversation, cacheable=cacheable)
        return _given(await adrive(flow), repeated)  # type: ignore[no-any-return]

    def flow(
        self,
        tool: ToolSpec,
        arguments: Mapping[str, Any],
        run: Callable[[], Any],
        *,
        scope: str | None = None,
        conversation: str | None = None,
        cacheable: bool | None = None,
        keep: Callable[[Any], Any] | None = None,
    ) -> Flow[Answer]:
        """``call`` as a flow for ``drive`` and ``adrive``, which returns an ``Answer``; for front doors.

        ``keep`` says what is kept of a result where that is not the result itself, and raises ``NotKeptError`` for one
        that is its caller's alone. A call that is ``refused`` has the message for its result.
        """
        if not self.enabled:
            return Answer((yield Run(run)), "bypassed")
        began = self._clock()
        plan = self._plan(tool, arguments, scope, cacheable)
        if keep is not None:
            plan = plan._replace(keep=keep)
        return self._note(plan, (yield from self._flow(plan, run, conversation)), began)

    def begin(
        self,
        tool: ToolSpec,
        arguments: Mapping[str, Any],
        *,
        scope: str | None = None,
        conversation: str | None = None,
        cacheable: bool | None = None,
    ) -> Attempt:
        """Start a call whose tool somebody else runs, for frameworks with a hook before and one after it.

        Look at ``answered``: the result is there, or the caller runs the tool and then calls
        ``Attempt.finish`` or ``Attempt.fail``. Identical calls wait for that, at most one lease.
        """
        return Attempt(self, tool, arguments, scope, conversation, cacheable)

    def new_turn(self, conversation: str) -> None:
        """Start a conversation's repeat detection afresh; call it for every message of the user.

        Also those below it: ``new_turn("thread")`` covers ``"thread/agent"``.
        """
        with self._lock:
            below = [name for name in self._conversations if name.startswith(f"{conversation}/")]
            for name in (conversation, *below):
                self._conversations.pop(name, None)

    def clear(self, scope: str | None = None) -> int:
        """Forget the results of a scope, or without one all results, counters and repeats.

        Works on the whole store, also for other processes. What is running now is not kept.
        Returns the number of entries dropped.

        Raises:
            StoreError: the store failed, so entries may still be there.
        """
        if scope is not None:
            return self._engine.clear(self._planner.scope_prefix(scope))
        gone = self._engine.clear(self._planner.prefix)
        self._counters.clear()
        with self._lock:
            self._conversations.clear()
        return gone

    def stats(self) -> CacheStats:
        """Return counts of this process and what the store holds now, in total and by tool.

        In an event loop a store that blocks is not asked: entries are then those that only this process holds.
        """
        held: dict[str, tuple[int, int]] = {}
        for key, size in self._engine.held(self._planner.prefix).items():
            tool = self._tool_of(key) or OTHER
            entries, total = held.get(tool, (0, 0))
            held[tool] = (entries + 1, total + size)
        return self._counters.stats(self.enabled, self.ttl, held)

    def after_fork(self) -> None:
        """In a forked child: begin without the parent's running calls, counts and repeats."""
        self._counters.after_fork()
        self._engine.after_fork()
        self._conversations = Bounded(_MAX_CONVERSATIONS)

    def _plan(self, tool: ToolSpec, arguments: Mapping[str, Any], scope: str | None, word: bool | None = None) -> Plan:  # noqa: FBT001 - passed through
        """The plan of a call; one without a key, so that it only runs, where it cannot be made."""
        scope = self.scope if scope is None else scope
        try:
            plan = self._planner.plan(tool, arguments, scope, word)
        except Exception as error:
            self._engine.failed(error)
            return self._planner.unreadable(tool, scope)
        if plan.key is not None and tool.name not in self._names:
            self._name(tool.name)
        return plan

    def _name(self, tool: str) -> None:
        # Keys hold the tool's digest; the names come back in the statistics.
        if len(self._names) < _MAX_CONVERSATIONS:
            self._names[tool] = tool
            self._names[short(tool)] = tool

    def _tool_of(self, key: str) -> str | None:
        tool = self._planner.tool_of(key)
        return None if tool is None else self._names.get(tool, OTHER)

    def _flow(self, plan: Plan, run: Callable[[], Any], conversation: str | None) -> Flow[Answer]:
        """Answer one call: refused as a repeat, from what is kept, or by running the tool."""
        if plan.key is None:
            if plan.writes:
                return (yield from self._engine.write(plan, run))
            return Answer((yield Run(run)), "bypassed")
        looked: Looked = yield Do(self._engine.store, self._engine.look, plan)
        # A repeat is the same call with nothing written since that it depends on (the stamp). Only cacheable calls get
        # here: others may answer differently each time (the next page, a job's state) and are never refused.
        asked = plan.call + (looked.stamp or b"")
        watch = None if conversation is None or looked.stamp is None else self._watch(conversation)
        if watch is not None and not watch.start(asked):
            return Answer(Ran(repeat_message(plan.tool, self._repeats)), "refused")
        try:
            if looked.kept is not None:
                return Answer(Ran(looked.value), "hit", looked.kept.seconds)
            self._missed(plan, looked)
            return (yield from self._engine.miss(plan, run, looked))
        finally:
            if watch is not None:
                watch.finish(asked)

    def _watch(self, conversation: str) -> RepeatDetector | None:
        if self._repeats <= 0:
            return None
        with self._lock:
            return self._conversations.of(conversation, lambda: RepeatDetector(self._repeats))

    def _missed(self, plan: Plan, looked: Looked) -> None:
        if looked.outdated:
            self._counters.add(plan.tool, "outdated")

    def _note(self, plan: Plan, answer: Answer, began: float) -> Answer:
        """Count how a call ended, and call the observers."""
        ran = answer.ran
        self._counters.outcome(plan.tool, answer.outcome, answer.saved)
        if self._observers:
            failed = ran.error is not None or (answer.outcome in _RUN and self._engine.reports_error(ran.result))
            self._observed(ToolCall(plan.tool, answer.outcome, self._clock() - began, answer.saved, failed))
        return answer

    def _observed(self, call: ToolCall) -> None:
        for observe in self._observers:
            try:
                observe(call)
            except Exception as error:  # noqa: PERF203 - one that fails must not silence the others
                self._engine.failed(error)


def _given(answer: Answer, repeated: Callable[[str], Any] | None) -> Any:
    """The result for the caller; raises the tool's own exception."""
    if answer.outcome == "refused" and repeated is not None:
        return repeated(answer.ran.result)
    return answer.ran.outcome()
