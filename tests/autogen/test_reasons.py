"""Every call says how it was laid out and why; strict mode raises for what the user can remove."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from autogen_agentchat.agents import CodeExecutorAgent
from autogen_agentchat.conditions import TextMentionTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_agentchat.tools import AgentTool
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_core.models import CreateResult, SystemMessage, UserMessage
from autogen_core.tools import FunctionTool
from autogen_ext.code_executors.local import LocalCommandLineCodeExecutor
from autogen_teams import HANDBOOK, ROLES, TASK, Says, role, search
from pydantic import BaseModel

from cacheprefix import Session, SharedPrefix, preview
from cacheprefix.errors import NotSharedError
from cacheprefix.prompt import SAID
from cacheprefix.server import Queue, ToolCall
from cacheprefix_autogen import PrefixClient, session_of, wrap

OLDER = HANDBOOK.replace("by number", "by page", 3)
"""What the handbook said before: neither the same text nor another one."""
LONG_DUTIES = {name: f"You are the {name}. {f'Duty of {name}. ' * 2000}" for name in ROLES}


class Answer(BaseModel):
    """What an answer holds."""

    said: str


def whys(session: Session) -> list[tuple[str, str, list[str]]]:
    """Agent, layout and reasons of each call."""
    return [(call.agent, call.layout, [one.why for one in call.reasons]) for call in session.calls]


def numbers(session: Session, call: int = 0) -> dict[str, int]:
    """The numbers of a call's last reason."""
    return dict(session.calls[call].reasons[-1].numbers)


def asks(name: str) -> list[Any]:
    """What an application asks a client by itself."""
    return [SystemMessage(content=f"You are the {name}.\n\n{HANDBOOK}"), UserMessage(content=TASK, source="user")]


async def test_a_fork_says_how_much_stands_in_its_siblings_requests_too(provide, new_client):
    """More with every turn: the system text, and what was said."""
    provider = provide("openai", Says())
    team = wrap(RoundRobinGroupChat([role(name, new_client(provider)) for name in ROLES], max_turns=3))
    await team.run(task=TASK)
    session = session_of(team)
    assert whys(session) == [(name, "fork", ["shares"]) for name in ROLES]
    shared = [numbers(session, call)["shared"] for call in range(3)]
    assert 1024 < shared[0] < shared[1] < shared[2]
    assert all(one <= call.input_tokens for one, call in zip(shared, session.calls, strict=True))


async def test_a_team_that_shares_less_than_is_cached_says_how_much(provide, new_client):
    """The provider's minimum stands beside it."""
    provider = provide("openai", Says())
    agents = [role(name, new_client(provider), system_message=f"You are the {name}.") for name in ROLES]
    ends = TextMentionTermination("Never.")
    team = wrap(RoundRobinGroupChat(agents, termination_condition=ends, max_turns=1))
    await team.run(task="Go.")
    session = session_of(team)
    assert whys(session) == [("planner", "own", ["prefix_below_minimum"])]
    assert session.calls[0].reasons[0].name == "openai"
    assert 0 < numbers(session)["shared"] < numbers(session)["minimum"] == 1024


async def test_agents_whose_texts_would_cost_more_say_what_sharing_would_cost(provide, new_client):
    """The numbers are those of the first request, in a team that was loaded too."""
    provider = provide("openai", Says())

    def build():
        agents = [role(name, new_client(provider), system_message=LONG_DUTIES[name]) for name in ROLES]
        ends = TextMentionTermination("Never.")
        return wrap(RoundRobinGroupChat(agents, termination_condition=ends, max_turns=2))

    team = build()
    await team.run(task=TASK)
    session = session_of(team)
    assert whys(session) == [(name, "own", ["little_to_share"]) for name in ROLES[:2]]
    assert 0 < numbers(session)["saved"] < numbers(session)["cost"]
    resumed = build()
    await resumed.load_state(json.loads(json.dumps(await team.save_state())))
    await resumed.run(task="Go on.")
    assert session_of(resumed).calls[-1].reasons == session.calls[0].reasons


async def test_a_tool_that_comes_in_mid_conversation_is_named(provide, new_client):
    """It stands behind the tools of all, so that this agent's prompt is another one from there on."""
    provider = provide("openai", Says())
    agents = [role(n, new_client(provider), tools=[FunctionTool(search(f"find_{n}"), "Looks.")]) for n in ROLES[:2]]
    team = wrap(RoundRobinGroupChat(agents, max_turns=2))
    await team.run(task=TASK)
    agents[1]._workbench[0]._tools.append(FunctionTool(search("later"), "Looks later."))
    await team.run(task="Go on.")
    session = session_of(team)
    assert [list(map(str, call.reasons))[:-1] for call in session.calls] == [[], [], [], ["made_too_late later"]]
    assert [call.layout for call in session.calls] == ["fork"] * 4
    # What stands behind it is in nobody else's requests: all that is shared is the tools before it.
    shared = [dict(call.reasons[-1].numbers)["shared"] for call in session.calls]
    assert shared[3] == sum(session.adapter.count(tool.schema.decode()) for tool in session.prefix.tools) < shared[2]


