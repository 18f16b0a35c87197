"""Requests that are played through the model of the cache alone cost what a simulated provider asks for them."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cacheprefix.cache.played import PlayedCache
from cacheprefix.profiles import Usage, cost_units, default_registry
from cacheprefix.prompt import Prompt, estimate_tokens
from cacheprefix.prompt.sections import Marker, section, with_front, with_markers
from cacheprefix.server import ProviderCache
from cacheprefix.wire import decode

sys.path.insert(0, str(Path(__file__).parent))

from faults import RULES, undisturbed


@pytest.mark.parametrize("rules", RULES)
def test_a_played_team_costs_what_the_simulated_provider_reckons(rules):
    """One answer after the other, in every rule set."""
    case = undisturbed(11, rules)
    profile, served, played = default_registry().get(rules), {}, PlayedCache(estimate_tokens)
    for step in case.steps:
        prompt = decode(step.body, case.api, headers=step.headers)
        cache = served.setdefault(prompt.model, ProviderCache(profile))
        outcome = cache.serve(prompt, step.at, scope=step.scope)
        usage = Usage(
            input_tokens=outcome.input_tokens,
            cache_read_tokens=outcome.read_tokens,
            cache_write=dict(outcome.write_tokens),
        )
        ours = played.begin(prompt, profile, step.at, scope=step.scope, line=step.agent)
        ours.first_token(step.at)
        ours.ended(step.at)
        assert ours.units == pytest.approx(cost_units(usage, profile))


def test_planned_marks_cost_what_marks_of_the_requests_own_would():
    """A mark that is only planned reads and writes like one that stands there."""
    profile = default_registry().get("anthropic")
    body = {"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": "word " * 3_000}]}
    prompt = decode(body, "anthropic")
    marked, planned = PlayedCache(estimate_tokens), PlayedCache(estimate_tokens)
    for at in (0.0, 9.0):
        own = marked.begin(with_markers(prompt, {0: Marker()}), profile, at)
        other = planned.begin(prompt, profile, at, planned={0: None})
        own.ended(at + 1)
        other.ended(at + 1)
        assert own.units == other.units
    assert own.seen.read == prompt.tokens


def test_another_front_leaves_the_sums_of_a_prompt_right():
    """As if the prompt had been made of its sections anew, marks and all."""
    rows = [
        section(tier, f"{tier}[{at}]", "text", "user", text.encode(), estimate_tokens)
        for at, (tier, text) in enumerate([("tools", "a" * 40), ("system", "b" * 90), ("messages", "c" * 8)])
    ]
    prompt = with_markers(Prompt("anthropic", "m", tuple(rows)), {0: Marker(), 2: Marker("1h")})
    front = Prompt("anthropic", "m", (replace(rows[0], tokens=3, marker=Marker()), replace(rows[0], tokens=4)))
    made = with_front(prompt, front, 1)
    anew = Prompt("anthropic", "m", made.sections)
    assert (made.totals, made.digests, made.marked, made.head) == (anew.totals, anew.digests, anew.marked, anew.head)
