"""What a preview says of a graph is what the graph then sends, and nothing comes of the preview itself."""

import json

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware, dynamic_prompt
from langchain_core.messages import HumanMessage, SystemMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import BaseModel, Field

from cacheprefix import cli, preview
from cacheprefix.errors import SetupError
from cacheprefix.server import Reply
from cacheprefix_langgraph import PrefixMiddleware, forked, subgraph, wrap_model
from tests.langgraph.conftest import TOOLS

HANDBOOK = "The handbook says that every statement needs a source. " * 200
TASK = "Look into it. " * 400
ROLES = ("planner", "critic", "writer")


def parallel(nodes):
    """Nodes side by side."""
    graph = StateGraph(MessagesState)
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    return graph.compile()


def functions(session, chat):
    """Forked functions that ask a wrapped model, two of them with tools."""
    model = wrap_model(chat.model(), session)

    def node_of(name):
        asked = model if name == "writer" else model.bind_tools(TOOLS)

        @forked(session, role=name, instruction=f"You are the {name}. Mind the duty of a {name}.")
        def node(state):
            return {"messages": [asked.invoke(state["messages"])]}

        return node

    return parallel({name: node_of(name) for name in ROLES})


def agents(session, chat):
    """Agents with the middleware, each with a system prompt and tools."""
    return parallel(
        {
            name: create_agent(
                chat.model(),
                tools=TOOLS[: number + 1],
                system_prompt=f"You are the {name}.",
                middleware=[PrefixMiddleware(session, role=name)],
                name=name,
            )
            for number, name in enumerate(ROLES[:2])
        }
    )


class Plan(BaseModel):
    """What is to be done: long enough to be seen among the tokens of a request."""

    steps: list[str] = Field(description="What is to be done first, then next, and so on up to the end. " * 40)


def answered(session, chat):
    """Forked functions whose code asks for answers by a schema; with ``include_raw``, so that any answer will do."""
    model = wrap_model(chat.model(), session)

    @forked(session, role="planner", instruction="You are the planner.")
    def plans(state):
        said = model.with_structured_output(Plan, include_raw=True).invoke(state["messages"])
        return {"messages": [said["raw"]]}

    @forked(session, role="writer", instruction="You are the writer.")
    def calls(state):
        said = model.with_structured_output(Plan, method="function_calling", include_raw=True)
        return {"messages": [said.invoke(state["messages"])["raw"]]}

    @forked(session, role="critic", instruction="You are the critic.")
    def critic(state):
        return {"messages": [model.invoke(state["messages"])]}

    return parallel({"planner": plans, "writer": calls, "critic": critic})


def graphs(session, chat):
    """Agents without it, each made a fork as a whole, and a model bound to a role."""
    model = wrap_model(chat.model(), session)
    bound = wrap_model(chat.model(), session, role="judge", instruction="You judge.")
    nodes = {
        name: subgraph(create_agent(model, tools=TOOLS, system_prompt=f"You are the {name}.", name=name), session)
        for name in ROLES[:2]
    }
    return parallel({**nodes, "judge": lambda state: {"messages": [bound.invoke(state["messages"])]}})


def alone(session, chat):
    """One agent."""
    return create_agent(
        chat.model(), tools=TOOLS, system_prompt="You are alone. " * 300, middleware=[PrefixMiddleware(session)]
    )


def brief(_):
    """An answer without tools."""
    return Reply("ok")


def run(graph):
    """One run whose nodes ask one after the other, so that no chance says who writes what others read."""
    graph.invoke({"messages": [HumanMessage(TASK)]}, {"max_concurrency": 1})


