"""What is remembered of messages is never older than the messages."""

from __future__ import annotations

import pytest
from autogen_core import FunctionCall
from autogen_core.models import AssistantMessage, FunctionExecutionResult, FunctionExecutionResultMessage, UserMessage

from cacheprefix_autogen.messages import Seen, Snapshot


def _counting():
    made = []

    def make(message):
        made.append(message)
        return len(made)

    return made, make


def test_a_message_is_looked_at_once():
    """The second time what was made of it is given again."""
    seen, message, (made, make) = Seen(), UserMessage(content="a", source="user"), _counting()
    assert [seen.of(message, make), seen.of(message, make)] == [1, 1]
    assert made == [message]


def test_an_edited_message_is_noticed():
    """Another text, another result inside or another argument of a call is another message."""
    seen, (_, make) = Seen(), _counting()
    text = UserMessage(content="a", source="user")
    results = FunctionExecutionResultMessage(
        content=[FunctionExecutionResult(content="found", name="search", call_id="1", is_error=False)]
    )
    calls = AssistantMessage(content=[FunctionCall(id="1", name="search", arguments="{}")], source="a")
    assert [seen.of(message, make) for message in (text, results, calls)] == [1, 2, 3]
    text.content = "b"
    results.content[0].content = "gone"
    calls.content[0].arguments = '{"q": 1}'
    assert [seen.of(message, make) for message in (text, results, calls)] == [4, 5, 6]
    results.content.append(results.content[0])
    assert seen.of(results, make) == 7


def test_equal_messages_are_not_the_same():
    """Two objects of one text are looked at each."""
    seen, (made, make) = Seen(), _counting()
    for _ in range(2):
        seen.of(UserMessage(content="a", source="user"), make)
    assert len(made) == 2


def _talk():
    called = FunctionCall(id="1", name="search", arguments="{}")
    result = FunctionExecutionResult(content="found", name="search", call_id="1", is_error=False)
    return [
        UserMessage(content="a ", source="user"),
        AssistantMessage(content=[called], source="a"),
        FunctionExecutionResultMessage(content=[result]),
        UserMessage(content=["look", "here"], source="user"),
    ]


EDITS = {
    "text": lambda talk: setattr(talk[0], "content", "b "),
    "source": lambda talk: setattr(talk[0], "source", "bob"),
    "argument": lambda talk: setattr(talk[1].content[0], "arguments", "{1}"),
    "result": lambda talk: setattr(talk[2].content[0], "content", "gone"),
    "part": lambda talk: talk[3].content.__setitem__(1, "there"),
    "longer": lambda talk: talk[3].content.append("more"),
    "replaced": lambda talk: talk.__setitem__(0, UserMessage(content="b", source="user")),
    "cut": lambda talk: talk.pop(),
}


@pytest.mark.parametrize("first", [0, 2, 4])
@pytest.mark.parametrize("edit", EDITS)
def test_a_snapshot_is_held_until_something_was_edited(edit, first):
    """In place as well, in what it was made of or took in later; white space at the end of a text is no edit."""
    talk = _talk()
    held = Snapshot(talk[:first])
    held.add(talk[first:])
    talk[0].content = "a"
    assert held.is_held(talk)
    EDITS[edit](talk)
    assert not held.is_held(talk)
