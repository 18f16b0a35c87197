"""Whose words stand in a prompt: teams that are reset, two teams, and clients that serve more than one person."""

import asyncio
import re

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.models import AssistantMessage, ModelFamily, ModelInfo, SystemMessage, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cacheprefix import Compaction, Session, SharedPrefix
from cacheprefix.server import Reply, SimulatedProvider
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
    assert any(talk.ledger.epoch for talk in session.adapter.shared.conversations.values())
    await team.reset()
    start = len(provider.requests)
    await team.run(task="What is the weather?")
    assert not any("alice" in body for body in _bodies(provider, start))
    assert not any("alice" in talk.ledger.dumps() for talk in session.adapter.shared.conversations.values())


@pytest.mark.slow
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


USERS = ("alice", "bob", "carol")
EQUAL = ("Go on.", "What is next?")
WAYS = ("agents", "one client", "contexts", "teams", "histories")


def _answer(request):
    """The person's own words where theirs came last; else what anybody might be told."""
    values = re.findall(r"(\w+)-value-(\d+)-0\b", request.tail)
    return Reply("Noted." if not values else "{}-answer-{}.".format(*values[-1]))


class _Histories:
    """An application that asks the client itself and keeps what was said."""

    def __init__(self, client):
        self._client, self._said = client, []

    async def run(self, task):
        self._said.append(UserMessage(content=task, source="user"))
        asked = [SystemMessage(content=f"{HANDBOOK}\n\nYou are helper."), *self._said]
        answer = await self._client.create(asked)
        self._said.append(AssistantMessage(content=answer.content, source="helper"))


def _made(provider, session, way, shared):
    if way == "teams":
        agents = [_agent(provider, "planner"), _agent(provider, "critic")]
        return wrap(RoundRobinGroupChat(agents, max_turns=2), session)
    if way == "histories":
        return _Histories(shared)
    if way == "agents":
        return wrap(_agent(provider, "helper"), session)
    context = ForkContext(UnboundedChatCompletionContext()) if way == "contexts" else None
    return _agent(
        provider, "helper", shared if way == "one client" else PrefixClient(_client(provider), session), context
    )


async def _talk(provider, way, bounded, users, turns):
    options = {"compaction": Compaction(trigger=3_600, horizon=1_000, summary_tokens=100)} if bounded else {}
    session = Session(SharedPrefix(system=HANDBOOK), gate=None, **options)
    shared = PrefixClient(_client(provider), session, role="helper")
    targets = {user: _made(provider, session, way, shared) for user in USERS[:users]}
    said = {user: [] for user in targets}
    for number, (who, text, together) in enumerate(turns):
        asking = list(targets) if together else [USERS[who % users]]
        for user in asking:
            said[user].append(EQUAL[text] if text < len(EQUAL) else _words(user, number))
        start = len(provider.requests)
        await asyncio.gather(*(targets[user].run(task=said[user][-1]) for user in asking))
        for record in list(provider.requests)[start:]:
            body = record.body.decode()
            whose = [user for user in targets if f"{user}-" in body]
            assert len(whose) < 2, whose
            if "Earlier messages were removed" in body:
                continue
            # Whoever it is that has said nothing of their own so far: one of those who asked.
            held = {one: _texts(record, said[one]) for one in (whose or asking)}
            assert any(texts == said[one] for one, texts in held.items()), held
    while _MADE:
        await _MADE.pop().close()
    assert not session.failures


def _texts(record, mine):
    """What of these texts stands in a request, in its order."""
    messages = " ".join(section.text for section in record.prompt.tier("messages"))
    found = [(at.start(), text) for text in {*mine, *EQUAL} for at in re.finditer(re.escape(text), messages)]
    return [text for _, text in sorted(found)]


@pytest.mark.slow
@pytest.mark.parametrize("bounded", [False, True], ids=["whole", "compacted"])
@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    users=st.integers(2, 3),
    turns=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans()), min_size=6, max_size=20),
)
def test_pairs_and_triples_of_conversations_with_equal_texts_keep_apart(servers, way, bounded, users, turns):
    """By turns and at the same time: no section of one is in another's prompt, and no message is missing."""
    servers.reset()
    asyncio.run(_talk(servers, way, bounded, users, turns))


@pytest.fixture(scope="module")
def servers():
    """One provider for all examples."""
    with SimulatedProvider("openai", _answer, keep=10_000) as provider:
        yield provider
