"""Each shipped rule, beside the words of the source it was taken from."""

from __future__ import annotations

import dataclasses
import math

import pytest

from cacheprefix.profiles import VALUE_FIELDS, CacheprefixProfileWarning, default_registry, profile_for

SKILL = "github.com/anthropics/skills skills/claude-api/shared/prompt-caching.md"


def rule(model: str, name: str, provider: str | None = None) -> object:
    """One value of the row in force."""
    return getattr(profile_for(model, provider), name)


@pytest.mark.parametrize(
    ("models", "minimum"),
    [
        # "Claude Opus 5, Claude Fable 5.1, Claude Mythos 5.1 | 512 tokens"
        (("claude-opus-5", "claude-fable-5-1", "claude-mythos-5-1"), 512),
        # LiteLLM 1.106.2 gives 512 to the models the skill does not list yet
        (("claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5", "claude-fable-5"), 512),
        # "Opus 4.8, Claude Sonnet 5, Sonnet 4.6, Sonnet 4.5, Opus 4.1, Opus 4, Sonnet 4 | 1024 tokens"
        (
            ("claude-opus-4-8", "claude-sonnet-5", "claude-sonnet-4-6", "claude-sonnet-4-5-20250929",
             "claude-opus-4-1-20250805", "claude-opus-4-20250514", "claude-sonnet-4-20250514"),
            1024,
        ),
        # "Opus 4.7, Mythos Preview, Haiku 3.5 | 2048 tokens"
        (("claude-opus-4-7", "claude-mythos-preview", "claude-3-5-haiku-20241022"), 2048),
        # "Opus 4.6, Opus 4.5, Haiku 4.5 | 4096 tokens"
        (("claude-opus-4-6", "claude-opus-4-5-20251101", "claude-haiku-4-5-20251001"), 4096),
    ],
)  # fmt: skip
def test_anthropic_minimum_goes_by_model(models, minimum):
    """The skill: "Minimum cacheable prefix is model-dependent. Shorter prefixes silently won't cache"."""
    assert {rule(model, "min_tokens") for model in models} == {minimum}


def test_anthropic_minimums_are_the_same_on_every_platform():
    """The skill: "These minimums apply on every platform where the model is available"."""
    for provider in ("anthropic", "bedrock", "vertex"):
        assert rule("claude-opus-4-7", "min_tokens", provider) == 2048


def test_anthropic_takes_four_breakpoints_and_the_automatic_one_is_among_them():
    """The skill: "Max 4 cache_control breakpoints per request"; automatic "consumes one of the 4"."""
    profile = profile_for("claude-opus-5")
    assert (profile.max_breakpoints, profile.automatic_breakpoint) == (4, True)
    assert (profile.control, profile.match) == ("explicit", "breakpoint")


def test_anthropic_looks_back_twenty_positions():
    """The skill: "Each breakpoint walks backward at most 20 content blocks to find a prior cache entry"."""
    assert rule("claude-opus-5", "lookback") == 20


def test_bedrock_does_not_collapse_runs_of_tool_blocks():
    """pydantic-ai's Bedrock model counts every block; Anthropic counts a run of tool_use blocks as one."""
    assert rule("claude-opus-5", "collapse_runs") is True
    assert profile_for("claude-opus-5", "bedrock", "bedrock").collapse_runs is False


def test_anthropic_writes_cost_more_than_input_and_reads_a_tenth():
    """The skill: "reads cost ~0.1x base input price", "1.25x for 5-minute TTL, 2x for 1-hour TTL"."""
    profile = profile_for("claude-opus-5")
    assert [(ttl.name, ttl.seconds, ttl.write) for ttl in profile.ttls] == [
        ("5m", 300, 1.25),
        ("1h", 3600, 2.0),
    ]
    assert profile.read == 0.1


@pytest.mark.parametrize(
    ("model", "read"),
    [("claude-opus-5-5", 0.05), ("claude-sonnet-5-5", 0.05), ("claude-fable-5-1", 0.025),
     ("claude-mythos-5-1", 0.025), ("claude-haiku-5-5", 0.1), ("gpt-6.1-sol", 0.05), ("gpt-5.6", 0.1)],
)  # fmt: skip
def test_newer_models_read_for_less(model, read):
    """LiteLLM 1.106.2's map: cache_read_input_token_cost over input_cost_per_token."""
    assert rule(model, "read") == read


