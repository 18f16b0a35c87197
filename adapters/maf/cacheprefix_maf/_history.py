"""The history in one form for all roles, and what the core decides on it, carried out on the framework's messages.

The framework shows an agent its own tool traffic of earlier turns and hides it from the others, and several
clients leave out who spoke. Here the speaker stands in the text, and tool traffic ends with its turn.
"""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_framework import Content, Message

from cacheprefix import Conversation, Session
from cacheprefix.context import (
    Count,
    Decision,
    Drop,
    DropCall,
    DropResult,
    DropThinking,
    Insert,
    MessageView,
    ReplaceResult,
    make_call,
    make_message,
    make_result,
)
from cacheprefix_maf._member import ToolMemory

_MEDIA = ("data", "uri", "hosted_file", "hosted_vector_store")
_APPROVALS = ("function_approval_request", "function_approval_response")


@dataclass(frozen=True, slots=True)
class History:
    """``shared`` is the same for all roles; ``beside`` were system texts; ``local`` is the turn under way."""

    beside: tuple[str, ...]
    shared: list[Message]
    local: list[Message]


def history_of(messages: Sequence[Message], name: str, memory: ToolMemory) -> History:
    """An agent's messages, split and in canonical form; a pure function of them."""
    lead = 0
    while lead < len(messages) and messages[lead].role == "system":
        lead += 1
    rest = messages[lead:]
    start = _turn_start(rest, name)
    shared: list[Message] = []
    private: list[Message] = []
    own_calls: set[str | None] = set()
    for message in rest[:start]:
        if message.role == "assistant":
            shared += _spoken(message)
            if calls := [content for content in message.contents if content.type == "function_call"]:
                own = message.author_name == name and bool(name)
                own_calls |= {call.call_id for call in calls} if own else set()
                (private if own else shared).append(_with(message, calls))
        elif message.role == "tool":
            mine = [content for content in message.contents if content.call_id in own_calls]
            private += [_with(message, mine)] if mine else []
            if len(mine) < len(message.contents):
                others = [content for content in message.contents if content.call_id not in own_calls]
                shared.append(_with(message, others) if mine else message)
        else:
            shared.append(message)
    kept = private if memory == "private" else []
    return History(tuple(message.text for message in messages[:lead]), shared, [*kept, *rest[start:]])


def own_history(messages: Sequence[Message], name: str, *, lead: bool = True) -> History:
    """An agent's messages as they are, for a history that nobody else has; ``lead`` takes system texts out of it."""
    start = 0
    while lead and start < len(messages) and messages[start].role == "system":
        start += 1
    beside = tuple(message.text for message in messages[:start])
    return History(beside, [], [_nameless(message, name) for message in messages[start:]])


def _turn_start(messages: Sequence[Message], name: str) -> int:
    """Where the tool loop under way begins: nothing of it has been said to anyone."""
    at = len(messages)
    while at:
        message = messages[at - 1]
        asks = any(content.type == "function_call" for content in message.contents)
        own = message.role == "assistant" and asks and message.author_name in (None, name)
        if not own and message.role != "tool" and not any(one.type in _APPROVALS for one in message.contents):
            break
        at -= 1
    while at < len(messages) and messages[at].role == "tool":
        at += 1
    return at


def _spoken(message: Message) -> list[Message]:
    texts = [content.text for content in message.contents if content.type == "text" and content.text]
    text = "\n".join(texts)
    return [Message("user", [f"[{message.author_name or 'assistant'}]\n{text}"])] if texts else []


def _nameless(message: Message, name: str) -> Message:
    """An agent's own message as it was in its tool loop: the framework names the author only when the turn is over."""
    if message.role != "assistant" or message.author_name != name:
        return message
    twin = copy.copy(message)
    twin.author_name = None
    return twin


def _with(message: Message, contents: Sequence[Content]) -> Message:
    if len(contents) == len(message.contents):
        return message
    twin = copy.copy(message)
    twin.contents = list(contents)
    return twin


