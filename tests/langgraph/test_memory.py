"""Session memory: what a fork finds worth remembering, merged into a store or a file."""

import asyncio
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore

from cacheprefix.errors import NotSharedError, SetupError, StoreError
from cacheprefix.server import Fault, Reply
from cacheprefix_langgraph import (
    FileMemory,
    MemoryUpdate,
    PrefixState,
    SessionMemory,
    StoreMemory,
    forked,
    memory_node,
    read_update,
    wrap_model,
)
from tests.drawn import examples

ONE = pytest.mark.parametrize("bench", ["anthropic"], indirect=True)
"""For what does not depend on the provider's form of messages."""

HANDBOOK = "The handbook says that every statement needs a source. " * 90
UPDATE = {"additions": {"preferences": ["short answers"], "task_state": ["half done"]}, "rationale": "said so"}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(UPDATE),
        "```json\n" + json.dumps(UPDATE, indent=2) + "\n```",
        "Sure {as asked}:\n" + json.dumps(UPDATE) + "\nAnything else?",
        json.dumps(UPDATE)[:-1] + ",}",
        json.dumps(UPDATE["additions"]),
        json.dumps({"additions": {"Preferences": "short answers", "task_state": [{"text": "half  done"}], "x": ["y"]}}),
    ],
)
def test_an_update_is_read_whatever_stands_around_it(text):
    """Fenced, with words around it, with a comma too many, without the frame, with other shapes inside."""
    update = read_update(text)
    assert update.understood
    assert dict(update.additions) == {"preferences": ("short answers",), "task_state": ("half done",)}


@pytest.mark.parametrize(
    "text", ["", "no", "{", "[1, 2]", "{" * 5000, '{"additions": 3}', "null", '{"additions": {"x": [null]}}']
)
def test_an_answer_that_cannot_be_read_changes_nothing(text):
    """No error, no entry."""
    memory = SessionMemory(preferences=("a",))
    assert memory.updated(read_update(text)) == memory


def test_removals_come_first_and_nothing_stands_twice():
    """Case, spaces and a full stop make no difference; order is kept."""
    memory = SessionMemory(task_state=("Half done.", "Tests  missing"), artifacts=("a.py",))
    update = MemoryUpdate(
        additions={"task_state": ("done", "tests missing."), "artifacts": ("A.py", "b.py")},
        removals={"task_state": ("half done",), "preferences": ("never there",)},
    )
    after = memory.updated(update)
    assert after == SessionMemory(task_state=("Tests  missing", "done"), artifacts=("a.py", "b.py"))
    assert after.to_markdown() == "## Task state\n- Tests  missing\n- done\n\n## Artifacts\n- a.py\n- b.py"


@pytest.mark.slow
@given(st.text())
@settings(max_examples=examples(60), deadline=None)
def test_no_id_leads_out_of_the_folder(id_):
    """Every id is one plain name inside it, and other ids have other names."""
    keeper = FileMemory("memories")
    path = keeper.path(id_)
    assert path.parent == keeper.folder
    assert path.name not in ("", ".", "..")
    assert keeper.path(id_ + "x") != path
    assert len(path.name) < 80


def test_a_file_is_kept_between_sessions_and_a_foreign_one_is_named(tmp_path):
    """Loaded by a second keeper; nothing else lies in the folder; a broken file is an error, not a loss."""
    ids = ["../../etc/passwd", "a/b", "a_b", "..", "Straße", "\ud800"]
    for id_ in ids:
        FileMemory(tmp_path / "m").merge(id_, MemoryUpdate({"preferences": (id_,)}))
    assert [FileMemory(tmp_path / "m").load(id_).preferences for id_ in ids] == [(id_,) for id_ in ids]
    assert len(list((tmp_path / "m").iterdir())) == len(ids)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert not FileMemory(tmp_path / "m").load("new")
    FileMemory(tmp_path / "m").path("a/b").write_text("half a fi", "utf-8")
    with pytest.raises(StoreError, match="move the file away"):
        FileMemory(tmp_path / "m").load("a/b")


class State(MessagesState, PrefixState):
    pass


