"""The read tool on the wire: agents read what a budget cut of their own team's conversation, and of no other."""

import re

import pytest
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_teams import HANDBOOK, role

from cacheprefix import Session, SharedPrefix, ToolResultBudget
from cacheprefix.server import Reply, ToolCall
from cacheprefix_autogen import read_tool, wrap

BUDGET = ToolResultBudget(max_tokens=100)
NOTED = re.compile(r"read_full_result\(ref='(\w+)', offset=(\d+)\)")


def records(whose):
    """Somebody's records."""
    return "\n".join(f"record {n} of {whose}" for n in range(400))


async def find(whose: str) -> str:
    """Look somebody's records up."""
    return records(whose)


class Reader:
    """Looks records up, reads the ref that ``other`` or the note names, and is done."""

    other = None
    whose = "ann"

    def __call__(self, request):
        said = [one["content"] for one in request.body["messages"] if one["role"] == "tool"]
        if not said:
            return Reply(tool_calls=(ToolCall("find", {"whose": self.whose}),))
        found = NOTED.search(said[0])
        ref = self.other or (found and found[1])
        if len(said) > 1 or not ref:
            return Reply("Done.")
        return Reply(tool_calls=(ToolCall("read_full_result", {"ref": ref, "offset": 300}),))


@pytest.fixture
def said():
    """What the model says."""
    return Reader()


def team(client, session, *tools):
    """A wrapped team whose reader has tools."""
    options = {"tools": [find, *tools], "max_tool_iterations": 4}
    members = [role(name, client, **(options if name == "reader" else {})) for name in ("reader", "critic")]
    return wrap(RoundRobinGroupChat(members, max_turns=1), session)


def results(provider):
    """The last request's tool results."""
    return [one["content"] for one in provider.requests[-1].json["messages"] if one["role"] == "tool"]


async def test_an_agent_reads_its_own_cut_result_again(provide, new_client, said):
    """The note names tool and ref, and the call gives the text that was cut."""
    provider = provide("openai", said)
    session = Session(SharedPrefix(system=HANDBOOK), budget=BUDGET)
    await team(new_client(provider), session, read_tool(session)).run(task="Look ann up.")
    cut, read = results(provider)
    assert NOTED.search(cut)
    assert read == records("ann")[300:]


async def test_an_agent_never_reads_the_result_of_another_team(provide, new_client, said):
    """A ref that leaked from one team's conversation reads nothing in another of the same session and tool."""
    provider = provide("openai", said)
    session = Session(SharedPrefix(system=HANDBOOK), budget=BUDGET)
    tool = read_tool(session)
    await team(new_client(provider), session, tool).run(task="Look ann up.")
    said.other, said.whose = NOTED.search(results(provider)[0])[1], "bob"
    await team(new_client(provider), session, tool).run(task="Look bob up.")
    assert results(provider)[1].startswith("Error: no result is kept under")


async def test_the_note_names_the_tool_only_where_it_is_bound(provide, new_client, said):
    """An agent without it is told how much was cut, and of no tool that it has not."""
    provider = provide("openai", said)
    session = Session(SharedPrefix(system=HANDBOOK), budget=BUDGET)
    await team(new_client(provider), session).run(task="Look ann up.")
    (cut,) = results(provider)
    assert "characters cut here]" in cut
    assert "read_full_result" not in cut
