"""LangGraph's documented examples, rebuilt: the same state and final messages with and without cacheprefix.

Each example is built once from the functions of its documentation page and run on the same scripted model: as it is,
and with forks. Only where role texts stand in the requests may differ.
"""

import operator
from typing import Annotated, Literal

import pytest
from langchain.agents import create_agent
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt
from langgraph_supervisor import create_supervisor
from langgraph_swarm import create_handoff_tool, create_swarm
from pydantic import BaseModel
from typing_extensions import TypedDict

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Reply, ToolCall
from cacheprefix.wire import decode
from cacheprefix_langgraph import forked, subgraph, wrap_model

pytestmark = pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
"""langgraph-supervisor still calls LangGraph's older function."""

HANDBOOK = "The handbook says that every statement needs a source. " * 90
CONFIG = {"configurable": {"thread_id": "one"}}


class Front:
    """The doors: none at all, or forks."""

    def __init__(self, provider, session):
        self.session = session
        model = ChatOpenAI(model="gpt-5.6", base_url=provider.openai_base_url, api_key="k", max_retries=0)
        self.llm = model if session is None else wrap_model(model, session)

    def bound(self, role):
        """The model for a prebuilt node."""
        return self.llm if self.session is None else wrap_model(self.llm, self.session, role=role)

    def node(self, function, role=None):
        """A node function."""
        return function if self.session is None else forked(self.session, role=role)(function)

    def worker(self, graph, role):
        """A compiled graph as a part of another."""
        return graph if self.session is None else subgraph(graph, self.session, role=role)


def plain(value):
    """A state without ids and usage: what an application reads of it."""
    if isinstance(value, BaseMessage):
        calls = [(call["name"], call["args"]) for call in getattr(value, "tool_calls", [])]
        return (value.type, value.text, value.name, getattr(value, "status", None), calls)
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items() if key != "cacheprefix"}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value.model_dump() if isinstance(value, BaseModel) else value


# ------------------------------------------------------------------ multi-agent network, with handoffs by Command


def network(front):
    """Two advisors that hand over to one another."""

    @tool
    def transfer_to_hotel_advisor():
        """Ask hotel advisor for help."""

    @tool
    def transfer_to_travel_advisor():
        """Ask travel advisor for help."""

    def advisor(text, handoff, other):
        bound = front.llm.bind_tools([handoff])

        def advise(state: MessagesState) -> Command[Literal["travel_advisor", "hotel_advisor", "__end__"]]:
            answer = bound.invoke([{"role": "system", "content": text}, *state["messages"]])
            if answer.tool_calls:
                done = ToolMessage("Successfully transferred", tool_call_id=answer.tool_calls[-1]["id"])
                return Command(goto=other, update={"messages": [answer, done]})
            return Command(goto=END, update={"messages": [answer]})

        return advise

    travel = "You are a general travel expert that can recommend travel destinations."
    hotel = "You are a hotel expert that can provide hotel recommendations for a given destination."
    graph = StateGraph(MessagesState)
    graph.add_node("travel_advisor", front.node(advisor(travel, transfer_to_hotel_advisor, "hotel_advisor"), "travel"))
    graph.add_node("hotel_advisor", front.node(advisor(hotel, transfer_to_travel_advisor, "travel_advisor"), "hotel"))
    graph.add_edge(START, "travel_advisor")
    return [graph.compile().invoke({"messages": [("user", "somewhere warm in the Caribbean, with hotels")]})]


def network_model(request):
    """The travel expert names an island and hands over; the hotel expert recommends."""
    if "hotel expert" in request.text:
        return Reply("Stay at the Blue Lagoon.")
    call = ToolCall("transfer_to_hotel_advisor", {}, id="call_hotel")
    return Reply("Go to Aruba.", tool_calls=(call,))


# ------------------------------------------------------------------ supervisor


@tool
def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


@tool
def web_search(query: str) -> str:
    """Search the web for information."""
    return "Facebook: 67,317. Apple: 164,000."


def supervisor(front):
    """A research expert and a math expert under a supervisor."""
    math = create_agent(front.llm, [add], name="math_expert", system_prompt="You are a math expert.")
    research = create_agent(front.llm, [web_search], name="research_expert", system_prompt="You are a researcher.")
    graph = create_supervisor(
        [front.worker(research, "research_expert"), front.worker(math, "math_expert")],
        model=front.bound("supervisor"),
        prompt="You are a team supervisor managing a research expert and a math expert.",
    )
    return [graph.compile().invoke({"messages": [HumanMessage("combined headcount of Facebook and Apple?")]})]


