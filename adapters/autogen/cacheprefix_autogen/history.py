"""Carries out the core's decisions on a history (large results, compaction) on AutoGen's messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResultMessage,
    LLMMessage,
    SystemMessage,
    UserMessage,
)

from cacheprefix import Conversation
from cacheprefix.adapter import (
    AdapterSession,
    Bounded,
    Cutting,
    Decision,
    Drop,
    DropCall,
    DropResult,
    Insert,
    MessageView,
    ReplaceResult,
    RestOfRequest,
    SummaryRequest,
    dumps,
    make_call,
    make_message,
    make_result,
    replay,
)
from cacheprefix.errors import BudgetError
from cacheprefix_autogen.messages import SENDER, Seen, durable, durable_in, speaker_of
from cacheprefix_autogen.provider_clients import schema_of

_TOOLS = 1_000
Ask = Callable[[SummaryRequest], Awaitable[str]]
"""Asks a model for a summary, with a request of its own."""


class Views:
    """The core's views of AutoGen's messages, with one model's token counts; each message is counted once."""

    def __init__(self, session: AdapterSession, model: str) -> None:
        self.session = session
        self.model = model
        self._seen: Seen[MessageView] = Seen()
        self._schemas: Bounded[int, tuple[Any, int]] = Bounded(_TOOLS)
        """Tools and their tokens, by the tool's identity."""

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return self.session.count(text, self.model)

    def of(self, message: LLMMessage) -> MessageView:
        """The view of a message."""
        return self._seen.of(message, lambda new: view_of(new, self.count))

    def history(self, messages: Sequence[LLMMessage]) -> list[MessageView]:
        """The views of all messages; the newest one said by user or agent is pinned, so no compaction drops it."""
        found = [self.of(message) for message in messages]
        said = [at for at, one in enumerate(messages) if isinstance(one, UserMessage) and _is_said(one)]
        if said:
            found[said[-1]] = replace(found[said[-1]], pinned=True)
        return found

    def tokens(self, messages: Sequence[LLMMessage], tools: Sequence[Any]) -> int:
        """Tokens of a request: its messages and tools."""
        return sum(self.of(message).tokens for message in messages) + sum(map(self._schema_tokens, tools))

    def _schema_tokens(self, tool: Any) -> int:
        """Tokens of a tool's schema, counted once."""
        known = self._schemas.get(id(tool))
        if known is None or known[0] is not tool:
            known = self._schemas[id(tool)] = tool, self.count(dumps(dict(schema_of(tool)), "tool").decode())
        return known[1]

    def static_tokens(self, conversation: Conversation, own: Collection[str] | None = None) -> int:
        """Tokens of what stands before all messages of a conversation: the shared text and tools.

        ``own`` are the names of the agent's tools, as far as the request has any.
        """
        session = self.session
        tools = session.reachable(conversation, own or ())
        return self.count(session.prefix.text) + sum(self.count(tool.schema.decode()) for tool in tools)

    def own_tokens(self, beside: str) -> int:
        """Tokens of ``beside``, the text that a request has beside its messages."""
        return self.count(beside) if beside else 0


@dataclass(frozen=True, slots=True)
class Condensed:
    """A history with the core's decisions carried out."""

    messages: list[LLMMessage]
    first_own: int
    """The new index of the first message that is not public."""
    origins: list[int]
    """For each message its index before the decisions; for an inserted one, the index of the message behind it."""
    put_in: frozenset[int] = frozenset()
    """Indexes of the inserted messages."""


def condensed(
    views: Views,
    conversation: Conversation,
    messages: Sequence[LLMMessage],
    *,
    first_own: int = 0,
    beside: str = "",
    tools: Collection[str] | None = None,
    declared: Sequence[Any] = (),
    zones: bool = True,
) -> Condensed:
    """The messages with the core's decisions carried out.

    Large tool results are cut once; where the session compacts, old messages are dropped or summed up. A message
    without a decision stays the same object. ``first_own`` is the index of the agent's first own message, ``beside``
    this request's text outside of the messages, ``tools`` the names of the agent's tools, ``declared`` those that the
    request has. ``zones`` is False where the conversation's zones are said elsewhere. Raises ``BudgetError`` where the
    session's request budget cannot be met.
    """
    session = views.session
    zones = zones and session.mode != "observe" and bool(conversation.state.zones)
    if not zones and not session.histories.decides(conversation):
        return Condensed(list(messages), first_own, list(range(len(messages))))
    found, epoch = views.history(messages), conversation.ledger.epoch
    moves = zones and conversation.zones_wait(found)
    static = views.static_tokens(conversation, tools)
    own = _schemas(declared)
    rest = RestOfRequest(static, views.own_tokens(beside), front_moves=moves, tools=tools, declared=own)
    decisions = session.histories.condense(conversation, found, views.model, rest=rest)
    if zones and conversation.show_zones(found, rewritten=conversation.ledger.epoch > epoch):
        decisions = session.histories.condense(conversation, found, views.model, rest=rest)
    return _carried_out(messages, decisions, first_own)


