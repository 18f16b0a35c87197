"""Whose words stand in a prompt: teams that are reset, two teams, and clients that serve more than one person."""

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.models import ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

from cacheprefix import Compaction, Session, SharedPrefix
from cacheprefix.server import SimulatedProvider
from cacheprefix_autogen import ForkContext, PrefixClient, wrap

HANDBOOK = "The handbook of the house, rule by rule. " * 150
INFO = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=True,
    family=ModelFamily.GPT_4O,
    structured_output=True,
    multiple_system_messages=True,
)


_MADE = []


@pytest.fixture
async def provider():
    """A simulated provider that keeps what it is sent; clients that were made for it are closed."""
    with SimulatedProvider("openai", keep=1_000) as provider:
        yield provider
        while _MADE:
            await _MADE.pop().close()


def _client(provider):
    made = OpenAIChatCompletionClient(
        model="gpt-4o-2024-08-06", base_url=provider.openai_base_url, api_key="k", model_info=INFO
    )
    _MADE.append(made)
    return made


def _session():
    return Session(SharedPrefix(system=HANDBOOK), compaction=Compaction(trigger=4_500, horizon=1_000), gate=None)


def _agent(provider, name, client=None, context=None):
    return AssistantAgent(
        name, client or _client(provider), system_message=f"{HANDBOOK}\n\nYou are {name}.", model_context=context
    )


def _team(provider, session):
    agents = [_agent(provider, "planner"), _agent(provider, "critic")]
    return wrap(RoundRobinGroupChat(agents, termination_condition=MaxMessageTermination(3)), session)


def _words(user, number):
    return f"{user} task {number}: " + " ".join(f"{user}-value-{number}-{k}" for k in range(60))


def _bodies(provider, start):
    return [record.body.decode() for record in list(provider.requests)[start:]]


async def test_a_reset_team_leaves_nothing_behind(provider):
    """The next run's prompts hold nothing of the last one's, nor does the session."""
    session = _session()
    team = _team(provider, session)
    for number in range(12):
        await team.run(task=_words("alice", number))
    assert any(talk.ledger.epoch for talk in session.shared.conversations.values())
    await team.reset()
    start = len(provider.requests)
    await team.run(task="What is the weather?")
    assert not any("alice" in body for body in _bodies(provider, start))
    assert not any("alice" in talk.ledger.dumps() for talk in session.shared.conversations.values())


@pytest.mark.parametrize("way", ["clients", "one client", "contexts", "teams"])
async def test_no_section_of_one_conversation_is_in_anothers_prompt(provider, way):
    """Two people by turns, with equal texts among theirs, through whatever the application made for them."""
    session = _session()
    shared = PrefixClient(_client(provider), session, role="helper")

    def made():
        if way == "teams":
            return _team(provider, session)
        client = shared if way == "one client" else PrefixClient(_client(provider), session, role="helper")
        context = ForkContext(UnboundedChatCompletionContext()) if way == "contexts" else None
        return _agent(provider, "helper", client, context)

    users = {"alice": made(), "bob": made()}
    for number in range(12):
        for user, target in users.items():
            start = len(provider.requests)
            await target.run(task="Go on." if number % 3 == 0 else _words(user, number))
            other = "bob" if user == "alice" else "alice"
            assert not any(other in body for body in _bodies(provider, start))
    assert not session.failures


async def test_a_cleared_context_drops_what_was_decided_on_it(provider):
    """An agent that is reset begins anew, whatever its context had been compacted to."""
    session = _session()
    context = ForkContext(UnboundedChatCompletionContext())
    agent = _agent(provider, "helper", PrefixClient(_client(provider), session, role="helper"), context)
    for number in range(14):
        await agent.run(task=_words("alice", number))
    assert "alice" in str(await context.save_state())
    await context.clear()
    assert "alice" not in str(await context.save_state())
    start = len(provider.requests)
    await agent.run(task="What is the weather?")
    assert not any("alice" in body for body in _bodies(provider, start))
