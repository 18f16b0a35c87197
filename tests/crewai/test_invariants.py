"""What may never break, on recorded requests of real crews."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from crew_wire import BRIEF, INPUTS, outputs, prompts, raw, shared

from benchmarks.bench_crewai import RULES, row_of
from benchmarks.crewai_workloads import WORKLOADS, DumpTool, agents, crew, tasks
from cacheprefix import Session, ToolResultBudget
from cacheprefix.profiles import cost_units, default_registry, normalise_usage
from cacheprefix.prompt import chain, lane_key
from cacheprefix.server import Reply, Request, ToolCall
from cacheprefix_crewai import install

KINDS = ("openai", "anthropic", "litellm")


@pytest.fixture
def made(servers, new_llm):
    """``made(kind)`` gives a provider and the crew of three specialists on it."""

    def make(kind: str = "openai", model: Any = None, **options: Any):
        provider = servers("anthropic" if "anthropic" in kind else "openai", model)
        who = agents(lambda: new_llm(provider, kind), **options)
        return provider, crew(who, tasks(who))

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_every_fork_begins_with_the_same_prefix_in_the_same_lane(made, kind) -> None:
    """Tools, system text and log are equal section for section; lane and salts too, whatever the role may call."""
    provider, team = made(kind, own_tools=True)
    with install(team):
        team.kickoff(inputs=INPUTS)
    sent = prompts(provider)
    assert len(sent) == 8
    rules = default_registry().profile_for(sent[0].model, api=sent[0].api).settings
    first = sent[0]
    head = sum(section.tier != "messages" for section in first.sections)
    assert {lane_key(one, rules) for one in sent} == {lane_key(first, rules)}
    assert all(shared(first, one) >= head for one in sent)
    assert {chain(one, rules)[head - 1] for one in sent} == {chain(first, rules)[head - 1]}
    logged = [chain(one, rules)[head] for one in sent[3:]]
    assert len(set(logged)) == 1


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_a_saved_ledger_replays_byte_for_byte_under_another_budget(made, kind) -> None:
    """A crew made anew sends the same bytes from the decisions saved by the first, whatever its budget says."""
    sent: list[list[bytes]] = []
    saved = ""
    for limit in (300, 50_000):
        provider, team = made(kind)
        team.agents[0].tools = team.tasks[0].tools = [DumpTool(size=2_000)]
        team.tasks[0].description = team.tasks[0].description.replace("(plan research)", "(plan dump)")
        installed = install(team, Session(budget=ToolResultBudget(max_tokens=limit)))
        conversation = installed.session.conversation(installed.conversation)
        if saved:
            conversation.restore(json.loads(json.dumps(json.loads(saved))))
        team.kickoff(inputs=INPUTS)
        installed.undo()
        saved = conversation.dumps()
        sent.append(raw(provider))
    assert sent[1] == sent[0]
    assert "read_full_result" in sent[0][1].decode() or "cut" in sent[0][1].decode()


class Many:
    """Plays a model that calls several tools at once, one of them unknown, and answers nothing in between."""

    def __call__(self, request: Request) -> Reply:
        """Two rounds of parallel calls, then an answer."""
        if request.rounds < 2 and request.asked.tools and request.asked.choice != "none":
            calls = [ToolCall("metric_table", {"metric": f"m{request.rounds}{n}", "years": n}) for n in range(3)]
            return Reply(tool_calls=(*calls, ToolCall("no_such_tool", {"a": "\u20ac \U0001f600"})))
        return Reply("Result of many calls. " * 20)


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_no_call_is_parted_from_its_result(made, kind) -> None:
    """Parallel calls, failed ones and large results stay in pairs and in order under budget and compaction."""
    provider, team = made(kind, Many())
    session = Session(budget=ToolResultBudget(max_tokens=60), compaction=1_900)
    with install(team, session):
        team.kickoff(inputs=INPUTS)
    assert session.failures == {}
    for prompt in prompts(provider):
        waiting: list[str] = []
        for section in prompt.sections:
            assert section.data
        for message in _messages(provider, prompt):
            calls, results = _pairs(message)
            if results:
                assert results == waiting[: len(results)]
                waiting = waiting[len(results) :]
            else:
                assert waiting == []
                waiting = calls


def _messages(provider: Any, prompt: Any) -> list[Any]:
    record = next(one for one in provider.requests if one.prompt is prompt)
    messages: list[Any] = record.json["messages"]
    return messages


def _pairs(message: Any) -> tuple[list[str], list[str]]:
    """Ids of the calls and of the results in a message of either form."""
    calls = [call["id"] for call in message.get("tool_calls") or ()]
    results = [message["tool_call_id"]] if message["role"] == "tool" else []
    blocks = message["content"] if isinstance(message.get("content"), list) else []
    calls += [block["id"] for block in blocks if block.get("type") == "tool_use"]
    results += [block["tool_use_id"] for block in blocks if block.get("type") == "tool_result"]
    return calls, results


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["openai", "litellm-anthropic"])
def test_observing_and_undoing_leave_every_byte(made, kind) -> None:
    """Before, observed, and after an installation was taken back: the same requests, with budgets set too."""
    provider, team = made(kind)
    team.kickoff(inputs=INPUTS)
    before = raw(provider)
    provider.reset()
    limits = Session(mode="observe", budget=ToolResultBudget(max_tokens=10), compaction=500)
    with install(team, limits, volatile=lambda: {"now": "noon"}):
        team.kickoff(inputs=INPUTS)
    assert raw(provider) == before
    provider.reset()
    session = Session(budget=ToolResultBudget(max_tokens=40), compaction=5_000)
    with install(team, session, volatile=lambda: {"now": "noon"}):
        team.kickoff(inputs=INPUTS)
    assert raw(provider) != before
    provider.reset()
    team.kickoff(inputs=INPUTS)
    assert raw(provider) == before


class Raising:
    """A plugin that fails at every hook."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cacheprefix_") or name in ("cacheprefix_wrap", "cacheprefix_commands"):
            raise AttributeError(name)

        def hook(**_: Any) -> Any:
            raise RuntimeError("on purpose")

        return hook


