"""How every history is kept short, whoever keeps it: looked at, planned, summed up by the model, and taken in.

A framework keeps its history, and the conversation's ledger says what is sent of it. A history that the conversation
keeps itself is rewritten by the same decisions when they are taken (``rewriting``). All else is the same for both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from cacheprefix.effects import Call, Flow, Until
from cacheprefix.errors import BudgetError
from cacheprefix.history.budget import Cutting, Replace, Results, ToolResultBudget
from cacheprefix.history.compaction import Circumstances, Compaction, plan_compaction, reason_of
from cacheprefix.history.compaction_plan import Plan
from cacheprefix.history.ledger import Ledger
from cacheprefix.history.record import join_context, to_join
from cacheprefix.history.summary import SummaryRequest
from cacheprefix.history.transitions import TransitionHook
from cacheprefix.history.window import RequestBudget
from cacheprefix.history.zones import Consolidate, concatenate
from cacheprefix.prompt import Count, Decision, MessageView, estimate_tokens

Ask = Callable[[SummaryRequest], str]
"""Asks the model for a summary; ``SideForks.summary`` makes one that rides on the cached prefix."""
AsyncAsk = Callable[[SummaryRequest], Awaitable[str]]
"""The same without blocking the event loop; made by ``SideForks.asummary``."""
Attempt = Callable[[str, Callable[[], Any], Any], Any]
"""Runs our own or a hook's work and answers with its last argument when that fails, as ``Session.attempt`` does."""
Fit = Callable[[Compaction, str, Callable[[float], bool]], tuple[Compaction, Circumstances]]
"""Fits a compaction to the provider (prices, hooks), by the model last used and whether the cache is cold at a time."""
T = TypeVar("T")

PATIENCE = 30.0
"""Seconds that a request waits at most for the summary that a sibling is having written."""
_ROUNDS = 32
"""Times that a request looks again at what its siblings decided meanwhile."""


def plainly(step: str, work: Callable[[], Any], otherwise: Any) -> Any:  # noqa: ARG001 - one signature for all
    """An ``Attempt`` that lets errors through, for conversations without a session."""
    return work()


def unheard(text: str) -> None:
    """Where there is no session, nobody listens."""


def always() -> bool:
    """Where there is no session, the application gives the tool that reads cut results again."""
    return True


class Places(Protocol):
    """Where the texts of roles stand in the requests of all conversations."""

    def saved(self, scope: str, conversation: str) -> dict[str, Any]:
        """Those of one as plain data."""
        ...

    def load(self, scope: str, conversation: str, saved: Mapping[str, Any], *, merge: bool = False) -> None:
        """Go on with places that were saved; with ``merge`` beside those that came about since."""
        ...


@dataclass(frozen=True, slots=True)
class Terms:
    """By what a conversation's history is kept short; not stored. A session fills it in from its own settings."""

    system: str = ""
    """The static system text; the state holds its digest alone."""
    static_tokens: int = 0
    """Tokens of whatever else is sent beside the history: the tools."""
    budget: ToolResultBudget | None = None
    store: Results | None = None
    """Keeps the full texts of results that were cut or cleared."""
    replace_result: Replace | None = None
    compaction: Compaction | None = None
    request: RequestBudget | None = None
    context_limit: int | None = None
    """Tokens that all durable context may have."""
    hook: TransitionHook | None = None
    consolidate: Consolidate = concatenate
    base: Mapping[str, str] = field(default_factory=dict)
    """Durable context that stands in the static text, by its keys: it is consolidated with what is appended to it."""
    count: Count = estimate_tokens
    fit: Fit | None = None
    attempt: Attempt = plainly
    note: Callable[[str], None] = unheard
    """Takes what the user should know."""
    readable: Callable[[], bool] = always
    """Whether requests have the tool that reads cut results again."""
    places: Places | None = None
    """Where the texts of roles stand in its requests, which is saved with it."""

    def cutting(self, scope: str) -> Cutting:
        """How results of a conversation of this tenant's are cut."""
        return Cutting(self.count, self.store, scope, self.replace_result, self.readable())

    @property
    def fixed_tokens(self) -> int:
        """Tokens of the static text and the tools."""
        return self.static_tokens + (self.count(self.system) if self.system else 0)

    def rules(self, model: str, cold_at: Callable[[float], bool]) -> tuple[Compaction, Circumstances]:
        """The compaction in force, fitted to the provider, and what it depends on beside the history.

        Where only the request is bounded, its window is the trigger.
        """
        rules = self.compaction or Compaction(trigger=None if self.request else Compaction().trigger)
        return (rules, Circumstances(request=self.request)) if self.fit is None else self.fit(rules, model, cold_at)


@dataclass(frozen=True, slots=True)
class Standing:
    """A history as it stands before a request."""

    views: Sequence[MessageView]
    ledger: Ledger
    """What was decided and has still to be carried out on the messages."""
    tokens: int
    """Of all messages, as they would be sent now."""
    decisions: tuple[Decision, ...] = ()
    """What the ledger says about them."""
    budget: ToolResultBudget | None = None
    """For strategies of its own that the ledger names."""


