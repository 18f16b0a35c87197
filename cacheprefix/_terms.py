"""What a conversation goes by, and appending to it so that a failing hook takes nothing with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from cacheprefix.context import (
    Circumstances,
    Compaction,
    Consolidate,
    ContextState,
    Count,
    Plan,
    Replace,
    RequestBudget,
    Results,
    SummaryRequest,
    ToolResultBudget,
    TransitionHook,
    append_message,
    compact,
    compact_for_request,
    concatenate,
    plan,
    transition,
)
from cacheprefix.errors import BodyError, BudgetError
from cacheprefix.prompt import estimate_tokens

if TYPE_CHECKING:
    from cacheprefix._conversation import Conversation

Ask = Callable[[SummaryRequest], str]
"""Asks the model for a summary; ``Session.summary_by_fork`` makes one that rides on the cached prefix."""
AsyncAsk = Callable[[SummaryRequest], Awaitable[str]]
"""The same without blocking the event loop; made by ``Session.asummary_by_fork``."""
Attempt = Callable[[str, Callable[[], Any], Any], Any]
"""Runs our own or a hook's work and answers with its last argument when that fails, as ``Session.attempt`` does."""
T = TypeVar("T")

Steps = Generator["SummaryRequest | Future[None]", "str | bool", T]
"""Work that may want summaries, whose texts it takes, and may wait for a sibling's; it learns whether that ended."""

PATIENCE = 30.0
"""Seconds that a request waits at most for the summary that a sibling is having written."""


def plainly(step: str, work: Callable[[], Any], otherwise: Any) -> Any:  # noqa: ARG001 - one signature for all
    """An ``Attempt`` that lets errors through, for conversations without a session."""
    return work()


def unheard(text: str) -> None:
    """Where there is no session, nobody listens."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a conversation goes by and does not store. A session fills it in from its own settings."""

    system: str = ""
    """The static system text; the state holds its digest alone."""
    static_tokens: int = 0
    """Tokens of whatever else is sent beside the history: the tools."""
    budget: ToolResultBudget | None = None
    store: Results | None = None
    replace_result: Replace | None = None
    compaction: Compaction | None = None
    request: RequestBudget | None = None
    context_limit: int | None = None
    """Tokens that all durable context may have."""
    hook: TransitionHook | None = None
    consolidate: Consolidate = concatenate
    count: Count = estimate_tokens
    fitted: Callable[[Conversation, Compaction], tuple[Compaction, Circumstances]] | None = None
    """Fits a compaction to the provider: prices, warmth of the cache, hooks."""
    attempt: Attempt = plainly
    note: Callable[[str], None] = unheard
    """Takes what the user should know."""

    @property
    def fixed_tokens(self) -> int:
        """Tokens of the static text and the tools."""
        return self.static_tokens + (self.count(self.system) if self.system else 0)


def tell_stuck(planned: Plan, note: Callable[[str], None]) -> None:
    """Say so where a compaction that the settings ask for can never be due."""
    if planned.stuck:
        note(f"nothing is compacted: {planned.refusals[-1]}")


def guarded(attempt: Attempt, step: str, work: Callable[[], T], otherwise: T) -> T:
    """Fail open, but for a budget that cannot be met: what would be sent then is refused anyway."""
    refused: list[BudgetError] = []

    def tried() -> T:
        try:
            return work()
        except BudgetError as error:
            refused.append(error)
            return otherwise

    done: T = attempt(step, tried, otherwise)
    if refused:
        raise refused[0]
    return done


def answered(steps: Steps[T], ask: Ask | None, attempt: Attempt) -> T:
    """Do work that may want summaries; where ``ask`` fails, an extract stands in its place."""
    try:
        wanted = next(steps)
        while True:
            if isinstance(wanted, Future):
                wanted = steps.send(_waited(wanted))
                continue
            text = "" if ask is None else attempt("summary", partial(ask, wanted), "")
            wanted = steps.send(str(text or ""))
    except StopIteration as stop:
        done: T = stop.value
        return done
    finally:
        steps.close()


