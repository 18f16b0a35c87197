"""One call in two halves."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from cacheprefix.stores._effects import Effect, aside, in_a_loop
from cacheprefix.toolcache._engine import Answer
from cacheprefix.toolcache._flight import Ran, Run
from cacheprefix.toolcache._plan import Plan
from cacheprefix.toolcache._spec import ToolSpec
from cacheprefix.toolcache._stats import Outcome

if TYPE_CHECKING:
    from cacheprefix.toolcache._cache import ToolResultCache


class Attempt:
    """One call in two halves; see ``ToolResultCache.begin``.

    An attempt that is dropped without an end counts as failed, and those who wait for it go on.
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
        self._flow: Generator[Effect, Any, Answer] | None = None
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
        cache = self._cache
        plan = cache._plan(tool, arguments, scope, cacheable)  # noqa: SLF001 - as above
        # A front door that calls from an event loop cannot wait for a store: reads run, and writes are told aside.
        self._aside = cache.store.blocking and in_a_loop()
        if self._aside:
            plan = plan._replace(key=None)
        self._plan = plan
        self._flow = cache._flow(plan, _never, conversation)  # noqa: SLF001 - as above
        self._step(None)

    def _step(self, ran: Ran | None) -> None:
        flow, plan = self._flow, self._plan
        if flow is None or plan is None:
            return
        try:
            effect = flow.send(None) if ran is None else flow.send(ran)
            while not isinstance(effect, Run):
                effect = flow.send(self._done(effect))
        except StopIteration as end:
            answer: Answer = end.value
            self._flow = None
            self.outcome, self.result = answer.outcome, answer.ran.result
            self._cache._note(plan, answer, self._began)  # noqa: SLF001 - as above

    def _done(self, effect: Effect) -> Any:
        if self._aside:
            aside(self._cache.store, effect.now)
            return None
        return effect.now()


def _never() -> Any:
    raise RuntimeError("an attempt's tool is run by its caller")
