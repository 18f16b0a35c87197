"""The framework's own workflows, wrapped: what the provider receives."""

from __future__ import annotations

import json

import pytest
from agent_framework import Message, WorkflowBuilder
from agent_framework.orchestrations import ConcurrentBuilder, GroupChatBuilder, HandoffBuilder, SequentialBuilder
from maf_teams import HANDBOOK, LONG, NAMES, TASK, call, grows, look, prompts, role, served, tail_at, texts

from benchmarks.bench_maf import RULES, WORKLOADS, run
from cacheprefix import Gate, Session, SharedPrefix
from cacheprefix.profiles import cost_units, default_registry, normalise_usage
from cacheprefix.testing import information
from cacheprefix_maf import session_of, unwrap, wrap


async def test_a_sequence_is_a_row_of_forks(servers):
    """The common handbook is found and stands first, what was said stands with its speaker, the role last."""
    async with served(servers, "openai-chat") as (client, provider):
        workflow = wrap(SequentialBuilder(participants=[role(client, name) for name in NAMES]).build())
        await workflow.run(TASK)
    found = prompts(provider)
    assert grows(found)
    assert texts(found[2]) == [
        HANDBOOK.strip(),
        TASK,
        "[planner]\nplanner speaks for the time 0.",
        "[critic]\ncritic speaks for the time 0.",
        '<role name="writer">\nYou are the writer.\n</role>',
    ]
    assert [record.outcome.read_tokens > 1_000 for record in provider.requests] == [False, True, True]
    assert session_of(workflow).failures == {}


async def test_one_with_other_instructions_keeps_them_and_the_others_share(servers):
    """Neither an outlier nor other line ends turn sharing off, and the outlier is not shown the others' handbook."""
    async with served(servers, "openai-chat") as (client, provider):
        team = [role(client, name) for name in NAMES]
        team[1].default_options["instructions"] = f"You are the critic.\r\n\r\n  {HANDBOOK}"
        odd = role(client, "auditor", instructions="You are the auditor. You look at prices alone.")
        workflow = wrap(SequentialBuilder(participants=[*team, odd]).build())
        await workflow.run(TASK)
    found, session = prompts(provider), session_of(workflow)
    assert [call.layout for call in session.calls] == ["fork"] * 3 + ["own"]
    assert [one.why for one in session.calls[-1].reasons] == ["other_text"]
    assert ["The handbook." in "".join(texts(prompt)) for prompt in found] == [True] * 3 + [False]
    assert all("".join(texts(prompt)).count("The handbook.") == 1 for prompt in found[:3])


async def test_what_others_looked_up_stays_where_the_framework_hands_it_on(servers):
    """A sequence shows later agents the tool traffic of earlier ones; calls stay with their results."""
    steps = {name: [call("look", query=name), f"{name} is done."] for name in NAMES}
    async with served(servers, "openai-chat", **steps) as (client, provider):
        agents = [role(client, name, tools=[look()]) for name in NAMES]
        await wrap(SequentialBuilder(participants=agents).build()).run(TASK)
    found = prompts(provider)
    assert grows(found)
    seen = [text for text in texts(found[-2]) if text.startswith("look for")]
    assert seen == [f"look for planner: {LONG}", f"look for critic: {LONG}"]


async def test_parallel_agents_begin_alike_and_the_first_writes_for_all(servers):
    """All wait for the one that writes the cold prefix."""
    async with served(servers, "anthropic") as (client, provider):
        agents = [role(client, name) for name in NAMES]
        await wrap(ConcurrentBuilder(participants=agents).build(), Session(gate=Gate(price=0.0))).run(TASK)
    found = prompts(provider)
    assert grows(found)
    assert len({tail_at(prompt) for prompt in found}) == 1
    assert sorted(record.outcome.read_tokens > 1_000 for record in provider.requests) == [False, True, True]
    assert all(any(section.marker for section in prompt.sections) for prompt in found)


def looked_up(client, **options):
    """A group chat whose agents look something up in their first turn, and have two."""
    agents = [role(client, name, tools=[look()], **options) for name in NAMES]
    return GroupChatBuilder(
        participants=agents, selection_func=lambda state: NAMES[state.current_round % 3], max_rounds=6
    ).build()


LOOKS = {name: [call("look", query=name), f"{name} is done.", f"{name} agrees."] for name in NAMES}


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses", "anthropic"])
async def test_an_agent_is_shown_its_own_tool_traffic_again(servers, api):
    """Every text of the unmodified request stands in the fork, once, and none of another agent's lookups."""
    options = {"default_options": {"store": False}} if api == "openai-responses" else {}
    async with served(servers, api, **LOOKS) as (client, provider):
        await looked_up(client, **options).run(TASK)
        unmodified = prompts(provider)
    async with served(servers, api, **LOOKS) as (client, provider):
        session = Session()
        await wrap(looked_up(client, **options), session).run(TASK)
        found = prompts(provider)
    assert len(found) == len(unmodified) == 9
    for one, other in zip(unmodified, found, strict=True):
        told = information(one, other)
        # Who spoke stands in the text, for providers that take no names; "Continue" is said by the framework's client
        # of Anthropic where a request would end with an answer.
        assert set(told.added) <= {f"[{name}]" for name in NAMES}
        assert set(told.missing) <= ({"Continue"} if api == "anthropic" else set())
    for name, prompt in zip(NAMES, found[6:], strict=True):
        said = "\n".join(texts(prompt))
        assert [one for one in NAMES if f"look for {one}:" in said] == [name]
    assert session.failures == {}


