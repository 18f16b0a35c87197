"""A cut tool result can be read again by an agent that has the tool, and the note names it there alone."""

from __future__ import annotations

import asyncio
import re

import pytest
from agents import Agent, Runner, function_tool
from agents_driver import HANDBOOK, MODELS, model_for, tool

from cacheprefix import Caching, Session, SharedPrefix, ToolResultBudget
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Reply, Rules, SimulatedProvider, ToolCall
from cacheprefix_openai_agents import wrap

LONG = " ".join(f"line{number}" for number in range(3_000))
NOTE = re.compile(r"read_full_result\(ref='(\w+)', offset=(\d+)\)")


def answers(request):
    """First a look, then the cut part where a note names a tool for it, then the end."""
    if "line0" not in request.text:
        return Reply(tool_calls=(ToolCall("look", {}),))
    note = NOTE.search(request.text)
    if note is None or request.text.count("line60 ") > 1:
        return Reply("Done.")
    return Reply(tool_calls=(ToolCall("read_full_result", {"ref": note[1], "offset": 0, "limit": 900}),))


@pytest.mark.parametrize("bound", [True, False], ids=["bound", "not bound"])
@pytest.mark.parametrize("api", tuple(MODELS))
def test_a_cut_result_is_read_again_where_the_tool_is_bound(api, bound):
    """The session's plain function is a tool of the SDK as it is."""
    with SimulatedProvider("openai-5.6", Rules([], answers)) as provider:
        session = Session(
            SharedPrefix(system=HANDBOOK), budget=ToolResultBudget(max_tokens=200), caching=Caching(counter=ESTIMATE)
        )
        tools = [tool("look", "Looks.", {"type": "object", "properties": {}}, lambda: LONG)]
        if bound:
            tools.append(function_tool(session.read_tool("talk")))
        text = f"You are the reader.\n\n{HANDBOOK}"
        agent = Agent("reader", instructions=text, model=model_for(api, provider), tools=tools)
        result = asyncio.run(Runner.run(wrap(agent, session, conversation="talk"), "Look."))
    outputs = [item.output for item in result.new_items if hasattr(item, "output")]
    assert outputs[0] == LONG
    assert len(outputs) == (2 if bound else 1)
    if bound:
        assert outputs[1].startswith("line0 line1 ")
    assert bool(NOTE.search(provider.requests[-1].body.decode())) is bound
    assert not session.failures
