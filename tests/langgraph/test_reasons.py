"""Why a request went out as it did, as an application sees it; and what strict mode raises at every front door."""

import asyncio

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langchain_openai import custom_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from cacheprefix.errors import NotSharedError
from cacheprefix.prompt import ESTIMATE, Reason
from cacheprefix.server import Reply
from cacheprefix_langgraph import PrefixMiddleware, forked, wrap_model
from tests.langgraph.conftest import Bench

HANDBOOK = "The handbook says that every statement needs a source. " * 200
OLDER = HANDBOOK[:-600] + "This is the second edition."


def why(call):
    """The reasons of a call, in words."""
    return [one.why for one in call.reasons]


def numbers(call, name):
    """The numbers of one reason of a call."""
    return next(dict(one.numbers) for one in call.reasons if one.why == name)


def chain(session, model, texts, kits=None):
    """A graph of one node a role, each with a system text and tools of its own."""
    graph, previous = StateGraph(MessagesState), START
    for role, text in texts.items():
        asked = model[role] if isinstance(model, dict) else model
        bound = asked.bind_tools(kits[role]) if kits and kits[role] else asked

        def node(state, bound=bound, text=text):
            return {"messages": [bound.invoke([SystemMessage(text), *state["messages"]])]}

        graph.add_node(role, forked(session, role=role)(node))
        graph.add_edge(previous, role)
        previous = role
    graph.add_edge(previous, END)
    return graph.compile(checkpointer=InMemorySaver())


def go(graph, said="Look into it.", thread="one"):
    """One turn of a thread."""
    return graph.invoke({"messages": [HumanMessage(said)]}, {"configurable": {"thread_id": thread}})


def tools(kind, number, words="words "):
    """So many tools with names of this kind."""

    def run(text: str) -> str:
        return text

    return [
        StructuredTool.from_function(run, name=f"{kind}_{n}", description=f"Tool {n} for {kind}. " + words * 30)
        for n in range(number)
    ]


@pytest.fixture
def no_tools(chat, monkeypatch):
    """A bench whose sessions begin without tools."""
    monkeypatch.setattr(Bench, "tools", [])
    return chat


def test_a_fork_says_how_much_it_shares(bench):
    """The shared text, the shared tools and the history, each once; each role's answer adds to it."""
    session = bench.session(HANDBOOK)
    go(chain(session, wrap_model(bench.model(), session), {"planner": "You plan.", "writer": "You write."}))
    first, second = session.calls
    assert [call.layout for call in session.calls] == ["fork", "fork"]
    assert [why(call) for call in session.calls] == [["shares"], ["shares"]]
    schemas = [tool.schema.decode() for tool in session.prefix.tools]
    texts = [session.prefix.text, *schemas, "Look into it."]
    assert numbers(first, "shares") == {"shared": sum(ESTIMATE.count(text) for text in texts)}
    assert numbers(second, "shares")["shared"] > numbers(first, "shares")["shared"]


def test_below_the_minimum_it_says_both_numbers(chat):
    """What is shared, and from how much on the provider caches."""
    session = chat.session("A short rule.")
    go(chain(session, wrap_model(chat.model(), session), {"planner": "You plan.", "writer": "You write."}))
    call = session.calls[-1]
    assert (call.layout, why(call)) == ("own", ["prefix_below_minimum"])
    found = numbers(call, "prefix_below_minimum")
    assert found["shared"] < found["minimum"] == call.profile.min_tokens


def test_a_long_text_of_its_own_is_weighed_against_what_is_shared(chat):
    """A role that brings more than it shares keeps its layout, and says how much either is."""
    session = chat.session("Rule. " * 1_200)
    texts = {"planner": "You plan. " * 2_000, "writer": "You write."}
    go(chain(session, wrap_model(chat.model(), session), texts))
    call = session.calls[0]
    assert (call.layout, why(call)) == ("own", ["text_longer_than_shared"])
    found = numbers(call, "text_longer_than_shared")
    assert found["size"] > found["shared"] > 1_024


def test_an_agent_alone_says_so(bench):
    """Its requests are the application's own, which at most are marked."""
    session = bench.session(HANDBOOK)
    agent = create_agent(bench.model(), [], system_prompt=HANDBOOK, middleware=[PrefixMiddleware(session, role="one")])
    agent.invoke({"messages": [HumanMessage("Look into it.")]})
    call = session.calls[-1]
    assert (call.layout, why(call)) == ("own", ["alone"])


