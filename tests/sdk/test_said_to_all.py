"""What the user gave to the session, or said to a conversation, arrives with the real clients in every layout."""

from __future__ import annotations

import json

import pytest
from sdk_driver import MODELS, RULES, creator, make_client

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.server import Reply, SimulatedProvider
from cacheprefix_sdk import role, wrap

HANDBOOK = "Every statement needs a source that the reader can open. " * 80
FACT, CARD, ZONE = "It is raining in Bern.", "You look at prices alone.", "The customer prefers trains."


def asked(api, provider, session, said, name):
    """One request of a role; what was sent."""
    extra = {"max_tokens": 64} if api == "anthropic" else {}
    with make_client(api, provider) as client, role(name, conversation="one"):
        creator(wrap(client, session), api)(
            **{"model": MODELS[api], "input" if api == "openai-responses" else "messages": said, **extra}
        )
    return provider.requests[-1].body.decode()


@pytest.mark.parametrize("api", tuple(RULES))
@pytest.mark.parametrize("system", [HANDBOOK, ""], ids=["fork", "own"])
def test_durable_context_and_zones_are_said_once(api, system):
    """In a fork and in a role's own layout; the role's card too; what cannot be said is named."""
    with SimulatedProvider(RULES[api], lambda _: Reply("Noted.")) as provider:
        prefix = SharedPrefix(system=system, context={"weather": FACT}, roles={"clerk": CARD})
        session = Session(prefix, caching=Caching(provider=RULES[api]))
        session.conversation("one").set_zone("memories", ZONE)
        said, sent = [{"role": "user", "content": "Begin."}], []
        for name in ("clerk", "critic"):
            sent.append(asked(api, provider, session, said, name))
            said += [{"role": "assistant", "content": "Noted."}, {"role": "user", "content": "Go on."}]
        session.conversation("one").append_context("The line is closed.", key="news")
        asked(api, provider, session, said, "clerk")
    assert {call.layout for call in session.calls} == {"fork" if system else "own"}
    assert [(one.count(FACT), one.count(ZONE)) for one in sent] == [(1, 1)] * 2
    assert sent[0].count(CARD) == 1
    bodies = [json.loads(one)["input" if api == "openai-responses" else "messages"] for one in sent]
    before = [text for text in map(str, bodies[0]) if ZONE in text]
    assert before[0] in map(str, bodies[1])
    assert session.failures == {}
    assert any("append_context" in note for note in session.report().notes)
