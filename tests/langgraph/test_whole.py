"""Leaders whose whole answer comes as a stream: who waits goes on, and nobody sees the stream."""

import asyncio
import operator
from typing import Annotated

import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from typing_extensions import TypedDict

from cacheprefix.layout import Pass
from cacheprefix.server import Fault, Reply
from cacheprefix_langgraph import forked, wrap_model

HANDBOOK = "The handbook says that every statement needs a source. " * 90


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Leaders look out for siblings for as long as a busy machine needs to start them, and go on with the first."""
    for look in (Pass.joined, Pass.joining):
        monkeypatch.setattr(look, "__defaults__", (2.0,))


class State(TypedDict, total=False):
    parts: Annotated[list, operator.add]


def fan(bench, later, model=None, session=None):
    """Three workers of one cold prefix; what each was answered."""
    session = session or bench.session(HANDBOOK)
    llm = wrap_model(model or bench.model(), session)

    def asked(_):
        return [SystemMessage(f"You work.\n\n{HANDBOOK}"), HumanMessage("Begin.")]

    @forked(session, role="worker")
    def work(given):
        return {"parts": [llm.invoke(asked(given))]}

    @forked(session, role="worker")
    async def awork(given):
        return {"parts": [await llm.ainvoke(asked(given))]}

    graph = StateGraph(State)
    graph.add_node("work", awork if later else work)
    graph.add_conditional_edges(START, lambda _: [Send("work", {"part": n}) for n in range(3)], ["work"])
    graph.add_edge("work", END)
    app = graph.compile()
    found = asyncio.run(app.ainvoke({"parts": []})) if later else app.invoke({"parts": []})
    return found["parts"], session


def streamed(bench):
    """Which of the requests asked for a stream."""
    return [bool(record.json.get("stream")) for record in bench.provider.requests]


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_the_leader_is_streamed_and_its_answer_is_a_whole_one(bench, later):
    """Its metadata are those of the others, who asked for no stream."""
    bench.script([Reply("An answer.")])
    bench.slow(0.05)
    parts, session = fan(bench, later)
    assert sum(streamed(bench)) == 1
    assert len({frozenset(part.response_metadata) for part in parts}) == 1
    assert all(part.text == parts[0].text and part.usage_metadata for part in parts)
    assert not session.failures


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_gateway_that_refuses_streams_is_asked_for_a_whole_answer(bench, later):
    """The application gets what it asked for, and that model's next leader is no stream."""
    refusing = Reply(fault=Fault(status=400, message="unknown field: stream_options"))
    bench.script(lambda request: refusing if request.asked.stream else Reply("An answer."))
    bench.slow(0.05)
    parts, session = fan(bench, later)
    assert len(parts) == 3
    assert streamed(bench).count(True) == 1
    assert not session.failures


def test_a_request_that_is_refused_either_way_forbids_no_later_stream(bench):
    """It was not the stream that the provider did not like; the error is the application's."""
    bench.slow(0.05)
    session = bench.session(HANDBOOK)
    model = wrap_model(bench.model(), session)
    found = []
    for reply in (Reply(fault=Fault(status=400, message="too long")), Reply("An answer.")):
        bench.script(lambda request, reply=reply: reply)
        try:
            found += fan(bench, later=False, model=model, session=session)[0]
        except Exception as error:
            found.append(getattr(error, "status_code", None))
        found.append(any(streamed(bench)))
        bench.provider.reset()
    assert found[:2] == [400, True]
    assert [getattr(one, "text", one) for one in found[2:]] == ["An answer."] * 3 + [True]


def of_the_application(model, *, drafts=False):
    """The model, of a class of the application's that looks at each whole answer, and may have it written twice."""
    base = type(model)

    class Checked(base):
        def _generate(self, messages, stop=None, run_manager=None, **kwargs):
            if drafts:
                base._generate(self, [*messages, HumanMessage("A draft will do.")], ["END"], None, **kwargs)
            return checked(base._generate(self, messages, stop, run_manager, **kwargs))

        async def _agenerate(self, messages, stop=None, run_manager=None, **kwargs):
            if drafts:
                await base._agenerate(self, [*messages, HumanMessage("A draft will do.")], ["END"], None, **kwargs)
            return checked(await base._agenerate(self, messages, stop, run_manager, **kwargs))

    def checked(result):
        result.generations[0].message.content = "Checked."
        return result

    model.__class__ = Checked
    return model


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_leader_of_a_class_that_looks_at_whole_answers_is_not_streamed(bench, later):
    """What an application's own class does with an answer it does with each, the leader's too."""
    bench.script([Reply("An answer.")])
    bench.slow(0.05)
    parts, session = fan(bench, later, of_the_application(bench.model()))
    assert [part.content for part in parts] == ["Checked."] * 3
    assert streamed(bench) == [False] * 3
    assert not session.failures


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_class_that_asks_for_more_than_it_was_asked_for_gets_that(bench, later):
    """The body that was made before the class asks is for the messages and stop words that it was called with alone."""
    bench.script([Reply("An answer.")])
    parts, session = fan(bench, later, of_the_application(bench.model(), drafts=True))
    assert len(parts) == 3
    assert sorted(b"A draft will do." in body for body in bench.bodies) == [False] * 3 + [True] * 3
    if bench.api != "openai-responses":  # which knows no stop words
        assert sorted(b'"END"' in body for body in bench.bodies) == [False] * 3 + [True] * 3
    assert all(body.count(b"You work.") == 1 for body in bench.bodies)
    assert not session.failures
