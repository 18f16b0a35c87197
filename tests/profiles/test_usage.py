"""Usage as every provider, SDK and framework reports it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheprefix.profiles import (
    NO_CALLS,
    Usage,
    default_registry,
    merge_usage,
    normalise_usage,
    profile_for,
    usage_from_dict,
)


def counts(usage: Usage) -> tuple[int | None, int | None, dict[str, int] | None, int | None]:
    """Input, read, written by lifetime, output."""
    write = None if usage.cache_write is None else dict(usage.cache_write)
    return usage.input_tokens, usage.cache_read_tokens, write, usage.output_tokens


ANTHROPIC = {
    "input_tokens": 100, "cache_read_input_tokens": 900, "cache_creation_input_tokens": 50, "output_tokens": 7,
}  # fmt: skip
REPORTS = [
    ("openai chat", {"prompt_tokens": 2000, "completion_tokens": 9, "total_tokens": 2009,
                     "prompt_tokens_details": {"cached_tokens": 1920, "audio_tokens": 0}}, (2000, 1920, None, 9)),
    ("openai chat 5.6", {"prompt_tokens": 2000, "completion_tokens": 9,
                         "prompt_tokens_details": {"cached_tokens": 1500, "cache_write_tokens": 480}},
     (2000, 1500, {"": 480}, 9)),
    ("openai responses", {"input_tokens": 2000, "output_tokens": 9, "total_tokens": 2009,
                          "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 1990},
                          "output_tokens_details": {"reasoning_tokens": 0}}, (2000, 0, {"": 1990}, 9)),
    ("anthropic", ANTHROPIC, (1050, 900, {"": 50}, 7)),
    ("anthropic with lifetimes", ANTHROPIC | {"cache_creation": {"ephemeral_5m_input_tokens": 20,
                                                                 "ephemeral_1h_input_tokens": 30}},
     (1050, 900, {"5m": 20, "1h": 30}, 7)),
    ("anthropic, nothing cached", {"input_tokens": 100, "cache_read_input_tokens": 0,
                                   "cache_creation_input_tokens": 0, "output_tokens": 7}, (100, 0, {}, 7)),
    ("bedrock converse", {"inputTokens": 100, "outputTokens": 7, "totalTokens": 1057, "cacheReadInputTokens": 900,
                          "cacheWriteInputTokens": 50, "cacheDetails": [{"ttl": "1h", "inputTokens": 40},
                                                                        {"ttl": "5m", "inputTokens": 10}]},
     (1050, 900, {"5m": 10, "1h": 40}, 7)),
    ("bedrock without a cache", {"inputTokens": 100, "outputTokens": 7}, (100, None, None, 7)),
    ("gemini", {"promptTokenCount": 5000, "cachedContentTokenCount": 4096, "candidatesTokenCount": 6,
                "thoughtsTokenCount": 20, "toolUsePromptTokenCount": 11}, (5011, 4096, None, 26)),
    ("gemini leaves zeros out", {"promptTokenCount": 10, "candidatesTokenCount": 6}, (10, 0, None, 6)),
    ("deepseek", {"prompt_tokens": 100, "completion_tokens": 3, "prompt_cache_hit_tokens": 64,
                  "prompt_cache_miss_tokens": 36}, (100, 64, None, 3)),
    ("xai", {"prompt_tokens": 100, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 60}},
     (100, 60, None, 3)),
    ("xai sdk", {"prompt_tokens": 100, "completion_tokens": 3, "cached_prompt_text_tokens": 60},
     (100, 60, None, 3)),
    ("mistral", {"prompt_tokens": 100, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 64}},
     (100, 64, None, 3)),
    ("groq", {"prompt_tokens": 100, "completion_tokens": 3, "queue_time": 0.1,
              "prompt_tokens_details": {"cached_tokens": 50}}, (100, 50, None, 3)),
    ("vllm without the flag", {"prompt_tokens": 100, "completion_tokens": 3, "prompt_tokens_details": None},
     (100, None, None, 3)),
    ("vllm with the flag", {"prompt_tokens": 100, "completion_tokens": 3,
                            "prompt_tokens_details": {"cached_tokens": 96, "created_cache_tokens": 4}},
     (100, 96, {"": 4}, 3)),
    ("sglang", {"prompt_tokens": 100, "completion_tokens": 3, "cached_tokens": 77}, (100, 77, None, 3)),
    ("llama.cpp", {"usage": {"prompt_tokens": 100, "completion_tokens": 3},
                   "timings": {"cache_n": 90, "prompt_n": 10, "predicted_n": 3}}, (100, 90, None, 3)),
    ("llama.cpp timings alone", {"content": "x", "timings": {"cache_n": 90, "prompt_n": 10, "predicted_n": 3}},
     (100, 90, None, 3)),
    ("ollama", {"message": {"content": "x"}, "prompt_eval_count": 100, "eval_count": 3}, (100, None, None, 3)),
    ("langchain", {"input_tokens": 1050, "output_tokens": 7, "total_tokens": 1057,
                   "input_token_details": {"cache_read": 900, "cache_creation": 50}}, (1050, 900, {"": 50}, 7)),
    ("langchain with lifetimes", {"input_tokens": 1050, "output_tokens": 7, "total_tokens": 1057,
                                  "input_token_details": {"cache_read": 900, "cache_creation": 0,
                                                          "ephemeral_5m_input_tokens": 20,
                                                          "ephemeral_1h_input_tokens": 30}},
     (1050, 900, {"5m": 20, "1h": 30}, 7)),
    ("langchain, priority tier", {"input_tokens": 2000, "output_tokens": 9, "total_tokens": 2009,
                                  "input_token_details": {"priority": 80, "priority_cache_read": 1920}},
     (2000, 1920, None, 9)),
    ("langchain, flex tier", {"input_tokens": 2000, "output_tokens": 9, "total_tokens": 2009,
                              "input_token_details": {"flex": 80, "flex_cache_read": 1920,
                                                      "flex_cache_creation": 70}}, (2000, 1920, {"": 70}, 9)),
    ("langchain says nothing", {"input_tokens": 50, "output_tokens": 9, "total_tokens": 59},
     (50, None, None, 9)),
    ("litellm", {"prompt_tokens": 1050, "completion_tokens": 7, "cache_read_input_tokens": 900,
                 "cache_creation_input_tokens": 50,
                 "prompt_tokens_details": {"cached_tokens": 900, "cache_creation_token_details": {
                     "ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 30}}},
     (1050, 900, {"5m": 20, "1h": 30}, 7)),
    ("autogen", {"prompt_tokens": 100, "completion_tokens": 3}, (100, None, None, 3)),
    ("crewai event, openai", {"prompt_tokens": 100, "completion_tokens": 3, "cached_prompt_tokens": 64},
     (100, 64, None, 3)),
    ("crewai event, anthropic", {"input_tokens": 1050, "output_tokens": 7, "total_tokens": 1057,
                                 "cached_prompt_tokens": 900, "cache_creation_tokens": 50},
     (1050, 900, {"": 50}, 7)),
    ("crewai event, gemini", {"prompt_token_count": 100, "candidates_token_count": 3, "completion_tokens": 3,
                              "cached_prompt_tokens": 64}, (100, 64, None, 3)),
    ("opentelemetry", {"gen_ai.usage.input_tokens": 100, "gen_ai.usage.cache_read.input_tokens": 64,
                       "gen_ai.usage.output_tokens": 3}, (100, 64, None, 3)),
    ("our own", {"input_tokens": 100, "cache_read_tokens": 64, "cache_write_tokens": 30, "output_tokens": 3},
     (100, 64, {"": 30}, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "expected"), [pytest.param(*rest, id=name) for name, *rest in REPORTS])
def test_every_shape_of_report_comes_out_the_same(raw, expected):
    """Whole input, read, written by lifetime, output; None where nothing was said."""
    usage = normalise_usage(raw)
    assert counts(usage) == expected
    assert usage.problems == ()


@pytest.mark.parametrize(
    ("raw", "expected"),
    # An attribute's name has no dots, so OpenTelemetry's are left out.
    [pytest.param(*rest, id=name) for name, *rest in REPORTS if not any("." in key for key in rest[0])],
)
def test_objects_are_read_like_mappings(raw, expected):
    """SDKs hand over objects; their attributes carry the same names."""

    def as_object(value):
        if isinstance(value, dict):
            return SimpleNamespace(**{name: as_object(inner) for name, inner in value.items()})
        return value

    assert counts(normalise_usage(as_object(raw)))[:2] == expected[:2]


def test_input_beside_and_input_including_reconcile():
    """Another tool read `{input 100, read 900, write 50}` as inclusive and refused it: the whole is 1,050."""
    usage = normalise_usage(ANTHROPIC, "anthropic")
    assert (usage.input_tokens, usage.uncached_tokens, usage.cache_read_tokens, usage.cache_write_tokens) == (
        1050, 100, 900, 50,
    )  # fmt: skip


def test_not_reported_is_not_zero():
    """A provider that says nothing leaves None; one that says zero leaves zero."""
    silent = normalise_usage({"prompt_tokens": 10, "completion_tokens": 1})
    cold = normalise_usage({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 0}})
    assert (silent.cache_read_tokens, silent.reported) == (None, False)
    assert (cold.cache_read_tokens, cold.reported) == (0, True)


def test_crewai_totals_of_zero_say_nothing():
    """UsageMetrics starts at 0 and its LiteLLM path never fills cached_prompt_tokens in."""
    metrics = {"prompt_tokens": 100, "cached_prompt_tokens": 0, "completion_tokens": 3, "successful_requests": 4}
    assert normalise_usage(metrics).cache_read_tokens is None
    assert normalise_usage(metrics | {"cached_prompt_tokens": 60}).cache_read_tokens == 60
    assert normalise_usage(metrics).calls == 4


def test_anthropic_stream_is_read_from_its_events():
    """message_start brings input and cache counts, message_delta the final, cumulative ones."""
    start = {"type": "message_start", "message": {"usage": ANTHROPIC | {"output_tokens": 1}}}
    delta = {"type": "message_delta", "usage": {"output_tokens": 77, "input_tokens": None}}
    assert counts(normalise_usage([start, delta])) == (1050, 900, {"": 50}, 77)


def test_a_proxys_empty_last_event_does_not_wipe_out_the_first():
    """Some proxies send zeros in message_delta; counts are cumulative, so the highest holds."""
    merged = merge_usage(ANTHROPIC, {"input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 5})
    assert counts(normalise_usage(merged))[:2] == (1050, 900)


def test_an_unreadable_event_does_not_end_a_stream():
    """merge_usage runs while a user's stream is open."""

    class Raising:
        def __getattr__(self, name):
            raise RuntimeError(name)

    assert merge_usage(Raising(), {"usage": ANTHROPIC})["cache_read_input_tokens"] == 900


