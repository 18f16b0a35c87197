"""Side questions: forks of a thread that read its prefix, may use its tools, and leave no trace."""

import asyncio
import re

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.tools import StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from cacheprefix import AbortHandle, ForkPolicy, ToolResultBudget
from cacheprefix.errors import AbortedError, SetupError
from cacheprefix.server import Queue, Reply, ToolCall
from cacheprefix_langgraph import PrefixState, aask, ask, forked, wrap_model

ONE = pytest.mark.parametrize("bench", ["anthropic"], indirect=True)
"""For what does not depend on the provider's form of messages."""

HANDBOOK = "The handbook says that every statement needs a source. " * 90
CONFIG = {"configurable": {"thread_id": "one"}}
WORKER = ForkPolicy.worker()


class State(MessagesState, PrefixState):
    pass


def thread(bench, session):
    """A graph with one finished turn under a thread id, and its wrapped model."""
    model = wrap_model(bench.model(), session)
    bound = model.bind_tools(bench.tools)

    def speak(state):
        return {"messages": [AIMessage(bound.invoke([SystemMessage("You read."), *state["messages"]]).text)]}

    graph = StateGraph(State)
    graph.add_node("speak", forked(session, role="reader")(speak))
    graph.add_edge(START, "speak")
    made = graph.compile(checkpointer=InMemorySaver())
    made.invoke({"messages": [HumanMessage("Please begin.")]}, CONFIG)
    return made, model


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_side_question_reads_the_threads_prefix_and_leaves_no_trace(bench, later):
    """Its request begins with the thread's own sections; the state and its checkpoints stay as they were."""
    session = bench.session(HANDBOOK)
    graph, model = thread(bench, session)
    before = graph.get_state(CONFIG)
    if later:
        result = asyncio.run(aask(model, "What was said?", graph=graph, config=CONFIG))
    else:
        result = ask(model, "What was said?", graph=graph, config=CONFIG)
    parent, asked = bench.prompts()
    shared = parent.sections[:-1]
    assert asked.sections[: len(shared)] == shared
    assert "What was said?" in asked.sections[-1].text
    assert bench.provider.requests[1].outcome.read_tokens > 0
    assert result.text.startswith("You said")
    assert graph.get_state(CONFIG) == before
    assert session.calls[-1].purpose == "ephemeral_helper"


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_fork_runs_the_graphs_own_tools(bench, later):
    """Results go back to the model; a tool that raises or does not exist is an error result."""
    session = bench.session(HANDBOOK)
    graph, model = thread(bench, session)
    calls = (ToolCall("read_file", {"path": "x"}), ToolCall("run_tests", {"selection": []}))
    bench.provider.simulator.script = Queue([Reply(tool_calls=calls), "Done."])
    if later:
        result = asyncio.run(aask(model, "Look.", graph=graph, config=CONFIG, policy=WORKER))
    else:
        result = ask(model, "Look.", graph=graph, config=CONFIG, policy=WORKER)
    assert (result.text, result.turns) == ("Done.", 2)
    last = str(bench.bodies[-1])
    assert "contents of x" in last
    assert "error: " in last
    _, first, second = bench.prompts()
    assert second.sections[: len(first.sections)] == first.sections


@ONE
def test_an_executor_takes_id_name_and_arguments(bench):
    """Also with the parent's state as a fourth argument; without one the model is told so."""
    session = bench.session(HANDBOOK)
    graph, model = thread(bench, session)
    seen = []

    def execute(call, name, arguments, state):
        """Note what came and answer."""
        seen.append((name, arguments, state))
        return {"answer": 42}

    call = Reply(tool_calls=(ToolCall("read_file", {"path": "x"}),))
    bench.provider.simulator.script = Queue([call, "Done."])
    given = {"who": "me"}
    ask(model, "Look.", graph=graph, config=CONFIG, policy=WORKER, tool_executor=execute, state=given)
    assert seen == [("read_file", {"path": "x"}, given)]
    assert seen[0][2] is not given
    assert '"answer":42' in str(bench.bodies[-1]).replace("\\", "")


@ONE
def test_tool_nodes_of_a_graph_are_found(bench):
    """Also where the tool never joined the shared union."""

    @tool
    def secret(word: str) -> str:
        """Tell a secret."""
        return f"the secret of {word}"

    session = bench.session(HANDBOOK)
    _, model = thread(bench, session)
    agent = create_agent(bench.model(), [secret])
    bench.provider.simulator.script = Queue([Reply(tool_calls=(ToolCall("secret", {"word": "x"}),)), "Done."])
    state = [HumanMessage("Please begin.")]
    agent = create_agent(bench.model(), [secret], checkpointer=InMemorySaver())
    agent.update_state(CONFIG, {"messages": state})
    ask(model, "Look.", graph=agent, config=CONFIG, policy=WORKER)
    assert "the secret of x" in str(bench.bodies[-1])


