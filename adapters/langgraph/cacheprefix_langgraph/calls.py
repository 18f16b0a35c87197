"""Where the application calls the model: its messages and tools become those of a fork."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import filterfalse
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables.config import RunnableConfig, ensure_config, var_child_runnable_config

from cacheprefix.adapter import (
    ONE_CALL,
    AdapterSession,
    AgentRequest,
    Api,
    Carried,
    CountedHistory,
    OwnTools,
    Reason,
    Restriction,
    RoleTold,
    SummaryRequest,
    ToolSet,
    allowed_choice,
    failed,
    for_own_tools,
    forces_any,
    provider_tools,
    reason,
    tail_text,
)
from cacheprefix.errors import BudgetError
from cacheprefix.wire import asks as asks_of
from cacheprefix_langgraph.converse import CONFIG, SCHEMA, converse_of, in_blocks, words_itself
from cacheprefix_langgraph.fork_context import FRAME, Frame, configurable, scope_of, thread_of
from cacheprefix_langgraph.history import Decided
from cacheprefix_langgraph.layout import ToSettle, history_of, laid_out, settled, summarise_first, together
from cacheprefix_langgraph.parts import (
    Parts,
    at_end,
    completed,
    goes_on_from,
    instruction_of,
    leads,
    missing,
    only_text,
    taken_apart,
)
from cacheprefix_langgraph.pending import SENDING, Sending
from cacheprefix_langgraph.request_bodies import (
    base_of,
    cached_elsewhere,
    compacted_elsewhere,
    hoists,
    kept_elsewhere,
    model_name,
    only_marked,
    shows_body,
)
from cacheprefix_langgraph.schemas import adopt_foreseen
from cacheprefix_langgraph.sdk_clients import summariser
from cacheprefix_langgraph.sending import session_in
from cacheprefix_langgraph.state import conversation_of, ledger_in, resume_inside, sent_alike
from cacheprefix_langgraph.tools import (
    Union,
    by_provider,
    first_call_only,
    keeps_tools,
    name_of,
    one_call,
    union_of,
    usable,
    with_union,
    without_limit,
)
from cacheprefix_langgraph.tracing import agent_in, outside, traced_config
from cacheprefix_langgraph.wrapping import wrapping


@dataclass(frozen=True, slots=True)
class Entered:
    """A model call as it goes on to the model's own class."""

    given: Any
    """The messages, or what else the application called the model with."""
    config: Any
    options: dict[str, Any]
    sending: Sending
    """What is known of the request; to be put in force (``SENDING``) while the class's code runs."""

    def wanted(self, answer: Any) -> Any:
        """What the application gets of the class's answer: no second tool call where it wants one at most."""
        return first_call_only(answer) if self.sending.single else answer


def enter(
    model: Any,
    given: Any,
    config: Any,
    kwargs: dict[str, Any],
    *,
    whole: bool = False,
    waited: Frame | None = None,
) -> Entered:
    """Make a model call a fork of the shared prefix, where one is in force; else pass it on as it came.

    A failure of ours leaves the application's own request. ``whole`` says that the answer comes in one piece, so that
    something may still be taken from it. ``waited`` is the fork for which ``ahead`` has waited: nothing is waited for
    here any more.
    """
    now = _under_way(given)
    if now is not None:
        return Entered(given, config, kwargs, now)
    made = _entered(model, given, config, kwargs, whole=whole, waited=waited)
    made.sending.made = made.given
    return made


def _under_way(given: Any) -> Sending | None:
    """The request in force, where its model's class calls the model itself with it; else None.

    Classes that cannot stream do, asked for a stream: what is laid out is not laid out, and said, again.
    """
    now = SENDING.get()
    return now if now is not None and now.made is given else None