def test_openai_stream_reports_in_its_last_chunk():
    """All other chunks carry usage: null."""
    chunks = [{"choices": [], "usage": None}, {"choices": [], "usage": REPORTS[0][1]}]
    assert counts(normalise_usage(chunks)) == REPORTS[0][2]


def test_whole_responses_are_searched_for_their_usage():
    """What carries the usage may be handed over as it is."""
    assert normalise_usage({"id": "x", "usage": ANTHROPIC}).input_tokens == 1050
    assert normalise_usage({"usageMetadata": {"promptTokenCount": 5}}).input_tokens == 5
    assert normalise_usage(SimpleNamespace(usage_metadata=REPORTS[21][1])).input_tokens == 1050


def test_server_side_tools_make_a_sum_of_several_passes():
    """Anthropic adds its own tool loop's passes up; such a count is no single prompt's."""
    usage = normalise_usage(ANTHROPIC | {"server_tool_use": {"web_search_requests": 2}})
    assert usage.summed
    assert not normalise_usage(ANTHROPIC | {"server_tool_use": {"web_search_requests": 0}}).summed


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (None, "no usage"),
        ({}, "no known form"),
        ("12", "no known form"),
        ([], "no known form"),
        ({"prompt_tokens": "many"}, "not a count"),
        ({"prompt_tokens": True}, "not a count"),
        ({"prompt_tokens": 1.5}, "not a count"),
        ({"prompt_tokens": float("nan")}, "not a count"),
        ({"prompt_tokens": float("inf")}, "not a count"),
        ({"prompt_tokens": -4}, "below zero"),
        ({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 20}}, "exceeds the input"),
        ({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 6, "cache_write_tokens": 6}}, "exceed"),
        ({"prompt_tokens": 10, "prompt_tokens_details": "none"}, None),
        ({"prompt_tokens": 10, "prompt_tokens_details": []}, None),
    ],
)
def test_nonsense_is_left_unreported_and_named(raw, said):
    """A report must never break a call, nor turn into a number nobody sent."""
    usage = normalise_usage(raw)
    assert usage.cache_write is None or usage.cache_read_tokens is None
    if said is None:
        assert usage.problems == ()
    else:
        assert said in " ".join(usage.problems)


