"""What a report tells of a run: breaks that go on, a handbook that no role says, usage that nobody reports."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from cacheprefix import Caching, Gate, Session, SharedPrefix
from cacheprefix.adapter import Role, fork_body
from cacheprefix.cache import FIXES
from cacheprefix.calls import report as report_module
from cacheprefix.calls.report import FanOut, GateUse, Totals
from cacheprefix.errors import NotSharedError
from cacheprefix.notices import Notices

HANDBOOK = "Every claim names its source and the page on which it stands. " * 200
WORDS = "Look at each claim in turn. " * 300
ADDED = "stands in no role's own requests"


def ask(session, role, system, *, reads=False, usage=True, model="gpt-5.2", words="What is step 1?"):
    """One request of a role, answered by who reads all that can be read, or nothing."""
    said = [{"role": "system", "content": system}, {"role": "user", "content": words}]
    body = {"model": model, "messages": said}
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


def marked(session, number):
    """A request that its framework has marked at its end alone, where each is another one."""
    text = {"type": "text", "text": f"Step {number}. {WORDS}", "cache_control": {"type": "ephemeral"}}
    said = [{"role": "user", "content": [text]}]
    body = {"model": "claude-sonnet-4-5", "max_tokens": 9, "system": HANDBOOK, "messages": said}
    turn = fork_body(session.adapter, body, "anthropic", Role("reader", conversation="one")).begin()
    written = turn.seen.prompt.tokens
    turn.finish({"input_tokens": 0, "cache_read_input_tokens": 0, "cache_creation_input_tokens": written})


@pytest.mark.parametrize(("mode", "said"), [("fork", "`volatile`"), ("observe", "mode='fork'")])
def test_who_makes_no_bodies_is_not_only_told_to_set_breakpoints(mode, said):
    """AutoGen's and CrewAI's users set none: the advice names what they can do, too."""
    session = Session(mode=mode, caching=Caching(fork_share=0.01))  # so that this conversation has no marks of ours
    for number in range(3):
        marked(session, number)
    (found,) = session.report().breaks
    assert found.cause == "breakpoint_after_change"
    assert said in found.fix
    assert found.fix != FIXES[found.cause]


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


def test_a_role_that_is_given_a_handbook_which_others_hold_themselves_is_named_where_that_is_dearer():
    """A router beside agents with the handbook: leaving it out of the session is cheaper."""
    session = Session(SharedPrefix(system=HANDBOOK))
    ask(session, "router", "You route.")
    for name in ("reader", "writer"):
        ask(session, name, f"You are the {name}. {HANDBOOK}", reads=True)
    (note,) = session.report().notes
    assert "own requests and not in those of router: it was added" in note
    assert "do not decorate or wrap it" in note


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


def test_a_role_that_got_dearer_is_said_in_words_with_the_reasons_and_the_way_out():
    """By how much, why its forks went out so, and where it is written when to leave it off."""
    session = Session(SharedPrefix(system=HANDBOOK))
    for name in ("reader", "writer", "reader"):
        ask(session, name, f"You are the {name}.", reads=True)
    report = session.report()
    reader = next(line for line in report.lines if line.agent == "reader")
    (said,) = (line for line in str(report).splitlines() if line.startswith("reader cost "))
    more = reader.cost_units - reader.unmodified_units
    assert f"reader cost {more:,.0f} cost units ({more / reader.unmodified_units:.0%}) more than unmodified" in said
    assert "2 x laid out as a fork" in said
    assert "docs/how-to/when-not-to.md" in str(report)


@pytest.mark.parametrize("gate", [Gate(), None], ids=["gate", "no gate"])
def test_what_the_gate_lets_go_at_once_is_no_break(gate):
    """It was decided here, and nobody can send one of them first; where the user took the gate away it is told."""
    session = Session(SharedPrefix(system=HANDBOOK), gate=gate)
    turns = []
    for name in ("reader", "writer", "critic"):
        said = [{"role": "system", "content": f"You are the {name}.\n{HANDBOOK}"}, {"role": "user", "content": "Go."}]
        role = Role(name, conversation="one")
        turns.append(fork_body(session.adapter, {"model": "gpt-5.2", "messages": said}, "openai-chat", role).begin())
    for turn in turns:
        turn.finish({"prompt_tokens": turn.seen.prompt.tokens, "prompt_tokens_details": {"cached_tokens": 0}})
    told = "concurrent_cold_start" in {call.verdict.cause for call in session.calls}
    assert told is (gate is None)
    assert ("concurrent_cold_start" in str(session.report())) is told


@pytest.mark.parametrize("how", ["nobody asked", "failed", "refused"])
def test_what_was_probably_wrapped_amiss_is_said_where_nothing_came(how):
    """A request that failed, or that strict mode refused and says why, did come."""
    session = Session(SharedPrefix(system=HANDBOOK), mode="strict")
    session.adapter.note_if_unasked("wrapped amiss")
    rest = HANDBOOK.replace("source", "SOURCE") if how == "refused" else HANDBOOK
    body = {"model": "gpt-5.2", "messages": [{"role": "system", "content": f"You read. {rest}"}]}
    if how == "refused":
        with pytest.raises(NotSharedError) as refused:
            fork_body(session.adapter, body, "openai-chat", Role("reader", conversation="one"))
        assert str(refused.value) in str(session.report())
    elif how == "failed":
        fork_body(session.adapter, body, "openai-chat", Role("reader", conversation="one")).begin().fail()
    assert ("wrapped amiss" in session.report().notes) is (how == "nobody asked")


def test_of_an_unmodified_cost_that_nobody_knows_it_says_why():
    """The application's own request was never made; where nobody asked there is nothing to say."""
    session = Session(SharedPrefix(system=HANDBOOK))
    ask(session, "reader", "You read.")
    report, why = session.report(), "could not be made beside the fork"
    assert why not in str(report)
    assert why in str(replace(report, lines=(replace(report.lines[0], unmodified_units=None),)))
    assert why not in str(Session().report())


