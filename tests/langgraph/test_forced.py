"""A forced call of any tool, where the roles' requests carry all their tools."""

from functools import reduce
from operator import add

import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from langgraph.graph import START, MessagesState, StateGraph

from cacheprefix.server import Reply, ToolCall
from cacheprefix_langgraph import forked, wrap_model
from tests.langgraph.conftest import TOOLS

CALL = Reply(tool_calls=(ToolCall("read_file", {"path": "a"}),))
HANDBOOK = "The handbook says that every statement needs a source. " * 90


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["any", "required"])
def test_a_forced_call_can_only_be_one_of_the_roles_own(bench, choice, stream):
    """Of the union the model could call another role's tool, and the application got that call."""
    session = bench.session(HANDBOOK)
    bench.script(lambda request: Reply("Well.") if request.asked.choice == "auto" else CALL)
    model = wrap_model(bench.model(), session)
    choice = "any" if bench.kind == "anthropic" else choice
    models = {"planner": model.bind_tools(TOOLS), "reader": model.bind_tools(TOOLS[:1], tool_choice=choice)}
    graph = StateGraph(MessagesState)

    def node(name):
        def ask(state):
            said = [SystemMessage(f"You are the {name}."), *state["messages"]]
            if stream:
                return {"messages": [reduce(add, models[name].stream(said))]}
            return {"messages": [models[name].invoke(said)]}

        return forked(session, role=name)(ask)

    for name in models:
        graph.add_node(name, node(name))
    graph.add_edge(START, "planner")
    graph.add_edge("planner", "reader")
    graph.compile().invoke({"messages": [HumanMessage("Begin.")]})
    first, second = bench.prompts()
    if bench.kind == "anthropic":
        assert [len(prompt.tier("tools")) for prompt in (first, second)] == [2, 1]
    else:
        # There the union stays, as the provider keeps the model to the role's own tools.
        assert first.tier("tools") == second.tier("tools")
        said = str(second.settings["tool_choice"])
        assert "required" in said
        assert "read_file" in said
        assert "run_tests" not in said
    assert [call.layout for call in session.calls] == ["fork"] * 2
    assert "forced_tool" in [one.why for one in session.calls[1].reasons]


@pytest.mark.invalid_requests
@pytest.mark.parametrize("listed", [False, True], ids=["named", "listed"])
def test_a_choice_of_another_roles_tool_is_refused_as_without_us(bench, listed):
    """Of the union the provider took it, and the model called what the role does not have."""
    told, session, name = [], bench.session(HANDBOOK), TOOLS[1].name
    named = {"type": "function", "function": {"name": name}}
    choice = {"type": "tool", "name": name} if bench.kind == "anthropic" else named
    if listed and bench.kind != "anthropic":
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}}
    bench.script(lambda _: Reply("Well."))
    for model in (bench.model(), wrap_model(bench.model(), session)):
        graph = StateGraph(MessagesState)
        models = {"planner": model.bind_tools(TOOLS), "reader": model.bind_tools(TOOLS[:1]).bind(tool_choice=choice)}

        def node(role, models=models, session=session if told else None):
            def ask(state):
                return {"messages": [models[role].invoke([SystemMessage(f"You are the {role}."), *state["messages"]])]}

            return ask if session is None else forked(session, role=role)(ask)

        for role in models:
            graph.add_node(role, node(role))
        graph.add_edge(START, "planner")
        graph.add_edge("planner", "reader")
        with pytest.raises(Exception, match="not among the tools") as refused:
            graph.compile().invoke({"messages": [HumanMessage("Begin.")]})
        told.append((type(refused.value), str(refused.value)))
    assert told[0] == told[1]
    assert session.failures == {}
