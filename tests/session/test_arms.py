"""A share of the conversations is forked: which ones, and what the guard makes of the costs of both arms."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.bodies import Role, fork_body
from cacheprefix.calls.arms import ForkShare
from cacheprefix.errors import SetupError


def returned(seed, factor, conversations=120):
    """The conversation by which a role was returned whose forks cost ``factor`` of its own requests; None for none."""
    dice, share = random.Random(seed), ForkShare(0.5)
    for number in range(conversations):
        talk = ("", f"{seed} {number}")
        arm = share.arm(*talk)
        usual = dice.lognormvariate(7, 0.5)
        for _ in range(dice.randint(1, 6)):
            units = usual * dice.lognormvariate(0, 0.3) * (factor if arm == "fork" else 1)
            if share.count(arm, talk, dice.choice("ab"), units):
                return number
    return None


@given(st.text(), st.text())
def test_a_conversation_is_in_one_arm_for_good(scope, name):
    """And with a larger share those that were forked stay so."""
    small, large = ForkShare(0.2), ForkShare(0.7)
    assert small.arm(scope, name) == ForkShare(0.2).arm(scope, name)
    assert small.arm(scope, name) == "own" or large.arm(scope, name) == "fork"
    assert ForkShare(1.0).arm(scope, name) == "fork"
    assert ForkShare(0.0).arm(scope, name) == "own"
    assert ForkShare().arm(scope, name) is None


def test_another_process_has_the_same_arms():
    """Whatever its hash seed is."""
    code = "from cacheprefix.calls.arms import ForkShare as F; print([F(.3).arm('t', str(n)) for n in range(40)])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert told == str([ForkShare(0.3).arm("t", str(n)) for n in range(40)])


def test_about_so_many_are_forked():
    """Of 4,000 conversations one in twenty, within four standard errors."""
    forked = sum(ForkShare(0.05).arm("", f"thread-{n}") == "fork" for n in range(4_000))
    assert 145 <= forked <= 255


def test_a_role_is_returned_when_its_forks_cost_twice_as_much():
    """In each of 20 runs; and in hardly any where they cost the same, or half."""
    assert all(returned(seed, 2.0) is not None for seed in range(20))
    assert sum(returned(seed, 1.0) is not None for seed in range(40)) <= 1
    assert not any(returned(seed, 0.5) for seed in range(20))


def test_who_writes_what_others_read_is_not_blamed():
    """The first request of a forked conversation pays for the shared part; its role stays, as in all it is cheaper."""
    share = ForkShare(0.5)
    for number in range(200):
        talk = ("", str(number))
        arm = share.arm(*talk)
        costs = (900, 200, 200) if arm == "fork" else (500, 500, 500)
        for agent, units in zip(("first", "second", "third"), costs, strict=True):
            assert not share.count(arm, talk, agent, units + number % 7)


def test_a_dearer_arm_returns_those_who_only_open_conversations():
    """Where all forks together cost more, also the role that nothing else could be held against.

    Cheaper ones stay, if there are two at least: one by itself has nobody to share with any more.
    """
    for others in (("other", "third"), ("other",)):
        share, found = ForkShare(0.5), {}
        for number in range(200):
            talk = ("", str(number))
            arm = share.arm(*talk)
            found |= share.count(arm, talk, "opener", (900 if arm == "fork" else 500) + number % 7)
            for other in others:
                found |= share.count(arm, talk, other, (100 if arm == "fork" else 150) + number % 5)
        assert set(found) == {"opener", *(others if len(others) == 1 else ())}
    assert dict(found["opener"].numbers)["forked"] > dict(found["opener"].numbers)["own"]


def test_without_a_second_arm_no_role_stays_a_fork_by_itself_either():
    """All forks together cost more than the estimate, and one role's cost less."""
    for others in (("other", "third"), ("other",)):
        guard, found = ForkShare(), {}
        for number in range(200):
            talk = ("", str(number))
            found |= guard.weigh(talk, "opener", 900 + number % 7, 500)
            for other in ("opener", *others):
                units = 900 if other == "opener" else 100
                found |= guard.weigh(talk, other, units + number % 5, 500 if other == "opener" else 150)
        assert set(found) == {"opener", *(others if len(others) == 1 else ())}


def test_one_role_returns_alone_where_the_others_stay_cheaper():
    """Its own forks are dearer by more than chance; what two others share is cheaper than their own requests."""
    share, found = ForkShare(0.5), {}
    for number in range(200):
        talk = ("", str(number))
        forked = share.arm(*talk) == "fork"
        for agent, fork, own in (("opener", 300, 300), ("dear", 700, 500), ("one", 100, 400), ("two", 100, 400)):
            found |= share.count("fork" if forked else "own", talk, agent, (fork if forked else own) + number % 7)
    assert set(found) == {"dear"}


@pytest.mark.parametrize("others", [998, 1_000])
def test_roles_beyond_the_first_thousand_are_not_judged_by_themselves(others):
    """Made up for each request they would be remembered without end; what they cost counts for all together."""
    share, found = ForkShare(0.5), {}
    for number in range(others):
        share.count("fork", ("", f"early {number}"), f"made up {number}", 800 + number % 7)
        share.count("own", ("", f"late {number}"), f"made up {number}", 1_000 + number % 7)
    for number in range(200):
        talk = ("", str(number))
        forked = share.arm(*talk) == "fork"
        for agent, fork, own in (("opener", 300, 300), ("dear", 700, 500)):
            found |= share.count("fork" if forked else "own", talk, agent, (fork if forked else own) + number % 7)
    assert set(found) == ({"dear"} if others < 1_000 else set())


