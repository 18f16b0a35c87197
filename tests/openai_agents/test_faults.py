"""A small matrix of faults: whatever fails, the application's result is that of the unmodified one."""

from __future__ import annotations

import asyncio

import pytest
from agents import Agent, Runner
from agents_driver import model_for, tool

from cacheprefix_openai_agents import wrap
from tests.fault_matrix import FOUND, HANDBOOK, PROVIDER, Case, check, check_event_loop, check_fork, check_stall, names

STEPS = (
    "cacheprefix_openai_agents.models._declared",
    "cacheprefix.bodies._fork_layout",
    "cacheprefix.bodies._read",
    "cacheprefix.bodies.read_answer",
    "cacheprefix.calls.history_runner.views_of",
    "cacheprefix.watched_clients._astreamed",
    "cacheprefix.layout.role_position.RolePositions.choose",
    "cacheprefix.cache.CacheModel.finish",
    "cacheprefix.cache.CacheModel.first_token",
    "cacheprefix.calls.begin.Requests.gate_key",
)
CASES = [
    *(Case(f"step {step.split('.', 1)[-1]} raises", break_=step) for step in STEPS),
    *(
        Case(f"provider: {name}, call {at + 1}", provider=PROVIDER[name], at=at)
        for name in ("400", "429", "500", "cut", "usage omitted")
        for at in (0, 2)
    ),
]
KNOWN: dict[str, list[str]] = {}
QUESTION = "Find it and write it down."
LONG = "This role keeps to one more rule of its own list. " * 20
PLACE = {"type": "object", "properties": {"at": {"type": "string"}}}


@pytest.fixture(scope="module", params=["openai-responses", "openai-chat"])
def application(server, request):
    """An agent with a tool, then one that streams."""
    kept = server.simulator.script

    async def run(session, replies):
        server.reset()
        server.simulator.script = replies
        model = model_for(request.param, server)
        tools = {"finder": tool("look", "Looks at a place.", PLACE, lambda: FOUND)}
        tools["writer"] = tool("write", "Writes.", PLACE, lambda: "written")
        finder, writer = (
            Agent(n, instructions=f"{HANDBOOK}\n\n{LONG} {n}.", model=model, tools=[tools[n]]) for n in tools
        )
        try:
            if session is not None:
                for agent in (finder, writer):
                    wrap(agent, session, conversation="c")
            first = await Runner.run(finder, QUESTION)
            second = Runner.run_streamed(writer, first.to_input_list())
            async for _ in second.stream_events():
                pass
            return [first.final_output, second.final_output]
        except Exception as error:
            return [type(error).__name__]
        finally:
            await model._client.close()

    def asked(session, replies):
        outcome = asyncio.run(run(session, replies))
        # The answers do not go by what is asked: whatever fails, it is the whole conversation.
        assert all(QUESTION in str(record.json) for record in server.requests)
        return outcome

    yield asked
    server.simulator.script = kept
    KNOWN.clear()


@pytest.mark.parametrize("case", CASES, ids=names(CASES))
def test_the_result_is_that_of_the_unmodified_application(case, application, monkeypatch):
    """Each of these steps is taken, and that it raised is counted."""
    check(case, application, monkeypatch, KNOWN, every=True)


def test_a_store_that_hangs_never_holds_the_event_loop(application):
    """Full texts and the gate, in a store that takes its time for each call."""
    check_event_loop(application)


@pytest.mark.slow
def test_the_event_loop_goes_on_while_a_store_takes_its_time(application):
    """A second and a half for each call, longer than the gate waits for one: no event loop stands still for it."""
    check_stall(application)


def test_a_child_that_is_forked_off_from_a_busy_process_runs_it(application):
    """Prefork servers and pools: no lock of the parent's holds it, and nothing of the parent's is waited for."""
    check_fork(application)
