"""``PrefixClient``: the application's model client, whose requests become forks of the shared prefix."""

from __future__ import annotations

import copy
import inspect
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any

from autogen_core import Component, ComponentModel
from autogen_core.models import (
    AssistantMessage,
    ChatCompletionClient,
    CreateResult,
    LLMMessage,
    ModelInfo,
    RequestUsage,
    SystemMessage,
    UserMessage,
)
from autogen_core.tools import Tool, ToolSchema
from pydantic import BaseModel
from typing_extensions import Self

from cacheprefix import Conversation, Prompt, Session
from cacheprefix.adapter import (
    AdapterSession,
    RequestPlan,
    asked_again,
    given_or_configured,
    list_refused,
    overlaid,
    unasked,
    users_session,
)
from cacheprefix.adapter import Request as CallRequest
from cacheprefix.adapter import failed as unplanned
from cacheprefix.errors import BudgetError, SetupError, check_text, found_instead
from cacheprefix_autogen.history import Ask
from cacheprefix_autogen.layout import Layout
from cacheprefix_autogen.member import Member, Planned
from cacheprefix_autogen.messages import SENDER
from cacheprefix_autogen.provider_clients import (
    Request,
    api_of,
    body_beside,
    body_of,
    put_over,
    restore_tools,
    sender,
)
from cacheprefix_autogen.sending import SENDING, Sending, Undone, ending, tap
from cacheprefix_autogen.settings import PrefixSettings, session_of_settings
from cacheprefix_autogen.summaries import Answered, Holds
from cacheprefix_autogen.tool_restriction import Held
from cacheprefix_autogen.tracebacks import without_ours


@dataclass
class CachedUsage(RequestUsage):
    """AutoGen's usage with what it drops: a ``PrefixClient``'s ``last_usage``.

    ``prompt_tokens`` is the whole input, whatever the provider counts; ``None`` means not reported.
    """

    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None


class PrefixClientConfig(BaseModel):
    """What a ``PrefixClient`` is built from; clients with the same ``prefix`` settings share a session."""

    client: ComponentModel
    role: str = ""
    prefix: PrefixSettings = PrefixSettings()


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One try at an answer: the application's request, and how it is sent.

    An answer may call tools that the role may not call. Each further try is a paid request: the first repeats the fork
    with the refusal; then a role with own tools gets its answer as it is, and one that may call none is asked a last
    time with the application's own request.
    """

    given: Request
    layout: Layout | None
    """None for the application's own."""
    plan: RequestPlan[LLMMessage] | None
    refused: bool = False
    """Whether the try before it was refused."""
    anew: bool = False
    """Whether the endpoint refused the list of allowed tools of the try before it."""
    holds: Holds | None = None
    """What its history holds, where a later request may have it summed up."""

    def ends_with(self, refusal: Sequence[LLMMessage]) -> bool:
        """Whether its answer is the application's, where ``refusal`` is what there is to say against it."""
        return self.layout is None or not refusal or (self.refused and bool(self.layout.restriction.permitted))


