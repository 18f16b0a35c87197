"""What every call of a crew says of itself: how it was laid out, and why, with numbers; and strict mode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from crew_wire import BRIEF, INPUTS, bodies
from crewai import Agent, Crew, Process, Task
from crewai.tools import tool

from benchmarks.crewai_workloads import CrewModel, agents, crew, prose, tasks
from cacheprefix import Call, Session, SharedPrefix
from cacheprefix.errors import NotSharedError
from cacheprefix.server import Reply
from cacheprefix_crewai import install


def said(call: Call) -> tuple[str, list[str]]:
    """The layout of a call, and the names of its reasons."""
    return call.layout, [one.why for one in call.reasons]


def numbers(call: Call, why: str) -> dict[str, int]:
    """The numbers of one of its reasons."""
    return dict(next(one.numbers for one in call.reasons if one.why == why))


def answering(_: Any) -> Reply:
    """No tools, no loops."""
    return Reply("Thought: I now can give a great answer\nFinal Answer: ok")


@pytest.fixture
def made(servers, new_llm):
    """``made()`` gives a provider and a crew of three specialists; ``change`` is given each agent."""

    def make(model: Any = None, change: Callable[[Any], Any] | None = None, **options: Any) -> tuple[Any, Crew]:
        provider = servers("openai", model or CrewModel())
        who = agents(lambda: new_llm(provider), tools=options.pop("tools", True))
        for one in who:
            if change is not None:
                change(one)
        return provider, crew(who, tasks(who), **options)

    return make


def ran(team: Any, session: Session | None = None, inputs: Any = None, **options: Any) -> list[Call]:
    """The calls of one run of an installed crew."""
    with install(team, session, **options) as installed:
        team.kickoff(inputs=INPUTS if inputs is None else inputs)
        assert installed.session.failures == {}
        return list(installed.session.calls)


@pytest.mark.parametrize("options", [{}, {"shared_inputs": ["brief"]}], ids=["found", "named"])
@pytest.mark.parametrize("kind", [list, dict])
def test_an_input_that_is_no_text_is_shared_as_it_is_written(made, kind, options) -> None:
    """CrewAI writes lists and dictionaries into texts in Python's words."""
    lines = INPUTS["brief"].split(". ") * 4
    given = lines if kind is list else dict(enumerate(lines))
    provider, team = made(answering, tools=False)
    for number, task in enumerate(team.tasks):
        task.description = f"Part {number}: {{brief}} is the brief."  # not on lines of its own, which are found anyway
    assert {said(call)[0] for call in ran(team, inputs={"brief": given}, **options)} == {"fork"}
    for body in bodies(provider):
        assert str(given) in body["messages"][0]["content"]
        assert str(given) not in body["messages"][-1]["content"]


def test_each_request_of_a_fork_says_how_much_it_shares(made) -> None:
    """All requests of a task say the same, those of the tool loop too; later tasks share results as well."""
    _, team = made()
    calls = ran(team)
    assert {said(call)[0] for call in calls} == {"fork"}
    assert {"shares"} == {why for call in calls for why in said(call)[1]}
    by_agent: dict[str, set[int]] = {}
    for call in calls:
        by_agent.setdefault(call.agent, set()).add(numbers(call, "shares")["shared"])
    assert len(calls) > len(by_agent) == 3
    assert all(len(found) == 1 and min(found) > 1_600 for found in by_agent.values())


def test_a_session_that_observes_says_so(made) -> None:
    """Of every call."""
    _, team = made()
    assert {(call.layout, call.reasons[0].why) for call in ran(team, Session(mode="observe"))} == {
        ("observed", "observe_mode")
    }


def test_short_requests_say_what_the_provider_caches_at_least(made) -> None:
    """With how much would be shared."""
    _, team = made(answering, tools=False)
    for call in ran(team, inputs={"brief": "Sell more."}):
        assert said(call) == ("own", ["prefix_below_minimum"])
        found = numbers(call, "prefix_below_minimum")
        assert found["minimum"] == 1_024
        assert 0 < found["shared"] < 1_024


def alone(llm: Any, role: str, *, count: int = 1, tools: Any = (), background: str = "Past.") -> Crew:
    """A crew of one agent with so many tasks that have nothing in common."""
    one = Agent(role=role, goal="Goal.", backstory=background, llm=llm, tools=list(tools))
    what = [Task(description=f"{i}: {prose(1_300, i * 7)}", expected_output="A line.", agent=one) for i in range(count)]
    return Crew(agents=[one], tasks=what)


@tool("look_up")
def look_up(word: str) -> str:
    """Look a word up."""
    return word


def with_long_text(_: Any) -> Any:
    """A tool that makes a request long enough to be cached."""

    @tool("encyclopedia")
    def encyclopedia(word: str) -> str:
        """Look a word up."""
        return word

    encyclopedia.description = f"Look a word up. {prose(1_400)}"
    return encyclopedia


