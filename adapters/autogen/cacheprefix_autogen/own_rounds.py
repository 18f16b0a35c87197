"""Finds the messages that only one agent has seen: its tool calls, their results, and texts of its memory.

Privacy: no other agent is shown them. As long as the role's text keeps its place, each of them stands where it arose
among the public messages, so that the agent's requests only grow at their end. Where the text is put behind later
messages, older ones stand in front of it as text that says that they are older (``in_words``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from autogen_agentchat.messages import BaseChatMessage, StructuredMessage, ToolCallSummaryMessage
from autogen_core import FunctionCall
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResultMessage,
    LLMMessage,
    SystemMessage,
    UserMessage,
)

from cacheprefix.adapter import find_text
from cacheprefix_autogen.messages import (
    EARLIER,
    MEMORY,
    SENDER,
    STANDS,
    Seen,
    Shorten,
    carried,
    kept,
    speaker_of,
    spoken,
    text_of,
)


@dataclass(frozen=True, slots=True)
class Own:
    """A message that only one agent has seen."""

    at: int
    """How many public messages stand before it."""
    message: LLMMessage


@dataclass(frozen=True, slots=True)
class Turn:
    """Where one turn of an agent stands in its own context, and what was public then."""

    start: int
    """Length of the agent's context before the messages that the agent adds in this turn."""
    end: int | None
    """Length of the agent's context when the next turn began; None for the newest turn."""
    at: int
    """How many public messages were in view when it began."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A request's messages: public ones, the agent's own of earlier turns, those of the current turn."""

    public: Sequence[UserMessage]
    own: Sequence[Own]
    now: Sequence[LLMMessage]
    shortened: Sequence[UserMessage] | None = None
    """The public ones before some were cut or removed; None where they are as they were."""

    @property
    def said(self) -> Sequence[UserMessage]:
        """What all were told, before anything was shortened."""
        return self.public if self.shortened is None else self.shortened


def own_of_turn(
    messages: Sequence[LLMMessage], at: int, public: Sequence[UserMessage], name: str, shorten: Shorten = kept
) -> list[Own]:
    """Of the ``messages`` that a finished turn added to its agent's context, those that only this agent has seen.

    The turn's answer is public, and left out. So is what is public of the turn's last round of calls, if it ended with
    one: no request has held that round yet. Earlier rounds stay exactly as they were sent, since the provider's cache
    holds them. Left out are also calls without results, of a cancelled turn: providers refuse a request with such.

    Args:
        messages: What the turn added, in order.
        at: How many public messages stand before them.
        public: The messages that came into view from then until the next turn began.
        name: The agent's.
        shorten: How results are cut in the public messages.
    """
    # An agent that was renamed since said it under its old name, as did whoever speaks in examples that it was given.
    names = {name, *(one.source for one in messages if isinstance(one, AssistantMessage))}
    said = [text_of(form) for form in public if speaker_of(form) in names]

    def stands(text: str) -> bool:
        """Whether the agent's public messages hold a text."""
        return any(find_text(text, one) is not None or _says(one, text) for one in said)

    done = _with_results(messages)
    left = [one for one in messages if not _is_answer(one, stands) and not _unanswered(one, done)]
    calls, results = left[-2:] if len(left) > 1 and left[-1] is messages[-1] else (None, None)
    asked = calls if isinstance(calls, AssistantMessage) and not isinstance(calls.content, str) else None
    if asked is not None and isinstance(results, FunctionExecutionResultMessage):
        left[-2:] = _untold(asked, results, public, stands, shorten)
    return [Own(at, message) for message in left]


def tells_as_held(message: BaseChatMessage, turn: Sequence[LLMMessage], name: str) -> bool:
    """Whether a turn's answer tells the others what the agent's own context holds of the turn, under its name.

    A summary of tool results does, in whatever words the application has it: AutoGen writes it. Of a structured answer
    the context holds the model's own JSON, and what its class makes of that may say another thing.
    """
    if isinstance(message, ToolCallSummaryMessage):
        return True
    told = message.to_model_message()
    said = text_of(told)
    if isinstance(message, StructuredMessage):
        # A result of a tool may be a part of the answer, and so no word for all of it.
        turn = [one for one in turn if isinstance(one, AssistantMessage)]
    held = [text for one in turn for text in _texts(one)]
    return told.source == name and any(find_text(said, text) is not None or _is_json(said, text) for text in held)


