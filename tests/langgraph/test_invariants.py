"""The eight invariants of this adapter, each on the bytes that a provider recorded.

Prompts are compared in the order in which providers cache them (tools, system, messages), never as raw bodies: SDKs
serialise messages before tools, so raw bodies flatter.
"""

import warnings
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from cacheprefix import ToolResultBudget
from cacheprefix.prompt import chain, lane_key
from cacheprefix_langgraph import PrefixState, forked, wrap_model

HANDBOOK = "The handbook says that every statement needs a source. " * 90
ROLES = ("planner", "critic", "writer")

quick = settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=True,
)

words = st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40).filter(
    str.strip
)


@st.composite
def conversations(draw):
    """Messages as applications have them: words in any script, tool rounds, some with long results."""
    messages = [HumanMessage(draw(words))]
    for number in range(draw(st.integers(0, 3))):
        calls = range(draw(st.integers(1, 3)))
        ids = [f"c{number}_{call}" for call in calls]
        messages.append(
            AIMessage(
                draw(st.one_of(st.just(""), words)),
                tool_calls=[{"id": one, "name": "read_file", "args": {"path": draw(words)}} for one in ids],
            )
        )
        for one in ids:
            length = draw(st.sampled_from([1, 60]))
            messages.append(
                ToolMessage("\n".join(f"{line} {draw(words)}" for line in range(2)) * length, tool_call_id=one)
            )
        messages.append(AIMessage(draw(words)))
        messages.append(HumanMessage(draw(words)))
    return messages


class State(MessagesState, PrefixState):
    """Messages and the ledger."""


def build(bench, session, *, wrap=True, saver=None, roles=ROLES):
    """Roles in a row as nodes with a system message and tools of their own; each answer joins the conversation."""
    model = wrap_model(bench.model(), session) if wrap else bench.model()
    bound = {role: model.bind_tools(bench.tools if role != "critic" else bench.tools[:1]) for role in roles}
    graph = StateGraph(State)
    previous = START
    for number, role in enumerate(roles):

        def node(state, role=role):
            answer = bound[role].invoke([SystemMessage(f"You are the {role}.\n\n{HANDBOOK}"), *state["messages"]])
            return {"messages": [AIMessage(answer.text)]}

        graph.add_node(f"{role}{number}", forked(session, role=role)(node) if wrap else node)
        graph.add_edge(previous, f"{role}{number}")
        previous = f"{role}{number}"
    return graph.compile(checkpointer=saver)


def fresh(bench, **options):
    """A session and an empty provider."""
    bench.provider.reset()
    return bench.session(HANDBOOK, **options)


def budget(tokens=200):
    """The session option of a tool-result budget."""
    return {"budget": ToolResultBudget(max_tokens=tokens)}


def units(bench):
    """What the simulated provider charged for the input."""
    simulator = bench.provider.simulator
    return sum(
        record.outcome.cost_units(simulator.profile_for(record.model, record.api)) for record in bench.provider.requests
    )


@quick
@given(messages=conversations())
def test_1_every_fork_begins_with_the_prefix_in_one_lane_with_one_salt(bench, messages):
    """Byte for byte in cache order; every chain digest up to the boundary is the same."""
    session = fresh(bench, **budget())
    build(bench, session).invoke({"messages": messages})
    prompts = bench.prompts()
    profile = session.adapter.profile(prompts[0].model, bench.api)
    shared = len(prompts[0].sections) - 1
    head = [section.data for section in prompts[0].sections[:shared]]
    assert len({lane_key(prompt, profile.settings, provider="p", scope="") for prompt in prompts}) == 1
    for prompt in prompts:
        assert [section.data for section in prompt.sections[:shared]] == head
        assert chain(prompt, profile.settings)[shared - 1] == chain(prompts[0], profile.settings)[shared - 1]


@pytest.mark.slow
@quick
@given(messages=conversations())
def test_2_a_ledger_replays_to_the_same_bytes_in_another_session(bench, messages):
    """The checkpoint alone decides: process-wide memory, session and budget are new."""
    session = fresh(bench, **budget())
    saver, config = InMemorySaver(), {"configurable": {"thread_id": "one"}}
    build(bench, session, saver=saver, roles=("writer",)).invoke({"messages": messages}, config)
    for tokens in (50, 100_000):
        graph = build(bench, bench.session(HANDBOOK, **budget(tokens)), saver=saver, roles=("writer",))
        graph.invoke({"messages": [HumanMessage("Go on.")]}, config)
    first, *later = bench.prompts()
    for prompt in later:
        assert prompt.sections[: len(first.sections) - 1] == first.sections[:-1]