def test_a_report_whose_properties_raise_is_a_problem_not_an_error():
    """A framework's object may do anything when it is looked at."""

    class Raising:
        def __getattr__(self, name):
            raise RuntimeError(name)

    assert "cannot be read" in normalise_usage(Raising()).problems[0]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(sorted({name for _, raw, _ in REPORTS for name in raw} | {"usage", "message"}))
            | st.text(max_size=6),
            inner,
            max_size=5,
        )
    ),
    max_leaves=15,
)


@given(JSON, st.sampled_from([None, "anthropic", "openai-chat", "gemini"]))
def test_any_report_gives_a_consistent_usage(raw, api):
    """Never an error, never a negative count, never parts beyond the whole."""
    usage = normalise_usage(raw, api)
    assert usage.input_tokens is None or usage.input_tokens >= 0
    if usage.input_tokens is not None:
        parts = (usage.cache_read_tokens or 0) + (usage.cache_write_tokens or 0)
        assert parts + (usage.uncached_tokens or 0) == usage.input_tokens
    json.dumps(usage.as_dict())


TOKENS = st.none() | st.integers(0, 10**9)
USAGES = st.builds(
    Usage,
    input_tokens=TOKENS,
    cache_read_tokens=TOKENS,
    cache_write=st.none() | st.dictionaries(st.sampled_from(["5m", "1h", "30m", ""]), st.integers(0, 10**6)),
    output_tokens=TOKENS,
    calls=st.integers(1, 3),
) | st.just(NO_CALLS)