@pytest.mark.parametrize("build", [functions, answered, agents, graphs, alone])
def test_what_was_foreseen_is_what_is_sent(bench, build):
    """Agent, layout, reasons, tokens and costs of each first request, by the provider's own count."""
    bench.script(brief)
    foreseen = bench.session(HANDBOOK)
    seen = preview(build(foreseen, bench), foreseen, task=TASK)
    assert not bench.provider.requests
    session = bench.session(HANDBOOK)
    run(build(session, bench))
    assert session.failures == {}
    calls = {call.agent: call for call in session.calls}
    assert sorted(one.agent for one in seen.requests) == sorted(calls)
    for one in seen.requests:
        call = calls[one.agent]
        assert (one.model, one.layout) == (call.model, call.layout)
        for reason, came in zip(one.reasons, call.reasons, strict=True):
            assert (reason.why, reason.name) == (came.why, came.name)
            assert dict(reason.numbers) == pytest.approx(dict(came.numbers), rel=0.02)
        assert one.input_tokens == pytest.approx(call.input_tokens, rel=0.02)
        # What a function says itself is known in the run alone.
        function = build in (functions, answered) or one.agent == "judge"
        foretold = None if function else pytest.approx(call.unmodified_units, rel=0.02)
        assert one.unmodified_units == foretold
        assert (one.shared_tokens, one.units) == pytest.approx((call.shared_tokens, call.units), rel=0.02)


def test_what_is_foreseen_of_further_threads_is_what_they_cost(chat):
    """Many short threads: what the report says from the second one on, and not what the first one saves."""
    chat.script(brief)

    def build(session):
        names = ROLES[:2]
        return parallel(
            {
                name: create_agent(
                    chat.model(),
                    tools=[TOOLS[at]],
                    system_prompt=f"{HANDBOOK}\n\nYou are the {name}.",
                    middleware=[PrefixMiddleware(session, role=name)],
                    name=name,
                )
                for at, name in enumerate(names)
            }
        )

    planned = chat.session(HANDBOOK)
    seen = preview(build(planned), planned, task="Which one is it?")
    session = chat.session(HANDBOOK)
    graph = build(session)
    for number in range(4):
        config = {"configurable": {"thread_id": f"thread {number}"}, "max_concurrency": 1}
        graph.invoke({"messages": [HumanMessage(f"{number}: which is it?")]}, config)
    further = session.calls[2:]
    assert len(further) == 6
    cost, own = sum(one.units for one in further), sum(one.unmodified_units for one in further)
    assert seen.further_ratio == pytest.approx(cost / own, rel=0.02)
    assert abs(seen.ratio - seen.further_ratio) > 0.1


@pytest.mark.parametrize("build", [functions, agents, graphs, alone])
def test_a_run_after_a_preview_sends_what_it_would_have_sent(chat, build):
    """Byte for byte, and the session is as it was."""
    chat.script(brief)
    session, other = chat.session(HANDBOOK), chat.session(HANDBOOK)
    graph = build(session, chat)
    before = (session.prefix, set(session.adapter.team.roles), dict(session.adapter.beside))
    first = preview(graph, session, task=TASK)
    assert (session.prefix, set(session.adapter.team.roles), session.adapter.beside) == before
    assert session.calls == () == session.report().notes
    assert not session.adapter.shared.conversations
    assert preview(graph, session, task=[HumanMessage(TASK)]).as_dict() == first.as_dict()
    run(graph)
    after = list(chat.bodies)
    chat.provider.reset()
    run(build(other, chat))
    assert chat.bodies == after


def test_nothing_of_the_application_is_run(chat):
    """Nodes and volatile functions are not called: what only they know is said."""
    session, ran = chat.session(HANDBOOK), []
    model = wrap_model(chat.model(), session)

    def volatile(state):
        ran.append("volatile")
        return {"now": "noon"}

    @forked(session, volatile=volatile)
    def asks(state):
        ran.append("asks")
        return {"messages": [model.invoke(state["messages"])]}

    def plain(state):
        ran.append("plain")
        return {}

    seen = preview(parallel({"asks": asks, "plain": plain}), session, task=TASK)
    assert not ran
    assert [one.agent for one in seen.requests] == ["asks"]
    notes = "\n".join(seen.notes)
    assert "asks: what it says for one call alone" in notes
    assert "asks: a function that is not run" in notes
    assert "plain: names no wrapped model" in notes


