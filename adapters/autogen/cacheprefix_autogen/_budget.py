"""Tool results under the session's budget: decided once by the core, applied to AutoGen's own messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResultMessage,
    LLMMessage,
    SystemMessage,
    UserMessage,
)

from cacheprefix import Conversation, Session
from cacheprefix.context import MessageView, make_call, make_message, make_result
from cacheprefix_autogen._canonical import Shorten

if TYPE_CHECKING:
    from cacheprefix_autogen._transcript import Transcript


def shortener(session: Session, transcript: Transcript) -> Shorten:
    """What stands in the public transcript for one tool's result."""

    def shorten(tool: str, text: str) -> str:
        conversation = session.conversation(transcript.id)
        view = make_message("tool", (), session.count, results=(make_result("", tool, text, session.count),))
        decisions = session.shorten(conversation, (view,))
        return decisions[0].text if decisions else text

    return shorten


def shortened(
    session: Session, conversation: Conversation, messages: Sequence[LLMMessage], model: str
) -> list[LLMMessage]:
    """The messages with large tool results replaced; whatever was not decided on stays the same object."""
    if not any(isinstance(message, FunctionExecutionResultMessage) for message in messages):
        return list(messages)

    def count(text: str) -> int:
        return session.count(text, model)

    views = [view_of(message, count) for message in messages]
    changed: dict[int, dict[int, str]] = defaultdict(dict)
    for decision in session.shorten(conversation, views, model):
        changed[decision.index][decision.part] = decision.text
    return [_replaced(m, changed[i]) if i in changed else m for i, m in enumerate(messages)]


def _replaced(message: Any, texts: dict[int, str]) -> LLMMessage:
    content = [
        result.model_copy(update={"content": texts[part]}) if part in texts else result
        for part, result in enumerate(message.content)
    ]
    copied: LLMMessage = message.model_copy(update={"content": content})
    return copied


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
        return make_message("user", (message.content,), count)
    texts = [part for part in message.content if isinstance(part, str)]
    media = [part.to_base64() for part in message.content if not isinstance(part, str)]
    return make_message("user", texts, count, media=media)
