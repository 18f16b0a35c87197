"""Saved conversations of earlier code are read, and send what they sent when they were saved.

The files in ``saved/`` were written by the code of November 2026, before the histories of frameworks and of
conversations came to one engine. Each holds what was saved, what was sent then, and what was said and sent after it.
"""

import json
from pathlib import Path

import pytest

from cacheprefix import Caching, Compaction, Session, SharedPrefix, ToolResultBudget
from cacheprefix.errors import StateError
from cacheprefix.prompt import ESTIMATE
from cacheprefix.wire import apply, sendable, views_of

SAVED = Path(__file__).parent / "saved"
KEPT = ["openai-chat", "openai-responses", "anthropic"]


def recorded(name):
    """A recorded conversation."""
    return json.loads((SAVED / f"{name}.json").read_text())


def session(old, budget=120):
    """A session of the recorded prefix."""
    rules = Compaction(600, 350, keep_turns=2, horizon=1e9)
    made = Session(
        SharedPrefix(system=old["system"]),
        caching=Caching(counter=ESTIMATE),
        budget=ToolResultBudget(budget),
        compaction=rules,
    )
    # Notes named the tool in any case then.
    made.read_tool("thread")
    return made


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_history_of_earlier_code_sends_what_it_sent(name):
    """Cut results, joined context, zones, an uncommitted turn and an open call, byte for byte; and it goes on."""
    old = recorded(name)
    conversation = session(old).conversation("thread", api=old["api"], mode=old["mode"])
    conversation.restore(old["saved"])
    assert json.dumps(conversation.build("It is noon.", settle=False).messages) == json.dumps(old["sent"])
    assert conversation.to_json() == old["saved"]
    conversation.append(*old["more"])
    assert json.dumps(conversation.build("It is one.", settle=False).messages) == json.dumps(old["sent_then"])


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_history_of_earlier_code_is_compacted_by_the_code_of_today(name):
    """Its context is joined to one block a key, staged zones are shown, and nothing of the context is lost."""
    old = recorded(name)
    conversation = session(old).conversation("thread", api=old["api"], mode=old["mode"])
    conversation.restore(old["saved"])
    conversation.append(*old["more"], {"role": "user", "content": "And now?"})
    epoch = conversation.ledger.epoch
    assert conversation.compact(force=True)
    assert conversation.ledger.epoch == epoch + 1
    said = json.dumps(conversation.build(settle=False).messages)
    assert "Project text two." in said
    for fact in ("Ada", "in turn 2", "in turn 6", "on Sunday", "during an open call", "And now?"):
        assert said.count(fact) == 1


def test_a_ledger_of_earlier_code_makes_of_a_frameworks_history_what_it_made():
    """Whatever budget and compaction are set now."""
    old = recorded("framework")
    one = session(old, budget=5_000)
    conversation = one.conversation("thread")
    conversation.restore(old["saved"])
    views = views_of(old["messages"], old["api"], one.adapter.counter("gpt-5.6"))
    decisions = one.adapter.histories.condense(conversation, views, "gpt-5.6", old["api"])
    assert json.dumps(sendable(apply(old["messages"], decisions, old["api"]))) == json.dumps(sendable(old["sent"]))
    assert conversation.to_json() == old["saved"]


def test_a_state_of_a_later_version_is_refused():
    """It may say what this code cannot know."""
    old = recorded("framework")
    conversation = session(old).conversation("thread")
    with pytest.raises(StateError, match="version 2"):
        conversation.restore({**old["saved"], "version": 2})
