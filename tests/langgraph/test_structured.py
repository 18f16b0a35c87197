"""Structured answers under function calling: their schemas are tools, and stand before everything that is shared."""

import asyncio
import functools
import json
import operator
from typing import Annotated

import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.runnables import RunnableLambda
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send
from pydantic import BaseModel, create_model
from typing_extensions import TypedDict

from cacheprefix import Caching, Gate, Session, SharedPrefix
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Reply, ToolCall
from cacheprefix_langgraph import forked, wrap_model
from cacheprefix_langgraph.schemas import bound_schemas
from tests.langgraph.conftest import Bench
from tests.langgraph.test_invariants import units

HANDBOOK = "Every statement needs a source that the reader can open. " * 200
BRIEF = "The warehouse is to move to another region, and nobody knows when. " * 150


class Plan(BaseModel):
    """The plan."""

    topics: list[str]


class Finding(BaseModel):
    """One finding."""

    claim: str


class Verdict(TypedDict):
    """Whether it may go out."""

    ok: bool


class Team(MessagesState):
    """What is found."""

    found: Annotated[list, operator.add]


ANSWERS = {"Plan": {"topics": ["cost", "law", "risk"]}, "Finding": {"claim": "It is fine."}, "Verdict": {"ok": True}}


def answer(request):
    """What the schema asks for, as a call of the one that must be called, or as text."""
    asked = request.asked
    wanted = json.dumps(asked.schema) if asked.schema is not None else ""
    if asked.choice == "required" and not wanted:
        name = next(name for name in asked.tools if not asked.allowed or name in asked.allowed)
        return Reply("", (ToolCall(name, ANSWERS[name]),))
    return Reply(next((json.dumps(made) for made in ANSWERS.values() if f'"{next(iter(made))}"' in wanted), "Yes."))


def build(model, session, *, options=None, foreseen=True):
    """A planner, a researcher for each of its topics, a judge and a writer: three of them answer by a schema."""
    options = options or {}

    def said(role, state):
        return [SystemMessage(f"You are the {role}.\n\n{HANDBOOK}"), *state["messages"]]

    def planner(state):
        model.with_structured_output(Plan, **options).invoke(said("planner", state))
        return {}

    def researcher(state):
        return {"found": [model.with_structured_output(Finding, **options).invoke(said("researcher", state))]}

    def late(state):
        made = create_model("Finding", claim=(str, ...))
        return {"found": [model.with_structured_output(made, **options).invoke(said("researcher", state))]}

    def judge(state):
        model.with_structured_output(schema=Verdict, **options).invoke(said("judge", state))
        return {}

    def writer(state):
        return {"messages": [model.invoke(said("writer", state))]}

    graph = StateGraph(Team)
    for node in (planner, researcher if foreseen else late, judge, writer):
        role = "researcher" if node is late else node.__name__
        graph.add_node(role, node if session is None else forked(session, role=role)(node))
    graph.add_edge(START, "planner")
    graph.add_conditional_edges("planner", lambda state: [Send("researcher", {**state, "n": n}) for n in range(4)])
    graph.add_edge("researcher", "judge")
    graph.add_edge("judge", "writer")
    graph.add_edge("writer", END)
    return graph.compile()


def run(bench, session, **how):
    """One run of the team; what the provider charged."""
    bench.provider.reset()
    bench.slow(0.03)
    bench.script(answer)
    model = bench.model() if session is None else wrap_model(bench.model(), session)
    build(model, session, **how).invoke({"messages": [HumanMessage(BRIEF)], "found": []})
    assert [record.status for record in bench.provider.requests] == [200] * 7
    return units(bench)


def session_of(bench):
    """A session that is told of no schema."""
    return Session(
        SharedPrefix(system=HANDBOOK),
        caching=Caching(provider=bench.rules, counter=ESTIMATE),
        gate=Gate(price=0.0),
    )


def tools_of(bench):
    """The names of the tools of each request."""
    return [tuple(json.loads(one.text)["name"] for one in prompt.tier("tools")) for prompt in bench.prompts()]


def test_schemas_that_nodes_bind_when_they_run_are_shared_tools_from_the_first_request_on(bench):
    """Nobody told of them: they stand in the nodes' code."""
    options = {"method": "function_calling"}
    plain = run(bench, None, options=options)
    session = session_of(bench)
    ours = run(bench, session, options=options)
    assert session.prefix.tool_names == ("Finding", "Plan", "Verdict")
    assert len({prompt.sections[: len(prompt.tier("tools")) + 1] for prompt in bench.prompts()}) == 1
    assert ours < 0.55 * plain
    assert not [one for call in session.calls for one in call.reasons if one.why == "made_too_late"]


def test_by_anthropics_default_they_are_tools_too(servers):
    """Where the class binds a schema as a tool unless it is told otherwise."""
    bench = Bench("anthropic", servers("anthropic"))
    plain, session = run(bench, None), session_of(bench)
    assert run(bench, session) < 0.55 * plain
    assert session.prefix.tool_names == ("Finding", "Plan", "Verdict")


def test_schemas_that_are_no_tools_are_not_shared(chat):
    """OpenAI's structured outputs send them beside the tools: nothing is put into anybody's array."""
    session = session_of(chat)
    run(chat, session, options={"method": "json_schema"})
    assert session.prefix.tool_names == ()
    assert not any(prompt.tier("tools") for prompt in chat.prompts())