def test_a_role_that_lost_what_it_read_of_others_is_said_too():
    """Its own requests are what they were; those that they began like went out as forks."""
    session = Session(SharedPrefix(system=HANDBOOK))
    for name in ("reader", "writer"):
        ask(session, name, f"You are the {name}.", reads=True)
    report = session.report()
    line = replace(report.total, agent="helper", cost_units=2 * report.total.unmodified_units)
    beside = replace(report, lines=(line,), total=replace(line, agent="all"))
    (said,) = (text for text in str(beside).splitlines() if text.startswith("helper cost "))
    assert "(100%) more than unmodified. Its requests were no forks: it read less of what others sent" in said
    assert "docs/how-to/when-not-to.md" in str(beside)
    left = [one for one in beside.layouts if one.layout != "fork"]
    assert "helper cost" not in str(replace(beside, layouts=tuple(left)))


def test_of_a_role_that_pays_for_what_others_read_it_says_so():
    """All together are cheaper, and nobody has to do anything."""
    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider="exact"))
    for name in ("reader", "writer", "critic"):
        ask(session, name, f"You are the {name}. {HANDBOOK}", reads=True)
    report = session.report()
    told = report.lines[1]
    assert told.agent == "reader"
    dearer = replace(report, lines=(replace(told, cost_units=2 * told.unmodified_units), *report.lines[2:]))
    assert "reader cost" not in str(report)
    assert f"all together cost {1 - report.total.ratio:.0%} less than unmodified" in str(dearer)
    assert "when-not-to" not in str(dearer)


def test_why_forks_went_out_so_is_summed_up():
    """Once for all agents, with how often, whose they were where that is short, and what they cost."""
    session = Session(SharedPrefix(system=HANDBOOK))
    for name in ("reader", "writer", "critic", "reader"):
        ask(session, name, f"You are the {name}. {HANDBOOK}", reads=True)

    def told():
        (said,) = (line for line in str(session.report()).splitlines() if "laid out as a fork" in line)
        return said

    assert told().startswith("4 x critic, reader, writer: laid out as a fork: ")
    for name in ("one", "two", "three"):
        ask(session, name, f"You are the {name}. {HANDBOOK}", reads=True)
    said = told()
    assert said.startswith("7 x laid out as a fork: ")
    assert said.endswith(f" ({session.report().total.cost_units:,.0f} cost units)")


