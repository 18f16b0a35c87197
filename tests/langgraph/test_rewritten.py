"""An application that clears tool results which were read: each request is one that the provider takes."""

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ClearToolUsesEdit, ContextEditingMiddleware, wrap_model_call
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from cacheprefix.server import Reply, ToolCall
from cacheprefix_langgraph import PrefixMiddleware, forked, wrap_model
from tests.langgraph.test_made_later import State

HANDBOOK = "The handbook says that every statement needs a source. " * 150
MIND = "Mind each claim and say what it rests upon. " * 40
BEGIN = {"messages": [HumanMessage("Please begin. " * 50)]}
THREAD = {"configurable": {"thread_id": "one"}}


def _reads(*paths):
    """A reply that reads files, at the same time."""
    return Reply(tool_calls=tuple(ToolCall("read_file", {"path": path}, id=f"c-{path}") for path in paths))


def _told(call_id, text, *, by_user=False):
    """A tool's result: LangChain's message of it, or the block that Anthropic's API has in a message of the user's."""
    if by_user:
        return HumanMessage([{"type": "tool_result", "tool_use_id": call_id, "content": text}])
    return ToolMessage(text, tool_call_id=call_id)


def _cleared(messages):
    """The messages with all results cleared but the newest one."""
    blocks = [isinstance(one.content, list) and one.content and one.content[0].get("tool_use_id") for one in messages]
    return [
        _told(block or message.tool_call_id, "[cleared]", by_user=bool(block))
        if block or isinstance(message, ToolMessage)
        else message
        for message, block in zip(messages[:-1], blocks, strict=False)
    ] + messages[-1:]


def _is_fork(body):
    return b'<role name=\\"critic\\">' in body


@pytest.mark.parametrize("by_user", [False, True])
def test_a_node_that_clears_its_last_result_in_its_own_loop_sends_valid_requests(bench, by_user):
    """The role's text stands behind that result, as it was in the request before: it is not put behind its call."""
    if by_user and bench.api != "anthropic":
        pytest.skip("only Anthropic's API has results in messages of the user's")
    bench.script([_reads("a"), _reads("b"), _reads("c"), Reply("Done."), Reply("Still done.")])
    session = bench.session(HANDBOOK)
    session.adapter.join("another")
    model = wrap_model(bench.model(), session).bind_tools(bench.tools)

    def critic(state):
        said = list(state["messages"])
        while True:
            answer = model.invoke([SystemMessage(f"{MIND}\n\n{HANDBOOK}"), *_cleared(said)])
            said.append(answer)
            if not answer.tool_calls:
                return {"messages": said[len(state["messages"]) :]}
            said += [_told(call["id"], "A long result. " * 50, by_user=by_user) for call in answer.tool_calls]

    graph = StateGraph(State).add_node("critic", forked(session, role="critic")(critic)).add_edge(START, "critic")
    app = graph.compile(checkpointer=InMemorySaver())
    for _ in range(2):
        app.invoke(BEGIN, THREAD)
    # The provider is strict, and the fixture ``valid_requests`` looks at each body.
    assert len(bench.bodies) == 5
    assert all(map(_is_fork, bench.bodies))
    assert session.failures == {}


@pytest.mark.parametrize("ours_first", [False, True], ids=["editing first", "ours first"])
def test_an_agent_with_langchains_context_editing_sends_valid_requests(bench, ours_first):
    """On either side of ``PrefixMiddleware``, with one result and with several at once."""
    bench.script([Reply("Planned."), _reads("a"), _reads("b", "c"), _reads("d"), Reply("Done.")])
    session = bench.session(HANDBOOK)
    graph, before = StateGraph(MessagesState), START
    for name in ("planner", "critic"):
        editing = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=10, keep=1)])
        both = [editing, PrefixMiddleware(session, role=name)]
        agent = create_agent(
            wrap_model(bench.model(), session),
            bench.tools,
            system_prompt=f"You are the {name}. {MIND}\n\n{HANDBOOK}",
            name=name,
            middleware=both[::-1] if ours_first else both,
        )
        graph.add_node(name, agent)
        graph.add_edge(before, name)
        before = name
    graph.compile().invoke(BEGIN, THREAD)
    assert len(bench.bodies) == 5
    assert all(map(_is_fork, bench.bodies[1:]))
    assert b"[cleared]" in bench.bodies[-1]
    assert session.failures == {}


def _called(*ids):
    """The model's calls of tools, with these ids."""
    return AIMessage("", tool_calls=[{"name": "read_file", "args": {"path": one}, "id": one} for one in ids])


@pytest.mark.parametrize("cleared", [("a",), ("b",), ("a", "b"), ()])
def test_a_pinned_text_parts_no_call_from_its_results(bench, cleared):
    """The conversation that is shared ends where the node rewrote it, or between a call and what the node answers."""
    session = bench.session(HANDBOOK)
    session.adapter.join("another")
    model = wrap_model(bench.model(), session).bind_tools(bench.tools)
    results = [ToolMessage("A long result. " * 50, tool_call_id=one) for one in ("a", "b")]

    def critic(state):
        said = [SystemMessage(f"{MIND}\n\n{HANDBOOK}")]
        for message in [*state["messages"], *([] if cleared else results)]:
            clears = isinstance(message, ToolMessage) and message.tool_call_id in cleared
            said.append(message.model_copy(update={"content": "[cleared]"}) if clears else message)
        return {"messages": [model.invoke(said)]}

    pinned = forked(session, role="critic", pinned=True)(critic)
    app = StateGraph(State).add_node("critic", pinned).add_edge(START, "critic").compile()
    after = [*results, HumanMessage("And now?")] if cleared else []
    app.invoke({"messages": [*BEGIN["messages"], _called("a", "b"), *after]})
    assert list(map(_is_fork, bench.bodies)) == [True]
    assert session.failures == {}


def test_a_pinned_agents_text_parts_no_call_from_its_result_where_messages_were_removed(bench):
    """As a trimmer does in the agent's own loop: where it was entered lies among its own messages then."""
    bench.script([Reply("Planned."), _reads("a"), _reads("b"), _reads("c"), Reply("Done.")])
    session = bench.session(HANDBOOK)
    begun = [HumanMessage(f"Question {number}?") for number in range(3)]

    @wrap_model_call
    def trimmed(request, handler):
        kept = [begun[0], *request.messages[4:]] if len(request.messages) > 4 else request.messages
        return handler(request.override(messages=kept))

    graph, before = StateGraph(MessagesState), START
    for name in ("planner", "critic"):
        agent = create_agent(
            wrap_model(bench.model(), session),
            bench.tools,
            system_prompt=f"You are the {name}. {MIND}\n\n{HANDBOOK}",
            name=name,
            middleware=[trimmed, PrefixMiddleware(session, role=name, pinned=True)],
        )
        graph.add_node(name, agent)
        graph.add_edge(before, name)
        before = name
    graph.compile().invoke({"messages": begun})
    assert len(bench.bodies) == 5
    assert all(map(_is_fork, bench.bodies[1:]))
    assert session.failures == {}
