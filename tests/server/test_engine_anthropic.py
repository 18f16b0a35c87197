"""Anthropic's rules, each from the sentence of its documentation that states it.

Where no other source is named it is https://platform.claude.com/docs/en/build-with-claude/prompt-caching,
checked on 2026-11-21 (profile row ``anthropic``).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from cacheprefix.profiles import default_registry
from cacheprefix.prompt import Prompt
from cacheprefix.server import ProviderCache, RefusedError
from cacheprefix.wire import decode

MODEL = "claude-sonnet-4-6"
MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
ENVELOPE = 3
"""Tokens the first block of a message counts for its envelope."""


def cache(model: str = MODEL, row: str = "anthropic") -> ProviderCache:
    """A cache under the rules for a model."""
    return ProviderCache(default_registry().profile_for(model, provider=row))


def text(number: int, tokens: int = 300) -> str:
    """A text of exactly ``tokens`` by the estimate, different for each number."""
    return (f"{number:03d} " + "words " * tokens)[: tokens * 4]


def block(number: int, tokens: int = 300, mark: dict | None = None) -> dict:
    """A text block, marked or not."""
    made = {"type": "text", "text": text(number, tokens)}
    return {**made, "cache_control": mark} if mark else made


def ask(*content: dict, api: str = "anthropic", **fields) -> Prompt:
    """A prompt of one user message."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": list(content)}], **fields}
    return decode(body, api)


def blocks(count: int, *marks: int, mark: dict = MARK, **fields) -> Prompt:
    """A user message of ``count`` blocks of 300 tokens; ``marks`` count from 1, as the documentation does."""
    return ask(*(block(number, mark=mark if number in marks else None) for number in range(1, count + 1)), **fields)


def size(count: int) -> int:
    """Tokens of a message of so many blocks."""
    return count * 300 + ENVELOPE


def test_the_documented_growing_conversation_hits_at_15_blocks_and_misses_at_35():
    """Turn 1 writes at block 10; turn 2 (15 blocks) finds it; turn 3 (35 blocks) checks 35 to 16 and misses 15."""
    server = cache()
    first, second, third = (server.serve(blocks(n, n), now) for now, n in enumerate((10, 15, 35)))
    assert (first.read_tokens, first.write_tokens) == (0, {"5m": size(10)})
    assert (second.read_tokens, second.write_tokens) == (size(10), {"5m": 5 * 300})
    assert (third.read_tokens, third.write_tokens) == (0, {"5m": size(35)})


def test_a_second_breakpoint_at_the_old_write_finds_it():
    """Adding a second breakpoint at block 15 starts a second lookback window there, which finds the entry."""
    server = cache()
    server.serve(blocks(15, 15), 0)
    assert server.serve(blocks(35, 15, 35), 1).read_tokens == size(15)


@pytest.mark.parametrize(("grown", "hit"), [(19, True), (20, False)])
def test_the_window_is_20_positions_counting_the_breakpoint_as_the_first(grown, hit):
    """The system checks at most 20 positions per breakpoint, counting the breakpoint itself as the first."""
    server = cache()
    server.serve(blocks(10, 10), 0)
    assert server.serve(blocks(10 + grown, 10 + grown), 1).read_tokens == (size(10) if hit else 0)


def test_a_breakpoint_on_a_block_that_changes_never_reads():
    """Common mistake: the lookback finds earlier writes, not stable content behind the breakpoint."""
    server = cache()
    outcomes = [
        server.serve(ask(*(block(n) for n in range(1, 6)), block(100 + now, mark=MARK)), now) for now in range(3)
    ]
    assert [one.read_tokens for one in outcomes] == [0, 0, 0]
    assert all(one.written_tokens == size(6) for one in outcomes)


def test_the_breakpoint_moved_to_the_stable_block_reads():
    """Move cache_control to block 5, and every subsequent request reads the cached prefix."""
    server = cache()
    stable = [*(block(n) for n in range(1, 5)), block(5, mark=MARK)]
    outcomes = [server.serve(ask(*stable, block(100 + now)), now) for now in range(3)]
    assert [one.read_tokens for one in outcomes] == [0, size(5), size(5)]


