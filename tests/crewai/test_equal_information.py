"""What a fork says is what the crew's own request said: every text once, and no other but those listed as ours."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from crewai import Agent, Crew, Task
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.server import Reply, Request
from cacheprefix_crewai import install
from tests.crewai.frames import without_frames

MODELS = ("gpt-5-2025-08-07", "gpt-5-mini-2025-08-07")
STYLES = ("absent", "exact", "indented", "line ends", "wrapped")


def said(name: str, words: int = 260) -> str:
    """A text of several lines whose words stand nowhere else."""
    return "\n".join(" ".join(f"{name}-{at + k}" for k in range(13)) for at in range(0, words, 13))


def styled(text: str, style: str) -> str:
    """The same words with other white space."""
    if style == "absent":
        return ""
    lines = text.split("\n")
    if style == "indented":
        return "\n".join(f"    {line}" for line in lines) + "\n"
    if style == "line ends":
        return "\r\n".join(lines) + "\r\n"
    return f"{' '.join(text.split())} " if style == "wrapped" else f"{text}\n"


@dataclass(frozen=True)
class Plan:
    """A crew: each agent's model and how the handbook stands in its background; each task's agent and inputs."""

    agents: tuple[tuple[int, str], ...]
    tasks: tuple[tuple[int, frozenset[str], bool], ...]
    """Its agent, the inputs that it names, and whether it is given earlier results."""
    declared: bool
    kind: str


plans = st.builds(
    Plan,
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from(STYLES)), min_size=2, max_size=4).map(tuple),
    st.lists(
        st.tuples(st.integers(0, 3), st.frozensets(st.sampled_from(["first", "second", "third"])), st.booleans()),
        min_size=2,
        max_size=5,
    ).map(tuple),
    st.booleans(),
    st.sampled_from(["exact", "openai", "anthropic"]),
)


def answering(request: Request) -> Reply:
    """By the number of the task."""
    number = re.findall(r"Do step (\d+)\.", request.text)[-1]
    return Reply(said(f"answer{number}"))


def crew_of(plan: Plan, provider: Any, new_llm: Any) -> Crew:
    """The crew."""
    kind = "anthropic" if plan.kind == "anthropic" else "openai"
    llms = [new_llm(provider, kind), new_llm(provider, kind)]
    if kind == "openai":
        llms[1].model = MODELS[1]
    who = [
        Agent(
            role=f"Role{k}",
            goal=f"Goal{k}.",
            backstory=f"{styled(said('handbook'), style)}Past{k}.",
            llm=llms[model],
            respect_context_window=False,
            use_better_compaction=False,
        )
        for k, (model, style) in enumerate(plan.agents)
    ]
    work = [
        Task(
            description=f"Do step {i}.\n" + "\n".join(f"{{{name}}}" for name in sorted(inputs)),
            expected_output=f"Expected{i}.",
            agent=who[agent % len(who)],
            **({} if results else {"context": []}),
        )
        for i, (agent, inputs, results) in enumerate(plan.tasks)
    ]
    return Crew(agents=who, tasks=work, verbose=False)


def words(record: Any, *, ours: tuple[str, ...] = ()) -> Counter[str]:
    """The words of a request, without those of ours."""
    text = "\n".join(section.text for section in record.prompt.sections)
    for one in ours:
        text = text.replace(one, " ", 1)
    return Counter(without_frames(text).split())


def both(plan: Plan, servers: Any, new_llm: Any, **options: Any) -> tuple[list[Any], list[Any], Session]:
    """The requests of the crew as it is, and installed."""
    found = []
    inputs = {name: said(name) for name in ("first", "second", "third")}
    prefix = SharedPrefix(system=said("handbook")) if plan.declared else ""
    provider_name = "exact" if plan.kind == "exact" else None
    session = Session(prefix, caching=Caching(provider=provider_name))
    for installed in (False, True):
        provider = servers(plan.kind, answering)
        team = crew_of(plan, provider, new_llm)
        held = install(team, session, **options) if installed else None
        team.kickoff(inputs=inputs)
        if held is not None:
            held.undo()
        found.append(list(provider.requests))
    assert session.failures == {}
    return found[0], found[1], session


@pytest.mark.slow
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(plans)
def test_a_fork_says_every_text_of_the_request_once_and_nothing_else(servers, new_llm, plan) -> None:
    """Whatever agents of whatever models hold which texts, in whatever white space, and whoever is given results."""
    plain, sent, session = both(plan, servers, new_llm)
    assert len(plain) == len(sent) == len(session.calls)
    handbook = said("handbook")
    for own, fork in zip(plain, sent, strict=True):
        held = "handbook-0" in words(own)
        # The user gave it to all.
        ours = (handbook,) if plan.declared and not held else ()
        assert words(fork, ours=ours) == words(own)


def test_the_generator_makes_forks(servers, new_llm) -> None:
    """Of some agents: without any, there would be nothing to see."""
    plan = Plan(
        ((0, "exact"), (0, "line ends"), (0, "absent"), (1, "indented")),
        tuple((k, frozenset({"first"}), True) for k in range(4)),
        declared=False,
        kind="exact",
    )
    plain, sent, session = both(plan, servers, new_llm)
    assert [call.layout for call in session.calls] == ["fork", "fork", "fork", "own"]
    for own, fork in zip(plain, sent, strict=True):
        assert words(fork) == words(own)
    outlier = sent[2].body.decode()
    assert "handbook-0" not in outlier
    assert "Past2." in outlier


def test_blind_reviews_stay_blind(servers, new_llm) -> None:
    """Who wrote a paper reaches the editor's tasks only, also where the user named it as a shared input."""
    blind = frozenset({"first"})
    tasks = ((0, blind, False), (1, blind | {"second"}, False), (2, blind | {"second"}, False), (0, blind, False))
    plan = Plan(((0, "absent"),) * 3, tasks, declared=False, kind="exact")
    for options in ({}, {"shared_inputs": ["first", "second"]}):
        _, sent, session = both(plan, servers, new_llm, **options)
        assert {call.layout for call in session.calls} == {"fork"}
        assert ["second-0" in record.body.decode() for record in sent] == [False, True, True, False]


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES[1:])
def test_a_declared_handbook_is_not_said_twice(servers, new_llm, style) -> None:
    """However the agents' backgrounds space its words."""
    plan = Plan(((0, style),) * 3, tuple((k, frozenset(), True) for k in range(3)), declared=True, kind="exact")
    plain, sent, session = both(plan, servers, new_llm)
    assert {call.layout for call in session.calls} == {"fork"}
    for own, fork in zip(plain, sent, strict=True):
        assert words(fork) == words(own)