async def test_an_agent_whose_context_the_application_bounds_says_so(provide, new_client):
    """Its history is not ours to lay out; the others share."""
    provider = provide("openai", Says())
    agents = [role(name, new_client(provider)) for name in ROLES[:2]]
    agents.append(role("writer", new_client(provider), model_context=BufferedChatCompletionContext(5)))
    team = wrap(RoundRobinGroupChat(agents, max_turns=3))
    await team.run(task=TASK)
    session = session_of(team)
    assert [layout for _, layout, _ in whys(session)] == ["fork", "fork", "own"]
    assert [str(one) for one in session.calls[2].reasons] == ["own_history bounded context"]


@pytest.mark.parametrize("given", [True, False])
async def test_agents_that_are_wrapped_one_by_one_are_told_how_they_would_share(provide, new_client, given):
    """By what the reason says they share; of an agent that calls others, whom neither helps, it does not say it."""
    provider = provide("openai", Says())
    session = Session(SharedPrefix(system=HANDBOOK)) if given else Session()
    agents = [role(name, new_client(provider)) for name in ROLES[:2]]
    seen = await asyncio.to_thread(preview, agents[0], session, task=TASK)
    for agent in agents:
        await wrap(agent, session).run(task=TASK)
    said = [call.reasons[0].said for call in session.calls]
    assert [call.layout for call in session.calls] == ["fork" if given else "own"] * 2
    for each in (*said, str(seen), str(session.report())):
        assert ("wrapped as their team" in each, "SharedPrefix(system=" in each) == (not given, not given)
    if not given:
        assert session.calls[0].reasons[0].fix == ""  # strict raises for nothing here
        anew = [role(name, new_client(provider)) for name in ROLES[:2]]
        await wrap(RoundRobinGroupChat(anew, max_turns=2), session).run(task=TASK)  # what it says to do
        assert [layout for _, layout, _ in whys(session)[2:]] == ["fork"] * 2
        caller = role("writer", new_client(provider), tools=[AgentTool(role("reader", new_client(provider)))])
        await wrap(caller, session).run(task=TASK)
        assert session.calls[-1].reasons[0].said == SAID["alone"]


@pytest.mark.parametrize("holds", [True, False])
async def test_an_agent_that_works_as_a_tool_says_what_it_shares(provide, new_client, holds):
    """It starts from a task of its own; where it holds the text of others that are called, behind that."""
    call = ToolCall("critic", {"task": "Look at it."})
    provider = provide("openai", Says({"planner": [call, "Done."]}))
    said = f"You are the critic.\n\n{HANDBOOK}" if holds else "You are the critic."
    tool = AgentTool(role("critic", new_client(provider), system_message=said))
    client = new_client(provider, fresh=True, parallel_tool_calls=False)
    agent = wrap(role("planner", client, tools=[tool]), Session(HANDBOOK))
    await agent.run(task=TASK)
    inner = [(layout, reasons) for name, layout, reasons in whys(session_of(agent)) if name.endswith("critic/critic")]
    assert inner == [("fork", ["shares"]) if holds else ("own", ["own_prompt"])]


@pytest.mark.filterwarnings("ignore:Using LocalCommandLineCodeExecutor:UserWarning")
@pytest.mark.filterwarnings("ignore:No approval function:UserWarning")
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")  # AutoGen dumps what the SDK parsed
async def test_what_autogen_asks_an_agent_without_its_system_message_is_no_mistake(provide, new_client, tmp_path):
    """A code executor's question whether to try again holds none; strict mode raises for what a user can remove."""
    steps = ["```sh\nfalse\n```", '{"retry": true, "reason": "it failed"}', "```sh\ntrue\n```", "It ran."]
    provider = provide("openai", Queue(["Planned.", *steps]))
    client, said = new_client(provider), f"You are the critic.\n\n{HANDBOOK}"
    executor = LocalCommandLineCodeExecutor(work_dir=tmp_path)
    runner = CodeExecutorAgent("critic", executor, model_client=client, system_message=said, max_retries_on_error=1)
    team = wrap(RoundRobinGroupChat([role("planner", client), runner], max_turns=2), Session(mode="strict"))
    await team.run(task=TASK)
    asked = [(layout, why) for name, layout, why in whys(session_of(team)) if name == "critic"]
    assert asked == [("fork", ["shares"]), ("own", ["own_prompt"]), ("fork", ["shares"]), ("fork", ["shares"])]


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")  # AutoGen dumps what the SDK parsed
async def test_a_request_with_a_schema_or_a_tool_to_call_says_what_sets_it_apart(provide, new_client):
    """Its siblings' requests are other prompts for the provider."""
    provider = provide("openai", Says())
    session = Session(SharedPrefix(system=HANDBOOK))
    client = PrefixClient(new_client(provider), session, role="planner")
    tool = FunctionTool(search(), name="search", description="Looks things up.")
    await client.create(asks("planner"), json_output=Answer)
    await client.create(asks("planner"), tools=[tool], tool_choice=tool)
    assert [(layout, reasons) for _, layout, reasons in whys(session)] == [
        ("fork", ["response_schema", "shares"]),
        ("fork", ["forced_tool", "shares"]),
    ]