@ONE
def test_a_fork_inside_a_node_takes_the_nodes_messages(bench):
    """No graph is needed there, and the thread's decisions hold for the fork too."""
    session = bench.session(HANDBOOK, budget=ToolResultBudget(max_tokens=200))
    model = wrap_model(bench.model(), session)
    answers = []

    def wonder(state):
        answers.append(ask(model, "And?", state["messages"]).text)

    graph = StateGraph(State)
    graph.add_node("wonder", forked(session, role="reader")(wonder))
    graph.add_edge(START, "wonder")
    graph.compile().invoke({"messages": [HumanMessage("Please begin.")]})
    assert answers
    assert bench.prompts()[0].tier("system")[0].text == HANDBOOK


def test_a_node_that_asks_of_another_thread_says_nothing_of_its_own_there(chat):
    """The thread may be another user's: text for one call alone is that of the thread that the node works in."""
    session = chat.session(HANDBOOK)
    model, built = wrap_model(chat.model(), session), StateGraph(State)

    def helper(state, config):
        said = model.invoke([SystemMessage("You help."), *state["messages"]])
        if config["configurable"]["thread_id"] == "bob":
            ask(model, "And?", graph=graph, config={"configurable": {"thread_id": "alice"}}, role="helper")
        return {"messages": [said]}

    node = forked(session, role="helper", volatile=lambda state: {"who": f"{state['messages'][0].text} reads this."})
    graph = built.add_node("helper", node(helper)).add_edge(START, "helper").compile(checkpointer=InMemorySaver())
    chat.script(["Hello.", "Hello.", "Yes."])
    for user in ("alice", "bob"):
        graph.invoke({"messages": [HumanMessage(user.title())]}, {"configurable": {"thread_id": user}})
    bobs, asked = (body.decode() for body in chat.bodies[-2:])
    assert "Bob" in bobs
    assert "Alice" in asked
    assert "Bob" not in asked


@ONE
def test_what_cannot_be_asked_is_refused_by_name(bench):
    """An unwrapped model, no messages, an aborted handle: before any request."""
    session = bench.session(HANDBOOK)
    with pytest.raises(SetupError, match="wrap_model"):
        ask(bench.model(), "?", [HumanMessage("a")])
    model = wrap_model(bench.model(), session)
    with pytest.raises(SetupError, match="needs messages"):
        ask(model, "?")
    abort = AbortHandle()
    abort.abort()
    with pytest.raises(AbortedError):
        ask(model, "?", [HumanMessage("a")], policy=WORKER, abort=abort)
    assert bench.bodies == []


@ONE
@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_side_question_belongs_to_the_tenant_of_its_thread(bench, later):
    """Two tenants ask on threads of one id: neither is expected to read what another wrote."""
    session = bench.session(HANDBOOK)
    _, model = thread(bench, session)
    question = [HumanMessage("Please begin.")]

    async def asked(configs):
        """Both questions in one event loop."""
        for config in configs:
            await aask(model, "What was said?", question, config=config)

    configs = [{"configurable": {"thread_id": "same", "cacheprefix_scope": name}} for name in ("acme", "beta")]
    if later:
        asyncio.run(asked(configs))
    else:
        for config in configs:
            ask(model, "What was said?", question, config=config)
    one, two = session.calls[-2:]
    assert one.verdict.expected_tokens == two.verdict.expected_tokens == 0
    assert session.adapter.known("same", "acme") is not session.adapter.known("same", "beta")
    assert session.adapter.known("same") is None


@ONE
def test_an_option_that_does_not_exist_is_named(bench):
    """As for any function: a slip is no option that is silently left out."""
    session = bench.session(HANDBOOK)
    graph, model = thread(bench, session)
    with pytest.raises(TypeError, match=r"no option 'grahp'.*graph"):
        ask(model, "What was said?", grahp=graph, config=CONFIG)
    assert len(bench.bodies) == 1


def test_a_fork_runs_no_tool_that_was_made_for_another_user(chat):
    """Of two tools that say the same each reads its own user's house; what a node binds itself is given to ``ask``."""
    session = chat.session(HANDBOOK)
    model = wrap_model(chat.model(), session)
    for user in ("alice", "bob"):

        def house(user=user) -> str:
            return f"The house of {user}."

        kit = [StructuredTool.from_function(house, description="Looks around.", args_schema={"type": "object"})]
        bound = model.bind_tools(kit)
        built = StateGraph(State).add_node("reader", forked(session, role="reader")(answers(bound)))
        graph = built.add_edge(START, "reader").compile(checkpointer=InMemorySaver())
        config = {"configurable": {"thread_id": user}}
        chat.script(["Yes.", *[Reply(tool_calls=(ToolCall("house", {}), ToolCall("garden", {}))), "Done."] * 2])
        graph.invoke({"messages": [HumanMessage("Please begin.")]}, config)
        for tools in ([], kit):
            ask(bound, "Look.", graph=graph, config=config, policy=WORKER, tools=tools)
            said = str(chat.provider.requests[-1].json["messages"][-2:])
            assert re.findall("house of [a-z]+", said) == [f"house of {user}"] * len(tools)
            assert ("there is no tool 'house'" in said) == (not tools)


def answers(model):
    """A node that answers what was said."""
    return lambda state: {"messages": [model.invoke([SystemMessage("You read."), *state["messages"]])]}
