"""What is made of a history before it is sent: results cut at first sight, compaction when it is due, all recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from typing_extensions import TypedDict, Unpack

from cacheprefix.calls.state import SharedState
from cacheprefix.conversation import Ask, AsyncAsk, Conversation, Steps, Terms, aanswered, answered, guarded, tell_stuck
from cacheprefix.history import (
    Circumstances,
    Compaction,
    Consolidate,
    Ledger,
    Mode,
    Plan,
    Prices,
    Replace,
    Replayed,
    RequestBudget,
    Results,
    Situation,
    ToolResultBudget,
    concatenate,
    join_context,
    plan_compaction,
    replay,
    to_join,
)
from cacheprefix.layout import Tool
from cacheprefix.layout.team import Team
from cacheprefix.plugins import Plugins
from cacheprefix.prompt import Api, Decision, MessageView, ReplaceResult, ResultView
from cacheprefix.services import Services
from cacheprefix.wire import Form

_ASKING: ContextVar[tuple[Conversation, ...]] = ContextVar("cacheprefix_asking", default=())
"""Conversations whose summary is being asked for here: what that itself asks must not wait for it."""

_ROUNDS = 32
"""Times that a request looks again at what its siblings decided meanwhile."""


class Beside(TypedDict, total=False):
    """What a request has beside its history; counts are tokens."""

    static_tokens: int | None
    """What is sent beside it and shared; the prefix by default."""
    own_tokens: int
    """What this request alone has, as its role's text: it counts against the window."""
    front_moves: bool
    """Whether the static text changes with a compaction."""


