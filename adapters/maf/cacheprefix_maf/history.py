"""Gives a history the same form for all roles, and carries out what the core decides on it.

The framework shows an agent its own tool traffic of earlier turns and hides it from the others, and several
clients leave out who spoke. Here the speaker stands in the text, and an agent's own tool traffic behind its role's.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agent_framework import Content, Message

from cacheprefix import Conversation
from cacheprefix.adapter import AdapterSession, Api, Count, MessageView, condensed_body
from cacheprefix.wire import Form, views_of
from cacheprefix_maf.member import ToolMemory

_APPROVALS = ("function_approval_request", "function_approval_response")
_APART = frozenset({"text", "text_reasoning", "function_call", "usage", "error", "oauth_consent_request", *_APPROVALS})
"""Parts of an agent's message that are told apart: texts for all, calls with their thoughts; clients send no others of
these, but for approvals that a provider asks for."""
_SPEAKER = re.compile(r"\[[^\]\n]+\]\n")


@dataclass(frozen=True, slots=True)
class History:
    """A split history: ``beside`` system texts, ``shared`` messages equal for all roles, ``local`` the current turn."""

    beside: tuple[str, ...]
    shared: list[Message]
    local: list[Message]
    private: Sequence[tuple[int, Message]] = ()
    """The agent's own tool traffic of earlier turns, each message with how many shared ones stood before it."""

    def behind(self, at: int) -> list[Message]:
        """The messages that follow a role's text which stands behind ``at`` shared messages.

        Tool traffic older than that place comes first. The rest stands where it arose, so that the agent's requests
        only grow at their end as long as the text keeps its place.
        """
        found: list[Message] = []
        left = list(self.private)
        for index, message in enumerate(self.shared[at:], at):
            while left and left[0][0] <= index:
                found.append(left.pop(0)[1])
            found.append(message)
        return [*found, *(message for _, message in left), *self.local]


def history_of(messages: Sequence[Message], name: str, memory: ToolMemory, *, thoughts: bool = True) -> History:
    """Split an agent's messages and give them the form that all roles see; depends on nothing but the messages.

    ``thoughts`` False leaves out what the model thought before a call of an earlier turn.
    """
    lead = 0
    while lead < len(messages) and messages[lead].role == "system":
        lead += 1
    rest = messages[lead:]
    start = _turn_start(rest, name)
    shared: list[Message] = []
    private: list[tuple[int, Message]] = []
    own_calls: set[str | None] = set()
    before: list[Message] = []
    """Messages that hold nothing but what the model thought before the next one."""
    for message in rest[:start]:
        thought, before = before, []
        if message.role == "assistant" and _whole(message):
            # Equal information: an image, or the traffic of a tool that the provider runs, is not told in words.
            shared += [*thought, message]
        elif message.role == "assistant":
            shared += _spoken(message)
            kinds = ("function_call", "text_reasoning") if thoughts else ("function_call",)
            calls = [content for content in message.contents if content.type in kinds]
            if any(content.type == "function_call" for content in calls):
                own = message.author_name == name and bool(name)
                own_calls |= {call.call_id for call in calls if call.type == "function_call"} if own else set()
                # Provider's rule: a call of a reasoning model is taken with what it thought before it.
                said = [*thought, _with(message, calls)]
                if own:
                    private += [(len(shared), _nameless(one, name)) for one in said]
                else:
                    shared += said
            elif thoughts and thinks(message):
                before = [*thought, message]
        else:
            # Provider's rule: a result stands behind its call, whether in a tool's message or in one of the user's.
            mine = [one for one in message.contents if _answers(one, own_calls)]
            others = [one for one in message.contents if not _answers(one, own_calls)]
            private += [(len(shared), _with(message, mine))] if mine else []
            shared += [_with(message, others)] if others or not mine else []
    beside = tuple(message.text for message in messages[:lead])
    return History(beside, shared, list(rest[start:]), private if memory == "keep" else ())


def own_history(messages: Sequence[Message], name: str, *, lead: bool = True) -> History:
    """The messages of a history that no other agent has, all as ``local``; ``lead`` takes system texts out of them."""
    start = 0
    while lead and start < len(messages) and messages[start].role == "system":
        start += 1
    beside = tuple(message.text for message in messages[:start])
    return History(beside, [], [_nameless(message, name) for message in messages[start:]])


def _turn_start(messages: Sequence[Message], name: str) -> int:
    """The index at which the current tool loop begins: no other agent has seen it yet."""
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
    while 0 < at < len(messages) and thinks(messages[at - 1]):
        at -= 1
    return at


def thinks(message: Message) -> bool:
    """Whether a message holds nothing but what the model thought before the next one."""
    kinds = {content.type for content in message.contents}
    return message.role == "assistant" and kinds == {"text_reasoning"}


def _answers(content: Content, calls: Collection[str | None]) -> bool:
    """Whether it is the result of one of these calls."""
    return content.type == "function_result" and content.call_id in calls


def _spoken(message: Message) -> list[Message]:
    texts = [content.text for content in message.contents if content.type == "text" and content.text]
    text = "\n".join(texts)
    return [Message("user", [f"[{message.author_name or 'assistant'}]\n{text}"])] if texts else []


def _whole(message: Message) -> bool:
    """Whether an agent's message has parts that stay where the framework hands them on, as a message of its role."""
    return any(
        one.type not in _APART or (one.type in _APPROVALS and bool(getattr(one.function_call, "hosted", False)))
        for one in message.contents
    )


def _nameless(message: Message, name: str) -> Message:
    """An agent's own message without its author, as it was sent in its tool loop: the framework adds the name later."""
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
    session: AdapterSession,
    conversation: Conversation,
    body: dict[str, Any],
    api: Api,
    tail: str,
    said: Sequence[Message],
) -> Mapping[str, Any]:
    """``condensed_body`` for an agent's request; ``said`` are the application's own messages."""
    asked = next((one for one in reversed(said) if one.role == "user"), None)
    parts = len(asked.contents) if asked is not None and api == "openai-chat" else 1
    return condensed_body(session, conversation, body, api, tail, partial(_views, parts=parts))


def _views(messages: Sequence[Mapping[str, Any]], form: Form, count: Count, parts: int) -> list[MessageView]:
    """The core's views of the messages; the newest question is sent as ``parts`` messages."""
    views = views_of(messages, form, count)
    # An agent's public message is sent as a user's; for compaction, which may drop it, it counts as an agent's.
    found = [replace(view, role="assistant") if _SPEAKER.match(view.text) else view for view in views]
    last = max((at for at, view in enumerate(found) if view.role == "user" and view.is_prompt), default=0)
    # The client sends each part of a message, such as an image, as a message of its own. A compaction keeps the last
    # of them; the question's other parts are pinned, so that it keeps these too.
    for at in range(max(0, last - parts + 1), last):
        if found[at].role == "user":
            found[at] = replace(found[at], pinned=True)
    return found
