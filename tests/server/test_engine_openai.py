"""OpenAI's rules before and from gpt-5.6 on, each from the sentence that states it (checked 2026-11-21)."""

from __future__ import annotations

import pytest

from cacheprefix.profiles import default_registry
from cacheprefix.prompt import Prompt
from cacheprefix.server import ProviderCache, RefusedError
from cacheprefix.wire import decode

MARK = {"mode": "explicit"}
ENVELOPE = 3


def cache(row: str = "openai", model: str = "gpt-5", **options) -> ProviderCache:
    """A cache under a row, with the model's own values."""
    registry = default_registry()
    found = registry.profile_for(model, provider=row)
    return ProviderCache(found if found.name == row else registry.get(row), **options)


def text(number: int, tokens: int) -> str:
    """A text of exactly so many tokens by the estimate."""
    return (f"{number:03d} " + "words " * tokens)[: tokens * 4]


def message(number: int, tokens: int, *, role: str = "user", mark: bool = False) -> dict:
    """A message of a text of its own; marked, it is a block with a breakpoint."""
    if not mark:
        return {"role": role, "content": text(number, tokens)}
    block = {"type": "text", "text": text(number, tokens), "prompt_cache_breakpoint": MARK}
    return {"role": role, "content": [block]}


def ask(*messages: dict, model: str = "gpt-5", **fields) -> Prompt:
    """A prompt of these messages."""
    return decode({"model": model, "messages": list(messages), **fields}, "openai-chat")


def sized(total: int, number: int = 1) -> Prompt:
    """A prompt of one message and exactly ``total`` tokens."""
    return ask(message(number, total - ENVELOPE))


# ------------------------------------------------------------------------------------- before gpt-5.6


def test_the_documented_usage_example_of_2006_tokens_reads_1920():
    """The guide's example: prompt_tokens 2006, cached_tokens 1920: "cache hits in increments of 128 tokens".

    Source: https://platform.openai.com/docs/guides/prompt-caching.
    """
    server = cache()
    server.serve(sized(2006), 0)
    assert server.serve(sized(2006), 1).read_tokens == 1920


@pytest.mark.parametrize(("total", "read"), [(1023, 0), (1024, 1024), (1151, 1024), (1152, 1152)])
def test_caching_begins_at_1024_tokens_and_goes_in_steps_of_128(total, read):
    """Caching is available for prompts containing 1024 tokens or more (the guide)."""
    server = cache()
    server.serve(sized(total), 0)
    assert server.serve(sized(total), 1).read_tokens == read


def test_an_equal_beginning_inside_a_message_counts():
    """Cache hits are only possible for exact prefix matches: of the prompt, not of whole messages (the guide)."""
    server = cache()
    shared = text(1, 3000)
    server.serve(ask({"role": "user", "content": shared + "first"}), 0)
    assert server.serve(ask({"role": "user", "content": shared + "other"}), 1).read_tokens == 2944


def test_what_differs_in_its_first_words_shares_nothing():
    """Place static content at the beginning of your prompt (the guide)."""
    server = cache()
    server.serve(ask(message(1, 50), message(2, 3000)), 0)
    assert server.serve(ask(message(3, 50), message(2, 3000)), 1).read_tokens == 0


def test_tools_stand_before_the_messages():
    """The tools array is part of the prefix (the guide, "what can be cached")."""
    tools = [{"type": "function", "function": {"name": name, "description": text(7, 900)}} for name in ("a", "b")]
    server = cache()
    server.serve(ask(message(1, 3000), tools=tools), 0)
    assert server.serve(ask(message(1, 3000), tools=tools), 1).read_tokens > 4000
    assert server.serve(ask(message(1, 3000), tools=tools[::-1]), 2).read_tokens == 0


@pytest.mark.parametrize(
    ("change", "shares"),
    [
        ({"temperature": 0.1, "max_completion_tokens": 9, "seed": 1, "user": "u", "stream": True}, True),
        ({"tool_choice": "none"}, True),
        ({"response_format": {"type": "json_object"}}, False),
        ({"reasoning_effort": "high"}, False),
        ({"prompt_cache_key": "other"}, False),
    ],
    ids=["sampling", "tool choice", "response format", "effort", "key"],
)
def test_which_settings_separate(change, shares):
    """Source: w3cschool copy of the guide, 2026-11-04: text.format, reasoning.effort … change the prefix."""
    server = cache()
    server.serve(sized(3000), 0)
    assert (server.serve(ask(message(1, 2997), **change), 1).read_tokens > 0) is shares