def test_who_is_alone_says_so(servers, new_llm) -> None:
    """One agent, one task: nobody reads what it would share."""
    provider = servers("openai", answering)
    (call,) = ran(alone(new_llm(provider), "Hermit", tools=[with_long_text(None)]))
    assert said(call) == ("own", ["alone"])


def test_too_little_to_share_says_what_it_costs_and_saves(servers, new_llm) -> None:
    """Two agents whose tasks have nothing in common but a tool that only one of them has."""
    provider = servers("openai", answering)
    llm = new_llm(provider)
    who = [
        Agent(role=f"Agent {k}", goal="Goal.", backstory="Past.", llm=llm, tools=[with_long_text(None)] * (k == 0))
        for k in range(2)
    ]
    what = [Task(description=f"Do step {k}.", expected_output="A line.", agent=one) for k, one in enumerate(who)]
    first, *_ = ran(Crew(agents=who, tasks=what))
    assert said(first) == ("own", ["little_to_share"])
    found = numbers(first, "little_to_share")
    assert found["cost"] >= found["saved"] * 0.98
    assert found["cost"] > 1_000


def test_a_long_text_in_front_of_the_results_says_that_it_stays(servers, new_llm) -> None:
    """The agent's next task reads it there."""
    provider = servers("openai", answering)
    llm = new_llm(provider)
    who = [Agent(role=f"Agent {k}", goal="Goal.", backstory=prose(3_000, k + 5), llm=llm) for k in range(2)]
    what = [
        Task(description=f"Do step {k}.\n\n{{brief}}", expected_output="A line.", agent=who[k % 2]) for k in range(6)
    ]
    calls = ran(Crew(agents=who, tasks=what))
    kept = [call for call in calls if "role_kept" in said(call)[1]]
    assert kept
    assert all(call.layout == "fork" for call in kept)
    assert min(numbers(call, "role_kept")["size"] for call in kept) > 2_000


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda one: setattr(one, "use_system_prompt", False), "use_system_prompt=False"),
        (lambda one: setattr(one, "system_template", "{{ .System }}"), "system_template"),
    ],
    ids=["no system message", "template"],
)
def test_a_prompt_of_the_applications_own_says_by_which_option(made, change, name) -> None:
    """Templates, and models that take no system message."""
    _, team = made(answering, change, tools=False)
    for call in ran(team):
        assert said(call) == ("own", ["own_prompt"])
        assert call.reasons[0].name == name


def test_a_manager_shares_and_its_workers_say_who_words_their_tasks(servers, new_llm) -> None:
    """In a hierarchical crew."""
    provider = servers("openai", CrewModel())
    who = agents(lambda: new_llm(provider), tools=False)
    team = crew(who, tasks(who), process=Process.hierarchical, manager_llm=new_llm(provider))
    found = {(call.layout, one.why, one.name) for call in ran(team) for one in call.reasons}
    assert ("own", "own_prompt", "the manager words a worker's task") in found
    assert "fork" in {layout for layout, *_ in found}


def test_two_tools_of_one_name_are_named(servers, new_llm) -> None:
    """Every request of the crew stays as it is, and says which."""
    provider = servers("openai", answering)
    llm = new_llm(provider)
    other = tool("look_up")(lambda_of("Something else."))
    who = [
        Agent(role=f"Agent {k}", goal="G.", backstory="P.", llm=llm, tools=[t]) for k, t in enumerate([look_up, other])
    ]
    what = [Task(description=f"{k} {BRIEF}", expected_output="A line.", agent=one) for k, one in enumerate(who)]
    for call in ran(Crew(agents=who, tasks=what)):
        assert said(call) == ("own", ["tool_schema_differs"])
        assert call.reasons[0].name == "look_up"


def lambda_of(doc: str) -> Callable[[str], str]:
    """A function with another docstring."""

    def other(word: str) -> str:
        return word

    other.__doc__ = doc
    return other


def test_a_request_that_no_agent_makes_is_outside(made) -> None:
    """One of a callback's, in the run; that of CrewAI's planner, which asks for a schema, says this."""
    _, team = made(planning=True)
    llm = team.planning_llm = team.agents[0].llm
    team.tasks[-1].callback = lambda _: llm.call("And what now?")
    first, *others, last = ran(team)
    assert said(first) == ("own", ["response_schema"])
    assert {call.layout for call in others} == {"fork"}
    assert said(last) == ("observed", ["outside_fork"])


