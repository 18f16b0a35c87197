"""Built by configuration: dumped, loaded, and run again."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import Team
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import ChatCompletionClient
from autogen_teams import HANDBOOK, ROLES, TASK, Says, common, prompts, role, search, tail_index
from pydantic import SecretStr

from cacheprefix import Session, SharedPrefix, ToolResultBudget
from cacheprefix.server import ToolCall
from cacheprefix_autogen import ForkAgent, ForkContext, PrefixClient, session_of, wrap


def _with_key(config, key="any"):
    """AutoGen masks API keys when it dumps; they have to be filled in again."""
    text = config.model_dump_json().replace(str(SecretStr("x")), key)
    return json.loads(text)


async def test_a_client_is_dumped_and_loaded_with_its_prefix(provide, new_client):
    """Two clients loaded from one configuration share a session with the same system text."""
    provider = provide("openai", Says())
    session = Session(SharedPrefix(system=HANDBOOK), name="house")
    config = _with_key(PrefixClient(new_client(provider, fresh=True), session, role="critic").dump_component())
    loaded = [ChatCompletionClient.load_component(config) for _ in range(2)]
    assert all(isinstance(client, PrefixClient) and client.role == "critic" for client in loaded)
    assert loaded[0].session is loaded[1].session is not session
    assert loaded[0].session.prefix.text == HANDBOOK
    assert config["provider"] == "cacheprefix_autogen.PrefixClient"
    for client in loaded:
        await client.close()


async def test_a_wrapped_team_is_dumped_as_it_was_made_and_shares_when_it_is_wrapped_again(provide, new_client):
    """The configuration is the application's, however often it went round; the requests are the same."""
    bodies = []
    provider = provide("openai", Says())
    team = wrap(RoundRobinGroupChat([role(n, new_client(provider)) for n in ROLES], max_turns=5))
    await team.run(task=TASK)
    bodies.append([record.json["messages"] for record in provider.requests])
    config = _with_key(team.dump_component())
    provider.simulator.script = Says()
    provider.requests.clear()
    assert "cacheprefix" not in json.dumps(config)
    loaded = wrap(Team.load_component(config))
    await loaded.run(task=TASK)
    bodies.append([record.json["messages"] for record in provider.requests])
    assert bodies[0] == bodies[1]
    for agent in loaded._participants:
        await agent._model_client.close()


async def test_fork_agents_share_in_a_team_that_nobody_wrapped(provide, new_client):
    """Agents built as components send one prefix, and their tools and reflection do not break it."""
    steps = {n: (ToolCall("search", {"query": "q"}), f"{n} is done") for n in ROLES}
    provider = provide("openai", Says(steps))
    session = Session(SharedPrefix(system=HANDBOOK))
    agents = [
        ForkAgent(role(n, new_client(provider), tools=[search()], reflect_on_tool_use=True), session) for n in ROLES
    ]
    team = RoundRobinGroupChat(agents, max_turns=3)
    await team.run(task=TASK)
    sent = prompts(provider.requests)
    assert all(common(a, b) >= tail_index(a) for a, b in zip(sent[:-2:2], sent[2::2], strict=True))
    dumped = agents[0].dump_component()
    assert dumped.provider == "cacheprefix_autogen.ForkAgent"
    assert dumped.config["agent"]["provider"] == "autogen_agentchat.agents.AssistantAgent"
    state = await team.save_state()
    await team.load_state(state)


async def test_a_fork_agent_is_loaded_from_its_configuration(provide, new_client):
    """A loaded agent answers on the same prefix as the one that was dumped."""
    provider = provide("openai", Says())
    agent = ForkAgent(role("planner", new_client(provider)), Session(SharedPrefix(system=HANDBOOK)))
    loaded = ForkAgent.load_component(_with_key(agent.dump_component()))
    for each in (agent, loaded):
        await each.run(task=TASK)
    assert "planner speaks" in provider.requests[0].reply.text
    first, second = (record.json["messages"] for record in provider.requests)
    assert first == second
    await loaded.inner._model_client.close()


async def test_a_fork_context_carries_decisions_from_one_process_to_the_next(provide, new_client):
    """An agent built from a PrefixClient and a ForkContext replays what was shortened, whatever the budget."""

    def build(tokens):
        session = Session(SharedPrefix(system=HANDBOOK), budget=ToolResultBudget(max_tokens=tokens))
        return AssistantAgent(
            "planner",
            PrefixClient(new_client(provider), session, role="planner"),
            tools=[search()],
            max_tool_iterations=3,
            system_message="You are the planner.",
            model_context=ForkContext(),
        )

    steps = {"planner": (ToolCall("search", {"query": "q"}), "planned")}
    provider = provide("openai", Says(steps))
    agent = build(100)
    await agent.run(task=TASK)
    state = json.loads(json.dumps(await agent.save_state()))
    seen = provider.requests[1].prompt.sections[-1].text
    assert len(seen) < 1000
    other = build(5000)
    await other.load_state(state)
    # The same result comes back in another turn, where the new budget alone would leave it whole.
    await other.run(task="Look again.")
    assert provider.requests[3].prompt.sections[-1].text == seen


async def test_a_fork_context_is_a_component(provide):
    """It is dumped and loaded with the context it wraps."""
    loaded = ChatCompletionContext.load_component(ForkContext().dump_component())
    assert isinstance(loaded, ForkContext)


async def test_a_wrapped_team_of_fork_agents_shares_one_transcript(provide, new_client):
    """Wrap takes over the agents inside."""
    provider = provide("openai", Says())
    session = Session(SharedPrefix(system=HANDBOOK))
    team = RoundRobinGroupChat([ForkAgent(role(n, new_client(provider)), session) for n in ROLES], max_turns=4)
    wrap(team, session)
    await team.run(task=TASK)
    sent = prompts(provider.requests)
    assert all(common(a, b) == tail_index(a) for a, b in pairwise(sent))
    assert session_of(team) is session


async def test_what_cannot_be_wrapped_is_named(provide, new_client):
    """Wrap says what it takes, and refuses to wrap twice."""
    from cacheprefix.errors import SetupError

    with pytest.raises(SetupError, match="agent, team or model client"):
        wrap(object())
    with pytest.raises(SetupError, match="found the class RoundRobinGroupChat: give an instance of it"):
        wrap(RoundRobinGroupChat)
    with pytest.raises(SetupError, match="found list: give one at a time, or what holds them all"):
        wrap([role("planner", new_client(provide("openai")))])


async def test_wrapping_twice_is_refused(provide, new_client):
    """A wrapped agent says so."""
    from cacheprefix.errors import SetupError

    agent = wrap(role("planner", new_client(provide("openai"))))
    with pytest.raises(SetupError, match="wrapped already"):
        wrap(agent)


async def test_the_core_finds_the_adapter_by_its_hook(provide, new_client):
    """cacheprefix.wrap binds AutoGen's objects through the adapter's plugin."""
    import cacheprefix
    from cacheprefix_autogen import plugin

    session = Session(SharedPrefix(system=HANDBOOK), plugins=[plugin])
    agent = role("planner", new_client(provide("openai")))
    assert cacheprefix.wrap(agent, session) is agent
    assert session_of(agent) is session
