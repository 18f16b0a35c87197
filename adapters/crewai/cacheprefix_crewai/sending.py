"""One request of a model object, from CrewAI's call to its answer."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cacheprefix import Prompt
from cacheprefix.adapter import (
    FOLLOW,
    Api,
    Reason,
    Request,
    RequestPlan,
    VolatileRole,
    Worth,
    asked_again,
    digest_of,
    failed,
    list_refused,
    overlaid,
    reason,
    restrict,
    texts_said,
    unasked,
    with_volatile,
)
from cacheprefix.errors import BudgetError, CacheprefixError, NotSharedError, named
from cacheprefix.wire import for_litellm
from cacheprefix_crewai.binding import ALONE, asks_for, binding_of
from cacheprefix_crewai.clients import is_claude, over, system_first
from cacheprefix_crewai.events import announce
from cacheprefix_crewai.history import Around, Execution, Executions, compact_now, condensed, limits, shortened
from cacheprefix_crewai.layout import Layouts
from cacheprefix_crewai.native import with_last
from cacheprefix_crewai.task_layout import LLMCall, TaskLayout, opening_of, role_of, unmarked
from cacheprefix_crewai.tasks import crew_of, kept_by_provider
from cacheprefix_crewai.tools import Offer, called_in, differing, may_forbid, name_of, offer, with_choice

if TYPE_CHECKING:
    from cacheprefix import Conversation, PendingCall
    from cacheprefix.adapter import Pass
    from cacheprefix_crewai.binding import Binding, Volatile

_REFUSAL = "Tools are not available here: none of your calls was run. Answer now, in text, with what you know already."
_OTHERS = "Not available here: {called}. None of your calls was run. Tools available here: {own}."
_SCHEMAS: Mapping[Api, str] = {"openai-chat": "response_format", "anthropic": "output_format"}
"""Where the schema of an answer stands in a body."""
_KEEP_PARTS = 2_000
_WARM_SECONDS = 240.0
"""A prefix unused for longer may be gone from the provider's cache (5 minutes), so someone leads again."""


class WarmParts:
    """Which shared parts an installation's requests wrote to the cache, and who waits for one that is being written."""

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self._used: dict[bytes, float] = {}

    def __contains__(self, key: bytes) -> bool:
        used = self._used.get(key)
        return used is not None and self._binding.session.clock() - used < _WARM_SECONDS

    def add(self, key: bytes) -> None:
        """The shared part is in the provider's cache from now on."""
        with self._binding.lock:
            if len(self._used) > _KEEP_PARTS:
                self._used.clear()
            self._used[key] = self._binding.session.clock()

    def lead(self, gates: Sequence[tuple[bytes, Worth]]) -> Pass:
        """Lead on cold shared parts, or wait until their leader has begun to answer where that is worth it."""
        return self._binding.session.waiting.follow(*((self._lane(key), worth) for key, worth in gates))

    async def alead(self, gates: Sequence[tuple[bytes, Worth]]) -> Pass:
        """``lead`` without blocking the event loop."""
        return await self._binding.session.waiting.afollow(*((self._lane(key), worth) for key, worth in gates))

    def _lane(self, key: bytes) -> bytes:
        """The name of a shared part among one tenant's requests."""
        # Privacy: whether another tenant has sent a text is not to be told by who waits for it.
        return self._binding.scope.encode("utf-8", "surrogatepass") + b"\0" + key