class PrefixClient(ChatCompletionClient, Component[PrefixClientConfig]):
    """Wraps any AutoGen model client. ``wrap`` makes one for every agent; by itself it works too.

    The agent's own system text becomes the end of the prompt, the conversation stands before it in one form
    for all agents, and the tools are the session's union. In ``observe`` mode, and whenever something of
    ours fails, the request is the application's own. ``prompt_tokens`` of a fork's answer are its whole input, also
    where AutoGen's client leaves out what was read from the cache and written to it; ``last_usage`` has those too.
    Use ``ChatCompletionCache(PrefixClient(...))`` in this order, one a role; ``wrap`` takes a team with such a cache
    as it is. A stored answer is no call.
    """

    component_type = "model"
    component_config_schema = PrefixClientConfig
    component_provider_override = "cacheprefix_autogen.PrefixClient"

    def __init__(
        self,
        client: ChatCompletionClient,
        session: Session | None = None,
        *,
        role: str = "",
        member: Member | None = None,
    ) -> None:
        check_text("role", role)
        if member is None:
            _check_client(client)
        self.client = client
        self._session = given_or_configured(session)
        self.role = role
        self.member = member or Member(self._session, role)
        self._bound = member is not None
        """Made by ``wrap`` and not by the application, which has the wrapped client in its configurations."""
        self.last_usage: CachedUsage | None = None
        self._added = RequestUsage(0, 0)

    @property
    def session(self) -> Session:
        """The session whose prefix the requests extend."""
        return users_session(self._session)

    async def create(
        self, messages: Sequence[LLMMessage], *, tools: Sequence[Tool | ToolSchema] = (), **options: Any
    ) -> CreateResult:
        """Ask for one answer. For arguments and errors see the wrapped client, which gets only what is given here."""
        try:
            if self._laid_out_already():
                return await self.client.create(messages, **_as_given(tools, options))
            attempt = await self._first_attempt(messages, tools, options, self.client.create)
            while True:
                sending = self._sending(attempt)
                try:
                    result = await self._create(attempt.given, sending)
                except Exception:
                    if not sending.list_refused:
                        raise
                    attempt = self._own(attempt, list_refused(), anew=True)
                    continue
                refusal = self._refusal(sending, result)
                if attempt.ends_with(refusal):
                    return result
                attempt = self._after(attempt, refusal)
        except Exception as error:
            without_ours(error)
            raise

    async def _create(self, given: Request, sending: Sending) -> CreateResult:
        """One request for a whole answer; where the fork could not be begun, the application's own in its place."""
        token = SENDING.set(sending)
        try:
            result: CreateResult | None = None
            with suppress(Undone):
                result = await self._asked(self.client.create, given, sending)
            if result is None:
                # The fork could not be begun: ``sending`` is marked so, and sends the application's own request now.
                result = await self._asked(self.client.create, given, sending)
        except BaseException:
            sending.failed()
            raise
        finally:
            SENDING.reset(token)
        return self._accounted(result, sending)

    async def create_stream(
        self, messages: Sequence[LLMMessage], *, tools: Sequence[Tool | ToolSchema] = (), **options: Any
    ) -> AsyncGenerator[str | CreateResult, None]:
        """One answer in pieces; the last is the whole result. See the wrapped client for arguments and errors."""
        try:
            async with aclosing(self._streamed(messages, tools, options)) as pieces:
                async for piece in pieces:
                    yield piece
        except Exception as error:
            without_ours(error)
            raise

    async def _streamed(
        self, messages: Sequence[LLMMessage], tools: Sequence[Tool | ToolSchema], options: dict[str, Any]
    ) -> AsyncGenerator[str | CreateResult, None]:
        """The pieces of an answer."""
        if self._laid_out_already():
            async with ending(self.client.create_stream(messages, **_as_given(tools, options))) as pieces:
                async for piece in pieces:
                    yield piece
            return
        attempt = await self._first_attempt(messages, tools, options, self.client.create_stream)
        while True:
            sending = self._sending(attempt)
            ask = partial(self._asked, self.client.create_stream, attempt.given, sending)
            held = Held(None if attempt.layout is None else attempt.layout.restriction)
            refusal: Sequence[LLMMessage] = ()
            try:
                async with aclosing(_within(sending, ask)) as pieces:
                    async for piece in pieces:
                        if not isinstance(piece, CreateResult):
                            for one in held.taken(piece):
                                yield one
                            continue
                        result = self._accounted(piece, sending)
                        refusal = self._refusal(sending, result)
                        # The application has the text already, so nothing is asked again: refused calls are removed.
                        if refusal and held.passed and held.said and attempt.layout is not None:
                            refusal, result = (), attempt.layout.restriction.without_refused(result, held.said)
                        if attempt.ends_with(refusal):
                            refusal = ()
                            for one in held.rest():
                                yield one
                            yield result
            except Exception:
                # It came before the first piece.
                if not sending.list_refused:
                    raise
                attempt = self._own(attempt, list_refused(), anew=True)
                continue
            if not refusal:
                return
            attempt = self._after(attempt, refusal)

    async def _first_attempt(
        self,
        messages: Sequence[LLMMessage],
        tools: Sequence[Tool | ToolSchema],
        options: Mapping[str, Any],
        method: Callable[..., Any],
    ) -> _Attempt:
        """The request as it came, and how it is laid out for the client's ``method``, and why."""
        said, talk = self.member.volatile_text(), self._talk(messages)
        choice, output = options.get("tool_choice", "auto"), options.get("json_output")
        extra = options.get("extra_create_args") or {}
        given = Request(messages, tools, choice, output, extra, said, options, talk)
        holds = await self._summarise(given)
        layout, plan = self._layout(given, method)
        if plan is not None and plan.unasked:
            # Text for this request alone would be something to answer, where the provider answers nothing.
            given = replace(given, volatile="")
        return _Attempt(given, layout, plan, holds=holds)

    def _refusal(self, sending: Sending, result: CreateResult) -> Sequence[LLMMessage]:
        """The refusal to send back where a fork's answer calls tools that its role may not call; else empty."""
        if sending.layout is None or sending.undone:
            return ()
        return sending.layout.restriction.refusal(result, self.role) or ()

    def _after(self, attempt: _Attempt, refusal: Sequence[LLMMessage]) -> _Attempt:
        """The next try: the same fork with the refusal behind it, or else the application's own request."""
        layout = attempt.layout
        assert layout is not None  # the application's own request has the application's answer
        if attempt.refused:
            said = (one.content for one in refusal if isinstance(one, AssistantMessage))
            called = {call.name for calls in said for call in calls if not isinstance(call, str)}
            return self._own(attempt, asked_again(called - set(layout.restriction.permitted or ())))
        return replace(attempt, layout=replace(layout, messages=[*layout.messages, *refusal]), refused=True)

    def _own(self, attempt: _Attempt, plan: RequestPlan[LLMMessage], *, anew: bool = False) -> _Attempt:
        """The application's own request in the place of a fork; ``anew`` where that has had no answer at all."""
        given = attempt.given
        layout = self._session.attempt("layout", lambda: self.member.own_layout(self.client, given), None)
        return replace(attempt, layout=layout, plan=plan, anew=anew)

    def _laid_out_already(self) -> bool:
        """Whether another ``PrefixClient`` around this one has laid the request out already."""
        sending = SENDING.get()
        return sending is not None and sending.client is self._innermost()

    def _talk(self, messages: Sequence[LLMMessage]) -> Conversation | None:
        """The conversation that a request belongs to; None in ``observe`` mode."""
        if self._session.mode == "observe":
            return None
        return self._session.attempt("conversation", lambda: self.member.talk(messages), None)

    def _named(self, given: Request) -> str:
        """The id of the conversation that a request belongs to."""
        return self.member.conversation if given.talk is None else given.talk.id

    async def _summarise(self, given: Request) -> Holds | None:
        """If a compaction is due and uses a model, ask for its summary (a paid call) before the layout.

        Gives what the request's history holds; None where no summary is ever asked for.
        """
        session, rules = self._session, self._session.histories.compaction
        if rules is None or rules.summarise != "fork" or session.mode == "observe" or given.talk is None:
            return None

        native = self._innermost()

        def behind(asked: Answered | Request) -> Ask | None:
            api = api_of(native)
            if api is None:
                return None
            return session.side_forks.asummary(
                body=asked.body if isinstance(asked, Answered) else body_beside(native, api, asked),
                api=api,
                send=sender(native, api),
                conversation=self._named(given),
                scope=self.member.options.scope,
            )

        try:
            return await self.member.summarise(self.client, given, behind)
        except Exception as error:
            session.failed("summary", error)
            return None

    def _layout(
        self, given: Request, method: Callable[..., Any]
    ) -> tuple[Layout | None, RequestPlan[LLMMessage] | None]:
        """How a request is laid out, and why; raises ``NotSharedError`` in strict mode."""
        session = self._session
        if session.mode == "observe":
            return None, None
        over: list[BudgetError] = []

        def layout() -> Planned:
            try:
                covered = overlaid(put_over(self._innermost(), given))
                if covered:
                    return self.member.left_as_it_is(self.client, given, covered[0])
                made, plan = self.member.layout(self.client, given)
            except BudgetError as error:
                over.append(error)
                return None, unplanned("request budget")
            changed = made is not None and made.restriction.tool_choice != given.tool_choice
            # An older client of the application's may not know the argument ``tool_choice``.
            return (None, unplanned("tool_choice")) if changed and not _takes_tool_choice(method) else (made, plan)

        otherwise: Planned = (None, unplanned("layout"))
        found = session.attempt("layout", layout, otherwise)
        if over:
            raise over[0]
        return found

    def _sending(self, attempt: _Attempt) -> Sending:
        """One request of an attempt, on its way through the client."""
        session, options, native = self._session, self.member.options, self._innermost()
        given = attempt.given
        sending = Sending(
            session,
            native,
            agent=self.role,
            conversation=self._named(given),
            layout=attempt.layout,
            plan=attempt.plan,
            scope=options.scope,
            rewrite=session.mode != "observe",
            once=self.member.once or self.member.known,
            holds=attempt.holds,
            anew=attempt.anew,
        )
        if attempt.refused:
            # Money: the application would not have asked a second time.
            sending.original = unasked
        elif session.mode != "observe":

            def original(_: Prompt) -> Prompt | None:
                try:
                    api, body = body_of(native, given, self.member.forms, self.member.tools)
                except ValueError:
                    # AutoGen's client refuses this (a memory's system message on Anthropic): nothing to compare with.
                    return None
                return session.decode(body, api)

            # Savings are measured against the application's request, without our marks and our repeated tools.
            sending.original = original
        if session.attempt("tap", lambda: tap(native), otherwise=False):
            sending.volatile, sending.volatile_role = given.volatile, options.volatile_role
        else:
            session.attempt("observe", lambda: self._untapped(given, sending), None)
            sending.undone = sending.pending is None or sending.pending.seen is None
        return sending

    def _untapped(self, given: Request, sending: Sending) -> None:
        """Record a request of a client whose SDK cannot be watched, as far as it is known here."""
        messages, options = _arguments(given, sending)
        known = Request(messages, options.get("tools", ()), json_output=given.json_output)
        api, body = body_of(self._innermost(), known)
        sending.api = api
        talk = sending.conversation
        asked = CallRequest(
            body, api, agent=self.role, conversation=talk, original=sending.original, scope=sending.scope, rewrite=False
        )
        sending.pending = self._session.begin(asked if sending.plan is None else asked.laid_out(sending.plan))

    def _asked(self, method: Callable[..., Any], given: Request, sending: Sending) -> Any:
        """Call the wrapped client with the laid-out request; with the application's own where that was undone."""
        # AutoGen's client for Anthropic repeats its newest request's tools, which may have been our union.
        ours = sending.layout is not None and not sending.undone and sending.layout.restriction.tools
        if self._session.mode != "observe" and not ours and not given.tools and self.member.tools:
            self._session.attempt("tools", lambda: restore_tools(self._innermost(), self.member.tools), None)
        messages, options = _arguments(given, sending)
        sending.words = _words(messages, sending.plan)
        return method(messages, **options)

    def _innermost(self) -> ChatCompletionClient:
        """AutoGen's own client, inside all wrappers of the application's."""
        found: Any = self.client
        while not hasattr(found, "_client") and isinstance(getattr(found, "client", None), ChatCompletionClient):
            found = found.client
        return found  # type: ignore[no-any-return]

    def _accounted(self, result: CreateResult, sending: Sending) -> CreateResult:
        """The answer with the whole input in its usage, and that usage added to the client's."""
        if sending.pending is not None and sending.usage is None:
            # Without an SDK to watch only AutoGen's counts are known: the whole input, and nothing about the cache.
            own = result.usage
            said = {"prompt_tokens": own.prompt_tokens, "completion_tokens": own.completion_tokens}
            if result.cached and self._innermost() is not self.client:
                # Money: a store of answers had this one, and no provider was asked. A replay says so of all of its own.
                sending.pending.fail(sent=False)
            else:
                sending.pending.finish(said if own.prompt_tokens and not result.cached else None)
        if sending.pending is None and sending.missed:
            self._session.note(
                f"{type(self.client).__name__} changes its agents' system texts: their requests go out as it makes "
                "them, without volatile text, marks and a place in the report. Change these texts in the agents"
            )
        if sending.sent is not None and sending.holds is not None:
            self.member.answered.keep(sending.holds, sending.sent)
        usage = sending.usage
        if usage is None or usage.input_tokens is None or result.cached:
            return result
        written = result.usage.completion_tokens or usage.output_tokens or 0
        self.last_usage = CachedUsage(usage.input_tokens, written, usage.cache_read_tokens, usage.cache_write_tokens)
        counted = RequestUsage(usage.input_tokens, written)
        # Anthropic counts cached input apart, so AutoGen's count lacks it; an unmarked request has none.
        if self._session.mode == "observe" or sending.undone or sending.api != "anthropic":
            return result
        self._added = RequestUsage(
            self._added.prompt_tokens + counted.prompt_tokens - result.usage.prompt_tokens,
            self._added.completion_tokens + counted.completion_tokens - result.usage.completion_tokens,
        )
        return result.model_copy(update={"usage": counted})

    async def close(self) -> None:
        """Close the wrapped client."""
        await self.client.close()

    def actual_usage(self) -> RequestUsage:
        """The wrapped client's, with the input it leaves out."""
        return _sum(self.client.actual_usage(), self._added)

    def total_usage(self) -> RequestUsage:
        """The wrapped client's, with the input it leaves out."""
        return _sum(self.client.total_usage(), self._added)

    def count_tokens(self, messages: Sequence[LLMMessage], *, tools: Sequence[Tool | ToolSchema] = ()) -> int:
        """Tokens of the application's own request, by the wrapped client."""
        return self.client.count_tokens(messages, tools=tools)

    def remaining_tokens(self, messages: Sequence[LLMMessage], *, tools: Sequence[Tool | ToolSchema] = ()) -> int:
        """Room that the application's own request leaves, by the wrapped client."""
        return self.client.remaining_tokens(messages, tools=tools)

    @property
    def capabilities(self) -> Any:
        """The wrapped client's."""
        return self.client.capabilities

    @property
    def model_info(self) -> ModelInfo:
        """The wrapped client's."""
        return self.client.model_info

    def __getattr__(self, name: str) -> Any:
        if name in ("client", "_session", "member") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.client, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the wrapped client with the session's settings; copying (``__copy__``) keeps the session itself."""
        return _unpickled, (self.client, self.role, self.member.settings())

    def __copy__(self) -> Self:
        return self._like(self.client)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = memo[id(self)] = self._like(copy.deepcopy(self.client, memo))
        return made

    def _like(self, client: ChatCompletionClient) -> Self:
        """One around another client, by itself, with the same options."""
        made = type(self)(client, self.session, role=self.role)
        # Privacy: its tenant's, as this one is.
        made.member.options = self.member.options
        return made

    def dump_component(self) -> ComponentModel:
        """The configuration; of a client that ``wrap`` put in place, the wrapped one's, as the application made it."""
        return self.client.dump_component() if self._bound else super().dump_component()

    def _to_config(self) -> PrefixClientConfig:
        return PrefixClientConfig(client=self.client.dump_component(), role=self.role, prefix=self.member.settings())

    @classmethod
    def _from_config(cls, config: PrefixClientConfig) -> Self:
        return cls(
            ChatCompletionClient.load_component(config.client),
            users_session(session_of_settings(config.prefix)),
            role=config.role,
        )


