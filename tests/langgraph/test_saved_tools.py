"""Tools that a run brought, as a thread's checkpoint defines them: whose they are, which version, in which form."""

from __future__ import annotations

import json

import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import CachePolicy
from pydantic import BaseModel

from cacheprefix.server import Reply, ToolCall
from cacheprefix_langgraph import forked, wrap_model
from cacheprefix_langgraph.state import CHANNEL
from tests.langgraph.conftest import RULES
from tests.langgraph.test_made_later import (
    HANDBOOK,
    State,
    Untooled,
    bench,
    binding,
    chat,
    described,
    names,
    nodes,
    turn,
)

__all__ = ["bench", "chat"]
SCHEMA = {
    "type": "object",
    "properties": {"at": {"type": "string"}},
    "required": ["at"],
    "additionalProperties": False,
}
FORMS = {
    "strict": {"description": "Asks the house.", "parameters": SCHEMA, "strict": True},
    "undescribed": {"parameters": SCHEMA},
}


def kits(*descriptions):
    """For each of these descriptions, a planner with a tool of that description, and a writer without any."""
    return [{"planner": described(text), "writer": []} for text in descriptions]


def shown(bench, *texts):
    """Which of these texts each request holds."""
    return [[text.encode() in record.body for text in texts] for record in bench.provider.requests]


def saved(graph, config):
    """The decisions in a thread's newest checkpoint."""
    return graph.get_state(config).values[CHANNEL]


def defined(graph, config, name="house"):
    """What defines a tool there, and the key that it stands under."""
    (found,) = [(key, text) for key, text in saved(graph, config)["tools"].items() if key.endswith(f".{name}")]
    return found


def test_no_tenant_is_shown_the_version_that_came_in_place_of_its_own(chat):
    """Its thread was resumed, another tenant brings its own tool of that name, and it begins another thread."""
    saver = InMemorySaver()
    acme, beta = kits("The house of acme.", "The house of beta.")
    turn(saver, binding(chat, chat.session(HANDBOOK), acme), "one", scope="acme")
    restarted = chat.session(HANDBOOK)
    turn(saver, binding(chat, restarted, acme)[1:], "one", scope="acme")
    turn(saver, binding(chat, restarted, beta), "two", scope="beta")
    chat.provider.reset()
    turn(saver, binding(chat, restarted, acme)[1:], "three", scope="acme")
    assert shown(chat, "beta") == [[False]]
    assert restarted.failures == {}


@pytest.mark.parametrize("scoped", [False, True], ids=["threads", "tenants"])
@pytest.mark.parametrize("restarted", [False, True], ids=["same process", "another process"])
def test_a_node_that_langgraph_answers_from_its_cache_brings_no_tool_of_another(chat, scoped, restarted):
    """What is kept of a node is all that it wrote, the decisions of the run that it was written in among them."""
    cache, saver, session = InMemoryCache(), InMemorySaver(), chat.session(HANDBOOK)
    for tenant, kit in zip(("acme", "beta"), kits("The house of acme.", "The house of beta."), strict=True):
        (planner, planning), writer = binding(chat, session, kit)
        graph = StateGraph(State).add_node(planner, planning, cache_policy=CachePolicy(key_func=lambda _: "asked"))
        made = graph.add_sequence([writer]).add_edge(START, planner).add_edge(planner, writer[0])
        app = made.compile(checkpointer=saver, cache=cache)
        config = {"configurable": {"thread_id": tenant, "cacheprefix_scope": tenant if scoped else ""}}
        app.invoke({"messages": [HumanMessage("And now?")]}, config)
        session = chat.session(HANDBOOK) if restarted else session
    assert shown(chat, "acme") == [[True], [True], [False]]
    assert names(chat)[2] == []


