"""The provider's side and the client's expectation follow one table by two paths, and meet."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheprefix.cache import CacheModel, SentBy
from cacheprefix.profiles import Profile, Slots, Usage, default_registry
from cacheprefix.prompt import Envelope, Prompt
from cacheprefix.server import ProviderCache, RefusedError, Serving
from cacheprefix.wire import decode
from tests.drawn import examples

ROWS = (
    "exact",
    "openai",
    "openai-5.6",
    "openai-5.6-prefix",
    "anthropic",
    "bedrock",
    "gemini-implicit",
    "deepseek",
    "groq",
    "vllm",
    "llama.cpp",
    "unknown",
)
TOKENS = 300
"""A word stands for so many tokens, so that a few messages pass every minimum."""


@dataclass(frozen=True)
class Sent:
    """One request of a scenario."""

    words: tuple[str, ...]
    marks: frozenset[int]
    choice: str
    gap: float
    answer: float
    """Seconds to the first token; the next request may start before."""

    fails: bool
    scope: str
    hour: bool
    """Whether its marks ask for an hour, so that live entries are rewritten with another lifetime."""


def sent() -> st.SearchStrategy[Sent]:
    """Requests that often continue one another and sometimes part."""
    return st.builds(
        Sent,
        words=st.lists(st.sampled_from("aaab"), min_size=1, max_size=30).map(tuple),
        marks=st.frozensets(st.integers(0, 29), max_size=5),
        choice=st.sampled_from(["auto", "auto", "any"]),
        gap=st.sampled_from([0.0, 1.0, 5.0, 200.0, 299.0, 301.0, 1500.0, 4000.0]),
        answer=st.sampled_from([0.5, 2.0, 100.0]),
        fails=st.sampled_from([False, False, False, False, True]),
        scope=st.sampled_from(["", "", "other"]),
        hour=st.sampled_from([False, False, True]),
    )


def prompt_of(request: Sent, profile: Profile) -> Prompt:
    """The request as a body with tools, a system text and marks."""
    blocks: list[dict[str, Any]] = []
    for index, word in enumerate(request.words):
        block: dict[str, Any] = {"type": "text", "text": f"{index}{word}" + word * TOKENS * 4}
        if index in request.marks:
            block["cache_control"] = {"type": "ephemeral", **({"ttl": "1h"} if request.hour else {})}
        blocks.append(block)
    roles = ("user", "assistant")
    messages = [
        {"role": roles[index // 4 % 2], "content": blocks[index : index + 4]} for index in range(0, len(blocks), 4)
    ]
    body = {
        "model": "m",
        "tools": [{"name": "look", "input_schema": {}}],
        "system": "be brief",
        "messages": messages,
        "tool_choice": {"type": request.choice},
    }
    return decode(body, "anthropic")


SLOTS = {"slots": Slots(2, 0.1, None), "one slot": Slots(1, 0.1, 2000), "slots without a store": Slots(3, 0.5)}
"""Engines that keep lines, beside the table's ``llama.cpp``."""


def rules(row: str) -> Profile:
    """A row of the table, or ``llama.cpp`` with other slots."""
    if row not in SLOTS:
        return default_registry().get(row)
    return replace(default_registry().get("llama.cpp"), slots=SLOTS[row])


@pytest.mark.slow
@pytest.mark.parametrize("row", [*ROWS, *SLOTS])
@settings(max_examples=examples(40))
@given(requests=st.lists(sent(), min_size=2, max_size=8))
def test_what_the_client_expects_is_what_the_provider_reads_and_writes(row, requests):
    """Concurrent starts, gaps around the lifetimes, failed calls, two scopes, marks anywhere: no difference."""
    profile = rules(row)
    opening = 2 if profile.recomputes_last else 0
    envelope = Envelope(opening=opening, before_role=max(0, opening - 1))
    provider, client = ProviderCache(profile, opening=opening), CacheModel(envelope=envelope)
    under_way: list[tuple[float, Sent, Serving, Any]] = []
    now = 0.0
    for request in requests:
        now += request.gap
        for one in sorted((one for one in under_way if one[0] <= now), key=lambda one: one[0]):
            under_way.remove(one)
            _answer(client, *one)
        prompt = prompt_of(request, profile)
        try:
            serving = provider.begin(prompt, now, scope=request.scope)
        except RefusedError:
            continue
        observed = client.begin(prompt, profile, SentBy(request.scope), at=now)
        outcome = serving.outcome
        assert observed.expectation.tokens == outcome.read_tokens
        assert dict(observed.expectation.usage.cache_write or {}) == {
            name: tokens for name, tokens in outcome.write_tokens.items() if tokens
        }
        under_way.append((now + request.answer, request, serving, observed))


def _answer(client: CacheModel, at: float, request: Sent, serving: Serving, observed: Any) -> None:
    # What can be read from the start on outlives a failure at the provider; the client does not count on it.
    if request.fails and observed.profile.readable != "start":
        serving.failed()
        client.fail(observed)
        return
    serving.begun(at)
    client.first_token(observed, at)
    serving.ended(at)
    outcome = serving.outcome
    usage = Usage(outcome.input_tokens, outcome.read_tokens, outcome.write_tokens, 1)
    verdict = client.finish(observed, usage, at)
    assert verdict.cause != "provider_miss"
