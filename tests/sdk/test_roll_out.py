"""A safe way in, on the wire: off, a share of the conversations, and a role that goes back to its own layout."""

from __future__ import annotations

import pytest
from sdk_driver import MODELS, RULES, creator, make_client

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import SimulatedProvider
from cacheprefix_sdk import role, wrap

HANDBOOK = "The handbook says that every statement needs a source. " * 90


@pytest.fixture(params=list(RULES))
def api(request):
    """Each API in turn."""
    return request.param


@pytest.fixture
def provider(api):
    """A provider of that API's rules."""
    with SimulatedProvider(RULES[api]) as made:
        yield made


def session_for(api, **options):
    """The handbook is shared; ``options`` are the session's."""
    return Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider=RULES[api], counter=ESTIMATE, **options))


def talk(client, api, name, roles=("critic", "writer")):
    """Each role asks once in a conversation; the handbook stands in what the application itself says."""
    for one in roles:
        system = f"{HANDBOOK}\n\nYou are the {one}."
        asked = {"model": MODELS[api]}
        if api == "anthropic":
            asked |= {"max_tokens": 20, "system": system, "messages": [{"role": "user", "content": f"About {name}."}]}
        elif api == "openai-responses":
            asked |= {"instructions": system, "input": f"About {name}."}
        else:
            asked["messages"] = [{"role": "system", "content": system}, {"role": "user", "content": f"About {name}."}]
        with role(one, conversation=name):
            creator(client, api)(**asked)


def test_off_touches_and_sees_nothing(api, provider, monkeypatch):
    """The wire has the application's own bytes, the client its own class, and the session no call."""
    monkeypatch.setenv("CACHEPREFIX_MODE", "off")
    session = session_for(api)
    with make_client(api, provider) as client:
        talk(client, api, "one")
        wrapped = wrap(client, session)
        assert type(wrapped) is type(client)
        talk(wrapped, api, "one")
    sent = [record.body for record in provider.requests]
    assert sent[:2] == sent[2:]
    assert session.calls == ()
    assert any("none is observed" in note for note in session.report().notes)


@pytest.mark.slow
def test_conversations_outside_of_the_share_keep_every_byte(api, provider):
    """They are counted, with the reason; those inside it are forks."""
    session = session_for(api, fork_share=0.5)
    names = [f"conversation {number}" for number in range(12)]
    with make_client(api, provider) as client:
        for name in names:
            talk(client, api, name)
        plain = [record.body for record in provider.requests]
        provider.reset()
        for name in names:
            talk(wrap(client, session), api, name)
    own = {name for name in names if session.adapter.shared.arms.arm("", name) == "own"}
    assert 2 <= len(own) <= 10
    for at, (call, sent) in enumerate(zip(session.calls, (record.body for record in provider.requests), strict=True)):
        left = names[at // 2] in own
        assert call.layout == ("own" if left else "fork")
        assert ([one.why for one in call.reasons] == ["not_in_fork_share"]) == left
        assert (sent == plain[at]) == left


@pytest.mark.slow
def test_the_report_sets_both_arms_side_by_side(provider, api):
    """By what the provider counted: conversations, calls, tokens and cost add up to its own log."""
    session = session_for(api, fork_share=0.5)
    with make_client(api, provider) as client:
        for number in range(12):
            talk(wrap(client, session), api, f"conversation {number}")
    arms = session.report().arms
    assert arms.fork.conversations + arms.own.conversations == 12
    assert arms.fork.calls + arms.own.calls == len(provider.requests) == 24
    told = sum(record.outcome.input_tokens for record in provider.requests)
    assert arms.fork.input_tokens + arms.own.input_tokens == told
    units = sum(call.units for call in session.calls)
    assert arms.fork.cost_units + arms.own.cost_units == pytest.approx(units)
    assert f"a forked conversation cost {arms.ratio:.2f}" in str(session.report())
    assert session.report().as_dict()["arms"]["own"]["calls"] == arms.own.calls


@pytest.mark.slow
def test_a_role_whose_forks_got_dearer_goes_back_to_its_own_layout():
    """The provider keeps nothing, whatever its rules promise: then the others' tools are paid for in full each time."""
    schema = {"type": "object", "properties": {"text": {"type": "string", "description": "what to look for " * 20}}}
    kits = {
        name: [{"type": "function", "function": {"name": f"{name}_{n}", "parameters": schema}} for n in range(count)]
        for name, count in (("reader", 6), ("clerk", 1))
    }
    with SimulatedProvider("openai", capacity_tokens=1) as provider, make_client("openai-chat", provider) as client:
        prefix = SharedPrefix(system=HANDBOOK, tools=(*kits["reader"], *kits["clerk"]))
        session = Session(prefix, caching=Caching(provider="openai", counter=ESTIMATE, fork_share=0.5))
        wrapped = wrap(client, session)
        for number in range(90):
            for one in ("reader", "clerk"):
                said = [{"role": "system", "content": HANDBOOK}, {"role": "user", "content": f"Is it {number}?"}]
                with role(one, conversation=f"thread {number}"):
                    wrapped.chat.completions.create(model="gpt-4.1", messages=said, tools=kits[one])
        last = provider.requests[-1].json
    whys = [call.reasons[-1].why for call in session.calls if call.agent == "clerk"]
    back = whys.index("dearer_as_fork")
    assert "shares" in whys[:back]
    assert set(whys[back:]) <= {"dearer_as_fork", "not_in_fork_share"}
    assert last["tools"] == kits["clerk"]
    assert any("'clerk' goes back to its own layout" in note for note in session.report().notes)
    assert "clerk: as forks requests of all roles cost" in str(session.report())
