"""The names under which a call is told: the GenAI semantic conventions where they have one, else ours."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cacheprefix import Call
    from cacheprefix.cache import Verdict

Value = str | int | float | bool

PROVIDERS: Mapping[str, str] = MappingProxyType(
    {
        "azure": "azure.ai.openai",
        "bedrock": "aws.bedrock",
        "gemini": "gcp.gemini",
        "mistral": "mistral_ai",
        "moonshot": "moonshot_ai",
        "vertex": "gcp.vertex_ai",
        "xai": "x_ai",
    }
)
"""Our providers whose well-known value of ``gen_ai.provider.name`` is another (GenAI conventions, 2026-11-21)."""

METRICS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "gen_ai.client.operation.duration": ("s", "From sending the request to the end of the answer"),
        "gen_ai.client.operation.time_to_first_chunk": ("s", "From sending the request to the first of the answer"),
        "gen_ai.client.token.usage": ("{token}", "Input and output tokens of a call"),
        "cacheprefix.calls": ("{call}", "Calls by what the cache did and why"),
        "cacheprefix.input.tokens": ("{token}", "Input tokens by source: read, written, uncached, unreported"),
        "cacheprefix.expected.tokens": ("{token}", "Tokens that the requests, as sent, should have read"),
        "cacheprefix.lost.tokens": ("{token}", "Tokens paid again because something broke the cache, by cause"),
        "cacheprefix.breaks": ("{break}", "Cache breaks that someone should look at, by cause"),
        "cacheprefix.cost": ("{unit}", "Cost units: one uncached input token is 1"),
        "cacheprefix.unmodified.cost": ("{unit}", "Cost units of the requests as the application made them, estimated"),
        "cacheprefix.spend": ("{USD}", "Price of the calls, where a price is known"),
        "cacheprefix.lost.spend": ("{USD}", "Price of the lost tokens, where a price is known"),
        "cacheprefix.tool_cache.calls": ("{call}", "Tool calls through the cache: hit, joined, miss, refused"),
        "cacheprefix.tool_cache.dropped": ("{entry}", "Kept results that went: expired, outdated, evicted"),
        "cacheprefix.tool_cache.saved": ("s", "Run time of the tool calls that did not have to run again"),
        "cacheprefix.tool_cache.store.errors": ("{error}", "Calls that went on without the store because it failed"),
        "cacheprefix.tool_cache.entries": ("{entry}", "Tool results kept now"),
        "cacheprefix.tool_cache.size": ("By", "Bytes of the tool results kept now"),
    }
)
"""Every metric: its name, then unit and description.

The first three are histograms, ``cacheprefix.tool_cache.entries`` and ``.size`` are gauges, all others are counters.
Those of the tool cache are there for sessions that were bound (``Telemetry.bind``).
"""


def provider_of(call: Call) -> str:
    """The value of ``gen_ai.provider.name``."""
    return PROVIDERS.get(call.profile.provider, call.profile.provider)


def attributes_of(call: Call, verdict: Verdict, *, include_text: bool = False) -> dict[str, Value]:
    """A call as flat attributes of a span; what is not known has none.

    Holds no prompt text. ``include_text`` adds the few characters before and after the first difference that a
    verdict keeps (``cacheprefix.before``, ``cacheprefix.after``).
    """
    usage = call.usage
    found: dict[str, Value | None] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider_of(call),
        "gen_ai.request.model": call.model,
        "gen_ai.agent.name": call.agent or None,
        "gen_ai.conversation.id": call.conversation or None,
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
        "gen_ai.response.time_to_first_chunk": first_chunk(call),
        "cacheprefix.role": call.agent or None,
        "cacheprefix.purpose": call.purpose or None,
        "cacheprefix.profile": call.profile.name,
        "cacheprefix.prefix": call.prefix or None,
        "cacheprefix.layout": call.layout,
        "cacheprefix.reasons": "; ".join(map(str, call.reasons)) or None,
        "cacheprefix.first_of_agent": call.first_of_agent,
        "cacheprefix.verdict": verdict.kind,
        "cacheprefix.cause": verdict.cause,
        "cacheprefix.path": verdict.path,
        "cacheprefix.alarm": verdict.alarm,
        "cacheprefix.shared_tokens": call.shared_tokens,
        "cacheprefix.expected_tokens": verdict.expected_tokens,
        "cacheprefix.reusable_tokens": verdict.reusable_tokens,
        "cacheprefix.lost_tokens": verdict.lost_tokens,
        "cacheprefix.lost_usd": verdict.lost_usd,
        "cacheprefix.cost_units": call.units,
        "cacheprefix.unmodified_cost_units": call.unmodified_units,
        "cacheprefix.usd": call.money,
        "cacheprefix.provider_reason": verdict.provider_reason,
        "cacheprefix.fix": verdict.fix if verdict.broken else None,
    }
    if include_text:
        found |= {"cacheprefix.before": verdict.before or None, "cacheprefix.after": verdict.after or None}
    return {name: value for name, value in found.items() if value is not None}


def first_chunk(call: Call) -> float | None:
    """Seconds until the answer began; None where nobody said when it did."""
    return None if call.first_token_at is None else max(0.0, call.first_token_at - call.started_at)
