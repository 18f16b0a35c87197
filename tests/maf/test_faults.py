"""A small matrix of faults: whatever fails, the application's result is that of the unmodified one."""

from __future__ import annotations

import asyncio

import pytest
from agent_framework import FunctionTool, Message
from maf_driver import close, make_client
from maf_teams import look, role

from cacheprefix_maf import wrap
from tests.fault_matrix import FOUND, HANDBOOK, PROVIDER, Case, check, check_event_loop, check_fork, check_stall, names

STEPS = (
    "cacheprefix_maf.model_call.adopt",
    "cacheprefix_maf.model_call.body_of",
    "cacheprefix_maf.model_call.condensed",
    "cacheprefix_maf.model_call.laid_out",
    "cacheprefix_maf.model_call.own_of",
    "cacheprefix_maf.model_call.prepared_by",
    "cacheprefix_maf.model_call.refuse_called",
    "cacheprefix.calls.history_runner.apply",
    "cacheprefix_maf.layout._digest",
    "cacheprefix_maf.layout.history_of",
    "cacheprefix_maf.layout.carried",
    "cacheprefix_maf.middleware.watch",
    "cacheprefix_maf.client_requests.Sending.replaced",
    "cacheprefix_maf.client_requests._usage",
    "cacheprefix_maf.client_requests.merge_usage",
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
PLACE = {"type": "object", "properties": {"at": {"type": "string"}}}
LOOK = FunctionTool(name="look", description="Looks at a place.", func=lambda at: f"{at}: {FOUND}", input_model=PLACE)
LONG = "This role keeps to one more rule of its own list. " * 20


@pytest.fixture(scope="module")
def application(servers):
    """A role with a tool, then one that streams."""
    provider = servers["openai-chat"]

    async def run(session, replies):
        provider.reset()
        provider.simulator.script = replies
        client = make_client("openai-chat", provider)
        finder = role(client, "finder", instructions=f"{HANDBOOK}\n\n{LONG} Find.", tools=[LOOK])
        writer = role(client, "writer", instructions=f"{HANDBOOK}\n\n{LONG} Write.", tools=[look("write")])
        said = [Message("user", ["Find it and write it down."])]
        try:
            if session is not None:
                for agent in (finder, writer):
                    wrap(agent, session, conversation="c")
            answer = await finder.run(list(said))
            said.append(Message("assistant", [answer.text], author_name="finder"))
            pieces = writer.run(list(said), stream=True)
            async for _ in pieces:
                pass
            said.append((await pieces.get_final_response()).messages[-1])
        except Exception as error:
            return [type(error).__name__]
        finally:
            await close(client)
        return [message.text for message in said]

    return lambda session, replies: asyncio.run(run(session, replies))


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
