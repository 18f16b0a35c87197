"""Expectations against hand-computed cases from provider documentation, and against the simulated provider."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheprefix.cache import CacheModel, Observation, SentBy
from cacheprefix.profiles import Profile, default_registry
from cacheprefix.prompt import Envelope, Prompt
from cacheprefix.server import ProviderCache, RefusedError
from cacheprefix.wire import decode
from tests.drawn import examples

ENVELOPE = 3
"""Tokens of a message's envelope in this project's counting."""


def characters(text: str, model: str = "") -> int:
    """One token a character, so that cases can be worked out by hand."""
    return len(text)


def chat(*texts: str, model: str = "m", **fields: Any) -> Prompt:
    """A chat whose messages are user and assistant in turn; each counts its length plus the envelope."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    return decode({"model": model, "messages": messages, **fields}, "openai-chat", count=characters)


def claude(*blocks: tuple[str, str | None], model: str = "claude-sonnet-4-5", **fields: Any) -> Prompt:
    """One user message of text blocks, each with the lifetime of its breakpoint: "", "5m", "1h" or None."""
    content = [
        {"type": "text", "text": text}
        | ({"cache_control": {"type": "ephemeral"} | ({"ttl": ttl} if ttl else {})} if ttl is not None else {})
        for text, ttl in blocks
    ]
    body = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": content}], **fields}
    return decode(body, "anthropic", count=characters)


def rules(name: str) -> Profile:
    """A shipped row."""
    return default_registry().get(name)


def seen(model: CacheModel, prompt: Prompt, profile: Profile, at: float = 0.0) -> int:
    """Send a prompt, answered at once; the tokens expected to be read."""
    observation = model.begin(prompt, profile, at=at)
    model.first_token(observation, at)
    model.finish(observation, None, at)
    return observation.expectation.tokens


def test_openai_reads_1920_of_2006_tokens() -> None:
    """OpenAI's guide: a prompt of 2,006 tokens sent again reports 1,920 cached, the next lower step of 128."""
    model = CacheModel(count=characters)
    prompt = chat("x" * (2006 - ENVELOPE))
    assert seen(model, prompt, rules("openai")) == 0
    assert seen(model, prompt, rules("openai"), 1.0) == 1920


def test_openai_reads_nothing_below_1024_tokens() -> None:
    """OpenAI's guide: caching is for prompts of 1,024 tokens or more."""
    model = CacheModel(count=characters)
    assert [seen(model, chat("x" * (1023 - ENVELOPE)), rules("openai"), at) for at in (0.0, 1.0)] == [0, 0]
    assert [seen(model, chat("y" * (1024 - ENVELOPE)), rules("openai"), at) for at in (2.0, 3.0)] == [0, 1024]


def test_a_shared_beginning_inside_one_message_is_read_in_whole_blocks() -> None:
    """Two messages of 3,000 characters that part after 2,000 share 2,000 tokens: 15 blocks of 128."""
    model = CacheModel(count=characters)
    seen(model, chat("x" * 2000 + "a" * 1000), rules("openai"))
    assert seen(model, chat("x" * 2000 + "b" * 1000), rules("openai"), 1.0) == 1920


def test_exact_rules_read_every_shared_token() -> None:
    """The rule set of the research tables is token-exact and has no minimum."""
    model = CacheModel(count=characters)
    seen(model, chat("abc", "d"), rules("exact"))
    assert seen(model, chat("abc", "d", "e"), rules("exact"), 1.0) == (3 + ENVELOPE) + (1 + ENVELOPE)


def test_markers_in_front_of_other_texts_are_read_from_any_of_several_siblings() -> None:
    """With an engine's own envelope, what opens a message of a known role is shared although no text is."""
    model = CacheModel(count=characters, envelope=Envelope(ENVELOPE, opening=2, before_role=1))
    assert [seen(model, chat(text), rules("exact")) for text in ("abc", "def")] == [0, 2]
    assert seen(model, chat("xyz"), rules("exact"), 1.0) == 2


def test_anthropic_reads_only_what_was_marked() -> None:
    """Anthropic's guide: nothing is cached without cache_control, and reads end at an earlier breakpoint."""
    model, profile = CacheModel(count=characters), rules("anthropic")
    seen(model, claude(("s" * 2000, None), ("t" * 100, None)), profile)
    assert seen(model, claude(("s" * 2000, ""), ("t" * 100, None)), profile, 1.0) == 0
    assert seen(model, claude(("s" * 2000, ""), ("u" * 100, None)), profile, 2.0) == 2000 + ENVELOPE


@pytest.mark.parametrize(("added", "read"), [(19, 2000 + ENVELOPE), (20, 0)])
def test_anthropic_looks_back_twenty_positions(added: int, read: int) -> None:
    """Anthropic's guide: the breakpoint is the first of 20 positions; the 21st is not looked at."""
    model, profile = CacheModel(count=characters), rules("anthropic")
    seen(model, claude(("s" * 2000, "")), profile)
    later = [("s" * 2000, None), *[("b", None)] * (added - 1), ("b", "")]
    assert seen(model, claude(*later), profile, 1.0) == read