def test_anthropic_lifetime_runs_from_the_start_and_a_read_renews_it():
    """The skill: "A cache read refreshes the entry's timer", "measured from the start of the request"."""
    profile = profile_for("claude-opus-5")
    assert profile.ttl_from == "start"
    assert all(ttl.refreshed_by_read for ttl in profile.ttls)


def test_anthropic_entry_is_readable_once_the_first_answer_begins():
    """The skill: "readable only after the first response begins streaming. N parallel requests ... pay"."""
    profile = profile_for("claude-opus-5")
    assert (profile.readable, profile.cold_parallel_shares) == ("first_token", False)


def test_anthropic_caches_belong_to_a_workspace_and_elsewhere_to_the_organisation():
    """The skill: "isolated per workspace ... (per organization on Amazon Bedrock and Google Cloud)"."""
    scopes = {provider: rule("claude-opus-5", "scope", provider) for provider in ("anthropic", "bedrock", "vertex")}
    assert scopes == {"anthropic": "workspace", "bedrock": "organisation", "vertex": "organisation"}


@pytest.mark.parametrize(
    ("setting", "tier"),
    [
        ("tool_choice", "messages"),  # "tool_choice, images | Yes | Yes | No"
        ("thinking", "messages"),  # "thinking or effort change | model-specific | model-specific | No"
        ("speed", "system"),  # "speed, web-search, citations toggle | Yes | No | No"
        ("temperature", "none"),
        ("max_tokens", "none"),
        ("header:anthropic-beta", "lane"),
        ("a_field_nobody_described", "lane"),
    ],
)
def test_anthropic_settings_salt_the_tier_they_invalidate(setting, tier):
    """The skill's table of what invalidates which cache; an unknown field promises nothing."""
    assert profile_for("claude-opus-5").placement(setting) == tier


def test_a_fork_on_anthropic_keeps_its_parents_tool_choice():
    """tool_choice invalidates messages there, so no change of it is safe."""
    assert rule("claude-opus-5", "tool_choice_safe") == "keep"
    assert rule("gpt-5.6", "tool_choice_safe") == "allowed_tools"


def test_system_messages_between_others_are_only_for_models_that_take_them():
    """The skill: "Claude Opus 5, Claude Opus 4.8, Claude Fable 5.1, and Claude Mythos 5.1", not Sonnet 5."""
    taking = {m for m in ("claude-opus-5", "claude-opus-4-8", "claude-fable-5-1", "claude-mythos-5-1",
                          "claude-sonnet-5", "claude-opus-4-5") if rule(m, "mid_system")}  # fmt: skip
    assert taking == {"claude-opus-5", "claude-opus-4-8", "claude-fable-5-1", "claude-mythos-5-1"}


def test_thinking_is_bound_to_its_prefix_on_fable_and_mythos_5_1():
    """pydantic-ai#6537: replay after a prefix edit is a 400 or drops the thinking."""
    assert rule("claude-fable-5-1", "thinking_bound")
    assert rule("claude-mythos-5-1", "thinking_bound")
    assert not rule("claude-fable-5", "thinking_bound")


def test_openai_before_5_6_matches_blocks_of_128_from_1024_on():
    """OpenAI's cookbook: "1024 tokens or longer ... until the first mismatched token in 128 token blocks"."""
    profile = profile_for("gpt-5.1")
    assert (profile.match, profile.min_tokens, profile.block_tokens) == ("block", 1024, 128)
    assert (profile.control, profile.markers, profile.max_breakpoints) == ("automatic", None, 0)
    assert profile.default_ttl.write == 1.0


def test_openai_in_memory_entries_live_minutes_and_never_longer_than_an_hour():
    """OpenAI's guide: "5 to 10 minutes of inactivity, up to a maximum of one hour"."""
    ttl = profile_for("gpt-5.1").default_ttl
    assert (ttl.name, ttl.seconds, ttl.max_seconds) == ("in_memory", 300, 3600)


