"""The matrix of faults on a CrewAI crew: its result is that of the unmodified one."""

from __future__ import annotations

import asyncio

import pytest
from crewai import Agent, Crew, Task
from crewai.tools import tool

from benchmarks.crewai_workloads import new_llm
from cacheprefix.server import SimulatedProvider
from cacheprefix_crewai import install
from tests.fault_matrix import FOUND, HANDBOOK, cases, check, check_event_loop, check_stall, names

CASES = cases(answers=False)
KNOWN: dict[str, list[str]] = {}


@tool("look")
def look(at: str) -> str:
    """Look at a place."""
    return f"{at}: {FOUND}"


@pytest.fixture(scope="module", params=["kickoff"])
def application(request):
    """A finder with a tool and a writer, one task each, run by a thread or in an event loop."""

    def kick(crew):
        if request.param == "kickoff":
            return crew.kickoff()
        if request.param == "kickoff_for_each_async":
            return asyncio.run(crew.kickoff_for_each_async(inputs=[{}]))[0]
        return asyncio.run(getattr(crew, request.param)())

    with SimulatedProvider("openai") as provider:
        llm = new_llm("gpt-5-2025-08-07", provider.openai_base_url, max_retries=0)

        def run(session, replies):
            provider.reset()
            provider.simulator.script = replies
            people = [
                Agent(role=role, goal="Do it well", backstory="Careful.", llm=llm, tools=tools, max_retry_limit=0)
                for role, tools in (("Finder", [look]), ("Writer", []))
            ]
            tasks = [
                Task(description=f"{HANDBOOK} Now {verb}.", expected_output="A text.", agent=agent)
                for verb, agent in zip(("find", "write"), people, strict=True)
            ]
            crew = Crew(agents=people, tasks=tasks)
            try:
                if session is None:
                    result = kick(crew)
                else:
                    with install(crew, session):
                        result = kick(crew)
            except Exception as error:
                return [type(error).__name__]
            return [each.raw for each in result.tasks_output]

        yield run


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES, ids=names(CASES))
def test_the_result_is_that_of_the_unmodified_crew(case, application, monkeypatch):
    """Whatever raises, is slow, answers rubbish or cannot be reached."""
    check(case, application, monkeypatch, KNOWN)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("application", ["akickoff"], indirect=True)
def test_a_store_that_hangs_never_holds_the_event_loop(application):
    """Full texts, kept tool results and the gate, in a store that takes its time for each call."""
    check_event_loop(application)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("application", ["akickoff", "kickoff_async", "kickoff_for_each_async"], indirect=True)
def test_the_event_loop_goes_on_while_a_store_takes_its_time(application):
    """A second and a half for each call, longer than the gate waits for one: no event loop stands still for it."""
    check_stall(application)
