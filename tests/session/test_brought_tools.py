"""A tool that comes with a request may be made for its user: no other user's requests hold it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.bodies import Role, fork_body
from cacheprefix.prompt import ESTIMATE, dumps
from tests.drawn import examples

HANDBOOK = "The handbook of the house. " * 300
USERS = ("alice", "bob", "carol")
STEPS = st.tuples(st.sampled_from(USERS), st.sampled_from(("planner", "critic", "writer")), st.integers(0, 3))


def _tool(user, number):
    """Of each number there is one a user, all under one name, or each under its own."""
    name = f"house_{user}" if number == 3 else f"house_{number}"
    told = {"name": name, "description": f"Asks the house of {user}.", "parameters": {"type": "object"}}
    return {"type": "function", "function": told}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["named", "unnamed", "tenants"])
@settings(max_examples=examples(60), deadline=None)
@given(st.lists(STEPS, min_size=2, max_size=24))
def test_no_request_holds_a_tool_that_another_user_brought(way, steps):
    """Whoever asks first, in whichever roles, with the very same words; a role's own tools are in its requests."""
    session = Session(SharedPrefix(system=HANDBOOK), gate=None, caching=Caching(counter=ESTIMATE))
    said = {user: [{"role": "user", "content": "Go on."}] for user in USERS}
    for user, role, number in steps:
        system = {"role": "system", "content": f"{HANDBOOK}\n\nYou are the {role}."}
        body = {"model": "gpt-5.1", "messages": [system, *said[user]]}
        if number:
            body["tools"] = [_tool(user, number)]
        asks = session.child(user, scope=user) if way == "tenants" else session
        fork = fork_body(asks.adapter, body, "openai-chat", Role(role, conversation="" if way == "unnamed" else user))
        turn = fork.begin(fork.queue())
        turn.finish({"prompt_tokens": 2_000, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 0}})
        sent = dumps(fork.body.get("tools") or [], "tools").decode()
        assert not [other for other in USERS if other != user and other in sent]
        assert not number or f"house of {user}" in sent
        said[user] += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Go on."}]
    assert session.failures == {}
