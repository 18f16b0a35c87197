"""What may never break, on generated histories and at the level of a session: replay, pairing, append only."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "history"))
from context_histories import histories, is_empty, unpaired

from cacheprefix import Caching, Compaction, Session, SharedPrefix, ToolResultBudget
from cacheprefix.prompt import ESTIMATE
from cacheprefix.wire import apply, views_of
from tests.drawn import examples

APIS = ["openai-chat", "anthropic"]
QUICK = settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
MODEL = {"openai-chat": "gpt-5.6", "anthropic": "claude-sonnet-4-6"}


def made(budget=400, trigger=700):
    """A session that compacts early, whatever it costs."""
    compaction = Compaction(trigger, keep_turns=1, horizon=1e9, slack=0)
    return Session(
        SharedPrefix(system="You help."),
        caching=Caching(counter=ESTIMATE),
        budget=ToolResultBudget(budget, per_turn=budget),
        compaction=compaction,
    )


def sent(session, conversation, messages, api):
    """What an adapter sends of a history."""
    views = views_of(messages, api, session.adapter.counter(MODEL[api]))
    return apply(messages, session.adapter.histories.condense(conversation, views, MODEL[api], api), api)


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
@QUICK
@given(data=st.data())
def test_the_ledger_replays_byte_for_byte_elsewhere(api, data):
    """A fork, another process and another budget and compaction send what the first one sent."""
    messages = data.draw(histories(api))
    first = made()
    conversation = first.conversation("t")
    once = sent(first, conversation, messages, api)
    assert json.dumps(sent(first, conversation.fork(), messages, api)) == json.dumps(once)
    other = made(budget=5_000, trigger=1_000_000)
    resumed = other.conversation("t")
    resumed.restore(json.loads(json.dumps(conversation.to_json())))
    assert json.dumps(sent(other, resumed, messages, api)) == json.dumps(once)


@pytest.mark.parametrize("api", APIS)
@QUICK
@given(data=st.data())
def test_no_decision_separates_a_call_from_its_result_or_leaves_an_empty_message(api, data):
    """Condensed histories are as well paired as they came, and the second run equals the first."""
    messages = data.draw(histories(api))
    session = made()
    conversation = session.conversation("t")
    once = sent(session, conversation, messages, api)
    before, after = unpaired(messages, api), unpaired(once, api)
    assert after[0] <= before[0]
    assert after[1] <= before[1]
    assert sum(map(is_empty, once)) <= sum(map(is_empty, messages))
    assert session.failures == {}


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
@QUICK
@given(data=st.data())
def test_between_compactions_a_growing_history_only_appends(api, data):
    """Cut after each message, what is sent begins with what was sent before, in every epoch."""
    messages = data.draw(histories(api))
    session = made()
    conversation = session.conversation("t")
    before, epoch = [], 0
    for end in range(1, len(messages) + 1):
        if any(view.calls for view in views_of(messages[end - 1 : end], api)):
            # Nobody sends a call without its results.
            continue
        if api == "openai-chat" and end < len(messages) and messages[end]["role"] == "tool":
            continue
        now = sent(session, conversation, messages[:end], api)
        if conversation.ledger.epoch == epoch:
            assert now[: len(before)] == before
        before, epoch = now, conversation.ledger.epoch


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
@QUICK
@given(data=st.data())
def test_a_kept_history_only_appends_and_is_the_same_after_loading(api, data):
    """A conversation that keeps its own history: stable prefix, the same bytes after JSON, no volatile text."""
    messages = data.draw(histories(api))
    session = made()
    conversation = session.conversation("t", api=api, model=MODEL[api])
    before, epoch = [], 0
    for message in messages:
        conversation.append(message)
        built = conversation.build("It is noon o'clock.")
        stable = built.messages[: built.prefix_messages]
        if conversation.ledger.epoch == epoch:
            assert stable[: len(before)] == before
        before, epoch = stable, conversation.ledger.epoch
    saved = conversation.dumps()
    assert "noon o'clock" not in saved
    other = made(budget=5_000, trigger=1_000_000)
    loaded = other.conversation("t", api=api)
    loaded.restore(saved)
    plain = conversation.build(settle=False).messages
    assert json.dumps(loaded.build().messages) == json.dumps(plain)
    assert loaded.dumps() == saved