@pytest.mark.parametrize("model", ["gpt-4", "gpt-4-turbo-2024-04-09", "gpt-3.5-turbo", "gpt-4-0613"])
def test_openai_models_before_4o_have_no_cache(model):
    """OpenAI's guide: "enabled for all recent models, gpt-4o and newer"."""
    assert rule(model, "control") == "none"


def test_later_openai_models_follow_the_rules_of_5_6():
    """The SDK: "Supported for gpt-5.6 and later models"."""
    assert {profile_for(model).name for model in ("gpt-5.7-sol", "gpt-6.2", "gpt-7")} == {"openai-5.6"}


def test_open_weights_are_not_taken_for_openais_service():
    """gpt-oss is served by others, each with rules of its own."""
    with pytest.warns(CacheprefixProfileWarning):
        assert not default_registry().copy().profile_for("gpt-oss-120b").known


def test_gpt_5_5_keeps_only_for_24_hours():
    """The SDK: "For gpt-5.5, gpt-5.5-pro, and future models, only 24h is supported"."""
    assert [ttl.name for ttl in profile_for("gpt-5.5-pro").ttls] == ["24h"]


@pytest.mark.parametrize(
    ("model", "read"), [("gpt-4o-mini", 0.5), ("o1", 0.5), ("o3-mini", 0.5), ("gpt-4.1", 0.25), ("o3", 0.25),
                        ("o4-mini", 0.25), ("gpt-5", 0.1), ("gpt-5.5", 0.1)],
)  # fmt: skip
def test_openai_read_price_goes_by_family(model, read):
    """LiteLLM 1.106.2's map."""
    assert rule(model, "read") == read


def test_openai_5_6_writes_four_breakpoints_of_which_one_is_its_own():
    """The SDK: "creates one implicit breakpoint and writes up to the latest three explicit breakpoints"."""
    profile = profile_for("gpt-5.6-sol")
    assert (profile.name, profile.match, profile.control) == ("openai-5.6", "breakpoint", "both")
    assert (profile.max_breakpoints, profile.implicit_breakpoint) == (4, True)


def test_openai_5_6_considers_eighty_breakpoints_without_a_lookback():
    """The SDK: "considers up to the latest 80 breakpoints ..., without a content-block lookback limit"."""
    profile = profile_for("gpt-6-astra")
    assert (profile.read_candidates, profile.lookback) == (80, None)


def test_openai_5_6_writes_at_a_quarter_more_for_thirty_minutes():
    """OpenAI's guide: "cache writes cost 1.25x the uncached input token rate"; the SDK: ttl is 30m."""
    profile = profile_for("gpt-5.6")
    assert (profile.default_ttl.name, profile.default_ttl.seconds) == ("30m", 1800)
    assert profile.default_ttl.write == 1.25
    assert profile.ttl("12h").write == 2.5


def test_both_readings_of_openai_5_6_exist_and_say_that_they_are_contested():
    """openai/codex#35300 against LiteLLM PR #37628."""
    strict, loose = profile_for("gpt-5.6"), profile_for("gpt-5.6", "openai-5.6-prefix")
    assert (strict.implicit_reads, loose.implicit_reads) == ("breakpoint", "prefix")
    assert strict.evidence_for("implicit_reads").confidence == "contested"
    assert dataclasses.replace(strict, name="", implicit_reads="prefix").read == loose.read


def test_openai_routes_by_key_and_overflows_at_fifteen_a_minute():
    """OpenAI's guide: "exceed a certain rate (approximately 15 requests per minute), some may overflow"."""
    profile = profile_for("gpt-5")
    assert (profile.routing_key, profile.rate_per_key) == ("prompt_cache_key", 15)


@pytest.mark.parametrize(
    "setting",
    ["parallel_tool_calls", "text", "reasoning", "reasoning_effort", "verbosity", "context_management",
     "service_tier", "response_format"],
)  # fmt: skip
def test_openai_settings_that_change_the_prefix_separate_lanes(setting):
    """The guide: parallel_tool_calls, text.format, reasoning.effort, text.verbosity … change the prefix."""
    assert profile_for("gpt-5.6").placement(setting) == "lane"