class Keeper(Protocol):
    """The conversation that a history belongs to."""

    scope: str

    @property
    def ledger(self) -> Ledger:
        """All decisions."""
        ...

    @property
    def asking(self) -> Future[None] | None:
        """What ends when the summary is there that a request of this conversation is having written."""
        ...

    def asks(self) -> AbstractContextManager[bool]:
        """Whether the caller has the summary written; False where another one does."""
        ...


@dataclass(frozen=True, slots=True)
class HistoryAccess:
    """One history before one request: a framework's, or one that its conversation keeps."""

    keeper: Keeper
    terms: Terms
    look: Callable[[], Standing]
    """How it stands now."""
    circumstances: Callable[[int], tuple[Compaction, Circumstances] | None]
    """By what a compaction is planned when its messages have so many tokens; None where nothing may be compacted."""
    take: Callable[[Plan, Ledger, int], bool]
    """Takes in what a plan made of the ledger, planned at this epoch; False where another compaction came first."""
    attempt: Attempt
    """Runs our own work; the terms' runs what asks the model."""
    waits: bool
    """Whether this request waits for a summary that a sibling is having written."""


def settling(history: HistoryAccess, ask: Ask | AsyncAsk | None, *, force: bool = False) -> Flow[Standing | None]:
    """Bring a history to what may be sent: a flow that may ask for a summary, or wait for a sibling's.

    Gives how the history stands at the end, None where that cannot be told. Without ``ask``, an extract stands for what
    is removed. ``force`` compacts once to the target, whatever the trigger and the price say.
    """
    keeper, terms, attempt = history.keeper, history.terms, history.attempt
    now: Standing | None = None
    for _ in range(_ROUNDS):
        under_way = keeper.asking
        if under_way is not None:
            # Who cannot wait for the summary, or is itself asking for it, goes on without one.
            ask = ask if history.waits and (yield Until(under_way, PATIENCE)) else None
        epoch = keeper.ledger.epoch
        now = attempt("tool-result budget", history.look, None)
        if now is None:
            return None
        plan = guarded(attempt, "compaction", partial(_planned, history, now, force=force), None)
        if plan is None or not plan.due:
            if plan is not None and plan.stuck:
                terms.note(f"nothing is compacted: {plan.refusals[-1]}")
            return now
        if plan.request is not None and ask is not None:
            with keeper.asks() as free:
                if not free:
                    continue
                plan = plan.with_summary((yield from _summary(ask, plan.request, terms.attempt)))
                taken = _taken(history, now, plan, epoch)
        else:
            taken = _taken(history, now, plan, epoch)
        if taken is None or force:
            return now
        # Taken or not: what holds now is looked at anew, and the window with it.
    return now


def planned(
    now: Standing,
    rules: Compaction,
    around: Circumstances,
    *,
    count: Count,
    readable: bool,
    force: bool = False,
) -> Plan:
    """The compaction of a history as it stands. That none is due, most requests learn from the tokens alone."""
    tokens = now.tokens + around.static_tokens
    plan = Plan.nothing(tokens, around.prices, now.ledger, count)
    if reason_of(rules, around, tokens, force=force) == "none":
        return plan
    # Joining durable context moves the front of the history; where that alone makes it too dear, it is done without.
    for joins in (True, False) if to_join(now.views, now.ledger) else (False,):
        here = replace(around, front_moves=joins or around.front_moves)
        plan = plan_compaction(
            now.views, now.ledger, rules, here, count=count, budget=now.budget, readable=readable, force=force
        )
        if plan.due:
            return replace(plan, joins=joins)
    return plan


def decided(now: Standing, plan: Plan, terms: Terms, scope: str, attempt: Attempt = plainly) -> Ledger | None:
    """The ledger with a plan recorded, durable context joined with it; None where nothing can be recorded."""
    made: Ledger | None = attempt("compaction", partial(plan.commit, terms.store, scope=scope), None)
    if made is None or made is plan.ledger:
        return None
    if plan.joins:
        # A consolidation hook that fails costs the joining alone.
        made = attempt("consolidation", partial(_joined, now, made, terms), made)
    return made


def _planned(history: HistoryAccess, now: Standing, *, force: bool) -> Plan | None:
    found, terms = history.circumstances(now.tokens), history.terms
    if found is None:
        return None
    return planned(now, *found, count=terms.count, readable=terms.store is not None, force=force)


def _taken(history: HistoryAccess, now: Standing, plan: Plan, epoch: int) -> bool | None:
    """Whether a compaction came in before any other; None where it cannot."""
    made = decided(now, plan, history.terms, history.keeper.scope, history.attempt)
    if made is None:
        return None
    taken: bool | None = history.attempt("compaction", partial(history.take, plan, made, epoch), None)
    return taken


def _joined(now: Standing, made: Ledger, terms: Terms) -> Ledger:
    return made.record(join_context(now.views, made, terms.consolidate, terms.base))


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


def _summary(ask: Ask | AsyncAsk, request: SummaryRequest, attempt: Attempt) -> Flow[str]:
    """What the model answers; empty where asking fails, and an extract stands in its place."""
    try:
        text = yield Call(ask, request)
    except Exception as error:
        text = attempt("summary", partial(_raised, error), "")
    return str(text or "")


def _raised(error: Exception) -> str:
    raise error