async def test_an_observed_call_says_so(provide, new_client):
    """Nothing was laid out."""
    provider = provide("openai", Says())
    team = RoundRobinGroupChat([role(name, new_client(provider)) for name in ROLES], max_turns=1)
    session = Session(mode="observe")
    await wrap(team, session).run(task=TASK)
    assert whys(session) == [("planner", "observed", ["observe_mode"])]


async def test_a_call_whose_layout_failed_says_so(provide, new_client, monkeypatch):
    """The application's own request went out."""
    monkeypatch.setattr("cacheprefix_autogen.member.Member.heard", lambda *_: 1 / 0)
    provider = provide("openai", Says())
    team = wrap(RoundRobinGroupChat([role(name, new_client(provider)) for name in ROLES], max_turns=1))
    await team.run(task=TASK)
    assert [str(one) for one in session_of(team).calls[0].reasons] == ["failed layout"]


def _one(text: str) -> str:
    return text


def _search(description: str) -> FunctionTool:
    return FunctionTool(_one, name="search", description=description)


@pytest.mark.parametrize(
    ("why", "options", "sent"),
    [
        # Whose schema is meant nobody knows, so that the first who has the tool is told.
        ("'planner'.*another schema", {"tools": [_search("Looks other things up.")]}, 0),
        ("'writer'.*as it was given", {"system_message": f"You are the writer.\n\n{OLDER}"}, 2),
    ],
    ids=["schema", "older text"],
)
async def test_strict_mode_raises_out_of_a_team_before_the_request_is_sent(provide, new_client, why, options, sent):
    """AutoGen gives a team's errors on as text; the fix stands in it."""
    provider = provide("openai", Says({name: [f"{name} has spoken."] for name in ROLES}))

    def build():
        agents = [role(n, new_client(provider), tools=[_search("Looks things up.")]) for n in ROLES[:2]]
        agents.append(role("writer", new_client(provider), **options))
        return wrap(RoundRobinGroupChat(agents, max_turns=3), Session(HANDBOOK, mode="strict"))

    with pytest.raises(RuntimeError, match=f"NotSharedError.*{why}"):
        await build().run(task=TASK)
    assert len(provider.requests) == sent
    with pytest.raises(RuntimeError, match="NotSharedError"):
        async for _ in build().run_stream(task=TASK):
            pass
    assert len(provider.requests) == 2 * sent


async def test_strict_mode_raises_for_another_model_by_mistake(provide, new_client):
    """All others ask one and the same."""
    provider = provide("openai", Says())
    agents = [role(name, new_client(provider)) for name in ROLES[:2]]
    agents.append(role("writer", new_client(provider, model="gpt-4o-mini")))
    with pytest.raises(RuntimeError, match=r"NotSharedError.*asks gpt-4o-mini"):
        await wrap(RoundRobinGroupChat(agents, max_turns=3), Session(HANDBOOK, mode="strict")).run(task=TASK)
    assert len(provider.requests) == 2


async def test_strict_mode_raises_out_of_an_agent(provide, new_client):
    """Asked at once, and as a stream; one that is made later with a tool of its own is no mistake."""
    provider = provide("openai", Says())
    session = Session(SharedPrefix(system=HANDBOOK), mode="strict")
    await wrap(role("planner", new_client(provider)), session).run(task=TASK)
    tool = FunctionTool(search(), name="search", description="Looks things up.")
    await wrap(role("editor", new_client(provider, fresh=True), tools=[tool]), session).run(task=TASK)
    assert whys(session)[1] == ("editor", "fork", ["shares"])
    late = wrap(role("writer", new_client(provider, fresh=True), system_message=f"You write.\n\n{OLDER}"), session)
    with pytest.raises(NotSharedError) as raised:
        await late.run(task=TASK)
    assert (raised.value.role, [one.why for one in raised.value.reasons]) == ("writer", ["text_not_found"])
    with pytest.raises(NotSharedError):
        async for _ in late.run_stream(task=TASK):
            pass
    assert len(provider.requests) == 2


async def test_strict_mode_raises_out_of_a_client(provide, new_client):
    """Asked at once, and as a stream; what costs decide raises nothing."""
    provider = provide("openai", Says())
    session = Session(SharedPrefix(system=HANDBOOK), mode="strict")
    client = PrefixClient(new_client(provider), session, role="planner")
    asked = [SystemMessage(content=OLDER), UserMessage(content=TASK, source="user")]
    with pytest.raises(NotSharedError, match="give the role the very text"):
        await client.create(asked)
    with pytest.raises(NotSharedError):
        async for _ in client.create_stream(asked):
            pass
    assert provider.requests == []
    answer = await client.create(asks("planner"))
    assert isinstance(answer, CreateResult)
    assert (session.failures, len(provider.requests)) == ({}, 1)
