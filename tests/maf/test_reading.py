"""Cut tool results can be read again by the agents that may, in their own conversation."""

from __future__ import annotations

import re

import pytest
from agent_framework import FunctionTool
from maf_teams import look, role, served

from cacheprefix import Session, SharedPrefix, ToolResultBudget
from cacheprefix.server import Reply, ToolCall
from cacheprefix_maf import wrap

RECORDS = "\n".join(f"record {number} of ann" for number in range(400))
NOTED = re.compile(r"read_full_result\(ref='(\w+)'")


def reads(request):
    """Looks something up, reads on where a note names the tool, and answers."""
    found = NOTED.search(request.text)
    answered = sum(one["role"] == "tool" for one in request.body["messages"])
    if not answered:
        return Reply(tool_calls=(ToolCall("look", {"query": "ann"}),))
    if answered == 1 and found:
        return Reply(tool_calls=(ToolCall("read_full_result", {"ref": found[1], "offset": 500, "limit": 40}),))
    return Reply("Done.")


@pytest.mark.parametrize("tool", [True, False])
async def test_an_agent_with_the_tool_reads_its_own_result_again(servers, tool):
    """The note names it to who has it, the call gives what was cut, and another conversation reads nothing."""
    session = Session(SharedPrefix(system="Be brief."), budget=ToolResultBudget(max_tokens=100))
    read = session.read_tool("ann")
    tools = [look(result=RECORDS), *([FunctionTool(name="read_full_result", func=read)] if tool else [])]
    async with served(servers, "openai-chat") as (client, provider):
        provider.simulator.script = reads
        clerk = role(client, "clerk", instructions="You look things up.", tools=tools)
        await wrap(clerk, session, conversation="ann").run("Look ann up.")
    results = [one["content"] for one in provider.requests[-1].json["messages"] if one["role"] == "tool"]
    assert len(results) == 1 + tool
    assert RECORDS not in results[0]
    found = NOTED.search(results[0])
    assert bool(found) is tool
    if found:
        whole = f"look for ann: {RECORDS}"
        assert results[1].startswith(whole[500:540])
        assert session.read_tool("bob")(found[1]).startswith("Error: no result is kept under")
    assert session.failures == {}
