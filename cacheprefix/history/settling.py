"""Shortens a history before a request: reads it, plans a compaction, has the model sum up, records the result.

Where a framework keeps the history, the conversation's ledger says what is sent of it. A history that the conversation
keeps itself is rewritten by the same decisions as soon as they are recorded (``rewriting``). Both go through here.
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
"""Asks the model for a summary; that of ``SideForks.summary`` reads the shared prefix from the cache."""
AsyncAsk = Callable[[SummaryRequest], Awaitable[str]]
"""The same without blocking the event loop; made by ``SideForks.asummary``."""
Fit = Callable[[Compaction, str, Callable[[float], bool]], tuple[Compaction, Circumstances]]
"""Fits a compaction to the provider (prices, hooks): takes the model last used, and a function that says whether the
conversation's cache entries have expired at a time (seconds of the session's clock)."""
T = TypeVar("T")

PATIENCE = 30.0
"""Seconds that a request waits at most for a summary that another request of the conversation asked for."""
_ROUNDS = 32
"""How often one request reads its history again at most: after each compaction, its own or another request's."""


class Attempt(Protocol):
    """Runs a step of ours, and returns ``otherwise`` where its work fails, as ``Notices.attempt`` does."""

    def __call__(self, step: str, work: Callable[[], T], otherwise: T) -> T:
        """What the work returns; ``step`` names it where it fails."""
        ...


def plainly(step: str, work: Callable[[], T], otherwise: T) -> T:  # noqa: ARG001 - one signature for all
    """Run the work and let its errors through: the ``Attempt`` of conversations without a session."""
    return work()


def unheard(text: str) -> None:
    """Drop a note to the user, as without a session there is nowhere to show it."""


def always() -> bool:
    """Say that requests have the tool that reads cut results: without a session the application provides it."""
    return True


class Places(Protocol):
    """Saves and loads where role texts stand in a conversation's requests."""

    def saved(self, scope: str, conversation: str) -> dict[str, Any]:
        """The places of one conversation's role texts as plain data."""
        ...

    def load(self, scope: str, conversation: str, saved: Mapping[str, Any], *, merge: bool = False) -> None:
        """Take over saved places; with ``merge``, those set since then are kept beside them."""
        ...


@dataclass(frozen=True, slots=True)
class Terms:
    """The settings by which a conversation's history is shortened; not stored. A session fills them in from its own."""

    system: str = ""
    """The static system text, of which the state holds only the digest."""
    static_tokens: int = 0
    """Tokens of the tools, which are sent beside the system text and the history."""
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
    """Durable context that is part of the static text, by key: joined with what was appended under the same key."""
    count: Count = estimate_tokens
    fit: Fit | None = None
    attempt: Attempt = plainly
    note: Callable[[str], None] = unheard
    """Called with a text that the user should be shown."""
    readable: Callable[[], bool] = always
    """Whether requests have the tool that reads cut results again."""
    places: Places | None = None
    """Where role texts stand in its requests, which is saved with the conversation."""

    def cutting(self, scope: str) -> Cutting:
        """How tool results of the tenant ``scope`` are cut and where their full texts are kept."""
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
    """The decisions that are still to be carried out on ``views``."""
    tokens: int
    """Tokens of all messages as they would be sent now."""
    decisions: tuple[Decision, ...] = ()
    """What the ledger decides on the messages."""
    budget: ToolResultBudget | None = None
    """The tool-result budget, which has the user's own strategies that the ledger names."""


class Keeper(Protocol):
    """The conversation that a history belongs to; it lets one request at a time have a summary written."""

    scope: str

    @property
    def ledger(self) -> Ledger:
        """All decisions on the conversation."""
        ...

    @property
    def asking(self) -> Future[None] | None:
        """Done once the summary is written that a request of this conversation asked for; None where none did."""
        ...

    def asks(self) -> AbstractContextManager[bool]:
        """Holds the right to have a summary written; gives False where another request holds it."""
        ...


