"""``tools=`` of a role: tools or their names, and what becomes of names that no tool has."""

import asyncio
import json
import warnings

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, dynamic_prompt
from langchain_anthropic.middleware import AnthropicPromptCachingMiddleware
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.graph import START, MessagesState, StateGraph

from cacheprefix import Session, SharedPrefix
from cacheprefix.errors import SetupError
from cacheprefix.server import Fault, Reply, ToolCall
from cacheprefix_langgraph import PrefixMiddleware, forked, wrap_model
from tests.langgraph.conftest import TOOLS, read_file

HANDBOOK = "The handbook says that every statement needs a source. " * 90
OF_READ_FILE = [[read_file], ["read_file"], [convert_to_openai_tool(read_file)]]


class Changes(AgentMiddleware):
    """May give a request other tools, so that those of its agent are known in the request alone."""

    def wrap_model_call(self, request, handler):
        """Change nothing."""
        return handler(request)

    async def awrap_model_call(self, request, handler):
        """Change nothing."""
        return await handler(request)


def agent(bench, session, tools, *others):
    """An agent with two tools that may use those."""
    session.adapter.join("another")
    ours = PrefixMiddleware(session, role="reader", tools=tools)
    return create_agent(wrap_model(bench.model(), session), TOOLS, middleware=[*others, ours])


def node(bench, session, tools):
    """A node with two tools that may use those."""
    session.adapter.join("another")
    llm = wrap_model(bench.model(), session).bind_tools(TOOLS)

    @forked(session, role="reader", tools=tools)
    def read(state):
        return {"messages": [llm.invoke([SystemMessage("You read."), *state["messages"]])]}

    return StateGraph(MessagesState).add_node(read).add_edge(START, "read").compile()


def choices(bench, made, *, later=False):
    """Each request's choice of tools, asked twice, and what was warned about."""
    given = {"messages": [HumanMessage("Begin.")]}

    async def asked():
        return [await made.ainvoke(given) if later else made.invoke(given) for _ in range(2)]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(asked())
    warned = [str(one.message) for one in caught if "tools=" in str(one.message)]
    return [str(prompt.settings.get("tool_choice")) for prompt in bench.prompts()], warned


@pytest.mark.parametrize("tools", OF_READ_FILE, ids=["object", "name", "dict"])
@pytest.mark.parametrize("make", [agent, node])
def test_tools_are_taken_as_they_are_or_by_name(chat, make, tools):
    """A tool says its name itself."""
    found, warned = choices(chat, make(chat, chat.session(HANDBOOK), tools))
    assert all("read_file" in one and "run_tests" not in one for one in found)
    assert not warned


@pytest.mark.parametrize("make", [agent, node])
def test_what_has_no_name_is_refused_at_once(chat, make):
    """A number is no tool."""
    with pytest.raises(SetupError, match="tools takes tools or their names, found int"):
        make(chat, chat.session(HANDBOOK), [42])


@pytest.mark.parametrize("mode", ["fork", "observe"])
def test_an_agent_is_not_made_with_a_name_that_no_tool_of_it_has(chat, mode):
    """In ``observe`` as in ``fork``: the day of the switch is too late for it."""
    with pytest.raises(SetupError, match="role 'reader' names 'raed_file'; its tools are read_file, run_tests"):
        agent(chat, chat.session(HANDBOOK, mode=mode), ["raed_file"])


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("known", [False, True], ids=["none", "some"])
@pytest.mark.parametrize("make", [lambda *given: agent(*given, Changes()), node], ids=["agent", "node"])
def test_a_name_that_no_tool_has_is_warned_about_once_and_takes_no_tool_away(chat, make, known, later):
    """Where none of the names is right nothing is restricted; else the others are."""
    if make is node and later:
        pytest.skip("a node of this kind is sync")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = make(chat, chat.session(HANDBOOK), ["raed_file", *(["run_tests"] if known else [])])
    found, warned = choices(chat, made, later=later)
    at_once = [str(one.message) for one in caught]
    # What a node's code binds is known where it is decorated.
    assert len(at_once) == (make is node)
    (said,) = (*at_once, *warned)
    assert "role 'reader' names 'raed_file'; its tools are read_file, run_tests" in said
    assert all(("run_tests" in one and "read_file" not in one) if known else one == "None" for one in found)


