"""Zones, volatile text, compaction, request budgets and verdicts on CrewAI's own tasks."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from crew_wire import BRIEF, INPUTS, bodies, heads, prompts, raw, shared

from benchmarks.crewai_workloads import CrewModel, agents, crew, prose, tasks
from benchmarks.crewai_workloads import new_llm as new_model
from cacheprefix import ForkPolicy, History, Session, SharedPrefix
from cacheprefix.errors import BudgetError, SetupError
from cacheprefix.history import Compaction, RequestBudget
from cacheprefix.server import Fault, Reply, Request, ToolCall
from cacheprefix.wire import views_of
from cacheprefix_crewai import ask, install

STEPS = 24
WINDOW = 2_400


class Steps:
    """Plays a model that searches ``STEPS`` times, whatever of that it still sees, and then answers.

    ``window`` is where the provider refuses a request as too long.
    """

    def __init__(self, steps: int = STEPS, window: int | None = None) -> None:
        self.steps = steps
        self.window = window
        self.done = -1

    def __call__(self, request: Request) -> Reply:
        """The next step."""
        if self.window is not None and request.prompt.tokens > self.window:
            return Reply(fault=Fault(status=400, message="This model's maximum context length is exceeded."))
        seen = [int(number) for number in re.findall(r"step-(\d+)", json.dumps(request.body["messages"]))]
        self.done = max([self.done, *seen])
        if self.done + 1 < self.steps and request.asked.choice != "none":
            return Reply(tool_calls=(ToolCall("search_market_data", {"query": f"step-{self.done + 1}"}),))
        return Reply("Result of looking: all of it was read.")


@pytest.fixture
def summaries() -> list[int]:
    """One entry for each summary that CrewAI had its model write."""
    return []


@pytest.fixture
def looker(servers, new_llm, summaries):
    """``looker()`` gives a provider and a crew of one agent with a long tool loop; ``model`` plays the model."""

    async def summary(*_: Any, **__: Any) -> str:
        """CrewAI's summariser asks through a client that it never closes."""
        summaries.append(1)
        return "<summary>Everything so far.</summary>"

    def make(model: Any = None, *, window: int | None = None, **options: Any):
        from crewai import Task

        summaries.clear()
        provider = servers("openai", model or Steps())
        who = agents(lambda: new_llm(provider), max_iter=90, **options)[:1]
        if window is not None:
            vars(who[0].llm).update(get_context_window_size=lambda: window, acall=summary)
        look = Task(name="look", description="Look at everything.", expected_output="All of it.", agent=who[0])
        return provider, crew(who, [look])

    return make


def paired(body: dict[str, Any]) -> bool:
    """Whether every call is followed by its results in order, and nothing is empty."""
    waiting: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            assert waiting.pop(0) == message["tool_call_id"]
            continue
        if waiting:
            return False
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
        if not waiting and not message.get("content"):
            return False
    return not waiting


def test_durable_context_stands_in_the_shared_part(servers, new_llm) -> None:
    """Keyed text of the prefix opens every request, before any role."""
    provider = servers("openai")
    who = agents(lambda: new_llm(provider), tools=False)
    team = crew(who, tasks(who))
    with install(team, Session(SharedPrefix(system="Be exact.", context={"project": "We build heat pumps."}))):
        team.kickoff(inputs=INPUTS)
    sent = prompts(provider)
    assert len(heads(sent)) == 1
    assert all('<context key="project">\nWe build heat pumps.\n</context>' in one.sections[0].text for one in sent)


def spoken(kind: str) -> Any:
    """Anthropic has no system message at the end, whoever carries it there."""
    return "system" if "anthropic" in kind else "user"


