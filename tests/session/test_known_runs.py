"""Runs that are known beforehand: every layout is played in the cost model, and the cheapest taken."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from benchmarks import role_plans
from benchmarks.bench_plans import RULES, made
from benchmarks.role_plans import Plan, counter_of, own_body, played, profile_of, session_for
from cacheprefix.bodies import Role, fork_body
from cacheprefix.layout.cost_model import Asked, CacheModel, CachePrices
from cacheprefix.layout.known_runs import KnownRuns, RunAhead, RunCall, RunFacts
from cacheprefix.server import ProviderCache
from cacheprefix.wire import decode


def costs(prices, *requests):
    """What each request costs behind those before it."""
    model = CacheModel(prices)
    return [round(model.send(one), 3) for one in requests]


def fork(role, end, at=None, *, text=100, **more):
    """One behind a head of 1,000 tokens."""
    return Asked("union", 1_000, "talk", end, end if at is None else at, role, text, **more)


def own(role, end, **more):
    """One in the application's own layout, with a role's text of 100."""
    return Asked(f"of {role}", 1_100, "talk", end, end, role, own=True, **more)


def test_a_fork_reads_what_stands_before_its_text():
    """The head and the conversation so far; a role's text where it stood before, with what stood behind it."""
    found = costs(CachePrices(0.1), fork("a", 10), fork("b", 30), fork("a", 50, 10))
    assert found == [1_110, 0.1 * 1_010 + 20 + 100, round(0.1 * 1_110 + 40, 3)]
    assert costs(CachePrices(0.1), own("a", 10), own("b", 30), own("a", 50)) == [1_110, 1_130, 0.1 * 1_110 + 40]


def test_only_whole_blocks_are_read():
    """1,010 tokens are seven blocks of 128; near an edge what is uncertain counts for the own request alone."""
    assert costs(CachePrices(0.1, block=128), fork("a", 10), fork("b", 30))[1] == round(0.1 * 896 + 234, 3)
    near = CachePrices(0.1, block=128)
    assert costs(near, fork("a", 30), fork("b", 40))[1] == round(0.1 * 896 + 244, 3)
    assert costs(near, own("a", 41), own("a", 60))[1] == round(0.1 * 1_152 + 8, 3)


def test_what_is_marked_is_written_at_its_price():
    """What stands before a text at the end; all of it where it goes on; nothing in an own layout without marks."""
    marks = CachePrices(0.1, 1.25, match="breakpoint", keeps_own=False)
    assert costs(marks, fork("a", 10), fork("b", 30)) == [1.25 * 1_010 + 100, 0.1 * 1_010 + 1.25 * 20 + 100]
    assert costs(marks, fork("a", 10, continues=True), fork("a", 30, 10, continues=True)) == [
        1.25 * 1_110,
        0.1 * 1_110 + 1.25 * 20,
    ]
    assert costs(marks, own("a", 10), own("a", 30)) == [1_110, 1_130]
    assert costs(replace(marks, keeps_own=True), own("a", 10), own("a", 30))[1] == 0.1 * 1_110 + 1.25 * 20


def test_what_requests_have_in_common_is_a_unit_from_the_third_on():
    """After A+B and A+C a request A+D reads A; a request that goes on from a whole one reads that at once."""
    units = CachePrices(0.1, match="unit")
    assert costs(units, fork("a", 10), fork("b", 30), fork("c", 50)) == [1_110, 1_130, 0.1 * 1_010 + 140]
    assert costs(units, own("a", 10), own("a", 30)) == [1_110, 0.1 * 1_110 + 20]


def test_requests_below_the_minimum_are_paid_in_full():
    """Nothing is read of them, and nothing is of what they sent."""
    assert costs(CachePrices(0.1, least=2_000), own("a", 10), own("a", 30)) == [1_110, 1_130]


def test_about_the_minimum_what_is_worse_for_a_fork_counts():
    """The own request may be below it and pay no write, the fork above it."""
    marks = CachePrices(0.1, 1.25, least=1_100, match="breakpoint", implicit=True)
    assert costs(marks, own("a", 10)) == [1_110]
    assert costs(marks, fork("a", 10)) == [1.25 * 1_110]


def test_requests_of_the_same_tools_may_begin_alike_without_us():
    """Where the shared text stands before the role's own."""
    first, second = (own(role, 10, kin="of tools", alike=900) for role in "ab")
    assert costs(CachePrices(0.1), first, second) == [1_110, 0.1 * 900 + 210]