@pytest.mark.parametrize("again", range(3))
def test_another_process_carries_the_version_that_was_carried_last(chat, again):
    """Whatever the digests of the versions are."""
    saver = InMemorySaver()
    old, new = kits(f"The old way {again}.", f"The new way {again}.")
    turn(saver, binding(chat, chat.session(HANDBOOK), old))
    turn(saver, binding(chat, chat.session(HANDBOOK), new))
    chat.provider.reset()
    turn(saver, binding(chat, chat.session(HANDBOOK), new)[1:])
    assert shown(chat, "old way", "new way") == [[False, True]]


def test_versions_that_are_carried_no_more_do_not_grow_the_saved_state(chat):
    """Each turn is another process's, and each has said the time in its tool's description."""
    saver, sizes = InMemorySaver(), []
    for minute in range(10, 18):
        one = {"planner": described(f"It is {minute} past. " * 50), "writer": []}
        _, graph, config = turn(saver, binding(chat, chat.session(HANDBOOK), one))
        sizes.append(len(json.dumps(saved(graph, config))))
    # Of what was said a few more sizes are kept, by the logarithm of its length.
    assert sizes[-1] < sizes[1] + 200


def test_siblings_that_bring_a_newer_version_leave_that_alone_in_the_saved_state(chat):
    """Both begin with the checkpoint that still has the older one."""
    saver, config = InMemorySaver(), {"configurable": {"thread_id": "one"}}
    for text in ("The new way.", "The old way.", "A middle way."):
        graph = StateGraph(State)
        kit = described(text)
        for name, node in binding(chat, chat.session(HANDBOOK), {"planner": kit, "critic": kit, "writer": []}):
            graph.add_node(name, node).add_edge(START, name)
        made = graph.compile(checkpointer=saver)
        made.invoke({"messages": [HumanMessage("And now?")]}, config)
        assert text in json.loads(defined(made, config)[1])["function"]["description"]


def test_newer_code_that_binds_its_tools_where_the_graph_is_built_shares_them(chat):
    """Those are everybody's: what the thread carried before hides them from nobody."""
    saver = InMemorySaver()
    old, new = kits("The old way.", "The new way.")
    turn(saver, binding(chat, chat.session(HANDBOOK), old))
    made = nodes(chat, chat.session(HANDBOOK), new)
    chat.provider.reset()
    for _ in range(2):
        turn(saver, made)
    assert names(chat) == [["house"]] * 4
    assert all(record.outcome.read_tokens > 2_000 for record in chat.provider.requests[1:])


@pytest.mark.parametrize("record", ["{no", "[]", "{}", '{"name": "other", "description": "", "parameters": {}}'])
def test_a_record_that_defines_no_tool_changes_no_request(chat, record):
    """Neither of its own thread nor of those that come after."""
    saver, [own] = InMemorySaver(), kits("The house.")
    _, graph, config = turn(saver, binding(chat, chat.session(HANDBOOK), own))
    values, (key, _) = graph.get_state(config).values, defined(graph, config)
    restarted = chat.session(HANDBOOK)
    made = binding(chat, restarted, own)
    resumed = StateGraph(State).add_sequence(made[1:]).add_edge(START, "writer").compile()
    chat.provider.reset()
    broken = {**values[CHANNEL], "tools": {key: record}}
    resumed.invoke({"messages": values["messages"], CHANNEL: broken}, config)
    turn(saver, made, "other")
    assert names(chat) == [[], ["house"], ["house"]]
    assert restarted.failures == {}


@pytest.mark.parametrize("form", FORMS)
def test_another_process_carries_a_tool_as_the_application_wrote_it(bench, form):
    """Also what stands beside its schema."""
    tool = {"type": "function", "function": {"name": "house", **FORMS[form]}}
    own, session, saver = {"planner": [tool], "writer": []}, bench.session(HANDBOOK), InMemorySaver()
    _, graph, config = turn(saver, binding(bench, session, own))
    before = graph.get_state(config).config
    bench.provider.reset()
    for one in (session, bench.session(HANDBOOK)):
        made = binding(bench, one, own)[1:]
        again = StateGraph(State).add_sequence(made).add_edge(START, "writer").compile(checkpointer=saver)
        again.invoke({"messages": [HumanMessage("And now?")]}, before)
    assert names(bench) == [["house"]] * 2
    assert bench.bodies[0] == bench.bodies[1]