def test_numbers_of_many_requests_are_told_from_the_smallest_to_the_largest():
    """Of one agent's, and of all agents' together; and of what was summed up as well."""
    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider="exact"))
    session.adapter.shared.totals._keep = 4
    for length in (10, 20, 300, 40, 5, 30):
        for name in ("reader", "writer"):
            ask(session, name, f"You are the {name}. {HANDBOOK}", reads=True, words="What is step 1? " * length)
    (line,) = (line for line in str(session.report()).splitlines() if "laid out as a fork" in line)
    least, most = session.adapter.count(HANDBOOK, "gpt-5.2") + 20, session.adapter.count(HANDBOOK, "gpt-5.2") + 1_200
    found = re.search(r": ([\d,]+) to ([\d,]+) tokens stand before the role's text", line)
    assert found is not None, line
    low, high = (int(each.replace(",", "")) for each in found.groups())
    assert least < low < least + 40
    assert most < high
    (reader, _) = (one for one in session.report().layouts)
    assert reader.spans["shared"] == (low, high)
    assert f"{low:,} to {high:,}" in reader.said


def test_answers_without_usage_name_the_setting():
    """What streams are asked for, and what LangChain calls it."""
    session = Session(SharedPrefix(system=HANDBOOK))
    ask(session, "reader", HANDBOOK, usage=False)
    (line,) = (line for line in str(session.report()).splitlines() if "without the tokens read" in line)
    assert "include_usage" in line
    assert "stream_usage=True" in line


@pytest.mark.parametrize("mode", ["observe", "fork"])
@pytest.mark.parametrize(
    ("model", "provider", "usage", "known"),
    [("", None, False, False), ("", None, True, True), ("", "openai", False, True), ("gpt-5.2", None, False, True)],
)
def test_by_rules_that_nobody_named_of_reads_that_nobody_tells_no_cost_is_made_up(mode, model, provider, usage, known):
    """As behind a client of the application's own class, which says neither its model nor what it read."""
    session = Session(mode=mode, caching=Caching(provider=provider))
    for name in ("reader", "writer"):
        ask(session, name, f"You are the {name}. {HANDBOOK}", model=model, usage=usage)
    told = session.report()
    assert (told.total.unmodified_units is not None, told.total.ratio is not None) == (known, known)
    assert ("name its provider)" in str(told)) == (not known)


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


def test_agents_named_after_users_are_summed_up_as_others(monkeypatch):
    """What a report holds does not grow with the users of a process, and its sums are those of all calls."""
    monkeypatch.setattr(report_module, "_LINES", 3)
    session = Session(SharedPrefix(system=HANDBOOK))
    ask(session, "helper", HANDBOOK)
    (call,) = session.calls
    totals = Totals(keep=8)
    for user in range(40):
        totals.remember(replace(call, agent=f"helper {user}"))
    found = totals.report("", (), {})
    folded = {line.agent: line.calls for line in found.lines}
    assert folded["other agents"] == 40 - 3 - len(totals.calls)
    assert len(folded) == 3 + 1 + len(totals.calls)
    assert (found.total.calls, found.total.cost_units) == (40, pytest.approx(40 * call.units))


def test_what_is_said_of_users_own_tools_is_said_of_the_first_ones():
    """A process that lives for weeks holds no note of each user's, and counts each failure."""
    notices = Notices()
    for user in range(2_000):
        notices.note(f"the tool of user {user}")
        notices.note_if_unasked(f"the agent of user {user}")
    for user in range(10):
        notices.attempt(f"the turn of user {user}", lambda: 1 // 0, None)
    assert (len(notices.notes), len(notices.unasked), notices.failures.total()) == (1_000, 1_000, 10)


@pytest.mark.parametrize(("fan_outs", "said"), [(5, False), (7, True)])
def test_the_gate_says_of_how_many_fan_outs_its_lines_are_the_newest(fan_outs, said):
    """Its sums are of all."""
    use = GateUse(fan_outs=tuple(FanOut(leader=f"a{number}", seconds=1.0) for number in range(fan_outs)))
    lines = str(use).splitlines()[1:]
    assert [one for one in lines if "behind" in one] == [str(one) for one in use.fan_outs[-5:]]
    assert ("  the newest 5 of 7 fan-outs that waited:" in lines) == said
