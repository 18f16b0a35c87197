"""The read tool on the wire: agents read what a budget cut of their own thread, and of no other."""

import asyncio
import re

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from cacheprefix import History, ReadBudget, Session, ToolResultBudget
from cacheprefix.server import Reply, SimulatedProvider, ToolCall
from cacheprefix.stores import MemoryStore, ResultStore
from cacheprefix_langgraph import PrefixMiddleware, read_tool, wrap_model

BUDGET = ToolResultBudget(max_tokens=100)
NOTED = re.compile(r"read_full_result\(ref='(\w+)', offset=(\d+)\)")


@tool
def find(whose: str) -> str:
    """Look somebody's records up."""
    return "\n".join(f"record {n} of {whose}" for n in range(400))


class Reader:
    """Looks records up, reads the ref that ``other`` or the note names, and is done."""

    def __init__(self):
        self.other = None

    def __call__(self, request):
        said = [one for one in request.body["messages"] if one["role"] == "tool"]
        if not said:
            return Reply(tool_calls=(ToolCall("find", {"whose": request.body["messages"][-1]["content"]}),))
        if len(said) > 1:
            return Reply("Done.")
        found = NOTED.search(said[0]["content"])
        ref = self.other or (found and found[1])
        return Reply(tool_calls=(ToolCall("read_full_result", {"ref": ref, "offset": 300}),)) if ref else Reply("Done.")


@pytest.fixture
def reader():
    """What the model says, and the provider that it says it at."""
    said = Reader()
    with SimulatedProvider("openai", said) as provider:
        yield said, provider


def agent(provider, session, tools, saver=None):
    """An agent of the session with tools."""
    model = ChatOpenAI(model="gpt-4.1", base_url=provider.openai_base_url, api_key="k", max_retries=0)
    middleware = [PrefixMiddleware(session, role="clerk")]
    return create_agent(wrap_model(model, session), tools, middleware=middleware, checkpointer=saver)


def ask(made, whose, thread, scope=None):
    """Ask for somebody's records in a thread."""
    config = {"configurable": {"thread_id": thread, **({"cacheprefix_scope": scope} if scope else {})}}
    return made.invoke({"messages": [HumanMessage(whose)]}, config)["messages"]


def results(provider):
    """The last request's tool results."""
    return [one["content"] for one in provider.requests[-1].json["messages"] if one["role"] == "tool"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_agent_reads_its_own_cut_result_again(reader, asynchronous):
    """The note names tool and ref, and the call gives the text that was cut, up to the budget of one call."""
    _, provider = reader
    session = Session("A handbook.", budget=BUDGET)
    made = agent(provider, session, [find, read_tool(session, budget=ReadBudget(chars=100))], InMemorySaver())
    if asynchronous:
        config = {"configurable": {"thread_id": "ann"}}
        asyncio.run(made.ainvoke({"messages": [HumanMessage("ann")]}, config))
    else:
        ask(made, "ann", "ann")
    cut, read = results(provider)
    assert NOTED.search(cut)
    whole = find.invoke({"whose": "ann"})
    assert read == f"{whole[300:400]}\n[characters 300 to 400 of {len(whole)}; read on with offset=400]"


@pytest.mark.parametrize("scopes", [(None, None), ("a", "b")])
def test_an_agent_never_reads_the_result_of_another_thread(reader, scopes):
    """A ref that leaked from one thread reads nothing in another, of the same tenant or not."""
    said, provider = reader
    session, saver = Session("A handbook.", budget=BUDGET), InMemorySaver()
    made = agent(provider, session, [find, read_tool(session)], saver)
    ask(made, "ann", "ann", scopes[0])
    said.other = NOTED.search(results(provider)[0])[1]
    ask(made, "bob", "bob", scopes[1])
    assert results(provider)[1].startswith("Error: no result is kept under")
    assert "of ann" not in "".join(str(one.json) for one in provider.requests[-3:])


def test_a_resumed_thread_reads_what_another_process_cut(reader):
    """What is decided stands in the checkpoint, so a new session reads it where it shares the store."""
    _, provider = reader
    saver, store = InMemorySaver(), ResultStore(MemoryStore())
    first = Session("A handbook.", budget=BUDGET, history=History(results=store))
    made = agent(provider, first, [find, read_tool(first)], saver)
    config = {"configurable": {"thread_id": "ann"}}
    made.invoke({"messages": [HumanMessage("ann")]}, config, interrupt_before=["tools"])
    made.invoke(None, config, interrupt_before=["tools"])
    second = Session("A handbook.", budget=BUDGET, history=History(results=store))
    agent(provider, second, [find, read_tool(second)], saver).invoke(None, config)
    assert results(provider)[1].startswith(find.invoke({"whose": "ann"})[300:400])


def test_a_run_without_a_thread_reads_its_own(reader):
    """Runs without an id are conversations of their own."""
    _, provider = reader
    session = Session("A handbook.", budget=BUDGET)
    agent(provider, session, [find, read_tool(session)]).invoke({"messages": [HumanMessage("ann")]})
    assert "record 40 of ann" in results(provider)[1]


def test_the_note_names_the_tool_only_where_it_is_bound(reader):
    """An agent without it is told how much was cut, and of no tool that it has not."""
    _, provider = reader
    session = Session("A handbook.", budget=BUDGET)
    ask(agent(provider, session, [find]), "ann", "ann")
    (cut,) = results(provider)
    assert "characters cut here]" in cut
    assert "read_full_result" not in cut