@pytest.mark.parametrize(
    ("model", "least"),
    [
        ("claude-opus-5", 512),
        ("claude-fable-5-1", 512),
        ("claude-opus-4-8", 1024),
        ("claude-sonnet-5", 1024),
        ("claude-sonnet-4-5-20250929", 1024),
        ("claude-opus-4-7", 2048),
        ("claude-3-5-haiku-20241022", 2048),
        ("claude-opus-4-5", 4096),
        ("claude-haiku-4-5", 4096),
    ],
)
def test_a_prefix_below_the_models_minimum_is_neither_written_nor_read_and_no_error(model, least):
    """Shorter prompts cannot be cached, even if marked with cache_control, and no error is returned."""
    for tokens, cached in ((least - 1, False), (least, True)):
        server = cache(model)
        prompt = ask(block(1, tokens - ENVELOPE, MARK))
        assert prompt.tokens == tokens
        first, second = server.serve(prompt, 0), server.serve(prompt, 1)
        assert (first.written_tokens > 0) is cached
        assert (second.read_tokens > 0) is cached


@pytest.mark.parametrize(("mark", "seconds"), [(MARK, 300), (HOUR, 3600)])
def test_an_entry_lives_for_its_lifetime_and_no_longer(mark, seconds):
    """By default 5 minutes; ttl 1h for an hour."""
    assert _after(mark, seconds) == size(5)
    assert _after(mark, seconds + 1) == 0


def _after(mark: dict, seconds: float) -> int:
    server = cache()
    server.serve(blocks(5, 5, mark=mark), 0)
    return server.serve(blocks(5, 5, mark=mark), seconds).read_tokens


def test_a_read_refreshes_the_entry():
    """The cache is refreshed for no additional cost each time the cached content is used."""
    server = cache()
    server.serve(blocks(5, 5), 0)
    assert [server.serve(blocks(5, 5), now).read_tokens for now in (290, 580, 870)] == [size(5)] * 3


def test_the_lifetime_runs_from_the_start_of_the_request():
    """A lifetime is measured from the start of the request (anthropics/skills, prompt-caching.md @fc9191c)."""
    server = cache()
    server.serve(blocks(5, 5), 0, first_token_at=20, ended_at=120)
    assert server.serve(blocks(5, 5), 301).read_tokens == 0


def test_reading_a_longer_entry_keeps_the_shorter_ones_on_its_way_alive():
    """The content of a shorter prefix is used whenever a longer one is read."""
    server = cache()
    server.serve(blocks(10, 5, 10), 0)
    server.serve(blocks(10, 10), 200)
    assert server.serve(
        ask(*(block(n, mark=MARK if n == 5 else None) for n in (1, 2, 3, 4, 5, 77))), 400
    ).read_tokens == (size(5))


def test_a_fifth_breakpoint_is_refused():
    """You can define up to 4 cache breakpoints; the API answers 400 for more."""
    assert cache().serve(blocks(8, 2, 4, 6, 8), 0).written_tokens == size(8)
    with pytest.raises(RefusedError, match=r"maximum of 4 .* Found 5") as caught:
        cache().serve(blocks(8, 1, 2, 4, 6, 8), 0)
    assert caught.value.status == 400


def test_a_refused_request_leaves_no_trace():
    """What was answered with 400 was not processed."""
    server = cache()
    with pytest.raises(RefusedError):
        server.serve(blocks(8, 1, 2, 4, 6, 8), 0)
    assert server.serve(blocks(8, 8), 1).read_tokens == 0


def test_the_automatic_breakpoint_moves_to_the_last_block():
    """A top-level cache_control applies the breakpoint to the last cacheable block."""
    server = cache()
    assert server.serve(blocks(5, cache_control=MARK), 0).written_tokens == size(5)
    assert server.serve(blocks(8, cache_control=MARK), 1).read_tokens == size(5)


def test_the_automatic_breakpoint_takes_one_of_the_four():
    """If 4 explicit block-level breakpoints already exist, the API returns a 400 error."""
    assert cache().serve(blocks(8, 1, 2, 4, cache_control=MARK), 0).written_tokens == size(8)
    with pytest.raises(RefusedError):
        cache().serve(blocks(8, 1, 2, 4, 6, cache_control=MARK), 0)


def test_the_automatic_breakpoint_on_a_marked_block_is_no_second_one():
    """If the last block already has an explicit cache_control with the same TTL, automatic is a no-op."""
    assert cache().serve(blocks(8, 2, 4, 6, 8, cache_control=MARK), 0).written_tokens == size(8)


def test_the_automatic_breakpoint_with_another_lifetime_than_the_last_blocks_is_refused():
    """If the last block has an explicit cache_control with a different TTL, the API returns a 400 error."""
    with pytest.raises(RefusedError, match="another ttl"):
        cache().serve(blocks(8, 8, cache_control=HOUR), 0)


