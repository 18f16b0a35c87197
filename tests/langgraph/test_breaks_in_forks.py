"""Cache breaks of forks: what our own layout moved is no break, and what the application itself changes still is."""

import json
import logging
import operator
from typing import Annotated, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Send

from cacheprefix.server import Reply
from cacheprefix_langgraph import PrefixState, forked, wrap_model

HANDBOOK = "The handbook says that every statement needs a source. " * 140
DOCUMENTS = {
    name: f"{name}: " + " ".join(f"{name} number {n} costs {3 * n} and lasts {n % 7} years." for n in range(1, 50))
    for name in ("lamp", "chair", "table")
}
QUESTIONS = ("What does the lamp cost?", "And the lamp number 4?", "What about the chair?", "Is the table dearer?")


class State(MessagesState, PrefixState):
    """Messages, and what decides on them."""


def shop(bench, session, *, forgets=()):
    """An answerer, and a checker who is asked at the end; each has the documents of the question in its system text.

    In the turns of ``forgets`` the checker leaves an earlier message away.
    """
    model, graph = wrap_model(bench.model(), session), StateGraph(State)

    def node(role):
        def ask(state):
            questions = [one.text for one in state["messages"] if one.type == "human"]
            found = next(text for name, text in DOCUMENTS.items() if name in questions[-1])
            system = SystemMessage(f"{HANDBOOK}\n\nYou are the {role}. Go by this alone: {found}")
            said = list(state["messages"])
            if role == "checker":
                said = [*said, HumanMessage("Check the last answer.")]
                if len(questions) in forgets:
                    del said[1:3]
            return {"messages": [model.invoke([system, *said])]}

        return forked(session, role=role)(ask)

    graph.add_sequence([("answerer", node("answerer")), ("checker", node("checker"))]).add_edge(START, "answerer")
    return graph.compile(checkpointer=InMemorySaver())


def talk(bench, graph, threads=("one", "two")):
    """Each thread asks all questions."""
    bench.script(lambda asked: Reply(f"By rule {len(asked.text)} it costs three euros and lasts two years. " * 10))
    for thread in threads:
        for question in QUESTIONS:
            graph.invoke({"messages": [HumanMessage(question)]}, {"configurable": {"thread_id": thread}})


def test_a_role_that_was_kept_and_moved_is_no_break_of_the_application(bench, caplog):
    """Its documents change, so that its text goes from where it stood to the end; and what is not marked was not to be.

    In the second thread all that was said is what was said in the first one.
    """
    session = bench.session(HANDBOOK)
    with caplog.at_level(logging.WARNING, "cacheprefix"):
        talk(bench, shop(bench, session))
    assert {call.layout for call in session.calls} >= {"fork"}
    assert [one for one in session.report().breaks if one.cause != "system_changed"] == []
    assert not [one for one in caplog.messages if "cache break" in one and "system_changed" not in one]


def test_a_message_that_the_application_takes_away_is_told_in_forks_too(bench):
    """The checker leaves out an answer that it was shown before."""
    session = bench.session(HANDBOOK)
    talk(bench, shop(bench, session, forgets=(4,)), threads=("one",))
    assert "history_truncated" in {call.verdict.cause for call in session.calls if call.agent == "checker"}


def test_a_system_text_that_changes_in_front_of_a_loop_is_told_as_the_application_has_it(bench):
    """In the fork it is the role's text that is another one, and what was said behind it is lost with it."""
    session = bench.session(HANDBOOK)
    model = wrap_model(bench.model(), session)
    session.adapter.join("checker")

    @forked(session, role="answerer", pinned=True)
    def answerer(state):
        said = list(state["messages"])
        for name in ("lamp", "lamp", "chair", "chair"):
            system = SystemMessage(f"{HANDBOOK}\n\nYou answer. Go by this alone: {DOCUMENTS[name]}")
            said += [model.invoke([system, *said]), HumanMessage("What else? " + "Think of all that counts. " * 300)]
        return {"messages": said[-2:-1]}

    StateGraph(State).add_node(answerer).add_edge(START, "answerer").compile().invoke({"messages": [QUESTIONS[0]]})
    assert [call.layout for call in session.calls] == ["fork"] * 4
    first, second, third, fourth = (call.verdict for call in session.calls)
    assert (third.cause, third.path) == ("system_changed", "system[0]")
    assert third.lost_tokens > 1_000
    assert not any(one.broken for one in (first, second, fourth))