def graph_with(bench, session, store=None, **options):
    """A reader and then the memory."""
    model = wrap_model(bench.model(), session)

    def speak(state):
        return {"messages": [AIMessage(model.invoke([SystemMessage("You read."), *state["messages"]]).text)]}

    graph = StateGraph(State)
    graph.add_node("speak", forked(session, role="reader")(speak))
    graph.add_node("remember", memory_node(model, **options))
    graph.add_edge(START, "speak")
    graph.add_edge("speak", "remember")
    return graph.compile(store=store)


def answering(request):
    """A memory for those who ask for one."""
    return Reply("```json\n" + json.dumps(UPDATE) + "\n```" if "Pause the task" in request.tail else "Understood.")


CONFIG = {"configurable": {"thread_id": "one"}}
HELLO = {"messages": [HumanMessage("Keep it short, please.")]}


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_fork_remembers_and_leaves_the_state_alone(bench, later):
    """It reads the conversation from the cache; the graph's own store holds the memory under the thread's id."""
    bench.script(answering)
    store = InMemoryStore()
    session = bench.session(HANDBOOK)
    graph = graph_with(bench, session, store)
    out = asyncio.run(graph.ainvoke(HELLO, CONFIG)) if later else graph.invoke(HELLO, CONFIG)
    assert [message.text for message in out["messages"]] == ["Keep it short, please.", "Understood."]
    memory = StoreMemory(store).load("one")
    assert memory == SessionMemory(preferences=("short answers",), task_state=("half done",))
    parent, fork = bench.prompts()
    assert fork.sections[: len(parent.sections) - 1] == parent.sections[:-1]
    assert bench.provider.requests[1].outcome.read_tokens > 0
    assert session.calls[-1].purpose == "memory_update"


@ONE
def test_the_next_session_is_told_what_is_known(bench, tmp_path):
    """The fork sees the memory so far, and whose memory it is may come from the state."""
    bench.script(answering)
    keeper = FileMemory(tmp_path)
    keeper.merge("Ada", MemoryUpdate({"project_facts": ("the harbour is closed",)}))
    graph = graph_with(bench, bench.session(HANDBOOK), keeper=keeper, id=lambda state: "Ada")
    graph.invoke(HELLO, CONFIG)
    assert "the harbour is closed" in bench.prompts()[1].sections[-1].text
    assert keeper.load("Ada").preferences == ("short answers",)


@ONE
def test_a_memory_that_fails_fails_alone(bench, tmp_path):
    """A refused call, a broken file, an answer without an object: the graph goes on, the report says so."""
    session = bench.session(HANDBOOK)
    graph = graph_with(bench, session, keeper=FileMemory(tmp_path))
    bench.script(lambda request: Reply(fault=Fault(status=400)) if "Pause the task" in request.tail else Reply("ok"))
    with pytest.warns(UserWarning, match="memory"):
        graph.invoke(HELLO, CONFIG)
        asyncio.run(graph.ainvoke(HELLO, CONFIG))
    assert session.failures == {"memory": 2}
    bench.script(lambda request: Reply("I would rather not."))
    graph.invoke(HELLO, CONFIG)
    assert any("held no JSON object" in note for note in session.report().notes)
    assert not list(tmp_path.iterdir())
    FileMemory(tmp_path).path("one").write_text("{", "utf-8")
    assert graph.invoke(HELLO, CONFIG)["messages"][-1].text == "I would rather not."
    assert session.failures == {"memory": 3}


@ONE
@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_strict_mode_refuses_a_memory_that_cannot_share(bench, tmp_path, later):
    """The user can mend that it asks another model than all others; it is no failure to be passed over."""
    session = bench.session(HANDBOOK, mode="strict")
    model = wrap_model(bench.model(), session)

    def speak(state):
        return {"messages": [AIMessage(model.invoke([SystemMessage("You read."), *state["messages"]]).text)]}

    graph = StateGraph(State)
    graph.add_node("reader", forked(session, role="reader")(speak))
    graph.add_node("critic", forked(session, role="critic")(speak))
    other = bench.model(model="gpt-5.6-mini")
    graph.add_node("remember", memory_node(other, session=session, keeper=FileMemory(tmp_path)))
    graph.add_edge(START, "reader")
    graph.add_edge("reader", "critic")
    graph.add_edge("critic", "remember")
    team = graph.compile()
    with pytest.raises(NotSharedError) as caught:
        asyncio.run(team.ainvoke(HELLO, CONFIG)) if later else team.invoke(HELLO, CONFIG)
    assert [one.why for one in caught.value.reasons] == ["other_model"]
    assert session.failures == {}