APP = """
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from cacheprefix import Session, SharedPrefix
from cacheprefix_langgraph import forked, wrap_model

session = Session(SharedPrefix(system="The handbook says that every statement needs a source. " * 200))
model = wrap_model(ChatOpenAI(model="gpt-5.6", api_key="k"), session)
other = wrap_model(ChatOpenAI(model="gpt-5.4", api_key="k"), session)


def made(second):
    graph = StateGraph(MessagesState)
    for name, asked in (("critic", model), ("judge", model), ("writer", second)):

        def node(state, asked=asked):
            raise AssertionError("a preview runs no node")

        graph.add_node(name, forked(session, role=name)(node))
        graph.add_edge(START, name)
    return graph.compile()


def mixed():
    return made(other)


team = made(model)
"""


@pytest.fixture
def app(tmp_path):
    """A program with a team, in a file."""
    path = tmp_path / f"app_{tmp_path.name.replace('-', '_')}.py"
    path.write_text(APP, encoding="utf-8")
    return path


def test_doctor_says_it_of_a_program(app, capsys):
    """As text and as data; with exit code 1 and the way out where an agent does not share and could."""
    assert cli.main(["doctor", f"{app}:team", "--task", TASK]) == 0
    text = capsys.readouterr().out
    assert [line.partition(":")[0] for line in text.splitlines()[:3]] == ["critic", "judge", "writer"]
    assert "shared with an earlier request" in text
    assert cli.main(["doctor", f"{app}:team", "--task", json.dumps({"messages": []}), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [one["layout"] for one in data["requests"]] == ["fork"] * 3
    code = cli.main(["doctor", f"{app}:mixed"])
    assert (code, "writer: use one model for all roles" in capsys.readouterr().out) == (1, True)
    assert cli.main(["doctor", f"{app}:nothing"]) == 2
    assert "has no 'nothing'" in capsys.readouterr().err


def test_a_node_whose_code_names_classes_of_messages_is_seen(chat):
    """As every example has it: the node makes its own system message."""
    session = chat.session(HANDBOOK)
    model = wrap_model(chat.model(), session)

    @forked(session, role="planner")
    def planner(state):
        return {"messages": [model.invoke([SystemMessage("You plan."), *state["messages"]])]}

    said = preview(parallel({"planner": planner}), session, task="Go.")
    assert [one.agent for one in said.requests] == ["planner"]


@pytest.mark.filterwarnings("ignore::cacheprefix.plugins.CacheprefixPluginWarning")
def test_a_preview_that_fails_is_not_taken_for_an_unknown_target(chat, monkeypatch):
    """It names the adapter, and not a lack of adapters."""
    session = chat.session(HANDBOOK)
    monkeypatch.setattr("cacheprefix_langgraph.preview._state", lambda task: {}["gone"])
    with pytest.raises(SetupError, match="failed in langgraph"):
        preview(alone(session, chat), session)


def test_helpers_of_a_deep_agent_are_foreseen_too(bench):
    """The lead asks them by a tool: each helper's first request is shown behind the lead's."""
    from deepagents import create_deep_agent

    session = bench.session(HANDBOOK)
    helpers = [
        {
            "name": name,
            "description": f"The {name}.",
            "system_prompt": f"You are the {name}.\n\n{HANDBOOK}",
            "middleware": [PrefixMiddleware(session, role=name)],
        }
        for name in ("scout", "builder")
    ]
    lead = create_deep_agent(
        wrap_model(bench.model(), session),
        system_prompt=f"You lead.\n\n{HANDBOOK}",
        subagents=helpers,
        middleware=[PrefixMiddleware(session, role="lead")],
    )
    seen = preview(lead, session, task=TASK)
    assert not bench.provider.requests
    # deepagents brings one of its own, which has no role.
    assert [one.agent for one in seen.requests] == ["lead", "general-purpose", "scout", "builder"]
    notes = "\n".join(seen.notes)
    assert "scout: asked by the tool 'task'" in notes
    assert "lead: what its middleware changes is known in the run (" in notes
    assert "SubAgentMiddleware" in notes


def test_a_function_inside_a_fork_of_a_whole_graph_has_no_unmodified_cost(chat):
    """What it says itself is known in the run alone, as where the function is the fork."""
    session = chat.session(HANDBOOK)
    model = wrap_model(chat.model(), session)

    def remember(state):
        return {"messages": [model.invoke([SystemMessage(f"You remember.\n{HANDBOOK}"), *state["messages"]])]}

    seen = preview(subgraph(parallel({"remember": remember}), session, role="memory"), session, task="Go.")
    assert [(one.agent, one.unmodified_units) for one in seen.requests] == [("memory", None)]


def test_what_middleware_says_in_a_run_leaves_the_unmodified_cost_unknown(chat):
    """An agent whose system prompt is made at the call would else be reckoned without its handbook."""

    @dynamic_prompt
    def who(request):
        return f"You are the planner.\n\n{HANDBOOK}"

    session = chat.session(HANDBOOK)
    graph = parallel(
        {
            name: create_agent(
                chat.model(),
                tools=TOOLS,
                system_prompt=None if own else f"You are the {name}.\n\n{HANDBOOK}",
                middleware=[*own, PrefixMiddleware(session, role=name)],
                name=name,
            )
            for name, own in (("critic", []), ("planner", [who]))
        }
    )
    found = preview(graph, session, task=TASK)
    assert {one.agent: one.unmodified_units is None for one in found.requests} == {"critic": False, "planner": True}
    assert found.ratio is None


def test_a_hook_that_may_ask_is_not_shown_as_the_first_to_ask(chat):
    """As one that summarises long threads: the agent's own tools then were said to come too late."""
    session = chat.session(HANDBOOK)
    llm = wrap_model(chat.model(), session)
    ours = [SummarizationMiddleware(llm, trigger=("messages", 50)), PrefixMiddleware(session, role="planner")]
    planner = create_agent(llm, TOOLS, system_prompt="You plan.", name="planner", middleware=ours)
    found = preview(planner, session, task=TASK)
    assert [one.agent for one in found.requests] == ["planner"]
    assert not [one.why for request in found.requests for one in request.reasons if one.removable]
    assert [note for note in found.notes if note.startswith("SummarizationMiddleware.before_model: a hook")]


def test_a_node_that_binds_tools_as_it_runs_is_said_to_bring_them_late(chat):
    """Nobody can know them before, and others' first requests go without."""
    session = chat.session(HANDBOOK)
    model = wrap_model(chat.model(), session)
    early = model.bind_tools(TOOLS)

    @forked(session, role="late")
    def late(state):
        return {"messages": [model.bind_tools(TOOLS).invoke(state["messages"])]}

    @forked(session, role="early")
    def soon(state):
        return {"messages": [early.invoke(state["messages"])]}

    said = preview(parallel({"late": late, "soon": soon}), session, task=TASK).notes
    assert [note.partition(":")[0] for note in said if "SharedPrefix(tools=" in note] == ["late"]


def test_nodes_that_a_branch_chooses_between_stand_as_they_were_added(chat):
    """Parallel ones stand as LangGraph begins them, by their names."""
    session = chat.session(HANDBOOK)
    model = wrap_model(chat.model(), session)
    names = ["triage", "billing", "answer"]

    def told(join):
        graph = StateGraph(MessagesState)
        for name in names:
            graph.add_node(
                name, forked(session, role=name)(lambda state: {"messages": [model.invoke(state["messages"])]})
            )
        join(graph)
        return [one.agent for one in preview(graph.compile(), session, task="Please begin.").requests]

    assert told(lambda graph: graph.add_conditional_edges(START, lambda _: "triage", names)) == names
    assert told(lambda graph: [graph.add_edge(START, name) for name in names]) == sorted(names)