async def aanswered(steps: Steps[T], ask: AsyncAsk | None, attempt: Attempt) -> T:
    """``answered`` with an ``ask`` that is awaited."""
    try:
        wanted = next(steps)
        while True:
            if isinstance(wanted, Future):
                wanted = steps.send(await _awaited(wanted))
                continue
            text = ""
            try:
                text = "" if ask is None else await ask(wanted)
            except Exception as error:
                attempt("summary", partial(_raised, error), "")
            wanted = steps.send(str(text or ""))
    except StopIteration as stop:
        done: T = stop.value
        return done
    finally:
        steps.close()


def _waited(future: Future[None]) -> bool:
    """Whether what a sibling does has ended; in an event loop's thread, which that may need, nothing is waited for."""
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        return future.done()
    with suppress(NotDone):
        future.result(PATIENCE)
    return future.done()


async def _awaited(future: Future[None]) -> bool:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()

    def ended(_: Future[None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            loop.call_soon_threadsafe(ready.set)

    future.add_done_callback(ended)
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(ready.wait(), PATIENCE)
    return future.done()


def _raised(error: Exception) -> str:
    raise error


def appended(state: ContextState, messages: Sequence[Mapping[str, Any]], terms: Terms, scope: str) -> ContextState:
    """The state with messages appended, their results shortened, and the agent cycle closed by its answer."""
    mode = state.mode
    # The cycle is closed below: a transition hook that fails must not take the message with it.
    working = replace(state, mode="manual") if mode == "agent_cycle" else state
    for number, message in enumerate(messages):
        working = _with_results(working, message, terms, scope)
        more = number + 1 < len(messages) and messages[number + 1].get("type") in ("function_call", "reasoning")
        if mode == "agent_cycle" and not working.pending and not more and message.get("role") == "assistant":
            working = transitioned(working, terms.hook, terms)
    return replace(working, mode=mode)


def transitioned(state: ContextState, hook: TransitionHook | None, terms: Terms) -> ContextState:
    """The state with its turn committed, as it is where the hook fails."""
    if hook is not None:
        done = terms.attempt("transition hook", lambda: transition(state, hook, count=terms.count), None)
        if isinstance(done, ContextState):
            return done
    return transition(state, count=terms.count)


def planned_of(state: ContextState, terms: Terms, rules: Compaction, around: Circumstances, *, force: bool) -> Plan:
    """What a compaction of the state would do."""
    readable = terms.store is not None
    return plan(state, rules, around, system=terms.system, readable=readable, force=force, count=terms.count)


def compacted(
    state: ContextState,
    terms: Terms,
    rules: Compaction,
    around: Circumstances,
    *,
    scope: str,
    summary: str,
    force: bool,
) -> ContextState:
    """The state compacted, if that is due."""
    return compact(
        state,
        rules,
        around,
        system=terms.system,
        store=terms.store,
        scope=scope,
        consolidate=terms.consolidate,
        summary=summary,
        force=force,
        count=terms.count,
    )


def fitted_to(
    state: ContextState, terms: Terms, limit: RequestBudget, rules: Compaction, *, scope: str, volatile_tokens: int
) -> ContextState:
    """The state such that its request fits. Raises ``BudgetError`` when it cannot."""
    return compact_for_request(
        state,
        limit,
        rules,
        system=terms.system,
        static_tokens=terms.static_tokens + volatile_tokens,
        store=terms.store,
        scope=scope,
        consolidate=terms.consolidate,
        count=terms.count,
    )


def _with_results(state: ContextState, message: Mapping[str, Any], terms: Terms, scope: str) -> ContextState:
    def add(budget: ToolResultBudget | None) -> ContextState:
        return append_message(
            state,
            message,
            budget=budget,
            store=terms.store,
            scope=scope,
            replace_result=terms.replace_result,
            count=terms.count,
        )

    def shortened() -> ContextState | None:
        try:
            return add(terms.budget)
        except BodyError:
            # The message is malformed, which the caller is told below; no failure of ours.
            return None

    done = None if terms.budget is None else terms.attempt("tool-result budget", shortened, None)
    return done if isinstance(done, ContextState) else add(None)