def test_each_conversation_is_counted_once_in_its_arm():
    """However many requests it has."""
    session = Session(SharedPrefix(system="The rules of the house. " * 300), caching=Caching(fork_share=0.5))
    for turn in range(3):
        for number in range(8):
            said = [{"role": "user", "content": f"Question {turn}."}]
            body = {"model": "claude-sonnet-4-5", "max_tokens": 9, "system": session.prefix.system, "messages": said}
            asked = fork_body(session.adapter, body, "anthropic", Role("a", conversation=f"thread-{number}")).begin()
            asked.finish({"input_tokens": 9, "output_tokens": 1, "cache_read_input_tokens": 0})
    share = session.adapter.shared.arms
    arms = [share.arm("", f"thread-{number}") for number in range(8)]
    told = share.report()
    assert (told.fork.conversations, told.own.conversations) == (arms.count("fork"), arms.count("own"))
    assert (told.fork.calls, told.own.calls) == (3 * arms.count("fork"), 3 * arms.count("own"))
    assert 0 < arms.count("fork") < 8


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_is_from_none_to_all(share):
    """Anything else is a mistake, said when the session is made."""
    with pytest.raises(SetupError, match="fork_share"):
        Session(caching=Caching(fork_share=share))


HANDBOOK = "Every claim names its source and the page on which it stands. " * 130
DUTY = "You look at one thing and say what you found, in the order in which you found it. " * 12


def run_of(session, number, *, said, system, reads=lambda _: True):
    """Two roles ask twice in one of many conversations, of a provider that reads what it should."""
    for role in ("finder", "clerk"):
        messages = [{"role": "system", "content": system(role)}, {"role": "user", "content": said(role, number)}]
        for again in range(2):
            body = {"model": "gpt-5.2", "messages": messages}
            turn = fork_body(session.adapter, body, "openai-chat", Role(role, conversation=f"thread {number}")).begin()
            seen = turn.seen
            read = seen.observation.expectation.tokens if reads(number) else 0
            turn.finish({"prompt_tokens": seen.prompt.tokens, "prompt_tokens_details": {"cached_tokens": read}})
            more = [{"role": "assistant", "content": f"Look {again}."}, {"role": "user", "content": "Go on."}]
            messages = [*messages, *more]


def layouts(session, number):
    """How the requests of a conversation went out."""
    return {call.layout for call in session.calls if call.conversation == f"thread {number}"}


def many(**how):
    """A session in which 24 conversations were held."""
    session = Session(SharedPrefix(system=HANDBOOK))
    for number in range(24):
        run_of(session, number, **{"system": lambda role: f"You are the {role}. {DUTY}\n\n{HANDBOOK}"} | how)
    return session


def test_roles_that_read_nothing_of_one_another_go_back_to_their_own_layout():
    """Each role's own opening is in the cache from other conversations: without it forks would be dearer for good.

    What is said is longer than a role's text, which so stays behind it.
    """
    session = many(said=lambda role, number: f"Case {number} of the {role}. " * 60)
    assert layouts(session, 0) == layouts(session, 19) == {"fork"}
    assert layouts(session, 23) == {"own"}
    assert [call.reasons[-1].why for call in session.calls][-4:] == ["dearer_as_fork"] * 4
    assert any("'clerk' goes back to its own layout" in note for note in session.report().notes)
    # It is the cost of all that decided, and no role's own.
    assert {call.reasons[-1].name for call in session.calls[-4:]} == {"of all roles"}
    assert any("as forks requests of all roles cost" in note for note in session.report().notes)
    # Who comes later begins nothing anew.
    assert session.adapter.shared.arms.kept_own("", "thread 30", "a third").why == "dearer_as_fork"


def test_roles_that_read_what_others_said_stay_forks():
    """Their conversation is paid for once instead of once a role."""
    session = many(said=lambda _, number: f"Case {number}: {number} is what it is about. {number} " * 300)
    assert session.report().total.ratio < 1
    assert layouts(session, 23) == {"fork"}


def test_text_that_the_session_alone_knows_is_not_held_against_forks():
    """The estimate is of requests without it."""
    alone = {"system": lambda role: f"You are the {role}."}
    session = many(said=lambda role, number: f"Case {number} of the {role}.", **alone)
    assert session.report().total.ratio > 1
    assert layouts(session, 23) == {"fork"}


def test_what_a_provider_misses_by_chance_is_not_held_against_forks():
    """The estimate misses nothing."""

    def said(_role, number):
        return f"Case {number}: {number} is what it is about. {number} " * 60

    session = many(said=said, reads=lambda number: number % 2)
    assert layouts(session, 23) == {"fork"}


def test_a_call_without_the_tokens_read_is_in_neither_arm():
    """It counts by what was foreseen, which no arm is to be judged by; how many these were is said."""
    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(fork_share=1.0))
    body = {"model": "gpt-5.2", "messages": [{"role": "user", "content": HANDBOOK}]}
    said = {"prompt_tokens": 2_000, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
    for usage in (None, said):
        fork_body(session.adapter, body, "openai-chat", Role("a", conversation="one")).begin().finish(usage)
    told = session.report().arms
    assert (told.fork.calls, told.unreported) == (1, 1)
    assert "1 calls were answered without the tokens read" in str(told)
