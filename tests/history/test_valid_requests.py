"""Whatever is decided on a history that a provider takes, it takes the result: every strategy, every form.

800 random histories by default, 5,000 in make test-more; CACHEPREFIX_HISTORIES=100000 tries more. A failure names
its seed.
"""

from __future__ import annotations

import json
import os
import random

import pytest
from valid_histories import APIS, TOOLS, body_of, edited, history, tampered, wrong_with

from cacheprefix.errors import BudgetError
from cacheprefix.history import (
    Circumstances,
    Compaction,
    Ledger,
    RequestBudget,
    ToolResultBudget,
    clear_thinking,
    clear_tool_results,
    drop_tool_uses,
    join_context,
    plan_compaction,
    replay,
    sliding_window,
)
from cacheprefix.prompt import Drop, DropCall, DropResult, DropThinking, Insert, ReplaceResult
from cacheprefix.wire import apply, views_of

HISTORIES = int(os.environ.get("CACHEPREFIX_HISTORIES", "800"))
CHUNKS = 10


def anything(rng):
    """A policy of a user's own that decides whatever comes to its mind."""

    def policy(situation):
        made = []
        for index in range(len(situation.views)):
            view = situation.views[index]
            if view is None or rng.random() < 0.6:
                continue
            choices = [Drop(index), Insert(index, "user", "said by a hook")]
            choices += [DropCall(index, call.id) for call in view.calls]
            for result in view.results:
                choices += [DropResult(index, result.part), ReplaceResult(index, result.part, "short")]
            choices += [DropThinking(index, thought.part) for thought in view.thinking]
            made.append(rng.choice(choices))
        return made

    return policy


def settings_of(rng, tokens):
    """One of all ways to compact: built-in rows, single policies, a hook's; deep and shallow."""
    policies = rng.choice(
        (
            None,
            None,
            None,
            (clear_tool_results(None, keep_last=rng.randint(0, 3)),),
            (drop_tool_uses(rng.choice((None, TOOLS[:2])), keep_last=rng.randint(0, 2)),),
            (clear_thinking(rng.randint(0, 1)), sliding_window(batch=rng.random() * 0.9)),
            (sliding_window(batch=rng.random() * 0.9, whole_turns=True),),
            (sliding_window(batch=0),),
            (anything(rng),),
            (anything(rng), sliding_window()),
        )
    )
    return Compaction(
        trigger=max(2, int(tokens * rng.uniform(0.2, 1.0))),
        keep_turns=rng.randint(1, 4),
        keep_users=rng.random() < 0.5,
        keep_head=rng.choice((0, 0.2, 0.5)),
        slack=rng.choice((0, 0.5)),
        horizon=1e9,
        policies=policies,
        **({"summarise": None} if rng.random() < 0.2 else {}),
        **({"thinking_bound": "a rule"} if rng.random() < 0.2 else {}),
    )


def grown(rng, messages, api):
    """The history compacted once or twice while it grows, by a ledger that is kept."""
    ledger = Ledger()
    budget = rng.choice((None, ToolResultBudget(40, per_turn=90), ToolResultBudget(200)))
    ends = [end for end in range(1, len(messages) + 1) if not wrong_with(messages[:end], api)]
    for end in sorted(rng.sample(ends, min(len(ends), rng.randint(1, 3)))):
        part = messages[:end]
        views = views_of(part, api)
        ledger = replay(views, ledger, budget).ledger
        tokens = sum(view.tokens for view in views)
        window = RequestBudget(max(2, int(tokens * rng.uniform(0.3, 1.2)))) if rng.random() < 0.3 else None
        try:
            around = Circumstances(request=window, budget=budget)
            plan = plan_compaction(views, ledger, settings_of(rng, tokens), around, force=True)
        except BudgetError:
            continue
        ledger = plan.commit()
        if rng.random() < 0.3:
            ledger = ledger.record(join_context(views, ledger))
        yield part, ledger, budget


@pytest.mark.slow
@pytest.mark.daily  # all of five thousand histories are tried in every run
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_what_is_decided_on_a_valid_history_leaves_it_valid(chunk):
    """Also in a growing history, and as the ledger repeats it on the history as it was edited later."""
    decided = 0
    for seed in range(chunk, HISTORIES, CHUNKS):
        rng = random.Random(seed)
        api = APIS[seed % 3]
        messages = history(rng, api)
        for part, ledger, budget in grown(rng, messages, api):
            done = replay(views_of(part, api), ledger, budget)
            out = apply(part, done.decisions, api)
            decided += out != part
            # Where thinking goes with every change before it, no request has to begin with it.
            loose = "b" not in ledger.section("actions").values()
            wrong = wrong_with(out, api, thinking=loose and not wrong_with(part, api, thinking=True))
            assert not wrong, f"seed {seed}, {api}: {wrong}\n{shown(out, api)}"
            later = edited(rng, messages, api)
            out = apply(later, replay(views_of(later, api), ledger, budget).decisions, api)
            wrong = wrong_with(out, api, thinking=loose and not wrong_with(later, api, thinking=True))
            assert not wrong, f"seed {seed}, {api}, edited: {wrong}\n{shown(out, api)}"
    assert decided > HISTORIES / CHUNKS / 2


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_ledger_that_says_something_invalid_is_not_repeated_as_such(chunk):
    """What an older version recorded may part pairs; what is sent of it does not."""
    for seed in range(chunk, max(HISTORIES // 5, CHUNKS), CHUNKS):
        rng = random.Random(-seed - 1)
        api = APIS[seed % 3]
        messages = history(rng, api)
        views = views_of(messages, api)
        for _, ledger, _ in grown(rng, messages, api):
            said = json.loads(ledger.dumps())
            said["known"] = [view.digest for view in views]
            odd = tampered(rng, _Said(said))
            out = apply(messages, replay(views, odd).decisions, api)
            assert not wrong_with(out, api), f"seed {seed}, {api}: {wrong_with(out, api)}\n{shown(out, api)}"


class _Said:
    """A ledger's JSON with the digests of a history beside it."""

    def __init__(self, data):
        self._data = data

    def dumps(self):
        return json.dumps(self._data)


def shown(messages, api):
    """A history at a glance, for a failure's message."""
    return "\n".join(json.dumps(message)[:150] for message in body_of(messages, api).popitem()[1])