def _check_client(client: Any) -> None:
    """Raise ``SetupError`` for what is no model client, and for one that lays its requests out already."""
    if not isinstance(client, ChatCompletionClient):
        raise SetupError(
            f"PrefixClient takes an AutoGen model client, {found_instead(client)}; give the ChatCompletionClient "
            "around it"
        )
    # Money: laid out twice, the report would count the inner layout as the application's own.
    if isinstance(client, PrefixClient):
        raise SetupError("the client is a PrefixClient already; use it as it is, or give PrefixClient its .client")


def note_moved(client: Any, session: AdapterSession, agent: str) -> None:
    """Tell both sessions where an agent that asked in one by a ``PrefixClient`` is wrapped with another one."""
    if not isinstance(client, PrefixClient) or client._bound or client._session is session:
        return
    said = f"agent {agent!r} has a PrefixClient of another session than it is wrapped with"
    client._session.note(f"{said}: its requests are in no report of this one")
    session.warn_once(f"moved {agent}", f"{said}: its requests are in the report of that one alone")


def unwrapped(client: Any) -> Any:
    """The client inside all ``PrefixClient``s around it, which would lay a request out twice."""
    while isinstance(client, PrefixClient):
        client = client.client
    return client


def _arguments(given: Request, sending: Sending) -> tuple[Sequence[LLMMessage], dict[str, Any]]:
    """Messages and options for the wrapped client: as they came, except for what the layout changes."""
    messages, tools, options = given.messages, given.tools, dict(given.options)
    if sending.layout is not None and not sending.undone:
        messages, restriction = sending.layout.messages, sending.layout.restriction
        tools = restriction.tools
        if restriction.tool_choice != given.tool_choice:
            options["tool_choice"] = restriction.tool_choice
    if given.volatile and not sending.volatile:
        # Without an SDK to watch the volatile text cannot be added to the body: it becomes the last message.
        messages = [*messages, UserMessage(content=given.volatile, source=SENDER)]
    return messages, _as_given(tools, options)