def test_anthropic_counts_a_run_of_tool_results_as_one_position() -> None:
    """Anthropic's guide, later wording: 30 parallel tool results are one position of the lookback."""
    model, profile = CacheModel(count=characters), rules("anthropic")

    def body(results: int, *, marked: int) -> Prompt:
        first: dict[str, Any] = {"type": "text", "text": "s" * 2000}
        rows: list[dict[str, Any]] = [
            {"type": "tool_result", "tool_use_id": f"t{i}", "content": "r"} for i in range(results)
        ]
        blocks = [first, *rows]
        blocks[marked]["cache_control"] = {"type": "ephemeral"}
        fields = {"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": blocks}]}
        return decode(fields, "anthropic", count=characters)

    seen(model, body(0, marked=0), profile)
    assert seen(model, body(30, marked=-1), profile, 1.0) == 2000 + ENVELOPE


def test_a_read_refreshes_five_minutes_and_silence_ends_them() -> None:
    """Anthropic's guide: the 5-minute lifetime starts anew with each use, from the start of the request."""
    model, profile = CacheModel(count=characters), rules("anthropic")
    prompt = claude(("s" * 2000, ""))
    reads = [seen(model, prompt, profile, at) for at in (0.0, 299.0, 598.0, 899.0)]
    assert reads == [0, 2003, 2003, 0]


def test_one_hour_outlives_five_minutes() -> None:
    """Anthropic's guide: ttl "1h" keeps an entry for an hour."""
    model, profile = CacheModel(count=characters), rules("anthropic")
    assert [seen(model, claude(("s" * 2000, "1h")), profile, at) for at in (0.0, 3599.0)] == [0, 2003]


def test_mixed_lifetimes_are_billed_as_documented() -> None:
    """Anthropic's "mixing different TTLs": up to the last 1-hour mark at that price, the rest at five minutes'."""
    model, profile = CacheModel(count=characters), rules("anthropic")
    prompt = claude(("a" * 2000, "1h"), ("b" * 500, "5m"), ("c" * 70, None))
    usage = model.begin(prompt, profile, at=0.0).expectation.usage
    assert dict(usage.cache_write or {}) == {"1h": 2000 + ENVELOPE, "5m": 500}
    assert usage.uncached_tokens == 70


def test_an_entry_cannot_be_read_before_the_first_answer_begins() -> None:
    """Anthropic's guide: parallel requests all pay until the first response begins."""
    model, profile = CacheModel(count=characters), rules("anthropic")
    prompt = claude(("s" * 2000, ""))
    first = model.begin(prompt, profile, at=0.0)
    assert model.begin(prompt, profile, at=0.5).expectation.tokens == 0
    model.first_token(first, 1.0)
    assert model.begin(prompt, profile, at=1.5).expectation.tokens == 2003


def test_both_readings_of_openai_implicit_mode() -> None:
    """From 5.6 on, forks of an unmarked prefix read nothing by one reading and the shared messages by the other."""
    shared = "s" * 2000
    for name, read in (("openai-5.6", 0), ("openai-5.6-prefix", 2003)):
        model, profile = CacheModel(count=characters), rules(name)
        seen(model, chat(shared, "a"), profile)
        assert seen(model, chat(shared, "b"), profile, 1.0) == read


def test_openai_writes_the_latest_four_breakpoints() -> None:
    """From 5.6 on, of five explicit marks the first is not written; it is still looked at for reading."""
    profile = rules("openai-5.6")

    def marked(count: int) -> Prompt:
        blocks = [
            {"type": "text", "text": f"{i}" * 1100, "prompt_cache_breakpoint": {"mode": "explicit"}}
            for i in range(count)
        ]
        fields: dict[str, Any] = {"model": "gpt-5.6", "messages": [{"role": "user", "content": blocks}]}
        fields["prompt_cache_options"] = {"mode": "explicit"}
        return decode(fields, "openai-chat", count=characters)

    model = CacheModel(count=characters)
    seen(model, marked(5), profile)
    assert seen(model, marked(1), profile, 1.0) == 0
    assert seen(model, marked(2), profile, 2.0) == 2200 + ENVELOPE


def steps_of_a_first_request(beside: int) -> int:
    """Python calls that a first request takes beside so many others, none of which can be read any more."""
    model, taken = CacheModel(count=characters), 0
    for number in range(beside):
        seen(model, chat(f"{number:05d}" + "x" * 1100), rules("openai"))
    prompt = chat(f"{beside // 2:05d}" + "y" * 1100)

    def counted(frame: object, event: str, about: object) -> None:
        nonlocal taken
        taken += event == "call"

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        model.begin(prompt, rules("openai"), at=1e6)
    finally:
        sys.setprofile(before)
    return taken


def test_thousands_of_first_requests_that_ran_out_cost_the_next_one_nothing() -> None:
    """Only the nearest of them are looked at: hundreds of conversations side by side leave thousands behind."""
    assert steps_of_a_first_request(4_000) < 1.1 * steps_of_a_first_request(2_000)


