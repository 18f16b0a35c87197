"""What is sent where a request is not, or cannot be, a fork: the application's own, and the text for this one call."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from ag2_driver import agent, configured
from test_layout import named, session
from test_wrap import APIS

from cacheprefix import CacheprefixWarning, Gate
from cacheprefix_ag2 import wrap

BEGINS = (
    "cacheprefix.calls.begin.plan_breakpoints",
    "cacheprefix.calls.begin.mark",
    "cacheprefix.cache.CacheModel.begin",
    "cacheprefix.calls.state.decode",
)
"""Steps without which no request is begun."""
TIME = {"role": "user", "content": "<time>\n12:01\n</time>"}


def raising(*_, **__):
    """In place of a step of ours."""
    raise RuntimeError("on purpose")


def sent(server):
    """The bodies of all requests, without the ids that a provider numbers its calls with."""
    return [re.sub(rb'"(fc|call|toolu)_\w+"', b'"id"', record.body) for record in server.requests]


def told(body, api):
    """A body with the text for one call at its end."""
    found = json.loads(body)
    found["input" if api == "openai-responses" else "messages"].append(TIME)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("step", BEGINS)
@pytest.mark.parametrize(("api", "streaming"), [(api, streaming) for api in APIS for streaming in (False, True)])
async def test_a_fork_that_cannot_be_begun_is_the_applications_request(fresh, api, streaming, step, monkeypatch):
    """Byte for byte; only the text that was given for this call stands behind it; and the next one is a fork again."""
    server, now, shared = fresh(api), {}, session(gate=Gate(600.0, price=0.0))
    async with configured(api, server, streaming=streaming) as config:
        agents = [agent("planner", config, tools=[named("look")]), agent("critic", config, tools=[named("write")])]
        agents[0].prompt(lambda: "It is Monday.")
        answers = [await agents[0].ask("Call look.")]
        wrap(agents, shared, volatile=lambda: now)
        with monkeypatch.context() as broken, pytest.warns(CacheprefixWarning, match="on purpose"):
            broken.setattr(step, raising)
            answers += [await agents[0].ask("Call look.")]
            now["time"] = "12:01"
            answers += [await agents[0].ask("Call look.")]
        assert (shared.failures["begin"], shared.report().total.calls) == (4, 0)
        await asyncio.wait_for(agents[0].ask("Call look."), 60)
    bodies = sent(server)
    assert all(answer.body.startswith("Answer") for answer in answers)
    assert bodies[2:4] == bodies[:2]
    assert [json.loads(body) for body in bodies[4:6]] == [told(body, api) for body in bodies[:2]]
    assert all(b"<role name=" in body for body in bodies[6:])
    assert shared.report().total.calls == 2


async def test_nobody_waits_for_a_fork_that_was_not_begun(fresh, monkeypatch):
    """It writes nothing that its siblings could read: both are on their way before either is answered."""
    gone, both = [], asyncio.Event()

    async def leave(request):
        gone.append(request)
        if len(gone) == 2:
            both.set()
        await asyncio.wait_for(both.wait(), 10)

    shared = session(gate=Gate(600.0, price=0.0))
    async with configured("anthropic", fresh("anthropic")) as config:
        agents = wrap([agent("planner", config), agent("critic", config)], shared)
        config.http_client.event_hooks = {"request": [leave]}
        monkeypatch.setattr("cacheprefix.cache.CacheModel.begin", raising)
        with pytest.warns(CacheprefixWarning, match="on purpose"):
            await asyncio.gather(*(each.ask("What now?") for each in agents))
    assert shared.failures == {"begin": 2}


@pytest.mark.parametrize("api", APIS)
async def test_an_agent_that_shares_nothing_is_told_its_text_for_one_call(fresh, api):
    """Behind its own request, which stays as it was."""
    server = fresh(api)
    async with configured(api, server) as config:
        alone = agent("planner", config)
        await alone.ask("What now?")
        await wrap(alone, session(), volatile=lambda: {"time": "12:01"}).ask("What now?")
    plain, wrapped = sent(server)
    found = json.loads(wrapped)
    found.pop("prompt_cache_key", None)
    assert found == told(plain, api)
