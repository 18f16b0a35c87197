"""Crews that are known beforehand: a task is a fork exactly where that costs less, and says why it is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cacheprefix.layout.known_crews import CrewAhead, CrewTask, KnownCrews, Part
from cacheprefix.layout.role_position import RolePosition
from cacheprefix.prompt import Reason
from tests.drawn import examples

BRIEF = Part("brief", 1_500)
tokens = st.integers(0, 5_000)


def task(agent: str, *, text: int = 40, holds: bool = True, results: int = 0, **given: Any) -> CrewTask:
    """A task on the brief, whose agent has so many tokens of text and which reads so many tokens of results."""
    return CrewTask(
        agent,
        Part(f"text of {agent}", text),
        Part("tools", 0),
        0,
        (),
        BRIEF.size * holds + results,
        (Part("opening", 20), BRIEF) if holds else (Part("opening", 20),),
        (Part(f"result of {results}", results),) if results else (),
        **given,
    )


def ahead(*tasks: CrewTask, **given: Any) -> CrewAhead:
    """A crew's run, which keeps all that requests begin with unless something else is said."""
    rules: dict[str, Any] = {"model": "m", "read": 0.1, "least": 0, "blocks": True, **given}
    return CrewAhead(tasks[0], lambda: tasks[1:], lambda: tasks, **rules)


sizes = st.fixed_dictionaries(dict.fromkeys("abc", st.sampled_from([20, 200, 700, 3_000])))
tasks = st.builds(
    task,
    st.sampled_from("abc"),
    holds=st.booleans(),
    results=st.sampled_from([0, 300, 2_000]),
    logs=st.booleans(),
)
crews = st.builds(
    lambda row, texts, **given: ahead(
        *(replace(one, text=Part(one.text.key, texts[one.agent])) for one in row), **given
    ),
    st.lists(tasks, min_size=1, max_size=6),
    sizes,
    read=st.floats(0.02, 0.9),
    least=st.sampled_from([0, 1_024]),
    blocks=st.booleans(),
    left=st.integers(0, 3),
    likely=st.sampled_from([0, 20]),
    repeats=st.integers(0, 3),
    loops=st.floats(0, 6),
    overhead=st.integers(0, 60),
    grows=st.integers(0, 800),
)


def play(one: CrewAhead, *, forks: bool) -> float:
    """What all tasks of a run cost one after the other without loops: each as it is decided, or unmodified."""
    known, units = KnownCrews(), 0.0
    row = [one.due, *one.later()]
    for at, due in enumerate(row):
        here = replace(one, due=due, later=lambda at=at: row[at + 1 :], grows=0)
        found = known.position(here) if forks else None
        place = found if isinstance(found, RolePosition) else None
        units += known.cost(here, place)
        known.send(here, place)
    return units


@settings(max_examples=examples(200), deadline=None)
@given(crews)
def test_a_crew_that_runs_once_is_not_dear(one) -> None:
    """By the reckoning's own account, with each task decided when it is due.

    In a few rows of hundred thousands (agents with long texts, some that hold what is shared and some that do not) a
    first fork is to be paid for by later ones that then cost less in the crew's own layout; in all others forks cost
    no more than unmodified.
    """
    once = replace(one, left=0, likely=0, repeats=0, grows=0)
    assert play(once, forks=True) <= play(once, forks=False) * 1.1


@settings(max_examples=examples(100), deadline=None)
@given(crews)
def test_a_task_is_placed_in_front_of_the_results_or_behind_or_says_why_not(one) -> None:
    """Short texts stand behind; what is refused says its numbers."""
    found = KnownCrews().position(one)
    if isinstance(found, Reason):
        assert found.why in {"alone", "role_costs_more", "little_to_share"}
        if found.why == "little_to_share":
            numbers = dict(found.numbers)
            assert numbers["cost"] + 1 >= numbers["saved"] * 0.98
    elif found.continues:
        assert found.at == 0
        assert one.due.text.size >= 128
    else:
        assert found == RolePosition(len(one.due.results))


