"""Why the Agent Framework's requests went out as they did, as the application reads it, and what strict mode raises."""

from __future__ import annotations

import asyncio

import pytest
from agent_framework import Agent, tool
from agent_framework.orchestrations import SequentialBuilder
from maf_teams import TASK, look, role, served
from test_agents import said, session_for, team

import cacheprefix
from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.errors import NotSharedError, SetupError
from cacheprefix.prompt import ESTIMATE
from cacheprefix_maf import session_of, unwrap, wrap

API = "openai-chat"
HANDBOOK = "Every statement needs a source that the reader can open. " * 120


def whys(session):
    """Layout and kinds of reasons, a call each."""
    return [(call.layout, [one.why for one in call.reasons]) for call in session.calls]


def agents(client, session, *, prompt=HANDBOOK, **options):
    """Two wrapped agents that have a text in common."""
    names = ("planner", "critic")
    return [
        wrap(role(client, name, instructions=f"{prompt}\n\nYou are the {name}.", **options), session) for name in names
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_forks_say_what_they_share(servers, stream):
    """Tokens that stand before the role's text, fewer than the request has."""
    session = session_for(API)
    async with served(servers, API) as (client, _):
        for agent in team(client, session, API):
            await said(agent, stream=stream)
    assert {layout for layout, _ in whys(session)} == {"fork"}
    for call in session.calls:
        assert call.reasons[0].why == "shares"
        assert 0 < dict(call.reasons[0].numbers)["shared"] <= call.input_tokens


async def test_what_keeps_its_own_layout_says_why(servers):
    """A short prompt, a single role, a session that observes."""
    short = Session(SharedPrefix(system="Be brief."), caching=Caching(provider="openai", counter=ESTIMATE))
    watching = Session(
        SharedPrefix(system=HANDBOOK), caching=Caching(provider="openai", counter=ESTIMATE), mode="observe"
    )
    single = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider="openai", counter=ESTIMATE))
    async with served(servers, API) as (client, _):
        for agent in [*agents(client, short, prompt="Be brief."), *agents(client, watching)]:
            await agent.run(TASK)
        await wrap(role(client, "planner"), single).run(TASK)
    assert whys(short) == [("own", ["prefix_below_minimum"])] * 2
    assert whys(watching) == [("observed", ["observe_mode"])] * 2
    assert whys(single) == [("own", ["alone"])]
    assert dict(short.calls[0].reasons[0].numbers)["minimum"] == 1_024


async def test_tools_that_the_provider_defines_are_named_by_their_type(servers):
    """The framework hands them on as plain dicts, a shell that the application runs as a function of that kind.

    OpenAI's custom tools are not among them.
    """

    @tool(kind="shell")
    def run(command: str) -> str:
        """Run a command."""
        return command

    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider="openai", counter=ESTIMATE))
    tools = [{"type": "web_search"}, {"type": "custom", "custom": {"name": "code"}}, look(), run]
    async with served(servers, API) as (client, _):
        await agents(client, session, tools=tools)[0].run(TASK)
    assert [one.name for one in session.calls[0].reasons if one.why == "provider_tools"] == ["shell, web_search"]


@pytest.mark.parametrize("stream", [False, True])
async def test_strict_raises_before_anything_is_sent(servers, stream):
    """An older version of the shared text would be sent beside it."""
    session = Session(
        SharedPrefix(system=HANDBOOK), caching=Caching(provider="openai", counter=ESTIMATE), mode="strict"
    )
    async with served(servers, API) as (client, provider):
        for agent in agents(client, session, prompt=HANDBOOK.replace(".", ", as of May.", 1)):
            with pytest.raises(NotSharedError, match="very text"):
                await said(agent, stream=stream)
        assert not provider.requests
    assert not session.failures


@pytest.mark.parametrize("how", ["one by one", "list", "dict"])
async def test_agents_without_a_workflow_share_what_their_instructions_have_in_common(servers, how):
    """Wrapped in a loop or at once, with sessions of their own, before the first request; nothing is declared."""
    session = Session(caching=Caching(provider="openai", counter=ESTIMATE))
    async with served(servers, API) as (client, provider):
        made = {name: role(client, name) for name in ("planner", "critic", "writer")}
        if how == "one by one":
            for agent in made.values():
                wrap(agent, session)
        else:
            given = made if how == "dict" else list(made.values())
            seen = await asyncio.to_thread(cacheprefix.preview, given, session, task=TASK)
            assert [one.layout for one in seen.requests] == ["fork"] * 3
            assert cacheprefix.wrap(given, session) is given
            assert session_of(given) is session
        for agent in made.values():
            await agent.run(TASK, session=agent.create_session())
        assert [layout for layout, _ in whys(session)] == ["fork"] * 3
        assert [record.outcome.read_tokens > 1_024 for record in provider.requests] == [False, True, True]
        unwrap(list(made.values()))
        assert [agent.middleware for agent in made.values()] == [None] * 3


async def test_agents_with_histories_and_tools_of_their_own_keep_their_layout(servers):
    """Tools stand in front of the text that they have in common: a fork would be paid for and read by nobody."""
    session = Session(caching=Caching(provider="openai", counter=ESTIMATE))
    async with served(servers, API) as (client, _):
        made = wrap([role(client, "planner", tools=[look("find")]), role(client, "critic")], session)
        for agent in made:
            await agent.run(TASK, session=agent.create_session())
    assert whys(session) == [("own", ["alone"])] * 2


async def test_an_agent_that_is_made_anew_for_each_request_shares_no_role_text(servers):
    """Two of one name are one role; and what was begun goes on as it was, whoever comes later."""
    session = Session(caching=Caching(provider="openai", counter=ESTIMATE))
    async with served(servers, API) as (client, _):
        wrap(role(client, "planner"), session)
        await wrap(role(client, "planner"), session).run(TASK)
        await wrap(role(client, "critic"), session).run(TASK)
    assert session.adapter.prefix.system == ""
    assert [layout for layout, _ in whys(session)] == ["own"] * 2


@pytest.mark.parametrize("target", [[], [object()], "team", None])
def test_what_cannot_be_wrapped_is_refused_with_what_can(target):
    """As a set-up mistake."""
    with pytest.raises(SetupError, match="wrap takes an agent, a list of them, or a workflow"):
        wrap(target)


def test_a_builder_is_refused_with_what_is_to_be_done():
    """It makes the agents' executors only when it is built."""
    made = SequentialBuilder(participants=[Agent(None, HANDBOOK, name="planner")])
    with pytest.raises(SetupError, match=r"found SequentialBuilder; call \.build\(\) first"):
        wrap(made, Session())
