"""What a report tells of a run: breaks that go on, a handbook that no role says, usage that nobody reports."""

from __future__ import annotations

import pytest

from cacheprefix import Session, SharedPrefix
from cacheprefix.adapter import Role, fork_body

HANDBOOK = "Every claim names its source and the page on which it stands. " * 200
ADDED = "stands in no role's own requests"


def ask(session, role, system, *, reads=False, usage=True):
    """One request of a role, answered by who reads all that can be read, or nothing."""
    said = [{"role": "system", "content": system}, {"role": "user", "content": "What is step 1?"}]
    body = {"model": "gpt-5.2", "messages": said}
    turn = fork_body(session.adapter, body, "openai-chat", Role(role, conversation="one")).begin()
    read = turn.seen.observation.expectation.tokens if reads else 0
    told = {"prompt_tokens": turn.seen.prompt.tokens, "prompt_tokens_details": {"cached_tokens": read}}
    turn.finish(told if usage else None)


@pytest.mark.parametrize("folded", [False, True])
def test_a_break_that_goes_on_alarms_once_and_counts_each_time(folded, monkeypatch):
    """The system text is another one in each of thirty requests: what that loses is summed, whatever was summed up."""
    session = Session(mode="observe")
    if folded:
        monkeypatch.setattr(session.adapter.shared.totals, "_keep", 8)
    for number in range(30):
        ask(session, "reader", f"It is {number} o'clock. {HANDBOOK}")
    (found,) = session.report().breaks
    assert (found.cause, found.path, found.count) == ("system_changed", "system[0]", 29)
    assert found.lost_tokens == pytest.approx(29 * session.last_verdict.lost_tokens, rel=0.01)
    assert sum(call.verdict.alarm for call in session.calls) == (0 if folded else 1)


def test_what_never_alarmed_is_no_break():
    """A first request, and those that read all there is."""
    session = Session(mode="observe")
    for _ in range(3):
        ask(session, "reader", HANDBOOK, reads=True)
    assert session.report().breaks == ()


def test_a_handbook_that_no_role_says_is_named_with_the_way_out():
    """It is added to each request, and the unmodified cost is without it."""
    session = Session(SharedPrefix(system=HANDBOOK))
    for name in ("reader", "writer"):
        ask(session, name, f"You are the {name}.")
    (note,) = session.report().notes
    assert ADDED in note
    assert "leave it out" in note
    assert session.report().total.ratio > 1


@pytest.mark.parametrize("how", ["one says it", "in other lines", "a remark", "observed", "nobody asked"])
def test_nothing_is_said_of_a_handbook_that_is_not_added(how):
    """Where a role says it, in whatever lines; of a short text; and where nothing is sent by us."""
    text = "Be brief." if how == "a remark" else HANDBOOK
    session = Session(SharedPrefix(system=text), mode="observe" if how == "observed" else "fork")
    said = HANDBOOK.replace(" ", "\n  ") if how == "in other lines" else HANDBOOK
    if how != "nobody asked":
        ask(session, "reader", f"You read. {said}" if how in ("one says it", "in other lines") else "You read.")
        ask(session, "writer", "You write.")
    assert not any(ADDED in note for note in session.report().notes)


def test_answers_without_usage_name_the_setting():
    """What streams are asked for, and what LangChain calls it."""
    session = Session(SharedPrefix(system=HANDBOOK))
    ask(session, "reader", HANDBOOK, usage=False)
    (line,) = (line for line in str(session.report()).splitlines() if "without the tokens read" in line)
    assert "include_usage" in line
    assert "stream_usage=True" in line


def test_agents_whose_long_names_differ_at_their_end_are_told_apart():
    """As those of a team within a team do."""
    session = Session(mode="observe")
    names = [f"{'RoundRobinGroupChat/' * 2}{name}" for name in ("planner", "critic")]
    for name in (*names, "Task Execution Planner"):
        ask(session, name, HANDBOOK)
    told = str(session.report())
    assert "Task Execution Planner " in told
    ends = ("..Chat/planner ", "..pChat/critic ")
    assert [sum(end in line for line in told.splitlines()) for end in ends] == [1, 1]
