"""Why ag2's requests went out as they did, as the application reads it, and what strict mode raises."""

from __future__ import annotations

import pytest
from ag2 import Agent, MemoryStream
from ag2_driver import HANDBOOK, RULES, configured, role_text
from test_layout import NAMES

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.errors import NotSharedError
from cacheprefix.prompt import ESTIMATE
from cacheprefix_ag2 import wrap

API = "openai-chat"


async def asked(fresh, *, system=HANDBOOK, prompt=HANDBOOK, names=NAMES, mode="fork"):
    """The calls of agents that are asked in turn on one stream."""
    session = Session(SharedPrefix(system=system), mode=mode, caching=Caching(provider=RULES[API], counter=ESTIMATE))
    server = fresh(API)
    async with configured(API, server) as config:
        agents = [Agent(name, f"{role_text(name)}\n\n{prompt}", config=config) for name in names]
        stream = MemoryStream()
        try:
            for each in wrap(agents, session):
                await each.ask("What is step 1?", stream=stream)
        finally:
            sent = len(server.requests)
    assert not session.failures
    return session.calls, sent


async def test_forks_say_what_they_share(fresh):
    """The handbook, at least, and never more than the request."""
    calls, _ = await asked(fresh)
    for call in calls:
        assert (call.layout, [one.why for one in call.reasons]) == ("fork", ["shares"])
        assert ESTIMATE(HANDBOOK, "") <= dict(call.reasons[0].numbers)["shared"] <= call.input_tokens


async def test_short_prompts_and_single_agents_say_why_they_are_left_alone(fresh):
    """By what the provider caches, and by who is there."""
    calls, _ = await asked(fresh, system="Be brief.", prompt="Be brief.")
    assert {call.layout for call in calls} == {"own"}
    for call in calls:
        assert call.reasons[0].why in ("prefix_below_minimum", "lane_of_its_own")
    (call,), _ = await asked(fresh, names=NAMES[:1], system="")
    assert (call.layout, call.reasons[0].why) == ("own", "alone")


async def test_observed_calls_say_so(fresh):
    """Nothing of ours was decided."""
    calls, _ = await asked(fresh, mode="observe")
    assert {(call.layout, call.reasons[0].why) for call in calls} == {("observed", "observe_mode")}


async def test_strict_raises_before_anything_is_sent(fresh):
    """An older version of the handbook would be sent beside it; costs never raise."""
    with pytest.raises(NotSharedError, match="very text"):
        await asked(fresh, prompt=HANDBOOK.replace(".", ", as of May.", 1), mode="strict")
    assert not fresh(API).requests
    await asked(fresh, system="Be brief.", prompt="Be brief.", mode="strict")