@given(st.lists(USAGES, max_size=6))
def test_sums_do_not_depend_on_order_and_lose_nothing(usages):
    """What was reported is all in the sum; what only some reported is marked as partial."""
    counted = [usage for usage in usages if usage.calls]
    total = sum(usages, NO_CALLS)
    assert total == sum(reversed(usages), NO_CALLS)
    reads = [usage.cache_read_tokens for usage in counted]
    known = [read for read in reads if read is not None]
    assert total.cache_read_tokens == (sum(known) if known else None)
    assert ("cache_read_tokens" in total.partial) == (bool(known) and len(known) < len(reads))
    assert total.calls == sum(usage.calls for usage in usages)


def test_builtin_sum_works():
    """sum() starts at zero."""
    assert sum([Usage(input_tokens=1), Usage(input_tokens=2)]).input_tokens == 3


@given(USAGES)
def test_usage_survives_json(usage):
    """A conversation's totals are saved with its thread."""
    assert usage_from_dict(json.loads(json.dumps(usage.as_dict()))) == usage


def test_a_profile_with_its_own_field_names_is_used_where_no_shape_fits():
    """A proxy of one's own is described by a row, not by code."""
    import dataclasses

    mine = dataclasses.replace(
        default_registry().get("openai"), name="proxy", input_includes_cached=False,
        usage_fields={"input": "tokens.in", "read": "tokens.cached", "output": "tokens.out"},
    )  # fmt: skip
    raw = {"tokens": {"in": 10, "cached": 90, "out": 3}}
    assert counts(normalise_usage(raw, profile=mine)) == (100, 90, None, 3)


@pytest.mark.parametrize(
    ("row", "raw"),
    [("anthropic", REPORTS[4][1]), ("bedrock", REPORTS[6][1]), ("openai-5.6", REPORTS[1][1]),
     ("openai-5.6", REPORTS[2][1]), ("gemini-implicit", REPORTS[9][1]), ("deepseek", REPORTS[10][1]),
     ("xai", REPORTS[11][1]), ("mistral", REPORTS[13][1]), ("groq", REPORTS[14][1]), ("vllm", REPORTS[16][1]),
     ("sglang", REPORTS[17][1]), ("ollama", REPORTS[20][1])],
)  # fmt: skip
def test_the_rows_usage_fields_say_the_same_as_the_reader(row, raw):
    """The data file documents the fields that the reader reads."""
    from cacheprefix.profiles.usage import _Reader, shape_from

    profile = profile_for("claude-opus-5" if row == "anthropic" else "x", row)
    by_row = _Reader(raw, raw).read(shape_from(profile))
    by_reader = normalise_usage(raw)
    assert by_row.input_tokens == by_reader.input_tokens
    assert by_row.cache_read_tokens in {by_reader.cache_read_tokens, None}
    assert by_row.cache_write in (by_reader.cache_write, None)


