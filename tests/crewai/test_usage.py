"""Usage, breakpoints, events, budgets, the gate, and what happens when something fails."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Barrier
from typing import Any

import pytest

from benchmarks.crewai_workloads import (
    BRIEF,
    CrewModel,
    DumpTool,
    Finding,
    _asynchronous,
    agents,
    crew,
    tasks,
)
from cacheprefix import Gate, Session, SharedPrefix, ToolResultBudget
from cacheprefix.profiles import normalise_usage
from cacheprefix.server import Fault, Latency, Reply
from cacheprefix_crewai import cache_event, install

INPUTS = {"brief": BRIEF}


def bodies(provider: Any) -> list[dict[str, Any]]:
    """The recorded request bodies, in order of arrival."""
    return [json.loads(record.body) for record in provider.requests]


@pytest.fixture
def ran(provide, new_llm):
    """``ran(kind)`` runs the three specialists installed; the installation and the provider."""

    def go(kind: str = "openai", session: Session | None = None, model: Any = None, **options: Any):
        with_tools = options.pop("tools", True)
        provider = provide("anthropic" if "anthropic" in kind else "openai", model)
        who = agents(lambda: new_llm(provider, kind, **options), tools=with_tools)
        team = crew(who, tasks(who))
        with install(team, session) as installed:
            team.kickoff(inputs=INPUTS)
        return installed, provider

    return go


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"stream": True}], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", ["openai", "responses", "anthropic", "litellm", "litellm-anthropic"])
def test_usage_equals_the_servers_count(ran, kind, options) -> None:
    """Call by call the session counts what the provider reported: read, written, in all."""
    # CrewAI 1.15.30 itself loses tool calls that these stream, or their ids.
    tools = not (options and kind in ("responses", "litellm", "litellm-anthropic"))
    installed, provider = ran(kind, tools=tools, **options)
    theirs = [normalise_usage(record.usage, record.api) for record in provider.requests]
    ours = [call.usage for call in installed.session.calls]
    assert [(u.input_tokens, u.cache_read_tokens) for u in ours] == [
        (u.input_tokens, u.cache_read_tokens) for u in theirs
    ]
    assert sum(u.cache_write_tokens or 0 for u in ours) == sum(u.cache_write_tokens or 0 for u in theirs)


def test_usage_is_known_by_agent_and_task(ran) -> None:
    """A model object that all agents share is counted once, under the agent and task that called."""
    installed, _ = ran()
    found = [(task, call.agent) for task, call in installed.calls]
    assert found.count(("research", "Senior Market Researcher")) == 3
    assert found.count(("analysis", "Financial Analyst")) == 3
    assert found.count(("writing", "Report Writer")) == 2


@pytest.mark.parametrize("kind", ["anthropic", "litellm-anthropic"])
def test_no_request_carries_more_than_four_breakpoints(ran, kind) -> None:
    """Natively and through LiteLLM, with CrewAI's own marks counted in; the shared part carries one."""
    _, provider = ran(kind)
    for record in provider.requests:
        assert 1 <= record.body.count(b'"cache_control"') <= 4
        assert b"cache_breakpoint" not in record.body


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["openai", "litellm", "litellm-anthropic"])
def test_no_private_key_of_crewai_reaches_the_wire(ran, kind) -> None:
    """CrewAI's ``cache_breakpoint`` key, which LiteLLM would send on, stays at home."""
    _, provider = ran(kind)
    assert not any(b'"cache_breakpoint"' in record.body for record in provider.requests)


def test_whoever_listens_hears_of_every_call(provide, new_llm) -> None:
    """An event with tokens and cause is emitted for each request, without prompt text."""
    from crewai.events import crewai_event_bus

    heard: list[Any] = []
    provider = provide("openai")
    who = agents(lambda: new_llm(provider))
    team = crew(who, tasks(who))
    with crewai_event_bus.scoped_handlers(), install(team):
        crewai_event_bus.on(cache_event())(lambda source, event: heard.append(event))
        team.kickoff(inputs=INPUTS)
        crewai_event_bus.flush()
    assert len(heard) == 8
    assert {event.agent_role for event in heard} == {agent.role for agent in who}
    assert BRIEF[:100] not in str([event.model_dump() for event in heard])


