"""Spans, metrics and log fields of real calls against the simulated provider."""

from __future__ import annotations

import builtins
import json
import logging
import re

import httpx
import openai
import pytest
import yaml
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY, generate_latest

from cacheprefix import Caching, Session
from cacheprefix.adapter import Request
from cacheprefix.errors import MissingExtraError, SetupError
from cacheprefix.server import SimulatedProvider
from cacheprefix.telemetry import METRICS, CallLog, Telemetry, alert_rules, dashboard
from cacheprefix.toolcache import ToolSpec

HANDBOOK = "Rule 7 of the secret handbook: cite the place. " * 200
MODEL = "gpt-4.1-2025-04-14"


@pytest.fixture(scope="module")
def provider():
    """One server for all tests here."""
    with SimulatedProvider("openai") as server:
        yield server


@pytest.fixture(autouse=True)
def _empty(provider):
    provider.reset()


class Watched:
    """A session whose telemetry goes into memory, and a way to make calls through it."""

    def __init__(self, provider, **options):
        self.spans = InMemorySpanExporter()
        self.metrics = InMemoryMetricReader()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self.spans))
        self.tracer = tracers.get_tracer("application")
        self.plugin = Telemetry(tracers, MeterProvider([self.metrics]), **options)
        self.session = Session(HANDBOOK, plugins=[self.plugin])
        self.client = openai.OpenAI(base_url=provider.openai_base_url, api_key="any", http_client=httpx.Client())

    def call(self, *texts, agent="writer", system=HANDBOOK):
        """One call through the session; its messages alternate between user and assistant."""
        roles = ("user", "assistant")
        said = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
        body = {"model": MODEL, "messages": [{"role": "system", "content": system}, *said]}
        turn = self.session.adapter.begin(Request(body, "openai-chat", agent=agent, conversation="thread-1"))
        answer = self.client.chat.completions.create(**turn.body)
        turn.first_token()
        return turn.finish(answer.usage)

    def close(self):
        """Close the connection pool; unclosed sockets are errors here."""
        self.client.close()

    def points(self, name):
        """Data points of a metric: attributes and the point."""
        data = self.metrics.get_metrics_data()
        if data is None:
            return []
        every = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics]
        return [(dict(point.attributes), point) for m in every if m.name == name for point in m.data.data_points]