def condensed(
    session: Session, conversation: Conversation, history: History, model: str, static_tokens: int
) -> History:
    """The history with large results cut once and, where that is due and pays, compacted.

    Whatever was not decided on stays the same object. Raises ``BudgetError`` where the session's request budget
    cannot be met.
    """
    if not session.decides(conversation):
        return history
    messages, own = [*history.shared, *history.local], len(history.shared)
    none: list[MessageView] = []
    views = session.attempt("views", lambda: views_of(messages, session.counter(model)), none)
    decisions = session.condense(conversation, views, model, static_tokens=static_tokens) if views else ()
    if not decisions:
        return history
    by_index: dict[int, list[Decision]] = defaultdict(list)
    for decision in decisions:
        by_index[decision.index].append(decision)
    shared: list[Message] = []
    local: list[Message] = []
    for index in range(len(messages) + 1):
        # What is inserted before the turn's first message still stands in the shared part.
        (shared if index <= own > 0 else local).extend(
            Message("user", [one.text]) for one in by_index[index] if isinstance(one, Insert)
        )
        if index < len(messages):
            done = _decided(messages[index], [one for one in by_index[index] if not isinstance(one, Insert)])
            (shared if index < own else local).extend(done)
    return History(history.beside, shared, local)


def _decided(message: Message, decisions: Sequence[Decision]) -> list[Message]:
    """A message after its decisions: itself, a changed copy, or nothing."""
    if not decisions:
        return [message]
    if any(isinstance(decision, Drop) for decision in decisions):
        return []
    replaced = {one.part: one for one in decisions if isinstance(one, ReplaceResult)}
    gone = {one.part for one in decisions if isinstance(one, (DropResult, DropThinking))}
    calls = {one.call_id for one in decisions if isinstance(one, DropCall)}
    contents = [
        _replaced(content, replaced[part]) if part in replaced else content
        for part, content in enumerate(message.contents)
        if part not in gone and not (content.type == "function_call" and content.call_id in calls)
    ]
    twin = copy.copy(message)
    twin.contents = contents
    return [twin] if contents else []


def _replaced(content: Content, decision: ReplaceResult) -> Content:
    media = [item for item in content.items or () if item.type != "text"] if decision.keep_media else []
    result = [Content.from_text(decision.text), *media]
    return Content.from_function_result(
        content.call_id or "", id=content.id, result=result, exception=content.exception
    )


def views_of(messages: Sequence[Message], count: Count) -> list[MessageView]:
    """Light views of messages; results and reasoning count their place in the contents as their part."""
    names = {one.call_id: one.name for message in messages for one in message.contents if one.type == "function_call"}
    return [_view(message, names, count) for message in messages]


def _view(message: Message, names: Mapping[Any, Any], count: Count) -> MessageView:
    parts = list(enumerate(message.contents))
    texts = [one.text or "" for _, one in parts if one.type == "text"]
    calls = [
        make_call(one.call_id or "", one.name or "", _arguments(one), count)
        for _, one in parts
        if one.type == "function_call"
    ]
    results = [
        make_result(
            one.call_id or "",
            str(names.get(one.call_id) or ""),
            _result_text(one),
            count,
            is_error=True if one.exception else None,
            media=[str(item.uri) for item in one.items or () if item.type in _MEDIA],
            part=part,
        )
        for part, one in parts
        if one.type == "function_result"
    ]
    media = [str(one.uri or one.file_id) for _, one in parts if one.type in _MEDIA]
    thinking = [(part, one.text or "") for part, one in parts if one.type == "text_reasoning"]
    spoken = message.role == "user" and bool(texts) and _speaker(texts[0])
    role: Any = message.role if message.role in ("system", "user", "tool") and not spoken else "assistant"
    return make_message(role, texts, count, calls=calls, results=results, thinking=thinking, media=media)


def _speaker(text: str) -> bool:
    # A canonical message is sent as a user's; for what may be dropped, it is an agent's.
    first, line, _ = text.partition("\n")
    return bool(line) and first.startswith("[") and first.endswith("]")


def _result_text(content: Content) -> str:
    items = content.items
    if items:
        return "\n".join(item.text or "" for item in items if item.type == "text")
    return "" if content.result is None else str(content.result)


def _arguments(content: Content) -> str:
    given = content.arguments
    return given if isinstance(given, str) else json.dumps(given or {})