async def test_a_long_chat_with_tools_grows_at_its_end_and_is_cheaper(servers):
    """What an agent looked up stands where it did, so that its next request reads it."""
    steps = {name: [step for n in range(5) for step in (call("look", query=f"{n}"), f"{name} {n}.")] for name in NAMES}
    async with served(servers, "openai-chat", **steps) as (client, provider):
        agents = [role(client, name, tools=[look()]) for name in NAMES]
        chat = GroupChatBuilder(
            participants=agents, selection_func=lambda state: NAMES[state.current_round % 3], max_rounds=15
        )
        session = Session()
        await wrap(chat.build(), session).run(TASK)
        assert len(provider.requests) == 30
    report = session.report()
    assert report.breaks == ()
    assert report.total.ratio < 0.9


async def test_tool_traffic_may_end_with_its_turn(servers):
    """An option, which shows the agent less: what it looked up for itself is not in its later turns."""
    async with served(servers, "openai-chat", **LOOKS) as (client, provider):
        await wrap(looked_up(client), tool_memory="drop").run(TASK)
        found = prompts(provider)
    assert grows(found)
    assert not any("look for" in text for prompt in found[6:] for text in texts(prompt))


async def test_handed_over_agents_go_on_in_one_transcript(servers):
    """Hand-off tools are in the union from the first request; who came back sees what the others said."""
    steps = {
        "planner": [call("handoff_to_critic"), "The planner closes."],
        "critic": ["The critic objects.", call("handoff_to_planner")],
    }
    async with served(servers, "openai-chat", **steps) as (client, provider):
        agents = [role(client, n, require_per_service_call_history_persistence=True) for n in NAMES[:2]]
        built = HandoffBuilder(participants=agents, termination_condition=lambda said: len(said) > 4)
        workflow = wrap(built.with_start_agent(agents[0]).build())
        first = await workflow.run(TASK)
        asked = first.get_request_info_events()[0]
        await workflow.run(responses={asked.request_id: [Message("user", ["Go on."])]})
    found = prompts(provider)
    assert grows(found)
    named = [json.loads(section.text)["function"]["name"] for section in found[0].tier("tools")]
    assert named == ["handoff_to_critic", "handoff_to_planner"]
    said = texts(found[-1])
    assert said[1:4] == [TASK, "[critic]\nThe critic objects.", "Go on."]
    assert said[4].startswith('<role name="planner">')
    # Its own call, and what came of it.
    assert "handoff_to_critic" in said[5]
    assert len(said) == 7


async def test_an_agent_that_leads_keeps_its_layout(servers):
    """Its answers follow a schema, a lane that nobody shares; it is measured."""
    lead = json.dumps({"terminate": False, "reason": "r", "next_speaker": "critic", "final_message": None})
    async with served(servers, "openai-chat", leader=[lead]) as (client, provider):
        leader = role(client, "leader")
        chat = GroupChatBuilder(
            participants=[role(client, name) for name in NAMES], orchestrator_agent=leader, max_rounds=2
        )
        session = Session(SharedPrefix(system=HANDBOOK))
        await wrap(chat.build(), session).run(TASK)
    led = [p for p in prompts(provider) if p.sections[0].text.startswith("You are the leader.")]
    assert led
    assert len([one for one in session.calls if one.agent == "leader"]) == len(led)
    assert grows([p for p in prompts(provider) if p not in led])


async def test_agents_of_workflows_inside_workflows_are_found(servers):
    """A workflow as an agent, and one as an executor."""
    async with served(servers, "openai-chat") as (client, _):
        inner = SequentialBuilder(participants=[role(client, "planner"), role(client, "critic")]).build()
        outer = SequentialBuilder(participants=[inner.as_agent("inner"), role(client, "writer")]).build()
        wrap(outer)
        assert session_of(inner) is session_of(outer) is not None
        unwrap(outer)
        assert session_of(inner) is None
    alone = WorkflowBuilder(start_executor=role(client, "planner")).build()
    assert session_of(wrap(alone)) is not None


@pytest.mark.parametrize(
    ("name", "rules"),
    [("Group chat led by an agent", RULES[1]), ("3 agents x3 tasks, sessions of their own", RULES[2])],
)
def test_the_rows_that_share_least_are_never_dearer(name, rules):
    """The benchmark's own workloads, by the provider's count."""
    assert name in WORKLOADS
    profile = default_registry().get(rules[0])
    costs = []
    for shared in (False, True):
        records, _ = run(name, *rules[:2], shared=shared)
        costs.append(sum(cost_units(normalise_usage(one.usage, one.api), profile) for one in records))
    assert costs[1] <= costs[0]