@pytest.mark.parametrize(
    ("options", "name"),
    [({"shared_inputs": ["brief", "breif"]}, "breif"), ({"shared_context": "Nobody says this."}, "shared_context")],
)
def test_what_is_named_to_be_shared_and_stands_nowhere_is_said(made, options, name) -> None:
    """The requests are forks of the rest; strict mode would not have sent them."""
    provider, team = made()
    session = Session()
    with install(team, session, **options):
        team.kickoff(inputs=INPUTS)
    known = "inputs that the tasks contain: brief"
    for call in session.calls:
        if name == "breif":  # the same for all agents
            assert said(call) == ("fork", ["shares"])
        else:
            assert said(call) == ("fork", ["text_not_found", "shares"])
            assert call.reasons[0].name == name
    told = [note for note in session.report().notes if known in note]
    assert told == (
        [f"shared_inputs names breif, and the kickoff was given no such input; {known}"] * (name == "breif")
    )
    provider.reset()
    with install(team, Session(mode="strict"), **options), pytest.raises(NotSharedError, match=name) as error:
        team.kickoff(inputs=INPUTS)
    assert (known in str(error.value)) == (name == "breif")
    assert bodies(provider) == []


def kickoff(team: Crew) -> Any:
    """In this thread."""
    return team.kickoff(inputs=INPUTS)


def akickoff(team: Crew) -> Any:
    """In an event loop."""
    return asyncio.run(team.akickoff(inputs=INPUTS))


def for_each(team: Crew) -> Any:
    """Several runs."""
    return team.kickoff_for_each(inputs=[INPUTS, INPUTS])


def for_each_async(team: Crew) -> Any:
    """Several runs at once."""
    return asyncio.run(team.kickoff_for_each_async(inputs=[INPUTS, INPUTS]))


def in_time(team: Crew) -> Any:
    """In a thread that CrewAI has an eye on."""
    for one in team.agents:
        one.max_execution_time = 60
    return team.kickoff(inputs=INPUTS)


def aside(team: Crew) -> Any:
    """A task that runs beside the others."""
    team.tasks[0].async_execution = True
    return team.kickoff(inputs=INPUTS)


@pytest.mark.parametrize("way", [kickoff, akickoff, for_each, for_each_async, in_time, aside])
def test_strict_mode_reaches_the_application_before_anything_is_sent(made, way) -> None:
    """CrewAI, which has a task run again after any other error, counts no attempt."""
    provider, team = made()
    installed = install(team, Session(mode="strict"), shared_context="Nobody says this.")
    with installed, pytest.raises(NotSharedError) as raised:
        way(team)
    assert [one.name for one in raised.value.reasons] == ["shared_context"]
    assert bodies(provider) == []
    assert [one._times_executed for one in team.agents] == [0, 0, 0]


def test_strict_mode_reaches_who_kicks_off_an_agent(servers, new_llm) -> None:
    """Without a crew, in a flow, say."""
    provider = servers("openai", answering)
    one = Agent(role="Agent", goal="Goal.", backstory="Past.", llm=new_llm(provider))
    with install([one], Session(mode="strict"), shared_context="Nobody says this."):
        with pytest.raises(NotSharedError, match="shared_context"):
            one.kickoff("Say something.")
        with pytest.raises(NotSharedError, match="shared_context"):
            asyncio.run(one.kickoff_async("Say something."))
    assert bodies(provider) == []


def test_strict_mode_never_raises_for_what_costs_decide(made) -> None:
    """Short requests stay as they are."""
    _, team = made(answering, tools=False)
    calls = ran(team, Session(mode="strict"), inputs={"brief": "Sell more."})
    assert {said(call)[0] for call in calls} == {"own"}


def test_a_declared_text_stands_once_where_an_agent_says_it_too(made) -> None:
    """The very words: taken out of the agent's text, as they open every request."""
    handbook = prose(300, 3)
    provider, team = made(change=lambda one: setattr(one, "backstory", f"{one.backstory}\n{handbook}"))
    calls = ran(team, Session(SharedPrefix(system=handbook), mode="strict"))
    assert {call.layout for call in calls} == {"fork"}
    assert {str(body).count(handbook) for body in bodies(provider)} == {1}


def test_a_tool_of_a_crew_that_was_made_too_late_is_named(made) -> None:
    """It came with a task after the crew was installed, and stands behind the shared tools."""
    _, team = made()
    with install(team) as installed:
        team.tasks[-1].tools = [look_up]
        team.kickoff(inputs=INPUTS)
        calls = installed.session.calls
    late = [one.name for call in calls for one in call.reasons if one.why == "made_too_late"]
    assert set(late) == {"look_up"}


def test_a_late_tool_of_a_managers_worker_is_not_said_to_stand_behind_the_shared_ones(servers, new_llm) -> None:
    """The worker's requests are its own, with its own tools alone."""
    provider = servers("openai", CrewModel())
    who = agents(lambda: new_llm(provider), own_tools=True)
    team = crew(who, tasks([None] * 3), process=Process.hierarchical, manager_llm=new_llm(provider))
    with install(team) as installed:
        for one in who:
            one.tools = [*one.tools, look_up]
        team.kickoff(inputs=INPUTS)
        report = installed.session.report()
    workers = [one for one in bodies(provider) if "look_up" in str(one.get("tools"))]
    assert workers
    assert all(len(one["tools"]) == 2 for one in workers)
    assert not [note for note in report.notes if "came late" in note]