STEPS = ("history.views_of", "layout.offer", "layout._tail_of", "ahead.KnownCrews.position", "history.apply")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("step", STEPS)
def test_whatever_of_ours_fails_the_crew_finishes_as_it_would_have(made, monkeypatch, step) -> None:
    """An exception at any step sends a request that works, and is counted."""

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(f"cacheprefix_crewai.{step}", broken)
    _, team = made(own_tools=True)
    session = Session(budget=ToolResultBudget(max_tokens=40), compaction=50_000)
    with install(team, session):
        found = outputs(team.kickoff(inputs=INPUTS))
    assert [text.split(":", 1)[0] for text in found] == [f"Result of {one.name}" for one in team.tasks]
    assert sum(session.failures.values()) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("rules", [RULES[2], RULES[-1]], ids=lambda rules: f"{rules.rules} {rules.read_price:g}")
def test_what_shares_least_is_never_dearer(rules) -> None:
    """One task, and three that have nothing in common: left alone, or cheaper."""
    for name in ("one task", "nothing shared"):
        row = row_of(next(one for one in WORKLOADS if one.name == name), rules, rules.rules)
        assert row["ratio"] <= 1.0
        assert row["failures"] == {}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "factor"), [("one task", 0.7), ("for each, replays", 1.0)])
def test_the_report_says_what_the_crew_had_cost_unmodified(name, factor) -> None:
    """Within 2 %, where the provider counts otherwise and keeps whole blocks that begin within a token."""
    workload = next(one for one in WORKLOADS if one.name == name)
    assert row_of(workload, RULES[1], "openai", factor)["reported_share"] == pytest.approx(1, abs=0.02)


def test_each_tasks_requests_only_grow_at_their_end(made) -> None:
    """Every request of a loop begins with the whole one before it; every first one with the shared part."""
    provider, team = made()
    with install(team) as installed:
        team.kickoff(inputs=INPUTS)
    by_task: dict[str, list[Any]] = defaultdict(list)
    for (task, _), prompt in zip(installed.calls, prompts(provider), strict=True):
        by_task[task].append(prompt)
    assert [len(loop) for loop in by_task.values()] == [3, 3, 2]
    for loop in by_task.values():
        for before, after in pairwise(loop):
            assert shared(before, after) == len(before.sections)


def test_nothing_reaches_across(servers, new_llm) -> None:
    """Two crews on one session and one model object, in threads: neither's words are in the other's requests."""
    provider = servers("openai")
    session, llm = Session(), new_llm(provider)
    crews = []
    for mark in ("alpha", "omega"):
        who = agents(lambda: llm, tools=False)
        team = crew(who, tasks(who), name=mark)
        crews.append((team, {"brief": f"{BRIEF} mark-{mark}"}))
    installed = [install(team, session) for team, _ in crews]
    threads = [threading.Thread(target=team.kickoff, kwargs={"inputs": given}) for team, given in crews]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in installed:
        one.undo()
    for prompt in prompts(provider):
        text = "".join(section.text for section in prompt.sections)
        assert ("mark-alpha" in text) != ("mark-omega" in text)
    assert len({call.conversation for call in session.calls}) == 2
    report = session.report()
    assert "mark-" not in str(report) + json.dumps(report.as_dict())


def test_cost_units_are_those_of_the_servers_count(made) -> None:
    """The report's total is what the provider's own numbers come to, at its prices."""
    provider, team = made("anthropic")
    with install(team) as installed:
        team.kickoff(inputs=INPUTS)
    theirs = [normalise_usage(record.usage, record.api) for record in provider.requests]
    calls = installed.session.calls
    units = sum(cost_units(usage, call.profile) for usage, call in zip(theirs, calls, strict=True))
    assert installed.session.report().total.cost_units == pytest.approx(units)
