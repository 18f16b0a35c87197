"""``prefix_dag``: tasks with dependencies as a normal graph; failures, templates, order, length."""

import asyncio
import threading
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver

from cacheprefix import Caching, Session
from cacheprefix.errors import SetupError
from cacheprefix.server import Reply
from cacheprefix_langgraph import (
    CycleError,
    DuplicateTaskError,
    Task,
    UnknownDependencyError,
    dag_result,
    prefix_dag,
    wrap_model,
)
from cacheprefix_langgraph.teams.templates import fill_in
from cacheprefix_langgraph.teams.waves import waves_of
from tests.drawn import examples

HANDBOOK = "The handbook says that every statement needs a source. " * 90


class Said(BaseChatModel):
    """Answers with the last message in brackets; fails where that says so."""

    @property
    def _llm_type(self):
        return "said"

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        text = messages[-1].text
        if "fail" in text:
            raise ValueError("I was told to fail")
        return ChatResult(generations=[ChatGeneration(message=AIMessage(f"<{text}>"))])


def observing():
    """A session that knows the model and changes nothing."""
    return Session(mode="observe", caching=Caching(provider="exact"))


def run(tasks, how="invoke", values=None, **options):
    """The result of tasks on the scripted model."""
    graph = prefix_dag(Said(), tasks, session=observing(), **options)
    given = {"messages": [], "variables": values or {}}
    return dag_result(asyncio.run(graph.ainvoke(given)) if how == "ainvoke" else graph.invoke(given))


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_results_flow_along_dependencies(how):
    """Upstream results and variables are filled in; other braces stay, also those in results."""
    tasks = [
        Task("join", '{left} and {right} as {"json": {}} by {who}', ["left", "right"]),
        Task("left", "a {brace} of {who}"),
        Task("right", "b {{left}}"),
    ]
    result = run(tasks, how, {"who": "me {right}"}, variables={"brace": "pair", "who": "nobody"})
    assert result.text("left") == "<a pair of me {right}>"
    assert result.text("right") == "<b {left}>"
    assert result.text("join") == '<<a pair of me {right}> and <b {left}> as {"json": {}} by me {right}>'
    assert result.waves == (("left", "right"), ("join",))
    assert result.parallelized_count == 2
    assert result.wall_seconds > 0
    assert result.sequential_seconds == pytest.approx(sum(one.seconds for one in result.outcomes.values()))


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_a_failed_task_blocks_only_what_needs_it(how):
    """The rest runs; what is blocked says by whom and makes no call."""
    tasks = [
        Task("bad", "fail"),
        Task("good", "do"),
        Task("after_bad", "{bad}", ["bad"]),
        Task("after_both", "{after_bad} {good}", ["after_bad", "good"]),
        Task("after_good", "{good}", ["good"]),
    ]
    result = run(tasks, how)
    assert {key: one.status for key, one in result.outcomes.items()} == {
        "bad": "failed",
        "good": "completed",
        "after_bad": "blocked",
        "after_both": "blocked",
        "after_good": "completed",
    }
    assert result.parallelized_count == 2
    assert result.outcomes["bad"].error == "ValueError: I was told to fail"
    assert result.outcomes["after_both"].error == "needs after_bad"
    assert result.text("after_good") == "<<do>>"


def test_what_cannot_run_is_a_named_error():
    """Cycle, unknown dependency, the same id twice, a result nobody waits for: with the ids as attributes."""
    with pytest.raises(CycleError, match="a -> c -> b -> a") as cycle:
        prefix_dag(Said(), [Task("a", "", ["c"]), Task("b", "", ["a"]), Task("c", "", ["b"]), Task("d", "")])
    assert cycle.value.cycle == ("a", "c", "b", "a")
    with pytest.raises(CycleError, match="a -> a"):
        prefix_dag(Said(), [Task("a", "", ["a"])])
    with pytest.raises(UnknownDependencyError, match="'b' depends on 'x'") as unknown:
        prefix_dag(Said(), [Task("a", ""), Task("b", "", ["x"])])
    assert (unknown.value.task, unknown.value.dependency) == ("b", "x")
    with pytest.raises(DuplicateTaskError) as twice:
        prefix_dag(Said(), [Task("a", ""), Task("a", "")])
    assert twice.value.task == "a"
    with pytest.raises(SetupError, match="uses the result of 'a' and does not depend on it"):
        prefix_dag(Said(), [Task("a", ""), Task("b", "{a}")])
    with pytest.raises(SetupError, match="at least one task"):
        prefix_dag(Said(), [])


@pytest.mark.slow
def test_a_chain_of_1500_tasks_runs_to_its_end():
    """No recursion, and no recursion limit of the graph's."""
    tasks = [Task(f"t{n}", "go", [f"t{n - 1}"] if n else []) for n in range(1500)]
    result = run(tasks[::-1])
    assert len(result.waves) == 1500
    assert result.text("t1499") == "<go>"


def test_ids_that_langgraph_keeps_for_itself_are_fine():
    """Colons, bars, names of the state, unicode and blanks."""
    ids = ["a:b", "a_b", "a|b", "messages", "outcomes", "__start__", "Über sicht", "variables"]
    tasks = [Task(id_, "x") for id_ in ids] + [Task("all", " ".join(f"{{{id_}}}" for id_ in ids), ids)]
    assert run(tasks).text("all") == "<" + " ".join(["<x>"] * len(ids)) + ">"


