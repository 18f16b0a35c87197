"""Applications that write Anthropic's shape: calls and results as content blocks of the model's and the user."""

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from cacheprefix import Compaction, ToolResultBudget
from cacheprefix.server import Reply
from cacheprefix_langgraph import forked, wrap_model
from tests.langgraph.conftest import RULES, Bench
from tests.langgraph.test_made_later import State

HANDBOOK = "The handbook says that every statement needs a source. " * 150
MIND = "Mind each claim and say what it rests upon. " * 40
THREAD = {"configurable": {"thread_id": "one"}}


def _round(*ids, text="A long result. " * 50):
    """The model's calls and the user's message with their results, as Anthropic's API has them."""
    calls = [{"type": "tool_use", "id": one, "name": "read_file", "input": {"path": one}} for one in ids]
    results = [{"type": "tool_result", "tool_use_id": one, "content": f"{one}: {text}"} for one in ids]
    return [AIMessage([{"type": "text", "text": "I read."}, *calls]), HumanMessage(results)]


def _cleared(messages):
    """The messages with all results cleared but those of the newest message."""

    def clear(block):
        return {**block, "content": "[cleared]"} if block.get("type") == "tool_result" else block

    return [
        message
        if isinstance(message.content, str)
        else message.model_copy(update={"content": list(map(clear, message.content))})
        for message in messages[:-1]
    ] + messages[-1:]


def _is_fork(body):
    return b'<role name=\\"critic\\">' in body


@pytest.fixture
def node(servers):
    """An app of one node that asks once behind each of the histories that it makes."""
    bench = Bench("anthropic", servers(RULES["anthropic"]))

    def run(histories, *, pinned=False, **options):
        bench.script([Reply("Done.")] * 9)
        session = bench.session(HANDBOOK, **options)
        session.adapter.join("another")
        model = wrap_model(bench.model(), session).bind_tools(bench.tools)

        def critic(state):
            for said in histories(list(state["messages"])):
                answer = model.invoke([SystemMessage(f"{MIND}\n\n{HANDBOOK}"), *said])
            return {"messages": [answer]}

        made = forked(session, role="critic", pinned=pinned)(critic)
        app = StateGraph(State).add_node("critic", made).add_edge(START, "critic").compile(checkpointer=InMemorySaver())
        return app, session, bench

    yield run
    bench.release()


def test_a_text_parts_no_raw_call_from_its_raw_result(node):
    """The role's text stands behind a result, which the application clears before it asks again."""

    def histories(said):
        for ids in (("a",), ("b", "c"), ("d",)):
            said = [*said, *_round(*ids)]
            yield _cleared(said)

    app, session, bench = node(histories)
    for _ in range(2):
        app.invoke({"messages": [HumanMessage("Please begin. " * 50)]}, THREAD)
    assert len(bench.bodies) == 6
    assert all(map(_is_fork, bench.bodies))
    assert session.failures == {}


@pytest.mark.parametrize("cleared", [True, False])
def test_a_pinned_text_parts_no_raw_call_from_its_raw_result(node, cleared):
    """The conversation that is shared ends where the node rewrote it, or between a call and what the node answers."""
    calls, results = _round("a", "b")

    def histories(said):
        yield _cleared([*said, HumanMessage("And?")]) if cleared else [*said, results]

    app, session, bench = node(histories, pinned=True)
    app.invoke({"messages": [HumanMessage("Please begin. " * 50), calls, *([results] if cleared else [])]}, THREAD)
    assert list(map(_is_fork, bench.bodies)) == [True]
    assert session.failures == {}


@pytest.mark.parametrize("keep_turns", [1, 2])
def test_a_compaction_and_cut_results_leave_valid_requests(node, keep_turns):
    """Raw calls and results go together, and are shortened as other tools' results are."""
    compaction = Compaction(4200, keep_turns=keep_turns, horizon=1e9, slack=0)
    app, session, bench = node(lambda said: [said], compaction=compaction)
    said = [HumanMessage("Please begin. " * 50)]
    for number in range(6):
        app.invoke({"messages": [*said, *_round(f"a{number}", f"b{number}")]}, THREAD)
        said = [HumanMessage(f"Question {number}?")]
    assert len(bench.bodies) == 6
    assert all(map(_is_fork, bench.bodies))
    assert b"a0: A long result" not in bench.bodies[-1]
    assert b"a5: A long result" in bench.bodies[-1]
    assert session.failures == {}


def test_a_raw_result_is_cut_and_counted_as_the_application_had_it(node):
    """Each of the results of one message by itself, under its tool's name."""
    app, session, bench = node(lambda said: [said], budget=ToolResultBudget(max_tokens=500, by_tool={"read_file": 60}))
    app.invoke({"messages": [HumanMessage("Please begin. " * 50), *_round("a", "b")]}, THREAD)
    (body,) = bench.bodies
    assert _is_fork(body)
    assert b"a: A long result" in body
    assert b"b: A long result" in body
    assert body.count(b"A long result. ") < 50
    assert session.failures == {}
    # The application's own request would have held both whole. Of a conversation under way the sum is unknown.
    total = session.report().total
    assert total.unmodified_units is None
    assert total.unsure.keys() == {"under_way"}
    assert session.adapter.shared.totals.calls[-1].unmodified_units > total.input_tokens + 2 * 100


def _holding_itself():
    block = {"type": "text", "text": "Hm."}
    block["in"] = block
    return [block]


BROKEN = {
    "nothing": lambda: None,
    "numbers": lambda: [1, {"type": "text", "text": "Hm."}],
    "a kind that is a list": lambda: [{"type": ["text"], "text": "Hm."}],
    "itself": _holding_itself,
}


@pytest.mark.invalid_requests  # as the application sends them without us
@pytest.mark.parametrize("content", BROKEN)
def test_a_message_that_cannot_be_read_goes_out_as_it_is(chat, content):
    """What its class makes of it is the application's: the same error, or the same bytes, and it is counted."""
    chat.script(["Yes."])
    found = []
    for session in (None, chat.session(HANDBOOK)):
        chat.provider.reset()
        said = HumanMessage("Begin.")
        said.content = BROKEN[content]()
        model = chat.model() if session is None else wrap_model(chat.model(), session)

        def node(state, model=model, said=said):
            return {"messages": [model.invoke([SystemMessage(f"You check.\n\n{HANDBOOK}"), said])]}

        forks = node if session is None else forked(session, role="critic")(node)
        app = StateGraph(State).add_node("critic", forks).add_edge(START, "critic").compile()
        with pytest.raises(Exception) as raised:
            app.invoke({"messages": []})
        found.append([type(raised.value), str(raised.value), *chat.bodies])
    assert found[1] == found[0]
    assert sum(session.failures.values()) > 0
