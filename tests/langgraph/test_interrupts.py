"""Interrupts inside graphs that are nodes: whoever resumes the thread sends what the interrupted process would have."""

import asyncio

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from cacheprefix import Session, SharedPrefix
from cacheprefix.server import Reply, ToolCall
from cacheprefix_langgraph import PrefixState, forked, subgraph, wrap_model
from tests.langgraph.conftest import Bench

HANDBOOK = "\n".join(
    f"Rule {n}: a claim about part {n} names the file and the line it was seen in." for n in range(120)
)
CLERK = "You are the clerk. " + " ".join(f"Clerk's point {i} is to be kept in mind." for i in range(60))


class State(MessagesState, PrefixState):
    """Messages, and what was decided on them."""


@tool
def look_up(what: str) -> str:
    """Look something up."""
    return "found " + "word " * 200


@tool
def approve(what: str) -> str:
    """Ask a person."""
    return str(interrupt(what))


def script(request):
    """The clerk looks something up, asks a person, and answers."""
    if "You are the clerk" not in request.text:
        return Reply("Planned. " * 10)
    if "YES" in request.text:
        return Reply("Done.")
    if "found word" in request.text:
        return Reply(tool_calls=(ToolCall("approve", {"what": "ok?"}, id="c2"),))
    return Reply(tool_calls=(ToolCall("look_up", {"what": "x"}, id="c1"),))


@pytest.fixture
def bench(servers):
    """OpenAI's rules, under which a role's text keeps a place in the middle."""
    bench = Bench("openai-chat", servers("openai"))
    yield bench
    bench.release()


def worker(bench, saver, shape):
    """The application as one process has it."""
    session = Session(SharedPrefix(system=HANDBOOK))
    llm = wrap_model(bench.model(model="gpt-5.2"), session)

    @forked(session, role="planner")
    def planner(state):
        return {"messages": [llm.invoke([SystemMessage(f"You are the planner.\n\n{HANDBOOK}"), *state["messages"]])]}

    options = {"interrupt_before": ["tools"]} if shape == "paused" else {}
    agent = create_agent(llm, [look_up, approve], system_prompt=f"{CLERK}\n\n{HANDBOOK}", name="clerk", **options)
    clerk = subgraph(agent, session, role="clerk")
    if shape == "nested":
        middle = StateGraph(MessagesState).add_node("clerk", clerk)
        clerk = subgraph(middle.add_edge(START, "clerk").compile(), session, role="office")
    elif shape == "asked again":

        def speak(state):
            return {"messages": [llm.invoke([SystemMessage(f"{CLERK}\n\n{HANDBOOK}"), *state["messages"]])]}

        def confirm(state):
            return {"messages": [HumanMessage(interrupt("ok?"))]}

        once = StateGraph(MessagesState).add_node("speak", speak).add_edge(START, "speak").compile()
        once = subgraph(once, session, role="clerk")
        inner = StateGraph(MessagesState).add_sequence([("first", once), ("confirm", confirm), ("second", once)])
        clerk = subgraph(inner.add_edge(START, "first").compile(), session, role="office")
    graph = StateGraph(State).add_sequence([("planner", planner), ("clerk", clerk)])
    return graph.add_edge(START, "planner").compile(checkpointer=saver), session


async def played(bench, shape, *, handed_on, later):
    """The requests of a thread that is interrupted, resumed and asked again; ``handed_on``: by a process each."""
    config, saver, chunks = {"configurable": {"thread_id": "one"}}, InMemorySaver(), []
    bench.provider.reset()
    bench.script(script if shape != "asked again" else lambda request: Reply("Said. " * 10))
    app = None
    given = [HumanMessage("Please. " * 50)]
    for begins in ({"messages": given}, Command(resume="YES"), {"messages": [HumanMessage("And again YES.")]}):
        step = begins
        for _ in range(4):
            if app is None or handed_on:
                app, session = worker(bench, saver, shape)
            how = {"stream_mode": ["updates", "values", "tasks"], "subgraphs": True}
            if later:
                chunks += [one async for one in app.astream(step, config, **how)]
            else:
                chunks += list(app.stream(step, config, **how))
            if shape != "paused" or not app.get_state(config).next:
                break
            step = Command(resume="YES") if app.get_state(config, subgraphs=True).interrupts else None
        assert not session.failures
    inside = [one for one in chunks if len(one[0])]
    assert inside
    assert "cacheprefix" not in str([one[2] for one in inside if one[1] != "tasks"]), "shown in an inner stream"
    assert "__cacheprefix" not in str(chunks)
    return bench.bodies


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("shape", ["node", "nested", "asked again", "paused"])
def test_another_process_resumes_an_interrupted_graph_byte_for_byte(bench, shape, later):
    """What was decided behind the interrupt is in the inner graph's own checkpoint, and in no stream or result."""

    async def both():
        return [await played(bench, shape, handed_on=handed_on, later=later) for handed_on in (False, True)]

    alone, handed_on = asyncio.run(both())
    assert len(alone) > 3
    assert handed_on == alone