@pytest.fixture
def watch(provider):
    """``watch(**options)`` makes a watched session that is closed after the test."""
    made = []

    def make(**options):
        made.append(Watched(provider, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_call_is_a_span_by_the_genai_conventions(watch):
    """Name, kind, provider, model, usage with cached tokens, agent and conversation."""
    run = watch()
    run.call("one")
    run.call("one", "fine", "two")
    first, second = run.spans.get_finished_spans()
    assert second.name == f"chat {MODEL}"
    assert second.kind.name == "CLIENT"
    told = dict(second.attributes)
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.provider.name"] == "openai"
    assert told["gen_ai.agent.name"] == told["cacheprefix.role"] == "writer"
    assert told["gen_ai.conversation.id"] == "thread-1"
    assert told["gen_ai.usage.cache_read.input_tokens"] > 1024
    assert told["gen_ai.usage.input_tokens"] > told["gen_ai.usage.cache_read.input_tokens"]
    assert first.attributes["cacheprefix.cause"] == "cold_start"


def test_a_span_says_what_was_expected_and_of_which_prefix(watch):
    """Expected tokens, cause, cost units and the digest that all of a team have in common."""
    run = watch()
    run.call("one")
    run.call("one", "fine", "two")
    told = dict(run.spans.get_finished_spans()[-1].attributes)
    assert told["cacheprefix.expected_tokens"] == told["gen_ai.usage.cache_read.input_tokens"]
    assert told["cacheprefix.lost_tokens"] == 0
    assert told["cacheprefix.cause"] == told["cacheprefix.verdict"] == "hit"
    assert told["cacheprefix.prefix"] == run.session.prefix.key
    assert (told["cacheprefix.layout"], told["cacheprefix.reasons"]) == ("observed", "outside_fork")
    assert 0 < told["cacheprefix.cost_units"] < told["gen_ai.usage.input_tokens"]


def test_a_break_is_an_event_of_its_span(watch):
    """With the cause, the place and how to mend it."""
    run = watch()
    run.call("one")
    run.call("one", "fine", "two")
    run.call("one", "fine", "two", "good", "three", system=HANDBOOK.replace("7", "8", 1))
    (event,) = run.spans.get_finished_spans()[-1].events
    assert event.name == "cacheprefix.break"
    assert event.attributes["cacheprefix.cause"] == "system_changed"
    assert event.attributes["cacheprefix.lost_tokens"] > 1024
    assert event.attributes["cacheprefix.path"].startswith("system[0]")


def test_no_prompt_text_leaves_by_default(watch):
    """Neither in spans nor in metrics; asked for, the characters around the change do."""
    for include_text in (False, True):
        run = watch(include_text=include_text)
        run.call("one")
        run.call("one", "fine", "two", system=HANDBOOK.replace("secret", "SECRET", 1))
        spans = " ".join(span.to_json() for span in run.spans.get_finished_spans())
        assert ("secret" in spans) is include_text
        assert "secret" not in run.metrics.get_metrics_data().to_json()


def test_a_span_is_a_child_of_the_applications(watch):
    """So that a trace of a request shows its calls."""
    run = watch()
    with run.tracer.start_as_current_span("request") as outer:
        run.call("one")
    inner = run.spans.get_finished_spans()[0]
    assert inner.parent.span_id == outer.get_span_context().span_id
    assert inner.end_time >= inner.start_time > outer.start_time - 1_000_000_000


def test_an_instrumented_application_has_its_own_span_annotated(watch):
    """No second span a call, and no second count of its tokens."""
    run = watch(spans="annotate", genai_metrics=False)
    with run.tracer.start_as_current_span("request"):
        run.call("one")
    (span,) = run.spans.get_finished_spans()
    assert span.attributes["cacheprefix.cause"] == "cold_start"
    assert not run.points("gen_ai.client.token.usage")
    assert run.points("cacheprefix.calls")


@pytest.mark.parametrize("spans", ["call", "annotate"])
def test_a_stream_that_ends_in_another_users_span_is_told_in_its_own(watch, spans):
    """A stream may be read, or collected as garbage, wherever other work is under way."""
    run = watch(spans=spans)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
    with run.tracer.start_as_current_span("ada") as ada:
        turn = run.session.adapter.begin(Request(body, "openai-chat", agent="ada", conversation="ada"))
        with run.tracer.start_as_current_span("bob"):
            turn.finish({"prompt_tokens": 3, "completion_tokens": 1})
    told = [one for one in run.spans.get_finished_spans() if "cacheprefix.role" in (one.attributes or {})]
    assert [one.parent.span_id if spans == "call" else one.context.span_id for one in told] == [ada.context.span_id]


def test_a_clock_that_is_not_the_time_of_day_still_gives_spans_of_today(provider):
    """A session may count seconds from anything; the span ends now and lasts as long as the call did."""
    spans = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    now = [5.0]
    session = Session(HANDBOOK, plugins=[Telemetry(tracers, MeterProvider())], caching=Caching(clock=lambda: now[0]))
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
    turn = session.adapter.begin(Request(body, "openai-chat"))
    now[0] = 7.0
    turn.finish({"prompt_tokens": 3, "completion_tokens": 1})
    (span,) = spans.get_finished_spans()
    assert span.start_time > 1_700_000_000 * 10**9
    assert round((span.end_time - span.start_time) / 1e9, 3) == 2.0


def test_counters_add_up_to_the_sessions_report(watch):
    """Tokens by source, cost units, expected and lost tokens, breaks by cause."""
    run = watch()
    run.call("one")
    run.call("one", "fine", "two", agent="critic")
    run.call("one", "fine", "two", "good", "three", agent="critic")
    run.call("one", "fine", "two", "good", "three", "x", "four", agent="critic", system=HANDBOOK.replace("7", "8", 1))
    total = run.session.report().total
    sums = {}
    for attributes, point in run.points("cacheprefix.input.tokens"):
        source = attributes["cacheprefix.source"]
        sums[source] = sums.get(source, 0) + point.value
    assert sums == {"read": total.cache_read_tokens, "uncached": total.uncached_tokens, "written": 0}
    assert sum(point.value for _, point in run.points("cacheprefix.cost")) == pytest.approx(total.cost_units)
    assert sum(point.value for _, point in run.points("cacheprefix.spend")) == pytest.approx(total.money)
    ((attributes, point),) = run.points("cacheprefix.breaks")
    assert (attributes["cacheprefix.cause"], attributes["cacheprefix.role"], point.value) == (
        "system_changed", "critic", 1,
    )  # fmt: skip
    ((_, lost),) = run.points("cacheprefix.lost.tokens")
    assert lost.value == run.session.report().breaks[0].lost_tokens


def test_unreported_usage_is_counted_as_such(watch):
    """A provider that does not say what it read is no provider that read nothing."""
    run = watch()
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
    run.session.adapter.begin(Request(body, "openai-chat")).finish(None)
    ((attributes, point),) = run.points("cacheprefix.input.tokens")
    assert attributes["cacheprefix.source"] == "unreported"
    assert point.value == run.session.calls[0].input_tokens


def test_roles_made_up_per_request_do_not_fill_the_metrics(watch):
    """Beyond 200 names a role is counted as ``other``; spans keep the name."""
    run = watch(spans="off")
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
    for number in range(230):
        run.session.adapter.begin(Request(body, "openai-chat", agent=f"worker-{number}")).finish({"prompt_tokens": 3})
    roles = {attributes["cacheprefix.role"] for attributes, _ in run.points("cacheprefix.calls")}
    assert len(roles) == 201
    assert "other" in roles


def test_the_named_metrics_are_the_ones_emitted(watch):
    """``METRICS`` is what documentation and dashboards go by."""
    run = watch()
    run.call("one")
    run.call("one", "fine", "two", system=HANDBOOK.replace("7", "8", 1))
    run.plugin.bind(Session(tool_cache=True)).tool_cache.call(ToolSpec("look", cacheable=True), {}, lambda: "x")
    data = run.metrics.get_metrics_data()
    emitted = {m.name: m.unit for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}
    assert emitted == {name: unit for name, (unit, _) in METRICS.items()}


def _labels(text, name):
    found = re.findall(rf"^{name}\{{(.*)\}} ", text, re.MULTILINE)
    return {label for line in found for label in re.findall(r'(\w+)="', line)}


def test_the_dashboard_asks_for_metrics_and_labels_that_prometheus_gets(provider):
    """Every query of dashboard and alerts, against what OpenTelemetry's Prometheus exporter really shows."""
    meters = MeterProvider([PrometheusMetricReader()])
    session = Telemetry(None, meters, spans="off").bind(Session(HANDBOOK, tool_cache=True))
    session.tool_cache.call(ToolSpec("look", cacheable=True), {}, lambda: "x")
    with openai.OpenAI(base_url=provider.openai_base_url, api_key="any") as client:
        for system in (HANDBOOK, HANDBOOK.replace("7", "8", 1)):
            said = [{"role": "system", "content": system}, {"role": "user", "content": "hello"}]
            turn = session.adapter.begin(Request({"model": MODEL, "messages": said}, "openai-chat", agent="writer"))
            answer = client.chat.completions.create(**turn.body)
            turn.first_token()
            turn.finish(answer.usage)
    shown = generate_latest(REGISTRY).decode()
    meters.shutdown()
    board = json.loads(dashboard())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [one["query"] for one in board["templating"]["list"] if one["type"] == "query"]
    (group,) = yaml.safe_load(alert_rules())["groups"]
    assert all(rule.keys() == {"alert", "expr", "for", "labels", "annotations"} for rule in group["rules"])
    queries += [rule["expr"] for rule in group["rules"]]
    assert len(queries) > 16
    for query in queries:
        names = re.findall(r"\b(?:cacheprefix|gen_ai)_\w+?(?:_total|_bucket|_entries|_bytes)\b", query)
        assert names, query
        for name in names:
            assert re.search(rf"^{name}\{{", shown, re.MULTILINE), f"{name} is not among what is exported"
            asked = set(re.findall(rf"{name}\{{([^}}]*)\}}", query))
            labels = {label for group in asked for label in re.findall(r"(\w+)\s*!?=~?", group)}
            labels |= {one for by in re.findall(r"by \(([^)]*)\)", query) for one in by.split(", ")}
            assert labels <= _labels(shown, name), query


def test_a_log_line_has_its_facts_as_fields(watch, caplog):
    """For formatters that write JSON; the text stays short and holds no prompt."""
    caplog.set_level(logging.INFO, logger="cacheprefix.calls")
    run = watch(spans="off")
    run.session.plugins.register(CallLog())
    run.call("one")
    run.call("one", "fine", "two", system=HANDBOOK.replace("secret", "SECRET", 1))
    first, second = (record for record in caplog.records if record.name == "cacheprefix.calls")
    assert (first.levelname, second.levelname) == ("INFO", "WARNING")
    assert second.cacheprefix_cause == "system_changed"
    assert second.gen_ai_usage_input_tokens > 1024
    assert "secret" not in json.dumps(second.__dict__, default=str)


def test_a_log_that_nobody_reads_costs_nothing(watch, caplog):
    """No line is made below the logger's level."""
    caplog.set_level(logging.ERROR, logger="cacheprefix.calls")
    run = watch(spans="off")
    run.session.plugins.register(CallLog())
    run.call("one")
    assert not [record for record in caplog.records if record.name == "cacheprefix.calls"]


def test_telemetry_that_fails_never_breaks_a_call(watch):
    """A broken exporter is named once and the answer arrives."""
    run = watch()
    run.plugin._counters.clear()
    with pytest.warns(UserWarning, match="Telemetry"):
        assert run.call("one").cause == "cold_start"


def test_without_the_extra_the_install_line_is_named(monkeypatch):
    """Nothing is imported before it is asked for."""
    monkeypatch.setattr("cacheprefix.telemetry.otel.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"cacheprefix\[otel\]"):
        Telemetry()
    monkeypatch.setattr(builtins, "__import__", lambda *a, **k: pytest.fail("the log needs nothing"))
    CallLog()


def test_an_unknown_way_to_make_spans_is_refused():
    """The message names the three."""
    with pytest.raises(SetupError, match="annotate"):
        Telemetry(spans="all")