@dataclass
class PendingRequest:
    """What is sent, what it was, and what came of it."""

    binding: Binding
    call: LLMCall
    """As CrewAI made it, with the application's tools."""
    agent: str
    task: str
    messages: Any
    """What is sent; ``tools`` likewise."""
    tools: Any
    given: Any
    """The application's messages, with what they leave to the session to say."""
    layout: TaskLayout | None = None
    plan: RequestPlan[Any] | None = None
    """How it is laid out, and why; None for what no agent of the crew asks, which is only observed."""
    offer: Offer | None = None
    """The tools of a fork; None for what stays in the application's layout."""
    execution: Execution | None = None
    """The run of the task that asks; None for helpers, which are measured and left alone."""
    volatile: str = ""
    """Text for this request alone, which stands behind everything."""
    key: bytes = b""
    """The same for all requests that share their whole cached part; empty for what is no fork."""
    leave: Pass | None = None
    """That it leads at the gate, or has waited there."""
    pending: PendingCall | None = None
    """The session's side of it, once its body is made."""
    usage: Any = None
    """As the provider reported it."""
    tries: int = 0
    """How often an answer was refused so far because it called a tool that the application did not offer."""
    call_id: str | None = None
    """Of the application's call, in CrewAI's events; None where it is the one under way."""
    undone: bool = False
    """Whether the application's own request has taken the place of the one laid out, which could not be begun."""

    # ------------------------------------------------------------------ the messages

    @property
    def forked(self) -> bool:
        """Whether it is laid out as a fork."""
        return self.offer is not None and self.layout is not None

    @classmethod
    def opened(cls, binding: Binding, call: LLMCall) -> PendingRequest | None:
        """The request in its task's layout; as it is when it has none, and when laying out fails.

        None for what none of the installation's agents asks. Raises ``BudgetError`` where a request budget cannot be
        met, ``NotSharedError`` in strict mode, and what the application's ``volatile`` raises.
        """
        session, messages, layouts = binding.session, call.messages, binding.part(Layouts)
        task = str(getattr(call.task, "name", None) or getattr(call.task, "description", None) or "")[:60]
        given = cls(binding, call, role_of(call.agent) or "crewai", task, messages, call.tools, messages)
        if not isinstance(messages, list):
            return given
        if crew_of(call.agent) is not None and binding_of(call.agent) is None:
            # Privacy: a crew that nobody installed is shown nothing of the run in which a tool kicks it off.
            return replace(given, agent="crewai")
        try:
            found = session.attempt("layout", lambda: (layouts.of(call),), None)
        except NotSharedError as error:
            raise stopped(error) from error
        if found is None:
            given.plan = failed("layout")
            return given._of_no_task()
        if found[0] is not None:
            return given._of_task(found[0])
        if binding.rewrites and call.agent is not None and messages:
            given.messages = session.attempt("layout", lambda: layouts.unread(call), messages)
        return given._of_no_task()

    def _of_no_task(self) -> PendingRequest | None:
        """This request, which has no layout, under the agent's name that asks it; None where none of ours does."""
        call, newest = self.call, self.binding.part(Executions).newest
        ours = call.agent is not None or asks_for(call.llm, self.binding)
        again = newest is not None and newest.llm is call.llm and _repeats(call.messages, newest.answer)
        if newest is not None and again and call.agent is None and (ALONE.get() or not ours):
            # CrewAI asks again for the answer of an agent by itself in another form, and names nobody.
            return replace(self, agent=newest.agent)
        return self if ours else None

    def _of_task(self, layout: TaskLayout) -> PendingRequest:
        """This request, laid out as its task's are, within the session's limits."""
        binding, session, call, opening = self.binding, self.binding.session, self.call, layout.opening
        runs, first = binding.part(Executions), len(call.messages) <= opening.rest
        self.layout, self.agent, self.task, self.plan = layout, layout.role, layout.task, layout.plan
        run = functools.partial(runs.of, opening.digest, call.agent, call.messages, first=first)
        self.execution = session.attempt("layout", run, None)
        if self.execution is not None:
            self.execution.beside = layout.beside
        if not binding.rewrites:
            return self
        # The provider's rule: a request with a response schema could read nothing of those without one.
        fits = call.response_model is None or (bool(call.schema) and layout.schema == call.schema)
        none: tuple[Reason, ...] = ()
        covered = session.attempt("layout", lambda: overlaid(over(call.llm)), none)
        if fits and layout.forked and not covered:
            laid = session.attempt("layout", lambda: self._laid_out(layout), None)
            if laid is not None:
                return laid._bounded(layout.head)
            self.plan = failed("layout")
            return self._bounded(opening.rest)
        self.given = layout.own_messages(call.messages)
        self.messages = _clean(self, self.given)
        if fits and covered and layout.forked:
            self.plan = RequestPlan("own", covered)
        if fits:
            return self._bounded(opening.rest)
        self.plan = RequestPlan("own", (reason("response_schema"),))
        return self

    def _laid_out(self, layout: TaskLayout) -> PendingRequest:
        """This request as a fork: the messages of its task's layout, and the tools of all."""
        session, model, tools = self.binding.session, self.call.model, self.call.tools
        offered = layout.offer
        if self.call.agent is None and not tools and offered.tools:
            # The forced final answer: CrewAI drops the tools, which would change the request from its start. They stay,
            # excluded by ``tool_choice`` unless that would void the provider's cache of the messages.
            names = tuple(map(name_of, offered.tools))
            limits = restrict(names, names, session.profile(model), calls=False)
            offered = replace(offered, choice=limits.allowed)
        elif list(tools or ()) != list(layout.tools or ()):
            if differing(self.binding, tools):
                offered = Offer(list(tools) if tools else None)
            else:
                offered = offer(self.binding, model, self.call.llm, tools)
        if offered.choice and not session.takes_lists(model):
            # The task's text was laid out before: it names no tools, and a call of another role's is refused.
            offered = replace(offered, choice=None)
        laid = replace(self, messages=layout.fork_messages(self.call.messages), tools=offered.tools, offer=offered)
        names = tuple(map(name_of, offered.tools or ()))
        laid.messages = shortened(self.binding, laid.messages, model, names)
        laid.key = layout.key + model.encode() + b"".join(name_of(tool).encode() for tool in offered.tools or ())
        return laid

    def _bounded(self, head: int) -> PendingRequest:
        """This request within the session's limits, with what is volatile. Raises ``BudgetError`` as they do."""
        session, execution = self.binding.session, self.execution
        self.volatile = _volatile_text(self.binding, self.binding.options.volatile)
        if execution is not None and limits(session):
            around = Around(self.call.model, head, self.tools, self.volatile)
            try:
                self.messages = condensed(session, execution, self.messages, around)
            except BudgetError as error:
                raise stopped(error) from error
        return self

    def refuses(self, result: Any) -> tuple[str, ...]:
        """The tools that an answer calls and the application did not offer; empty where the answer is its own."""
        offer, own = self.offer, set(map(name_of, self.call.tools or ()))
        if self.undone or offer is None or not offer.tools:
            return ()
        called = called_in(result)
        others = set(map(name_of, offer.tools or ())) - own if own else set(called)
        return tuple(dict.fromkeys(named(name) for name in called if name in others))

    def refused(self, result: Any) -> PendingRequest | None:
        """What to ask again where an answer ``refuses`` to be the application's; None where it is.

        With the refusal at the end; then without the choice, where no tool may be called at all, else as the
        application asked, as in the end everywhere.
        """
        called = self.refuses(result)
        if not called:
            return None
        call, offer, listed = self.call, self.offer, ", ".join(called)
        assert offer is not None
        self.binding.session.note(
            f"{self.agent}: called tools that it does not have ({listed}); the call was refused and asked again"
        )
        again = replace(self, pending=None, usage=None, leave=None, tries=self.tries + 1)
        own = ", ".join(map(name_of, call.tools or ()))
        if not self.tries:
            words = _OTHERS.format(called=listed, own=own) if own else _REFUSAL
            again.messages = [*self.messages, {"role": "user", "content": words}]
        forced = not own and call.agent is None  # CrewAI has told it already that this is the final answer
        if not self.tries and not (forced and may_forbid(offer, call.llm)):
            return again
        if not own and may_forbid(offer, call.llm):
            # Money: another ``tool_choice`` voids the cached messages and reads the rest, which the application's own
            # request would not; and no third answer is refused.
            again.offer = replace(offer, choice=())
            return again
        return self._as_asked(asked_again(called))

    def without_list(self) -> PendingRequest | None:
        """The application's own request, where the endpoint has just refused this one's list of allowed tools."""
        lists = self.offer is not None and bool(self.offer.choice)
        takes = self.binding.session.takes_lists(self.call.model)
        return self._as_asked(list_refused()) if lists and not takes else None

    def _as_asked(self, plan: RequestPlan[Any]) -> PendingRequest:
        """The request as the application made it, to be asked in this one's place."""
        again = replace(self, pending=None, usage=None, leave=None, tries=self.tries + 1, plan=plan)
        again = replace(again, messages=_clean(self, self.given), tools=self.call.tools, layout=None, offer=None)
        return replace(again, execution=None, key=b"")

    # ------------------------------------------------------------------ the gate

    def enter(self) -> None:
        """Wait for the one that writes the shared part, when several start on it together."""
        gates, parts = self._gates(), self.binding.part(WarmParts)
        if gates:
            self.leave = self.binding.session.attempt("gate", lambda: parts.lead(gates), None)

    async def aenter(self) -> None:
        """``enter`` without blocking the event loop."""
        gates = self._gates()
        if gates:
            self.leave = await self.binding.part(WarmParts).alead(gates)

    def _gates(self) -> tuple[tuple[bytes, Worth], ...]:
        """By what those who share find one another, and what waiting gains them; empty where that is nothing.

        First the whole shared part; then what other kickoffs have too, whose inputs and results are others.
        """
        layout, options = self.layout, self.binding.options
        if layout is None or not self.key or not options.gate or self.key in self.binding.part(WarmParts):
            return ()
        return self.binding.session.attempt("gate", lambda: self._worth_waiting_for(layout), ())

    def _worth_waiting_for(self, layout: TaskLayout) -> tuple[tuple[bytes, Worth], ...]:
        """Of what this request begins with: those parts that are cold and that it pays to wait for."""
        session, model, llm = self.binding.session, self.call.model, self.call.llm
        warm, count = self.binding.part(WarmParts), session.counter(model)
        # The API that the model's class most likely speaks: there is no body yet that would tell.
        api: Api = "anthropic" if "anthropic" in type(llm).__module__ else "openai-chat"
        tools = sum(map(count, map(str, self.tools or ())))
        results = sum(count(result.block) for result in layout.results)
        parts = [(self.key, tools + count(layout.system) + results)]
        # A provider's rule: marks stand behind the whole system text, so only where none are needed is its beginning
        # read by itself.
        by_itself = session.profile(model, api).match == "block"
        if by_itself and layout.beginning and (layout.results or layout.texts):
            parts.append((self._named(layout.beginning), tools + count(layout.beginning)))
        gates = list[tuple[bytes, Worth]]()
        for key, cold in parts:
            streams = bool(getattr(llm, "stream", False))
            worth = None if key in warm else session.waiting.worth(model, api, cold=cold, streams=streams)
            gates += [] if worth is None else [(key, worth)]
        # Where the whole is not worth waiting for, its beginning is not either.
        return tuple(gates) if gates and gates[0][0] == self.key else ()

    def _named(self, text: str) -> bytes:
        """What names a shared text with the model and the tools that it stands behind."""
        names = b"".join(name_of(tool).encode() for tool in self.tools or ())
        return digest_of(self.call.schema, text).encode() + self.call.model.encode() + names

    def _release(self, *, ok: bool) -> None:
        """Let those who wait at the gate go on; what was written is warm from now on, where it is ``ok``."""
        ok = ok and not self.undone
        if ok and self.key:
            warm = self.binding.part(WarmParts)
            warm.add(self.key)
            if self.layout is not None:
                warm.add(self._named(self.layout.beginning))
        if self.leave is not None:
            self.leave.release(ok=ok)

    # ------------------------------------------------------------------ the wire

    def begin(self, params: dict[str, Any], api: Api, original: Callable[[Any, Any], Any]) -> dict[str, Any]:
        """The finished body: restricted, marked for the cache, and observed.

        Where that fails, it is the application's own, which ``original`` makes of its messages and tools.
        """
        session = self.binding.session
        self.undone = False
        if self._made_anew_by_crewai:
            self._noted(params, api)
            sent: dict[str, Any] | None = params  # what goes out is begun in ``made_anew``
        else:
            sent = session.attempt("begin", lambda: self._begun(params, api, original), None)
        if sent is None:
            sent = self._own(params, original)
        if not self.volatile:
            return sent
        if api == "openai-responses" and kept_by_provider(self.call.llm):
            return {**sent, "instructions": "\n\n".join(filter(None, (sent.get("instructions"), self.volatile)))}
        if api == "gemini":
            return with_last(sent, self.volatile)
        # LiteLLM would move a system message to the front of Anthropic's request, before all that is cached.
        role: VolatileRole = "user" if self._claude_by_litellm(api) else self.binding.options.volatile_role
        return with_volatile(sent, api, self.volatile, role)

    def _begun(self, params: dict[str, Any], api: Api, original: Callable[[Any, Any], Any]) -> dict[str, Any] | None:
        """The body as the session begins it; None where it could not."""
        layout, execution = self.layout, self.execution
        if self.pending is not None:
            self.pending.fail()  # the class sends the request again
            self.usage = None
        elif execution is not None:
            self.binding.part(Executions).asked(execution, has_tools=layout is not None and layout.has_tools)
        body = with_choice(params, self.offer.choice, api) if self.offer is not None else params
        if self.forked and self._claude_by_litellm(api):
            body = system_first(body)
        body = self.binding.session.markable(body, api) if self.forked else body
        self._noted(body, api)
        told = self._with_schema(body, api)
        asked = self._request(told, api, original)
        self.pending = self.binding.session.begin(asked, self.leave or FOLLOW)
        if self.pending.seen is None:
            return None
        if execution is not None:
            execution.tokens = self.pending.seen.prompt.tokens
        sent = self.pending.body
        self._routed(sent, api)
        if told is not body:  # the class adds the schema itself
            sent = body if sent is told else {key: sent[key] for key in sent if key in body or key not in told}
        if sent is params:
            return params
        kept = over(self.call.llm)
        # The application's own setting stays: LiteLLM would put ours over what its ``extra_body`` says.
        sent = {key: value for key, value in sent.items() if key in params or key not in kept}
        return for_litellm(dict(sent)) if self._claude_by_litellm(api) else dict(sent)

    def _routed(self, sent: Mapping[str, Any], api: Api) -> None:
        """A question beside the run goes to the machine to which its newest request went."""
        key = self.binding.session.profile(self.call.model, api).routing_key
        if self.execution is not None and key and key in sent:
            self.execution.body = {**self.execution.body, key: sent[key]}

    def _with_schema(self, body: dict[str, Any], api: Api) -> dict[str, Any]:
        """The body with its answer's schema, which the model's class adds only as it sends; the same without one."""
        name = _SCHEMAS.get(api, "")
        if not self.call.schema or not name or name in body:
            return body
        schema = {"name": self.call.response_model.__name__, "schema": self.call.response_model.model_json_schema()}
        form = {"json_schema": schema} if api == "openai-chat" else schema
        return {**body, name: {"type": "json_schema", **form}}

    def _noted(self, body: dict[str, Any], api: Api) -> None:
        """This is the newest request of its run, which a question beside it goes on from."""
        execution = self.execution
        if execution is None:
            return
        execution.llm, execution.api, execution.body = self.call.llm, api, body
        execution.agent, execution.answer = self.agent, ""
        if (agent := self.call.agent) is not None:
            execution.asker = weakref.ref(agent)
        if (crew := crew_of(agent)) is not None:
            execution.crew = weakref.ref(crew)

    @property
    def _made_anew_by_crewai(self) -> bool:
        """Whether the class only takes the messages out of the body, for a request of another kind.

        By LiteLLM, an answer by a schema is asked for in one message. What is streamed first goes out as it is.
        """
        llm = self.call.llm
        by_litellm = bool(getattr(llm, "is_litellm", False))
        return self.call.response_model is not None and by_litellm and not getattr(llm, "stream", False)

    def made_anew(self, body: dict[str, Any], api: Api) -> PendingRequest:
        """The request that CrewAI makes of this one and sends past the model's class: measured as it is."""
        call = replace(self.call, messages=body.get("messages"), tools=body.get("tools"))
        plan: RequestPlan[Any] | None = None
        if self.binding.rewrites:
            plan = RequestPlan("own", (reason("response_schema"),))
        made = replace(self, call=call, messages=call.messages, tools=call.tools, given=call.messages, plan=plan)
        made = replace(made, layout=None, offer=None, volatile="", key=b"", leave=None, usage=None, pending=None)
        asked = made._request(body, api, lambda *_: None)
        made.pending = self.binding.session.begin(asked, FOLLOW)
        return replace(made, execution=None)

    def _request(self, body: dict[str, Any], api: Api, original: Callable[[Any, Any], Any]) -> Request:
        """What the session is told of this request: its body, whose it is, and what of it may be changed."""
        binding, layout, execution = self.binding, self.layout, self.execution
        conversation: str | Conversation = binding.kickoff_id or binding.conversation
        if execution is not None:
            conversation = execution.conversation
        marks = binding.session.profile(self.call.model, api).markers is not None
        # Money: of requests in the application's own layout those alone get marks whose beginning is kept already.
        rewrite = layout is not None and binding.rewrites and (self.forked or not marks or self._may_mark(api))
        changed = self.forked or self.messages is not self.call.messages or self.tools is not self.call.tools
        loops = layout is not None and layout.has_tools and binding.part(Executions).go_on
        asked = Request(
            body,
            api,
            agent=self.agent,
            conversation=conversation,
            decided=binding.held,
            boundary=layout.boundary if self.forked and layout is not None else None,
            original=self._unmodified(api, original) if changed or self.tries or (rewrite and marks) else None,
            headers=self.call.headers,
            rewrite=rewrite,
            scope=binding.scope,
            continues=self.forked and loops,
            trailing=bool(self.volatile),
            repeated=bool(self.tries),
        )
        asked = asked if self.plan is None else asked.laid_out(self.plan)
        # Money: nothing begins like what was asked again, so that it writes nothing.
        return replace(asked, last=True) if self.tries else asked

    def _may_mark(self, api: Api) -> bool:
        """Whether a request in the application's own layout may get marks beside the application's own.

        Only that of a task that goes on from what the provider keeps: a mark behind a shorter beginning would write all
        of it, for a request that may never come.
        """
        execution, rules = self.execution, self.binding.session.profile(self.call.model, api)
        # The provider's rule: where it marks by itself, ours would turn that off in the middle of the task.
        return execution is None or (execution.tokens >= rules.min_tokens and not rules.implicit_breakpoint)

    def _own(self, params: dict[str, Any], original: Callable[[Any, Any], Any]) -> dict[str, Any]:
        """The application's own request, in the place of one that could not be begun."""
        if self.pending is not None:
            self.pending.fail()
        if self.messages is self.given and self.tools is self.call.tools:
            return params
        own: dict[str, Any] | None = self.binding.session.attempt(
            "original", lambda: original(self.given, self.call.tools), None
        )
        if own is None:
            return params
        self.undone = True
        self._release(ok=False)
        if self.execution is not None:
            self.execution.body = own
        return own

    def _claude_by_litellm(self, api: Api) -> bool:
        """Whether LiteLLM makes Anthropic's body of this one, in which marks stand elsewhere."""
        return api == "openai-chat" and is_claude(self.call.llm)

    def _unmodified(self, api: Api, original: Callable[[Any, Any], Any]) -> Callable[[Prompt], Prompt | None]:
        """Gives the prompt that the application would have sent, for the estimate of its cost."""
        if self.tries:
            return unasked  # Money: it would have had an answer already

        def rebuilt(_: Prompt) -> Prompt | None:
            # Without what the session was told to say in every request: the application's own has none of it.
            body = original(self.call.messages, self.call.tools)
            if not isinstance(body, Mapping):
                return None
            return self.binding.session.decode(self._with_schema(dict(body), api), api)

        return rebuilt

    # ------------------------------------------------------------------ the answer

    def first_token(self) -> None:
        """The answer has begun; the others go as soon as they can read what this one wrote."""
        if self.pending is not None:
            self.pending.first_token()

    def reported(self, usage: Any, *, exact: bool) -> None:
        """The provider's usage; CrewAI's own reading of it only where nothing better came."""
        if usage is not None and (exact or self.usage is None):
            self.usage = usage

    def answered(self, result: Any) -> None:
        """The answer is complete."""
        self._release(ok=True)
        if self.execution is not None:
            self.execution.answer = result if isinstance(result, str) else ""
            self.binding.part(Executions).answered(self.execution)
        pending = self.pending
        if pending is None:
            return
        verdict = pending.finish(self.usage)
        if verdict is not None and pending.call is not None:
            self.binding.record(self.task, pending.call)
            announce(self.binding.session, self.call.llm, self.task, pending.call)

    def failed(self) -> None:
        """There is no answer."""
        self._release(ok=False)
        if self.pending is not None:
            self.pending.fail()