@dataclass(frozen=True, slots=True)
class HistoryAccess:
    """What settling one history before one request needs, whether a framework or the conversation keeps it."""

    keeper: Keeper
    terms: Terms
    look: Callable[[], Standing]
    """Reads how the history stands now."""
    circumstances: Callable[[int], tuple[Compaction, Circumstances] | None]
    """Takes the tokens of its messages; gives what a compaction is planned by, None where nothing may be compacted."""
    take: Callable[[Plan, Ledger, int], bool]
    """Records a plan: takes it, the ledger with it, and the epoch when it was planned. False where another compaction
    was recorded since, so that this one is dropped."""
    attempt: Attempt
    """Runs our own steps; ``terms.attempt`` runs the request for a summary."""
    waits: bool
    """Whether this request waits for a summary that another request of the conversation asked for."""


def settling(history: HistoryAccess, ask: Ask | AsyncAsk | None, *, force: bool = False) -> Flow[Standing | None]:
    """Compact a history until it may be sent: a flow that may ask for a summary, or wait for another request's.

    Returns how the history stands then; None where reading it failed. Without ``ask``, an extract is written for what
    is removed. ``force`` compacts once to the target, whatever the trigger and the price say.
    """
    keeper, terms, attempt = history.keeper, history.terms, history.attempt
    now: Standing | None = None
    for _ in range(_ROUNDS):
        under_way = keeper.asking
        if under_way is not None:
            # A request that may not wait, or waited in vain (it may be the summary's own), goes on with an extract.
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
        # Recorded, or another request's compaction came first: either way read the history and its size anew.
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
    """Plan the compaction of a history; where its tokens alone rule one out, as for most requests, nothing is read."""
    tokens = now.tokens + around.static_tokens
    plan = Plan.nothing(tokens, around.prices, now.ledger, count)
    if reason_of(rules, around, tokens, force=force) == "none":
        return plan
    # Money: joining durable context changes the front of the history, so that all is written to the cache anew. Where
    # that makes a compaction too expensive to be due, it is planned again without the joining.
    for joins in (True, False) if to_join(now.views, now.ledger) else (False,):
        here = replace(around, front_moves=joins or around.front_moves, budget=now.budget, readable=readable)
        plan = plan_compaction(now.views, now.ledger, rules, here, count=count, force=force)
        if plan.due:
            return replace(plan, joins=joins)
    return plan


def decided(now: Standing, plan: Plan, terms: Terms, scope: str, attempt: Attempt = plainly) -> Ledger | None:
    """The ledger with a plan recorded, and durable context joined where planned; None where nothing was recorded."""
    made: Ledger | None = attempt("compaction", partial(plan.commit, terms.store, scope=scope), None)
    if made is None or made is plan.ledger:
        return None
    if plan.joins:
        # Where the user's consolidation hook fails, the compaction is recorded without the joining.
        made = attempt("consolidation", partial(_joined, now, made, terms), made)
    return made


def _planned(history: HistoryAccess, now: Standing, *, force: bool) -> Plan | None:
    found, terms = history.circumstances(now.tokens), history.terms
    if found is None:
        return None
    return planned(now, *found, count=terms.count, readable=terms.store is not None, force=force)


def _taken(history: HistoryAccess, now: Standing, plan: Plan, epoch: int) -> bool | None:
    """Record a plan: True where it was, False where another compaction came first, None where recording failed."""
    made = decided(now, plan, history.terms, history.keeper.scope, history.attempt)
    if made is None:
        return None
    return history.attempt("compaction", partial(history.take, plan, made, epoch), None)


def _joined(now: Standing, made: Ledger, terms: Terms) -> Ledger:
    return made.record(join_context(now.views, made, terms.consolidate, terms.base))


def guarded(attempt: Attempt, step: str, work: Callable[[], T], otherwise: T) -> T:
    """Run a step that fails open to ``otherwise``, except for ``BudgetError``, which is raised.

    A request above its budget would be refused by the provider in any case.
    """
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
    """The model's summary; empty where asking fails, so that the plan's extract is used."""
    try:
        text = yield Call(ask, request)
    except Exception as error:
        text = attempt("summary", partial(_raised, error), "")
    return str(text or "")


def _raised(error: Exception) -> str:
    raise error
