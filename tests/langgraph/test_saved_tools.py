"""Tools that a run brought, as a thread's checkpoint defines them: whose they are, which version, in which form."""

from __future__ import annotations

import json

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from cacheprefix_langgraph.state import CHANNEL
from tests.langgraph.test_made_later import HANDBOOK, State, bench, binding, chat, described, names, nodes, turn

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
    assert sizes[-1] < sizes[1] + 100


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
        assert text in json.loads(saved(made, config)["tools"]["house"])["function"]["description"]


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
    values = graph.get_state(config).values
    restarted = chat.session(HANDBOOK)
    made = binding(chat, restarted, own)
    resumed = StateGraph(State).add_sequence(made[1:]).add_edge(START, "writer").compile()
    chat.provider.reset()
    broken = {**values[CHANNEL], "tools": {"house": record}}
    resumed.invoke({"messages": values["messages"], CHANNEL: broken}, {"configurable": {"thread_id": "broken"}})
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