@pytest.mark.parametrize("kind", ["anthropic", "openai-chat"])
def test_a_fan_out_shares_by_a_schema_that_is_made_when_it_runs(servers, kind):
    """Nobody can foresee it: the siblings still carry the same, and follow one leader."""
    bench = Bench(kind, servers("anthropic" if kind == "anthropic" else "openai-5.6"))
    options = {"method": "function_calling"}
    plain = run(bench, None, options=options, foreseen=False)
    session = session_of(bench)
    ours = run(bench, session, options=options, foreseen=False)
    siblings = [call for call in session.calls if call.agent == "researcher"]
    assert {call.layout for call in siblings} == {"fork"}
    assert sorted(call.usage.cache_read_tokens > 3_000 for call in siblings) == [False, True, True, True]
    assert ours < 0.75 * plain


def test_schemas_of_a_compiled_graphs_nodes_are_shared_too(servers):
    """A graph that is one role finds what its nodes will bind."""
    bench = Bench("anthropic", servers("anthropic"))
    session = session_of(bench)
    bench.script(answer)
    graph = forked(session, role="team")(build(wrap_model(bench.model(), session), None))
    graph.invoke({"messages": [HumanMessage(BRIEF)], "found": []})
    assert session.prefix.tool_names == ("Finding", "Plan", "Verdict")
    assert len(set(tools_of(bench))) == 1


def test_a_schema_that_comes_after_the_first_request_is_shown_to_nobody_who_may_be_another_user(chat):
    """Outside of a graph what was said is all that tells whose a request is."""
    session = session_of(chat)
    model = wrap_model(chat.model(), session)
    chat.script(answer)
    asked = {"messages": [SystemMessage(HANDBOOK), HumanMessage("Go.")]}
    writer = forked(session, role="writer")(lambda state: model.invoke(state["messages"]))
    writer(asked)

    def judge(state):
        return model.with_structured_output(Verdict, method="function_calling").invoke(state["messages"])

    forked(session, role="judge")(judge)(asked)
    writer(asked)
    sent = [[one["function"]["name"] for one in record.json.get("tools", [])] for record in chat.provider.requests]
    assert sent == [[], ["Verdict"], []]
    assert chat.provider.requests[-1].outcome.read_tokens > 2_000


def test_a_node_whose_helper_is_written_below_it_is_read_for_what_is_there(chat):
    """What stands further down is not defined yet when a node is decorated: it is no fault, and hides nothing else."""
    session = session_of(chat)
    model = wrap_model(chat.model(), session)

    @forked(session, role="judge")
    def judge(state):
        below(state)
        return model.with_structured_output(Verdict, method="function_calling").invoke(state["messages"])

    def below(state):
        return model

    assert session.failures == {}
    chat.script(answer)
    forked(session, role="writer")(lambda state: model.invoke(state["messages"]))(
        {"messages": [SystemMessage(HANDBOOK), HumanMessage("Go.")]}
    )
    assert [one["function"]["name"] for one in chat.provider.requests[0].json["tools"]] == ["Verdict"]


def ask(model, schema, **options):
    """A helper as applications have it."""
    return model.with_structured_output(schema, **options)


class Node:
    """A node that is an object."""

    def __init__(self, model):
        self.model = model

    def __call__(self, state):
        return self.model.with_structured_output(Plan)

    def step(self, state):
        return ask(self.model, schema=Finding, method="function_calling")


def nodes(model):
    """Nodes of all kinds, and what they bind."""
    bind, method = model.with_structured_output, "json_schema"

    async def awaited(state):
        return await model.with_structured_output(Plan, include_raw=True).ainvoke(state)

    def twice(state):
        return ask(model, Plan), bind(Verdict, method=method)

    def inside(state):
        def again():
            return bind({"title": "Third", "type": "object"}), bind(Finding)

        return again()

    def nothing(state):
        return model.invoke(Plan.model_json_schema()), bind(state["schema"])

    def strict(state):
        return bind(Plan, strict=True)

    both, third = [(Plan, None), (Verdict, "json_schema")], [(Finding, None)]
    return [
        (awaited, [(Plan, None)]),
        (twice, both),
        (inside, third),
        (nothing, []),
        (strict, []),
        (Node(model), [(Plan, None)]),
        (Node(model).step, [(Finding, "function_calling")]),
        (functools.partial(twice), both),
        (RunnableLambda(awaited), [(Plan, None)]),
        (RunnableLambda(twice) | RunnableLambda(inside), [*both, *third]),
        (lambda state: bind(Plan, method="json_mode"), [(Plan, "json_mode")]),
        (functools.wraps(inside)(lambda state: [inside(state)]), third),
        (model, []),
        (print, []),
    ]


def test_schemas_are_found_in_the_code_of_every_kind_of_node(chat):
    """By name, through helpers, closures and modules; what only running it would tell is not guessed."""
    for node, expected in nodes(chat.model()):
        assert sorted(map(str, bound_schemas(node))) == sorted(
            f"Schema(schema={schema!r}, method={method!r})" for schema, method in expected
        ), node


def test_schemas_are_found_in_an_event_loop_too(chat):
    """No file is read for it (watched by ``tests.blocking``)."""

    async def made():
        return [len(list(bound_schemas(node))) for node, _ in nodes(chat.model())]

    assert asyncio.run(made()) == [len(expected) for _, expected in nodes(chat.model())]