@pytest.mark.parametrize("known", [False, True], ids=["class unknown", "class known"])
def test_who_listens_to_all_of_crewais_events_hears_no_other(provide, new_llm, tmp_path, monkeypatch, known) -> None:
    """Nor does a checkpoint hold one, whose listener asks for every kind; nobody asked for ours."""
    from crewai import CheckpointConfig
    from crewai.events import crewai_event_bus
    from crewai.events.base_events import BaseEvent
    from crewai.state import checkpoint_listener

    def kinds(of: type[Any] = BaseEvent) -> set[type[Any]]:
        return {one for each in of.__subclasses__() for one in ({each} | kinds(each))}

    cache_event.cache_clear()
    before = kinds()
    if known:
        cache_event()
    provider = provide("openai")
    heard: list[str] = []
    for checkpoint in (None, CheckpointConfig(location=str(tmp_path), on_events=["*"])):
        # CrewAI registers its own once a process.
        monkeypatch.setattr(checkpoint_listener, "_handlers_registered", False)
        with crewai_event_bus.scoped_handlers():
            who = agents(lambda: new_llm(provider), tools=False)
            team = crew(who, tasks(who), checkpoint=checkpoint)
            for kind in kinds() if not known else ():
                crewai_event_bus.on(kind)(lambda source, event: heard.append(event.type))
            with install(team):
                team.kickoff(inputs=INPUTS)
            crewai_event_bus.flush()
    monkeypatch.setattr(checkpoint_listener, "_handlers_registered", False)
    assert known or kinds() == before
    assert "cacheprefix_call" not in heard
    kept = [file.read_text() for file in tmp_path.rglob("*.json")]
    assert kept
    assert not any("cacheprefix_call" in text for text in kept)


@pytest.mark.slow
def test_tasks_that_start_together_wait_for_the_first_to_write(provide, new_llm) -> None:
    """Of three tasks that start at once the second and third read what the first wrote."""
    provider = provide("openai", latency=Latency(base=0.2, output=0.0, scale=1.0))
    team, go = _asynchronous(lambda **options: new_llm(provider, **options))
    with install(team, Session(gate=Gate(price=0.0))):
        go()
    reads = [record.usage["prompt_tokens_details"]["cached_tokens"] for record in provider.requests]
    assert sum(read < 1_024 for read in reads) == 1


@pytest.mark.slow
def test_kickoffs_with_other_inputs_on_one_cold_handbook_follow_one_leader(provide, new_llm) -> None:
    """They share none of their material, and still the handbook: one writes it."""
    provider = provide("openai", latency=Latency(base=0.3, output=0.0, scale=1.0))
    session, met = Session(SharedPrefix(system=f"The house. {BRIEF * 3}"), gate=Gate(price=0.0)), Barrier(3)
    with ExitStack() as installed:
        crews = []
        for _ in range(3):
            who = agents(lambda: new_llm(provider), tools=False)
            crews.append(crew(who, tasks(who)))
            installed.enter_context(install(crews[-1], session))

        def kickoff(number: int) -> None:
            met.wait(60)
            brief = " ".join(f"w{number}x{word}" for word in range(900))
            crews[number].kickoff(inputs={"brief": f"Brief {number}: {brief}"})

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(kickoff, range(3)))
    reads = [record.usage["prompt_tokens_details"]["cached_tokens"] for record in provider.requests]
    assert sum(read < 1_024 for read in reads) == 1
    assert session.failures == {}


@pytest.mark.parametrize(("gate", "came"), [({"gate": None}, False), ({"gate": Gate(price=0.0)}, True)])
def test_the_sessions_gate_holds_for_its_crews(provide, new_llm, gate, came) -> None:
    """Without one nobody comes to it, and the session's report says what those did that came."""
    team, go = _asynchronous(lambda **options: new_llm(provide("openai"), **options))
    session = Session(**gate)
    with install(team, session):
        go()
    assert (session.report().gate is not None) == came


def test_a_crew_installed_without_a_gate_comes_to_none(provide, new_llm) -> None:
    """Whatever its session has."""
    team, go = _asynchronous(lambda **options: new_llm(provide("openai"), **options))
    session = Session(gate=Gate(price=0.0))
    with install(team, session, gate=False):
        go()
    assert session.report().gate is None