def _entered(
    model: Any, given: Any, config: Any, kwargs: dict[str, Any], *, whole: bool, waited: Frame | None
) -> Entered:
    """A model call as it goes on to the model's class, as ``enter`` says."""
    session = session_in(model)
    settled = ensure_config(config)
    frame = _frame(model, session, settled, given) if waited is None else waited
    conversation, scope = (frame.conversation, frame.scope) if frame else (thread_of(settled), scope_of(settled))
    sending = Sending(session, frame, None, kwargs.get("tools"), conversation, scope)
    if frame is None:
        # As the application calls it, so that a report and its breaks tell several of them apart.
        sending.agent = session.attempt("agent", lambda: agent_in(settled), "")
        if session.mode != "observe":
            session.attempt("no fork", lambda: outside(session, settled), None)
        return Entered(given, config, kwargs, sending)
    if session.mode == "observe":
        return Entered(given, config, kwargs, sending)
    sending.step, talk = settled, frame.state
    if talk is not None:
        session.attempt("ledger", lambda: resume_inside(session, talk, settled), None)
    config = session.attempt("tracing", lambda: traced_config(config, settled, frame, sending), config)
    made = _made(model, given, kwargs, frame, sending, whole=whole, asks=waited is None)
    return Entered(given, config, kwargs, sending) if made is None else Entered(made[0], config, made[1], sending)


def _made(
    model: Any, given: Any, kwargs: dict[str, Any], frame: Frame, sending: Sending, *, whole: bool, asks: bool
) -> tuple[Any, dict[str, Any]] | None:
    """The messages and options that go out in place of the application's; None where those stay as they are.

    Raises ``BudgetError`` where the history cannot be brought under the budget, and ``NotSharedError`` in strict mode.
    """
    session = frame.session
    over: list[BudgetError] = []

    def changed() -> tuple[Any, dict[str, Any]] | None:
        if not frame.laid:
            sending.plan = failed("fork")
            return _in_own_layout(model, given, kwargs, frame)
        try:
            return _rewritten(_asked(model, given, kwargs, frame, whole=whole), sending, asks=asks)
        except BudgetError as error:
            over.append(error)
            return None

    done = session.attempt("rewrite", lambda: (changed(),), None)
    if over:
        raise over[0]
    if done is not None:
        return done[0]
    # What the application left to us to say is said in its own layout too.
    sending.plan = failed("rewrite")
    return session.attempt("rewrite", lambda: _in_own_layout(model, given, kwargs, frame), None)


def waiting(model: Any, given: Any, config: Any) -> Frame | None:
    """The fork for which an asynchronous call must await ``ahead`` first; None where there is nothing to wait for."""
    session = session_in(model)
    if session.mode == "observe" or _under_way(given) is not None:
        return None
    frame = _frame(model, session, ensure_config(config), given)
    return frame if frame is not None and _summarises(frame.session) else None


async def ahead(model: Any, given: Any, kwargs: dict[str, Any], frame: Frame | None, *, whole: bool = False) -> None:
    """Have the model write the summary that a compaction needs, before ``enter``, which cannot await anything."""
    if frame is None or kept_elsewhere(model, kwargs):
        return
    try:
        now = _asked(model, given, kwargs, frame, whole=whole)
        told = frame.session.told(now.request())
        summarise = summariser(model, now.frame, now.options(told.tools, told.restriction), later=True)
        await summarise_first(now.to_settle(told), summarise)
    except Exception as error:
        frame.session.failed("summary", error)


def _frame(model: Any, session: AdapterSession, config: RunnableConfig, given: Any) -> Frame | None:
    """The fork that a call belongs to: of the role that the model was bound to, else the one in force here."""
    frame = FRAME.get()
    if frame is not None and not session.related(frame.session):
        frame = None
    if wrapping(model).role is not None:
        # Privacy: a model that is bound once for all asks for the tenant in whose fork it is called.
        whose = session if frame is None or frame.session.scope == session.scope else frame.session
        frame = session.attempt("role", lambda: _bound(model, whose, config, given), frame)
    return frame


def _bound(model: Any, session: AdapterSession, config: RunnableConfig, given: Any) -> Frame:
    """The fork of the role that the model was bound to."""
    role, instruction = wrapping(model).role or ("", "")
    ledger = ledger_in(None, session) if configurable(config, "__pregel_read") is not None else None
    # A thread has a name; only without one it is told by what is said.
    said = [] if thread_of(config) else [*filterfalse(leads, model._convert_input(given).to_messages())]
    state, scope = conversation_of(session, config, ledger, said, returned=FRAME.get() is not None), scope_of(config)
    return Frame(session=session, role=role, instruction=instruction, conversation=state.id, state=state, scope=scope)