OTHERS = {
    "other tools": {"planner": [{**described("A plan of beta.")[0], "name": "plan"}]},
    "other roles": {"critic": []},
}


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
def test_a_thread_carries_its_tools_where_another_tenant_asked_before_its_agents_were_made(chat, others):
    """By then they are shown to nobody but who has carried the very same."""
    saver, [acme] = InMemorySaver(), kits("The house of acme.")
    turn(saver, nodes(chat, chat.session(HANDBOOK), acme), "one", scope="acme")
    restarted = chat.session(HANDBOOK)
    turn(saver, nodes(chat, restarted, others), "two", scope="beta")
    writer = nodes(chat, restarted, acme)[1:]
    chat.provider.reset()
    for _ in range(2):
        turn(saver, writer, "one", scope="acme")
    assert names(chat) == [["house"]] * 2
    turn(saver, writer, "new", scope="gamma")
    assert names(chat)[2] == []


def test_a_thread_carries_no_version_that_newer_code_made_for_another_tenant(chat):
    """Of the version that it has carried its record holds a digest."""
    saver = InMemorySaver()
    acme, beta = kits("The house of acme.", "The house of beta.")
    turn(saver, nodes(chat, chat.session(HANDBOOK), acme), "one", scope="acme")
    restarted = chat.session(HANDBOOK)
    turn(saver, nodes(chat, restarted, {"critic": []}), "two", scope="gamma")
    nodes(chat, restarted, beta)
    chat.provider.reset()
    turn(saver, nodes(chat, restarted, {"writer": []}), "one", scope="acme")
    assert names(chat) == [[]]
    assert restarted.failures == {}


def test_a_record_of_roles_that_are_named_after_users_gives_no_tool_of_theirs_back(chat):
    """A thread that carried others' tools before that was seen carries its own alone, in another process too."""
    users = ("alice", "bob", "carol", "dave", "erin", "frank")
    kit = {user: [{**described(f"Looks into the inbox of {user}.")[0], "name": f"look_{user}"}] for user in users}
    session, saver = chat.session(HANDBOOK), InMemorySaver()
    made = nodes(chat, session, kit)
    for node in made * 2:
        _, graph, config = turn(saver, [node], node[0])
    _, graph, config = turn(saver, made[:1], "alice")
    assert [key for key, version in saved(graph, config)["tools"].items() if version] == [
        key for key in saved(graph, config)["tools"] if key.endswith(".look_alice")
    ]


class Plan(BaseModel):
    """The plan."""

    topics: list[str]


def planning(bench, session):
    """A writer, and a planner whose code binds a schema."""
    model = wrap_model(bench.model(), session)

    def planner(state):
        model.with_structured_output(Plan).invoke(
            [SystemMessage(f"You are the planner.\n\n{HANDBOOK}"), *state["messages"]]
        )
        return {}

    return [*nodes(bench, session, {"writer": []}), ("planner", forked(session, role="planner")(planner))]


def test_a_thread_carries_a_schema_of_its_nodes_where_another_tenant_asked_before_they_were_made(servers):
    """Then nobody looks into their code; the thread's record says what its requests carried."""
    bench, saver = Untooled("anthropic", servers(RULES["anthropic"])), InMemorySaver()
    plan = (ToolCall("Plan", {"topics": []}),)
    bench.script(lambda request: Reply("", plan) if request.asked.choice == "required" else Reply("Yes."))
    turn(saver, planning(bench, bench.session(HANDBOOK)), "one", scope="acme")
    restarted = bench.session(HANDBOOK)
    turn(saver, nodes(bench, restarted, {"critic": []}), "two", scope="beta")
    turn(saver, planning(bench, restarted), "one", scope="acme")
    assert names(bench) == [["Plan"], ["Plan"], [], ["Plan"], ["Plan"]]
    assert restarted.failures == {}
