"""What a session makes of a history: results cut at first sight, compaction when it is due, all of it recorded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cacheprefix._sharing import KEEP
from cacheprefix.conversation import Ask, AsyncAsk, Conversation, Steps, Terms, aanswered, answered, guarded, tell_stuck
from cacheprefix.history import (
    Circumstances,
    Compaction,
    Consolidate,
    Ledger,
    Plan,
    Prices,
    Replayed,
    Situation,
    SummaryRequest,
    concatenate,
    join_context,
    plan_compaction,
    replay,
    to_join,
)
from cacheprefix.layout import ForkPolicy, Tool
from cacheprefix.prompt import Decision, MessageView, ResultView
from cacheprefix.unnamed import new_name

if TYPE_CHECKING:
    from cacheprefix._side import ForkResult
    from cacheprefix.history import Mode, Replace
    from cacheprefix.profiles import Profile
    from cacheprefix.prompt import Api, Prompt, ReplaceResult
    from cacheprefix.session import Session
    from cacheprefix.wire import Form


def condense(
    session: Session,
    conversation: Conversation,
    views: Sequence[MessageView],
    model: str = "",
    api: Api | None = None,
    *,
    static_tokens: int | None = None,
    own_tokens: int = 0,
    front_moves: bool = False,
    ask: Ask | None = None,
) -> tuple[Decision, ...]:
    """All decisions on a framework's history: results cut once, and compaction where it is due and pays.

    ``views`` are of the history as the framework has it, never of what was sent: what the ledger holds is
    repeated, byte for byte, in forks and resumed threads too. Parallel siblings get the same history: one compacts,
    and the others wait for its summary and take its decisions. ``static_tokens`` is what is sent beside it and shared
    (the prefix by default), ``own_tokens`` what this request alone has (its role's text), which counts against the
    window. ``front_moves`` says that the static text changes with a compaction. ``ask`` writes summaries for
    ``Compaction(summarise="fork")``. A compaction also joins keyed context to one block a key behind the static text.
    Fails open, but raises ``BudgetError`` with ``over_by`` where a ``request_budget`` cannot be met.
    """
    steps = _steps(
        session, conversation, views, model, api, static_tokens, own_tokens, front_moves=front_moves,
        asks=ask is not None,
    )  # fmt: skip
    return answered(steps, ask, session.attempt)


async def acondense(
    session: Session,
    conversation: Conversation,
    views: Sequence[MessageView],
    model: str = "",
    api: Api | None = None,
    *,
    static_tokens: int | None = None,
    own_tokens: int = 0,
    front_moves: bool = False,
    ask: AsyncAsk | None = None,
) -> tuple[Decision, ...]:
    """``condense`` with an ``ask`` that is awaited, such as ``asummary_by_fork`` makes."""
    steps = _steps(
        session, conversation, views, model, api, static_tokens, own_tokens, front_moves=front_moves,
        asks=ask is not None,
    )  # fmt: skip
    return await aanswered(steps, ask, session.attempt)


_ASKING: ContextVar[tuple[Conversation, ...]] = ContextVar("cacheprefix_asking", default=())
"""Conversations whose summary is being asked for here: what that itself asks must not wait for it."""


_ROUNDS = 32
"""Times that a request looks again at what its siblings decided meanwhile."""


def _steps(
    session: Session,
    conversation: Conversation,
    views: Sequence[MessageView],
    model: str,
    api: Api | None,
    static_tokens: int | None,
    own_tokens: int,
    *,
    front_moves: bool,
    asks: bool,
) -> Steps[tuple[Decision, ...]]:
    """Condensing without its waiting: yields what a summary is wanted of, or what a sibling is about to have done."""
    if not decides(session, conversation):
        return ()
    again = partial(_replayed, session, conversation, views, model)
    static = _static(session, model) if static_tokens is None else static_tokens
    own = conversation.room_beside(own_tokens)
    now: Replayed | None = None
    for _ in range(_ROUNDS):
        under_way = conversation.asking
        if under_way is not None:
            # Who cannot wait for the summary, or is itself asking for it, goes on without one.
            asks = conversation not in _ASKING.get() and bool((yield under_way)) and asks
        epoch = conversation.ledger.epoch
        now = session.attempt("tool-result budget", again, None)
        if now is None:
            return ()
        conversation.merge(now.ledger)
        if session.compaction is None and session.request_budget is None:
            return now.decisions
        work = partial(_planned, session, conversation, views, now, model, api, static, own, front_moves=front_moves)
        found = guarded(session.attempt, "compaction", work, None)
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
                taken = _taken(session, conversation, views, plan, epoch, joins=joins)
        else:
            taken = _taken(session, conversation, views, plan, epoch, joins=joins)
        if taken is None:
            return now.decisions
        # Taken or not: what holds now is read off the ledger, and a window that this request needs is looked at anew.
    return now.decisions if now is not None else ()


def _taken(
    session: Session, conversation: Conversation, views: Sequence[MessageView], plan: Plan, epoch: int, *, joins: bool
) -> bool | None:
    """Whether a compaction came into the ledger before any other; None where it cannot."""
    made = session.attempt("compaction", partial(plan.commit, session.results, scope=conversation.scope), None)
    if made is None or made is plan.ledger:
        return None
    if joins:
        made = session.attempt("consolidation", partial(_joined, session, conversation, views, made), made)
    return conversation.take_in(made, epoch)


def conversation_of(
    session: Session,
    id: str,  # noqa: A002 - the field's word
    scope: str | None,
    api: Form | None,
    mode: Mode | None,
    model: str,
    options: Mapping[str, Any],
) -> Conversation:
    """The conversation of an id, made when it is new, and bound to the session; see ``Session.conversation``."""
    key = (session.name, session.scope if scope is None else scope, id or new_name())
    known = session.shared.conversations
    with session.shared.lock:
        found = known.get(key)
        new = found is None
        if found is None:
            found = Conversation(key[2], scope=key[1], prefix_key=session.prefix.key)
            if id:
                known[key] = found
            if len(known) > KEEP:
                known.popitem(last=False)
        else:
            known.move_to_end(key)
    if new or api is not None or mode is not None:
        found.bind(terms_of(session, model or found.model, **options), api=api, mode=mode)
        found.model = model or found.model
    return found


def shorten(
    session: Session, conversation: Conversation, views: Sequence[MessageView], model: str = ""
) -> tuple[ReplaceResult, ...]:
    """What stands in place of large tool results, decided once and replayed; empty when it fails."""
    if session.mode == "observe" or (session.budget is None and not conversation.ledger.alters):
        return ()
    count, replaced = session.counter(model), replacing(session)
    return session.attempt(
        "tool-result budget",
        lambda: conversation.shorten(views, session.budget, count=count, store=session.results, replace=replaced),
        (),
    )


def terms_of(session: Session, model: str, **options: Any) -> Terms:
    """A session's settings for a conversation that keeps its own history; those of ``observe`` change nothing."""
    active = session.mode != "observe"
    options["consolidate"] = _consolidate(session, options.get("consolidate", concatenate))
    return Terms(
        system=session.prefix.text,
        static_tokens=_tool_tokens(session, model),
        budget=session.budget if active else None,
        store=session.results,
        replace_result=replacing(session),
        compaction=session.compaction if active else None,
        request=session.request_budget,
        count=session.counter(model),
        fitted=partial(_fitted, session, model),
        attempt=session.attempt,
        note=session.note,
        **options,
    )


def replacing(session: Session) -> Replace:
    """The hook ``replace_tool_result`` as the context room takes it."""

    def replaced(result: ResultView) -> Any:
        answer = session.plugins.call_first("replace_tool_result", result=result, budget=session.budget)
        return answer if isinstance(answer, str) or (isinstance(answer, tuple) and len(answer) == 2) else None

    return replaced


def cold_after(prompt: Prompt, profile: Profile, ended: float) -> float | None:
    """When the provider has forgotten a request for certain; None where it promises nothing."""
    marks = (prompt.sections[index].marker for index in prompt.marked)
    names = {marker.ttl for marker in marks if marker is not None}
    lives = [profile.ttl(name).seconds for name in names or {None}]
    known = [life for life in lives if life is not None]
    return ended + max(known) if known and len(known) == len(lives) else None


def summary_by_fork(
    session: Session,
    *,
    body: Mapping[str, Any],
    api: Api,
    send: Callable[[dict[str, Any]], Any],
    conversation: str = "",
    scope: str | None = None,
) -> Ask:
    """An ``ask`` for compaction: a fork of ``body``, the request as last sent, so that its prefix is read."""

    def ask(request: SummaryRequest) -> str:
        options = {**_summary_options(session, request, body, api), "conversation": conversation, "scope": scope}
        return _summary(session.fork(request.instruction, send=send, **options))

    return ask


def asummary_by_fork(
    session: Session,
    *,
    body: Mapping[str, Any],
    api: Api,
    send: Callable[[dict[str, Any]], Awaitable[Any]],
    conversation: str = "",
    scope: str | None = None,
) -> AsyncAsk:
    """``summary_by_fork`` with an asynchronous ``send``; for ``acondense`` and ``Conversation.abuild``."""

    async def ask(request: SummaryRequest) -> str:
        options = {**_summary_options(session, request, body, api), "conversation": conversation, "scope": scope}
        return _summary(await session.afork(request.instruction, send=send, **options))

    return ask


def _summary_options(session: Session, request: SummaryRequest, body: Mapping[str, Any], api: Api) -> dict[str, Any]:
    """How a fork that summarises is sent: the same tools, and forbidden to call them where that costs nothing."""
    profile = session.profile(str(body.get("model", "")), api)
    calm = bool(body.get("tools")) and api != "anthropic" and profile.placement("tool_choice") == "none"
    # Room for a model that thinks first; the summary itself is cut to what was asked for.
    policy = replace(ForkPolicy.background_summary(), max_output_tokens=max(1_024, 2 * request.max_tokens))
    overrides = {"tool_choice": "none"} if calm else None
    return {"body": body, "api": api, "role": "summary", "policy": policy, "overrides": overrides}


def _summary(result: ForkResult) -> str:
    # An answer that calls a tool is no summary; an extract then stands in its place.
    return result.text if result.stopped == "done" else ""


def decides(session: Session, conversation: Conversation) -> bool:
    """Whether ``condense`` may decide on anything, or repeats it, so that making views is worth it."""
    limited = session.budget is not None or session.compaction is not None or session.request_budget is not None
    return session.mode != "observe" and (limited or conversation.ledger.alters)


def _replayed(session: Session, conversation: Conversation, views: Sequence[MessageView], model: str) -> Replayed:
    return replay(
        views,
        conversation.ledger,
        session.budget,
        count=session.counter(model),
        store=session.results,
        scope=conversation.scope,
        replace_result=replacing(session),
    )


def _planned(
    session: Session,
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
    rules = session.compaction or Compaction(trigger=None)
    rules, around = _fitted(session, model, conversation, rules, api=api)
    request = around.request
    if request is not None and now.tokens + static + own > request.room:
        # What the request has of its own counts against the window alone: siblings are compacted at the same time.
        static += own
    around = replace(around, static_tokens=static)
    trigger, target = rules.limits(request)
    tokens = now.tokens + static
    if tokens <= (trigger + target) // 2 or (tokens <= trigger and not around.prices.cold):
        return None
    count = session.counter(model)
    # Joining moves the front of the history; where that alone makes a compaction too dear, it is done without.
    for joins in (True, False) if to_join(views, now.ledger) else (False,):
        here = replace(around, front_moves=joins or front_moves)
        plan = plan_compaction(views, now.ledger, rules, here, count=count, budget=session.budget, readable=True)
        if plan.due:
            return plan, joins
        tell_stuck(plan, session.note)
    return None


def _joined(session: Session, conversation: Conversation, views: Sequence[MessageView], ledger: Ledger) -> Ledger:
    return ledger.record(join_context(views, ledger, _consolidate(session, conversation.consolidate)))


def _consolidate(session: Session, own: Consolidate) -> Consolidate:
    return session.compaction.consolidate if own is concatenate and session.compaction is not None else own


def _fitted(
    session: Session, model: str, conversation: Conversation, rules: Compaction, *, api: Api | None = None
) -> tuple[Compaction, Circumstances]:
    """A compaction under the rules of the provider that answers this conversation, and its hooks."""
    around = Circumstances(request=session.request_budget)
    named = model or conversation.model
    if named:
        profile = session.profile(named, api)
        prices = Prices(min(profile.read, 1.0), profile.default_ttl.write, conversation.cold_at(session.clock()))
        around = replace(around, prices=prices)
        if profile.thinking_bound and not rules.thinking_bound:
            bound = f"{profile.name} takes a thinking block only behind the very prefix that it was made under"
            rules = replace(rules, thinking_bound=bound)
    if session.plugins.overrides("compact"):
        rules = replace(rules, policies=(partial(_hooked, session, rules), *rules.row()))
    return rules, around


def _hooked(session: Session, rules: Compaction, situation: Situation) -> Iterable[Decision]:
    answer = session.plugins.call_first("compact", view=situation, policy=rules)
    if answer is None:
        return ()
    nothing: tuple[Decision, ...] = ()
    return session.attempt("compact hook", lambda: tuple(_checked(answer, situation)), nothing)


def _checked(answer: Iterable[Any], situation: Situation) -> Iterable[Decision]:
    for decision in answer:
        if not isinstance(decision, Decision) or not 0 <= decision.index < len(situation.views):
            message = f"the compact hook answered {decision!r}; it gives decisions on situation.views"
            raise TypeError(message)
        yield decision


def _static(session: Session, model: str) -> int:
    """Tokens of what all requests of a session share."""
    return session.count(session.prefix.text, model) + _tool_tokens(session, model)


def _tool_tokens(session: Session, model: str) -> int:
    schemas = (tool.schema.decode() for tool in session.prefix.tools if isinstance(tool, Tool))
    return sum(session.count(schema, model) for schema in schemas)
