"""Sharing where it pays: agents that would cost more as forks keep their own layout."""

from __future__ import annotations

import json
from itertools import pairwise

from autogen_agentchat.agents import UserProxyAgent
from autogen_agentchat.conditions import TextMentionTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.tools import FunctionTool
from autogen_teams import HANDBOOK, ROLES, TASK, Says, common, prompts, role, search, tail_index
from hypothesis import given
from hypothesis import strategies as st

from cacheprefix import Session, SharedPrefix
from cacheprefix.layout.economics import Seat, lanes, selector_lane
from cacheprefix.profiles import profile_for
from cacheprefix_autogen import session_of, wrap

SEATS = st.lists(
    st.builds(
        Seat,
        name=st.uuids().map(str),
        model=st.sampled_from(["a", "b"]),
        tools=st.dictionaries(st.sampled_from("pqrs"), st.integers(10, 5000), max_size=3),
        tail=st.integers(0, 5000),
    ),
    max_size=6,
)


@given(SEATS, st.sampled_from([0.1, 0.25, 0.5]), st.integers(0, 20_000))
def test_every_agent_is_in_one_lane_of_its_model(seats, read, opening):
    """Lanes are a partition, and no lane has two models."""
    found = lanes(seats, read=read, opening=opening)
    assert sorted(name for lane in found for name in lane.names) == sorted(seat.name for seat in seats)
    models = {seat.name: seat.model for seat in seats}
    assert all(len({models[name] for name in lane.names}) == 1 for lane in found)


def test_agents_without_tools_and_with_short_roles_share():
    """Nothing is added to their requests, so all are in one lane at every price."""
    seats = [Seat(name, "m", {}, 100) for name in ROLES]
    assert [len(lanes(seats, read=read, opening=1000)) for read in (0.1, 0.25, 0.5)] == [1, 1, 1]


def test_a_role_text_longer_than_what_it_saves_stays_where_it_is_cached():
    """Behind the transcript a long role would be paid in full with every request."""
    seats = [Seat(name, "m", {}, 4000) for name in ROLES]
    assert [len(lane.names) for lane in lanes(seats, read=0.5, opening=1000)] == [1, 1, 1]


def test_an_agent_with_many_tools_does_not_make_the_others_carry_them():
    """The others still share among themselves."""
    seats = [*(Seat(name, "m", {}, 100) for name in ROLES), Seat("coder", "m", {"p": 9000}, 100)]
    assert [lane.names for lane in lanes(seats, read=0.5, opening=1000)] == [ROLES, ("coder",)]


def test_tools_of_agents_that_never_speak_are_little_beside_what_is_sent():
    """Where one of three speaks in a run, nobody reads what its requests write of the others' tools."""

    def made(tools, speakers, **rules):
        seats = [Seat(name, "m", {name: tools}, 100) for name in ROLES]
        return lanes(seats, read=0.1, opening=2_000, speakers=speakers, **rules)

    assert [len(made(tools, 1)) for tools in (100, 2_000)] == [1, 3]
    assert [len(made(2_000, speakers)) for speakers in (None, 3)] == [1, 1]
    # Whole requests are read from the third one on.
    assert len(made(100, 1, whole=True)) == 3


def test_a_selector_joins_where_reading_is_cheap_or_the_system_text_short():
    """At half price a long system text in every question costs more than it saves."""
    assert selector_lane(carried=1200, opening=1500, speakers=3, read=0.1).lane == "joined"
    assert selector_lane(carried=1200, opening=1500, speakers=3, read=0.5).lane == "apart"
    assert selector_lane(carried=50, opening=1500, speakers=3, read=0.5).lane == "joined"
    assert selector_lane(carried=None, opening=1500, speakers=3, read=0.1).lane == "apart"


def test_a_selector_keeps_a_prompt_that_reads_more_than_the_conversation():
    """It reads what stands in front of the conversation; with three forms of that in turn it misses two replies."""
    for before, heads, lane in ((100, 1, "own"), (100, 3, "apart"), (1100, 3, "own"), (1100, 0, "apart")):
        assert selector_lane(carried=None, opening=1500, speakers=3, read=0.1, before=before, heads=heads).lane == lane
    assert selector_lane(carried=600, opening=1500, speakers=3, read=0.1, before=200, heads=1).lane == "joined"
    assert selector_lane(carried=600, opening=1500, speakers=3, read=0.1, before=400, heads=1).lane == "own"


async def test_long_roles_keep_their_own_requests_on_the_wire(provide, new_client):
    """The requests are those of the unwrapped team, and the report says why."""
    bodies = []
    for wrapped in (False, True):
        provider = provide("openai", Says())
        agents = [
            role(n, new_client(provider), system_message=f"You are the {n}. {f'Duty of {n}. ' * 2000}") for n in ROLES
        ]
        team = RoundRobinGroupChat(agents, termination_condition=TextMentionTermination("Never."), max_turns=4)
        if wrapped:
            wrap(team)
        await team.run(task=TASK)
        bodies.append([record.json["messages"] for record in provider.requests])
    assert bodies[0] == bodies[1]
    assert str(session_of(team).report()).count(" in the application's own layout: ") == 3


