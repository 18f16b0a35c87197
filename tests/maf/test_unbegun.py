"""What is sent where a request was laid out as a fork and then could not be begun: the application's own."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from agent_framework import FunctionTool
from maf_teams import LONG, TASK, look, prompts, role, served, tail_at
from test_agents import APIS, said, session_for, team

from cacheprefix import CacheprefixWarning, Gate
from cacheprefix.layout import with_volatile
from cacheprefix.server import ToolCall
from cacheprefix_maf import wrap

BEGINS = (
    "cacheprefix.calls.begin.plan_breakpoints",
    "cacheprefix.calls.begin.mark",
    "cacheprefix.cache.CacheModel.begin",
    "cacheprefix.calls.state.decode",
)
"""Steps without which no request is begun."""
CALLS = [ToolCall("look", id="call_1"), "Done."] * 4
"""What a planner does, the same in every run."""


def raising(*_, **__):
    """In place of a step of ours."""
    raise RuntimeError("on purpose")


def sent(provider):
    """The bodies of all requests; OpenAI's responses number their items, which differ in every run."""
    return [re.sub(rb'"fc_\w+"', b'"fc"', record.body) for record in provider.requests]


def two(client, api, ran=lambda: None):
    """Two roles with a tool each; ``ran`` is called when the planner's runs."""

    def run(query: str = "") -> str:
        ran()
        return LONG

    options = {"default_options": {"store": False}} if api == "openai-responses" else {}
    own = FunctionTool(name="look", description="Looks things up.", func=run)
    return role(client, "planner", tools=[own], **options), role(client, "critic", tools=[look("write")], **options)


@pytest.mark.slow
@pytest.mark.parametrize("step", BEGINS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
async def test_a_fork_that_cannot_be_begun_is_the_application_s_request(servers, api, stream, step, monkeypatch):
    """Byte for byte; only the text for this one call stands behind it; and the next request is a fork again."""
    now: dict[str, str] = {}
    session = session_for(api, gate=Gate(600.0, price=0.0))
    async with served(servers, api, planner=CALLS) as (client, provider):
        planner, critic = two(client, api)
        plain = [(await said(planner, stream=stream)).text]
        for agent in (planner, critic):
            wrap(agent, session, volatile=lambda: now)
        with monkeypatch.context() as broken, pytest.warns(CacheprefixWarning, match="on purpose"):
            broken.setattr(step, raising)
            failed = [(await said(planner, stream=stream)).text]
            now["time"] = "12:01"
            failed += [(await said(planner, stream=stream)).text]
        assert (session.failures["begin"], session.report().total.calls) == (4, 0)
        now.clear()
        await asyncio.wait_for(said(planner, stream=stream), 60)
    assert failed == plain * 2
    bodies = sent(provider)
    assert bodies[2:4] == bodies[:2]
    for own, body in zip(bodies[:2], bodies[4:6], strict=True):
        told = with_volatile(json.loads(own), api, "<time>\n12:01\n</time>")
        assert json.loads(body) == told
    assert all(tail_at(prompt) for prompt in prompts(provider)[6:])
    assert session.report().total.calls == 2


@pytest.mark.parametrize("step", ["cacheprefix.cache.CacheModel.begin", "cacheprefix_maf.model_call.laid_out"])
async def test_a_failure_behind_a_fork_sends_the_application_s_tools(servers, step, monkeypatch):
    """In the middle of a tool loop too, where stand-ins for the others' tools are in the framework's own list."""
    session = session_for("openai-chat")
    async with served(servers, "openai-chat", planner=CALLS) as (client, provider):
        planner, critic = two(client, "openai-chat", lambda: wrapped and monkeypatch.setattr(step, raising))
        wrapped: list[object] = []
        await planner.run(TASK)
        wrapped += [wrap(planner, session), wrap(critic, session)]
        with pytest.warns(CacheprefixWarning, match="on purpose"):
            await planner.run(TASK)
    assert tail_at(prompts(provider)[2])
    assert sent(provider)[3] == sent(provider)[1]


async def test_nobody_waits_for_a_fork_that_was_not_begun(servers, monkeypatch):
    """It writes nothing that its siblings could read: both are on their way before either is answered."""
    gone, both = [], asyncio.Event()

    async def leave(request):
        gone.append(request)
        if len(gone) == 2:
            both.set()
        await asyncio.wait_for(both.wait(), 10)

    session = session_for("anthropic", gate=Gate(600.0, price=0.0))
    async with served(servers, "anthropic") as (client, _):
        client.anthropic_client._client.event_hooks["request"].append(leave)
        monkeypatch.setattr("cacheprefix.cache.CacheModel.begin", raising)
        with pytest.warns(CacheprefixWarning, match="on purpose"):
            await asyncio.gather(*(agent.run(TASK) for agent in team(client, session)[:2]))
    assert session.failures == {"begin": 2}