@pytest.mark.parametrize("kind", ["openai", "responses", "anthropic", "litellm-anthropic"])
def test_volatile_text_stands_behind_everything_in_every_step_of_a_loop(servers, new_llm, kind) -> None:
    """The clock changes with each request and costs no cached token: each step begins with the whole one before."""
    provider = servers("anthropic" if "anthropic" in kind else "openai")
    who = agents(lambda: new_llm(provider, kind))
    team = crew(who, tasks(who))
    ticks = iter(range(100))
    with install(team, volatile=lambda: {"now": f"tick {next(ticks)}"}, volatile_role=spoken(kind)) as installed:
        team.kickoff(inputs=INPUTS)
    sent = prompts(provider)
    assert [one.sections[-1].text for one in sent] == [f"<now>\ntick {i}\n</now>" for i in range(len(sent))]
    assert not any("tick" in section.text for one in sent for section in one.sections[:-1])
    for before, after in ((sent[0], sent[1]), (sent[1], sent[2]), (sent[3], sent[4])):
        assert shared(before, after) == len(before.sections) - 1
    assert all(record.body.count(b'"cache_control"') <= 4 for record in provider.requests)
    assert all(one.sections[-1].marker is None for one in sent)
    loops = [call for call in installed.session.calls if not call.first_of_agent]
    assert all(call.usage.cache_read_tokens > 1_500 for call in loops)
    assert not any(call.verdict.alarm for call in installed.session.calls)


def test_volatile_text_costs_no_step_of_a_loop_where_openai_marks_the_newest_message(servers) -> None:
    """From 5.6 on the mark stands before the clock, so that each step reads the whole one before it."""
    provider = servers("openai-5.6")
    who = agents(lambda: new_model("gpt-5.6", provider.openai_base_url))
    team = crew(who, tasks(who))
    ticks = iter(range(100))
    with install(team, volatile=lambda: {"now": f"tick {next(ticks)}"}) as installed:
        team.kickoff(inputs=INPUTS)
    calls = installed.session.calls
    for before, after in ((calls[0], calls[1]), (calls[1], calls[2]), (calls[3], calls[4])):
        assert after.usage.cache_read_tokens == before.usage.cache_read_tokens + before.usage.cache_write_tokens


def test_volatile_text_may_speak_as_the_system(servers, new_llm) -> None:
    """The role under which it is sent is the user's choice; an error in giving it is the application's."""
    provider = servers("openai")
    who = agents(lambda: new_llm(provider), tools=False)
    team = crew(who, tasks(who))
    given = [{"now": "noon"}]
    with (
        install(team, volatile=given.pop, volatile_role="system") as installed,
        pytest.raises(IndexError, match="pop from empty list"),
    ):
        team.kickoff(inputs=INPUTS)
    (last,) = [body["messages"][-1] for body in bodies(provider)]
    assert last == {"role": "system", "content": "<now>\nnoon\n</now>"}
    assert installed.session.failures == {}


@pytest.mark.parametrize("way", ["kickoff", "akickoff", "kickoff_async", "agent"])
def test_an_error_in_giving_volatile_text_is_the_applications(servers, new_llm, way) -> None:
    """It reaches the application by every way of starting; nothing is sent, and nothing of ours failed."""
    provider = servers("openai")
    who = agents(lambda: new_llm(provider))
    team: Any = crew(who, tasks(who))
    given: dict[str, str] = {}

    def run() -> None:
        if way == "agent":
            who[0].kickoff(BRIEF)
        elif way == "kickoff":
            team.kickoff(inputs=INPUTS)
        else:
            asyncio.run(getattr(team, way)(inputs=INPUTS))

    with install(who if way == "agent" else team, volatile=lambda: {"now": given["missing"]}) as installed:
        with pytest.raises(KeyError, match="missing"):
            run()
        assert installed.session.failures == {}
    assert not provider.requests


def test_volatile_that_gives_no_texts_is_the_applications_error(servers, new_llm) -> None:
    """Of what is no mapping nothing is sent; None says nothing with a call."""
    provider = servers("openai")
    who = agents(lambda: new_llm(provider))
    with install(crew(who, tasks(who)), volatile=lambda: "12:01"), pytest.raises(SetupError, match="volatile gives"):
        who[0].kickoff(BRIEF)
    assert not provider.requests
    with install(crew(who, tasks(who)), volatile=lambda: None) as installed:
        who[0].kickoff(BRIEF)
    assert provider.requests
    assert installed.session.failures == {}