@functools.cache
def _stop(kind: Any) -> Any:
    """An error's class as what CrewAI lets through: any other error of a request has it run the task again."""
    try:
        from crewai.hooks.dispatch import HookAborted  # noqa: PLC0415 - CrewAI loads slowly
    except ImportError:
        return kind  # another version, which raises it once it has tried again

    found: Any = type(kind.__name__, (kind, HookAborted), {"__module__": kind.__module__, "__doc__": kind.__doc__})
    return found


def stopped(error: CacheprefixError) -> CacheprefixError:
    """The error so that CrewAI neither swallows it nor tries again."""
    own: Any = type(error)
    kind = _stop(own)
    made: CacheprefixError = kind.__new__(kind, *error.args)
    made.args = error.args
    vars(made).update(vars(error))
    return made


def halved(binding: Binding, call: LLMCall) -> bool:
    """Shorten a history that the provider refused; the request that follows replays what was decided."""
    model, messages, opening = call.model, call.messages, opening_of(call.messages)
    layout = None if opening is None else binding.part(Layouts).settled(call, opening)
    if layout is None:
        return False
    execution = binding.part(Executions).of(layout.opening.digest, None, messages, first=False)
    if layout.forked:
        laid, head = shortened(binding, layout.fork_messages(messages), model), layout.head
    else:
        laid, head = list(layout.own_messages(messages)), layout.opening.rest
    return compact_now(binding.session, execution, laid, Around(model, head))


def _repeats(messages: Sequence[Any], answer: str) -> bool:
    """Whether an answer stands in a request as a whole."""
    return bool(answer) and any(answer in str(one.get("content")) for one in messages if isinstance(one, Mapping))


def _clean(request: PendingRequest, messages: Any) -> Any:
    """CrewAI's marks taken off where LiteLLM would send them as an unknown field."""
    if not request.binding.rewrites or not getattr(request.call.llm, "is_litellm", False):
        return messages
    return unmarked(messages)


def _volatile_text(binding: Binding, given: Volatile | None) -> str:
    """The texts as they go out; empty without any. What the callable raises is the application's."""
    if given is None:
        return ""
    said, session = texts_said(given), binding.session
    return session.attempt("volatile context", lambda: session.tail_for("", "", volatile=said), "")
