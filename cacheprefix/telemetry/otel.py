"""OpenTelemetry spans and metrics of a session's calls."""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from cacheprefix._version import __version__
from cacheprefix.errors import MissingExtraError, SetupError
from cacheprefix.locks import Lock
from cacheprefix.profiles import load_price_library
from cacheprefix.telemetry.attributes import METRICS, Value, attributes_of, first_chunk, provider_of
from cacheprefix.telemetry.tool_cache import ToolCaches

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

    from cacheprefix import Call
    from cacheprefix.cache import Verdict
    from cacheprefix.session import Session

Spans = Literal["call", "annotate", "off"]

_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
"""Bucket boundaries that the GenAI conventions advise (checked 2026-11-21)."""

_BOUNDARIES = {"s": _SECONDS, "{token}": _TOKENS}
_EPOCH = 1_000_000_000
"""A session's clock below this (2001) does not tell the time of day; then a call is told as ending now."""

_ROLES = 200
"""Role names told apart in metrics; each is a series of its own, and names made up per request never end."""


class Telemetry:
    """A plugin that tells every call to OpenTelemetry: ``Session(HANDBOOK, plugins=[Telemetry()])``.

    Args:
        tracer_provider: where spans go; the process's own by default.
        meter_provider: where metrics go; the process's own by default.
        spans: ``call`` makes a span ``chat MODEL`` for each call, a child of whatever span was current when the request
            was made; ``annotate`` sets the attributes on that span instead, unless it has ended before the answer, for
            an application whose client library is instrumented already; ``off`` makes metrics alone.
        genai_metrics: whether the metrics that the GenAI conventions name are recorded too; turn them off where
            another instrumentation does, or each call counts twice.
        include_text: whether spans hold the few characters at which a prompt changed. Metrics never hold text.

    Raises ``MissingExtraError`` without OpenTelemetry's API. A request that failed is told by nobody here.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        spans: Spans = "call",
        genai_metrics: bool = True,
        include_text: bool = False,
    ) -> None:
        if find_spec("opentelemetry") is None:
            raise MissingExtraError("telemetry", "otel", "opentelemetry")
        if spans not in {"call", "annotate", "off"}:
            raise SetupError(f"Telemetry(spans={spans!r}): use 'call', 'annotate' or 'off'")
        from opentelemetry import metrics, trace  # noqa: PLC0415 - an extra

        self._trace = trace
        self._tracer = trace.get_tracer("cacheprefix", __version__, tracer_provider)
        meter = metrics.get_meter("cacheprefix", __version__, meter_provider)
        self._spans = spans
        self._include_text = include_text
        self._counters = {
            name: meter.create_counter(name, unit, text)
            for name, (unit, text) in METRICS.items()
            if not name.startswith(("gen_ai.", "cacheprefix.tool_cache."))
        }
        self._histograms = {
            name: meter.create_histogram(
                name, unit, text, explicit_bucket_boundaries_advisory=[float(edge) for edge in _BOUNDARIES[unit]]
            )
            for name, (unit, text) in METRICS.items()
            if name.startswith("gen_ai.") and genai_metrics
        }
        self._roles: set[str] = set()
        self._meter = meter
        self._tool_caches: ToolCaches | None = None
        self._lock = Lock()

    def bind(self, session: Session) -> Session:
        """Tell the calls of ``session``, its children's and its tool cache's statistics; gives the session back.

        As a plugin alone the tool cache is not told: no hook shows it. Binding again changes nothing.
        """
        load_price_library()
        if not session.plugins.holds(self):
            session.plugins.register(self)
        if session.tool_cache is not None:
            with self._lock:
                if self._tool_caches is None:
                    self._tool_caches = ToolCaches(self._meter)
                self._tool_caches.watch(session, session.tool_cache)
        return session

    def cacheprefix_after_call(self, call: Call, verdict: Verdict) -> None:
        """One span and the metrics of a finished call."""
        if self._spans == "call":
            self._tell(call, verdict)
        elif self._spans == "annotate":
            span = self._trace.get_current_span()
            if span.is_recording():
                span.set_attributes(attributes_of(call, verdict, include_text=self._include_text))
                self._mark(span, verdict)
        self._count(call, verdict)

    def _tell(self, call: Call, verdict: Verdict) -> None:
        """Write a call as a span of its own, in its own times."""
        shift = 0.0 if call.ended_at > _EPOCH else time.time() - call.ended_at
        span = self._tracer.start_span(
            f"chat {call.model}" if call.model else "chat",
            kind=self._trace.SpanKind.CLIENT,
            attributes=attributes_of(call, verdict, include_text=self._include_text),
            start_time=_nanoseconds(call.started_at + shift),
        )
        end = _nanoseconds(call.ended_at + shift)
        self._mark(span, verdict, end)
        span.end(end)

    @staticmethod
    def _mark(span: Span, verdict: Verdict, at: int | None = None) -> None:
        """An event where someone should look, so that a trace's list of events shows it."""
        if not verdict.alarm:
            return
        told: dict[str, Value] = {
            "cacheprefix.cause": verdict.cause,
            "cacheprefix.lost_tokens": verdict.lost_tokens,
            "cacheprefix.fix": verdict.fix,
        }
        if verdict.path:
            told["cacheprefix.path"] = verdict.path
        span.add_event("cacheprefix.break", told, at)

    def _count(self, call: Call, verdict: Verdict) -> None:
        """Add a call to the metrics, those of the GenAI conventions and ours."""
        base: dict[str, Value] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider_of(call),
            "gen_ai.request.model": call.model,
        }
        ours = {**base, "cacheprefix.role": self._role(call.agent)}
        caused = {**ours, "cacheprefix.cause": verdict.cause}
        self._record("gen_ai.client.operation.duration", max(0.0, call.ended_at - call.started_at), base)
        self._record("gen_ai.client.operation.time_to_first_chunk", first_chunk(call), base)
        usage = call.usage
        for kind, tokens in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            self._record("gen_ai.client.token.usage", tokens, {**base, "gen_ai.token.type": kind})
        self._add("cacheprefix.calls", 1, {**caused, "cacheprefix.verdict": verdict.kind})
        for source, tokens in _sources(call):
            self._add("cacheprefix.input.tokens", tokens, {**ours, "cacheprefix.source": source})
        self._add("cacheprefix.expected.tokens", verdict.expected_tokens, ours)
        self._add("cacheprefix.cost", call.units, ours)
        self._add("cacheprefix.unmodified.cost", call.unmodified_units, ours)
        self._add("cacheprefix.spend", call.money, ours)
        if verdict.broken:
            self._add("cacheprefix.lost.tokens", verdict.lost_tokens, caused)
            self._add("cacheprefix.lost.spend", verdict.lost_usd, caused)
        if verdict.alarm:
            self._add("cacheprefix.breaks", 1, caused)

    def _record(self, name: str, value: float | None, attributes: dict[str, Value]) -> None:
        histogram = self._histograms.get(name)
        if histogram is not None and value is not None:
            histogram.record(value, attributes)

    def _add(self, name: str, value: float | None, attributes: dict[str, Value]) -> None:
        if value is not None:
            # Zero is told too, so that a rate exists before the first token is read.
            self._counters[name].add(value, attributes)

    def _role(self, agent: str) -> str:
        if agent in self._roles or len(self._roles) < _ROLES:
            self._roles.add(agent)
            return agent
        return "other"


def _sources(call: Call) -> tuple[tuple[str, int], ...]:
    usage = call.usage
    if usage.cache_read_tokens is None:
        return (("unreported", call.input_tokens if usage.input_tokens is None else usage.input_tokens),)
    return (
        ("read", usage.cache_read_tokens),
        ("written", usage.cache_write_tokens or 0),
        ("uncached", usage.uncached_tokens or 0),
    )


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1_000_000_000)