@pytest.mark.parametrize("mode", ["fork", "observe"])
def test_a_node_that_binds_tools_as_it_runs_is_warned_of_no_name_before(chat, mode):
    """Nobody knows yet which it will bind; one whose model has them is told at once, in ``observe`` too."""
    session = chat.session(HANDBOOK, mode=mode)
    llm = wrap_model(chat.model(), session)
    one = llm.bind_tools([read_file])

    @forked(session, role="binds", tools=["run_tests"])
    def binds(state):
        return {"messages": [(one if state.get("first") else llm.bind_tools(TOOLS)).invoke(state["messages"])]}

    with pytest.warns(UserWarning, match="role 'reads' names 'raed_file'; its tools are read_file"):

        @forked(session, role="reads", tools=["raed_file"])
        def reads(state):
            return {"messages": [one.invoke(state["messages"])]}


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("door", ["node", "agent"])
def test_a_name_that_no_tool_has_is_sent_by_no_role_without_tools(chat, door, others):
    """It is warned about, whether others have tools or not, and the model is not told of it."""
    session = Session(SharedPrefix(system=HANDBOOK, tools=TOOLS if others else ()))
    llm = wrap_model(chat.model(), session)
    if door == "node":

        @forked(session, role="reader", tools=["serch"])
        def read(state):
            return {"messages": [llm.invoke([SystemMessage(f"You read. {HANDBOOK}"), *state["messages"]])]}

        made = StateGraph(MessagesState).add_node(read).add_edge(START, "read").compile()
    else:
        session.adapter.join("another")
        made = create_agent(llm, [], middleware=[PrefixMiddleware(session, role="reader", tools=["serch"])])
    _, said = choices(chat, made)
    assert len(said) == 1
    assert "'serch'; its request has no tools" in said[0]
    assert not [one for one in chat.provider.requests if "serch" in one.body.decode()]


def test_a_node_that_plans_before_it_binds_its_tools_is_warned_of_nothing(chat):
    """Its first request has none yet, and its second one has the tool of that name."""
    session = Session(SharedPrefix(system=HANDBOOK))
    llm = wrap_model(chat.model(), session)

    @forked(session, role="reader", tools=["read_file"])
    def read(state):
        asked = [SystemMessage(f"You read. {HANDBOOK}"), *state["messages"]]
        return {"messages": [llm.invoke(asked), llm.bind_tools([read_file]).invoke(asked)]}

    _, said = choices(chat, StateGraph(MessagesState).add_node(read).add_edge(START, "read").compile())
    assert not said


def test_an_agent_whose_names_are_all_wrong_runs_what_it_calls(chat):
    """What the model is offered is not refused."""
    session = chat.session(HANDBOOK)
    chat.script([Reply(tool_calls=(ToolCall("run_tests", {}, id="c1"),)), Reply("Done.")])
    with pytest.warns(UserWarning, match="raed_file"):
        out = agent(chat, session, ["raed_file"], Changes()).invoke({"messages": [HumanMessage("Begin.")]})
    assert "12 passed" in out["messages"][-2].text


def says(request):
    """The system prompt of a request, made at the call."""
    return "You read."


KEEPING = {
    "dynamic_prompt": lambda: dynamic_prompt(says),
    "marks": lambda: AnthropicPromptCachingMiddleware(unsupported_model_behavior="ignore"),
}


@pytest.mark.parametrize("kind", KEEPING)
def test_an_agents_tools_are_known_when_it_is_made_beside_middleware_that_keeps_them(chat, kind):
    """Else they come with its first request, stay outside, and what follows them is read by nobody else."""
    session = Session(SharedPrefix(system=HANDBOOK))
    for role, others in (("reader", [KEEPING[kind]()]), ("writer", [])):
        ours = PrefixMiddleware(session, role=role)
        create_agent(chat.model(), TOOLS[: 1 + (role == "reader")], middleware=[*others, ours])
    assert set(session.prefix.tool_names) == {"read_file", "run_tests"}
    other = Session(SharedPrefix(system=HANDBOOK))
    create_agent(chat.model(), TOOLS, middleware=[Changes(), PrefixMiddleware(other, role="reader")])
    assert not other.prefix.tool_names


@pytest.mark.filterwarnings("ignore:the endpoint of")
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_gateway_that_takes_no_list_of_tools_is_asked_anew_and_sent_no_more_of_them(chat, later, streams):
    """It serves a model by OpenAI's name; the request it refused goes out as the application made it."""

    def gateway(request):
        refused = isinstance(request.body.get("tool_choice"), dict)
        return Reply(fault=Fault(status=400, message="tool_choice: unknown")) if refused else Reply("fine")

    chat.script(gateway)
    session, given = chat.session(HANDBOOK), {"messages": [HumanMessage("Begin.")]}

    async def tokens(made):
        return [piece async for piece in made.astream(given, stream_mode="messages")]

    def ask(made):
        if streams:
            told = asyncio.run(tokens(made)) if later else list(made.stream(given, stream_mode="messages"))
            return "".join(piece.text for piece, _ in told)
        gave = asyncio.run(made.ainvoke(given)) if later else made.invoke(given)
        return gave["messages"][-1].text

    def sent():
        chat.release()
        records = [(record.status, json.loads(record.body)) for record in chat.provider.requests]
        chat.provider.requests.clear()
        return records

    made = node(chat, session, ["read_file"])
    assert ask(made) == "fine"
    (first, fork), (second, own) = sent()
    assert (first, second) == (400, 200)
    assert fork["tool_choice"]
    assert "tool_choice" not in own
    assert [one["role"] for one in own["messages"]] == ["system", "user"]
    assert "You read." in json.dumps(own["messages"][0])
    assert "Begin." in json.dumps(own["messages"][1])
    assert [[why.why for why in call.reasons] for call in session.calls] == [["list_refused"]]
    assert session.report().unanswered == 1
    assert ask(made) == "fine"
    assert [status for status, _ in sent()] == [200]
    assert session.calls[-1].layout == "fork"
    assert any("refused tool_choice" in note for note in session.report().notes)
