"""Cut tool results can be read again by the agents that may, in their own conversation."""

from __future__ import annotations

import re

import pytest
from ag2 import Agent
from ag2 import tool as made_tool
from ag2_driver import configured
from test_layout import named

from cacheprefix import Session, SharedPrefix, ToolResultBudget
from cacheprefix.server import Reply, SimulatedProvider, ToolCall
from cacheprefix_ag2 import wrap

RECORDS = "\n".join(f"record {number} of ann" for number in range(400))
NOTED = re.compile(r"read_full_result\(ref='(\w+)'")


def reads(request):
    """Looks something up, reads on where a note names the tool, and answers."""
    found = NOTED.search(request.text)
    answered = sum(one["role"] == "tool" for one in request.body["messages"])
    if not answered:
        return Reply(tool_calls=(ToolCall("look", {}),))
    if answered == 1 and found:
        return Reply(tool_calls=(ToolCall("read_full_result", {"ref": found[1], "offset": 500, "limit": 40}),))
    return Reply("Done.")


@pytest.mark.parametrize("given", [True, False])
async def test_an_agent_with_the_tool_reads_its_own_result_again(given):
    """The note names it to who has it, the call gives what was cut, and another conversation reads nothing."""
    session = Session(SharedPrefix(system="Be brief."), budget=ToolResultBudget(max_tokens=100))
    read = session.read_tool("ann")
    tools = [named("look", RECORDS), *([made_tool(read)] if given else [])]
    with SimulatedProvider("openai-5.6", reads) as server:
        async with configured("openai-chat", server) as config:
            clerk = Agent("clerk", "You look things up.", config=config, tools=tools)
            wrap([clerk], session, conversation=lambda _: "ann")
            await clerk.ask("Look ann up.")
        results = [one["content"] for one in server.requests[-1].json["messages"] if one["role"] == "tool"]
    assert len(results) == 1 + given
    assert RECORDS not in results[0]
    found = NOTED.search(results[0])
    assert bool(found) is given
    if found:
        assert RECORDS[500:540] in results[1]
        assert session.read_tool("bob")(found[1]).startswith("Error: no result is kept under")
    assert session.failures == {}
