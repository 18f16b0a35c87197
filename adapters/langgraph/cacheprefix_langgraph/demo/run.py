"""Running the demonstration: every layout under every rule set, measured on the requests themselves."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from langchain_core.language_models import BaseChatModel

from cacheprefix import Caching, Call, Session, SharedPrefix
from cacheprefix.adapter import tally
from cacheprefix.errors import MissingExtraError
from cacheprefix_langgraph.demo.handbook import HANDBOOK, TASK
from cacheprefix_langgraph.demo.script import answer
from cacheprefix_langgraph.demo.source import Source, tools_for
from cacheprefix_langgraph.demo.team import Layout, build_team, first_message
from cacheprefix_langgraph.model import wrap_model

MODELS = {
    "exact": "gpt-5.2",
    "openai": "gpt-5.2",
    "openai-5.6": "gpt-5.6",
    "openai-5.6-prefix": "gpt-5.6",
    "anthropic": "claude-opus-4-1",
}
"""A model of each rule set's family, which the simulated provider answers for."""

RULES = ("openai", "openai-5.6", "anthropic")
"""The rule sets shown by default. ``openai-5.6`` is run under both readings of its documentation."""


@dataclass(frozen=True, slots=True)
class RequestBar:
    """One request of a run, as its picture shows it. Tokens as the provider reported them."""

    agent: str
    input_tokens: int
    read_tokens: int


@dataclass(frozen=True, slots=True)
class Row:
    """One run. Tokens; costs in cost units (one uncached input token = 1); times in milliseconds."""

    framework: str
    layout: str
    rules: str
    calls: int
    input_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    uncached_tokens: int
    cost_units: float
    first_calls_cost_units: float
    """First requests of all roles but the first one."""
    ttft_ms_median: float
    first_call_share: float
    """Of those first requests, the smallest share of input that an earlier prompt begins with."""
    wall_ms: float
    reading: str
    """The profile the provider followed."""
    read_price: float = 0.0
    """What a token read from the cache costs, of an uncached one."""
    requests: tuple[RequestBar, ...] = ()
    """In the order in which they were sent."""


def layouts_of(rules: str) -> tuple[Layout, ...]:
    """LangChain has caching of its own for Anthropic only."""
    return ("unmodified", "stock", "shared") if rules == "anthropic" else ("unmodified", "shared")


def run_simulated(
    source: Source,
    rules: Sequence[str],
    *,
    latency: float = 1.0,
    step: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """All layouts under all rule sets against the simulated provider, over HTTP.

    Under ``openai-5.6`` both readings run, and the one with the higher ratio is reported.
    """
    rows: list[Row] = []
    for name in rules:
        readings = ("openai-5.6", "openai-5.6-prefix") if name == "openai-5.6" else (name,)
        runs: list[list[Row]] = []
        for reading in readings:
            found = []
            for layout in layouts_of(name):
                step(f"{reading}: {layout}")
                with _provider(reading, source, latency) as make:
                    found.append(run_layout(make(), source, layout, name, profile=reading))
            runs.append(found)
        dearest: list[Row] = max(runs, key=lambda run: run[-1].cost_units / run[0].cost_units)
        rows += dearest
    return rows


def run_layout(model: BaseChatModel, source: Source, layout: Layout, rules: str, *, profile: str | None) -> Row:
    """One run of the team; in all but the shared layout cacheprefix only watches."""
    tools = tools_for(source)
    session = Session(
        SharedPrefix(system=HANDBOOK, tools=tools),
        mode="fork" if layout == "shared" else "observe",
        caching=Caching(provider=profile),
    )
    team = build_team(wrap_model(model, session), tools, layout, session)
    task = TASK.format(package=source.name, files=len(source.files), lines=source.lines)
    began = time.perf_counter()
    team.invoke(first_message(task))
    wall = (time.perf_counter() - began) * 1000
    return row_of(session, layout, rules, wall, profile or "")


def row_of(session: Session, layout: str, rules: str, wall_ms: float, reading: str) -> Row:
    """Sum up what a session saw."""
    calls = sorted(session.calls, key=lambda call: call.started_at)
    total = tally("all", calls)
    firsts = _first_calls(calls)
    waits = [(call.first_token_at - call.started_at) * 1000 for call in calls if call.first_token_at is not None]
    return Row(
        "langgraph",
        layout,
        rules,
        total.calls,
        total.input_tokens,
        total.cache_read_tokens,
        total.cache_write_tokens,
        total.uncached_tokens,
        round(total.cost_units, 1),
        round(sum(call.units for call in firsts), 1),
        round(statistics.median(waits), 1) if waits else 0.0,
        round(min((call.shared_tokens / call.input_tokens for call in firsts), default=0.0), 4),
        round(wall_ms, 1),
        reading,
        calls[0].profile.read if calls else 0.0,
        tuple(
            RequestBar(call.agent, call.usage.input_tokens or call.input_tokens, call.usage.cache_read_tokens or 0)
            for call in calls
        ),
    )


def as_data(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as plain data."""
    return [asdict(row) for row in rows]


def _first_calls(calls: Sequence[Call]) -> list[Call]:
    seen: set[str] = set()
    firsts = []
    for call in calls:
        if call.agent not in seen:
            seen.add(call.agent)
            firsts.append(call)
    return firsts[1:]


@contextmanager
def _provider(rules: str, source: Source, latency: float) -> Iterator[Callable[[], BaseChatModel]]:
    from cacheprefix.server import Latency, Reply, Request, SimulatedProvider, ToolCall  # noqa: PLC0415 - an extra

    # A third of a hosted model's times, so that nine runs stay within two minutes; ratios are what counts.
    pace = Latency(base=0.08, uncached=0.00008, cached=0.000003, output=0.003, scale=latency)

    def script(request: Request) -> Reply:
        found = answer(request.prompt, source)
        return Reply(text=found.text, tool_calls=tuple(ToolCall(name, arguments) for name, arguments in found.calls))

    with SimulatedProvider(rules=rules, script=script, latency=pace) as provider:
        if rules == "anthropic":
            yield lambda: anthropic_model(MODELS[rules], base_url=provider.anthropic_base_url, api_key="simulated")
        else:
            yield lambda: openai_model(MODELS[rules], base_url=provider.openai_base_url, api_key="simulated")


def openai_model(model: str, **options: Any) -> BaseChatModel:
    """A ChatOpenAI that streams, so that the time to the first token can be seen."""
    try:
        from langchain_openai import ChatOpenAI  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError("the demonstration with OpenAI's API", "langgraph", "langchain_openai") from error
    return ChatOpenAI(model=model, streaming=True, stream_usage=True, max_retries=1, **options)


def anthropic_model(model: str, **options: Any) -> BaseChatModel:
    """A ChatAnthropic that streams, so that the time to the first token can be seen."""
    try:
        from langchain_anthropic import ChatAnthropic  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError("the demonstration with Anthropic's API", "langgraph", "langchain_anthropic") from error
    # The class names its fields differently from the aliases that everyone uses.
    settings: dict[str, Any] = {"model": model, "max_tokens": 2000, "streaming": True, "max_retries": 1, **options}
    return ChatAnthropic(**settings)