@pytest.mark.slow
def test_a_long_loop_is_compacted_instead_of_summarised(looker, summaries) -> None:
    """Where CrewAI would have its model summarise, old results go by decision, in pairs, and the task goes on."""
    provider, team = looker(window=1_500, respect_context_window=True)
    team.kickoff()
    assert summaries
    provider, team = looker(window=1_500, respect_context_window=True)
    session = Session(compaction=WINDOW)
    with install(team, session):
        output = team.kickoff()
    assert summaries == []
    sent = bodies(provider)
    assert all(paired(body) for body in sent)
    assert not any(b"_cacheprefix" in body for body in raw(provider))
    assert max(one.tokens for one in prompts(provider)) < 1.3 * WINDOW
    assert all(body["messages"][:2] == sent[0]["messages"][:2] for body in sent)
    assert output.raw.startswith("Result of looking")
    causes = [call.verdict.cause for call in session.calls]
    assert 1 <= causes.count("compacted") <= 4
    assert not {"history_edited", "history_truncated"} & set(causes)
    assert session.failures == {}


class Summing(Steps):
    """Can also sum up."""

    def __call__(self, request: Request) -> Reply:
        """A summary where one is asked for."""
        return Reply("A model's summary.") if "with the summary only" in request.tail else super().__call__(request)


def test_whatever_is_asked_beside_a_task_stays_with_its_tenant(looker) -> None:
    """Tasks, summaries, memory extraction and side questions of two tenants on one session keep to their lanes."""
    session = Session(compaction=Compaction(WINDOW, summarise="fork", summary_tokens=120))
    for tenant in ("acme", "beta"):
        _, team = looker(Summing())
        before = len(session.calls)
        with install(team, session, scope=tenant) as installed:
            team.kickoff()
            ask(team, "Why?")
            ask(team, "What is worth keeping?", role="memory", policy=ForkPolicy.memory_update())
        calls = session.calls[before:]
        assert calls[0].verdict.expected_tokens == 0
        summaries = [call for call in calls if call.agent.endswith("summary")]
        assert summaries
        assert all(call.verdict.expected_tokens > 1_000 for call in (*summaries, *calls[-2:]))
        assert installed.scope == tenant
        assert session.adapter.known(installed.conversation, tenant) is not None
        assert session.adapter.known(installed.conversation) is None
    assert session.failures == {}


def test_another_tenant_is_another_installation(looker) -> None:
    """Installing for the same one changes nothing; for another one the crew is its until that is taken back."""
    _, team = looker(Steps(1))
    first = install(team, scope="acme")
    assert install(team).scope == install(team, scope="acme").scope == "acme"
    assert first.active
    second = install(team, scope="beta")
    assert (second.scope, second.session is first.session) == ("beta", True)
    second.undo()
    assert (second.active, first.active, install(team).scope) == (False, True, "acme")


def test_a_compacted_task_repeats_byte_for_byte(looker) -> None:
    """A second kickoff reads its results before they go, and compacts at the same places."""
    provider, team = looker()
    with install(team, Session(compaction=WINDOW)):
        team.kickoff()
        first = raw(provider)
        provider.reset()
        provider.simulator.script = Steps()
        team.kickoff()
    assert raw(provider) == first
    assert len(first) == STEPS + 1


def test_a_history_the_provider_refuses_is_halved_without_a_summary(looker, summaries) -> None:
    """When the window was smaller than the trigger, what is refused is compacted at once and sent again."""
    provider, team = looker(Steps(window=1_800), window=100_000, respect_context_window=True)
    with install(team, Session(compaction=50_000)) as installed:
        output = team.kickoff()
    refused = [record for record in provider.requests if record.status != 200]
    assert 1 <= len(refused) <= 4
    assert summaries == []
    assert output.raw.startswith("Result of looking")
    assert len(installed.session.calls) == len(provider.requests) - len(refused)


@pytest.mark.slow
def test_without_compaction_crewai_summarises_as_it_did(looker, summaries) -> None:
    """A session that bounds nothing leaves CrewAI's own care for the window to CrewAI."""
    provider, team = looker(window=1_500, respect_context_window=True)
    team.kickoff()
    before = raw(provider)
    provider, team = looker(window=1_500, respect_context_window=True)
    with install(team, Session(mode="observe")):
        team.kickoff()
    assert raw(provider) == before
    provider, team = looker(window=1_500, respect_context_window=True)
    with install(team) as installed:
        output = team.kickoff()
    assert summaries
    assert output.raw.startswith("Result of looking")
    assert installed.session.failures == {}


