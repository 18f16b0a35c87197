"""Whose words stand in a prompt: runs of one workflow, and agents that serve several people."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from contextvars import ContextVar

import pytest
from agent_framework import AgentSession, FunctionTool, Message
from agent_framework.orchestrations import SequentialBuilder
from maf_driver import RULES
from maf_teams import HANDBOOK, NAMES, role, served

from cacheprefix import Caching, Compaction, Session, SharedPrefix
from cacheprefix.errors import SetupError
from cacheprefix.server import Reply, ToolCall
from cacheprefix_maf import wrap
from tests.talks import BOUNDS, LONG, USERS, asking, check, played, question


async def test_workflows_of_two_people_are_two_conversations(servers):
    """And a run of one sees of earlier runs what it sees unwrapped, as its agents keep their history."""
    seen = []
    for wrapped in (False, True):
        session = Session(SharedPrefix(system=HANDBOOK), gate=None)
        async with served(servers, "openai-chat") as (client, provider):
            made = [SequentialBuilder(participants=[role(client, name) for name in NAMES]).build() for _ in USERS[:2]]
            for number in range(4):
                if wrapped:
                    wrap(made[number % 2], session)
                await made[number % 2].run(f"{USERS[number % 2]} asks {number}.")
            bodies = [record.body.decode() for record in provider.requests]
            seen.append([[user for user in USERS if user in body] for body in bodies])
            assert not session.failures
    assert seen[0] == seen[1] == [[user] for user in USERS[:2] * 2 for _ in NAMES]


def answer(request):
    """What the model says to someone: their own words, where it was told any."""
    number, named = request.index, re.search("|".join(USERS), request.text)
    return Reply(f"{named.group()} is answered: {named.group()}-answer-{number}." if named else f"Well {number}.")


@pytest.mark.slow
@BOUNDS
@pytest.mark.parametrize("api", tuple(RULES))
@pytest.mark.parametrize("held", [False, True], ids=["messages", "sessions"])
@played
def test_no_section_of_one_is_in_anothers_prompt_and_no_message_is_missing(
    servers, api, bounds, held, given_turns, people
):
    """Two and three people with equal texts ask the same two agents, by turns and at a time.

    With a session each, or with their messages and nothing that says whose they are.
    """
    session = Session(SharedPrefix(system=HANDBOOK), gate=None, caching=Caching(provider=RULES[api]), **bounds)
    talks = {user: [] for user in USERS[:people]}
    options = {"default_options": {"store": False}} if api == "openai-responses" else {}
    compacted = 0

    async def go():
        nonlocal compacted
        async with served(servers, api) as (client, provider):
            provider.simulator.script = answer
            agents = [wrap(role(client, name, **options), session) for name in ("helper", "critic")]
            sessions = {user: agents[0].create_session() for user in talks}
            for number, turn in enumerate(given_turns):
                now, start = asking(turn, people), len(provider.requests)
                agent = agents[0 if held else number % 3 // 2]
                for user in now:
                    # The framework's own history holds an equal message of one person's but once.
                    which = f" ({len(talks[user])})" if held else ""
                    talks[user].append(Message("user", [f"{question(user, number, turn)}{which}"]))
                answers = await asyncio.gather(*(
                    agent.run(talks[user][-1], session=sessions[user]) if held else agent.run(list(talks[user]))
                    for user in now
                ))  # fmt: skip
                compacted += check(provider.requests[start:], {user: [one.text for one in talks[user]] for user in now})
                for user, made in zip(now, answers, strict=True):
                    talks[user].append(Message("assistant", [made.text], author_name=agent.name))

    asyncio.run(go())
    assert compacted or given_turns is not LONG or "compaction" not in bounds
    assert not session.failures


WHO = ContextVar("who")
"""Whose question is answered."""


def looks(request):
    """The model looks first, and answers in the words of who asks."""
    number = re.findall(r"asks (\d)", request.text)[-1]
    if f"'s log {number}" not in request.text:
        return Reply(tool_calls=(ToolCall("look", {"query": number}),))
    return answer(request)


async def look(query: str) -> str:
    """The log of who asks."""
    await asyncio.sleep(0.01)
    return f"{WHO.get()}'s log {query}"


def retrieved():
    """What was found for who asks."""
    return {"found": f"Found for {WHO.get()}."}


async def two_ask(provider, agents, way, *, held=True):
    """Two people ask their agents side by side, twice; whose words stand in each one's requests."""
    provider.simulator.script = looks

    async def asks(user):
        WHO.set(user)
        session, said = AgentSession() if held else None, []
        for number in range(2):
            for agent in agents[user]:
                # Equal for both, where it is not the first one.
                said.append(Message("user", [f"{user} asks 0." if not said else f"One asks {number}."]))
                asked = said[-1] if held else list(said)
                if way == "stream":
                    stream = agent.run(asked, session=session, stream=True)
                    async for _ in stream:
                        pass
                    gave = await stream.get_final_response()
                else:
                    gave = await agent.run(asked, session=session)
                said.append(Message("assistant", [gave.text], author_name=agent.name))

    await asyncio.gather(*(asyncio.create_task(asks(user)) for user in USERS[:2]))
    return [[user for user in USERS if user in record.body.decode()] for record in provider.requests]