@dataclass(slots=True)
class _Asked:
    """A call of the model as a fork makes it, between the application's objects and the planner's."""

    model: Any
    given: Any
    messages: list[BaseMessage]
    kwargs: dict[str, Any]
    plain: Frame
    frame: Frame
    """The fork, which says in words what the provider is not told any more."""
    parts: Parts
    union: Union
    single: bool
    """Whether one call at most is wanted, and said in words."""
    kept: bool
    """Whether the provider keeps the history."""
    decided: Decided | None = None
    """The history after its decisions, once the planner asked for it."""

    def request(self, *, asks: bool = False) -> AgentRequest[BaseMessage]:
        """What the role asks, for the planner; ``asks`` has it write a summary that is due."""
        model, frame, session = self.model, self.frame, self.frame.session
        name, count = model_name(model), session.counter(model_name(model))
        said = asks_of(map(only_text, filterfalse(leads, self.parts.given)), system=bool(self.parts.texts))
        made: AgentRequest[BaseMessage]

        def summarise(messages: list[BaseMessage], request: SummaryRequest) -> str:
            told = session.told(made)
            text: str = summariser(model, frame, self.options(told.tools, told.restriction))(messages, request)
            return text

        def history(told: RoleTold) -> CountedHistory[BaseMessage]:
            if self.kept:
                self.decided = Decided(self.parts.rest, len(self.parts.rest), (), lossless=True)
            else:
                self.decided = settled(self.to_settle(told), summarise if asks else None)
            return history_of(self.decided, frame, name, told.text)

        made = AgentRequest(
            frame.role,
            name,
            frame.state or session.conversation(frame.conversation, scope=frame.scope),
            instruction_of(self.parts, frame),
            history,
            spoken=lambda behind: [count(one.text) for one in [*filterfalse(leads, self.parts.rest)][behind:]],
            tools=self._tools(),
            volatile={} if frame.trails else frame.volatile,
            own=tuple(self._own()),
            known=tuple(self._known()),
            alike=self.parts.begins_shared,
            shared_at=self.parts.shared_at,
            long_text_stays=True,
            alone=session.alone and sent_alike(var_child_runnable_config.get()) < 2,
            cached=self._cached,
            asks=said,
            base=frame.base,
        )
        return made

    def to_settle(self, told: RoleTold) -> ToSettle:
        """The conversation that the role asks in, for decisions on it."""
        views, name, tools = wrapping(self.model).views, model_name(self.model), told.carries(self.bound)
        return ToSettle(self.parts, self.frame, views, name, told.text, tools, self.declared)

    @property
    def _cached(self) -> bool:
        """Whether the application has its own request cached to its end, as LangChain's caching middleware does.

        A mark on the system text alone keeps nothing of what is said.
        """
        last = self.parts.given[-1].content if self.parts.given else ""
        blocks = last if isinstance(last, list) else []
        return "cache_control" in self.kwargs or any(
            isinstance(block, Mapping) and "cache_control" in block for block in blocks
        )

    def _own(self) -> Iterator[Reason]:
        """The reasons, if any, for which the request keeps the application's own layout whatever sharing would save."""
        if self.kept:
            yield reason("kept_by_provider")
        elif compacted_elsewhere(self.model, self.kwargs):
            yield reason("own_history", "compacted by the provider")
        own = words_itself(self.model, self.kwargs)
        if own:
            yield reason("own_prompt", own)
        base = base_of(self.model)
        if not shows_body(base) and only_marked(self.frame.session, self.model):
            # The marks that the provider goes by cannot be set, so that nothing of a fork would be read either.
            yield reason("marks_hidden", base.__name__)

    def _known(self) -> Iterator[Reason]:
        """The settings by which the provider caches this request apart from those of the other roles."""
        if _by_schema(self.model, self.kwargs):
            yield reason("response_schema")
        if self._choice not in (None, False, "auto", "none", "allowed_tools"):
            yield reason("forced_tool")
        yield from provider_tools(map(name_of, filter(by_provider, self._given)))

    @property
    def _choice(self) -> Any:
        """How the application has the model choose among the tools; None where it does not say."""
        choice = self.kwargs.get("tool_choice")
        # Bedrock's has its kind for a name.
        return choice.get("type", next(iter(choice), None)) if isinstance(choice, Mapping) else choice

    @property
    def _forced(self) -> bool:
        """Whether the model has to call one of its tools, whichever."""
        return forces_any(self.kwargs.get("tool_choice"))

    @property
    def _given(self) -> list[Any]:
        """The tools that the application bound, wherever its model's class has them."""
        return [*(self.kwargs.get("tools") or ()), *(self.kwargs.get(CONFIG) or {}).get("tools", ())]

    @property
    def declared(self) -> list[Any]:
        """Those of them that the provider defines, or that are named where the core looks: nobody may share them."""
        named = {"function", "custom", "name"}
        return [tool for tool in self._given if by_provider(tool) or (isinstance(tool, Mapping) and named & set(tool))]

    @property
    def bound(self) -> tuple[str, ...]:
        """Names of the tools that the application bound. A cache point among them has none."""
        return tuple(filter(None, map(name_of, self.kwargs.get("tools") or [])))

    def _tools(self) -> OwnTools:
        """The tools that the role bound and those it may use, for the planner to choose what is sent."""
        frame, bound = self.frame, self.bound
        allowed = frame.allowed
        # Without any it may bind them with a later request; what shows nowhere may have any name.
        if bound or not (self._given or frame.binds or keeps_tools(base_of(self.model))):
            allowed = usable(frame.session, frame.role, allowed, bound)
        if self.union.tools is None:
            return OwnTools(bound, allowed, carried="own", differ=())
        if allowed is not None and not self.union.differ:
            allowed = tuple(name for name in bound if name in allowed)
        # Nobody is there yet whose tools could cost more than they save.
        carried: Carried = "union" if frame.session.alone else "open"
        lists = shows_body(base_of(self.model))
        listed = lists and frame.session.profile(model_name(self.model)).tool_choice_safe == "allowed_tools"
        foreign = for_own_tools(self.kwargs.get("tool_choice"), tuple(filter(None, map(name_of, self._given))))
        if foreign or (self._forced and not (listed or frame.answers)):
            # Of the union the model might call another role's tool, which nobody refuses.
            carried = bound
        free = self._forced or self.kwargs.get("tool_choice") in (None, "auto")
        fans = sent_alike(var_child_runnable_config.get()) > 1
        return OwnTools(bound, allowed, carried, free=free, lists=lists, differ=self.union.differ, fans_out=fans)

    def options(self, tools: ToolSet | None, restriction: Restriction) -> dict[str, Any]:
        """The options of the call with the tools that it carries."""
        kwargs = self.kwargs if tools is None else with_union(self.kwargs, self.union, self.frame, tools)
        if restriction.allowed is not None:
            api: Api = "openai-responses" if getattr(self.model, "use_responses_api", False) else "openai-chat"
            choice = allowed_choice(restriction.allowed, api)
            if self._forced:
                choice.get("allowed_tools", choice)["mode"] = "required"
            kwargs = {**kwargs, "tool_choice": choice}
        return without_limit(kwargs) if self.single else kwargs