def test_an_idle_entry_goes_after_five_minutes_and_a_used_one_after_an_hour():
    """In-memory prefixes remain active for 5 to 10 minutes of inactivity, up to an hour (the guide).

    The row promises the lower figure.
    """
    server = cache()
    server.serve(sized(3000), 0)
    assert server.serve(sized(3000), 301).read_tokens == 0
    reads = [server.serve(sized(3000), 301 + 250 * n).read_tokens > 0 for n in range(1, 16)]
    assert reads == [True] * 14 + [False]


def test_extended_retention_is_asked_for_by_the_request():
    """``prompt_cache_retention: 24h`` keeps prefixes for up to 24 hours (openai 2.54.0; the row relies on one)."""
    server = cache()
    server.serve(ask(message(1, 3000), prompt_cache_retention="24h"), 0)
    assert server.serve(ask(message(1, 3000), prompt_cache_retention="24h"), 3600).read_tokens > 0


def test_a_crowded_key_spills_to_other_machines():
    """About 15 requests a minute for one prefix and key, then other machines (OpenAI cookbook)."""
    server = cache(crowding=True)
    reads = [server.serve(sized(3000), n / 10).read_tokens > 0 for n in range(17)]
    assert reads == [False] + [True] * 14 + [False, True]
    assert server.serve(sized(3000), 61.7).read_tokens > 0


def test_writes_are_not_billed():
    """There is no extra charge for writing (the guide), and usage has no field for it."""
    assert cache().serve(sized(3000), 0).write_tokens == {}


# --------------------------------------------------------------------------------------- from gpt-5.6 on

SHARED = (message(1, 400, role="system"), message(2, 2000))
SHARED_TOKENS = 2400 + 2 * ENVELOPE


def fork(number: int, *, mark: bool = False, **fields) -> Prompt:
    """The shared messages and a tail of its own; ``mark`` puts a breakpoint at the end of the shared part."""
    return ask(SHARED[0], message(2, 2000, mark=mark), message(number, 300), **fields)


def test_implicit_forks_read_nothing_by_the_strict_reading():
    """Strict reading (row openai-5.6): reads happen only where an earlier request set a breakpoint.

    The implicit one stands on the newest message. Source: github.com/openai/codex#35300 (contested).
    """
    server = cache("openai-5.6")
    outcomes = [server.serve(fork(number), number) for number in (10, 11, 12)]
    assert [one.read_tokens for one in outcomes] == [0, 0, 0]
    assert outcomes[1].cost_units(server.profile) == pytest.approx(1.25 * (SHARED_TOKENS + 303))


def test_implicit_forks_read_whole_messages_by_the_other_reading():
    """Row openai-5.6-prefix: LiteLLM PR #37628 measured the shared part read in implicit mode (contested)."""
    server = cache("openai-5.6-prefix")
    server.serve(fork(10), 0)
    assert server.serve(fork(11), 1).read_tokens == SHARED_TOKENS


def test_whole_messages_and_no_part_of_one():
    """Row openai-5.6-prefix reads messages; a common beginning inside the first differing one is not read."""
    server = cache("openai-5.6-prefix")
    server.serve(ask(*SHARED, {"role": "user", "content": text(9, 3000) + "a"}), 0)
    assert server.serve(ask(*SHARED, {"role": "user", "content": text(9, 3000) + "b"}), 1).read_tokens == SHARED_TOKENS


@pytest.mark.parametrize("row", ["openai-5.6", "openai-5.6-prefix"])
def test_an_explicit_breakpoint_at_the_shared_end_is_read_under_both_readings(row):
    """``prompt_cache_breakpoint`` on a content block (openai 2.54.0); "not rounded to a token block"."""
    server = cache(row)
    server.serve(fork(10, mark=True), 0)
    outcome = server.serve(fork(11, mark=True), 1)
    assert outcome.read_tokens == SHARED_TOKENS
    assert outcome.write_tokens == {"30m": 303}


def test_another_key_reads_nothing():
    """``prompt_cache_key`` separates: the same marks under another key miss."""
    server = cache("openai-5.6")
    server.serve(fork(10, mark=True, prompt_cache_key="a"), 0)
    assert server.serve(fork(11, mark=True, prompt_cache_key="b"), 1).read_tokens == 0
    assert server.serve(fork(12, mark=True, prompt_cache_key="a"), 2).read_tokens == SHARED_TOKENS


