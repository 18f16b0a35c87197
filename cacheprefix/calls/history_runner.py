"""What is made of a history before it is sent: results cut at first sight, compaction when it is due, all recorded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cacheprefix.calls.state import SharedState
from cacheprefix.conversation import Conversation
from cacheprefix.effects import Flow, adrive, drive
from cacheprefix.history import (
    Circumstances,
    Compaction,
    Consolidate,
    Mode,
    Prices,
    ReadBudget,
    RequestBudget,
    Situation,
    ToolResultBudget,
    budget_results,
    concatenate,
    full_result_reader,
    replay,
)
from cacheprefix.history.budget import READ_TOOL, Replace, Results
from cacheprefix.history.settling import Ask, AsyncAsk, HistoryAccess, Standing, Terms, settling
from cacheprefix.layout.team import Team
from cacheprefix.plugins import Plugins
from cacheprefix.prompt import Api, Count, Decision, Insert, MessageView, ReplaceResult, ResultView
from cacheprefix.services import Services
from cacheprefix.wire import Form, apply, form_of, sendable, views_of
from cacheprefix.wire.openai_chat import tool_name

Views = Callable[[Sequence[Any], Form, Count], Sequence[MessageView]]
"""Reads messages as views, as ``wire.views_of`` does."""


@dataclass(frozen=True, slots=True)
class RestOfRequest:
    """What a framework's request has beside its history."""

    static_tokens: int | None = None
    """Tokens of what is sent beside it and shared; None takes the prefix's."""
    own_tokens: int = 0
    """Tokens of what this request alone has, as its role's text: they count against the window."""
    front_moves: bool = False
    """Whether the static text changes with a compaction."""
    tools: Collection[str] | None = None
    """Names of the tools that it carries; None where all carry the same."""
    declared: Sequence[Any] = ()
    """Its tools as its body declares them: those that are not shared are this request's own, too."""
    zones: bool = False
    """Whether what the application set as the conversation's zones is still to be said, in front of the history."""


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

    @property
    def limited(self) -> bool:
        """Whether an option asks for decisions on histories: a budget for results or requests, or compaction."""
        return self.budget is not None or self.compaction is not None or self.request_budget is not None

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

        def make(*named: Any) -> Conversation:
            return Conversation(*named, scope=owner[1], prefix_key=self.team.key)

        found, new = self.state.conversation(owner, id, make)
        if new or api is not None or mode is not None:
            model = model or found.model
            options["consolidate"] = self._consolidate(options.get("consolidate", concatenate))
            options |= {"system": prefix.text, "static_tokens": self._tool_tokens(model, found)}
            found.bind(replace(self._terms(model), **options), api=api, mode=mode)
            found.model = model
        return found

    def decides(self, conversation: Conversation) -> bool:
        """Whether ``condense`` may decide on anything, or repeats it, so that making views is worth it."""
        told = conversation.state.zones or conversation.state.messages
        return self.active and (self.limited or conversation.ledger.alters or bool(told))

    def note_unsaid(self, conversation: Conversation) -> None:
        """Name durable context of a conversation whose framework keeps the history itself: it is said nowhere."""
        if conversation.state.messages and not conversation.keeps_history:
            self.services.notices.note(
                "append_context: the application keeps this conversation's history itself, so this text is not sent; "
                "append it there as a message (LangGraph: context_message), or set it as a zone"
            )

    def readable(self, tools: Collection[str] | None = None) -> bool:
        """Whether a request has the tool that reads cut results again, so that a note may name it.

        ``tools`` are the names of those that it carries; None for those that all share, or were given to the
        application.
        """
        if tools is not None:
            return READ_TOOL in tools
        return self.state.reads or any(tool.name == READ_TOOL for tool in self.team.prefix.tools)

    def reader(
        self,
        where: Callable[[], Conversation | None],
        budget: ReadBudget,
        own: Callable[[str], bool] | None = None,
    ) -> Callable[..., str]:
        """The function behind the tool that reads cut results again; ``where`` gives the conversation that calls it.

        ``own`` says of a ref whether it is the caller's, where a conversation has several; by default whether
        anything of the conversation is kept under it. Without a conversation nothing is read.
        """

        def allowed(ref: str) -> bool:
            """Whether the caller may read a ref. Privacy: without a conversation it may read none."""
            talk = where()
            return talk is not None and (talk.refers_to(ref) if own is None else own(ref))

        def scope() -> str:
            """The tenant whose results are read."""
            talk = where()
            return self.team.scope if talk is None else talk.scope

        store: Any = self.results
        return full_result_reader(store, scope=scope, allowed=allowed, budget=budget, count=self.services.counter(""))

    def shorten(
        self,
        conversation: Conversation,
        views: Sequence[MessageView],
        model: str = "",
        tools: Collection[str] | None = None,
    ) -> tuple[ReplaceResult, ...]:
        """What stands in place of large tool results, decided once and replayed; empty when it fails.

        ``tools`` as in ``readable``.
        """
        if not self.active or (self.budget is None and not conversation.ledger.alters):
            return ()

        def work() -> tuple[ReplaceResult, ...]:
            """The results' replacements, recorded; raises where that fails."""
            how = self._terms(model, tools=tools).cutting(conversation.scope)
            done = budget_results(views, conversation.ledger, self.budget, how)
            conversation.merge(done.ledger)
            return done.decisions

        nothing: tuple[ReplaceResult, ...] = ()
        return self.services.notices.attempt("tool-result budget", work, nothing)

    def condense(
        self,
        conversation: Conversation,
        views: Sequence[MessageView],
        model: str = "",
        api: Api | None = None,
        rest: RestOfRequest | None = None,
        *,
        ask: Ask | None = None,
    ) -> tuple[Decision, ...]:
        """All decisions on a framework's history: results cut once, and compaction where it is due and pays.

        ``views`` are of the history as the framework has it, never of what was sent: what the ledger holds is
        repeated, byte for byte, in forks and resumed threads too. Parallel siblings get the same history: one compacts,
        and the others wait for its summary and take its decisions. ``ask`` writes summaries for
        ``Compaction(summarise="fork")``. A compaction also joins keyed context to one block a key behind the static
        text. Fails open, but raises ``BudgetError`` with ``over_by`` where a ``request_budget`` cannot be met.
        """
        return drive(self._settling(conversation, views, model, api, rest or RestOfRequest(), ask))

    async def acondense(
        self,
        conversation: Conversation,
        views: Sequence[MessageView],
        model: str = "",
        api: Api | None = None,
        rest: RestOfRequest | None = None,
        *,
        ask: AsyncAsk | None = None,
    ) -> tuple[Decision, ...]:
        """``condense`` with an ``ask`` that is awaited, such as ``SideForks.asummary`` makes."""
        return await adrive(self._settling(conversation, views, model, api, rest or RestOfRequest(), ask))

    def condensed(
        self,
        conversation: Conversation,
        messages: list[Any],
        model: str,
        api: Api,
        rest: RestOfRequest,
        *,
        places: Sequence[int] | None = None,
        views: Views | None = None,
    ) -> list[Any]:
        """A body's messages with what ``condense`` decides carried out; the very same list where that is nothing.

        ``places`` are those of the history among them, None for all; ``views`` reads it. What is inserted stands right
        behind the message of the history that it follows.
        """
        form, attempt = form_of(api), self.services.notices.attempt
        if form is None or not self.decides(conversation):
            return messages
        at = range(len(messages)) if places is None else places
        none: Sequence[MessageView] = ()
        history, count = [messages[index] for index in at], self.services.counter(model)
        seen = attempt("views", lambda: (views or views_of)(history, form, count), none)
        # Outside of ``attempt``: it fails open by itself, and ``BudgetError`` must reach the application.
        decisions = self.condense(conversation, seen, model, api, rest) if seen else ()

        def placed(decision: Decision) -> Decision:
            """A decision on the history as one on all messages."""
            behind = isinstance(decision, Insert) and decision.index
            return replace(decision, index=at[decision.index - 1] + 1 if behind else at[decision.index])

        def carried_out() -> list[Any]:
            """The messages with the decisions carried out."""
            return sendable(apply(messages, map(placed, decisions), form))

        return attempt("condense", carried_out, messages) if decisions else messages

    def _settling(
        self,
        conversation: Conversation,
        views: Sequence[MessageView],
        model: str,
        api: Api | None,
        rest: RestOfRequest,
        ask: Ask | AsyncAsk | None,
    ) -> Flow[tuple[Decision, ...]]:
        """``condense``, for synchronous and asynchronous callers alike."""
        if not self.decides(conversation):
            return ()
        if rest.zones:
            self.note_unsaid(conversation)
        # One that keeps its history says them itself.
        zones = rest.zones and bool(conversation.state.zones) and not conversation.keeps_history
        epoch = conversation.ledger.epoch
        if zones and conversation.zones_wait(views):
            rest = replace(rest, front_moves=True)
        static = rest.static_tokens
        if static is None:
            static = self._static(model, conversation, rest.tools or ())
        own = rest.own_tokens + self._unshared(model, rest.declared)
        rest = replace(rest, static_tokens=static, own_tokens=conversation.room_beside(own))
        terms = self._terms(model, api, rest.tools)
        terms = replace(terms, consolidate=self._consolidate(conversation.consolidate))
        history = HistoryAccess(
            conversation,
            terms,
            partial(_look, conversation, views, terms),
            partial(_circumstances, conversation, terms, rest),
            lambda _, made, epoch: conversation.take_in(made, epoch),
            attempt=terms.attempt,
            # Siblings send the same history. What has the summary written does not wait for itself.
            waits=conversation.waits,
        )
        now = yield from settling(history, ask)
        if zones:
            show = partial(conversation.show_zones, views, rewritten=conversation.ledger.epoch > epoch)
            if terms.attempt("zones", show, False):  # noqa: FBT003 - what is answered when it fails
                now = yield from settling(history, ask)
        return () if now is None else now.decisions

    def _consolidate(self, own: Consolidate) -> Consolidate:
        """What joins durable context: the conversation's own hook, or else the compaction's."""
        return self.compaction.consolidate if own is concatenate and self.compaction is not None else own

    def _fit(
        self, model: str, api: Api | None, rules: Compaction, used: str, cold_at: Callable[[float], bool]
    ) -> tuple[Compaction, Circumstances]:
        """A compaction's rules and circumstances, as the provider and the ``compact`` hooks have them.

        The provider is that of ``model``, else of the model that the conversation ``used`` last; unknown without both.
        """
        around = Circumstances(request=self.request_budget)
        named = model or used
        if named:
            profile = self.services.profile(named, api)
            prices = Prices(min(profile.read, 1.0), profile.default_ttl.write, cold_at(self.services.clock()))
            around = replace(around, prices=prices)
            if profile.thinking_bound and not rules.thinking_bound:
                bound = f"{profile.name} takes a thinking block only behind the very prefix that it was made under"
                rules = replace(rules, thinking_bound=bound)
        if self.plugins.overrides("compact"):
            rules = replace(rules, policies=(partial(self._hooked, rules), *rules.row()))
        return rules, around

    def _hooked(self, rules: Compaction, situation: Situation) -> Iterable[Decision]:
        """What the compact hook decides, as the first of the policies; nothing where it does not answer or fails."""
        answer = self.plugins.call_first("compact", view=situation, policy=rules)
        if answer is None:
            return ()
        nothing: tuple[Decision, ...] = ()
        return self.services.notices.attempt("compact hook", lambda: tuple(_checked(answer, situation)), nothing)

    def _terms(self, model: str, api: Api | None = None, tools: Collection[str] | None = None) -> Terms:
        """The session's settings for histories of one model; those of ``observe`` change nothing."""
        services = self.services
        return Terms(
            budget=self.budget if self.active else None,
            store=self.results,
            replace_result=self._replacing(),
            compaction=self.compaction if self.active else None,
            request=self.request_budget,
            count=services.counter(model),
            base=self.team.prefix.context,
            fit=partial(self._fit, model, api),
            attempt=services.notices.attempt,
            note=services.notices.note,
            readable=partial(self.readable, tools),
            places=self.state.positions,
        )

    def _replacing(self) -> Replace:
        """The hook ``replace_tool_result`` as the history room takes it."""

        def replaced(result: ResultView) -> Any:
            """The hook's text, or text and strategy; None for any other answer, which leaves the result as it is."""
            answer = self.plugins.call_first("replace_tool_result", result=result, budget=self.budget)
            return answer if isinstance(answer, str) or (isinstance(answer, tuple) and len(answer) == 2) else None

        return replaced

    def _static(self, model: str, conversation: Conversation, own: Collection[str]) -> int:
        """Tokens of what all requests of a conversation share, and of the tools among them that this one has."""
        return self.services.count(self.team.prefix.text, model) + self._tool_tokens(model, conversation, own)

    def _tool_tokens(self, model: str, conversation: Conversation, own: Collection[str] = ()) -> int:
        """Tokens of the schemas of the shared tools that a conversation's requests may carry: others' are in none."""
        names = {*self.state.tool_sets.open_to(self.team, conversation), *own}
        schemas = (tool.schema.decode() for tool in self.team.prefix.among(names))
        return sum(self.services.count(schema, model) for schema in schemas)

    def _unshared(self, model: str, declared: Sequence[Any]) -> int:
        """About the tokens of a request's tools that nobody shares: they came with it, or the provider defines them."""
        # Of its own names alone: a session may know the tools of thousands of users.
        known = {tool.name for tool in self.team.prefix.among(map(tool_name, declared))}
        return sum(self.services.count(str(tool), model) for tool in declared if tool_name(tool) not in known)