def test_openai_sdk_types_are_read():
    """The SDK's own pydantic types, chat and responses."""
    from openai.types import CompletionUsage
    from openai.types.completion_usage import PromptTokensDetails
    from openai.types.responses import ResponseUsage

    chat = CompletionUsage(
        prompt_tokens=2000, completion_tokens=9, total_tokens=2009,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=1500, cache_write_tokens=400),
    )  # fmt: skip
    assert counts(normalise_usage(chat)) == (2000, 1500, {"": 400}, 9)
    silent = CompletionUsage(prompt_tokens=5, completion_tokens=1, total_tokens=6)
    assert counts(normalise_usage(silent)) == (5, None, None, 1)
    responses = ResponseUsage.model_validate(REPORTS[2][1])
    assert counts(normalise_usage(responses)) == REPORTS[2][2]


def test_anthropic_sdk_types_are_read():
    """The SDK's own pydantic types, whole and streamed."""
    from anthropic.types import MessageDeltaUsage
    from anthropic.types import Usage as SdkUsage

    whole = SdkUsage.model_validate(REPORTS[4][1])
    assert counts(normalise_usage(whole)) == REPORTS[4][2]
    delta = MessageDeltaUsage(output_tokens=70)
    assert counts(normalise_usage([whole, delta])) == (1050, 900, {"5m": 20, "1h": 30}, 70)
    plain = SdkUsage(input_tokens=10, output_tokens=2)
    assert counts(normalise_usage(plain)) == (10, None, None, 2)


def test_gemini_sdk_types_are_read():
    """google-genai's own type, where it is installed."""
    types = pytest.importorskip("google.genai.types", reason="checks against Google's SDK where it is installed")
    metadata = types.GenerateContentResponseUsageMetadata(
        prompt_token_count=5000, cached_content_token_count=4096, candidates_token_count=6
    )
    assert counts(normalise_usage(metadata)) == (5000, 4096, None, 6)


def test_autogen_type_is_read():
    """RequestUsage has two fields; what the provider said of its cache is lost there, not zero."""
    models = pytest.importorskip("autogen_core.models")
    usage = normalise_usage(models.RequestUsage(prompt_tokens=100, completion_tokens=3))
    assert counts(usage) == (100, None, None, 3)


def test_crewai_type_is_read():
    """UsageMetrics, whose zero of cached tokens says nothing."""
    metrics = pytest.importorskip("crewai.types.usage_metrics").UsageMetrics
    usage = normalise_usage(
        metrics(prompt_tokens=1050, cached_prompt_tokens=900, cache_creation_tokens=50, completion_tokens=7,
                successful_requests=2)
    )  # fmt: skip
    assert counts(usage) == (1050, 900, {"": 50}, 7)
    assert usage.calls == 2
    assert normalise_usage(metrics(prompt_tokens=9, successful_requests=1)).cache_read_tokens is None


def test_litellm_type_is_read():
    """LiteLLM adds Anthropic's cached tokens to prompt_tokens and keeps the split in nested objects."""
    types = pytest.importorskip("litellm.types.utils")
    usage = types.Usage(
        prompt_tokens=1050, completion_tokens=7, total_tokens=1057, cache_read_input_tokens=900,
        cache_creation_input_tokens=50,
    )  # fmt: skip
    assert counts(normalise_usage(usage)) == (1050, 900, {"": 50}, 7)
    nested = types.Usage(
        prompt_tokens=1050, completion_tokens=7, total_tokens=1057,
        prompt_tokens_details=types.PromptTokensDetailsWrapper(
            cached_tokens=900,
            cache_creation_tokens=50,
            cache_creation_token_details=types.CacheCreationTokenDetails(
                ephemeral_5m_input_tokens=20, ephemeral_1h_input_tokens=30
            ),
        ),
    )  # fmt: skip
    assert counts(normalise_usage(nested)) == (1050, 900, {"5m": 20, "1h": 30}, 7)
    silent = types.Usage(prompt_tokens=10, completion_tokens=1, total_tokens=11)
    assert normalise_usage(silent).cache_read_tokens is None