def test_a_node_alone_says_so(chat):
    """Others may come, which nobody knows beforehand: its request begins as theirs would, and says so."""
    session = chat.session(HANDBOOK)
    go(chain(session, wrap_model(chat.model(), session), {"planner": "You plan."}))
    call = session.calls[-1]
    assert (call.layout, why(call)) == ("fork", ["alone"])
    # What is said of requests that keep their own layout would be no reason for a fork.
    assert "fork for roles that may come" in call.reasons[0].said
    assert numbers(call, "alone")["shared"] > 1_024
    assert "fork for roles that may come" in str(session.report())


def test_tools_that_the_provider_defines_are_named(servers):
    """They are in no union, and a role that has them says which."""
    bench = Bench("anthropic", servers("anthropic"))
    session = bench.session(HANDBOOK)
    model = wrap_model(bench.model(), session)
    models = {"planner": model.bind_tools([{"type": "web_search_20250305", "name": "web_search"}]), "writer": model}
    go(chain(session, models, {"planner": "You search.", "writer": "You write."}))
    found = [one for call in session.calls for one in call.reasons if one.why == "provider_tools"]
    assert [one.name for one in found] == ["web_search"]


@pytest.mark.parametrize("instruction", ["", "Be brief."])
def test_a_fork_that_could_not_be_made_is_said(chat, instruction, monkeypatch):
    """The application's own request goes out, whether or not something was left to us to say."""

    def broken(*args, **kwargs):
        raise RuntimeError("broken on purpose")

    session = chat.session("")
    model = wrap_model(chat.model(), session)
    monkeypatch.setattr("cacheprefix_langgraph.entering.conversation_of", broken)
    node = forked(session, role="planner", instruction=instruction)(lambda state: model.invoke(state["messages"]))
    with pytest.warns(UserWarning, match="broken on purpose"):
        node({"messages": [HumanMessage("Go.")]})
    assert (session.calls[-1].layout, why(session.calls[-1])) == ("own", ["failed"])


def test_tools_of_ones_own_are_counted(no_tools):
    """Who shares with the same tools says what it does not carry; who is the only one with its tools, why it stays."""
    session = no_tools.session(HANDBOOK)
    kits = {
        "searcher": tools("search", 90, "words " * 7),
        "coder": tools("code", 90, "words " * 7),
        "critic": [],
        "writer": [],
    }
    graph = chain(session, wrap_model(no_tools.model(), session), dict.fromkeys(kits, "You answer."), kits)
    for turn in range(2):
        go(graph, f"Turn {turn}?")
    searcher, writer = session.calls[-4], session.calls[-1]
    schemas = {tool.name: ESTIMATE.count(tool.schema.decode()) for tool in session.prefix.tools}
    others = sum(size for name, size in schemas.items() if name.startswith("code"))
    assert (searcher.layout, why(searcher)) == ("own", ["tools_cost_more"])
    assert numbers(searcher, "tools_cost_more") == {"foreign": others}
    assert (writer.layout, why(writer)) == ("fork", ["shares", "own_tools"])
    assert numbers(writer, "own_tools") == {"foreign": sum(schemas.values())}


def test_a_long_text_that_stays_says_its_size(chat):
    """A role that asks again before anybody else keeps its text where it was, since moving it would be paid for."""
    session = chat.session(HANDBOOK)
    model, text = wrap_model(chat.model(), session), "You plan with care. " * 300

    def planner(state):
        said = [SystemMessage(text), *state["messages"]]
        model.invoke(said)
        call = {"id": "c", "name": "read_file", "args": {"path": "a"}}
        loop = [AIMessage("", tool_calls=[call]), ToolMessage("found", tool_call_id="c")]
        return {"messages": [model.invoke([*said, *loop])]}

    session.adapter.join("writer")
    graph = StateGraph(MessagesState)
    graph.add_node("planner", forked(session, role="planner")(planner))
    graph.add_edge(START, "planner")
    graph.add_edge("planner", END)
    go(graph.compile(checkpointer=InMemorySaver()))
    call = session.calls[-1]
    assert (call.layout, why(call)) == ("fork", ["shares", "role_kept"])
    assert numbers(call, "role_kept")["size"] >= ESTIMATE.count(text)
    # What stands behind it is not shared.
    assert numbers(call, "shares") == numbers(session.calls[0], "shares")


