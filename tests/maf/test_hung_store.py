"""A store that takes its time holds no event loop, whichever way the framework has agents asked."""

from __future__ import annotations

import asyncio
import json

import pytest
from agent_framework import InMemoryCheckpointStorage, WorkflowBuilder
from agent_framework.orchestrations import (
    ConcurrentBuilder,
    GroupChatBuilder,
    HandoffBuilder,
    MagenticBuilder,
    SequentialBuilder,
)
from maf_driver import RULES
from maf_teams import LONG, NAMES, TASK, call, look, role, served

from cacheprefix_maf import wrap
from tests.fault_matrix import HANDBOOK, check_stall


def agent(client, api, name, **options):
    """A role that looks something up, and is told a lot."""
    kept = {"store": False} if api == "openai-responses" else None
    own = {"instructions": f"You are the {name}.\n\n{HANDBOOK}", "default_options": kept, **options}
    return role(client, name, tools=[look()], **own)


def ledger(speaker, *, done=False):
    """A Magentic manager's view of the progress."""
    told = {"is_request_satisfied": done, "is_in_loop": False, "is_progress_being_made": True}
    told |= {"next_speaker": speaker, "instruction_or_question": f"Go on, {speaker}."}
    return json.dumps({name: {"reason": "r", "answer": answer} for name, answer in told.items()})


STEPS = {
    **{name: [call("look", query=name), f"The {name} is done."] for name in NAMES},
    "manager": ["Facts.", "A plan.", ledger("planner"), ledger("critic"), ledger("", done=True), "So."],
}
HANDED = {"planner": [call("look", query="planner"), call("handoff_to_critic")], "critic": STEPS["critic"]}


def handed_over(agents):
    """The first one hands over to the second."""
    made = HandoffBuilder(participants=agents[:2], termination_condition=lambda said: len(said) > 1)
    return made.with_start_agent(agents[0]).build()


def graph(agents):
    """A graph that is saved at each of its steps."""
    made = WorkflowBuilder(start_executor=agents[0], checkpoint_storage=InMemoryCheckpointStorage())
    return made.add_edge(agents[0], agents[1]).build()


WORKFLOWS = {
    "sequential": lambda agents, _: SequentialBuilder(participants=agents).build(),
    "concurrent": lambda agents, _: ConcurrentBuilder(participants=agents).build(),
    "group chat": lambda agents, _: GroupChatBuilder(
        participants=agents, selection_func=lambda state: NAMES[state.current_round % 3], max_rounds=3
    ).build(),
    "handoff": lambda agents, _: handed_over(agents),
    "magentic": lambda agents, manager: MagenticBuilder(
        participants=agents[:2], manager_agent=manager, max_round_count=4
    ).build(),
    "graph": lambda agents, _: graph(agents),
}


async def asked(agents, *, stream):
    """Agents that are asked one after the other, each in a session of its own."""
    said = []
    for each in agents:
        given = each.run(TASK, session=each.create_session(), stream=stream)
        said.append((await (given.get_final_response() if stream else given)).text)
    return said


async def run_of(workflow, *, stream):
    """A workflow's run; what it gave."""
    given = workflow.run(TASK, stream=stream)
    return (await (given.get_final_response() if stream else given)).get_outputs()


CASES = [
    *((api, "agents", stream) for api in RULES for stream in (False, True)),
    *(case for way in WORKFLOWS for case in (("openai-chat", way, False), ("anthropic", way, True))),
]
"""Nine in ten seconds of each are spent waiting for the store."""


@pytest.mark.slow
@pytest.mark.parametrize(("api", "way", "stream"), CASES, ids=str)
def test_the_event_loop_goes_on_while_a_store_takes_its_time(servers, api, way, stream):
    """Longer for each call than the gate waits for one: full results, the tool cache and the gate."""

    async def ask(session):
        async with served(servers, api, **(HANDED if way == "handoff" else STEPS)) as (client, provider):
            kept = {"require_per_service_call_history_persistence": True} if way == "handoff" else {}
            agents = [agent(client, api, name, **kept) for name in NAMES]
            if way == "agents":
                target, given = agents[:2], lambda: asked(agents[:2], stream=stream)
            else:
                target = WORKFLOWS[way](agents, agent(client, api, "manager"))
                given = lambda: run_of(target, stream=stream)  # noqa: E731 - one of two
            if session is not None:
                wrap(target, session)
            made = await given()
            assert made
            assert any(LONG in record.body.decode() for record in provider.requests) == (session is None)
            if session is not None:
                assert any(one.layout == "fork" for one in session.calls)

    check_stall(lambda session, _: asyncio.run(ask(session)))