class Review(TypedDict):
    """What a node is given to read, and what was found."""

    text: str
    found: Annotated[list, operator.add]


def review(bench, session):
    """Three readers of one role, each with a part of its own of the same text."""
    model, graph = wrap_model(bench.model(), session), StateGraph(Review)
    told = "You are the reader. " + " ".join(f"For point {n} name the line." for n in range(60))

    @forked(session, role="reader")
    def reader(state):
        part, text = state["found"], state["text"]
        said = [HumanMessage(text), HumanMessage(f"Check part {part}.")]
        return {"found": [model.invoke([SystemMessage(f"{told}\n\n{HANDBOOK}"), *said]).text]}

    def fan_out(state):
        return [Send("reader", {"text": state["text"], "found": part}) for part in (1, 2, 3)]

    graph.add_node("reader", reader)
    graph.add_conditional_edges(START, fan_out, ["reader"])
    return graph.compile()


@pytest.mark.parametrize("at_once", [1, 3])
def test_siblings_of_one_role_are_branches_of_one_conversation(bench, caplog, at_once):
    """What the first was asked comes no second time: the others' text stands in front of what each is asked."""
    session = bench.session(HANDBOOK)
    with caplog.at_level(logging.WARNING, "cacheprefix"):
        for thread in ("one", "two"):
            text = f"Contract {thread}: " + " ".join(f"clause {n} of {thread} says so;" for n in range(300))
            config = {"max_concurrency": at_once, "configurable": {"thread_id": thread}}
            review(bench, session).invoke({"text": text, "found": []}, config)
    # Of those that are asked at once the order decides which text stays.
    assert at_once > 1 or "role_kept" in {one.why for call in session.calls for one in call.reasons}
    assert [call.verdict.cause for call in session.calls if call.verdict.broken] == []
    assert not [one for one in caplog.messages if "cache break" in one]


CLERK = [AIMessage("It is on its way. " * 30), HumanMessage("And when does it come? " * 20)]
ASKS = HumanMessage("Given the conversation above, who should act next? Answer with one name. " * 9)


def supervise(bench, session, *requests):
    """A supervisor's requests in one thread, as they are, with the application's own mark behind its system text."""
    model = wrap_model(bench.model(), session)
    system = SystemMessage([{"type": "text", "text": HANDBOOK, "cache_control": {"type": "ephemeral"}}])

    @forked(session, role="supervisor")
    def supervisor(state):
        return {"messages": [AIMessage(model.invoke([system, *state["messages"]]).text)]}

    graph = StateGraph(MessagesState).add_node(supervisor).add_edge(START, "supervisor").compile()
    for messages in requests:
        graph.invoke({"messages": messages}, {"configurable": {"thread_id": "one"}})
    assert session.failures == {}
    return [call.verdict for call in session.calls]


@pytest.mark.parametrize(("merged_first", "cause"), [(True, "hit"), (False, "breakpoint_missing")])
def test_a_question_that_langchain_merges_into_a_message_is_no_edit(messages, merged_first, cause):
    """It ends each request: a block of the user's message in one of them, a message of its own in the other.

    What stands in front of it is lost where it is long enough and not marked, and that is said alone.
    """
    told = HumanMessage("My parcel has not arrived. " * 30)
    alone = [told, CLERK[0], ASKS]
    requests = [[told, ASKS], alone] if merged_first else [alone, [told, *CLERK, ASKS]]
    session = messages.session("", mode="observe")
    first, second = supervise(messages, session, *requests)
    heads = [json.loads(body)["messages"][-1]["content"] for body in messages.bodies]
    assert [isinstance(head, list) for head in heads] == ([True, False] if merged_first else [False, True])
    assert (first.cause, second.cause) == ("cold_start", cause)


def test_an_edit_is_named_beside_a_question_that_moved_on(messages):
    """What stood before it is other words the next time: that was lost, and it is said where."""
    requests = [[HumanMessage(f"{begins} parcel has not arrived. " * 30), *CLERK, ASKS] for begins in ("My", "The")]
    requests[1][2:2] = [HumanMessage("Quick, please."), AIMessage("Soon.")]
    _, second = supervise(messages, messages.session("", mode="observe"), *requests)
    assert (second.cause, second.path) == ("history_edited", "messages[0].content")