def as_decided(
    views: Views, conversation: Conversation, messages: Sequence[LLMMessage], tools: Collection[str] | None = None
) -> list[LLMMessage]:
    """The messages with what was decided on them so far carried out, and nothing decided anew; ``tools`` as above."""
    histories = views.session.histories
    how = Cutting(views.count, histories.results, conversation.scope, readable=histories.readable(tools))
    found = replay(views.history(messages), conversation.ledger, histories.budget, how)
    return _carried_out(messages, found.decisions, len(messages)).messages


def _carried_out(messages: Sequence[LLMMessage], decisions: Sequence[Decision], first_own: int) -> Condensed:
    """The messages with decisions carried out; one without a decision stays the same object."""
    if not decisions:
        return Condensed(list(messages), first_own, list(range(len(messages))))
    by_index: dict[int, list[Decision]] = defaultdict(list)
    for decision in decisions:
        by_index[decision.index].append(decision)
    out: list[LLMMessage] = []
    origins: list[int] = []
    put_in: set[int] = set()
    own_start = 0
    for index in range(len(messages) + 1):
        if index == first_own:
            own_start = len(out) + sum(isinstance(decision, Insert) for decision in by_index[index])
        out += [_inserted(d) for d in by_index[index] if isinstance(d, Insert)]
        put_in |= {*range(len(origins), len(out))}  # what was inserted just now: the rest of ``out`` has its origin
        if index < len(messages):
            out += _decided(messages[index], [d for d in by_index[index] if not isinstance(d, Insert)])
        origins += [index] * (len(out) - len(origins))
    return Condensed(out, own_start, origins, frozenset(put_in))


async def summarised(
    views: Views,
    conversation: Conversation,
    messages: Sequence[LLMMessage],
    ask: Ask,
    beside: str,
    tools: Collection[str] | None = None,
    declared: Sequence[Any] = (),
) -> None:
    """If a compaction is due, have a fork write its summary (a paid call); ``condensed`` carries it out later."""
    session = views.session
    made = session.attempt("views", lambda: (views.history(messages), views.static_tokens(conversation, tools)), None)
    if made is not None:
        found, static = made
        with suppress(BudgetError):  # raised again where the request is laid out
            rest = RestOfRequest(static, views.own_tokens(beside), tools=tools, declared=_schemas(declared))
            await session.histories.acondense(conversation, found, views.model, rest=rest, ask=ask)


def _schemas(tools: Sequence[Any]) -> list[dict[str, Any]]:
    """Tools as a request declares them."""
    return [dict(schema_of(tool)) for tool in tools]


def _is_said(message: UserMessage) -> bool:
    """Whether the user or an agent said it, and not this adapter."""
    return message.source != SENDER or speaker_of(message) is not None


def _inserted(new: Insert) -> UserMessage:
    """A message that a decision puts into the history."""
    if new.key is None or new.key.startswith("~"):  # the application's zones, which name themselves
        return UserMessage(content=new.text, source=SENDER)
    return durable(new.key, new.text)


def _decided(message: LLMMessage, decisions: Sequence[Decision]) -> list[LLMMessage]:
    """A message after its decisions: itself, a changed copy, or nothing."""
    if not decisions:
        return [message]
    if any(isinstance(decision, Drop) for decision in decisions):
        return []
    if isinstance(message, FunctionExecutionResultMessage):
        texts = {d.part: d.text for d in decisions if isinstance(d, ReplaceResult)}
        gone = {d.part for d in decisions if isinstance(d, DropResult)}
        results = [
            result.model_copy(update={"content": texts[part]}) if part in texts else result
            for part, result in enumerate(message.content)
            if part not in gone
        ]
        return [message.model_copy(update={"content": results})] if results else []
    if isinstance(message, AssistantMessage) and isinstance(message.content, list):
        dropped = {d.call_id for d in decisions if isinstance(d, DropCall)}
        calls = [call for call in message.content if call.id not in dropped]
        return [message.model_copy(update={"content": calls})] if calls else []
    return [message]


def view_of(message: LLMMessage, count: Callable[[str], int]) -> MessageView:
    """The core's view of one of AutoGen's messages; a result's ``part`` is its index in the message."""
    if isinstance(message, FunctionExecutionResultMessage):
        results = [
            make_result(result.call_id, result.name, result.content, count, is_error=result.is_error or None, part=part)
            for part, result in enumerate(message.content)
        ]
        return make_message("tool", (), count, results=results)
    if isinstance(message, AssistantMessage):
        if isinstance(message.content, str):
            return make_message("assistant", (message.content,), count)
        calls = [make_call(call.id, call.name, call.arguments, count) for call in message.content]
        return make_message("assistant", (message.thought or "",), count, calls=calls)
    if isinstance(message, SystemMessage):
        return make_message("system", (message.content,), count)
    return _user_view(message, count)


def _user_view(message: UserMessage, count: Callable[[str], int]) -> MessageView:
    """The view of a user's message, which may be durable context or what another agent said."""
    known = durable_in(message)
    if known is not None:
        return make_message("user", (known[1],), count, key=known[0])
    if isinstance(message.content, str):
        # An agent's public message is sent as a user's; for compaction, which may drop it, it counts as an agent's.
        agent = speaker_of(message) not in (None, SENDER)
        return make_message("assistant" if agent else "user", (message.content,), count)
    texts = [part for part in message.content if isinstance(part, str)]
    media = [part.to_base64() for part in message.content if not isinstance(part, str)]
    return make_message("user", texts, count, media=media)