@pytest.mark.parametrize("way", ["whole", "stream"])
@pytest.mark.parametrize("held", [True, False], ids=["sessions", "messages"])
@pytest.mark.parametrize("api", tuple(RULES))
async def test_agents_made_once_tell_nobody_what_is_anothers(servers, api, held, way):
    """Neither their words, nor volatile text, nor what a tool told them, while two people ask side by side."""
    session = Session(SharedPrefix(system=HANDBOOK), gate=None)
    options = {"default_options": {"store": False}} if api == "openai-responses" else {}
    async with served(servers, api) as (client, provider):
        agents = [role(client, name, tools=[look], **options) for name in NAMES[:2]]
        wrap(agents, session, volatile=retrieved)
        seen = await two_ask(provider, dict.fromkeys(USERS[:2], agents), way, held=held)
        bodies = [record.body.decode() for record in provider.requests]
    assert sorted(seen) == [[user] for user in USERS[:2] for _ in range(len(seen) // 2)]
    assert all(body.count("Found for ") == 1 for body in bodies)
    assert any("'s log 0" in body for body in bodies)
    assert not session.failures


@pytest.mark.parametrize("api", tuple(RULES))
async def test_agents_that_are_refused_for_a_second_user_are_made_for_each(servers, api):
    """As the error says: then neither reads the other's scope, volatile text or kept tool results."""
    session = Session(SharedPrefix(system=HANDBOOK), gate=None, tool_cache=["look"])
    options = {"default_options": {"store": False}} if api == "openai-responses" else {}
    told = FunctionTool(name="look", description="The log of who asks.", func=look)
    async with served(servers, api) as (client, provider):
        agents = {user: [role(client, name, tools=[told], **options) for name in NAMES[:2]] for user in USERS[:2]}
        for user, own in agents.items():
            said = {"scope": user, "volatile": lambda user=user: {"found": f"Found for {user}."}}
            for one in agents[USERS[0]] if user != USERS[0] else ():
                with pytest.raises(SetupError, match=r"wrapped already with another .*make an agent for each user"):
                    wrap(one, session, **said)
            wrap(own, session, **said)
        seen = await two_ask(provider, agents, "whole")
        bodies = [record.body.decode() for record in provider.requests]
    assert sorted(seen) == [[user] for user in USERS[:2] for _ in range(len(seen) // 2)]
    assert all(body.count("Found for ") == 1 for body in bodies)
    assert not session.failures


class ByName(FunctionTool):
    """A tool that is equal to any other of its name."""

    def __eq__(self, other):
        return isinstance(other, FunctionTool) and other.name == self.name

    def __hash__(self):
        return hash(self.name)


class Compared(FunctionTool):
    """A tool that has no hash, as a dataclass has none."""

    def __eq__(self, other):
        return self is other

    __hash__ = None


@pytest.mark.parametrize("kind", [ByName, Compared])
@pytest.mark.parametrize("api", tuple(RULES))
async def test_a_tool_that_is_equal_to_another_persons_is_shown_as_it_is(servers, api, kind):
    """Made for who asks, with words for one of them: alice's stood in bob's prompt, or nothing could be wrapped."""
    options = {"default_options": {"store": False}} if api == "openai-responses" else {}
    session = Session(SharedPrefix(system=HANDBOOK), gate=None)
    async with served(servers, api) as (client, provider):
        for person in USERS[:2]:
            made = {"name": "files", "description": f"The files of {person}.", "func": lambda query: query}
            agents = [role(client, name, tools=[kind(**made)], **options) for name in NAMES]
            for agent in wrap(agents, session, conversation=person):
                await agent.run("What is there?")
        bodies = [record.body.decode() for record in provider.requests]
    assert [[user for user in USERS if user in body] for body in bodies] == [[u] for u in USERS[:2] for _ in NAMES]
    assert not session.failures


@pytest.mark.parametrize("first", ["planner", "critic"])
@pytest.mark.parametrize("whose", ["agent", "run"])
@pytest.mark.parametrize("api", tuple(RULES))
async def test_a_tool_that_is_told_anew_is_shown_as_it_is(servers, api, whose, first):
    """Each person's words stood in the next one's prompt, or the words of another agent's tool of that name.

    The agent's own tool, whose description the application changes, or one that comes with a run.
    """
    options = {"default_options": {"store": False}} if api == "openai-responses" else {}
    session = Session(SharedPrefix(system=HANDBOOK), gate=None)

    def files(person):
        return FunctionTool(name="files", description=f"The files of {person}.", func=lambda query: query)

    async with served(servers, api) as (client, provider):
        own = files(USERS[0] if whose == "agent" else "everybody")
        planner, critic = (role(client, name, **options) for name in NAMES[:2])
        (planner if whose == "agent" else critic).default_options["tools"] = [own]
        wrap([planner, critic], session)
        for person in USERS:
            if whose == "agent":
                own.description = files(person).description
            brought = [] if whose == "agent" else [files(person)]
            for agent in (planner, critic) if first == "planner" else (critic, planner):
                await agent.run(f"{person} asks the {agent.name}.", tools=brought if agent is planner else [])
        bodies = [record.body.decode() for record in provider.requests]
    assert [[user for user in USERS if user in body] for body in bodies] == [[u] for u in USERS for _ in NAMES[:2]]
    asked = bodies[first == "critic" :: 2]
    assert all(f"The files of {person}." in body for person, body in zip(USERS, asked, strict=True))
    assert not session.failures


@pytest.mark.parametrize("first", ["planner", "writer"])
@pytest.mark.parametrize("way", ["workflows", "sessions", "messages"])
@pytest.mark.parametrize("api", tuple(RULES))
async def test_agents_made_once_carry_nothing_of_the_workflow_that_they_were_wrapped_in(servers, api, way, first):
    """Into a workflow of another person, or where they are asked by themselves: bob was shown what alice's files are.

    The conversation of the first workflow was theirs for good, and with it what belongs to its user.
    """
    options = {"default_options": {"store": False}} if api == "openai-responses" else {}
    session = Session(SharedPrefix(system=HANDBOOK), gate=None)
    own = FunctionTool(name="files", description=f"The files of {USERS[0]}.", func=lambda query: query)
    async with served(servers, api) as (client, provider):
        agents = [role(client, name, tools=[own] if name == "planner" else [], **options) for name in NAMES]
        agents = agents if first == "planner" else agents[::-1]
        for person in USERS[:2]:
            own.description = f"The files of {person}."
            if way == "workflows" or person == USERS[0]:
                await wrap(SequentialBuilder(participants=agents).build(), session).run(f"{person} asks.")
                continue
            for each in agents:
                await each.run(f"{person} asks.", session=AgentSession() if way == "sessions" else None)
        bodies = [record.body.decode() for record in provider.requests]
    assert [[user for user in USERS if user in body] for body in bodies] == [[u] for u in USERS[:2] for _ in NAMES]
    assert not session.failures


async def test_each_of_two_workflows_with_the_same_agents_is_a_conversation_of_its_own(servers):
    """Side by side, and wrapped again."""
    session = Session(SharedPrefix(system=HANDBOOK), gate=None)
    async with served(servers, "openai-chat") as (client, _):
        agents = [role(client, name) for name in NAMES]
        flows = [wrap(SequentialBuilder(participants=agents).build(), session) for _ in USERS[:2]]
        for _ in range(2):
            asked = zip(USERS, flows, strict=False)
            await asyncio.gather(*(wrap(flow, session).run(f"{user} asks.") for user, flow in asked))
    assert list(Counter(call.conversation for call in session.calls).values()) == [2 * len(NAMES)] * 2
    assert not session.failures


async def test_an_agent_in_a_workflow_and_in_one_inside_of_it_is_wrapped_once(servers):
    """Else its requests are laid out, and counted, twice."""
    session = Session(SharedPrefix(system=HANDBOOK), gate=None)
    async with served(servers, "openai-chat") as (client, provider):
        planner, critic = (role(client, name) for name in NAMES[:2])
        inner = SequentialBuilder(participants=[planner, critic]).build()
        await wrap(SequentialBuilder(participants=[inner.as_agent("inner"), planner]).build(), session).run("Go on.")
    assert len(planner.middleware) == len(critic.middleware) == 2
    assert len(provider.requests) == len(session.calls) == 3
    assert not session.failures


class ById(AgentSession):
    """A session that is equal to any other of its id."""

    def __eq__(self, other):
        return isinstance(other, AgentSession) and other.session_id == self.session_id

    def __hash__(self):
        return hash(self.session_id)


class Unhashed(AgentSession):
    """A session that has no hash."""

    def __eq__(self, other):
        return self is other

    __hash__ = None


@pytest.mark.parametrize("kind", [ById, Unhashed])
async def test_a_session_that_is_equal_to_a_later_one_goes_back_to_what_was_saved(servers, kind):
    """As in another process: what was decided behind it does not count."""
    compaction = Compaction(trigger=4_000, keep_turns=1, keep_users=False, horizon=10_000)

    def made(client):
        shared = Session(SharedPrefix(system=HANDBOOK), gate=None, compaction=compaction)
        return wrap([role(client, name) for name in NAMES], shared)[0], shared

    async with served(servers, "openai-chat", planner=["Said."] * 9) as (client, provider):
        (planner, shared), held = made(client), kind(session_id="s")
        for number in range(8):
            if number == 2:
                saved = json.dumps(held.to_dict())
            await planner.run(f"{number}: " + "Some words of the task. " * 160, session=held)
        assert b"Earlier messages were removed" in provider.requests[-1].body
        for each in (planner, made(client)[0]):
            await each.run("Go on.", session=kind.from_dict(json.loads(saved)))
    assert provider.requests[-1].body == provider.requests[-2].body
    assert not shared.failures