@quick
@given(messages=conversations())
def test_3_calls_and_results_stay_paired_in_order_and_nothing_is_empty(bench, messages):
    """Whatever is cut: each result behind its call, in the application's order."""
    session = fresh(bench, **budget(20))
    build(bench, session, roles=("planner",)).invoke({"messages": messages})
    body = bench.provider.requests[0].json
    calls, results = pairs_in(body)
    asked = [call["id"] for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    assert calls == results == asked
    assert all(section.data for section in bench.prompts()[0].sections)


def pairs_in(body):
    """Ids of tool calls and of results, in the order of a body of any of the three forms."""
    calls, results = [], []
    for message in body.get("messages") or body.get("input"):
        calls += [call["id"] for call in message.get("tool_calls") or []]
        if message.get("role") == "tool":
            results.append(message["tool_call_id"])
        if message.get("type") == "function_call":
            calls.append(message["call_id"])
        if message.get("type") == "function_call_output":
            results.append(message["call_id"])
        content = message.get("content")
        for block in content if isinstance(content, list) else []:
            if block.get("type") == "tool_use":
                calls.append(block["id"])
            if block.get("type") == "tool_result":
                results.append(block["tool_use_id"])
    return calls, results


@quick
@given(messages=conversations())
def test_4_observing_sends_the_very_same_bytes(bench, messages):
    """Not one byte differs from the application without us, whatever options the session has."""
    session = fresh(bench, mode="observe", compaction=100, **budget(20))
    build(bench, session, wrap=False).invoke({"messages": messages})
    build(bench, session).invoke({"messages": messages})
    plain, seen = bench.bodies[: len(ROLES)], bench.bodies[len(ROLES) :]
    assert plain == seen
    assert [call.agent for call in session.calls] == list(ROLES)


STEPS = {
    "rewrite": "cacheprefix_langgraph.calls.laid_out",
    "union": "cacheprefix_langgraph.calls.with_union",
    "views": "cacheprefix_langgraph.views.view_of",
    "boundary": "cacheprefix_langgraph.sending.boundary",
    "frame": "cacheprefix_langgraph.fork_context.ForkSettings.frame",
    "ledger": "cacheprefix_langgraph.entering.with_update",
    "conversation": "cacheprefix_langgraph.entering.conversation_of",
    "tracing": "cacheprefix_langgraph.calls.traced_config",
    "usage": "cacheprefix_langgraph.sending.usage_of",
    "gate": "cacheprefix.calls.begin.Requests.gate_key",
    "marks": "cacheprefix.calls.begin.plan_breakpoints",
    "decode": "cacheprefix.calls.state.decode",
}


@pytest.mark.parametrize("step", STEPS)
def test_5_whatever_breaks_inside_the_application_gets_its_answer(chat, step, monkeypatch):
    """Each of our own steps is made to raise; it is counted, named once, and what is sent is a whole request."""
    session = fresh(chat, **budget(20))
    graph = build(chat, session, roles=("planner", "writer"))

    def broken(*args, **kwargs):
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(STEPS[step], broken)
    result = [
        AIMessage("", tool_calls=[{"id": "c", "name": "read_file", "args": {}}]),
        ToolMessage("word " * 400, tool_call_id="c"),
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = graph.invoke({"messages": [HumanMessage("Begin."), *result]})
    assert len(out["messages"]) == 5
    assert [record.status for record in chat.provider.requests] == [200, 200]
    assert "broken on purpose" in " ".join(str(one.message) for one in caught)
    assert sum(session.failures.values()) >= 1
    assert all("You are the" in "".join(s.text for s in prompt.sections) for prompt in chat.prompts())


@pytest.mark.parametrize("system", [HANDBOOK, HANDBOOK[:900]], ids=["long", "below-minimum"])
@pytest.mark.parametrize("roles", [("planner",), ("planner", "critic"), ROLES], ids=["one", "two", "three"])
def test_6_a_finished_run_is_never_dearer(bench, system, roles, monkeypatch):
    """Against the same application without us; one role alone loses a write premium at most."""
    monkeypatch.setitem(globals(), "HANDBOOK", system)
    bench.provider.reset()
    build(bench, None, wrap=False, roles=roles).invoke({"messages": [HumanMessage("Please begin.")]})
    plain = units(bench)
    session = fresh(bench)
    build(bench, session, roles=roles).invoke({"messages": [HumanMessage("Please begin.")]})
    # Nobody knows beforehand that a role stays alone: its prefix may have been written for nothing, and its text is
    # put between two marks.
    loss = 0.25 * bench.provider.requests[0].outcome.written_tokens + 10 if len(roles) == 1 else 0
    assert units(bench) <= plain + loss


@quick
@given(messages=conversations())
def test_7_a_lane_only_grows_at_its_end(bench, messages):
    """Over turns of one thread: each request begins with the one before it, but for that one's tail."""
    session = fresh(bench, **budget())
    saver, config = InMemorySaver(), {"configurable": {"thread_id": "one"}}
    graph = build(bench, session, saver=saver, roles=("planner", "critic"))
    graph.invoke({"messages": messages}, config)
    graph.invoke({"messages": [HumanMessage("Go on.")]}, config)
    for before, after in pairwise(bench.prompts()):
        assert after.sections[: len(before.sections) - 1] == before.sections[:-1]


@quick
@given(messages=conversations())
def test_8_tenants_share_no_decision_and_reports_hold_no_text(bench, messages):
    """Two tenants with one thread id; nothing that was said is found in reports, notes or calls."""
    secret = "Zanzibar-4711"
    session = fresh(bench, **budget())
    config = {"configurable": {"thread_id": "one", "cacheprefix_scope": "acme"}}
    other = {"configurable": {"thread_id": "one", "cacheprefix_scope": "beta"}}
    graph = build(bench, session, roles=("planner", "critic"))
    graph.invoke({"messages": [HumanMessage(secret), *messages]}, config)
    graph.invoke({"messages": [HumanMessage("Other.")]}, other)
    assert secret not in str(session.report())
    assert secret not in repr(session.calls)
    assert session.adapter.known("one", "beta").ledger is not session.adapter.known("one", "acme").ledger
    assert not session.adapter.known("one", "beta").ledger.alters
    assert [call.verdict.cause for call in session.calls][2] != "hit"