def test_a_growing_conversation_reads_what_was_the_newest_message_before():
    """The implicit breakpoint is chosen by OpenAI on every request (openai 2.54.0)."""
    server = cache("openai-5.6")
    server.serve(ask(*SHARED), 0)
    assert server.serve(ask(*SHARED, message(3, 100), message(4, 100)), 1).read_tokens == SHARED_TOKENS


def test_explicit_mode_without_breakpoints_uses_no_cache():
    """If there are no explicit breakpoints, the request does not use prompt caching (openai 2.54.0)."""
    server = cache("openai-5.6")
    options = {"prompt_cache_options": {"mode": "explicit"}}
    outcomes = [server.serve(ask(*SHARED, **options), now) for now in range(2)]
    assert [(one.read_tokens, one.written_tokens) for one in outcomes] == [(0, 0), (0, 0)]


def test_explicit_mode_writes_nothing_behind_the_last_breakpoint():
    """With explicit, OpenAI does not create an implicit breakpoint (openai 2.54.0)."""
    server = cache("openai-5.6")
    outcome = server.serve(fork(10, mark=True, prompt_cache_options={"mode": "explicit"}), 0)
    assert (outcome.written_tokens, outcome.uncached_tokens) == (SHARED_TOKENS, 303)


def test_only_the_latest_three_explicit_breakpoints_are_written_beside_the_implicit_one():
    """With implicit, OpenAI writes up to the latest three explicit breakpoints (openai 2.54.0)."""
    marked = [message(n, 1500, mark=True) for n in range(1, 6)]
    reads = []
    for kept in (1, 2, 3, 4, 5):
        server = cache("openai-5.6")
        server.serve(ask(*marked, message(9, 10)), 0)
        reads.append(server.serve(ask(*marked[:kept], message(20, 10)), 1).read_tokens)
    assert [read // 1503 for read in reads] == [0, 0, 3, 4, 5]


def test_there_is_no_lookback_limit():
    """Without a content-block lookback limit (openai 2.54.0)."""
    server = cache("openai-5.6")
    server.serve(ask(*SHARED), 0)
    many = [message(100 + n, 5) for n in range(200)]
    assert server.serve(ask(*SHARED, *many), 1).read_tokens == SHARED_TOKENS


@pytest.mark.parametrize(("later", "hit"), [(79, True), (80, False)])
def test_the_latest_80_breakpoints_are_considered(later, hit):
    """For cache matching, OpenAI considers up to the latest 80 breakpoints in the conversation (openai 2.54.0)."""
    server = cache("openai-5.6")
    options = {"prompt_cache_options": {"mode": "explicit"}}
    server.serve(ask(message(1, 2000, mark=True), **options), 0)
    marks = [message(100 + n, 5, mark=True) for n in range(later)]
    outcome = server.serve(ask(message(1, 2000, mark=True), *marks, **options), 1)
    assert (outcome.read_tokens == 2003) is hit


def test_an_entry_lives_30_minutes_and_a_read_does_not_prolong_it():
    """The ttl defaults to 30m (openai 2.54.0); whether a read refreshes is not stated, so the row says no."""
    server = cache("openai-5.6")
    server.serve(ask(*SHARED), 0)
    assert server.serve(ask(*SHARED), 1700).read_tokens == SHARED_TOKENS
    assert server.serve(ask(*SHARED), 1801).read_tokens == 0


def test_twelve_hours_are_asked_for_in_the_options():
    """12h at 2.5 (pydantic_ai_slim 2.68 verified it live; the SDK knows 30m only: contested)."""
    server = cache("openai-5.6")
    options = {"prompt_cache_options": {"ttl": "12h"}}
    assert server.serve(ask(*SHARED, **options), 0).write_tokens == {"12h": SHARED_TOKENS}
    assert server.serve(ask(*SHARED, **options), 43_200).read_tokens == SHARED_TOKENS


def test_an_unknown_lifetime_in_the_options_is_refused():
    """30m is currently the only supported value (openai 2.54.0)."""
    with pytest.raises(RefusedError, match="5m"):
        cache("openai-5.6").serve(ask(*SHARED, prompt_cache_options={"ttl": "5m"}), 0)


def test_below_1024_tokens_nothing_is_written():
    """1024 tokens, as before (w3cschool copy of the guide, 2026-11-04)."""
    server = cache("openai-5.6")
    outcomes = [server.serve(sized(1023), now) for now in range(2)]
    assert [(one.read_tokens, one.written_tokens) for one in outcomes] == [(0, 0), (0, 0)]
