"""Which lifetime the pauses of a run make cheapest, and which routing key a conversation has."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheprefix.cache.lifetimes import Lifetimes
from cacheprefix.cache.routing import RoutingKeys, shard
from cacheprefix.profiles import default_registry

RULES = default_registry()
MINUTE = 60.0


def rules(name):
    """A row of the providers' rules."""
    return RULES.get(name)


def lives(pause, *, profile="anthropic", api="anthropic", model="m", grows=300, first=10_000, chosen="auto", n=6):
    """The lifetimes chosen for the requests of one conversation with a pause between each two."""
    lifetimes, found = Lifetimes(chosen), []
    for number in range(n):
        ttl = lifetimes.choose(
            rules(profile), api, model=model, talk=("", "c"), tokens=first + number * grows, now=number * pause
        )
        found.append(None if ttl is None else ttl.name)
    return found


@pytest.mark.parametrize(("minutes", "found"), [(0.3, None), (4, None), (10, "1h"), (20, "1h"), (59, "1h"), (70, None)])
def test_an_hour_is_bought_where_the_pauses_make_it_cheaper(minutes, found):
    """Within five minutes it is not needed, behind an hour it does not help; nothing is known before a pause."""
    chosen = lives(minutes * MINUTE)
    assert chosen[0] is None
    assert set(chosen[1:]) == {found}


def test_an_hour_is_not_bought_for_what_grows_faster_than_it_is_read():
    """Each token costs 0.75 more to write, and what stood before the pause was little."""
    assert set(lives(10 * MINUTE, first=100, grows=20_000, n=2)) == {None}


def test_a_conversation_goes_by_its_own_pauses_once_it_has_some():
    """Others of the model count for the first requests alone."""
    lifetimes, profile = Lifetimes("auto"), rules("anthropic")

    def ask(talk, now):
        found = lifetimes.choose(profile, "anthropic", model="m", talk=("", talk), tokens=10_000, now=now)
        return found and found.name

    slow = [ask("slow", now * 600.0) for now in range(5)]
    fast = [ask("fast", 5_000.0 + now) for now in range(8)]
    assert slow == [None, "1h", "1h", "1h", "1h"]
    assert fast[0] == "1h"
    assert fast[2:] == [None] * 6


def test_a_lifetime_that_costs_nothing_is_asked_for_where_it_helps():
    """OpenAI's longer retention has the same price; within the shorter one it is not asked for."""
    assert set(lives(20 * MINUTE, profile="openai", api="openai-chat")[1:]) == {"24h"}
    assert set(lives(MINUTE, profile="openai", api="openai-chat")) == {None}


def test_twelve_hours_are_for_the_responses_api():
    """A chat request has no lifetime but the default."""
    assert set(lives(180 * MINUTE, profile="openai-5.6", api="openai-chat", n=8)) == {None}
    assert "12h" in lives(180 * MINUTE, profile="openai-5.6", api="openai-responses", n=8)
    assert set(lives(1, profile="openai-5.6", api="openai-chat", chosen="12h")) == {None}


def test_what_the_user_names_is_taken_from_the_first_request_on():
    """Where the provider has it."""
    assert set(lives(1, chosen="1h")) == {"1h"}
    assert set(lives(1, chosen="5m")) == {"5m"}
    assert set(lives(600, chosen=None)) == {None}


# ---------------------------------------------------------------------------------------------------- routing keys


def keys_of(routing, talks, seconds, rate="openai"):
    """The keys of requests that come one every ``seconds``, from each conversation in turn, and what was said."""
    found = [routing.key("p", rules(rate), talk=("", str(talk)), now=at * seconds) for at, talk in enumerate(talks)]
    return [key for key, _ in found], [said for _, said in found if said]


def test_a_burst_is_no_rate():
    """Sixteen calls in two seconds are no hundreds a minute: nothing is known before a minute is over."""
    assert keys_of(RoutingKeys(), range(40), 0.1) == (["p"] * 40, [])


def test_keys_are_added_where_a_minutes_requests_are_more_than_one_serves():
    """Sixty a minute on a provider whose keys serve fifteen: four keys, said once; fourteen a minute need one."""
    found, said = keys_of(RoutingKeys(), range(400), 1.0)
    assert found[:60] == ["p"] * 60
    assert set(found[100:]) >= {"p", "p-1", "p-2", "p-3"}
    assert any("61 requests in a minute" in one for one in said)
    assert set(keys_of(RoutingKeys(), range(400), 60 / 14)[0]) == {"p"}


def test_a_conversation_keeps_its_key_when_keys_are_added():
    """What it wrote lies behind that one."""
    routing = RoutingKeys()
    assert set(keys_of(routing, ["same"] * 400, 1.0)[0]) == {"p"}


@given(st.text(max_size=20), st.integers(1, 50))
def test_a_number_of_keys_needs_no_memory(name, keys):
    """Which one a conversation has goes by its id: in every process, and whoever asked before."""
    first, second = RoutingKeys(keys), RoutingKeys(keys)
    keys_of(second, range(5), 1.0)
    asked = {"talk": ("tenant", name), "now": 0.0}
    assert first.key("p", rules("openai"), **asked) == second.key("p", rules("openai"), **asked)


def test_another_process_has_the_same_keys():
    """Whatever its hash seed is."""
    code = "from cacheprefix.cache.routing import shard; print([shard('t', str(n), 7) for n in range(40)])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert told == str([shard("t", str(n), 7) for n in range(40)])
