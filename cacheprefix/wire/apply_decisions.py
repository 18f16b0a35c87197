"""Carry out decisions on message dicts. Pure: a new list; whatever no decision names is the same object."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cacheprefix.errors import SetupError
from cacheprefix.prompt.decisions import Decision, Drop, Insert
from cacheprefix.prompt.views import Role
from cacheprefix.wire import openai_responses
from cacheprefix.wire.apis import CHATS
from cacheprefix.wire.messages import MARKS, Form, Message


def apply(messages: Sequence[Message], decisions: Iterable[Decision], api: Form) -> list[Message]:
    """The messages with the decisions carried out, in the form they came in.

    A message that a decision leaves without content, calls and results is left out: no provider
    takes an empty message. A reasoning item of the responses form stays or goes with the item behind it,
    since the API takes neither alone. Raises ``SetupError`` for a decision beyond the end of the list.
    """
    gone: set[int] = set()
    partial: list[Decision] = []
    for decision in decisions:
        if not 0 <= decision.index < len(messages) + isinstance(decision, Insert):
            raise SetupError(f"{decision} names no message: there are {len(messages)}")
        if isinstance(decision, Drop):
            gone.add(decision.index)
        else:
            partial.append(decision)
    return kept(messages, partial, gone, api)


def kept(messages: Sequence[Message], decisions: Iterable[Decision], gone: set[int], api: Form) -> list[Message]:
    """``apply`` without ``gone``, the indexes of messages that go as a whole: those may be many thousands."""
    by_index: dict[int, list[Decision]] = {}
    inserts: dict[int, list[Insert]] = {}
    for decision in decisions:
        if isinstance(decision, Insert):
            inserts.setdefault(decision.index, []).append(decision)
        else:
            by_index.setdefault(decision.index, []).append(decision)
    if not by_index and not inserts and not gone:
        return list(messages)
    if api == "openai-responses":
        gone = openai_responses.bound(messages, by_index, gone)
    shape = CHATS[api]
    out: list[Message] = []
    for index, message in enumerate(messages):
        if index in inserts:
            out.extend(text_message(new.role, new.text, new.key, summary=new.summary) for new in inserts[index])
        if index in gone:
            continue
        mine = by_index.get(index)
        if mine is None:
            out.append(message)
            continue
        changed = shape.changed(message, mine)
        if changed is not None:
            out.append(changed)
    if len(messages) in inserts:
        out.extend(text_message(new.role, new.text, new.key, summary=new.summary) for new in inserts[len(messages)])
    return out


def text_message(role: Role, text: str, key: str | None = None, *, summary: bool = False) -> dict[str, Any]:
    """A message of one text, the same in all forms; key and summary flag go into its marks."""
    message: dict[str, Any] = {"role": role, "content": text}
    marks: dict[str, Any] = {}
    if key is not None:
        marks["key"] = key
    if summary:
        marks["summary"] = True
    if marks:
        message[MARKS] = marks
    return message


def sendable(messages: Iterable[Message]) -> list[Message]:
    """The messages without this room's marks; a message that has none is the same object."""
    return [
        {name: value for name, value in message.items() if name != MARKS} if MARKS in message else message
        for message in messages
    ]