def test_a_result_over_the_budget_is_cut_before_crewai_defers_it(provide, new_llm) -> None:
    """No file of random name, no reader tool in the middle of a task: the array of tools stays."""
    from crewai import Agent, Task

    provider = provide("openai")
    session = Session(budget=ToolResultBudget(max_tokens=500))
    llm = new_llm(provider)
    who = [
        Agent(role="Archivist", goal="Read", backstory="You read.", llm=llm, tools=[DumpTool(size=120_000)]),
    ]
    made = [Task(name="dump", description="Read it. (plan dump)", expected_output="What it says.", agent=who[0])]
    team = crew(who, made)
    sent = []
    for _ in range(2):
        with install(team, session):
            provider.reset()
            team.kickoff()
        sent.append([record.body for record in provider.requests])
    assert all(len(body["tools"]) == 1 for body in bodies(provider))
    assert all(len(body) < 20_000 for body in sent[0])
    assert sent[0] == sent[1]


def test_decisions_are_kept_for_a_later_process(provide, new_llm) -> None:
    """A saved conversation replays its decisions under another budget: the same bytes."""
    sent = []
    saved = ""
    for limit in (400, 90_000):
        provider = provide("openai")
        session = Session(budget=ToolResultBudget(max_tokens=limit))
        who = agents(lambda provider=provider: new_llm(provider))
        who[0].tools = [DumpTool(size=2_000)]
        made = tasks(who)
        made[0].description = made[0].description.replace("(plan research)", "(plan dump)")
        made[0].tools = who[0].tools
        team = crew(who, made)
        installed = install(team, session)
        conversation = session.conversation(installed.conversation)
        if saved:
            conversation.restore(saved)
        team.kickoff(inputs=INPUTS)
        installed.undo()
        saved = conversation.dumps()
        sent.append([record.body for record in provider.requests])
    assert sent[0] == sent[1]


def test_a_structured_answer_stays_structured(provide, new_llm) -> None:
    """``output_pydantic`` gives the model it names."""
    provider = provide("openai")
    who = agents(lambda: new_llm(provider))
    team = crew(who, tasks(who, output_pydantic=Finding))
    with install(team):
        output = team.kickoff(inputs=INPUTS)
    assert isinstance(output.pydantic, Finding)


def test_a_failure_of_ours_sends_the_applications_own_request(provide, new_llm, monkeypatch) -> None:
    """Whatever breaks in the layout, the crew runs and its requests are those it made."""
    provider = provide("openai")
    who = agents(lambda: new_llm(provider))
    team = crew(who, tasks(who))
    team.kickoff(inputs=INPUTS)
    before = [body["messages"] for body in bodies(provider)]
    provider.reset()

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr("cacheprefix_crewai.layout.settle", broken)
    with install(team) as installed, pytest.warns(UserWarning, match="layout"):
        team.kickoff(inputs=INPUTS)
    assert [body["messages"] for body in bodies(provider)] == before
    assert installed.session.failures["layout"] == 8


def test_a_provider_that_fails_fails_as_before(provide, new_llm) -> None:
    """An HTTP error reaches CrewAI's retries; the failed request leaves no call behind."""
    model = CrewModel()
    failed: list[int] = []

    def once(request: Any) -> Reply:
        if request.index == 1:
            failed.append(1)
            return Reply(fault=Fault(status=400))
        return model(request)

    provider = provide("openai", once)
    who = agents(lambda: new_llm(provider))
    team = crew(who, tasks(who))
    with install(team) as installed:
        output = team.kickoff(inputs=INPUTS)
    assert failed == [1]
    assert output.raw.startswith("Result of writing")
    assert len(installed.session.calls) == len(provider.requests) - 1


def test_what_does_not_pay_is_left_as_it_is_and_said(provide, new_llm) -> None:
    """A crew of one task sends its own requests; each call says why."""
    provider = provide("openai")
    who = agents(lambda: new_llm(provider))[:1]
    team = crew(who, tasks([who[0]] * 3)[:1])
    team.kickoff(inputs=INPUTS)
    before = [body["messages"] for body in bodies(provider)]
    provider.reset()
    with install(team) as installed:
        team.kickoff(inputs=INPUTS)
    assert [body["messages"] for body in bodies(provider)] == before
    assert {one.why for call in installed.session.calls for one in call.reasons} == {"alone"}