def layout(run, said, *, prices=None, tools=None, opening=1_000, runs=None):
    """How the first call of a run is laid out."""
    facts = RunFacts(run, prices or CachePrices(0.1), "talk", opening, tools or {}, 112, said)
    return (runs or KnownRuns()).layout(("key",), facts)


def test_others_tools_are_not_carried_for_answers_that_may_be_short():
    """They would pay with long answers; once answers were long, half of that is counted on."""
    calls = tuple(RunCall(role, 100, (role,)) for role in "abab" * 3)
    runs, tools = KnownRuns(), {"a": 1_500, "b": 1_500}
    found = [layout(RunAhead(calls[at:]), [10] + [3_000] * at, tools=tools, opening=0, runs=runs) for at in range(4)]
    assert [one.forks for one in found] == [False, False, True, True]


def test_the_same_request_is_laid_out_the_same_when_it_is_asked_again():
    """Its cost is counted once: the next one finds what one request wrote."""
    runs, run = KnownRuns(), RunAhead(tuple(RunCall(role, 100) for role in "abab"))
    assert layout(run, [10], runs=runs) == layout(run, [10], runs=runs)
    assert layout(RunAhead(run.calls[1:]), [10, 20], runs=runs).forks


def test_a_request_that_is_asked_again_after_one_beside_it_counts_once():
    """It is told the same, and the run goes on with the one that comes next."""
    calls = tuple(RunCall(role, 100, beside=role == "b") for role in "abab")

    def found(*asked):
        runs = KnownRuns()
        return [layout(RunAhead(calls[at:]), [10, 400] if at > 1 else [10], runs=runs) for at in asked]

    first, second, third = found(0, 1, 2)
    assert found(0, 1, 0, 2) == [first, second, first, third]


@pytest.mark.slow
@pytest.mark.parametrize("rules", RULES)
def test_generated_known_runs_are_never_dearer(rules):
    """Whatever the sizes of texts, tools and answers, and whoever is asked how often."""
    plans = [plan for plan in (made(random.Random(f"known {rules} {at}")) for at in range(40)) if plan.known]
    for plan in (plan for plan in plans if len(plan.turns) <= 30):
        profile, session = profile_of(rules), session_for(plan, rules)
        unmodified, ours = (
            sum(one.cost_units(profile) for one in played(plan, rules, some)) for some in (None, session)
        )
        assert ours <= unmodified, plan


@pytest.mark.slow
@pytest.mark.parametrize("rules", ["openai", "openai-5.6", "deepseek", "vllm", "anthropic"])
@pytest.mark.parametrize(
    "plan",
    [
        # Tools of agents that are never asked are not carried for nothing.
        Plan(400, (60,) * 6, ((0, 40), (1, 40)), (2_000,) * 6),
        # Who comes once, behind a short handbook, with a long text of its own.
        Plan(300, (40, 1_200, 700, 2_300), ((0, 20), (1, 30), (2, 20), (3, 20)), (0, 1_600, 240, 1_600)),
        # A role that is asked again and again, while nobody else is.
        Plan(5_000, (65, 65, 65), ((1, 200),) * 10),
        Plan(2_000, (300,), ((0, 60),) * 8),
        # Each has a history of its own.
        Plan(0, (83,) * 4, tuple((at % 4, 60) for at in range(24)), common=1_330, shape="private"),
        # Each keeps its own layout, which its second request writes and its last one must read.
        Plan(167, (800,) * 5, tuple((at % 5, 60) for at in range(15)), shape="private", book_first=True),
    ],
)
@pytest.mark.parametrize("marked", [True, False])
def test_a_known_run_is_never_dearer(rules, plan, marked):
    """Not by the tokens of a role's name either."""
    known = replace(plan, known=True, tagged=True, marked=marked)
    profile = profile_of(rules)
    unmodified, ours = (
        sum(one.cost_units(profile) for one in played(known, rules, session))
        for session in (None, session_for(known, rules))
    )
    assert ours <= unmodified


def test_the_last_request_of_a_role_reads_and_writes_nothing():
    """In its own layout, which the application does not mark: the second was written, and nobody reads the third."""
    turns = tuple((at % 5, 60) for at in range(15))
    plan = Plan(167, (800,) * 5, turns, shape="private", book_first=True, known=True, tagged=True)
    found = played(plan, "anthropic", session_for(plan, "anthropic"))
    written = [one.written_tokens for one in found]
    assert written[:5] == [0] * 5
    assert [one.read_tokens for one in found[10:]] == written[5:10]
    assert min(written[5:10]) > 1_024
    assert written[10:] == [0] * 5


