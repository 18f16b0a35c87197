"""Whose words stand in a prompt: kickoffs of one crew for several people."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.crewai_workloads import CrewModel, agents, crew, tasks
from cacheprefix import Compaction, Session, ToolResultBudget
from cacheprefix_crewai import install

USERS = ("alice", "bob")
WAYS = ("kickoff", "kickoff_for_each", "kickoff_for_each_async", "akickoff")


def _brief(user):
    return {"brief": "Compare the proposals. " + " ".join(f"{user}-value-{k}" for k in range(300))}


def _run(team, way, inputs):
    async def awaited():
        if way == "akickoff":
            for each in inputs:
                await team.akickoff(inputs=each)
        else:
            await team.kickoff_for_each_async(inputs=inputs)

    if way == "kickoff":
        for each in inputs:
            team.kickoff(inputs=each)
    elif way == "kickoff_for_each":
        team.kickoff_for_each(inputs=inputs)
    else:
        asyncio.run(awaited())


@pytest.mark.parametrize("bounded", [False, True], ids=["whole", "bounded"])
@pytest.mark.parametrize("way", WAYS)
def test_a_kickoff_is_a_conversation_of_its_own(servers, new_llm, way, bounded) -> None:
    """Nothing of one person's inputs is in another's prompt, no message is missing, and no kickoff alarms the next."""
    provider = servers("openai", CrewModel())
    options = {"budget": ToolResultBudget(max_tokens=300), "compaction": Compaction(trigger=2_500, horizon=1_000)}
    session = Session(gate=None, **(options if bounded else {}))
    who = agents(lambda: new_llm(provider))
    team = crew(who, tasks(who))
    with install(team, session):
        _run(team, way, [_brief(user) for user in USERS])
    bodies = [record.body.decode() for record in provider.requests]
    assert len(bodies) == 16
    whose = ["".join(user for user in USERS if f"{user}-value" in body) for body in bodies]
    assert sorted(whose) == ["alice"] * 8 + ["bob"] * 8
    for user in USERS:
        mine = [body for body, name in zip(bodies, whose, strict=True) if name == user]
        assert all(f"{user}-value-{k} " in body for body in mine for k in range(299))
    calls = session.calls
    assert {len([c for c in calls if c.conversation == name]) for name in {c.conversation for c in calls}} == {8}
    assert not any(call.verdict.alarm for call in calls)
    assert not session.failures
