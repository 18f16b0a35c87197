"""What the core decides on a history (large results, compaction), carried out on AutoGen's own messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResultMessage,
    LLMMessage,
    SystemMessage,
    UserMessage,
)

from cacheprefix import Conversation, Session
from cacheprefix.errors import BudgetError
from cacheprefix.history import SummaryRequest
from cacheprefix.prompt import (
    Decision,
    Drop,
    DropCall,
    DropResult,
    Insert,
    MessageView,
    ReplaceResult,
    make_call,
    make_message,
    make_result,
)
from cacheprefix_autogen.memory_of_messages import Seen
from cacheprefix_autogen.public_messages import SENDER, Shorten, speaker_of

if TYPE_CHECKING:
    from cacheprefix_autogen.transcript import Transcript


Ask = Callable[[SummaryRequest], Awaitable[str]]
"""Asks a model for a summary."""


def shortener(session: Session, transcript: Transcript, scope: str | None = None) -> Shorten:
    """What stands in the public transcript for one tool's result."""

    def shorten(tool: str, text: str) -> str:
        conversation = session.conversation(transcript.id, scope=scope)
        view = make_message("tool", (), session.count, results=(make_result("", tool, text, session.count),))
        decisions = session.shorten(conversation, (view,))
        return decisions[0].text if decisions else text

    return shorten


def condensed(
    session: Session,
    conversation: Conversation,
    messages: Sequence[LLMMessage],
    model: str,
    *,
    first_own: int = 0,
    seen: Seen[MessageView] | None = None,
    beside: str = "",
) -> tuple[list[LLMMessage], int]:
    """The messages with the core's decisions carried out, and where the first of the turn's own stands now.

    Large tool results are cut once; where the session compacts, old messages are dropped or summed up. Whatever
    was not decided on stays the same object. ``first_own`` is the index of the turn's first own message, ``seen``
    remembers views by the same counter, ``beside`` is what this request has of its own beside them. Raises
    ``BudgetError`` where the session's request budget cannot be met.
    """
    if not session.decides(conversation):
        return list(messages), first_own
    views, static = _views(session, messages, model, Seen() if seen is None else seen)
    own = session.count(beside, model) if beside else 0
    decisions = session.condense(conversation, views, model, static_tokens=static, own_tokens=own)
    if not decisions:
        return list(messages), first_own
    by_index: dict[int, list[Decision]] = defaultdict(list)
    for decision in decisions:
        by_index[decision.index].append(decision)
    out: list[LLMMessage] = []
    own = 0
    for index in range(len(messages) + 1):
        if index == first_own:
            own = len(out) + sum(isinstance(decision, Insert) for decision in by_index[index])
        out += [UserMessage(content=d.text, source=SENDER) for d in by_index[index] if isinstance(d, Insert)]
        if index < len(messages):
            out += _decided(messages[index], [d for d in by_index[index] if not isinstance(d, Insert)])
    return out, own


async def summarised(
    session: Session,
    conversation: Conversation,
    messages: Sequence[LLMMessage],
    model: str,
    seen: Seen[MessageView],
    ask: Ask,
    beside: str = "",
) -> None:
    """Where a compaction is due, let a fork write its summary; ``condensed`` carries out what is recorded here."""
    made = session.attempt("views", lambda: _views(session, messages, model, seen), None)
    if made is not None:
        with suppress(BudgetError):  # raised again where the request is laid out
            own = session.count(beside, model) if beside else 0
            await session.acondense(conversation, made[0], model, static_tokens=made[1], own_tokens=own, ask=ask)


def _views(
    session: Session, messages: Sequence[LLMMessage], model: str, seen: Seen[MessageView]
) -> tuple[list[MessageView], int]:
    """Views of the messages, and the tokens of what stands before them."""

    def count(text: str) -> int:
        return session.count(text, model)

    static = count(session.prefix.text) + sum(count(tool.schema.decode()) for tool in session.prefix.tools)
    return [seen.of(message, lambda message: view_of(message, count)) for message in messages], static


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
    """A light view of one of AutoGen's messages; results count their place in the message as their part."""
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
    if isinstance(message.content, str):
        # An agent's public message is sent as a user's; for what may be dropped, it is an agent's.
        agent = speaker_of(message) not in (None, SENDER)
        return make_message("assistant" if agent else "user", (message.content,), count)
    texts = [part for part in message.content if isinstance(part, str)]
    media = [part.to_base64() for part in message.content if not isinstance(part, str)]
    return make_message("user", texts, count, media=media)