def test_the_automatic_breakpoint_walks_back_over_what_cannot_be_marked():
    """If the last block is not eligible, the system silently walks backwards to the nearest eligible block."""
    prompt = ask(block(1, 2000), {"type": "text", "text": ""}, cache_control=MARK)
    assert cache().serve(prompt, 0).written_tokens == 2000 + ENVELOPE


@pytest.mark.parametrize(
    "unmarkable",
    [
        {"type": "thinking", "thinking": "hm", "signature": "s", "cache_control": MARK},
        {"type": "text", "text": "", "cache_control": MARK},
    ],
)
def test_thinking_and_empty_text_cannot_be_marked(unmarkable):
    """Thinking blocks cannot be cached directly with cache_control; empty text blocks cannot be cached."""
    with pytest.raises(RefusedError, match="thinking or empty text"):
        cache().serve(ask(block(1, 2000), unmarkable), 0)


def test_mixed_lifetimes_are_billed_by_the_three_positions():
    """A: the highest hit; B: the last 1h mark after it; C: the last mark. 1h for B - A, 5m for C - B."""
    server = cache()
    server.serve(blocks(5, 5, mark=HOUR), 0)
    prompt = ask(*(block(n, mark={5: HOUR, 8: HOUR, 10: MARK}.get(n)) for n in range(1, 13)))
    outcome = server.serve(prompt, 1)
    assert outcome.read_tokens == size(5)
    assert outcome.write_tokens == {"1h": 3 * 300, "5m": 2 * 300}
    assert outcome.uncached_tokens == 2 * 300


def test_a_longer_lifetime_behind_a_shorter_one_is_refused():
    """Cache entries with longer TTL must appear before shorter TTLs."""
    with pytest.raises(RefusedError, match="must not come after"):
        cache().serve(ask(block(1, 2000, MARK), block(2, 2000, HOUR)), 0)


def test_an_unknown_lifetime_is_refused():
    """The SDK's ``CacheControlEphemeralParam.ttl`` knows 5m and 1h only (anthropic 2.11.0)."""
    with pytest.raises(RefusedError, match="'2h'"):
        cache().serve(blocks(5, 5, mark={"type": "ephemeral", "ttl": "2h"}), 0)


def test_more_breakpoints_cost_no_more():
    """Adding more cache_control breakpoints doesn't increase your costs."""
    one, four = (cache().serve(blocks(8, *marks), 0) for marks in ((8,), (2, 4, 6, 8)))
    assert one.write_tokens == four.write_tokens


def test_the_documented_token_breakdown():
    """100,000 tokens read, 0 written, 50 behind the breakpoint: input_tokens is 50."""
    server = cache()
    cached = block(1, 100_000 - ENVELOPE, MARK)
    server.serve(ask(cached, block(2, 50)), 0)
    outcome = server.serve(ask(cached, block(3, 50)), 1)
    assert (outcome.read_tokens, outcome.written_tokens, outcome.uncached_tokens) == (100_000, 0, 50)


def test_where_a_marker_stands_is_not_content():
    """Markers move along a growing conversation; the prefix before them stays the same prefix."""
    server = cache()
    server.serve(blocks(5, 5), 0)
    server.serve(blocks(8, 8), 1)
    assert server.serve(blocks(10, 10), 2).read_tokens == size(8)


TOOLS = [{"name": "look", "description": text(900, 1500), "input_schema": {"type": "object"}}]
SYSTEM = [{"type": "text", "text": text(901, 1500), "cache_control": MARK}]


def three_tiers(*, tools: list = TOOLS, system: list = SYSTEM, **fields) -> Prompt:
    """Breakpoints at the end of the tools, of the system and of the messages."""
    marked = [*tools[:-1], {**tools[-1], "cache_control": MARK}]
    return ask(block(1, 1500, MARK), tools=marked, system=system, **fields)


def _tokens_of(prompt: Prompt, *tiers: str) -> int:
    return sum(one.tokens for one in prompt.sections if one.tier in tiers)


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, ("tools", "system", "messages")),
        (
            {"temperature": 0.5, "max_tokens": 7, "stream": True, "metadata": {"user_id": "u"}},
            ("tools", "system", "messages"),
        ),
        ({"tool_choice": {"type": "any"}}, ("tools", "system")),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, ("tools", "system")),
        ({"speed": "fast"}, ("tools",)),
        ({"system": [{"type": "text", "text": text(902, 1500), "cache_control": MARK}]}, ("tools",)),
        ({"tools": [{**TOOLS[0], "description": text(903, 1500)}]}, ()),
        ({"tools": [{"name": "more", "input_schema": {"type": "object"}}, *TOOLS]}, ()),
    ],
    ids=["nothing", "sampling", "tool choice", "thinking", "speed", "system", "tool text", "tool before"],
)
def test_what_a_change_invalidates(change, kept):
    """The table "What invalidates the cache": a change kills its tier and those after it."""
    server = cache()
    server.serve(three_tiers(), 0)
    outcome = server.serve(three_tiers(**change), 1)
    assert outcome.read_tokens == _tokens_of(three_tiers(), *kept)


