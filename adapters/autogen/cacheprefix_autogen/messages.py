"""AutoGen's messages: one form of every public message, the same bytes whoever looks at it.

AutoGen shows an agent its own messages as the assistant's and everyone else's as a named user's, so two
agents never share a history. Here the speaker stands in the text too, and is the sender whoever looks at it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from autogen_agentchat.messages import BaseChatMessage, HandoffMessage, ToolCallSummaryMessage
from autogen_core import FunctionCall
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    LLMMessage,
    SystemMessage,
    UserMessage,
)

from cacheprefix.adapter import context_block, digest_of

T = TypeVar("T")

SENDER = "user"
"""``source`` of what nobody in the conversation said: a role's text, a result of a tool."""

# All sentences of ours that a request may hold beside the core's own (a role's text, its tools, notes of a budget or a
# compaction): nothing else is said that neither the application's request nor the user's prefix says.
SPEAKER = "[{}]"
"""Stands before what was said in public, with the speaker's name."""
TOOL_SPEAKER = "tool {}"
"""Who "says" a tool's result that a hand-off carries with it."""
CALLING = "{} calls {}"
"""Who "says" the arguments of a call that a hand-off carries with it: the agent and the tool."""
MEMORY = "<memory>\n{}\n</memory>"
"""What an agent's memory said, which AutoGen puts among the messages as a system text."""
EARLIER = "<earlier_call tool={}>\n{}\n<result>\n{}\n</result>\n</earlier_call>"
"""A call of the agent's own and its result, where they no longer stand in the turn that they belong to."""
STANDS = "(You have told everybody.)"
"""In an agent's own history, for a result that it has told everybody."""
ABOVE = "(the conversation above)"
"""Stands where the selector's own prompt would repeat the history."""
ANSWER = "Answer now in text, without calling a tool."
"""Stands behind a turn's own messages where the request must not call tools and ``tool_choice`` must not vary."""
NOT_RUN = "Tool {!r} was not run: tools available to the role {!r} are: {}."
"""The result of a call that a role may not make, in the request that asks it once more."""

KEEP_MESSAGES = 20_000
"""Messages of which is remembered what was made of them; all are let go when there are more."""

_DURABLE = re.compile(r'<context key="([^"]*)">\n(.*)\n</context>', re.DOTALL)

Shorten = Callable[[str, str], str]
"""``shorten(tool_name, text)`` gives what stands in the prompt for a tool's result."""


def kept(_tool: str, text: str) -> str:
    """Tool results as they are."""
    return text


def spoken(speaker: str, content: object, source: str | None = None) -> UserMessage:
    """A message with its speaker in the text; lists with images keep their parts.

    ``source``, by default the speaker, is what OpenAI is sent as the message's ``name``.
    """
    source = speaker if source is None else source
    if isinstance(content, list):
        return UserMessage(content=[SPEAKER.format(speaker), *content], source=source)
    return UserMessage(content=f"{SPEAKER.format(speaker)}\n{content}", source=source)


def public(message: BaseChatMessage, shorten: Shorten = kept) -> tuple[UserMessage, ...]:
    """A team's message as every agent sees it; what a hand-off carries with it stands before it."""
    context = message.context if isinstance(message, HandoffMessage) else []
    before = [form for item in context for form in carried(item, shorten)]
    told = message.to_model_message()
    content = told.content
    if isinstance(message, ToolCallSummaryMessage) and isinstance(content, str):
        for result in message.results:
            content = content.replace(result.content, shorten(result.name, result.content))
    # Privacy: a class of the application's may tell models less than its message holds, its sender included.
    return (*before, spoken(told.source, content))


def carried(item: LLMMessage, shorten: Shorten) -> list[UserMessage]:
    """A message that a hand-off carries with it, as every agent sees it."""
    if isinstance(item, UserMessage):
        return [item if speaker_of(item) is not None else spoken(item.source, item.content)]
    if isinstance(item, AssistantMessage):
        if isinstance(item.content, str):
            return [spoken(item.source, item.content)]
        thought = [spoken(item.source, item.thought)] if item.thought else []
        return thought + [
            spoken(CALLING.format(item.source, call.name), call.arguments, SENDER) for call in item.content
        ]
    if isinstance(item, FunctionExecutionResultMessage):
        return [
            spoken(TOOL_SPEAKER.format(result.name), shorten(result.name, result.content), SENDER)
            for result in item.content
        ]
    return [spoken("system", item.content, SENDER)]


def durable(key: str, text: str) -> UserMessage:
    """Durable context of the conversation, as every agent sees it."""
    return UserMessage(content=context_block(key, text), source=SENDER)


def durable_in(message: UserMessage) -> tuple[str, str] | None:
    """The key and the text of durable context; None for any other message."""
    content = message.content
    found = _DURABLE.fullmatch(content) if isinstance(content, str) and message.source == SENDER else None
    return None if found is None else (found[1], found[2])


def speaker_of(message: UserMessage) -> str | None:
    """Who speaks in a canonical message, as an agent or the user says it in public; None for any other."""
    first = message.content[0] if isinstance(message.content, list) and message.content else message.content
    if not isinstance(first, str) or not first.startswith("[") or "]" not in first:
        return None
    speaker = first[1 : first.index("]")]
    # States that were saved by earlier versions name no sender.
    return speaker if message.source in (speaker, SENDER) else None