def _words(messages: Sequence[LLMMessage], plan: RequestPlan[LLMMessage] | None) -> tuple[str, ...]:
    """A request's system texts and, where it stands by itself, the role's: by these it is known on the wire."""
    said = [str(one.content) for one in takewhile(lambda one: isinstance(one, SystemMessage), messages)]
    if plan is not None and any(one.content == plan.text for one in messages):
        said.append(plan.text)
    return tuple(filter(None, map(str.strip, said)))


def _as_given(tools: Sequence[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, with the tools where there are any, or where none were given on purpose."""
    return dict(options) if tools == () else {"tools": tools, **options}


def _takes_tool_choice(method: Callable[..., Any]) -> bool:
    """Whether a client's method knows this argument."""
    parameters = inspect.signature(method).parameters.values()
    return any(one.name == "tool_choice" or one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)


def _unpickled(client: ChatCompletionClient, role: str, settings: PrefixSettings) -> PrefixClient:
    return PrefixClient(client, users_session(session_of_settings(settings)), role=role)


async def _within(sending: Sending, ask: Callable[[], AsyncGenerator[Any, None]]) -> AsyncGenerator[Any, None]:
    """Iterate with ``SENDING`` set only while the wrapped client runs; where the request is undone, ask again."""
    while True:
        async with ending(aiter(ask())) as stream:
            while True:
                token = SENDING.set(sending)
                try:
                    piece = await stream.__anext__()
                except StopAsyncIteration:
                    return
                except Undone:
                    break
                except BaseException:
                    sending.failed()
                    raise
                finally:
                    SENDING.reset(token)
                yield piece


def _sum(first: RequestUsage, second: RequestUsage) -> RequestUsage:
    return RequestUsage(first.prompt_tokens + second.prompt_tokens, first.completion_tokens + second.completion_tokens)