def test_a_request_budget_holds_every_request(looker) -> None:
    """With a window and a declared reserve no request is above what is left."""
    provider, team = looker()
    session = Session(history=History(request_budget=RequestBudget(window=2_000, reserve=300)))
    with install(team, session):
        output = team.kickoff()
    count = session.adapter.counter("gpt-5-2025-08-07")
    tools = sum(count(json.dumps(tool)) for tool in bodies(provider)[0]["tools"])
    histories = [views_of(body["messages"], "openai-chat", count) for body in bodies(provider)]
    sizes = [tools + sum(view.tokens for view in history) for history in histories]
    assert 1_500 < max(sizes) <= 1_750
    assert all(paired(body) for body in bodies(provider))
    assert output.raw.startswith("Result of looking")


def test_a_request_that_cannot_be_made_to_fit_is_refused(servers, new_llm) -> None:
    """The error says by how much, and nothing is sent; CrewAI does not ask again, as no second request would fit."""
    provider = servers("openai")
    who = agents(lambda: new_llm(provider), tools=False)
    team = crew(who, tasks(who))
    asked: list[str] = []
    limits = History(request_budget=RequestBudget(window=500))
    with (
        install(team, Session(history=limits), volatile=lambda: {"number": asked.append("once") or "1"}),
        pytest.raises(BudgetError) as refused,
    ):
        team.kickoff(inputs=INPUTS)
    assert refused.value.over_by >= 1_000
    assert asked == ["once"]
    assert provider.requests == []


def test_verdicts_are_live(servers, new_llm) -> None:
    """When a task is done its requests have been judged, and an alarm was raised at once."""
    provider = servers("openai")
    who = agents(lambda: new_llm(provider))
    alarms: list[str] = []

    class Alarms:
        """Keeps the causes."""

        def cacheprefix_cache_break(self, verdict):
            alarms.append(verdict.cause)

    session = Session(plugins=[Alarms()])
    seen: list[str] = []
    team = crew(who, tasks(who), task_callback=lambda _: seen.append(session.last_verdict.cause))
    with install(team, session):
        team.kickoff(inputs=INPUTS)
        assert session.calls[0].verdict.cause == "cold_start"
        assert seen == ["hit"] * 3
        assert alarms == []
        team.kickoff(inputs={"brief": BRIEF})
        assert [call.verdict.cause for call in session.calls[8:]] == ["hit"] * 8
        provider.simulator.script = CrewModel()
        before = len(session.calls)
        session.adapter.shared.services.profile.provider = "openai"
        provider.simulator.reset()
        team.kickoff(inputs={"brief": BRIEF})
    assert session.calls[before].verdict.cause == "provider_miss"
    assert alarms[:1] == ["provider_miss"]


def test_no_request_is_uploaded_only_to_be_counted(looker, monkeypatch) -> None:
    """CrewAI counts each request at the provider before it sends it; a session with limits does that here."""
    counted: list[int] = []

    def run(session: Session | None) -> int:
        provider, team = looker(Steps(3), respect_context_window=True, use_better_compaction=True)
        llm = team.agents[0].llm
        vars(llm)["get_input_tokens_count"] = lambda *_, **__: counted.append(1) or 10
        if session is not None:
            install(team, session)
        counted.clear()
        team.kickoff()
        assert len(provider.requests) == 4
        return len(counted)

    from cacheprefix import ToolResultBudget

    assert run(None) >= 4
    assert run(Session(compaction=50_000, budget=ToolResultBudget(max_tokens=4_000))) == 0


def test_what_a_plan_would_say_stays_out_of_reports(looker) -> None:
    """Neither the report nor its JSON quotes a task or a tool's result."""
    _, team = looker(Steps(3))
    with install(team, Session(compaction=WINDOW)) as installed:
        team.kickoff()
    report = installed.session.report()
    for text in (str(report), json.dumps(report.as_dict())):
        assert "Look at everything" not in text
        assert prose(20) not in text