def _texts(message: LLMMessage) -> list[str]:
    """What a message of an agent's context says; of calls, what was thought, and of their results each."""
    if isinstance(message, FunctionExecutionResultMessage):
        return [result.content for result in message.content]
    if isinstance(message, UserMessage):
        return [text_of(message)]
    said = message.content if isinstance(message.content, str) else ""
    return [said, getattr(message, "thought", None) or ""]


def _says(public: str, answer: str) -> bool:
    """Whether a public message is a structured answer, as AutoGen writes it anew from the value that it read.

    Equal information: spaces and the order of fields are no content, and fields with defaults are added.
    """
    # Its first line says who speaks (``spoken``).
    return _is_json(public.partition("\n")[2], answer)


def _is_json(public: str, answer: str) -> bool:
    """Whether a text is the JSON value of another one, written anew."""
    try:
        return _within(json.loads(answer), json.loads(public))
    except ValueError:
        return False


def _within(value: Any, other: Any) -> bool:
    """Whether all that a JSON value says stands in another one."""
    if isinstance(value, dict) and isinstance(other, dict):
        return all(name in other and _within(one, other[name]) for name, one in value.items())
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(_within, value, other))
    return bool(value == other)


def _calls(message: LLMMessage) -> Sequence[FunctionCall]:
    """The calls in an assistant's message; empty for any other."""
    return message.content if isinstance(message, AssistantMessage) and not isinstance(message.content, str) else ()


def _is_answer(message: LLMMessage, stands: Callable[[str], bool]) -> bool:
    """Whether a message is the answer as the others got it, or empty; not if the application changed it on the way."""
    if not isinstance(message, AssistantMessage) or not isinstance(message.content, str):
        return False
    return not message.content.strip() or stands(message.content)


def _with_results(messages: Sequence[LLMMessage]) -> set[str]:
    """The ids of the calls whose results stand among the messages."""
    found = (one for one in messages if isinstance(one, FunctionExecutionResultMessage))
    return {result.call_id for one in found for result in one.content}


def _unanswered(message: LLMMessage, done: Collection[str]) -> bool:
    """Whether a message holds a call that is not among those with results."""
    return any(getattr(call, "id", None) not in done for call in _calls(message))


def _untold(
    asked: AssistantMessage,
    done: FunctionExecutionResultMessage,
    public: Sequence[UserMessage],
    stands: Callable[[str], bool],
    shorten: Shorten,
) -> list[LLMMessage]:
    """A turn's last round of calls, without the parts that are public.

    A call that a hand-off carried along is public with tool, arguments and result: it is left out. Of any other call
    at most the result is public: ``STANDS`` refers to it.
    """
    calls = [] if isinstance(asked.content, str) else asked.content
    texts = [form.content for form in public]

    def taken_along(call: FunctionCall) -> bool:
        results = FunctionExecutionResultMessage(content=[one for one in done.content if one.call_id == call.id])
        both = (AssistantMessage(content=[call], source=asked.source), results)
        return all(form.content in texts for part in both for form in carried(part, shorten))

    gone = {call.id for call in calls if taken_along(call)}
    results = FunctionExecutionResultMessage(content=[one for one in done.content if one.call_id not in gone])
    thought = None if asked.thought and stands(asked.thought) else asked.thought
    left: list[LLMMessage] = []
    if len(gone) < len(calls) or thought:
        content = [call for call in calls if call.id not in gone]
        left.append(asked.model_copy(update={"content": content or thought, "thought": thought if content else None}))
    if results.content:
        told = (one for one in done.content if stands(one.content) or stands(shorten(one.name, one.content)))
        left.append(_referring(results, {one.call_id for one in told}))
    return left


def _referring(message: FunctionExecutionResultMessage, told: Collection[str]) -> FunctionExecutionResultMessage:
    """The message with ``STANDS`` in place of the results of these calls, however short they are."""
    content = [
        one.model_copy(update={"content": STANDS}) if one.call_id in told and one.content.strip() else one
        for one in message.content
    ]
    return message.model_copy(update={"content": content})