async def test_a_tool_heavy_agent_is_left_alone_and_the_others_share(provide, new_client):
    """Its tools are in nobody else's requests."""
    many = [search(f"tool_{n}_{'x' * 40}") for n in range(40)]
    provider = provide("openai", Says())
    agents = [role(n, new_client(provider)) for n in ROLES[:2]]
    agents.append(role("writer", new_client(provider), tools=many))
    await wrap(RoundRobinGroupChat(agents, max_turns=6)).run(task=TASK)
    assert ["tools" in record.json for record in provider.requests] == [False, False, True] * 2
    sharing = [p for i, p in enumerate(prompts(provider.requests)) if i % 3 != 2]
    assert all(common(a, b) == tail_index(a) for a, b in pairwise(sharing))
    assert "You are the writer." in provider.requests[2].json["messages"][0]["content"]


async def test_an_agent_with_nobody_but_a_person_keeps_its_own_layout(provide, new_client):
    """With one model in the team there is no one to share with."""
    provider = provide("openai", Says())
    agents = [role("planner", new_client(provider)), UserProxyAgent("human", input_func=lambda _: "Yes.")]
    await wrap(RoundRobinGroupChat(agents, max_turns=3)).run(task=TASK)
    sent = prompts(provider.requests)
    assert common(*sent) == len(sent[0].sections)


async def test_the_lanes_are_kept_across_a_resume(provide, new_client):
    """What was settled with the first request does not change with a longer transcript."""
    provider = provide("openai", Says())

    def build():
        agents = [role(n, new_client(provider)) for n in ROLES]
        ends = TextMentionTermination("Never.")
        return wrap(RoundRobinGroupChat(agents, termination_condition=ends, max_turns=2))

    team = build()
    await team.run(task=TASK)
    state = json.loads(json.dumps(await team.save_state()))
    assert set(state["cacheprefix"]["lanes"]["planner"]) == set(ROLES)
    state["cacheprefix"]["lanes"] = {name: [name] for name in ROLES}
    other = build()
    await other.load_state(state)
    await other.run(task="Go on.")
    assert HANDBOOK[:50] in provider.requests[-1].json["messages"][0]["content"]
    assert "You are the" in provider.requests[-1].json["messages"][0]["content"]


async def test_a_lane_too_short_to_be_cached_leaves_its_agents_alone(provide, new_client):
    """What counts are the tools of the lane, not of the whole team: with less than the minimum nothing is ever read."""

    def tool(name):
        """One that only this agent has, of some two hundred tokens."""
        return FunctionTool(search(name), name=name, description=" ".join(f"{name}{n}" for n in range(100)))

    provider = provide("openai", Says({}))
    agents = [
        role(f"agent{n}", new_client(provider), tools=[tool(f"tool{n}")], system_message=f"You are agent {n}.")
        for n in range(4)
    ]
    team = wrap(RoundRobinGroupChat(agents, max_turns=4))
    await team.run(task="Go.")
    sent = [[one["function"]["name"] for one in json.loads(record.body)["tools"]] for record in provider.requests]
    assert sent == [["tool0"], ["tool1"], ["tool2"], ["tool3"]]
    assert session_of(team).failures == {}


async def test_a_team_that_is_made_later_shares_its_own_tools(provide, new_client):
    """They are in all of its agents' requests, and the first team's begin as they did."""
    provider = provide("openai", Says())
    client, session = new_client(provider), Session(SharedPrefix(system=HANDBOOK))

    def team(tool, *names):
        own = FunctionTool(search, name=tool, description=f"Tool {tool}.")
        agents = [role(name, client, tools=[own] if name == names[0] else []) for name in names]
        return wrap(RoundRobinGroupChat(agents, max_turns=2), session)

    first = team("plan", "planner", "critic")
    await first.run(task=TASK)
    await team("check", "writer", "editor").run(task=TASK)
    await first.run(task="Go on.")
    sent = [[tool["function"]["name"] for tool in record.json["tools"]] for record in provider.requests]
    assert sent == [["plan"]] * 2 + [["check"]] * 2 + [["plan"]] * 2
    reads = [call.usage.cache_read_tokens > 1_000 for call in session.calls]
    assert reads == [False, True, False, True, True, True]
    assert session.failures == {}


async def test_a_team_with_large_tools_that_takes_one_turn_a_run_is_not_dearer(provide, new_client):
    """Each task goes to the first agent alone: it would write all others' tools for nobody."""

    def made(client):
        def tool(name):
            def look_up(query: str) -> str:
                return query

            return FunctionTool(look_up, name=f"{name}_search", description=f"The {name} looks it up in detail. " * 120)

        agents = [role(name, client, tools=[tool(name)]) for name in ROLES]
        return RoundRobinGroupChat(agents, termination_condition=TextMentionTermination("never said"), max_turns=1)

    async def units(wrapped):
        provider = provide("openai", Says())
        team = made(new_client(provider, model="gpt-5.2"))
        team = wrap(team, Session(SharedPrefix(system=HANDBOOK))) if wrapped else team
        for task in ("one", "two"):
            await team.run(task=f"Look up {task}. " * 10)
            await team.reset()
        profile = profile_for(provider.requests[0].model, api="openai-chat")
        return sum(one.outcome.cost_units(profile) for one in provider.requests)

    assert await units(wrapped=True) <= 1.01 * await units(wrapped=False)
