"""Roles and tools that are made after the first request: a conversation grows its tools where that costs less."""

from __future__ import annotations

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, TodoListMiddleware
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from pydantic import BaseModel, create_model

from cacheprefix import Session, SharedPrefix, preview
from cacheprefix.errors import NotSharedError
from cacheprefix.profiles import default_registry
from cacheprefix.server import Reply, ToolCall, fill
from cacheprefix_langgraph import PrefixMiddleware, PrefixState, ask, forked, subgraph, wrap_model
from tests.langgraph.conftest import KINDS, RULES, Bench
from tests.langgraph.test_lanes import tools

HANDBOOK = "Every statement needs a source that the reader can open. " * 200
EARLY = {"planner": tools("plan", 1, 60), "writer": []}
LATE = {"critic": tools("check", 1, 60)}


class State(MessagesState, PrefixState):
    """A conversation and its decisions."""


class Untooled(Bench):
    """A server, and sessions that are told of no tool."""

    tools = ()

    def __init__(self, kind, provider):
        super().__init__(kind, provider)
        self.script(lambda asked: Reply(fill(f"Answer {asked.index}:", 300)))


@pytest.fixture(params=KINDS)
def bench(request, servers):
    """A model of each kind."""
    bench = Untooled(request.param, servers(RULES[request.param]))
    yield bench
    bench.release()


@pytest.fixture
def chat(servers):
    """One kind, for what does not differ between kinds."""
    bench = Untooled("openai-chat", servers(RULES["openai-chat"]))
    yield bench
    bench.release()


def nodes(bench, session, kits):
    """A node for each role, with its tools bound."""
    model = bench.model() if session is None else wrap_model(bench.model(), session)

    def node(role):
        bound = model.bind_tools(kits[role]) if kits[role] else model

        def answer(state):
            said = [SystemMessage(f"You are the {role}.\n\n{HANDBOOK}"), *state["messages"]]
            return {"messages": [bound.invoke(said)]}

        return answer if session is None else forked(session, role=role)(answer)

    return [(role, node(role)) for role in kits]


def turn(saver, made, thread="one", scope=""):
    """One turn of a thread, in which each of these nodes answers once."""
    graph = StateGraph(State).add_sequence(made).add_edge(START, made[0][0]).compile(checkpointer=saver)
    config = {"configurable": {"thread_id": thread, "cacheprefix_scope": scope}}
    return graph.invoke({"messages": [HumanMessage("And now?")]}, config), graph, config


def names(bench):
    """The names of the tools of each request."""
    listed = (record.json.get("tools", []) for record in bench.provider.requests)
    return [[one.get("name") or one["function"]["name"] for one in each] for each in listed]


def units(bench):
    """What all requests cost."""
    rules = default_registry().get(bench.rules)
    return sum(record.outcome.cost_units(rules) for record in bench.provider.requests)


def late_critic(bench, session):
    """Two turns of a planner and a writer, and two more with a critic who is made in between."""
    bench.provider.reset()
    saver = InMemorySaver()
    early = nodes(bench, session, EARLY)
    for _ in range(2):
        turn(saver, early)
    both = [*early, *nodes(bench, session, LATE)]
    for _ in range(2):
        turn(saver, both)
    return units(bench)


def test_a_role_that_is_made_later_shares_with_those_that_are_there(bench):
    """Its first request is cold in any case: it carries everybody's tools, and the others read what it wrote."""
    plain = late_critic(bench, None)
    session = bench.session(HANDBOOK)
    ours = late_critic(bench, session)
    both = ["check_0", "plan_0"]
    # The planner and the writer speak before the critic in its first turn.
    assert names(bench) == [["plan_0"]] * 6 + [both] * 4
    outcomes = [record.outcome for record in bench.provider.requests]
    assert [one.read_tokens > 2_000 for one in outcomes] == [False, *[True] * 5, False, *[True] * 3]
    # With tools of its own it would be 0.75, and 0.50 where the provider caches only what is marked.
    assert ours < (0.45 if bench.kind == "anthropic" else 0.74) * plain
    assert not [one for call in session.calls for one in call.reasons if one.why == "made_too_late"]


