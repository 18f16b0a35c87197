"""Kickoffs of one crew, again and again: what was shared once stays shared, and none costs more than the one before.

Five each by default, and of the documented crews those ways that differ in what is ours: each crew one after the other
and together, one crew in all ways. make test-more: 30, all crews in all ways.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import pairwise
from threading import Event
from typing import Any

import pytest
from crewai import Agent, Crew, Task
from crewai.tools import BaseTool
from documented_crews import CREWS, trip

from benchmarks.crewai_workloads import CrewModel, prose
from cacheprefix import Caching, Session
from cacheprefix.profiles import cost_units, default_registry, normalise_usage
from cacheprefix.prompt import Counter, estimate_tokens
from cacheprefix_crewai import install

MORE = "CACHEPREFIX_WAYS" in os.environ
"""Whether each crew is run in each of CrewAI's ways."""
TIMES = int(os.environ.get("CACHEPREFIX_KICKOFFS", "5"))
WAYS = ("kickoff", "kickoff_for_each", "kickoff_async", "akickoff", "kickoff_for_each_async", "akickoff_for_each")
TOGETHER = ("kickoff_for_each_async", "akickoff_for_each")
RUNS = [(build, way) for build in CREWS for way in WAYS if MORE or build is trip or way in {"kickoff", TOGETHER[1]}]


def repeated(made: Any, inputs: Any, way: str) -> None:
    """Run a crew so many times in one of CrewAI's ways; each has its number beside the inputs."""
    each = inputs if isinstance(inputs, list) else [inputs]
    given = [{**each[number % len(each)], "number": str(number)} for number in range(TIMES)]

    async def awaited() -> None:
        if way in TOGETHER:
            await getattr(made, way)(inputs=given)
        else:
            for one in given:
                await getattr(made, way)(inputs=one)

    if way == "kickoff":
        for one in given:
            made.kickoff(inputs=one)
    elif way == "kickoff_for_each":
        made.kickoff_for_each(inputs=given)
    else:
        asyncio.run(awaited())


def units(provider: Any, rules: str) -> list[float]:
    """What each request cost, in order of arrival."""
    profile = default_registry().get(rules)
    return [cost_units(normalise_usage(record.usage, record.api), profile) for record in provider.requests]


def kickoffs(session: Session) -> list[list[int]]:
    """The numbers of each kickoff's requests, by the order in which kickoffs began."""
    found: dict[str, list[int]] = {}
    for at, call in enumerate(session.calls):
        found.setdefault(call.conversation, []).append(at)
    return list(found.values())


def never_rises(provider: Any, session: Session, rules: str) -> None:
    """Each kickoff cost no more than the first one, nor than the one before it but for ids that the model drew."""
    costs = units(provider, rules)
    per = [sum(costs[at] for at in mine) for mine in kickoffs(session)]
    assert len(per) == TIMES
    assert all(later <= before * 1.01 for before, later in pairwise(per)), per


@pytest.mark.slow
@pytest.mark.parametrize(("build", "way"), RUNS, ids=[f"{build.__name__}-{way}" for build, way in RUNS])
def test_a_documented_crew_costs_no_more_each_time(servers, new_llm, tmp_path, monkeypatch, build, way) -> None:
    """Kickoffs in a row never rise in cost; of those under way together none is laid out in two ways.

    But for what the guard returns: of thirty such short requests at once each is dearer as a fork, and it sees that.
    """
    monkeypatch.chdir(tmp_path)
    provider = servers("exact", CrewModel())
    made, inputs = build(new_llm(provider))
    session = Session(caching=Caching(provider="exact"))
    with install(made, session):
        repeated(made, inputs, way)
    assert session.failures == {}
    if way not in TOGETHER:
        never_rises(provider, session, "exact")
    layouts: dict[str, set[str]] = {}
    for call in session.calls:
        if call.reasons[-1].why != "dearer_as_fork":
            layouts.setdefault(call.agent, set()).add(call.layout)
    assert {len(found) for found in layouts.values()} == {1}


class _Lookup(BaseTool):
    """A tool with much to say of itself."""

    name: str
    description: str

    def _run(self, query: str) -> str:
        return "ok"


def specialists(llm: Any, words: str, tools: int) -> Crew:
    """Four agents with a tool each, of so many tokens; one named task each."""
    who = [
        Agent(
            role=f"Role {k}",
            goal="Goal.",
            backstory="Past.",
            llm=llm,
            tools=[_Lookup(name=f"lookup_{k}", description=f"Looks up. {prose(tools, k)}")],
            respect_context_window=False,
            use_better_compaction=False,
        )
        for k in range(4)
    ]
    work = [
        Task(
            name=f"task {k}",
            description=words.replace("PART", f"Part {k}"),
            expected_output="Text.",
            agent=one,
            context=[],
        )
        for k, one in enumerate(who)
    ]
    return Crew(agents=who, tasks=work)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["openai", "anthropic"])
@pytest.mark.parametrize("way", ["kickoff", "kickoff_for_each"])
def test_a_crew_with_other_items_each_time_stays_shared(servers, new_llm, way, kind) -> None:
    """Tasks with names, as in every YAML project: their runs are counted, and none is taken for a tool round."""
    provider = servers(kind, CrewModel())
    session = Session()
    made = specialists(new_llm(provider, kind), "PART for {number}.\n{brief}", 700)
    with install(made, session):
        repeated(made, {"brief": prose(4_500)}, way)
    assert {call.layout for call in session.calls} == {"fork"}
    never_rises(provider, session, kind)