ABOUT = said("about")
NESTED = {
    "one within the other": ({"brief": ABOUT, "whole": f"head\n{ABOUT}\ntail"}, ("brief", "brief", "whole", "whole")),
    "both in each task": ({"whole": f"head\n{ABOUT}\ntail", "brief": ABOUT}, ("brief whole",) * 4),
    "two of the same words": ({"brief": ABOUT, "again": ABOUT}, ("again",) * 4),
    "one or the other": ({"brief": ABOUT, "again": f"{ABOUT}\n"}, ("brief", "again", "brief", "again")),
}


@pytest.mark.parametrize(("inputs", "held"), NESTED.values(), ids=NESTED)
@pytest.mark.parametrize("kind", ["exact", "openai"])
def test_an_input_that_stands_in_another_is_not_said_twice(servers, new_llm, inputs, held, kind) -> None:
    """A task is told, and pays for, the longer one alone; where both stand by themselves, each of them."""
    found = []
    session = Session(caching=Caching(provider=None if kind == "openai" else kind))
    for installed in (False, True):
        provider = servers(kind, answering)
        llms = [new_llm(provider) for _ in held]
        who = [Agent(role=f"Role{k}", goal="Go.", backstory="Past.", llm=llm) for k, llm in enumerate(llms)]
        work = [
            Task(
                description=f"Do step {k}.\n" + "\n\n".join(f"{{{name}}}" for name in names.split()),
                expected_output="Some.",
                agent=agent,
                context=[],
            )
            for k, (agent, names) in enumerate(zip(who, held, strict=True))
        ]
        team = Crew(agents=who, tasks=work, verbose=False)
        if installed:
            install(team, session)
        team.kickoff(inputs=inputs)
        found.append(list(provider.requests))
    assert session.failures == {}
    assert kind == "openai" or [call.layout for call in session.calls].count("fork") > 1
    for own, fork in zip(*found, strict=True):
        assert words(fork).keys() == words(own).keys()
        assert not words(fork) - words(own)


def test_a_result_that_quotes_an_input_is_said_once(servers, new_llm) -> None:
    """The task refers to the whole result, not to the input in its midst."""
    kept = []
    session = Session(caching=Caching(provider="exact"))
    for installed in (False, True):
        provider = servers("exact", lambda request: Reply(f"before\n{ABOUT}\nbehind"))
        who = [Agent(role=f"Role{k}", goal="Go.", backstory="Past.", llm=new_llm(provider)) for k in range(3)]
        work = [
            Task(description=f"Do step {k}.\n{{brief}}", expected_output="Some.", agent=agent)
            for k, agent in enumerate(who)
        ]
        team = Crew(agents=who, tasks=work, verbose=False)
        if installed:
            install(team, session)
        team.kickoff(inputs={"brief": ABOUT})
        kept.append(list(provider.requests))
    assert "(see result of task 1 above)" in kept[1][2].body.decode()
    for own, fork in zip(*kept, strict=True):
        assert words(fork).keys() == words(own).keys()
        assert not words(fork) - words(own)


LOOP = "\n".join(f"for item_{k} in items:\n    if item_{k} is None:\n        report(item_{k})" for k in range(9))


@pytest.mark.parametrize(
    ("says", "label"), [("{old}\n\nNow:\n{new}\n", "shared input 'new'"), ("", "result of task 2")]
)
def test_code_that_differs_in_white_space_alone_is_said_in_both_versions(servers, new_llm, says, label) -> None:
    """Its indentation says something: who compares two versions, inputs or results, is told each, and not one twice."""
    versions, kept = {"old": LOOP, "new": LOOP.replace("        ", "    ")}, []
    answers = [*versions.values(), "Fine.", "Fine."]
    session = Session(caching=Caching(provider="exact"))
    for installed in (False, True):
        provider = servers("exact", lambda request: Reply(answers[int(re.findall(r"step (\d)", request.text)[-1])]))
        who = [Agent(role=f"Role{k}", goal="Go.", backstory="Past.", llm=new_llm(provider)) for k in range(4)]
        work = [
            Task(description=f"Do step {k}.\n{says}", expected_output="Some.", agent=agent)
            for k, agent in enumerate(who)
        ]
        team = Crew(agents=who, tasks=work, verbose=False)
        if installed:
            install(team, session)
        team.kickoff(inputs=versions)
        kept.append(["\n".join(section.text for section in record.prompt.sections) for record in provider.requests])
    assert session.calls[-1].layout == "fork"
    assert f"(see {label} above)" in kept[1][-1]
    for own, fork in zip(*kept, strict=True):
        assert [text in own for text in versions.values()] == [text in fork for text in versions.values()]