def said_by(messages: Sequence[LLMMessage]) -> list[tuple[str, str]]:
    """What each message says, but for system texts: by that a request is known to go on from an earlier one.

    What an agent said is the assistant's in its own requests, and a user's in the others'.
    """
    said = (message for message in messages if not isinstance(message, SystemMessage))
    return [("" if isinstance(one.content, str) else one.type, str(one.content)) for one in said]


def split_history(messages: Sequence[LLMMessage]) -> int:
    """Where the turn under way begins: behind the last message that is neither the agent's nor a tool's."""
    for index in range(len(messages) - 1, -1, -1):
        if isinstance(messages[index], UserMessage):
            return index + 1
    return 0


def lead(messages: Sequence[LLMMessage]) -> tuple[tuple[str, ...], list[LLMMessage]]:
    """The leading system texts, and the messages behind them."""
    start = 0
    while start < len(messages) and isinstance(messages[start], SystemMessage):
        start += 1
    return tuple(str(message.content) for message in messages[:start]), list(messages[start:])


def is_tool_traffic(message: LLMMessage) -> bool:
    """Whether a message is an agent's calls of tools, or their results."""
    calls = isinstance(message, AssistantMessage) and isinstance(message.content, list)
    return calls or isinstance(message, FunctionExecutionResultMessage)


class Seen(Generic[T]):
    """Remembers what was made of a message for as long as it is the same object holding the same things.

    Texts do not change in place, and whatever is put in a message's or a result's field is another object or an
    equal one; so a message that was edited is made anew.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[LLMMessage, tuple[Any, ...], T]] = {}

    def of(self, message: LLMMessage, make: Callable[[LLMMessage], T]) -> T:
        """What ``make`` gave for this message, the first time or now."""
        holds = _fields(message)
        known = self._known.get(id(message))
        # Tuples look at identity first, so that nothing is compared where nothing changed.
        if known is not None and known[0] is message and known[1] == holds:
            return known[2]
        made = make(message)
        if len(self._known) >= KEEP_MESSAGES:
            self._known.clear()
        self._known[id(message)] = (message, holds, made)
        return made


def _fields(message: LLMMessage) -> tuple[Any, ...]:
    """The objects that a message holds, and those that the parts of its content hold."""
    own = tuple(vars(message).values())
    content = message.content
    if isinstance(content, str):
        return own
    return (*own, *(value for part in content for value in (part, *getattr(part, "__dict__", {}).values())))


def as_in_context(messages: Sequence[BaseChatMessage]) -> list[LLMMessage]:
    """The messages of a turn as AutoGen's agents put them into their model context; what a hand-off brings first."""
    found: list[LLMMessage] = []
    for message in messages:
        found += message.context if isinstance(message, HandoffMessage) else ()
        found.append(message.to_model_message())
    return found


def text_of(message: UserMessage) -> str:
    """The text of a message, without its images."""
    content: Any = message.content
    return content if isinstance(content, str) else "\n".join(part for part in content if isinstance(part, str))


class Snapshot:
    """What messages held when it was made, to find out later whether any was edited, replaced or taken out."""

    def __init__(self, messages: Sequence[LLMMessage]) -> None:
        self._fields: list[dict[str, Any]] = []
        # The very lists of parts and the very parts, each with a copy of what it held.
        self._lists: list[list[Any]] = []
        self._held: list[list[Any]] = []
        self._parts: list[Any] = []
        self._of_parts: list[dict[str, Any]] = []
        self.add(messages)

    def add(self, messages: Sequence[LLMMessage]) -> None:
        """Take in what further messages hold now."""
        fields = [dict(vars(message)) for message in messages]
        lists = [content for one in fields if not isinstance(content := one["content"], str)]
        parts = [part for content in lists for part in content if not isinstance(part, str)]
        self._fields += fields
        self._lists += lists
        self._held += map(list, lists)
        self._parts += parts
        self._of_parts += [dict(vars(part)) for part in parts]

    def __len__(self) -> int:
        return len(self._fields)

    def is_held(self, messages: Sequence[LLMMessage]) -> bool:
        """Whether messages hold the same still; it costs less than a look at each message by itself."""
        # Edited in place, a list of parts is still the one that its message holds.
        if self._lists != self._held or list(map(vars, self._parts)) != self._of_parts:
            return False
        now = list(map(vars, messages))
        if now == self._fields:
            return True
        # AutoGen's clients take white space at the end of a text off in place.
        return len(now) == len(self) and all(
            one == was or _trimmed(one) == _trimmed(was) for one, was in zip(now, self._fields, strict=True)
        )


def digest(messages: Sequence[LLMMessage]) -> str:
    """What a saved state holds of an agent's own context, to find out whether that is the one it is loaded with.

    Images count as such: AutoGen writes them anew.
    """
    return digest_of(*(text for message in messages for text in _texts_of(message)))


def _texts_of(message: LLMMessage) -> list[str]:
    """A message's type, and the text of each part of its content."""
    parts: Sequence[Any] = [message.content] if isinstance(message.content, str) else message.content
    texts = [str(vars(part)) if isinstance(part, FunctionCall | FunctionExecutionResult) else part for part in parts]
    return [message.type, *(text if isinstance(text, str) else "" for text in texts)]


def _trimmed(fields: dict[str, Any]) -> dict[str, Any]:
    content = fields["content"]
    return {**fields, "content": content.rstrip()} if isinstance(content, str) else fields