@pytest.mark.slow
@pytest.mark.parametrize(("tools", "way"), [(300, "kickoff"), (1_400, "kickoff"), (300, "kickoff_for_each")])
def test_a_text_first_and_an_item_last_cost_no_more_than_they_did(servers, new_llm, way, tools) -> None:
    """The provider keeps what such requests begin with from kickoff to kickoff, without us."""
    spent = []
    for installed in (False, True):
        provider = servers("openai", CrewModel())
        made = specialists(new_llm(provider), "{brief}\nPART for {number}.", tools)
        held = install(made) if installed else None
        repeated(made, {"brief": prose(3_000)}, way)
        if held is not None:
            held.undo()
        spent.append(sum(units(provider, "openai")))
    assert spent[1] <= spent[0]


def with_another_brief_each(servers: Any, new_llm: Any, words: str, tokens: int) -> tuple[list[list[float]], Session]:
    """What each of six kickoffs cost, as the crew is and installed; each has another brief, of so many tokens."""
    spent, session = [], Session()
    for installed in (False, True):
        provider = servers("openai", CrewModel())
        made = specialists(new_llm(provider), words, 20)
        with install(made, session) if installed else nullcontext():
            for number in range(6):
                made.kickoff(inputs={"brief": prose(tokens, 100 * number), "number": "one"})
        costs = units(provider, "openai")
        each = len(costs) // 6
        spent.append([sum(costs[at : at + each]) for at in range(0, len(costs), each)])
    return spent, session


def test_a_long_beginning_that_a_text_pushes_back_is_not_paid_anew_for_ever(servers, new_llm) -> None:
    """A crew reads each task's long words of the kickoff before, up to the text that changes; a fork does not."""
    words = f"PART {prose(1_600, 7)}\n{{brief}}"
    (own, forked), _ = with_another_brief_each(servers, new_llm, words, 1_500)
    assert forked[0] < own[0]
    assert forked[-1] <= own[-1]


def test_texts_that_changed_are_not_taken_for_one_with_items(servers, new_llm) -> None:
    """A text first and an item last stay as they are, until kickoffs show that it is the text that changes."""
    (own, forked), session = with_another_brief_each(servers, new_llm, "{brief}\nPART for {number}.", 1_800)
    assert forked[0] == own[0]
    assert forked[-1] < 0.8 * own[-1]
    assert session.calls[-1].layout == "fork"


def test_a_crew_that_the_provider_counts_below_its_minimum_is_left_alone(servers, new_llm) -> None:
    """It counts four tokens for five of ours, as its first answer tells: no later task of any kickoff is a fork."""
    counter = Counter("five for four", exact=False, count=lambda text, model: estimate_tokens(text, model) * 5 // 4)
    spent = []
    for installed in (False, True):
        provider = servers("openai", CrewModel())
        made = specialists(new_llm(provider), "PART for {number}.\n{brief}", 60)
        session = Session(caching=Caching(counter=counter))
        with install(made, session) if installed else nullcontext():
            repeated(made, {"brief": prose(450)}, "kickoff")
        spent.append(units(provider, "openai"))
    assert [call.layout for call in session.calls] == ["fork", *["own"] * (4 * TIMES - 1)]
    assert spent[1][1:] == spent[0][1:]


def test_agents_of_different_models_cost_no_more_than_they_did(servers, new_llm) -> None:
    """No model reads what another one's requests wrote, so nothing is moved for it, and none is shown the brief."""
    spent, held = [], []
    for installed in (False, True):
        provider = servers("openai", CrewModel())
        who = []
        for k, model in enumerate(("gpt-5-mini-2025-08-07", "gpt-5-2025-08-07", "gpt-5.1-2025-11-13")):
            llm = new_llm(provider)
            llm.model = model
            who.append(Agent(role=f"Role {k}", goal="Goal.", backstory="Past.", llm=llm))
        work = [
            Task(description=words, expected_output="Text.", agent=one)
            for words, one in zip(("List risks.", "Judge.\n{brief}", "Write.\n{brief}"), who, strict=True)
        ]
        made = Crew(agents=who, tasks=work)
        session = Session()
        with install(made, session) if installed else nullcontext():
            made.kickoff(inputs={"brief": prose(3_000)})
        spent.append(sum(units(provider, "openai")))
        held.append([prose(3_000) in record.body.decode() for record in provider.requests])
    assert spent[1] <= spent[0]
    assert held[0] == held[1] == [False, True, True]
    assert {call.layout for call in session.calls} == {"own"}


def test_kickoffs_for_each_that_overlap_leave_nothing_to_later_kickoffs(servers, new_llm) -> None:
    """One ends before the other, as in a web server: what is known of its runs is not taken for that of others."""
    began, over = Event(), Event()

    def meet(inputs: dict[str, str]) -> dict[str, str]:
        if "alice" in inputs["brief"]:
            assert began.wait(60)
        elif "bob" in inputs["brief"]:
            began.set()
            assert over.wait(60)
        return inputs

    provider = servers("openai", CrewModel(tools=False))
    one = Agent(role="Reader", goal="Goal.", backstory="Past.", llm=new_llm(provider))
    part = Task(description="Part {number}. (plan none)\n\n{brief}", expected_output="Text.", agent=one)
    made = Crew(agents=[one], tasks=[part], before_kickoff_callbacks=[meet])
    session = Session()

    def each(user: str) -> None:
        made.kickoff_for_each(inputs=[{"brief": f"{user}. {prose(1_500)}", "number": number} for number in "01"])
        if user == "alice":
            over.set()

    with install(made, session), ThreadPoolExecutor(2) as pool:
        list(pool.map(each, ("alice", "bob")))
        assert {call.layout for call in session.calls} == {"fork"}
        made.kickoff(inputs={"brief": f"carol. {prose(1_500)}", "number": "0"})
    assert session.calls[-1].layout == "own"
    assert session.failures == {}
