"""Zones, compaction and request budgets through AutoGen's own teams."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import AssistantMessage, UserMessage
from autogen_core.tools import FunctionTool
from autogen_teams import HANDBOOK, ROLES, TASK, Says, common, prompts, role, tail_index

from cacheprefix import History, Session, SharedPrefix
from cacheprefix.errors import BudgetError
from cacheprefix.history import Compaction, RequestBudget
from cacheprefix.server import Queue, Reply, ToolCall
from cacheprefix_autogen import PrefixClient, session_of, wrap


async def test_durable_context_stands_in_the_shared_part(provide, new_client):
    """Keyed text of the prefix is in every request, before the transcript."""
    provider = provide("openai", Says())
    prefix = SharedPrefix(system=HANDBOOK, context={"project": "We build bridges."})
    team = wrap(RoundRobinGroupChat([role(n, new_client(provider)) for n in ROLES], max_turns=3), Session(prefix))
    await team.run(task=TASK)
    sent = prompts(provider.requests)
    assert all("We build bridges." in prompt.sections[0].text for prompt in sent)
    assert all(common(a, b) == tail_index(a) for a, b in pairwise(sent))


async def test_a_long_conversation_is_compacted_the_same_for_everyone(provide, new_client):
    """Old messages go once, in all agents' requests alike, and the prompt grows again from there."""
    provider = provide("openai", Says())
    team = RoundRobinGroupChat([role(n, new_client(provider)) for n in ROLES], max_turns=24)
    wrap(team, Session(compaction=4000))
    await team.run(task=TASK)
    sent = prompts(provider.requests)
    sizes = [prompt.tokens for prompt in sent]
    breaks = [i for i, (a, b) in enumerate(pairwise(sent)) if common(a, b) < tail_index(a)]
    assert 1 <= len(breaks) <= 4
    assert max(sizes) < 6000
    assert session_of(team).failures == {}


async def test_a_compaction_keeps_what_an_agent_answers_through_its_rounds_of_tools(provide, new_client):
    """Another agent has said it: it is this one's question, though nobody of the users has asked it."""

    def look(at: str) -> str:
        """Looks it up."""
        return f"At {at} there is nothing. " * 60

    answers = [Reply("A proposal. " + "It names its sources. " * 300)]
    answers += [Reply(tool_calls=(ToolCall("look", {"at": at}, id=f"call_{at}"),)) for at in ("one", "two")]
    provider = provide("openai", Queue([*answers, Reply("Done.")]))
    planner = role("planner", new_client(provider))
    critic = role("critic", new_client(provider), tools=[look], max_tool_iterations=3)
    team, session = RoundRobinGroupChat([planner, critic], max_turns=2), Session(compaction=Compaction(3_600))
    await wrap(team, session).run(task=TASK)
    sent = ["".join(section.text for section in prompt.sections) for prompt in prompts(provider.requests)]
    assert len(sent) == 4
    assert all("A proposal." in text for text in sent[1:])
    assert session.failures == {}


async def test_a_compacted_team_resumes_with_the_same_bytes(provide, new_client):
    """What was compacted away stays away in another process."""
    provider = provide("openai", Says())

    def build():
        team = RoundRobinGroupChat([role(n, new_client(provider)) for n in ROLES], max_turns=15)
        return wrap(team, Session(compaction=4000))

    team = build()
    await team.run(task=TASK)
    state = json.loads(json.dumps(await team.save_state()))
    provider.requests.clear()
    provider.simulator.script = Says()
    await team.run(task="Go on.")
    uninterrupted = [record.json["messages"] for record in provider.requests]
    provider.requests.clear()
    provider.simulator.script = Says()
    other = build()
    await other.load_state(state)
    await other.run(task="Go on.")
    assert [record.json["messages"] for record in provider.requests] == uninterrupted


async def test_a_request_that_cannot_be_made_to_fit_is_refused(provide, new_client):
    """A request budget is the one thing of ours that stops a call; it says by how much it is over."""
    client = PrefixClient(
        new_client(provide("openai")), Session(history=History(request_budget=RequestBudget(window=10)))
    )
    with pytest.raises(BudgetError):
        await client.create([UserMessage(content=TASK, source="user")])