@pytest.mark.parametrize("tier", [None, "priority", "flex"])
def test_langchain_metadata_is_read_as_langchain_writes_it(tier):
    """Made by langchain-openai itself, with and without a service tier."""
    base = pytest.importorskip("langchain_openai.chat_models.base")
    made = base._create_usage_metadata(REPORTS[1][1] | {"total_tokens": 2009}, tier)
    assert counts(normalise_usage(made)) == (2000, 1500, {"": 480}, 9)


def test_langchain_metadata_of_anthropic_is_read():
    """Made by langchain-anthropic itself: with lifetimes the plain count is set to zero."""
    chat = pytest.importorskip("langchain_anthropic.chat_models")
    from anthropic.types import Usage as SdkUsage

    made = chat._create_usage_metadata(SdkUsage.model_validate(REPORTS[4][1]))
    assert counts(normalise_usage(made)) == (1050, 900, {"5m": 20, "1h": 30}, 7)


@pytest.mark.parametrize(
    ("provider", "flavor", "raw"),
    [
        ("openai", "chat", {"model": "gpt-5.6-sol", "usage": REPORTS[1][1]}),
        ("openai", "responses", {"model": "gpt-5.6-sol", "usage": REPORTS[2][1]}),
        ("anthropic", "default", {"model": "claude-opus-5", "usage": REPORTS[4][1]}),
        ("aws", "default", {"usage": REPORTS[6][1]}),
        ("google", "default", {"modelVersion": "gemini-2.5-pro", "usageMetadata": REPORTS[8][1]}),
        (
            "deepseek",
            "chat",
            {
                "model": "deepseek-chat",
                "usage": REPORTS[10][1] | {"prompt_tokens_details": {"cached_tokens": 64}},
            },
        ),
        ("x-ai", "chat", {"model": "grok-4.5", "usage": REPORTS[11][1]}),
        ("groq", "default", {"model": "openai/gpt-oss-120b", "usage": REPORTS[14][1]}),
    ],
)
def test_genai_prices_reads_the_same_counts(provider, flavor, raw):
    """A maintained library's extractors, as a second opinion."""
    genai = pytest.importorskip("genai_prices.data_snapshot")
    try:
        theirs = genai.get_snapshot().extract_usage(raw, provider, None, flavor).usage
    except LookupError as error:
        pytest.skip(str(error))
    ours = normalise_usage(raw)
    assert ours.input_tokens == theirs.input_tokens
    assert (ours.cache_read_tokens or 0) == (theirs.cache_read_tokens or 0)
    assert (ours.cache_write_tokens or 0) == (theirs.cache_write_tokens or 0)
    assert (ours.output_tokens or 0) == (theirs.output_tokens or 0)


def test_what_stands_in_a_report_is_told_by_all_its_names_and_not_by_those_of_an_earlier_one():
    """Where counts stand is looked up once for each form of reports: one more name, however deep, is another form."""
    chat = {"prompt_tokens": 2000, "completion_tokens": 9}
    deep = {"cache_creation_token_details": {"ephemeral_1h_input_tokens": 300}}
    assert counts(normalise_usage(chat)) == (2000, None, None, 9)
    assert counts(normalise_usage({**chat, "prompt_tokens_details": None})) == (2000, None, None, 9)
    assert counts(normalise_usage({**chat, "prompt_tokens_details": {}})) == (2000, None, None, 9)
    assert counts(normalise_usage({**chat, "prompt_tokens_details": {"cached_tokens": 512}})) == (2000, 512, None, 9)
    assert counts(normalise_usage({**chat, "prompt_tokens_details": deep})) == (2000, None, {"1h": 300}, 9)
    many = {f"n{number}": number for number in range(100)}
    assert counts(normalise_usage({**chat, **many, "prompt_tokens_details": deep})) == (2000, None, {"1h": 300}, 9)