def _asked(model: Any, given: Any, kwargs: dict[str, Any], frame: Frame, *, whole: bool) -> _Asked:
    """A call of the model as its fork makes it; ``whole`` as in ``enter``."""
    messages = model._convert_input(given).to_messages()
    if frame.base is not None and not goes_on_from(frame.base, messages, frame):
        # Its system prompt is another one with each request, or a middleware behind ours has changed it.
        frame.base = None
    session, plain, kept = frame.session, frame, kept_elsewhere(model, kwargs)
    if compacted_elsewhere(model, kwargs):
        # Privacy: what the provider makes of all messages comes back in the answer, so that none of them is for this
        # request alone.
        volatile = tail_text("", "", volatile=frame.volatile)
        frame = plain = replace(
            frame, instruction="\n\n".join(filter(None, (frame.instruction, volatile))), volatile={}
        )
    single = whole and not kept and one_call(model, kwargs, frame)
    if single:
        frame = replace(frame, instruction="\n\n".join(filter(None, (frame.instruction, ONE_CALL))))
    # An agent alone keeps its own order: helpers that are no forks begin with the same tools. An answer's schema is
    # another prompt for the provider, so that nobody's tools are read with it.
    session.attempt("schemas", lambda: adopt_foreseen(session, model), None)
    own = kept or not session.prefix.tools or frame.base is not None or _by_schema(model, kwargs)
    own = own or CONFIG in kwargs
    union = Union(None) if own else union_of(model, kwargs, frame)
    parts = taken_apart(messages, frame, hoists=hoists(model))
    return _Asked(model, given, messages, kwargs, plain, frame, parts, union, single, kept)