def test_another_model_reads_nothing():
    """Caches are specific to a model (anthropics/skills, prompt-caching.md @fc9191c)."""
    server = cache()
    server.serve(blocks(5, 5), 0)
    assert server.serve(replace(blocks(5, 5), model="claude-sonnet-4-5"), 1).read_tokens == 0


def test_another_workspace_reads_nothing():
    """Caches are isolated per workspace within an organization."""
    server = cache()
    server.serve(blocks(5, 5), 0, scope="ours")
    assert server.serve(blocks(5, 5), 1, scope="theirs").read_tokens == 0
    assert server.serve(blocks(5, 5), 2, scope="ours").read_tokens == size(5)


def test_requests_that_start_together_on_a_cold_cache_all_write():
    """For concurrent requests, a cache entry only becomes available after the first response begins."""
    server = cache()
    together = [server.begin(blocks(5, 5), 0) for _ in range(3)]
    assert [one.outcome.written_tokens for one in together] == [size(5)] * 3
    assert server.serve(blocks(5, 5), 1).read_tokens == 0
    together[0].begun(2)
    assert server.serve(blocks(5, 5), 2).read_tokens == size(5)


def test_an_entry_is_readable_from_the_first_token_on_and_not_only_from_the_end():
    """Available after the first response begins."""
    server = cache()
    server.serve(blocks(5, 5), 0, first_token_at=2, ended_at=30)
    assert server.serve(blocks(5, 5), 1).read_tokens == 0
    assert server.serve(blocks(5, 5), 3).read_tokens == size(5)


def test_a_live_entry_that_is_written_anew_for_an_hour_lives_for_an_hour():
    """Two start on a cold cache and both write: what the second pays twice the price for lasts as long."""
    server = cache()
    first = server.begin(blocks(4, 4), 0)
    second = server.begin(blocks(4, 4, mark=HOUR), 1)
    first.ended(2)
    second.ended(2)
    assert second.outcome.write_tokens == {"1h": size(4)}
    assert server.serve(blocks(4, 4), 3_000).read_tokens == size(4)


def test_a_failed_request_leaves_no_entry():
    """Nothing was answered, so nothing became available."""
    server = cache()
    server.begin(blocks(5, 5), 0).failed()
    assert server.serve(blocks(5, 5), 1).read_tokens == 0


def test_a_failed_request_takes_only_its_own_write_back():
    """Of two requests that write the same prefix, one may fail."""
    server = cache()
    failing, lasting = server.begin(blocks(5, 5), 0), server.begin(blocks(5, 5), 0)
    failing.failed()
    lasting.begun(1)
    assert server.serve(blocks(5, 5), 2).read_tokens == size(5)


def tool_turn(results: int) -> list[dict]:
    """Parallel calls and their results, the last one marked."""
    uses = [{"type": "tool_use", "id": f"t{n}", "name": "look", "input": {"n": n}} for n in range(results)]
    answers = [{"type": "tool_result", "tool_use_id": f"t{n}", "content": text(n)} for n in range(results)]
    answers[-1]["cache_control"] = MARK
    return [{"role": "assistant", "content": uses}, {"role": "user", "content": answers}]


def parallel_calls(row: str, model: str = MODEL) -> int:
    """Tokens read by a request that adds 30 parallel calls behind a write."""
    server = cache(model, row)
    start = {"role": "user", "content": [block(1, 2000, MARK)]}
    server.serve(decode({"model": model, "messages": [start]}, "anthropic"), 0)
    plain = {"role": "user", "content": [block(1, 2000)]}
    return server.serve(decode({"model": model, "messages": [plain, *tool_turn(30)]}, "anthropic"), 1).read_tokens


def test_a_run_of_tool_uses_or_of_tool_results_counts_as_one_position():
    """A run of consecutive tool_use blocks counts as one position, and so does one of tool_result blocks."""
    assert parallel_calls("anthropic") == 2000 + ENVELOPE


def test_on_bedrock_every_block_of_a_run_counts():
    """Runs are not collapsed on Bedrock (pydantic_ai_slim 2.68, models/bedrock; row ``bedrock``, 2026-11-21)."""
    assert parallel_calls("bedrock") == 0
