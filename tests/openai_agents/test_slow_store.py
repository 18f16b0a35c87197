"""No event loop stands still for a store that takes its time, whichever way agents ask one another."""

from __future__ import annotations

import asyncio

import pytest
from agents import Agent, Runner
from agents_driver import MODELS, model_for, tool

from cacheprefix.server import Queue, Reply, ToolCall
from cacheprefix_openai_agents import wrap
from tests.fault_matrix import FOUND, HANDBOOK, check_stall

LONG = "This role keeps to one more rule of its own list. " * 20
PLACE = {"type": "object", "properties": {"at": {"type": "string"}}}
TEXT = {"type": "object", "properties": {"input": {"type": "string"}}}
LOOKS = Reply(tool_calls=(ToolCall("look", {"at": "here"}),))
ASKS = Reply(tool_calls=(ToolCall("ask_critic", {"input": "Is it so?"}),))


def calls(name):
    """An answer that calls one tool."""
    return Reply(tool_calls=(ToolCall(name, {}),))


TEAMS = {
    "handoffs": [calls("transfer_to_critic"), LOOKS, calls("transfer_to_planner"), LOOKS, Reply("So it is.")],
    "an agent as a tool": [ASKS, LOOKS, Reply("It is not."), LOOKS, Reply("So it is.")],
    "side by side": [LOOKS, LOOKS, Reply("So it is."), Reply("So it is.")],
}


def team(kind, model):
    """A planner and a critic who ask in this way; those who are asked."""
    looks = tool("look", "Looks at a place.", PLACE, lambda: FOUND)

    def agent(name, **options):
        return Agent(name, instructions=f"{HANDBOOK}\n\n{LONG} {name}.", model=model, **options)

    critic, planner = agent("critic", tools=[looks]), agent("planner", tools=[looks])
    if kind == "handoffs":
        planner.handoffs, critic.handoffs = [critic], [planner]
    elif kind == "an agent as a tool":
        planner.tools = [looks, critic.as_tool("ask_critic", "Asks the critic.")]
    return [planner, critic] if kind == "side by side" else [planner]


async def ran(agent, *, streamed):
    """What a run ends with."""
    if not streamed:
        return (await Runner.run(agent, "Find it.")).final_output
    result = Runner.run_streamed(agent, "Find it.")
    async for _ in result.stream_events():
        pass
    return result.final_output


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", tuple(TEAMS))
@pytest.mark.parametrize("api", tuple(MODELS))
def test_the_event_loop_goes_on_while_a_store_takes_its_time(provider, api, kind, streamed):
    """Longer for each call than the gate waits for one, with large results of tools."""
    kept = provider.simulator.script

    async def main(session):
        model = model_for(api, provider)
        asked = team(kind, model)
        for one in asked if session is not None else ():
            wrap(one, session)
        try:
            return await asyncio.gather(*(ran(one, streamed=streamed) for one in asked))
        finally:
            await model._client.close()

    def run(session, _):
        provider.reset()
        provider.simulator.script = Queue(TEAMS[kind])
        said = asyncio.run(main(session))
        assert set(said) == {"So it is."}
        assert session is None or not session.failures.keys() - {"gate store"}
        return said

    try:
        check_stall(run)
    finally:
        provider.simulator.script = kept