@pytest.mark.parametrize("calls", [5, 10, 12, 15])
def test_what_is_noted_of_an_own_layout_is_what_its_marks_wrote(monkeypatch, calls):
    """Later requests of which less is known go by it: whether the provider keeps a role's last request to its end."""
    turns = tuple((at % 5, 60) for at in range(15))
    plan = Plan(167, (800,) * 5, turns, shape="private", book_first=True, known=True, tagged=True)
    session, sent = session_for(plan, "anthropic"), list(role_plans.asked(plan))
    monkeypatch.setattr(role_plans, "asked", lambda _: iter(sent[:calls]))
    found = played(plan, "anthropic", session)
    wrote = {f"/role{one.who}": outcome.written_tokens > 0 for one, outcome in zip(sent[:calls], found, strict=True)}
    kept = {}
    for talk in {one.talk for one in sent}:
        for places in session.adapter.places(session.conversation(talk)).values():
            kept |= {role: seat["kept"] for role, seat in places["seats"].items()}
    assert kept == wrote
    assert any(wrote.values()) == (5 < calls < 15)


def test_a_run_that_shares_too_little_to_be_cached_says_so_with_the_minimum():
    """What it would cost follows from that; once enough is said, costs decide."""
    plan = Plan(50, (40, 40), ((0, 400), (1, 400), (0, 400), (1, 400)), known=True, tagged=True)
    session = session_for(plan, "openai")
    played(plan, "openai", session)
    found = [(call.layout, call.reasons[-1].why, dict(call.reasons[-1].numbers)) for call in session.calls]
    assert found[0][:2] == ("own", "prefix_below_minimum")
    assert 50 <= found[0][2]["shared"] < found[0][2]["minimum"] == 1_024


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize(
    "plan",
    [
        # The first one forks only if the outlier, which is never shown the shared text, would read what it wrote.
        Plan(840, (186, 186), ((0, 61), (1, 62), (0, 49), (1, 41)), (179, 179), shape="private", outlier=1),
        Plan(605, (112, 112), (*((0, 1_200),) * 10, (1, 2_000)), (264, 264), common=106, outlier=0),
        # Its own requests are marked from the second one on, but not the last one.
        Plan(626, (277, 1_100, 356), tuple((who, 30) for who in (0, 1, 2, 0, 1)), (600, 1_788, 419), outlier=1),
        Plan(991, (530, 58, 47, 24), tuple((who, 130) for who in (0, 0, 1, 0, 1, 2, 0, 1, 2, 3, 3)), outlier=3),
    ],
)
@pytest.mark.parametrize("marked", [True, False])
def test_nobody_counts_on_a_role_that_is_not_shown_the_shared_text(rules, plan, marked):
    """Found in the others' requests, it is none of that role's: its requests keep the application's own layout."""
    test_a_known_run_is_never_dearer(rules, replace(plan, book_first=plan.outlier != 3), marked)


@pytest.mark.parametrize("forgotten", [False, True])
@pytest.mark.parametrize("rules", ["openai", "vllm"])
def test_a_run_that_comes_again_and_again_does_not_get_dearer(rules, forgotten):
    """Eight known runs with the same texts: without us each role's beginning is read of the run before.

    In conversations of their own, or in one that is forgotten after each, as a team that is reset.
    """
    plan = Plan(1_500, (300, 300, 300), tuple((who, 120) for who in range(3)), known=True, tagged=True)
    profile, count = profile_of(rules), counter_of(plan).count
    session, caches, sums = session_for(plan, rules), [ProviderCache(profile, count=count) for _ in "ab"], [0.0, 0.0]
    calls = tuple(RunCall(f"role{who}", 300) for who in range(3))
    for number in range(24):
        talk, who = divmod(number, 3)
        name = "" if forgotten else str(talk)
        if forgotten and not who:
            session.forget("talk")
        said = [f"task{talk} ~100~", *(f"said{talk}of{each} ~120~" for each in range(who))]
        history = [{"role": "user", "content": text} for text in said]
        body = own_body(plan, role_plans.Asked(who, f"talk{name}", history), rules, "openai-chat")
        role = Role(f"role{who}", conversation=f"talk{name}", ahead=RunAhead(calls[who:]))
        turn = fork_body(session.adapter, body, "openai-chat", role).begin()
        for at, sent in enumerate((body, turn.body)):
            serving = caches[at].begin(decode(sent, "openai-chat", count=count), number * 2.0)
            serving.ended(number * 2.0 + 1.0)
            sums[at] += serving.outcome.cost_units(profile)
        turn.finish(None)
    assert session.failures == {}
    assert sums[1] <= 1.05 * sums[0]