@pytest.mark.parametrize("setting", ["temperature", "stream", "max_tokens", "seed", "user", "metadata"])
def test_settings_outside_the_prompt_do_not_matter(setting):
    """Sampling and transport settings are not rendered into the prompt."""
    assert profile_for("gpt-5.6").placement(setting) == "none"
    assert profile_for("x", "exact").placement(setting) == "none"


def test_azure_follows_the_model_family_and_keeps_only_thirty_minutes():
    """Microsoft: "GPT-5.6 models and later model families" charge writes; the documentation names 30m."""
    assert profile_for("gpt-5", "azure").name == "azure"
    assert [ttl.name for ttl in profile_for("azure/gpt-5.6").ttls] == ["30m"]


def test_bedrock_marks_with_cache_points_and_reports_input_without_cached_tokens():
    """Converse: inputTokens beside cacheReadInputTokens and cacheWriteInputTokens."""
    profile = profile_for("anthropic.claude-opus-5-v1:0", api="bedrock")
    assert (profile.name, profile.markers, profile.input_includes_cached) == ("bedrock", "bedrock", False)
    assert profile.automatic_breakpoint is False


def test_nova_writes_are_free_and_reads_cost_a_quarter():
    """AWS: Nova has 1,000 tokens a checkpoint and no write premium."""
    profile = profile_for("bedrock/amazon.nova-pro-v1:0", api="bedrock")
    assert (profile.min_tokens, profile.read, profile.default_ttl.write) == (1000, 0.25, 1.0)


@pytest.mark.parametrize(
    ("model", "provider", "minimum"),
    [("gemini-2.5-flash", None, 1024), ("gemini-2.5-pro", None, 2048), ("gemini-3.5-flash", None, 4096),
     ("gemini-4-argon", "vertex", 6144)],
)  # fmt: skip
def test_gemini_minimum_goes_by_model(model, provider, minimum):
    """LiteLLM and google-adk; 2.5 Pro is contested (older documentation says 4096)."""
    assert rule(model, "min_tokens", provider) == minimum


def test_gemini_explicit_caches_are_named():
    """Google: a cachedContents resource with a lifetime of an hour unless stated."""
    profile = profile_for("gemini-2.5-pro", "gemini-explicit")
    assert (profile.control, profile.default_ttl.seconds) == ("named", 3600)


def test_deepseek_hits_need_a_whole_unit():
    """DeepSeek: "can only hit the cache if it fully matches a cache prefix unit"."""
    profile = profile_for("deepseek-v4-flash")
    assert (profile.match, profile.read) == ("unit", 0.02)


def test_xai_routes_by_header_and_promises_no_lifetime():
    """xAI: x-grok-conv-id "routes requests ... to the same server"; "can be evicted at any time"."""
    profile = profile_for("grok-4.5")
    assert profile.routing_key == "header:x-grok-conv-id"
    assert profile.default_ttl.seconds is None
    assert "x-grok-conv-id" in profile.headers


def test_mistral_caches_blocks_of_64_at_a_tenth():
    """Mistral: "billed at 10% of the standard input token price"; cache blocks are 64 tokens."""
    profile = profile_for("mistral-large-latest")
    assert (profile.block_tokens, profile.read, profile.routing_key) == (64, 0.1, "prompt_cache_key")


def test_groq_halves_the_price_and_forgets_after_two_hours():
    """Groq: "50% discount", "automatically expires after 2 hours without use"."""
    profile = profile_for("groq/openai/gpt-oss-120b")
    assert (profile.name, profile.read, profile.default_ttl.seconds) == ("groq", 0.5, 7200)


def test_cerebras_guarantees_five_minutes():
    """Cerebras: blocks of 100 to 600 tokens, kept 5 minutes, up to an hour."""
    ttl = profile_for("llama-4", "cerebras").default_ttl
    assert (ttl.seconds, ttl.max_seconds) == (300, 3600)


