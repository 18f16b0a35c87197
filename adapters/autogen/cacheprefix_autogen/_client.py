"""``PrefixClient``: the application's model client, whose requests become forks of the shared prefix."""

from __future__ import annotations

import warnings
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from autogen_core import CancellationToken, Component, ComponentModel
from autogen_core.models import ChatCompletionClient, CreateResult, LLMMessage, ModelInfo, RequestUsage, UserMessage
from autogen_core.tools import Tool, ToolSchema
from pydantic import BaseModel
from typing_extensions import Self

from cacheprefix import Session
from cacheprefix.config import given_or_configured
from cacheprefix.errors import BudgetError
from cacheprefix.prefix import ForkPolicy
from cacheprefix.prompt import Api, Prompt
from cacheprefix_autogen._canonical import SENDER
from cacheprefix_autogen._layout import Layout, Request, after_refusal, refusal
from cacheprefix_autogen._member import Member
from cacheprefix_autogen._native import Forms, body_of, restore_tools, sender
from cacheprefix_autogen._settings import PrefixSettings, session_of_settings
from cacheprefix_autogen._tap import SENDING, Sending, Undone, tap

_ONE_SHOT = ForkPolicy(skip_cache_write=True, purpose="agent")
_LOOP = ForkPolicy(purpose="agent")


@dataclass
class CachedUsage(RequestUsage):
    """AutoGen's usage with what it drops. ``prompt_tokens`` is the whole input, whatever the provider counts.

    ``None`` means not reported.
    """

    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None


class PrefixClientConfig(BaseModel):
    """What a ``PrefixClient`` is built from; clients with the same ``prefix`` settings share a session."""

    client: ComponentModel
    role: str = ""
    prefix: PrefixSettings = PrefixSettings()


