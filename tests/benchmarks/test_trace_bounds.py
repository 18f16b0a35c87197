"""What a recorded run can cost at least, and which rule stands between the two bounds."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from benchmarks.trace_bounds import anywhere, in_place
from benchmarks.trace_replay import Ask, Run
from cacheprefix.profiles import default_registry
from cacheprefix.server import ProviderCache
from cacheprefix.wire import decode

EXACT = default_registry().get("exact")
TEXT = "Every statement needs a source. " * 200


def run(*rows, gap=10.0):
    """A run of requests, each given as the texts of its messages."""
    asks = [
        Ask("", "", tuple({"role": "user", "content": text} for text in row), number * gap)
        for number, row in enumerate(rows)
    ]
    return Run("one", tuple(asks))


def bounds(recorded, profile):
    """Both bounds of a run, and its prompts."""
    prompts = [decode({"model": "m", "messages": list(ask.messages)}, "openai-chat") for ask in recorded.asks]
    return anywhere(recorded, profile), in_place(prompts, [ask.at for ask in recorded.asks], profile, 1.0), prompts


@pytest.mark.parametrize(
    ("rows", "gap", "changes", "step"),
    [
        ([("a", TEXT), ("b", TEXT)], 10.0, {}, 0),
        ([(TEXT,), (TEXT, "more")], 0.5, {"cold_parallel_shares": False}, 1),
        ([(TEXT[:900], TEXT), (TEXT[:900], TEXT[5:])], 10.0, {"min_tokens": 1000}, 2),
        ([(TEXT,), (TEXT, "more")], 10.0, {"block_tokens": 1000}, 3),
    ],
)
def test_each_rule_that_takes_something_away_is_named(rows, gap, changes, step):
    """A repetition behind a change, one at the same moment, a short beginning, and half a block."""
    free, steps, _ = bounds(run(*rows, gap=gap), replace(EXACT, **changes))
    gains = [after - before for before, after in zip([free, *steps], steps, strict=False)]
    assert max(range(4), key=gains.__getitem__) == step
    assert gains[step] > 100


@pytest.mark.parametrize("seed", range(5))
def test_no_simulated_provider_is_cheaper_than_the_bound_in_place(seed):
    """Requests that grow, part and repeat; what is written costs as much as what is not."""
    draw = random.Random(seed)
    rows = [tuple(draw.choice("ab") * draw.randrange(1, 400) for _ in range(draw.randrange(1, 5))) for _ in range(12)]
    profile = replace(EXACT, block_tokens=16, cold_parallel_shares=False)
    recorded = run(*rows, *rows[::2])
    _, steps, prompts = bounds(recorded, profile)
    cache = ProviderCache(profile)
    served = zip(prompts, recorded.asks, strict=True)
    spent = sum(cache.serve(prompt, ask.at, first_token_at=ask.at + 1).cost_units(profile) for prompt, ask in served)
    assert steps == sorted(steps)
    assert spent >= steps[-1] - 1e-6