@pytest.mark.parametrize("how", ["cut", "summarised"])
async def test_a_request_fits_the_window_with_tools_that_came_with_it(provide, new_client, how):
    """Nobody shares them, and the model reads them all the same."""
    provider = provide("openai", SummaryOr(Says()))
    compaction = Compaction(50_000, summarise="fork") if how == "summarised" else None
    limit = History(request_budget=RequestBudget(9_000))
    session = Session(SharedPrefix(system=HANDBOOK), history=limit, compaction=compaction)
    client = PrefixClient(new_client(provider), session)
    said = [
        one
        for at in range(7)
        for one in (
            UserMessage(content=f"Question {at}: " + "and why? " * 400, source="user"),
            AssistantMessage(content=f"Answer {at}.", source="critic"),
        )
    ]
    await client.create(said[:1])

    def house(room: str) -> str:
        """Asks the house."""
        return room

    tool = FunctionTool(house, description="It has many rooms. " * 900)
    await client.create([*said, UserMessage(content="And now?", source="user")], tools=[tool])
    last = prompts(provider.requests)[-1]
    assert 4_000 < last.tokens <= 9_000
    assert session.failures == {}


async def test_verdicts_are_live(provide, new_client):
    """Every finished call has its verdict, with the agent it belongs to."""
    provider = provide("openai", Says())
    team = wrap(RoundRobinGroupChat([role(n, new_client(provider)) for n in ROLES], max_turns=4))
    session = session_of(team)
    causes = [
        session.last_verdict.cause
        async for message in team.run_stream(task=TASK)
        if getattr(message, "source", "") in ROLES
    ]
    assert len(causes) == 4
    assert causes[0] == "cold_start"
    assert set(causes[1:]) == {"hit"}


async def test_a_fork_writes_the_summary_of_what_a_compaction_removes(provide, new_client):
    """It extends a request that was sent, its text stands in everyone's next request, and the report names it."""
    provider = provide("openai", SummaryOr(Says()))
    team = RoundRobinGroupChat([role(n, new_client(provider)) for n in ROLES], max_turns=18)
    session = Session(compaction=Compaction(4000, summarise="fork"))
    wrap(team, session)
    await team.run(task=TASK)
    sent = prompts(provider.requests)
    asked = [i for i, prompt in enumerate(sent) if "summar" in prompt.sections[-1].text.lower()]
    assert asked
    first = asked[0]
    assert max(common(sent[first], earlier) for earlier in sent[:first]) >= len(sent[first].sections) - 1
    later = "".join(section.text for section in sent[first + 1].sections)
    assert "The summary of a model." in later
    assert session.failures == {}
    assert any(call.agent.endswith("summary") for call in session.calls)


class SummaryOr:
    """A model that can sum up."""

    def __init__(self, otherwise):
        self._otherwise = otherwise

    def __call__(self, request):
        if "summar" in request.tail.lower():
            return Reply("The summary of a model.")
        return self._otherwise(request)


@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize("agents", [1, 2, 3])
async def test_what_the_user_gave_arrives_in_every_layout(provide, new_client, agents, size):
    """System text and durable context, once in each request: where nobody shares, in front of the agent's own text."""
    house, fact = "House rule: be brief. " * size, "We build bridges."
    duties = {name: f"You are the {name}. " + f"Duty of {name}. " * (2000 // size) for name in ROLES}
    provider = provide("openai", Says())
    team = [role(name, new_client(provider), system_message=duties[name]) for name in ROLES[:agents]]
    session = Session(SharedPrefix(system=house, context={"project": fact}))
    await wrap(RoundRobinGroupChat(team, max_turns=2 * agents), session).run(task=TASK)
    assert len(provider.requests) == 2 * agents
    for record in provider.requests:
        said = json.dumps(record.json)
        assert (said.count(house.strip()), said.count(fact)) == (1, 1)
        assert fact in record.json["messages"][0]["content"]