@ONE
def test_a_graph_without_a_place_to_remember_in_is_told(bench):
    """At the first run, with what to do."""
    with pytest.raises(SetupError, match=r"compile the graph with store"):
        graph_with(bench, bench.session(HANDBOOK)).invoke(HELLO)


@ONE
@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_run_without_a_thread_has_a_memory_of_its_own(bench, later):
    """What one person's run remembered is in no other's prompt, though they say the very same; a run keeps its own."""

    def remembering(request):
        if "Pause the task" not in request.tail:
            return Reply("Understood.")
        user = "alice" if len(bench.provider.requests) < 4 else "bob"
        return Reply(json.dumps({"additions": {"preferences": [f"calls the harbour {user}-value"]}}))

    bench.script(remembering)
    store, session = InMemoryStore(), bench.session(HANDBOOK)
    model = wrap_model(bench.model(), session)

    def speak(state):
        return {"messages": [AIMessage(model.invoke([SystemMessage("You read."), *state["messages"]]).text)]}

    graph = StateGraph(State)
    graph.add_node("speak", forked(session, role="reader")(speak))
    graph.add_node("remember", memory_node(model))
    graph.add_node("again", memory_node(model))
    graph.add_edge(START, "speak")
    graph.add_edge("speak", "remember")
    graph.add_edge("remember", "again")
    app = graph.compile(store=store)

    async def both():
        for _ in range(2):
            await app.ainvoke(HELLO) if later else app.invoke(HELLO)

    asyncio.run(both())
    bodies = [record.body.decode() for record in bench.provider.requests]
    assert len(bodies) == 6
    assert not any("alice" in body for body in bodies[3:])
    assert ["bob" in body for body in bodies] == [False] * 5 + [True]
    assert len([item for space in store.list_namespaces() for item in store.search(space)]) == 2
    assert not session.failures


@ONE
def test_tenants_with_the_same_thread_id_have_memories_of_their_own(bench, tmp_path):
    """One folder takes all memories, and what one tenant's run remembered is in no other's prompt."""

    def remembering(request):
        user = "bob" if "I am Bob" in request.text else "alice"
        kept = json.dumps({"additions": {"preferences": [f"calls the harbour {user}-value"]}})
        return Reply(kept if "Pause the task" in request.tail else "Understood.")

    bench.script(remembering)
    model, graph = wrap_model(bench.model(), bench.session(HANDBOOK)), StateGraph(State)
    graph.add_node("remember", memory_node(model, keeper=FileMemory(tmp_path)))
    app = graph.add_edge(START, "remember").compile()
    for tenant in ("alice", "bob", "alice"):
        config = {"configurable": {"thread_id": "one", "cacheprefix_scope": tenant}}
        app.invoke({"messages": [HumanMessage(f"I am {tenant.title()}.")]}, config)
    said = [re.findall("(alice|bob)-value", record.body.decode()) for record in bench.provider.requests]
    assert said == [[], [], ["alice"]]


def test_a_memory_under_a_limit_shows_the_newest_entries_first():
    """No list pushes the newest of another one out, and what is left out is the oldest."""
    memory = SessionMemory(tuple(f"likes {n}" for n in range(50)), ("the repo is a monorepo",))
    text = memory.to_markdown(40, count=lambda said: len(said.split()))
    assert len(text.split()) <= 40
    lines = text.splitlines()
    assert lines[:3] == ["## Preferences", "- likes 49", "- likes 48"]
    assert "- the repo is a monorepo" in lines
    assert "- likes 0" not in lines
    assert memory.to_markdown(10**6).count("\n- ") == 51