def before_us(messages: Sequence[LLMMessage], name: str, public: Sequence[UserMessage]) -> list[list[LLMMessage]]:
    """The messages in an agent's context from before it was wrapped that only it may have seen, one list for each turn.

    Calls and texts, the results of its calls, and texts of its memory; a turn begins at each user message. Those of
    another agent that came with a hand-off stand in the ``public`` messages, and are left out.
    """
    mine: set[str] = set()
    found: list[list[LLMMessage]] = [[]]
    texts = [form.content for form in public]
    for message in messages:
        if isinstance(message, UserMessage):
            found.append([])
            continue
        if isinstance(message, AssistantMessage):
            if message.source != name and all(form.content in texts for form in carried(message, kept)):
                continue
            mine |= {call.id for call in _calls(message)}
        elif isinstance(message, FunctionExecutionResultMessage) and not all(
            result.call_id in mine for result in message.content
        ):
            continue
        found[-1].append(message)
    return [turn for turn in found if turn]


def in_words(own: Sequence[Own], known: Seen[UserMessage]) -> list[LLMMessage]:
    """Older tool calls and results as text, for where they stand behind newer public messages.

    As calls they would look like the answer to the newest message. ``known`` keeps the texts by their result messages,
    so that the same bytes are sent again.
    """
    said: list[LLMMessage] = []
    asked: AssistantMessage | None = None
    for one in own:
        message = one.message
        if isinstance(message, AssistantMessage) and isinstance(message.content, list):
            asked = message
        elif isinstance(message, FunctionExecutionResultMessage):
            calls = asked
            said.append(known.of(message, lambda results, calls=calls: _words(calls, results)))  # type: ignore[misc]
        else:
            said.append(message)
    return said


def _words(asked: AssistantMessage | None, message: FunctionExecutionResultMessage) -> UserMessage:
    """Earlier calls and their results as a text."""
    calls = asked.content if asked is not None and isinstance(asked.content, list) else []
    arguments = {call.id: call.arguments for call in calls}
    told = [
        EARLIER.format(json.dumps(one.name), arguments.get(one.call_id, ""), one.content) for one in message.content
    ]
    thought = [asked.thought] if asked is not None and asked.thought else []
    return UserMessage(content="\n".join((*thought, *told)), source=SENDER)


def remembered_once(heard: Heard, made: dict[str, UserMessage]) -> Heard:
    """The messages with each memory text only once, as a user message; ``made`` keeps these by their text.

    AutoGen adds the memory's text again in each turn, as a system message, which clients do not take in that place.
    """
    known: set[str] = set()

    def once(message: LLMMessage) -> LLMMessage | None:
        if not isinstance(message, SystemMessage):
            return message
        text = message.content
        if text in known:
            return None
        known.add(text)
        return made.setdefault(text, UserMessage(content=MEMORY.format(text), source=SENDER))

    own = [Own(one.at, said) for one in heard.own if (said := once(one.message)) is not None]
    return Heard(heard.public, own, [said for one in heard.now if (said := once(one)) is not None])


def from_history(messages: Sequence[LLMMessage]) -> tuple[tuple[UserMessage, ...], list[Own]]:
    """Split an agent's own messages of finished turns into public ones and its own, knowing nothing but the messages.

    Calls and results that a text of the agent follows are its own. Where none follows, the results were the turn's
    answer to the others: they stand as the agent's public message too, as in every agent's request.
    """
    forms: list[UserMessage] = []
    own: list[Own] = []
    results: list[str] = []
    speaker, last = "", 0

    def settle() -> None:
        """The last results were followed by no text of the agent: make them public, and refer to them in its own."""
        if results:
            forms.append(spoken(speaker, "\n".join(results), speaker or SENDER))
            done = own[last].message
            if isinstance(done, FunctionExecutionResultMessage):
                own[last] = Own(own[last].at, _referring(done, {one.call_id for one in done.content}))
            results.clear()

    for message in messages:
        if isinstance(message, UserMessage):
            settle()
            forms.append(spoken(message.source, message.content))
        elif isinstance(message, AssistantMessage):
            results.clear()
            if isinstance(message.content, str):
                forms.append(spoken(message.source, message.content))
            else:
                speaker = message.source
                own.append(Own(len(forms), message))
        elif isinstance(message, FunctionExecutionResultMessage):
            results.extend(result.content for result in message.content)
            last = len(own)
            own.append(Own(len(forms), message))
        elif isinstance(message, SystemMessage):
            own.append(Own(len(forms), message))
    settle()
    return tuple(forms), own