def _look(conversation: Conversation, views: Sequence[MessageView], terms: Terms) -> Standing:
    """A framework's history as its ledger has it; what is decided on results seen for the first time is recorded."""
    now = replay(views, conversation.ledger, terms.budget, terms.cutting(conversation.scope))
    conversation.merge(now.ledger)
    return Standing(views, now.ledger, now.tokens, now.decisions, terms.budget)


def _circumstances(
    conversation: Conversation, terms: Terms, rest: RestOfRequest, tokens: int
) -> tuple[Compaction, Circumstances] | None:
    """By what a compaction is planned, with what all siblings share beside it; None where nothing asks for one.

    What this request has of its own counts against the window alone, so that siblings are compacted at the same time.
    """
    if terms.compaction is None and terms.request is None:
        return None
    rules, around = terms.rules(conversation.model, conversation.cold_at)
    static = rest.static_tokens or 0
    if around.request is not None and tokens + static + rest.own_tokens > around.request.room:
        static += rest.own_tokens
    return rules, replace(around, static_tokens=static, front_moves=rest.front_moves)


def _checked(answer: Iterable[Any], situation: Situation) -> Iterable[Decision]:
    """The decisions of a compact hook; raises ``TypeError`` at the first that is none on the situation's messages."""
    for decision in answer:
        if not isinstance(decision, Decision) or not 0 <= decision.index < len(situation.views):
            raise TypeError(f"the compact hook answered {decision!r}; it gives decisions on situation.views")
        yield decision