@settings(max_examples=examples(100), deadline=None)
@given(crews)
def test_a_text_that_the_user_gave_makes_forks(one) -> None:
    """In any case where it is wanted; where it is declared, but for agents whose long text costs less unmodified."""
    known = KnownCrews()
    assert isinstance(known.position(one, wanted=True), RolePosition)
    if one.due.text.size < 128:
        assert isinstance(known.position(one, declared=True), RolePosition)


@settings(max_examples=examples(100), deadline=None)
@given(crews)
def test_tasks_that_hold_nothing_in_common_never_share(one) -> None:
    """Unmodified requests would carry none of it, so a fork is all cost."""

    def bare(row: Any) -> list[CrewTask]:
        return [replace(each, rest=0, text=Part(each.text.key, 0), results=()) for each in row]

    empty = bare([one.due, *one.later()])
    alone = replace(one, due=empty[0], later=lambda: empty[1:], again=lambda: empty, overhead=one.overhead + 1, grows=0)
    assert isinstance(KnownCrews().position(alone), Reason)


def test_a_brief_that_three_tasks_hold_is_shared_and_one_that_one_holds_is_not() -> None:
    """Written once and read twice, against three times in full."""
    assert KnownCrews().position(ahead(task("a"), task("b"), task("c"))) == RolePosition(0)
    found = KnownCrews().position(ahead(task("a"), task("b", holds=False)))
    assert isinstance(found, Reason)
    assert found.why == "little_to_share"


def test_an_agent_that_is_alone_says_so() -> None:
    """One task of one agent."""
    found = KnownCrews().position(ahead(task("a")))
    assert isinstance(found, Reason)
    assert found.why == "alone"


def test_a_long_text_is_kept_where_its_agents_next_task_reads_it() -> None:
    """Behind the results it would be paid with each task, in front of them it is read."""
    row = [task(agent, text=3_000) for agent in "abab"]
    assert KnownCrews().position(ahead(*row, grows=100)) == RolePosition(0, continues=True)


def test_an_agents_long_text_that_costs_more_than_is_saved_is_named() -> None:
    """It is read in the crew's own layout, and would be paid once more; without it, sharing would pay."""
    known = KnownCrews()
    long, short = task("a", text=5_000), task("b", text=50)
    known.send(ahead(long), None)
    found = known.position(ahead(long, short))
    assert isinstance(found, Reason)
    assert (found.why, dict(found.numbers)) == ("role_costs_more", {"size": 5_000})
    assert known.position(ahead(replace(long, text=Part("text of a", 50)), short)) == RolePosition(0)


def test_further_runs_that_the_provider_would_keep_by_itself_are_reckoned_with() -> None:
    """Each agent's own requests begin with the brief and are read from run to run; as forks the texts are paid anew."""
    row = [replace(task(agent, text=900), begins=(Part(f"{agent} brief", 1_500),), rest=0) for agent in "abc"]
    assert isinstance(KnownCrews().position(ahead(*row, blocks=False)), RolePosition)
    assert isinstance(KnownCrews().position(ahead(*row, blocks=False, likely=200)), Reason)


def test_nothing_is_read_of_what_is_too_short_to_be_kept() -> None:
    """Below the provider's minimum a shared text is paid by each."""
    row = [task(agent) for agent in "abc"]
    assert isinstance(KnownCrews().position(ahead(*row, least=2_000)), Reason)


def test_what_two_tasks_begin_with_is_read_by_the_third_where_whole_requests_are_kept() -> None:
    """Two tasks read nothing of one another on DeepSeek, and a fork would be paid for what it adds."""
    two, three = ([task(agent) for agent in names] for names in ("ab", "abc"))
    given = {"blocks": False, "overhead": 20}
    assert isinstance(KnownCrews().position(ahead(*two, **given)), RolePosition)
    assert isinstance(KnownCrews().position(ahead(*two, units=True, **given)), Reason)
    assert isinstance(KnownCrews().position(ahead(*three, units=True, **given)), RolePosition)