def supervisor_model(request):
    """Who speaks is told by the last role text; what was done by the results that stand in the conversation."""
    text = request.text
    at = {name: text.rfind(name) for name in ("You are a math", "You are a researcher", "You are a team supervisor")}
    speaker = max(at, key=at.get)
    if speaker == "You are a researcher":
        if "Facebook: 67,317" in text:
            return Reply("Facebook has 67,317 and Apple 164,000.")
        return Reply(tool_calls=(ToolCall("web_search", {"query": "headcount"}, id="call_search"),))
    if speaker == "You are a math":
        if "231317" in text:
            return Reply("The sum is 231317.")
        return Reply(tool_calls=(ToolCall("add", {"a": 67317, "b": 164000}, id="call_add"),))
    if "The sum is" in text:
        return Reply("Together they have 231,317 employees.")
    name = "math_expert" if "Facebook has 67,317" in text else "research_expert"
    return Reply(tool_calls=(ToolCall(f"transfer_to_{name}", {}, id=f"call_{name}"),))


# ------------------------------------------------------------------ swarm


def swarm(front):
    """Two assistants of whom one is active, over two turns of a thread."""
    to_bob = create_handoff_tool(agent_name="Bob", description="Transfer to Bob")
    to_alice = create_handoff_tool(agent_name="Alice", description="Transfer to Alice, she can help with math")
    alice = create_agent(front.llm, [add, to_bob], name="Alice", system_prompt="You are Alice, an addition expert.")
    bob = create_agent(front.llm, [to_alice], name="Bob", system_prompt="You are Bob, you speak like a pirate.")
    team = create_swarm([front.worker(alice, "Alice"), front.worker(bob, "Bob")], default_active_agent="Alice")
    app = team.compile(checkpointer=InMemorySaver())
    return [
        app.invoke({"messages": [HumanMessage("I'd like to speak to Bob")]}, CONFIG),
        app.invoke({"messages": [HumanMessage("what's 5 + 7?")]}, CONFIG),
    ]


def swarm_model(request):
    """Alice hands over to Bob, and adds when asked; Bob hands mathematics back."""
    text = request.text
    bob = text.rfind("You are Bob") > text.rfind("You are Alice")
    if bob:
        if "5 + 7" not in text:
            return Reply("Ahoy!")
        return Reply(tool_calls=(ToolCall("transfer_to_alice", {}, id="call_alice"),))
    if "5 + 7" not in text:
        return Reply(tool_calls=(ToolCall("transfer_to_bob", {}, id="call_bob"),))
    if "12.0" in text:
        return Reply("It is 12.")
    return Reply(tool_calls=(ToolCall("add", {"a": 5, "b": 7}, id="call_add"),))


# ------------------------------------------------------------------ map-reduce


class Subjects(BaseModel):
    """Subjects."""

    subjects: list[str]


class Overall(TypedDict):
    topic: str
    subjects: list[str]
    jokes: Annotated[list[str], operator.add]
    best: str


def map_reduce(front):
    """Subjects of a topic, a joke for each by Send, and the best of them."""

    def generate_topics(state: Overall):
        prompt = f"Generate 3 comma separated subjects about {state['topic']}."
        return {"subjects": front.llm.with_structured_output(Subjects).invoke(prompt).subjects}

    def generate_joke(state: dict):
        return {"jokes": [front.llm.invoke(f"Generate a joke about {state['subject']}").text]}

    def best_joke(state: Overall):
        prompt = "Select the best of these jokes:\n" + "\n".join(state["jokes"])
        return {"best": front.llm.invoke([SystemMessage("You judge."), HumanMessage(prompt)]).text}

    graph = StateGraph(Overall)
    graph.add_node("generate_topics", front.node(generate_topics))
    graph.add_node("generate_joke", front.node(generate_joke))
    graph.add_node("best_joke", front.node(best_joke))
    graph.add_edge(START, "generate_topics")
    sends = lambda state: [Send("generate_joke", {"subject": one}) for one in state["subjects"]]  # noqa: E731
    graph.add_conditional_edges("generate_topics", sends, ["generate_joke"])
    graph.add_edge("generate_joke", "best_joke")
    graph.add_edge("best_joke", END)
    return [graph.compile().invoke({"topic": "animals", "jokes": []})]


def map_reduce_model(request):
    """A list, a joke about what is named last, the first joke."""
    text = request.text
    if "Select the best" in text:
        return Reply(text.rpartition("jokes:\n")[2].splitlines()[0])
    if "Generate a joke about" in text:
        return Reply(f"A {text.rpartition('joke about ')[2].splitlines()[0]} walks into a bar.")
    return Reply('{"subjects": ["lion", "elephant", "penguin"]}')