def test_vllm_shares_whole_blocks_even_between_requests_that_start_together():
    """Own run: hashes are registered when a request is scheduled, 3 of 4 cold parallel requests hit."""
    profile = profile_for("meta/llama", "vllm")
    assert (profile.block_tokens, profile.readable, profile.cold_parallel_shares) == (16, "start", True)
    assert profile.placement("cache_salt") == "lane"
    assert profile.placement("response_format") == "none"


def test_llama_cpp_shares_nothing_between_requests_that_start_together():
    """Own run: 4 at once on 4 slots, 0 of 4 hit."""
    profile = profile_for("x", "llama.cpp")
    assert (profile.block_tokens, profile.readable, profile.cold_parallel_shares) == (1, "end", False)


def test_sglang_matches_to_the_token():
    """SGLang: radix tree with page_size 1."""
    assert (rule("x", "block_tokens", "sglang"), rule("x", "min_tokens", "sglang")) == (1, 1)


def test_exact_is_the_rule_set_of_the_research_tables():
    """The design: token-exact prefixes, no minimum, read 0.1x, write 1x, nothing ever expires."""
    profile = profile_for("any-model", "exact")
    assert (profile.min_tokens, profile.block_tokens, profile.read) == (0, 1, 0.1)
    assert (profile.default_ttl.write, profile.default_ttl.seconds) == (1.0, math.inf)
    assert profile.readable == "first_token"


@pytest.mark.parametrize("profile", list(default_registry()), ids=lambda profile: profile.name)
def test_every_value_of_every_row_can_be_traced(profile):
    """Each value has a source, a date and a confidence; what is contested says how."""
    for name in VALUE_FIELDS:
        evidence = profile.evidence_for(name)
        assert evidence.source.strip()
        assert evidence.checked_on.year >= 2026
        assert evidence.confidence in {"high", "medium", "low", "contested"}
    assert any(profile.evidence_for(name).confidence != "contested" for name in VALUE_FIELDS)


def test_a_value_put_in_for_a_model_brings_its_own_evidence():
    """The minimum of Opus 4.7 is not the family's stand-in, and neither is its source."""
    assert profile_for("claude-opus-4-7").evidence_for("min_tokens").confidence == "high"
    assert profile_for("claude-opus-99").evidence_for("min_tokens").confidence == "medium"


def test_contested_minimum_is_marked_so():
    """Mythos Preview: LiteLLM says 512, the skill 2048."""
    profile = profile_for("claude-mythos-preview")
    assert profile.min_tokens == 2048
    assert profile.evidence_for("min_tokens").confidence == "contested"


def test_no_claude_from_4_6_on_takes_the_beginning_of_its_answer():
    """The migration guide: "Prefilling assistant messages returns a 400 error on Claude 4.6 models"."""
    taking = ("claude-3-5-haiku", "claude-opus-4-1", "claude-opus-4-5", "claude-sonnet-4-5", "claude-haiku-4-5")
    refusing = ("claude-opus-4-6", "claude-sonnet-4-6", "claude-opus-4-8", "claude-sonnet-5", "claude-fable-5-1")
    assert all(rule(model, "prefill") for model in taking)
    assert not any(rule(model, "prefill") for model in refusing)


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        ("claude-sonnet-4-6", None),
        ("claude-sonnet-4-6", "vertex"),
        ("claude-sonnet-4-6", "bedrock"),
        ("nova-pro", "bedrock"),
        ("gemini-2.5-pro", None),
        ("gpt-4.1", None),
        ("deepseek-chat", None),
        ("grok-4", None),
        ("mistral-large-latest", None),
    ],
)
def test_what_chat_completions_say_of_an_answer_parts_no_lane(model, provider):
    """In that form LiteLLM and gateways take requests for any model: who streams and who does not read one prefix."""
    said = (
        *("stream", "stream_options", "stop", "n", "seed", "user", "store", "metadata", "temperature", "top_p"),
        *("max_tokens", "max_completion_tokens", "logprobs", "presence_penalty", "frequency_penalty"),
    )
    profile = profile_for(model, provider)
    assert {name: profile.settings.get(name, profile.settings.get("*")) for name in said} == dict.fromkeys(said, "none")