class PrefixClient(ChatCompletionClient, Component[PrefixClientConfig]):
    """Wraps any AutoGen model client. ``wrap`` makes one for every agent; by itself it works too.

    The agent's own system text becomes the end of the prompt, the conversation stands before it in one form
    for all agents, and the tools are the session's union. In ``observe`` mode, and whenever something of
    ours fails, the request is the application's own. ``RequestUsage`` of every answer becomes
    ``CachedUsage``. Use ``ChatCompletionCache(PrefixClient(...))`` in this order: a stored answer is no call.
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
        self.client = client
        self.session = given_or_configured(session)
        self.role = role
        self.member = member or Member(self.session, role)
        self.last_usage: CachedUsage | None = None
        self._added = RequestUsage(0, 0)
        self._forms = Forms()
        self._last: tuple[Api, Mapping[str, Any]] | None = None
        """The newest request that was answered, unmarked; a fork of it reads what it wrote."""

    async def create(
        self,
        messages: Sequence[LLMMessage],
        *,
        tools: Sequence[Tool | ToolSchema] = (),
        tool_choice: Any = "auto",
        json_output: bool | type[BaseModel] | None = None,
        extra_create_args: Mapping[str, Any] = {},
        cancellation_token: CancellationToken | None = None,
    ) -> CreateResult:
        """One answer. See the wrapped client for arguments and errors."""
        said = self.member.volatile_text()
        given = Request(messages, list(tools), tool_choice, json_output, extra_create_args, said)
        await self._summarise(given)
        layout, tries = self._layout(given), 0
        while True:
            sending = self._sending(given, layout)
            result = await self._create(given, layout, sending, cancellation_token)
            again = None if layout is None or sending.undone else refusal(layout, result, self.role)
            if layout is None or again is None or (tries and layout.permitted):
                return result
            layout, tries = after_refusal(layout, again, tries), tries + 1

    async def _create(
        self, given: Request, layout: Layout | None, sending: Sending, cancellation_token: CancellationToken | None
    ) -> CreateResult:
        token = SENDING.set(sending)
        try:
            ask = partial(self.client.create, cancellation_token=cancellation_token)
            result: CreateResult | None = None
            with suppress(Undone):
                result = await ask(**self._wanted(given, layout, sending))
            if result is None:
                result = await ask(**self._wanted(given, layout, sending))
        except BaseException:
            sending.failed()
            raise
        finally:
            SENDING.reset(token)
        return self._accounted(result, sending)

    async def create_stream(
        self,
        messages: Sequence[LLMMessage],
        *,
        tools: Sequence[Tool | ToolSchema] = (),
        tool_choice: Any = "auto",
        json_output: bool | type[BaseModel] | None = None,
        extra_create_args: Mapping[str, Any] = {},
        cancellation_token: CancellationToken | None = None,
        **more: Any,
    ) -> AsyncGenerator[str | CreateResult, None]:
        """One answer in pieces; the last is the whole result. ``more`` is passed on."""
        said = self.member.volatile_text()
        given = Request(messages, list(tools), tool_choice, json_output, extra_create_args, said)
        await self._summarise(given)
        layout, tries = self._layout(given), 0
        while True:
            sending = self._sending(given, layout)
            ask = partial(self.client.create_stream, cancellation_token=cancellation_token, **more)
            again = None
            async for piece in _within(sending, ask, partial(self._wanted, given, layout, sending)):
                if not isinstance(piece, CreateResult):
                    yield piece
                    continue
                result = self._accounted(piece, sending)
                again = None if layout is None or sending.undone else refusal(layout, result, self.role)
                if again is None or (tries and layout is not None and layout.permitted):
                    again = None
                    yield result
            if layout is None or again is None:
                return
            layout, tries = after_refusal(layout, again, tries), tries + 1

    async def _summarise(self, given: Request) -> None:
        """Before the layout, which does not wait: the summary that a compaction wants of a model."""
        session, last = self.session, self._last
        rules = session.compaction
        if rules is None or rules.summarise != "fork" or last is None or session.mode == "observe":
            return
        ask = session.asummary_by_fork(
            body=last[1],
            api=last[0],
            send=sender(self._innermost(), last[0]),
            conversation=self.member.conversation,
            scope=self.member.options.scope,
        )
        try:
            await self.member.summarise(self.client, given, ask)
        except Exception as error:
            session.attempt("summary", partial(_raise, error), None)

    def _layout(self, given: Request) -> Layout | None:
        session = self.session
        if session.mode == "observe":
            return None
        over: list[BudgetError] = []

        def layout() -> Layout | None:
            try:
                return self.member.layout(self.client, given)
            except BudgetError as error:
                over.append(error)
                return None

        found = session.attempt("layout", layout, None)
        if over:
            raise over[0]
        return found

    def _sending(self, given: Request, layout: Layout | None) -> Sending:
        session = self.session
        member, options = self.member, self.member.options
        sending = Sending(session, agent=self.role, conversation=member.conversation, scope=options.scope)
        if session.attempt("tap", lambda: tap(self._innermost()), otherwise=False):
            sending.volatile, sending.volatile_role = given.volatile, options.volatile_role
        else:
            session.attempt("observe", lambda: self._untapped(given, layout, sending), None)
            sending.undone = sending.turn is None or sending.turn.seen is None
        if session.mode == "observe":
            return sending
        sending.rewrite = True
        if layout is None:
            return sending
        sending.shared_messages = layout.shared
        sending.allowed = layout.allowed
        sending.continues = layout.continues
        goes_on = layout.continues or (layout.tools and layout.permitted != ())
        sending.policy = _LOOP if goes_on else _ONE_SHOT

        def original(_: Prompt) -> Prompt:
            api, body = _body(self._innermost(), given, self._forms)
            return session.decode(body, api)

        sending.original = original
        return sending

    def _untapped(self, given: Request, layout: Layout | None, sending: Sending) -> None:
        """A client without an SDK that can be watched: note the request as far as it is known."""
        arguments = _arguments(given, layout, sending)
        api, body = body_of(
            self._innermost(), arguments["messages"], arguments["tools"], "auto", arguments["json_output"], {}
        )
        sending.api = api
        sending.turn = self.session.begin(
            body, api, agent=self.role, conversation=sending.conversation, scope=sending.scope, rewrite=False
        )

    def _wanted(self, given: Request, layout: Layout | None, sending: Sending) -> dict[str, Any]:
        """What to ask the wrapped client: the application's own request in the place of an undone one."""
        if sending.undone and not given.tools and self.member.tools:
            self.session.attempt("tools", lambda: restore_tools(self._innermost(), self.member.tools), None)
        return _arguments(given, layout, sending)

    def _innermost(self) -> ChatCompletionClient:
        found: Any = self.client
        while not hasattr(found, "_client") and isinstance(getattr(found, "client", None), ChatCompletionClient):
            found = found.client
        return found  # type: ignore[no-any-return]

    def _accounted(self, result: CreateResult, sending: Sending) -> CreateResult:
        if sending.turn is not None and sending.usage is None:
            sending.turn.finish(None)
        if sending.sent is not None:
            self._last = (sending.api, sending.sent)
        usage = sending.usage
        untouched = self.session.mode == "observe" or sending.undone
        if untouched or usage is None or usage.input_tokens is None or result.cached:
            return result
        counted = CachedUsage(
            usage.input_tokens,
            result.usage.completion_tokens or usage.output_tokens or 0,
            usage.cache_read_tokens,
            usage.cache_write_tokens,
        )
        self._added = RequestUsage(
            self._added.prompt_tokens + counted.prompt_tokens - result.usage.prompt_tokens,
            self._added.completion_tokens + counted.completion_tokens - result.usage.completion_tokens,
        )
        self.last_usage = counted
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return self.client.capabilities

    @property
    def model_info(self) -> ModelInfo:
        """The wrapped client's."""
        return self.client.model_info

    def __getattr__(self, name: str) -> Any:
        if name in ("client", "session", "member"):
            raise AttributeError(name)
        return getattr(self.client, name)

    def _to_config(self) -> PrefixClientConfig:
        return PrefixClientConfig(client=self.client.dump_component(), role=self.role, prefix=self.member.settings())

    @classmethod
    def _from_config(cls, config: PrefixClientConfig) -> Self:
        return cls(
            ChatCompletionClient.load_component(config.client),
            session_of_settings(config.prefix),
            role=config.role,
        )


