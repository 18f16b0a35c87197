"""Fan-outs: the same bytes whoever is finished first."""

from __future__ import annotations

import asyncio
import random

import pytest
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow
from autogen_core.models import CreateResult, RequestUsage
from autogen_ext.models.replay import ReplayChatCompletionClient
from autogen_teams import HANDBOOK, TASK, Says, common, prompts, role, tail_index
from hypothesis import given
from hypothesis import strategies as st

from cacheprefix import Caching, Gate, Session, SharedPrefix
from cacheprefix.server import Latency
from cacheprefix_autogen import session_of, wrap
from cacheprefix_autogen.transcript import TOLD, Entry, Transcript, View

BRANCHES = ("alpha", "beta", "gamma")


def _fan_out(agents):
    lead, *branches, join = agents
    builder = DiGraphBuilder()
    for node in agents:
        builder.add_node(node)
    for branch in branches:
        builder.add_edge(lead, branch).add_edge(branch, join)
    return GraphFlow(agents, builder.build())


async def test_branches_share_everything_up_to_their_own_role(provide, new_client):
    """Three parallel branches and the join each extend what the lead was sent and said."""
    provider = provide("openai", Says())
    agents = [role(name, new_client(provider)) for name in ("lead", *BRANCHES, "join")]
    await wrap(_fan_out(agents)).run(task=TASK)
    lead, *branches, join = prompts(provider.requests)
    for prompt in branches:
        assert common(lead, prompt) == tail_index(lead)
        assert common(branches[0], prompt) >= tail_index(branches[0])
    assert common(branches[0], join) == tail_index(branches[0])


class Slow(ReplayChatCompletionClient):
    """Answers after a number of turns of the event loop, and keeps what it was asked."""

    def __init__(self, name: str, delay: int, asked: dict) -> None:
        super().__init__([f"{name} says so"] * 10)
        self.name, self.delay, self.asked = name, delay, asked

    async def create(self, messages, **_):
        self.asked.setdefault(self.name, []).append([(type(m).__name__, m.content) for m in messages])
        for _ in range(self.delay):
            await asyncio.sleep(0)
        return CreateResult(
            finish_reason="stop",
            content=f"{self.name} says so for the time {len(self.asked[self.name])}",
            usage=RequestUsage(0, 0),
            cached=False,
        )


@pytest.mark.slow
async def test_a_hundred_random_schedules_give_the_same_bytes():
    """The join reads the branches in the order of the participants, whatever order they ended in."""
    chance = random.Random(7)
    seen = []
    for _ in range(100):
        asked: dict = {}
        names = ("lead", *BRANCHES, "join")
        agents = [role(name, Slow(name, chance.randrange(40), asked)) for name in names]
        session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider="openai"))
        await wrap(_fan_out(agents), session).run(task=TASK)
        seen.append(asked)
    assert all(asked == seen[0] for asked in seen)
    told = [content.split("\n")[0] for _, content in seen[0]["join"][0][1:-1]]
    assert told == ["[user]", "[lead]", "[alpha]", "[beta]", "[gamma]"]


async def test_a_loop_of_parallel_branches_shows_everyone_one_order():
    """In the second round a branch finds its own first answer where the others have it."""
    chance = random.Random(3)
    seen = []
    for _ in range(20):
        asked: dict = {}
        names = ("lead", "alpha", "beta", "end")
        agents = {name: role(name, Slow(name, chance.randrange(20), asked)) for name in names}
        builder = DiGraphBuilder()
        for agent in agents.values():
            builder.add_node(agent)
        for branch in ("alpha", "beta"):
            builder.add_edge(agents["lead"], agents[branch], condition=lambda _: True)
            builder.add_edge(agents[branch], agents["lead"], activation_group="back")
        builder.add_edge(agents["lead"], agents["end"], condition=lambda _: False)
        builder.set_entry_point(agents["lead"])
        team = GraphFlow(
            list(agents.values()), builder.build(), termination_condition=MaxMessageTermination(8), max_turns=4
        )
        await wrap(team, Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider="openai"))).run(task=TASK)
        seen.append(asked)
    assert all(asked == seen[0] for asked in seen)
    second = seen[0]["alpha"][1]
    assert [c.split("\n")[0] for _, c in second[1:-1]] == ["[user]", "[lead]", "[alpha]", "[beta]", "[lead]"]
    assert second[:-1] == seen[0]["beta"][1][:-1]


@given(st.permutations(range(5)))
def test_the_order_of_a_generation_does_not_depend_on_who_is_finished_first(order):
    """Five siblings that have read the same stand in their own order in every view."""
    transcript = Transcript()
    views = [View(transcript, rank) for rank in range(5)]
    task = TextMessage(content="go", source="user")
    for view in views:
        view.receive([task])
    said = {i: TextMessage(content=str(i), source=f"agent{i}") for i in range(5)}
    for i in order:
        views[i].produce(said[i])
    for view in views:
        view.receive([said[i] for i in order if views[i] is not view])
    expected = ["[user]\ngo", *(f"[agent{i}]\n{i}" for i in range(5))]
    assert all([form.content for form in view.forms()] == expected for view in views)


async def test_a_failing_branch_leaves_the_others_whole(provide, new_client):
    """What a failed agent did not say is in nobody's view."""
    provider = provide("openai", Says())
    agents = [role(name, new_client(provider)) for name in ("lead", *BRANCHES, "join")]
    team = wrap(_fan_out(agents))
    session = session_of(team)

    async def fail(*_, **__):
        message = "beta is ill"
        raise RuntimeError(message)

    agents[2]._model_client.client.create = fail
    with pytest.raises(RuntimeError, match="beta is ill"):
        await team.run(task=TASK)
    assert session.failures == {}


@pytest.mark.slow
async def test_branches_that_start_together_on_a_cold_prefix_follow_one_leader(provide, new_client):
    """Without a lead node one branch goes ahead, and the others read what it wrote."""
    provider = provide("openai", Says(), latency=Latency(base=0.05, scale=1.0))
    branches = [role(name, new_client(provider)) for name in BRANCHES]
    join = role("join", new_client(provider))
    builder = DiGraphBuilder()
    for node in (*branches, join):
        builder.add_node(node)
    for branch in branches:
        builder.add_edge(branch, join)
    await wrap(GraphFlow([*branches, join], builder.build()), Session(gate=Gate(price=0.0))).run(task=TASK)
    reads = [record.outcome.read_tokens for record in provider.requests]
    assert reads[0] == 0
    assert all(read > 2000 for read in reads[1:])


def test_durable_context_that_came_while_branches_ran_begins_no_run():
    """In a state that is taken up too, what another branch said meanwhile stands where that branch has it."""
    transcript = Transcript()
    sibling, view = View(transcript, 0), View(transcript, 1)
    said = TextMessage(content="Said meanwhile.", source="sibling")
    sibling.receive([TextMessage(content=TASK, source="user")])
    sibling.produce(said)
    sibling.receive([])
    task, known = sibling.entries
    view.restore([task, Entry("told", known.depth + 1, TOLD, ())], [])
    view.receive([said])
    assert view.entries[-1] is known