@dataclass(frozen=True, slots=True)
class HistoryRunner:
    """Makes the decisions on histories for one team, and repeats those that were made. Thread-safe."""

    team: Team
    state: SharedState
    plugins: Plugins
    active: bool
    """False for a session that only observes: then nothing is decided."""
    budget: ToolResultBudget | None
    """For large tool results."""
    compaction: Compaction | None
    request_budget: RequestBudget | None
    """Holds whole requests to the model's window."""
    results: Results
    """Keeps the full texts of results that were cut."""

    @property
    def services(self) -> Services:
        """What it counts, prices and tells with."""
        return self.state.services

    def conversation(
        self,
        id: str = "",  # noqa: A002 - the field's word
        *,
        scope: str | None = None,
        api: Form | None = None,
        mode: Mode | None = None,
        model: str = "",
        **options: Any,
    ) -> Conversation:
        """The conversation of an id, made when it is new, and bound to these rules; ``options`` are those of ``Terms``.

        Raises ``SetupError`` when it has a history in another form or mode.
        """
        owner, prefix = self.team.owner(scope), self.team.prefix
        make = partial(Conversation, scope=owner[1], prefix_key=prefix.key)
        found, new = self.state.conversation(owner, id, make)
        if new or api is not None or mode is not None:
            found.bind(self._terms(model or found.model, **options), api=api, mode=mode)
            found.model = model or found.model
        return found

    def decides(self, conversation: Conversation) -> bool:
        """Whether ``condense`` may decide on anything, or repeats it, so that making views is worth it."""
        limited = self.budget is not None or self.compaction is not None or self.request_budget is not None
        return self.active and (limited or conversation.ledger.alters)

    def shorten(
        self, conversation: Conversation, views: Sequence[MessageView], model: str = ""
    ) -> tuple[ReplaceResult, ...]:
        """What stands in place of large tool results, decided once and replayed; empty when it fails."""
        if not self.active or (self.budget is None and not conversation.ledger.alters):
            return ()
        count, replaced = self.services.counter(model), self._replacing()
        return self.services.notices.attempt(
            "tool-result budget",
            lambda: conversation.shorten(views, self.budget, count=count, store=self.results, replace=replaced),
            (),
        )

    def condense(
        self,
        conversation: Conversation,
        views: Sequence[MessageView],
        model: str = "",
        api: Api | None = None,
        *,
        ask: Ask | None = None,
        **beside: Unpack[Beside],
    ) -> tuple[Decision, ...]:
        """All decisions on a framework's history: results cut once, and compaction where it is due and pays.

        ``views`` are of the history as the framework has it, never of what was sent: what the ledger holds is
        repeated, byte for byte, in forks and resumed threads too. Parallel siblings get the same history: one compacts,
        and the others wait for its summary and take its decisions. ``ask`` writes summaries for
        ``Compaction(summarise="fork")``. A compaction also joins keyed context to one block a key behind the static
        text. Fails open, but raises ``BudgetError`` with ``over_by`` where a ``request_budget`` cannot be met.
        """
        steps = self._steps(conversation, views, model, api, beside, asks=ask is not None)
        return answered(steps, ask, self.services.notices.attempt)

    async def acondense(
        self,
        conversation: Conversation,
        views: Sequence[MessageView],
        model: str = "",
        api: Api | None = None,
        *,
        ask: AsyncAsk | None = None,
        **beside: Unpack[Beside],
    ) -> tuple[Decision, ...]:
        """``condense`` with an ``ask`` that is awaited, such as ``asummary_by_fork`` makes."""
        steps = self._steps(conversation, views, model, api, beside, asks=ask is not None)
        return await aanswered(steps, ask, self.services.notices.attempt)

    def _steps(
        self,
        conversation: Conversation,
        views: Sequence[MessageView],
        model: str,
        api: Api | None,
        beside: Beside,
        *,
        asks: bool,
    ) -> Steps[tuple[Decision, ...]]:
        """``condense`` without its waiting: yields what a summary is wanted of, or what a sibling is having done."""
        if not self.decides(conversation):
            return ()
        again = partial(self._replayed, conversation, views, model)
        attempt, given = self.services.notices.attempt, beside.get("static_tokens")
        static = self._static(model) if given is None else given
        own = conversation.room_beside(beside.get("own_tokens", 0))
        now: Replayed | None = None
        for _ in range(_ROUNDS):
            under_way = conversation.asking
            if under_way is not None:
                # Who cannot wait for the summary, or is itself asking for it, goes on without one.
                asks = conversation not in _ASKING.get() and bool((yield under_way)) and asks
            epoch = conversation.ledger.epoch
            now = attempt("tool-result budget", again, None)
            if now is None:
                return ()
            conversation.merge(now.ledger)
            if self.compaction is None and self.request_budget is None:
                return now.decisions
            moves = beside.get("front_moves", False)
            work = partial(self._planned, conversation, views, now, model, api, static, own, front_moves=moves)
            found = guarded(attempt, "compaction", work, None)
            if found is None:
                return now.decisions
            plan, joins = found
            if plan.request is not None and asks:
                with conversation.asks() as free:
                    if not free:
                        continue
                    token = _ASKING.set((*_ASKING.get(), conversation))
                    try:
                        plan = plan.with_summary(str((yield plan.request)))
                    finally:
                        with suppress(ValueError):  # closed in another context, which has none of ours
                            _ASKING.reset(token)
                    taken = self._taken(conversation, views, plan, epoch, joins=joins)
            else:
                taken = self._taken(conversation, views, plan, epoch, joins=joins)
            if taken is None:
                return now.decisions
            # Taken or not: what holds now is read off the ledger, and the window is looked at anew.
        return now.decisions if now is not None else ()

    def _taken(
        self, conversation: Conversation, views: Sequence[MessageView], plan: Plan, epoch: int, *, joins: bool
    ) -> bool | None:
        """Whether a compaction came into the ledger before any other; None where it cannot."""
        attempt = self.services.notices.attempt
        made = attempt("compaction", partial(plan.commit, self.results, scope=conversation.scope), None)
        if made is None or made is plan.ledger:
            return None
        if joins:
            made = attempt("consolidation", partial(self._joined, conversation, views, made), made)
        return conversation.take_in(made, epoch)

    def _replayed(self, conversation: Conversation, views: Sequence[MessageView], model: str) -> Replayed:
        return replay(
            views,
            conversation.ledger,
            self.budget,
            count=self.services.counter(model),
            store=self.results,
            scope=conversation.scope,
            replace_result=self._replacing(),
        )

    def _planned(
        self,
        conversation: Conversation,
        views: Sequence[MessageView],
        now: Replayed,
        model: str,
        api: Api | None,
        static: int,
        own: int,
        *,
        front_moves: bool,
    ) -> tuple[Plan, bool] | None:
        """A compaction, if one is due, and whether durable context is joined with it."""
        rules = self.compaction or Compaction(trigger=None)
        rules, around = self._fitted(model, conversation, rules, api=api)
        request = around.request
        if request is not None and now.tokens + static + own > request.room:
            # What the request has of its own counts against the window alone: siblings are compacted at the same time.
            static += own
        around = replace(around, static_tokens=static)
        trigger, target = rules.limits(request)
        tokens = now.tokens + static
        if tokens <= (trigger + target) // 2 or (tokens <= trigger and not around.prices.cold):
            return None
        count = self.services.counter(model)
        # Joining moves the front of the history; where that alone makes a compaction too dear, it is done without.
        for joins in (True, False) if to_join(views, now.ledger) else (False,):
            here = replace(around, front_moves=joins or front_moves)
            plan = plan_compaction(views, now.ledger, rules, here, count=count, budget=self.budget, readable=True)
            if plan.due:
                return plan, joins
            tell_stuck(plan, self.services.notices.note)
        return None

    def _joined(self, conversation: Conversation, views: Sequence[MessageView], ledger: Ledger) -> Ledger:
        return ledger.record(join_context(views, ledger, self._consolidate(conversation.consolidate)))

    def _consolidate(self, own: Consolidate) -> Consolidate:
        return self.compaction.consolidate if own is concatenate and self.compaction is not None else own

    def _fitted(
        self, model: str, conversation: Conversation, rules: Compaction, *, api: Api | None = None
    ) -> tuple[Compaction, Circumstances]:
        """A compaction under the rules of the provider that answers this conversation, and its hooks."""
        around = Circumstances(request=self.request_budget)
        named = model or conversation.model
        if named:
            profile = self.services.profile(named, api)
            prices = Prices(
                min(profile.read, 1.0), profile.default_ttl.write, conversation.cold_at(self.services.clock())
            )
            around = replace(around, prices=prices)
            if profile.thinking_bound and not rules.thinking_bound:
                bound = f"{profile.name} takes a thinking block only behind the very prefix that it was made under"
                rules = replace(rules, thinking_bound=bound)
        if self.plugins.overrides("compact"):
            rules = replace(rules, policies=(partial(self._hooked, rules), *rules.row()))
        return rules, around

    def _hooked(self, rules: Compaction, situation: Situation) -> Iterable[Decision]:
        answer = self.plugins.call_first("compact", view=situation, policy=rules)
        if answer is None:
            return ()
        nothing: tuple[Decision, ...] = ()
        return self.services.notices.attempt("compact hook", lambda: tuple(_checked(answer, situation)), nothing)

    def _terms(self, model: str, **options: Any) -> Terms:
        """The settings for a conversation that keeps its own history; those of ``observe`` change nothing."""
        services = self.services
        options["consolidate"] = self._consolidate(options.get("consolidate", concatenate))
        return Terms(
            system=self.team.prefix.text,
            static_tokens=self._tool_tokens(model),
            budget=self.budget if self.active else None,
            store=self.results,
            replace_result=self._replacing(),
            compaction=self.compaction if self.active else None,
            request=self.request_budget,
            count=services.counter(model),
            fitted=partial(self._fitted, model),
            attempt=services.notices.attempt,
            note=services.notices.note,
            **options,
        )

    def _replacing(self) -> Replace:
        """The hook ``replace_tool_result`` as the history room takes it."""

        def replaced(result: ResultView) -> Any:
            answer = self.plugins.call_first("replace_tool_result", result=result, budget=self.budget)
            return answer if isinstance(answer, str) or (isinstance(answer, tuple) and len(answer) == 2) else None

        return replaced

    def _static(self, model: str) -> int:
        """Tokens of what all requests share."""
        return self.services.count(self.team.prefix.text, model) + self._tool_tokens(model)

    def _tool_tokens(self, model: str) -> int:
        schemas = (tool.schema.decode() for tool in self.team.prefix.tools if isinstance(tool, Tool))
        return sum(self.services.count(schema, model) for schema in schemas)


def _checked(answer: Iterable[Any], situation: Situation) -> Iterable[Decision]:
    for decision in answer:
        if not isinstance(decision, Decision) or not 0 <= decision.index < len(situation.views):
            message = f"the compact hook answered {decision!r}; it gives decisions on situation.views"
            raise TypeError(message)
        yield decision
