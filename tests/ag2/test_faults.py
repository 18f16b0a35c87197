"""A small matrix of faults: whatever fails, the application's result is that of the unmodified one."""

from __future__ import annotations

import asyncio

import pytest
from ag2 import Agent, MemoryStream, tool
from ag2_driver import configured
from test_layout import named

from cacheprefix_ag2 import wrap
from tests.fault_matrix import FOUND, HANDBOOK, PROVIDER, Case, check, check_event_loop, check_fork, check_stall, names

STEPS = (
    "cacheprefix_ag2.layout._seated",
    "cacheprefix_ag2.layout._texts",
    "cacheprefix_ag2.client.tap",
    "cacheprefix_ag2.policy.tail_position",
    "cacheprefix_ag2.policy.conversation_id",
    "cacheprefix_ag2.policy.instruction_of",
    "cacheprefix_ag2.state.Talk.load",
    "cacheprefix_ag2.state.Talk.unsaved",
    "cacheprefix_ag2.sending.Sending._settled",
    "cacheprefix.calls.history_runner.apply",
    "cacheprefix_ag2.team.Team.heard",
    "cacheprefix_ag2.team.Team.layout",
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
LONG = "This role keeps to one more rule of its own list. " * 20
PLACE = {"type": "object", "properties": {"at": {"type": "string"}}}


def look(at: str) -> str:
    """What the tool gives back."""
    return f"{at}: {FOUND}"


@pytest.fixture(scope="module")
def application(servers):
    """Two agents on one stream; the first calls a tool."""
    provider = servers["openai-chat"]
    kept = provider.simulator.script

    async def run(session, replies):
        provider.reset()
        provider.simulator.script = replies
        tools = {
            "finder": tool(look, name="look", description="Looks at a place.", schema=PLACE),
            "writer": named("write"),
        }
        stream = MemoryStream()
        async with configured("openai-chat", provider, streaming=True) as config:
            agents = [Agent(n, f"{HANDBOOK}\n\n{LONG} {n}.", config=config, tools=[tools[n]]) for n in tools]
            try:
                if session is not None:
                    wrap(agents, session)
                return [(await each.ask("Find it and write it down.", stream=stream)).body for each in agents]
            except Exception as error:
                return [type(error).__name__]

    yield lambda session, replies: asyncio.run(run(session, replies))
    provider.simulator.script = kept


@pytest.mark.parametrize("case", CASES, ids=names(CASES))
def test_the_result_is_that_of_the_unmodified_application(case, application, monkeypatch):
    """Each of these steps is taken, and that it raised is counted."""
    check(case, application, monkeypatch, KNOWN, every=True)


def test_a_store_that_hangs_never_holds_the_event_loop(application):
    """Full texts, kept tool results and the gate, in a store that takes its time for each call."""
    check_event_loop(application)


@pytest.mark.slow
def test_the_event_loop_goes_on_while_a_store_takes_its_time(application):
    """A second and a half for each call, longer than the gate waits for one: no event loop stands still for it."""
    check_stall(application)


def test_a_child_that_is_forked_off_from_a_busy_process_runs_it(application):
    """Prefork servers and pools: no lock of the parent's holds it, and nothing of the parent's is waited for."""
    check_fork(application)
