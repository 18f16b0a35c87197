"""The read tool on the wire: agents read what a budget cut of their own kickoff, and of no other."""

import re

import pytest
from crewai import Agent, Crew, Task
from crewai.tools import tool

from cacheprefix import Session, ToolResultBudget
from cacheprefix.server import Reply, ToolCall
from cacheprefix_crewai import install, read_tool

BUDGET = ToolResultBudget(max_tokens=100)
NOTED = re.compile(r"read_full_result\(ref='(\w+)', offset=(\d+)\)")


def records(whose):
    """Somebody's records."""
    return "\n".join(f"record {n} of {whose}" for n in range(400))


@tool("find")
def find(whose: str) -> str:
    """Look somebody's records up."""
    return records(whose)


class Reader:
    """Looks records up, reads the ref that ``other`` or the note names, and is done."""

    other = None

    def __call__(self, request):
        messages = request.body["messages"]
        said = [one["content"] for one in messages if one["role"] == "tool"]
        if not said:
            whose = "bob" if "records of bob" in str(messages) else "ann"
            return Reply(tool_calls=(ToolCall("find", {"whose": whose}),))
        found = NOTED.search(said[0])
        ref = self.other or (found and found[1])
        if len(said) > 1 or not ref:
            return Reply("Thought: I know.\nFinal Answer: done.")
        return Reply(tool_calls=(ToolCall("read_full_result", {"ref": ref, "offset": 300}),))


@pytest.fixture
def said():
    """What the model says."""
    return Reader()


def crew(llm, *tools):
    """A crew of one clerk."""
    clerk = Agent(role="Clerk", goal="Read", backstory="Reads.", llm=llm, tools=[find, *tools])
    return Crew(agents=[clerk], tasks=[Task(description="The records of {who}.", expected_output="Text.", agent=clerk)])


def results(provider):
    """The last request's tool results."""
    return [one["content"] for one in provider.requests[-1].json["messages"] if one["role"] == "tool"]


def test_an_agent_reads_its_own_cut_result_again_and_no_other_kickoffs(provide, new_llm, said):
    """The note names it, the call gives the text that was cut, and in the crew's next kickoff nothing."""
    provider = provide("openai", said)
    session = Session(budget=BUDGET)
    made = crew(new_llm(provider), read_tool(session))
    with install(made, session):
        made.kickoff(inputs={"who": "ann"})
        cut, read = results(provider)
        assert read == records("ann")[300:]
        said.other = NOTED.search(cut)[1]
        made.kickoff(inputs={"who": "bob"})
    assert results(provider)[1].startswith("Error: no result is kept under")


def test_the_note_names_the_tool_only_where_it_is_bound(provide, new_llm, said):
    """An agent without it is told how much was cut, and of no tool that it has not."""
    provider = provide("openai", said)
    session = Session(budget=BUDGET)
    made = crew(new_llm(provider))
    with install(made, session):
        made.kickoff(inputs={"who": "ann"})
    (cut,) = results(provider)
    assert "characters cut here]" in cut
    assert "read_full_result" not in cut
