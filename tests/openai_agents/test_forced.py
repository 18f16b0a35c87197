"""A forced call of any tool, where the agents' requests carry all their tools."""

from __future__ import annotations

import asyncio

import openai
import pytest
from agents import ModelSettings, Runner, function_tool
from agents_driver import HANDBOOK, model_for
from test_agents import APIS, agent, session

from cacheprefix import SharedPrefix
from cacheprefix.server import Queue, Reply, SimulatedProvider, ToolCall
from cacheprefix_openai_agents import wrap


def tool_of(name):
    """A tool of an agent's own."""

    @function_tool(name_override=f"{name}_tool")
    def run() -> str:
        """A tool."""
        return "done"

    return run


def two(model, choice):
    """A planner and a writer with a tool each, and the session to wrap them in; the writer's settings choose a tool."""
    named = (("planner", ModelSettings()), ("writer", ModelSettings(tool_choice=choice)))
    team = [agent(name, model, tools=[tool_of(name)], model_settings=settings) for name, settings in named]
    return team, session(prefix=SharedPrefix(system=HANDBOOK))


async def asked(one, said, stream):
    """What a run gave, streamed or not."""
    if not stream:
        return await Runner.run(one, said)
    result = Runner.run_streamed(one, said)
    async for _ in result.stream_events():
        pass
    return result


SAID = [{"role": "user", "content": "Go."}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
def test_a_forced_call_can_only_be_one_of_the_agents_own(api, stream):
    """Of the union the model could call another agent's tool, at which the run of a stream ended with an error."""
    answers = Queue(["Planned.", Reply(tool_calls=(ToolCall("writer_tool", {}),)), "Written."])

    async def play(provider):
        model, said = model_for(api, provider), SAID
        team, joined = two(model, "required")
        for one in team:
            wrap(one, joined, conversation="one")
        for one in team:
            result = await asked(one, said, stream)
            said = result.to_input_list()
        await model._client.close()
        return result.final_output, joined.calls

    with SimulatedProvider("openai-5.6", answers) as provider:
        answer, calls = asyncio.run(play(provider))
        bodies = [record.json for record in provider.requests[1:]]
    offered = [[(one.get("function") or one)["name"] for one in body["tools"]] for body in bodies]
    # The SDK forces a call once, and then leaves it to the model.
    assert offered == [["writer_tool"], ["planner_tool", "writer_tool"]]
    assert [body["tool_choice"] if body is bodies[0] else None for body in bodies] == ["required", None]
    assert "forced_tool" in [one.why for one in calls[1].reasons]
    assert answer == "Written."


@pytest.mark.invalid_requests
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
def test_a_choice_of_another_agents_tool_is_refused_as_without_us(api, stream):
    """Of the union the provider took it: the call ended a stream with an error, else all was asked again, and paid."""

    async def play(provider, wrapped):
        model = model_for(api, provider)
        team, joined = two(model, "planner_tool")
        if wrapped:
            for one in team:
                wrap(one, joined, conversation="one")
        said = (await asked(team[0], SAID, stream)).to_input_list()
        with pytest.raises(openai.BadRequestError, match="not among the tools") as refused:
            await asked(team[1], said, stream)
        await model._client.close()
        assert joined.failures == {}
        return str(refused.value), len(provider.requests)

    told = []
    for wrapped in (False, True):
        with SimulatedProvider("openai-5.6", Queue(["Planned.", "Written."])) as provider:
            told.append(asyncio.run(play(provider, wrapped)))
    assert told[0] == told[1]
    assert told[0][1] == 2