def _arguments(given: Request, layout: Layout | None, sending: Sending) -> dict[str, Any]:
    messages, tools, choice, output, extra = (
        given.messages,
        given.tools,
        given.tool_choice,
        given.json_output,
        given.extra,
    )
    if layout is not None and not sending.undone:
        messages, tools, choice = layout.messages, layout.tools, layout.tool_choice
    if given.volatile and not sending.volatile:
        # Without an SDK to watch there is no later place than among the messages.
        messages = [*messages, UserMessage(content=given.volatile, source=SENDER)]
    return {
        "messages": messages,
        "tools": tools,
        "tool_choice": choice,
        "json_output": output,
        "extra_create_args": extra,
    }


def _original(given: Request) -> tuple[Any, ...]:
    return given.messages, given.tools, given.tool_choice, given.json_output, given.extra


def _body(client: ChatCompletionClient, given: Request, forms: Forms) -> tuple[Api, dict[str, Any]]:
    return body_of(
        client, given.messages, given.tools, given.tool_choice, given.json_output, given.extra, forms=forms
    )


async def _within(
    sending: Sending, ask: Callable[..., AsyncGenerator[Any, None]], wanted: Callable[[], dict[str, Any]]
) -> AsyncGenerator[Any, None]:
    """Iterate with the request in force only while the wrapped client runs; an undone one is asked anew."""
    stream = ask(**wanted())
    while True:
        token = SENDING.set(sending)
        try:
            piece = await stream.__anext__()
        except StopAsyncIteration:
            return
        except Undone:
            stream = ask(**wanted())
            continue
        except BaseException:
            sending.failed()
            raise
        finally:
            SENDING.reset(token)
        yield piece


def _raise(error: Exception) -> None:
    raise error


def _sum(first: RequestUsage, second: RequestUsage) -> RequestUsage:
    return RequestUsage(first.prompt_tokens + second.prompt_tokens, first.completion_tokens + second.completion_tokens)