def test_another_prompt_for_the_provider_is_said(chat):
    """A schema of the answer and a forced tool are known beside what is shared."""
    session = chat.session(HANDBOOK)
    model = wrap_model(chat.model(), session)
    schema = {"type": "json_schema", "json_schema": {"name": "grade", "schema": {"type": "object"}}}
    models = {
        "planner": model.bind(response_format=schema),
        "writer": model.bind_tools(chat.tools, tool_choice="read_file"),
    }
    go(chain(session, models, {"planner": "You plan.", "writer": "You write."}))
    assert [why(call) for call in session.calls] == [["response_schema", "shares"], ["forced_tool", "shares"]]
    assert "1 x planner: its answer follows a schema, which is another prompt for the provider" in str(session.report())


def test_what_the_provider_keeps_is_said(servers):
    """A model that goes on from the provider's own copy of the history keeps the application's layout."""
    bench = Bench("openai-responses", servers("openai-5.6"))
    session = bench.session(HANDBOOK)
    model = wrap_model(bench.model(use_previous_response_id=True), session)
    go(chain(session, model, {"planner": "You plan.", "writer": "You write."}))
    call = session.calls[-1]
    assert (call.layout, why(call)) == ("own", ["kept_by_provider"])
    bench.release()


def test_calls_outside_of_any_role_are_only_observed(chat):
    """Neither a layout nor a cost was decided for them."""
    session = chat.session(HANDBOOK)
    wrap_model(chat.model(), session).invoke("Hello.")
    assert (session.calls[-1].layout, why(session.calls[-1])) == ("observed", ["outside_fork"])


def test_observing_is_said(chat):
    """Each request of a session that only observes."""
    session = chat.session(HANDBOOK, mode="observe")
    go(chain(session, wrap_model(chat.model(), session), {"planner": "You plan.", "writer": "You write."}))
    assert {(call.layout, *why(call)) for call in session.calls} == {("observed", "observe_mode")}


@pytest.mark.parametrize("step", ["calls.laid_out", "calls.settled", "sending.own_body"])
def test_a_step_that_failed_is_said(chat, step, monkeypatch):
    """The application's own request goes out, and its call says why."""
    session = chat.session(HANDBOOK)
    graph, times = chain(session, wrap_model(chat.model(), session), {"planner": "You plan."}), []
    real = getattr(__import__(f"cacheprefix_langgraph.{step.split('.')[0]}", fromlist=["x"]), step.split(".")[1])

    def broken(*args, **kwargs):
        times.append(1)
        if len(times) > 1:
            return real(*args, **kwargs)
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(f"cacheprefix_langgraph.{step}", broken)
    session.adapter.join("writer")
    with pytest.warns(UserWarning, match="broken on purpose"):
        go(graph)
    assert (session.calls[-1].layout, why(session.calls[-1])) == ("own", ["failed"])


def by_node(bench, session, model):
    """A graph's node."""
    go(chain(session, model, {"planner": OLDER}))


def by_async_node(bench, session, model):
    """The same, awaited."""

    async def planner(state):
        return {"messages": [await model.ainvoke([SystemMessage(OLDER), *state["messages"]])]}

    graph = StateGraph(MessagesState)
    graph.add_node("planner", forked(session, role="planner")(planner))
    graph.add_edge(START, "planner")
    asyncio.run(graph.compile().ainvoke({"messages": [HumanMessage("Look into it.")]}))


def by_middleware(bench, session, model):
    """An agent of LangChain's."""
    middleware = [PrefixMiddleware(session, role="planner")]
    agent = create_agent(bench.model(), [], system_prompt=OLDER, middleware=middleware)
    agent.invoke({"messages": [HumanMessage("Look into it.")]})


def by_role(bench, session, model):
    """A model bound to a role."""
    wrap_model(bench.model(), session, role="planner").invoke([SystemMessage(OLDER), HumanMessage("And?")])


def by_stream(bench, session, model):
    """Its stream."""
    asked = wrap_model(bench.model(), session, role="planner")
    list(asked.stream([SystemMessage(OLDER), HumanMessage("And?")]))


def by_astream(bench, session, model):
    """The same, awaited."""

    async def read():
        asked = wrap_model(bench.model(), session, role="planner")
        return [one async for one in asked.astream([SystemMessage(OLDER), HumanMessage("And?")])]

    asyncio.run(read())


def by_batch(bench, session, model):
    """Its batch."""
    asked = wrap_model(bench.model(), session, role="planner")
    asked.batch([[SystemMessage(OLDER), HumanMessage(f"{n}?")] for n in range(2)])


