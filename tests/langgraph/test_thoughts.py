"""A thought that is a message of its own: OpenAI's Responses API takes it only with what was made from it behind it."""

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.graph import START, StateGraph

from cacheprefix import Compaction
from cacheprefix.server import Reply
from cacheprefix_langgraph import forked, wrap_model
from tests.langgraph.conftest import Bench
from tests.langgraph.test_made_later import State

HANDBOOK = "The handbook says that every statement needs a source. " * 150
MIND = "Mind each claim and say what it rests upon. " * 60


@pytest.fixture
def responses(servers):
    """The API under OpenAI's rules, under which a role's text keeps a place in the middle; the provider is strict."""
    bench = Bench("openai-responses", servers("openai"))
    bench.rules = "openai"
    bench.script(lambda request: Reply(f"Answer {request.index}."))
    yield bench
    bench.release()


def _thought(number):
    item = {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": "SEALED"}
    return AIMessage([item], id=f"t{number}")


def _called(number, *, path):
    call = {"name": "read_file", "args": {"path": path}, "id": f"call_{number}"}
    return [AIMessage("", tool_calls=[call]), ToolMessage("It was read. " * 80, tool_call_id=call["id"])]


def _asks(bench, *histories, **options):
    """A critic with a long text that asks for each history, one after the other, in one conversation."""
    session = bench.session(HANDBOOK, **options)
    session.adapter.join("another")
    model = wrap_model(bench.model(model="gpt-4.1", store=False), session).bind_tools(bench.tools)

    def critic(state):
        for history in histories:
            model.invoke([SystemMessage(f"{MIND}\n\n{HANDBOOK}"), *state["messages"], *history])

    graph = StateGraph(State).add_node("critic", forked(session, role="critic")(critic)).add_edge(START, "critic")
    graph.compile().invoke({"messages": [HumanMessage("Please begin. " * 50)]})
    # The fixture ``valid_requests`` looks at each body, too.
    assert [call.layout for call in session.calls] == ["fork"] * len(histories)
    assert session.failures == {}
    return session


def test_no_role_text_parts_a_thought_from_what_it_led_to(responses):
    """What the model answered behind the thought, and the application rewrote since the role asked last."""

    def said(word):
        return [_thought(1), AIMessage(f"{word}. " * 100)]

    _asks(responses, said("long"), [*said("cleared"), HumanMessage("And now?")])


@pytest.mark.parametrize("summarise", ["extract", "none"])
def test_a_compaction_parts_no_thought_from_what_it_led_to(responses, summarise):
    """Both go, or neither."""
    history = []
    for number in range(40):
        made = _called(number, path="a" * 100) if number % 2 else [AIMessage(f"Said {number}. " * 80)]
        history += [_thought(number), *made, *([HumanMessage(f"Question {number}?")] if number % 3 == 2 else [])]
    rules = Compaction(trigger=6_000, target=3_500, keep_turns=1)
    if summarise == "none":
        rules = Compaction(trigger=6_000, target=3_500, keep_turns=1, summarise=None)
    _asks(responses, history, compaction=rules)
    (body,) = responses.bodies
    assert 0 < body.count(b"rs_") < 40
