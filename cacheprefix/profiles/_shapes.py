"""Where providers, SDKs and frameworks keep the counts of a usage report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cacheprefix.profiles._profile import Profile


@dataclass(frozen=True, slots=True)
class Shape:
    """Where one family of reports keeps its counts.

    A path is dotted, ``a|b`` takes the first that holds a count, ``a+b`` adds what is there.
    """

    name: str
    marks: tuple[str, ...]
    """The shape fits when one of these paths exists, even with a null in it."""

    input: str
    read: str
    includes_cached: bool
    write: str = ""
    splits: Mapping[str, str] = field(default_factory=dict)
    """Written tokens by lifetime; what ``write`` has beyond them was written without a stated lifetime."""

    output: str = ""
    reasoning: str = ""
    absent_is_zero: bool = False
    """Whether the wire format leaves zeros out, so that a missing read count means zero."""


_LANGCHAIN = "input_token_details"
_CHAT_DETAILS = "prompt_tokens_details"
SHAPES = (
    # Amazon Bedrock Converse, botocore service model: inputTokens excludes both cache counts.
    Shape(
        "bedrock",
        ("inputTokens",),
        input="inputTokens",
        read="cacheReadInputTokens|cacheReadInputTokenCount",
        includes_cached=False,
        write="cacheWriteInputTokens|cacheWriteInputTokenCount",
        splits={"5m": "cacheDetails[ttl=5m].inputTokens", "1h": "cacheDetails[ttl=1h].inputTokens"},
        output="outputTokens",
    ),
    # Gemini: protobuf JSON leaves zeros out. Tool-use and thought tokens are counted beside, not within.
    Shape(
        "gemini",
        ("promptTokenCount", "prompt_token_count"),
        input="promptTokenCount+toolUsePromptTokenCount|prompt_token_count+tool_use_prompt_token_count",
        read="cachedContentTokenCount|cached_content_token_count|cached_prompt_tokens",
        includes_cached=True,
        output="candidatesTokenCount+thoughtsTokenCount|candidates_token_count+thoughts_token_count",
        reasoning="thoughtsTokenCount|thoughts_token_count",
        absent_is_zero=True,
    ),
    # Ollama 0.x: prompt_eval_count is the whole prompt; nothing says what came from the slot's cache.
    Shape(
        "ollama",
        ("prompt_eval_count",),
        input="prompt_eval_count",
        read="",
        includes_cached=True,
        output="eval_count",
    ),
    # LangChain usage_metadata: input includes cached; with a service tier the details carry its prefix, and
    # cache_creation is set to 0 once the 5m and 1h counts are there (langchain_anthropic 1.7.7).
    Shape(
        "langchain",
        (_LANGCHAIN,),
        input="input_tokens",
        read=f"{_LANGCHAIN}.cache_read+{_LANGCHAIN}.priority_cache_read+{_LANGCHAIN}.flex_cache_read",
        includes_cached=True,
        write=f"{_LANGCHAIN}.cache_creation+{_LANGCHAIN}.priority_cache_creation+{_LANGCHAIN}.flex_cache_creation",
        splits={
            "5m": f"{_LANGCHAIN}.ephemeral_5m_input_tokens",
            "1h": f"{_LANGCHAIN}.ephemeral_1h_input_tokens",
        },
        output="output_tokens",
        reasoning="output_token_details.reasoning+output_token_details.priority_reasoning"
        "+output_token_details.flex_reasoning",
    ),
    # OpenAI chat completions and all who copy it (DeepSeek, xAI, Mistral, Groq, vLLM, SGLang, llama.cpp,
    # AutoGen, LiteLLM with Anthropic's names beside, CrewAI).
    Shape(
        "openai-chat",
        ("prompt_tokens",),
        input="prompt_tokens",
        read=f"{_CHAT_DETAILS}.cached_tokens|prompt_cache_hit_tokens|cached_prompt_tokens"
        "|cache_read_input_tokens|cached_prompt_text_tokens|cached_tokens|timings.cache_n",
        includes_cached=True,
        write=f"{_CHAT_DETAILS}.cache_write_tokens|{_CHAT_DETAILS}.cache_creation_tokens"
        f"|cache_creation_input_tokens|cache_creation_tokens|{_CHAT_DETAILS}.created_cache_tokens",
        splits={
            "5m": f"{_CHAT_DETAILS}.cache_creation_token_details.ephemeral_5m_input_tokens"
            "|cache_creation.ephemeral_5m_input_tokens",
            "1h": f"{_CHAT_DETAILS}.cache_creation_token_details.ephemeral_1h_input_tokens"
            "|cache_creation.ephemeral_1h_input_tokens",
        },
        output="completion_tokens",
        reasoning="completion_tokens_details.reasoning_tokens|reasoning_tokens",
    ),
    # OpenAI responses.
    Shape(
        "openai-responses",
        ("input_tokens_details", "cached_prompt_tokens"),
        input="input_tokens",
        read="input_tokens_details.cached_tokens|cached_prompt_tokens|cached_prompt_text_tokens",
        includes_cached=True,
        write="input_tokens_details.cache_write_tokens|cache_creation_tokens",
        output="output_tokens",
        reasoning="output_tokens_details.reasoning_tokens|reasoning_tokens",
    ),
    # Anthropic: input_tokens is only what was neither read nor written.
    Shape(
        "anthropic",
        ("cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation", "server_tool_use"),
        input="input_tokens",
        read="cache_read_input_tokens",
        includes_cached=False,
        write="cache_creation_input_tokens",
        splits={
            "5m": "cache_creation.ephemeral_5m_input_tokens",
            "1h": "cache_creation.ephemeral_1h_input_tokens",
        },
        output="output_tokens",
        reasoning="output_tokens_details.thinking_tokens|output_tokens_details.reasoning_tokens",
    ),
    # OpenTelemetry GenAI attributes; the conventions ask for input_tokens with the cached ones included.
    Shape(
        "opentelemetry",
        ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
        input="gen_ai.usage.input_tokens|gen_ai.usage.prompt_tokens",
        read="gen_ai.usage.cache_read.input_tokens|gen_ai.usage.cache_read_input_tokens",
        includes_cached=True,
        write="gen_ai.usage.cache_creation.input_tokens|gen_ai.usage.cache_creation_input_tokens",
        output="gen_ai.usage.output_tokens|gen_ai.usage.completion_tokens",
    ),
    # llama.cpp without a usage object: prompt_n is what had to be computed.
    Shape(
        "llama.cpp",
        ("timings",),
        input="timings.prompt_n",
        read="timings.cache_n",
        includes_cached=False,
        output="timings.predicted_n",
    ),
    # The whole input under its plain name, cache counts (if any) under ours.
    Shape(
        "plain",
        ("input_tokens",),
        input="input_tokens",
        read="cache_read_tokens",
        includes_cached=True,
        write="cache_write_tokens",
        splits={ttl: f"cache_write_{ttl}_tokens|cache_write.{ttl}" for ttl in ("5m", "1h", "30m", "12h")},
        output="output_tokens",
    ),
)
PLAIN = SHAPES[-1]


def shape_from(profile: Profile) -> Shape:
    """The shape that a profile's ``usage_fields`` describe."""
    paths = profile.usage_fields
    named = {name.removeprefix("write_"): path for name, path in paths.items() if name.startswith("write_")}
    return Shape(
        profile.name,
        tuple(paths.get("input", "").split("|")),
        input=paths.get("input", ""),
        read=paths.get("read", ""),
        includes_cached=profile.input_includes_cached,
        write=paths.get("write", ""),
        splits=named,
        output=paths.get("output", ""),
    )