DOORS = [by_node, by_async_node, by_middleware, by_role, by_stream, by_astream, by_batch]


@pytest.mark.parametrize("door", DOORS)
def test_strict_reaches_the_application_through_every_front_door(chat, door):
    """An older handbook is the user's to mend: the error names the role, and nothing is sent."""
    session = chat.session(HANDBOOK, mode="strict")
    session.adapter.join("writer")
    with pytest.raises(NotSharedError, match="planner") as caught:
        door(chat, session, wrap_model(chat.model(), session))
    assert [one.why for one in caught.value.reasons] == ["text_not_found"]
    assert chat.bodies == []
    assert session.failures == {}


@pytest.mark.parametrize("door", DOORS)
def test_without_strict_the_same_goes_out_and_is_said(chat, door):
    """What strict mode raises for is a reason of the call."""
    session = chat.session(HANDBOOK)
    session.adapter.join("writer")
    door(chat, session, wrap_model(chat.model(), session))
    assert {why(call)[0] for call in session.calls} == {"text_not_found"}


def test_strict_names_a_tool_with_another_schema(no_tools):
    """It is raised for the role whose tool differs from the shared one, and not for the role that has that."""
    session = no_tools.session(HANDBOOK, mode="strict")
    kits = {"planner": tools("search", 1), "writer": tools("search", 1, "other ")}
    graph = chain(session, wrap_model(no_tools.model(), session), dict.fromkeys(kits, "You answer."), kits)
    with pytest.raises(NotSharedError) as caught:
        go(graph)
    assert caught.value.role == "writer"
    assert [(one.why, one.name) for one in caught.value.reasons] == [("tool_schema_differs", "search_0")]
    assert len(no_tools.bodies) == 1


def test_strict_names_another_model(chat):
    """One role asks a model that nobody else asks, while all others ask the same."""
    session = chat.session(HANDBOOK, mode="strict")
    same, other = wrap_model(chat.model(), session), wrap_model(chat.model(model="gpt-5.6-mini"), session)
    models = {"planner": same, "writer": same, "critic": other}
    with pytest.raises(NotSharedError) as caught:
        go(chain(session, models, dict.fromkeys(models, "You answer.")))
    assert caught.value.role == "critic"
    assert [(one.why, one.name) for one in caught.value.reasons] == [("other_model", "gpt-5.6-mini")]
    assert len(chat.bodies) == 2


def test_an_answer_that_is_read_no_further_is_no_lack_of_a_setting(chat):
    """The provider says what it read at a stream's end: a report advises no setting where a reader stops before."""
    chat.script(lambda _: Reply("One two three four five six. " * 20))
    session = chat.session(OLDER)
    stream = wrap_model(chat.model(), session, role="planner").stream([SystemMessage(OLDER), HumanMessage("And?")])
    next(stream)
    stream.close()
    report = str(session.report())
    assert "1 of 1 calls' answers were broken off" in report
    assert "include_usage" not in report


def test_what_to_do_for_tools_that_came_too_late_holds_for_agents_that_others_make():
    """Helpers of deepagents are made by that itself: what is said first works for them too."""
    fix = Reason("made_too_late", "find").fix
    assert fix.startswith("give all tools to SharedPrefix(tools=...);")
    assert "deepagents" in fix


@pytest.mark.parametrize("bench", ["openai-responses"], indirect=True)
def test_custom_tools_are_no_tools_of_others_that_would_cost(bench):
    """They are in no union: two roles that bind the very same are parted by nothing that another one has."""
    bench.tools = []
    session = bench.session(HANDBOOK)

    @custom_tool
    def code(text: str) -> str:
        """Run code."""
        return text

    kits = {role: [*tools("find", 1), code] for role in ("reader", "writer", "checker")}
    model = wrap_model(bench.model(), session)
    go(chain(session, model, {role: f"You are the {role}. {HANDBOOK}" for role in kits}, kits))
    first, *others = session.calls
    assert (first.layout, list(map(str, first.reasons))) == ("own", ["tools_cost_more"])
    assert [(one.layout, why(one)) for one in others] == [("fork", ["shares"])] * 2
    # All of what they really share, and not the schemas of the union alone.
    assert all(numbers(one, "shares")["shared"] > ESTIMATE.count(HANDBOOK) for one in others)
    assert "0 tokens" not in str(session.report())
