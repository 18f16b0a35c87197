"""What a preview says of agents is what they then send, and nothing comes of the preview itself."""

from __future__ import annotations

import asyncio

import pytest
from agent_framework import ChatMiddleware, ContextProvider
from agent_framework.orchestrations import ConcurrentBuilder, GroupChatBuilder, HandoffBuilder, SequentialBuilder
from maf_teams import NAMES, TASK, look, role, served

from cacheprefix import Session, cli, preview
from cacheprefix_maf import wrap

BRIEF = {name: ["ok"] for name in NAMES}
"""Answers that hardly count in what others read."""
APIS = ("openai-chat", "openai-responses", "anthropic")
LONG_TASK = TASK * 60


async def foreseen(*given, **options):
    """A preview, made beside the event loop."""
    return await asyncio.to_thread(preview, *given, **options)


def in_turn(client):
    """Three roles one after the other."""
    return SequentialBuilder(participants=[role(client, name) for name in NAMES]).build()


def side_by_side(client):
    """Three roles at once, each with a tool of its own."""
    agents = [role(client, name, tools=[look(f"look_{name}")]) for name in NAMES]
    return ConcurrentBuilder(participants=agents).build()


def handed_over(client):
    """One of them may hand the talk over to any other."""
    kept = {"require_per_service_call_history_persistence": True}
    agents = [role(client, name, **kept) for name in NAMES]
    built = HandoffBuilder(participants=agents, termination_condition=lambda said: len(said) > 1)
    return built.with_start_agent(agents[0]).build()


def alone(client):
    """One agent, by itself."""
    return role(client, "planner")


def first_calls(session):
    """Each agent's first call."""
    found = {}
    for call in session.calls:
        found.setdefault(call.agent, call)
    return found


def counted(one):
    """What a request comes to."""
    return [one.input_tokens, one.shared_tokens, one.units, one.unmodified_units]


@pytest.mark.parametrize("build", [in_turn, side_by_side, handed_over, alone])
@pytest.mark.parametrize("api", APIS)
async def test_what_was_foreseen_is_what_is_sent(servers, api, build):
    """Agent, layout, reasons, tokens and costs of each first request, by the provider's own count."""
    async with served(servers, api, **BRIEF) as (client, provider):
        seen = await foreseen(build(client), Session(), task=LONG_TASK)
        assert not provider.requests
        session = Session()
        await wrap(build(client), session).run(LONG_TASK)
    calls = first_calls(session)
    assert calls
    asked = [one for one in seen.requests if one.agent in calls]
    # Of those that ask side by side, chance says which one comes first and writes what the others read.
    came = calls.values() if build is side_by_side else [calls[one.agent] for one in asked]
    for one, call in zip(asked, came, strict=True):
        assert [reason.why for reason in one.reasons] == [reason.why for reason in calls[one.agent].reasons]
        assert one.layout == calls[one.agent].layout
        # A few tokens of the rounding to blocks are read or not by who came first.
        assert counted(one) == pytest.approx(counted(call), rel=0.05, abs=8)


async def test_the_application_and_its_session_are_as_they_were(servers):
    """Wrapped or not; what runs afterwards sends what it would have sent."""
    async with served(servers, "openai-chat", **BRIEF) as (client, provider):
        session, workflow = Session(), in_turn(client)
        before = dict(vars(client))
        first = await foreseen(workflow, session, task=LONG_TASK)
        assert vars(client) == before
        assert session.calls == ()
        assert session.prefix.text == ""
        await wrap(workflow, session).run(LONG_TASK)
        sent = [record.body for record in provider.requests]
        assert (await foreseen(workflow, session, task=LONG_TASK)).requests == first.requests
        assert len(provider.requests) == len(sent)
        provider.reset()
        await wrap(in_turn(client), Session()).run(LONG_TASK)
        assert [record.body for record in provider.requests] == sent


async def test_nothing_of_the_application_is_run(servers):
    """No tool, middleware or context provider: what only they know is said, and so is what a manager asks."""
    ran = []

    class Tells(ChatMiddleware):
        async def process(self, context, call_next):
            ran.append("middleware")
            await call_next()

    class Remembers(ContextProvider):
        async def before_run(self, **_):
            ran.append("provider")

    async with served(servers, "openai-chat", **BRIEF) as (client, provider):
        odd = role(client, "planner", tools=[look(ran=ran)], middleware=[Tells()])
        odd.context_providers = [Remembers("memory")]
        client.chat_middleware = [Tells()]
        leader = role(client, "leader")
        chat = GroupChatBuilder(participants=[odd, role(client, "critic")], orchestrator_agent=leader).build()
        seen = await foreseen(chat, Session(), task=LONG_TASK)
        assert not provider.requests
    assert not ran
    assert [one.agent for one in seen.requests] == ["planner", "critic"]
    assert [one.unmodified_units for one in seen.requests] == [None, None]
    told = "\n".join(seen.notes)
    assert "planner: what its own middleware changes" in told
    assert "planner: what its context providers add" in told
    assert f"{type(client).__name__}: what its own middleware changes" in told
    assert "leader: what it asks follows from" in told


APP = """
import openai
from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient
from agent_framework.orchestrations import SequentialBuilder

HANDBOOK = "Every statement needs a source. " * 200
sdk = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k")
client = OpenAIChatClient(model="gpt-5.6", async_client=sdk)
NAMES = ("planner", "critic", "writer")

def made(**options):
    agents = [Agent(client, f"You are the {name}.\\n\\n{HANDBOOK}", name=name, **options) for name in NAMES]
    return SequentialBuilder(participants=agents).build()

team = made(default_options={"store": False})
"""


def test_doctor_says_it_of_a_program(tmp_path, capsys):
    """What each of a team's agents will share, and why, by the command line."""
    path = tmp_path / "maf_app.py"
    path.write_text(APP, encoding="utf-8")
    assert cli.main(["doctor", f"{path}:team", "--task", TASK]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[:3]] == list(NAMES)
    assert all("fork (laid out as a fork" in line for line in lines[:3])
    assert any(line.startswith("expected cost of these first requests against unmodified: 0.") for line in lines)
    assert cli.main(["doctor", f"{path}:made"]) == 0
    assert (
        "agent 'critic' is only measured: the service keeps its history (store=False shares)" in capsys.readouterr().out
    )
