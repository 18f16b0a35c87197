"""Ways of caching a recorded run: each says all that was asked, also where no recorded data is at hand."""

from __future__ import annotations

import pytest

from benchmarks.trace_replay import STRATEGIES, Ask, Run
from cacheprefix.profiles import default_registry

ROLES = {"writer": "You write. " * 200, "critic": "You check. " * 200}
SAID = [f"Point {number}: " + "it is so because of that. " * 60 for number in range(6)]


def team() -> Run:
    """Two experts in turn, each with a system text of its own, on what was said so far."""
    asks = []
    for number in range(len(SAID)):
        agent = ("writer", "critic")[number % 2]
        told = tuple({"role": "user", "content": text} for text in SAID[: number + 1])
        asks.append(Ask(agent, ROLES[agent], told, 8.0 * number))
    return Run("team", tuple(asks), ROLES)


def alone() -> Run:
    """One agent whose log shows no more than its messages, with a tool's result."""
    said = [{"role": "user", "content": text} for text in SAID]
    said[1:1] = [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "found"},
    ]
    return Run("alone", tuple(Ask("", ROLES["writer"], tuple(said[:end]), 8.0 * end) for end in (1, 3, 5)))


@pytest.mark.parametrize("rules", ["openai", "anthropic"])
@pytest.mark.parametrize("name", list(STRATEGIES))
@pytest.mark.parametrize("make", [team, alone])
def test_a_way_of_caching_says_all_that_was_asked(make, name, rules):
    """One prompt a request, and in it the role's text and each message, wherever they stand."""
    run = make()
    prompts = STRATEGIES[name](run, default_registry().get(rules))
    if prompts is None:
        assert name not in ("none", "full", "ours")
        return
    made = list(prompts)
    assert len(made) == len(run.asks)
    for ask, prompt in zip(run.asks, made, strict=True):
        texts = b"\n".join(bytes(one.data) for one in prompt.sections).decode()
        for text in (ask.system, *(message["content"] or "" for message in ask.messages)):
            assert text.strip() in texts
