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
    """Where all forks together cost more, also the role that nothing else could be held against."""
    share, found = ForkShare(0.5), {}
    for number in range(200):
        talk = ("", str(number))
        arm = share.arm(*talk)
        found |= share.count(arm, talk, "opener", (900 if arm == "fork" else 500) + number % 7)
        found |= share.count(arm, talk, "other", (100 if arm == "fork" else 150) + number % 5)
    assert set(found) == {"opener"}
    assert dict(found["opener"].numbers)["forked"] > dict(found["opener"].numbers)["own"]


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
