"""What an agent alone has seen of a conversation: its calls of tools and their results, and what its memory said.

Nobody else is shown it, and the agent itself is not deprived of it. As long as the role's text stays where it is, each
part stands where it came to be among the public messages, so that the agent's requests only grow at their end. Where
the text is put behind later messages, what is older stands in front of it, and says that it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

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
)


@dataclass(frozen=True, slots=True)
class Own:
    """A message that only one agent has seen."""

    at: int
    """Public messages that stand before it."""
    message: LLMMessage


@dataclass(frozen=True, slots=True)
class Turn:
    """Where one turn of an agent stands in its own context, and what was public then."""

    start: int
    """Messages of the agent's context before the turn's own."""
    end: int | None
    """Those when the next turn began; None for the newest one."""
    at: int
    """Public messages in view when it began."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What a request's messages are: public ones, the agent's own of earlier turns, those of the turn under way."""

    public: Sequence[UserMessage]
    own: Sequence[Own]
    now: Sequence[LLMMessage]


def of_turn(
    messages: Sequence[LLMMessage], at: int, public: Sequence[UserMessage], name: str, shorten: Shorten = kept
) -> list[Own]:
    """What a turn that is over leaves to its agent alone, of all ``messages`` that it added to the agent's context.

    It stands behind ``at`` public messages; ``public`` is what came into view from then until the next turn began. The
    turn's answer stands there, so it is left out. So is what stands there of a round of calls that the turn ended with,
    which no request of the agent's has held yet; earlier rounds stay as they were sent.
    """
    said = [_text(form) for form in public if speaker_of(form) == name]

    def stands(text: str) -> bool:
        return any(find_text(text, one) is not None for one in said)

    def public_answer(message: LLMMessage) -> bool:
        """Its answer, which everybody has; not one that the application has changed on its way to the others."""
        if not isinstance(message, AssistantMessage) or not isinstance(message.content, str):
            return False
        return not message.content.strip() or stands(message.content)

    answered = {
        result.call_id for one in messages if isinstance(one, FunctionExecutionResultMessage) for result in one.content
    }

    def unanswered(message: LLMMessage) -> bool:
        """Calls of a turn that was cancelled: no provider takes them without their results."""
        calls = message.content if isinstance(message, AssistantMessage) else ()
        return not isinstance(calls, str) and any(getattr(call, "id", None) not in answered for call in calls)

    left = [message for message in messages if not public_answer(message) and not unanswered(message)]
    asked, done = left[-2:] if len(left) > 1 else (None, None)
    called = asked if isinstance(asked, AssistantMessage) and not isinstance(asked.content, str) else None
    if called and isinstance(done, FunctionExecutionResultMessage) and done is messages[-1]:
        left[-2:] = _untold(called, done, public, stands, shorten)
    return [Own(at, message) for message in left]


def _untold(
    asked: AssistantMessage,
    done: FunctionExecutionResultMessage,
    public: Sequence[UserMessage],
    stands: Callable[[str], bool],
    shorten: Shorten,
) -> list[LLMMessage]:
    """A turn's last round of calls without what the others were told of it.

    What a hand-off took along is in public whole, tool and arguments too. Of other calls it is at most the result.
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


def before_us(messages: Sequence[LLMMessage], name: str) -> list[list[LLMMessage]]:
    """What of the context of an agent that had already run may be its alone: its own calls, their results, memories.

    Turn by turn.
    """
    mine: set[str] = set()
    found: list[list[LLMMessage]] = [[]]
    for message in messages:
        if isinstance(message, UserMessage):
            found.append([])
            continue
        if isinstance(message, AssistantMessage) and message.source == name:
            if isinstance(message.content, list):
                mine |= {call.id for call in message.content}
        elif isinstance(message, FunctionExecutionResultMessage):
            # Those of others came with a hand-off, and are public.
            if not all(result.call_id in mine for result in message.content):
                continue
        elif not isinstance(message, SystemMessage):
            continue
        found[-1].append(message)
    return [turn for turn in found if turn]


def in_words(own: Sequence[Own], known: Seen[UserMessage]) -> list[LLMMessage]:
    """What came before the newest public messages and stands behind them: calls with their results as what they were.

    As calls they would look like the answer to what was said last. ``known`` keeps them, by their results.
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
    calls = asked.content if asked is not None and isinstance(asked.content, list) else []
    arguments = {call.id: call.arguments for call in calls}
    told = [
        EARLIER.format(json.dumps(one.name), arguments.get(one.call_id, ""), one.content) for one in message.content
    ]
    thought = [asked.thought] if asked is not None and asked.thought else []
    return UserMessage(content="\n".join((*thought, *told)), source=SENDER)


def remembered_once(heard: Heard, made: dict[str, UserMessage]) -> Heard:
    """The same with each text of a memory once, as a message of ours; ``made`` keeps these by their text.

    AutoGen asks an agent's memory with each turn, which says its text again; clients take no system text there.
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
    """An agent's own view of completed turns: the public messages, and what is its own; from nothing but the messages.

    Calls that the agent's text follows are its own. Where none follows, their results are what the others were told:
    they stand as the agent's message too, as they do in everybody's.
    """
    forms: list[UserMessage] = []
    own: list[Own] = []
    results: list[str] = []
    speaker, last = "", 0

    def settle() -> None:
        """What was called last is followed by no text of the agent's, so that its results are public."""
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


def _text(message: UserMessage) -> str:
    content: Any = message.content
    return content if isinstance(content, str) else "\n".join(part for part in content if isinstance(part, str))