def _by_schema(model: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether the answer is to follow a schema that is sent beside the messages."""
    names = SCHEMA if converse_of(type(model)) is not None else ()
    return not kwargs.keys().isdisjoint(("response_format", *names))


def _rewritten(asked: _Asked, sending: Sending, *, asks: bool) -> tuple[Any, dict[str, Any]] | None:
    """The messages and options of a call as planned; None where those of the application go out.

    ``asks`` has the model write a summary that is due.
    """
    session, parts = asked.frame.session, asked.parts
    plan = sending.plan = session.plan(asked.request(asks=asks and _summarises(session)))
    if plan.unasked:
        # The provider refuses it; any text of ours might be something to answer.
        return None
    if asked.kept:
        beside = _behind_cached if cached_elsewhere(asked.model, asked.kwargs) else _in_instructions
        return beside(asked.model, asked.given, asked.kwargs, asked.plain)
    if plan.at is None or asked.decided is None:
        # The layout stays the application's; what was decided on its history holds from the first request on.
        broke = plan.reasons[-1].why == "failed"
        kept = _own(parts, parts.rest, asked.plain, asked.kwargs)
        history = parts.rest if broke else together(plan.history)
        if len(history) != len(parts.rest) or not all(map(operator.is_, history, parts.rest)):
            kept = _own(parts, history, asked.plain, asked.kwargs)
        sending.given = None if kept is None else (asked.messages, asked.kwargs)
        return kept
    done = laid_out(parts, asked.decided, asked.frame, plan)
    if converse_of(type(asked.model)) is not None:
        # What it makes of the application's own messages is no fork with texts moved back: it joins others.
        done = replace(done, messages=in_blocks(done.messages), given=parts.given)
    if done.trailing and not shows_body(base_of(asked.model)):
        done = replace(done, messages=at_end(done.messages, [HumanMessage(done.trailing)]), trailing="")
    # What goes out where the fork cannot be begun says what the application left to us all the same.
    own = _own(parts, parts.rest, asked.plain, asked.kwargs)
    sending.given = asked.messages, asked.kwargs
    sending.rewritten, sending.single, sending.asked = done, asked.single, own or sending.given
    return done.messages, asked.options(plan.tools, plan.restriction)


def _in_own_layout(model: Any, given: Any, kwargs: dict[str, Any], frame: Frame) -> tuple[Any, dict[str, Any]] | None:
    """The request as the application made it, with what it leaves to us to say; None where that is nothing."""
    parts = taken_apart(model._convert_input(given).to_messages(), frame, hoists=hoists(model))
    return _own(parts, parts.rest, frame, kwargs)


def _in_instructions(model: Any, given: Any, kwargs: dict[str, Any], frame: Frame) -> tuple[Any, dict[str, Any]] | None:
    """``_in_own_layout`` where the provider keeps the messages: what is said beside them is for one request alone."""
    own = str(kwargs.get("instructions") or "")
    lacks = missing(model._convert_input(given).to_messages(), frame, own)
    texts = [*lacks, frame.passing if frame.volatile else "", own]
    said = "\n\n".join(text for text in texts if text)
    return None if said == own else (given, {**kwargs, "instructions": said})


def _behind_cached(model: Any, given: Any, kwargs: dict[str, Any], frame: Frame) -> tuple[Any, dict[str, Any]] | None:
    """``_in_own_layout`` where a prefix was cached by name: with what is the role's alone at the end."""
    # A provider's rule: beside ``cachedContent`` Gemini refuses system text and tools. Their place, and the shared
    # text's, is in what was cached (ai.google.dev/gemini-api/docs/caching, as of 2026-11-28).
    messages = model._convert_input(given).to_messages()
    lacks = frame.instruction.strip() in map(str.strip, missing(messages, frame))
    said = tail_text(frame.role, frame.instruction if lacks else "", volatile=frame.volatile)
    return ([*messages, HumanMessage(said)], kwargs) if said else None


def _own(
    parts: Parts, history: Sequence[BaseMessage], frame: Frame, kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any]] | None:
    """A request in the application's own layout with what it leaves to us to say; None where nothing is to be added.

    ``history`` is its conversation, as it was decided on.
    """
    given, laid = parts.given, completed([*parts.lead, *parts.own(history)], frame)
    same = len(laid) == len(given) and all(map(operator.is_, laid, given))
    return None if same else (laid, kwargs)


def _summarises(session: AdapterSession) -> bool:
    """Whether a compaction has the model write a summary."""
    return session.histories.compaction is not None and session.histories.compaction.summarise == "fork"