def test_another_thread_keeps_the_tools_that_it_began_with(chat):
    """The critic is never asked there: nothing that was written for it is written again, in a new thread neither."""
    session, saver = chat.session(HANDBOOK), InMemorySaver()
    early = nodes(chat, session, EARLY)
    turn(saver, early, "other")
    late = nodes(chat, session, LATE)
    turn(saver, late, "one")
    turn(saver, early, "other")
    turn(saver, early, "new")
    assert names(chat) == [["plan_0"]] * 2 + [["check_0"]] + [["plan_0"]] * 4
    assert all(record.outcome.read_tokens > 2_000 for record in chat.provider.requests[3:])
    keys = {record.json.get("prompt_cache_key") for record in chat.provider.requests}
    assert len(keys) == 1


def test_another_tenant_carries_no_tool_that_came_later_with_one(chat):
    """It may be made for that one, and say so; who brings it as well carries it."""
    session, saver = chat.session(HANDBOOK), InMemorySaver()
    early = nodes(chat, session, EARLY)
    turn(saver, early, scope="acme")
    both = [*early, *nodes(chat, session, LATE)]
    turn(saver, both, scope="acme")
    turn(saver, early, "two", scope="beta")
    assert names(chat)[-2:] == [["plan_0"]] * 2
    turn(saver, both, "three", scope="beta")
    turn(saver, early, "four", scope="beta")
    assert names(chat)[-2:] == [["check_0", "plan_0"]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("scoped", [True, False], ids=["tenants", "threads"])
@pytest.mark.parametrize("strict", [None, True])
def test_nobody_is_shown_anothers_tool_of_the_same_name(bench, strict, scoped):
    """Each has its own, made while a node runs: who has none of that name is shown none of somebody else's."""
    session, saver = bench.session(HANDBOOK), InMemorySaver()
    model = wrap_model(bench.model(), session)

    def node(role, tenant):
        told = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
        house = {"name": "house", "description": f"Asks the house of {tenant}.", "parameters": told}
        kit = {"planner": [house, *EARLY["planner"]], "writer": [], "critic": EARLY["planner"]}[role]

        def answer(state):
            said = [SystemMessage(f"You are the {role}.\n\n{HANDBOOK}"), *state["messages"]]
            return {"messages": [(model.bind_tools(kit, strict=strict) if kit else model).invoke(said)]}

        return role, forked(session, role=role)(answer)

    for tenant in ("acme", "beta") * 2:
        bench.provider.reset()
        made = [node(role, tenant) for role in ("planner", "writer", "critic")]
        turn(saver, made, tenant, scope=tenant if scoped else "")
        shown = [record.body for record in bench.provider.requests]
        assert b"the house of " + tenant.encode() in shown[0]
        other = {"acme": b"beta", "beta": b"acme"}[tenant]
        assert not [body for body in shown if b"the house of " + other in body]
    assert session.failures == {}


@pytest.mark.parametrize("built", [False, True], ids=["bound in a run", "built for each"])
@pytest.mark.parametrize("named", [False, True], ids=["one name", "other names"])
def test_no_thread_is_shown_a_tool_that_another_one_brought(chat, named, built):
    """Whoever's run brings a tool, what it says may be of that user, also where nobody names tenants."""
    session, saver = chat.session(HANDBOOK), InMemorySaver()
    turn(saver, nodes(chat, session, {"reader": [], "writer": []}), "first")
    chat.provider.reset()
    for user in ("alice", "bob", "carol") * 2:
        (tool,) = described(f"Looks into the inbox of {user}.")
        kits = {"writer": [], "planner": [{**tool, "name": f"look_{user}"} if named else tool]}
        turn(saver, (nodes if built else binding)(chat, session, kits), user)
        others = {"alice", "bob", "carol"} - {user}
        assert not [record for record in chat.provider.requests[-2:] for other in others if other in str(record.json)]
        assert f"inbox of {user}" in str(chat.provider.requests[-1].json)
    # A thread's own it carries, where the others' is of another name.
    assert [len(one) for one in names(chat)][6::2] == ([1] * 3 if named else [1, 0, 0])
    # Once each, what all threads have in common is written before such a tool and behind it.
    assert all(record.outcome.read_tokens > 2_000 for record in chat.provider.requests[6:])
    assert session.failures == {}


def test_roles_that_are_named_after_users_stop_sharing_their_tools(bench):
    """All are made before the first request, like a team; four threads without a common role show that it is none."""
    users = ("alice", "bob", "carol", "dave", "erin", "frank")
    session, saver = bench.session(HANDBOOK), InMemorySaver()
    kits = {user: [{**described(f"Looks into the inbox of {user}.")[0], "name": f"look_{user}"}] for user in users}
    made = nodes(bench, session, kits)
    for _ in range(2):
        for node in made:
            turn(saver, [node], node[0])
    seen = [{user for user in users if f"inbox of {user}" in str(one.json)} for one in bench.provider.requests]
    assert max(map(len, seen)) > 1
    assert seen[3:] == [{user} for user in (*users[3:], *users)]
    assert session.failures == {}


@pytest.mark.parametrize("thread", ["one", "other"])
def test_another_process_carries_what_the_thread_carries(chat, thread):
    """What a thread grew to stands in its checkpoint, and that it did not: who made all roles first sends the same."""
    session, saver = chat.session(HANDBOOK), InMemorySaver()
    early = nodes(chat, session, EARLY)
    for name in ("one", "other"):
        turn(saver, early, name)
    turn(saver, nodes(chat, session, LATE), "one")
    turn(saver, early, "other")
    restarted = chat.session(HANDBOOK)
    made = nodes(chat, restarted, {**EARLY, **LATE})
    chat.provider.reset()
    turn(saver, made[:2], thread)
    assert names(chat) == [["check_0", "plan_0"] if thread == "one" else ["plan_0"]] * 2


def binding(bench, session, kits):
    """As ``nodes``, where each binds its tools while it runs."""
    model = bench.model() if session is None else wrap_model(bench.model(), session)

    def node(role):
        def answer(state):
            said = [SystemMessage(f"You are the {role}.\n\n{HANDBOOK}"), *state["messages"]]
            return {"messages": [(model.bind_tools(kits[role]) if kits[role] else model).invoke(said)]}

        return answer if session is None else forked(session, role=role)(answer)

    return [(role, node(role)) for role in kits]


@pytest.mark.slow
@pytest.mark.parametrize("role", ["planner", "writer", "critic"])
@pytest.mark.parametrize("scope", ["", "acme"])
def test_another_process_knows_the_tools_that_a_run_brought(bench, role, scope):
    """Whoever asks first sends what it sends where all have asked: what defines the tools is in the checkpoint."""
    session, saver = bench.session(HANDBOOK), InMemorySaver()
    kits = {**EARLY, **LATE}
    first = binding(bench, session, kits)
    for _ in range(2):
        turn(saver, first, scope=scope)
    _, _, config = turn(saver, first, scope=scope)
    graph = StateGraph(State).add_sequence(first).add_edge(START, first[0][0]).compile(checkpointer=saver)
    saved = graph.get_state(config).config
    # LangGraph's own configuration of a checkpoint does not say whose it is.
    saved["configurable"]["cacheprefix_scope"] = scope
    bench.provider.reset()

    def asked(session):
        made = [one for one in binding(bench, session, kits) if one[0] == role]
        graph = StateGraph(State).add_sequence(made).add_edge(START, role).compile(checkpointer=saver)
        graph.invoke({"messages": [HumanMessage("And now?")]}, saved)
        return bench.provider.requests[-1].json

    before, restarted = asked(session), bench.session(HANDBOOK)
    assert asked(restarted) == before
    assert names(bench)[0] == ["check_0", "plan_0"]
    assert session.failures == restarted.failures == {}


def described(*descriptions):
    """A tool of the planner's by each of these descriptions."""
    told = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
    return [{"name": "house", "description": text, "parameters": told} for text in descriptions]


def test_a_thread_is_shown_no_other_version_of_its_tool_than_it_has_carried(chat):
    """Where another tenant's is known of that name, the thread's other roles go without until its own is asked."""
    saver = InMemorySaver()
    acme, beta = ({"planner": described(f"Asks the house of {name}."), "writer": []} for name in ("acme", "beta"))
    turn(saver, binding(chat, chat.session(HANDBOOK), acme), "one", scope="acme")
    restarted = chat.session(HANDBOOK)
    turn(saver, binding(chat, restarted, beta), "two", scope="beta")
    chat.provider.reset()
    turn(saver, binding(chat, restarted, acme)[1:], "one", scope="acme")
    turn(saver, binding(chat, restarted, acme), "one", scope="acme")
    assert not [record for record in chat.provider.requests if b"beta" in record.body]
    turn(saver, binding(chat, restarted, beta), "two", scope="beta")
    assert not [record for record in chat.provider.requests[-2:] if b"acme" in record.body]
    assert restarted.failures == {}


def test_newer_code_brings_its_own_version_of_a_tool(chat):
    """The saved one stands until then, and both roles carry the newer one from there on."""
    saver = InMemorySaver()
    old, new = ({"planner": described(text), "writer": []} for text in ("The old way.", "The new way."))
    turn(saver, binding(chat, chat.session(HANDBOOK), old))
    restarted = chat.session(HANDBOOK)
    chat.provider.reset()
    turn(saver, binding(chat, restarted, new)[1:])
    for _ in range(2):
        turn(saver, binding(chat, restarted, new))
    shown = [[b"old way" in one.body, b"new way" in one.body] for one in chat.provider.requests]
    assert shown == [[True, False], *[[False, True]] * 4]
    assert chat.provider.requests[-1].outcome.read_tokens > 2_000
    assert restarted.failures == {}


def test_another_process_that_knows_more_tools_carries_those_that_the_thread_began_with(chat):
    """Its other roles are made before it is taken up there."""
    saver, session = InMemorySaver(), chat.session(HANDBOOK)
    for _ in range(2):
        turn(saver, nodes(chat, session, {**EARLY, "reader": []}))
    restarted = chat.session(HANDBOOK)
    made = nodes(chat, restarted, {**EARLY, **LATE, "reader": []})
    chat.provider.reset()
    turn(saver, [one for one in made if one[0] == "writer"])
    assert names(chat) == [["plan_0"]]


def test_large_tools_that_come_later_stay_with_their_role(chat):
    """Reading them with every request of the others would cost more than sharing saves, and the call says so."""
    session, saver = chat.session(HANDBOOK, mode="fork"), InMemorySaver()
    early = nodes(chat, session, EARLY)
    turn(saver, early)
    turn(saver, [*early, *nodes(chat, session, {"critic": tools("check", 90)})])
    assert [len(one) for one in names(chat)] == [1, 1, 1, 1, 90]
    assert "made_too_late check_0" in map(str, session.calls[-1].reasons)


def test_a_preview_says_which_tools_came_too_late(chat):
    """As the run says it: they are in nobody else's requests."""
    session, saver = chat.session(HANDBOOK), InMemorySaver()
    early = nodes(chat, session, EARLY)
    turn(saver, early)
    made = [*early, *nodes(chat, session, {"critic": tools("check", 90)})]
    _, graph, _ = turn(saver, made, "two")
    late = {(call.agent, one.name) for call in session.calls for one in call.reasons if one.why == "made_too_late"}
    foreseen = preview(graph, session, task="And now?")
    told = [(one.agent, why) for one in foreseen.requests for why in one.reasons]
    assert {(agent, why.name) for agent, why in told if why.why == "made_too_late"} == late
    assert ("critic", "check_0") in late


def test_a_role_with_a_late_tool_does_not_write_large_tools_of_others_again(chat):
    """Nobody has carried its tool yet, so that nothing is read with it: neither at first nor when others went ahead."""
    session, saver = chat.session(HANDBOOK), InMemorySaver()
    planner = nodes(chat, session, {"planner": tools("plan", 8), "writer": []})[:1]
    turn(saver, planner)
    critic = nodes(chat, session, {"critic": tools("check", 1, 60)})
    turn(saver, critic)
    for _ in range(3):
        turn(saver, planner)
    turn(saver, critic)
    assert [len(one) for one in names(chat)] == [8, 1, 8, 8, 8, 1]
    assert chat.provider.requests[-1].outcome.read_tokens > 2_000


def test_strict_names_tools_that_come_too_late(chat):
    """Where they stay outside, the user can make the role first."""
    session, saver = chat.session(HANDBOOK, mode="strict"), InMemorySaver()
    early = nodes(chat, session, EARLY)
    turn(saver, early)
    with pytest.raises(NotSharedError) as caught:
        turn(saver, nodes(chat, session, {"critic": tools("check", 90)}))
    assert {one.why for one in caught.value.reasons} == {"made_too_late"}


def test_a_question_beside_a_thread_carries_what_the_thread_carries(chat):
    """Not the tools that came later elsewhere."""
    session, saver = chat.session(HANDBOOK), InMemorySaver()
    early = nodes(chat, session, EARLY)
    _, graph, config = turn(saver, early)
    turn(saver, nodes(chat, session, LATE), "other")
    model = wrap_model(chat.model(), session)
    ask(model.bind_tools(EARLY["planner"]), "Where are we?", graph=graph, config=config)
    assert names(chat)[-1] == ["plan_0"]
    assert chat.provider.requests[-1].outcome.read_tokens > 2_000


def test_an_agent_that_was_alone_becomes_a_fork_when_another_comes(chat):
    """It had its own layout, which the other cannot read; from the other's first request on, both share."""
    session, saver = chat.session(HANDBOOK), InMemorySaver()
    first = nodes(chat, session, {"planner": EARLY["planner"]})
    turn(saver, first)
    both = [*nodes(chat, session, LATE), *first]
    for _ in range(2):
        turn(saver, both)
    assert names(chat) == [["plan_0"]] + [["check_0", "plan_0"]] * 4
    assert all(record.outcome.read_tokens > 2_000 for record in chat.provider.requests[2:])


def test_agents_of_a_named_team_share_when_they_are_made_one_after_another(bench):
    """The first one would be alone, in a layout that the second cannot read, were its team and tools not told."""
    (plan,), (check,) = EARLY["planner"], LATE["critic"]
    roles = {"planner": "You plan.", "critic": "You check."}
    session = Session(SharedPrefix(system=HANDBOOK, tools=[plan, check], roles=roles))
    said = {"messages": [HumanMessage("Please begin.", id="h")]}
    for role, kit in {"planner": [plan], "critic": [check]}.items():
        middleware = [PrefixMiddleware(session, role=role)]
        agent = create_agent(bench.model(), kit, system_prompt=f"{roles[role]}\n\n{HANDBOOK}", middleware=middleware)
        said = agent.invoke(said, {"configurable": {"thread_id": "one"}})
    assert names(bench) == [["check_0", "plan_0"]] * 2
    assert bench.provider.requests[1].outcome.read_tokens > 2_000


def _agents(session, model, *others):
    """Two agents that are made before the first request, the second with middleware beside ours."""
    (plan,), (check,) = EARLY["planner"], LATE["critic"]

    def weigh(pros: str, cons: str) -> str:
        """Weigh them."""
        return f"{pros}, {cons}"

    made, first = {}, PrefixMiddleware(session, role="planner")
    for role, kit in {"planner": [plan], "critic": [check, weigh]}.items():
        middleware = [*others, PrefixMiddleware(session, role=role)] if role == "critic" else [first]
        form = ToolStrategy(Verdict) if role == "critic" else None
        text = f"You are the {role}.\n\n{HANDBOOK}"
        made[role] = create_agent(model, kit, system_prompt=text, middleware=middleware, response_format=form)
    return made


class Recorder(AgentMiddleware):
    """Brings a tool, and changes no request."""

    def __init__(self):
        super().__init__()

        @tool
        def record(line: str) -> str:
            """Record a line."""
            return line

        self.tools = [record]


class Verdict(BaseModel):
    """What came of it."""

    score: int


def test_agents_that_are_made_first_share_from_the_first_request_on(bench):
    """LangChain tells a middleware of an agent's tools with each request alone: what it is made with is looked up."""
    session = bench.session(HANDBOOK)
    made = _agents(session, bench.model(), Recorder())
    assert {*session.adapter.prefix.tool_names} == {"plan_0", "check_0", "weigh", "record", "Verdict"}
    said = {"messages": [HumanMessage("Please begin.", id="h")]}
    made["planner"].invoke(said, {"configurable": {"thread_id": "one"}})
    bench.script(lambda asked: Reply("", tool_calls=(ToolCall("Verdict", {"score": 1}),)))
    out = made["critic"].invoke(said, {"configurable": {"thread_id": "one"}})
    first, second = names(bench)
    assert first == second
    assert out["structured_response"] == Verdict(score=1)
    assert bench.provider.requests[1].outcome.read_tokens > 2_000
    assert not session.failures


def test_an_observed_agent_tells_of_no_tool(chat):
    """Nothing is looked up where nothing is shared."""
    session = chat.session(HANDBOOK, mode="observe")
    _agents(session, chat.model(), Recorder())
    assert session.adapter.prefix.tool_names == ()


def test_tools_that_other_middleware_may_change_are_taken_as_they_are_asked_with(chat):
    """Deep agents' files have another description with the first request than they are made with."""
    session = chat.session(HANDBOOK)
    _agents(session, chat.model(), TodoListMiddleware())
    assert session.adapter.prefix.tool_names == ("plan_0",)


def test_what_langchain_refuses_as_tools_is_its_own_error(chat):
    """And no failure of ours."""
    session = chat.session(HANDBOOK)
    with pytest.raises(TypeError, match="not iterable"):
        create_agent(chat.model(), ToolNode([]), middleware=[PrefixMiddleware(session)])
    assert not session.failures


def planning(bench, session, tenant):
    """A tenant's own graph: its planner answers by a schema that speaks of the tenant, its writer by none."""
    model = wrap_model(bench.model(), session)
    form = create_model(f"Plan{tenant}", __doc__=f"A plan for the house of {tenant}.", x=(str, ...))

    def planner(state):
        asks = model.with_structured_output(form, method="function_calling", include_raw=True)
        asks.invoke([SystemMessage(f"You plan.\n\n{HANDBOOK}"), *state["messages"]])
        return {"messages": [HumanMessage("It is planned.")]}

    def writer(state):
        return {"messages": [model.invoke([SystemMessage(f"You write.\n\n{HANDBOOK}"), *state["messages"]])]}

    return [(node.__name__, forked(session, role=node.__name__)(node)) for node in (planner, writer)]


def test_no_tenant_is_shown_the_schema_of_a_graph_that_was_made_later_for_another(bench):
    """What its nodes will bind is known from their code, and not for whom."""
    session, saver = bench.session(HANDBOOK), InMemorySaver()
    acme = planning(bench, session, "acme")
    turn(saver, acme, "one", scope="acme")
    beta = planning(bench, session, "beta")
    bench.provider.reset()
    turn(saver, acme, "two", scope="acme")
    turn(saver, beta, "three", scope="beta")
    assert names(bench) == [["Planacme"], ["Planacme"], ["Planbeta"], ["Planbeta"]]
    assert session.failures == {}


@pytest.mark.parametrize("asked", [False, True], ids=["before any request", "later"])
def test_a_graph_that_is_made_in_a_run_may_have_its_users_own_tools(chat, asked):
    """Of one name with another schema, too: that is no mistake at set-up, and nobody else is shown them."""
    session, saver = chat.session(HANDBOOK), InMemorySaver()
    model = wrap_model(chat.model(), session)

    def worker(state, config):
        user = config["configurable"]["thread_id"]
        if user == "nobody":
            return {}

        @tool(description=f"Looks into the box of {user}.")
        def look(at: str) -> str:
            return at

        agent = subgraph(create_agent(model, [look], system_prompt=f"You work.\n\n{HANDBOOK}"), session, role="worker")
        return {"messages": agent.invoke(state)["messages"][-1:]}

    made = [("worker", worker), *nodes(chat, session, {"writer": []})]
    if asked:
        turn(saver, made[1:], "first")
    chat.provider.reset()
    for user in ("alice", "bob", "nobody"):
        turn(saver, made, user)
    shown = [str(record.json.get("tools", "")) for record in chat.provider.requests]
    assert "box of alice" in shown[0]
    assert "box of bob" in shown[2]
    assert not [text for text in shown[2:] if "alice" in text]
    assert "box of" not in shown[4]
    assert session.failures == {}


def test_a_schema_that_a_node_binds_in_a_run_is_its_users_own_from_the_first_request_on(chat):
    """A node that is made while a run is under way may be made for one user, and so may what its code binds."""
    session, saver = chat.session(HANDBOOK), InMemorySaver()
    model = wrap_model(chat.model(), session)
    chat.script(
        lambda asked: Reply(tool_calls=(ToolCall("Plan", {}),)) if asked.body.get("tool_choice") else Reply("Yes.")
    )

    def worker(state, config):
        if config["configurable"]["thread_id"] != "alice":
            return {}

        class Plan(BaseModel):
            """The plan of alice."""

        def plans(state):
            said = [SystemMessage(f"You plan.\n\n{HANDBOOK}"), *state["messages"]]
            model.with_structured_output(Plan, method="function_calling").invoke(said)

        forked(session, role="worker")(plans)(state)
        return {}

    made = [("worker", worker), *nodes(chat, session, {"writer": []})]
    for user in ("alice", "bob"):
        turn(saver, made, user)
    assert [b"The plan of alice" in record.body for record in chat.provider.requests] == [True, True, False]
    assert session.failures == {}


@pytest.mark.parametrize("order", ["one after the other", "both made first"])
@pytest.mark.parametrize("door", ["agents", "nodes"])
@pytest.mark.parametrize("theirs", ["one name", "other names", "the first alone", "the second alone"])
def test_what_is_made_anew_for_each_user_shows_nobody_anothers_tools(chat, theirs, door, order):
    """An application that makes its agents in each request, on one session, outside of all runs."""
    session = chat.session(HANDBOOK)
    model = chat.model()

    def made(user):
        (house,) = described(f"Looks into the house of {user}.")
        has = {"the first alone": user == "alice", "the second alone": user == "bob"}.get(theirs, True)
        kits = {"planner": [{**house, "name": f"look_{user}"} if theirs == "other names" else house][: int(has)]}
        if door == "nodes":
            parts = nodes(chat, session, {**kits, "writer": []})
            return StateGraph(State).add_sequence(parts).add_edge(START, "planner").compile(), has
        agents = [
            create_agent(
                model,
                kits.get(role, []),
                system_prompt=f"You are the {role} of {user}.\n\n{HANDBOOK}",
                middleware=[PrefixMiddleware(session, role=role)],
            )
            for role in ("planner", "writer")
        ]
        parts = list(zip(("planner", "writer"), agents, strict=True))
        return StateGraph(MessagesState).add_sequence(parts).add_edge(START, "planner").compile(), has

    users = ("alice", "bob") * 2
    first = {user: made(user) for user in users} if order == "both made first" else {}
    for user in users:
        chat.provider.reset()
        graph, has = first.get(user) or made(user)
        graph.invoke({"messages": [HumanMessage("And now?")]}, {"configurable": {"thread_id": user}})
        shown = [str(record.json.get("tools", "")) for record in chat.provider.requests]
        assert [f"house of {user}" in shown[0], len(shown)] == [has, 2]
        assert not [text for text in shown for other in {"alice", "bob"} - {user} if other in text]
    assert session.failures == {}