def test_tasks_of_a_wave_overlap():
    """Three tasks that wait for one another only end when they run side by side."""
    meet = threading.Barrier(3, timeout=20)

    class Meeting(Said):
        def _generate(self, messages, stop=None, run_manager=None, **kwargs):
            meet.wait()
            return super()._generate(messages, stop, run_manager, **kwargs)

    graph = prefix_dag(Meeting(), [Task(name, "x") for name in "abc"], session=observing())
    result = dag_result(graph.invoke({"messages": []}))
    assert [one.status for one in result.outcomes.values()] == ["completed"] * 3
    assert result.wall_seconds < result.sequential_seconds


@pytest.mark.parametrize("bench", ["anthropic"], indirect=True)
@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_waits_at_the_gate_are_no_work_and_stand_in_the_report(bench, how):
    """Siblings wait for the one that writes their prefix: that is told per fan-out, and not taken for their work."""
    bench.slow(0.3)
    session = bench.session(HANDBOOK)
    graph = prefix_dag(wrap_model(bench.model(), session), [Task(name, "x") for name in "abc"])
    given = {"messages": [HumanMessage("go")]}
    result = dag_result(asyncio.run(graph.ainvoke(given)) if how == "ainvoke" else graph.invoke(given))
    waited = [one.waited for one in result.outcomes.values()]
    (fan_out,) = session.report().gate.fan_outs
    # Of the leader it is the time of a look.
    assert (sum(one > 0.05 for one in waited), fan_out.followed) == (2, 2)
    assert fan_out.leader in "abc"
    assert fan_out.seconds == pytest.approx(sum(waited))
    assert fan_out.saved_units == session.report().gate.saved_units > 0
    assert f"behind {fan_out.leader}: 2 followed" in str(session.report())
    spent = sum(one.seconds for one in result.outcomes.values())
    assert result.sequential_seconds == pytest.approx(spent - sum(waited))


def test_a_task_graph_is_drawn_streamed_and_resumed():
    """It goes on from its checkpoint without running what is done again."""
    asked = []

    class Interrupted(Said):
        def _generate(self, messages, stop=None, run_manager=None, **kwargs):
            asked.append(messages[-1].text)
            if len(asked) == 2:
                raise KeyboardInterrupt
            return super()._generate(messages, stop, run_manager, **kwargs)

    tasks = [Task("a", "one"), Task("b", "{a}", ["a"])]
    graph = prefix_dag(Interrupted(), tasks, session=observing(), checkpointer=InMemorySaver())
    assert "a --> b" in graph.get_graph().draw_mermaid()
    config = {"configurable": {"thread_id": "one"}}
    with pytest.raises(KeyboardInterrupt):
        graph.invoke({"messages": []}, config)
    updates = list(graph.stream(None, config, stream_mode="updates"))
    assert [list(update) for update in updates] == [["b"]]
    assert asked == ["one", "<one>", "<one>"]


@given(st.lists(st.sets(st.integers(0, 9), max_size=4), min_size=1, max_size=10), st.randoms())
@settings(max_examples=examples(60), deadline=None)
def test_every_wave_needs_only_earlier_ones(dependencies, random):
    """Whatever the order in which tasks are given; all tasks stand in exactly one wave."""
    tasks = [Task(str(n), "", [str(m) for m in needs if m < n]) for n, needs in enumerate(dependencies)]
    random.shuffle(tasks)
    done = set()
    for wave in waves_of(tasks):
        assert all(set(task.depends_on) <= done for task in wave)
        done |= {task.id for task in wave}
    assert done == {task.id for task in tasks}


@given(
    st.text(alphabet="{}ab \n", max_size=40),
    st.dictionaries(st.sampled_from(["a", "b"]), st.text("{}ab", max_size=5)),
)
@settings(max_examples=examples(100), deadline=None)
def test_filling_in_touches_nothing_but_known_places(template, values):
    """A template without a known name stays as it is."""
    filled = fill_in(template, values)
    if not any(f"{{{name}}}" in template for name in values):
        assert filled == template


def test_tasks_are_forks_of_one_prefix_on_the_wire(bench):
    """The handbook and the conversation first, then the task; later tasks read what the first one wrote."""
    bench.provider.simulator.script = lambda request: Reply("Done.")
    session = bench.session(HANDBOOK)
    tasks = [
        Task("facts", "List the facts.", instructions="You are exact."),
        Task("risks", "List the risks."),
        Task("note", "Write a note from {facts} and {risks}", ["facts", "risks"]),
    ]
    graph = prefix_dag(wrap_model(bench.model(), session), tasks)
    result = dag_result(graph.invoke({"messages": [HumanMessage("It is about the harbour.")]}))
    first, *rest = bench.prompts()
    head = len(first.tier("tools")) + len(first.tier("system")) + 1
    for prompt in rest:
        assert [s.data for s in prompt.sections[:head]] == [s.data for s in first.sections[:head]]
    assert all(record.outcome.read_tokens > 0 for record in bench.provider.requests[1:])
    assert {key: one.usage.calls for key, one in result.outcomes.items()} == {"facts": 1, "risks": 1, "note": 1}
    assert result.usage.cache_read_tokens == sum(r.outcome.read_tokens for r in bench.provider.requests)
    assert result.cost_units > 0


def test_the_order_of_tasks_makes_no_difference():
    """Six orders, one result."""
    tasks = [Task("a", "x"), Task("b", "{a}", ["a"]), Task("c", "{b}{a}", ["b", "a"])]
    assert len({run(list(order)).text("c") for order in permutations(tasks)}) == 1