def test_what_can_be_read_is_found_behind_hundreds_of_requests_that_ran_out() -> None:
    """Conversations side by side begin alike; the one that still lives need not be the nearest."""
    model = CacheModel(count=characters)
    shared = "x" * 2_000
    for number in range(300):
        seen(model, chat(f"{shared}zz{number:03d}"), rules("openai"))
    seen(model, chat(f"{shared}a"), rules("openai"), 1e6)
    assert seen(model, chat(f"{shared}zzz"), rules("openai"), 1e6 + 1) == 1920


def test_expect_changes_nothing() -> None:
    """A look says the same twice, and what it looked at was not sent."""
    model, profile = CacheModel(count=characters), rules("exact")
    seen(model, chat("abc"), profile)
    looks = [model.expect(chat("abc", "def"), profile, at=1.0) for _ in range(2)]
    assert looks[0] == looks[1]
    assert looks[0].ancestor == 0
    assert seen(model, chat("abc", "def", "g"), profile, 1.0) == looks[0].tokens


# Random workloads: whatever is sent in whatever order, the expectation is what the simulated provider answers.

TEXTS = st.sampled_from(["a" * 700, "b" * 700, "a" * 400 + "c" * 300, "d" * 40, "e" * 1500, ""])
GAPS = st.sampled_from([0.0, 1.0, 60.0, 299.0, 301.0, 1799.0, 1801.0, 3700.0])


@st.composite
def workloads(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Requests that grow out of, fork from, or repeat earlier ones."""
    sent: list[list[tuple[str, bool]]] = [[]]
    steps = []
    for _ in range(draw(st.integers(2, 12))):
        base = draw(st.sampled_from(sent))
        keep = draw(st.integers(0, len(base)))
        added = draw(st.lists(TEXTS, min_size=0 if keep else 1, max_size=3))
        rows = [(text, draw(st.booleans()) and draw(st.booleans())) for text in [*(t for t, _ in base[:keep]), *added]]
        sent.append(rows)
        fate = draw(st.sampled_from(["now", "now", "later", "fails"]))
        ttl = draw(st.sampled_from([None, None, "1h"]))
        steps.append((rows, draw(GAPS), fate, ttl, draw(st.booleans()), draw(st.sampled_from(["", "", "b"]))))
    return steps


def request(name: str, rows: list[tuple[str, bool]], ttl: str | None, *, flag: bool) -> Prompt:
    """The prompt of one step: marks where the rule set knows them, and now and then another setting."""
    if name == "anthropic":
        marker = {"type": "ephemeral"} | ({"ttl": ttl} if ttl else {})
        content: list[Any] = [
            {"type": "text", "text": text} | ({"cache_control": marker} if mark and text else {}) for text, mark in rows
        ]
        body: dict[str, Any] = {"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": content}]}
        if flag:
            body["tool_choice"] = {"type": "any"}
        return decode(body, "anthropic", count=characters)
    messages = []
    for text, mark in rows:
        block: dict[str, Any] = {"type": "text", "text": text}
        if mark and name.startswith("openai-5.6"):
            block["prompt_cache_breakpoint"] = {"mode": "explicit"}
        messages.append({"role": "user", "content": [block]})
    body = {"model": "gpt-5.6", "messages": messages}
    if flag and name.startswith("openai-5.6"):
        body["prompt_cache_options"] = {"mode": "explicit"}
    return decode(body, "openai-chat", count=characters)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["exact", "openai", "openai-5.6", "openai-5.6-prefix", "anthropic", "groq", "gemini-implicit", "deepseek"]
)
@settings(max_examples=examples(60), deadline=None)
@given(steps=workloads())
def test_the_expectation_is_what_the_simulated_provider_reads_and_writes(
    name: str, steps: list[tuple[Any, ...]]
) -> None:
    """Client and simulator interpret one profile by two ways of their own, and agree on every request."""
    profile = rules(name)
    model, provider = CacheModel(count=characters), ProviderCache(profile, count=characters)
    now, pending = 0.0, []
    for rows, gap, fate, ttl, flag, scope in steps:
        now += gap
        prompt = request(name, rows, ttl, flag=flag)
        try:
            serving = provider.begin(prompt, now, scope=scope)
        except RefusedError:
            continue
        observation = model.begin(prompt, profile, SentBy(scope), at=now)
        usage = observation.expectation.usage
        outcome = serving.outcome
        assert (usage.cache_read_tokens, dict(usage.cache_write or {})) == (
            outcome.read_tokens,
            dict(outcome.write_tokens),
        )
        if fate == "fails":
            serving.failed()
            model.fail(observation)
        elif fate == "later":
            pending.append((serving, observation))
        else:
            _answer(model, observation, serving, now)
        if len(pending) > 1:
            late_serving, late = pending.pop(0)
            _answer(model, late, late_serving, now)


def _answer(model: CacheModel, observation: Observation, serving: Any, now: float) -> None:
    serving.begun(now)
    model.first_token(observation, now)
    serving.ended(now)
    model.finish(observation, None, now)