# ------------------------------------------------------------------ human in the loop


@tool
def book_hotel(hotel_name: str) -> str:
    """Book a hotel."""
    answer = interrupt(f"Trying to book {hotel_name}. Please approve or suggest edits.")
    if answer["type"] == "edit":
        hotel_name = answer["args"]["hotel_name"]
    return f"Successfully booked a stay at {hotel_name}."


def review_in_a_tool(front):
    """A tool that waits for a person, who edits its arguments."""
    agent = create_agent(front.llm, [book_hotel], system_prompt="You book hotels.", checkpointer=InMemorySaver())
    app = front.worker(agent, "booker")
    first = app.invoke({"messages": [HumanMessage("book a stay at McKittrick hotel")]}, CONFIG)
    shown = [one.value for one in first.pop("__interrupt__")]
    resume = Command(resume={"type": "edit", "args": {"hotel_name": "The Grand"}})
    return [first, shown, app.invoke(resume, CONFIG)]


def review_model(request):
    """Calls the tool once, then says what it gave back."""
    if "Successfully booked" in request.text:
        return Reply("Done: " + request.text.rpartition("Successfully ")[2].partition(".")[0])
    return Reply(tool_calls=(ToolCall("book_hotel", {"hotel_name": "McKittrick Hotel"}, id="call_book"),))


class Draft(MessagesState):
    approved: bool


def approve_a_node(front):
    """A draft, a person's decision, and one of two ways on; the thread is forked from its history afterwards."""

    def draft(state: Draft):
        return {"messages": [front.llm.invoke([SystemMessage("You draft."), *state["messages"]])]}

    def approve(state: Draft) -> Command[Literal["send", "redo"]]:
        said = interrupt({"question": "Is this correct?", "draft": state["messages"][-1].text})
        return Command(goto="send" if said == "approve" else "redo", update={"approved": said == "approve"})

    def send(state: Draft):
        return {"messages": [front.llm.invoke([SystemMessage("You send."), *state["messages"]])]}

    def redo(state: Draft):
        return {"messages": [front.llm.invoke([SystemMessage("You start over."), *state["messages"]])]}

    graph = StateGraph(Draft)
    for name, function in {"draft": draft, "send": send, "redo": redo}.items():
        graph.add_node(name, front.node(function))
    graph.add_node("approve", approve)
    graph.add_edge(START, "draft")
    graph.add_edge("draft", "approve")
    app = graph.compile(checkpointer=InMemorySaver())
    app.invoke({"messages": [HumanMessage("Write to Ada.")]}, CONFIG)
    waiting = app.get_state(CONFIG)
    done = app.invoke(Command(resume="approve"), CONFIG)
    past = app.update_state(waiting.config, {"messages": [HumanMessage("No, to Bob.")]}, as_node="draft")
    app.invoke(None, past)
    return [waiting.next, done, app.invoke(Command(resume="reject"), CONFIG)]


def approve_model(request):
    """Does what its role is."""
    said = {"You draft.": "Dear Ada", "You send.": "It is sent", "You start over.": "Dear Bob"}
    return Reply(said[max(said, key=request.text.rfind)])


EXAMPLES = {
    "multi-agent network": (network, network_model, 2),
    "supervisor": (supervisor, supervisor_model, 7),
    "swarm": (swarm, swarm_model, 5),
    "map-reduce": (map_reduce, map_reduce_model, 5),
    "human in the loop, in a tool": (review_in_a_tool, review_model, 2),
    "human in the loop, in a node": (approve_a_node, approve_model, 3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_documented_example_gives_the_same_state_wrapped_and_unwrapped(servers, name):
    """All its states and final messages; and its requests really were forks."""
    build, model, calls = EXAMPLES[name]
    provider = servers("exact")
    states = {}
    for layout in ("unmodified", "observe", "fork"):
        provider.reset()
        provider.simulator.script = model
        session = None
        if layout != "unmodified":
            session = Session(
                SharedPrefix(system=HANDBOOK), mode=layout, caching=Caching(provider="exact", counter=ESTIMATE)
            )
        states[layout] = plain(build(Front(provider, session)))
        assert [record.status for record in provider.requests] == [200] * calls
    assert states["observe"] == states["fork"] == states["unmodified"]
    prompts = [decode(record.body, "openai-chat") for record in provider.requests]
    forks = [prompt for prompt in prompts if prompt.tier("system") and prompt.tier("system")[0].text == HANDBOOK]
    assert len(forks) >= calls - 1
    assert session.failures == {}
