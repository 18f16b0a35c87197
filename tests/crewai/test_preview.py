"""What a preview says of a crew is what the crew then sends, and nothing comes of the preview itself."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from crew_wire import INPUTS, raw
from crewai import Crew, Process, Task
from crewai.flow.flow import Flow, listen, start
from test_other_models import gemini

from benchmarks.crewai_workloads import agents, crew, prose, tasks
from cacheprefix import Caching, Session, SharedPrefix, preview, wrap
from cacheprefix.errors import SetupError
from cacheprefix.plugins import CacheprefixPluginWarning
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Reply
from cacheprefix_crewai import conversation_of, install

BRIEF = {"brief": INPUTS["brief"] * 8}


def answering(_: Any) -> Reply:
    """No tools, no loops, and hardly a word."""
    return Reply("Thought: I now can give a great answer\nFinal Answer: ok")


def sequential(llm: Any, **options: Any) -> Crew:
    """Three specialists on one brief."""
    who = agents(llm, **options)
    return crew(who, tasks(who, context=[]))


def without_tools(llm: Any) -> Crew:
    """They have no tools."""
    return sequential(llm, tools=False)


def with_own_tools(llm: Any) -> Crew:
    """Each has a tool of its own."""
    return sequential(llm, own_tools=True)


def without_brief(llm: Any) -> Crew:
    """Their tasks have nothing in common."""
    who = agents(llm, tools=False)
    return crew(who, tasks(who, brief=False, context=[]))


def by_one(llm: Any) -> Crew:
    """One agent for all tasks."""
    who = agents(llm)[:1]
    return crew(who, tasks([who[0]] * 3, context=[]))


def hierarchical(llm: Any) -> Crew:
    """A manager asks."""
    who = agents(llm, tools=False)
    return crew(who, tasks(who, context=[]), process=Process.hierarchical, manager_llm=llm())


def chained(llm: Any) -> Crew:
    """Each task reads the results of those before it."""
    who = agents(llm, tools=False)
    return crew(who, tasks(who))


def long_texts(llm: Any) -> Crew:
    """Agents with long texts of their own."""
    made = sequential(llm, tools=False)
    for number, agent in enumerate(made.agents):
        agent.backstory = prose(900, seed=number)
    return made


BUILDS = (without_tools, with_own_tools, without_brief, by_one, hierarchical, long_texts, chained)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["openai", "anthropic", "responses", "litellm"])
@pytest.mark.parametrize("build", BUILDS)
def test_what_was_foreseen_is_what_is_sent(servers, new_llm, build, kind):
    """Agent, layout, reasons, tokens and costs of each task's first request, by the provider's own count."""
    provider = servers("anthropic" if kind == "anthropic" else "openai", answering)
    llm = lambda: new_llm(provider, kind)  # noqa: E731
    counted = Caching(counter=ESTIMATE)  # as the simulated provider counts
    seen = preview(build(llm), Session(caching=counted), task=BRIEF)
    assert not provider.requests
    made = build(llm)
    with install(made, Session(caching=counted)) as installed:
        made.kickoff(inputs=dict(BRIEF))
        calls = installed.session.calls
    assert len(seen.requests) == len(calls) == 3
    for one, call in zip(seen.requests, calls, strict=True):
        assert (one.agent, one.model, one.layout) == (call.agent, call.model, call.layout)
        for foreseen, came in zip(one.reasons, call.reasons, strict=True):
            assert (foreseen.why, foreseen.name) == (came.why, came.name)
            assert dict(foreseen.numbers) == pytest.approx(dict(came.numbers), rel=0.02)
        for name in ("input_tokens", "shared_tokens", "units", "unmodified_units"):
            # But for the results that nobody could foresee: here as long as the words around them.
            near = 0.05 if build is chained else 0.02
            assert getattr(one, name) == pytest.approx(getattr(call, name), rel=near), name


def test_no_tools_of_another_crew_on_the_session_are_foreseen(servers, new_llm):
    """They are in no request of this one."""
    provider = servers("openai", answering)
    llm = lambda: new_llm(provider)  # noqa: E731
    session = Session()
    alone = preview(without_tools(llm), session, task=BRIEF)
    with install(with_own_tools(llm), session):
        beside = preview(without_tools(llm), session, task=BRIEF)
    assert [one.input_tokens for one in beside.requests] == [one.input_tokens for one in alone.requests]
    assert not provider.requests


def state(made: Crew) -> list[dict[str, Any]]:
    """All that the crew's objects hold."""
    parts = [made, *made.agents, *made.tasks, *(agent.llm for agent in made.agents)]
    return [{"class": type(one), **vars(one), **(one.__pydantic_private__ or {})} for one in parts]


@pytest.mark.slow
@pytest.mark.parametrize("build", [with_own_tools, hierarchical])
def test_a_run_after_a_preview_sends_what_it_would_have_sent(servers, new_llm, build):
    """Byte for byte; the crew, its session and its models are as they were, installed or not."""
    provider = servers("openai", answering)
    llm = lambda: new_llm(provider)  # noqa: E731
    made, session = build(llm), Session()
    before = state(made)
    first = preview(made, session, task=BRIEF)
    assert state(made) == before
    assert session.calls == () == session.prefix.tools
    assert session.prefix.text == ""
    assert session.adapter.known(conversation_of(made)) is None
    with install(made, session):
        installed = state(made)
        assert preview(made, session, task=BRIEF).as_dict()["requests"] == first.as_dict()["requests"]
        assert state(made) == installed
        made.kickoff(inputs=dict(BRIEF))
    after = raw(provider)
    provider.reset()
    other = build(llm)
    with install(other, Session()):
        other.kickoff(inputs=dict(BRIEF))
    assert raw(provider) == after


def test_agents_without_a_crew_are_seen_too(servers, new_llm):
    """Those of a flow, on the text that they are asked."""
    provider = servers("openai", answering)
    who = agents(lambda: new_llm(provider), tools=False)
    seen = preview(who, Session(SharedPrefix(system=prose(1_500))), task="Judge the plan.")
    assert [one.agent for one in seen.requests] == [agent.role for agent in who]
    assert [one.layout for one in seen.requests] == ["fork"] * 3
    assert not provider.requests


def test_a_crew_of_crewai_1_15_9_is_foreseen_too(servers, new_llm, monkeypatch):
    """Which has in one module what newer releases have in two."""
    provider = servers("openai", answering)
    made = without_tools(lambda: new_llm(provider))
    monkeypatch.setitem(sys.modules, "crewai.utilities.message_utils", None)
    assert len(preview(made, Session(), task=BRIEF).requests) == len(made.tasks)


def test_a_text_is_the_one_input_that_a_crew_names(servers, new_llm) -> None:
    """As its inputs would be."""
    provider = servers("openai", answering)
    made = without_tools(lambda: new_llm(provider))
    told, given = preview(made, Session(), task=BRIEF["brief"]), preview(made, Session(), task=BRIEF)
    assert told.as_dict() == given.as_dict()
    assert {one.layout for one in told.requests} == {"fork"}


@pytest.mark.parametrize("task", [None, {}], ids=["no task", "by a callback"])
def test_inputs_that_are_not_given_yet_stand_as_their_names(servers, new_llm, task) -> None:
    """Nobody knows them: a note says so, or that a callback may give them."""
    made = without_tools(lambda: new_llm(servers("openai", answering)))
    if task is not None:
        made.before_kickoff_callbacks = [lambda inputs: {**inputs, **BRIEF}]
    seen = preview(made, Session(), task=task)
    assert len(seen.requests) == len(made.tasks)
    assert any(("inputs brief are not given" if task is None else "before_kickoff") in note for note in seen.notes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "task", "names"),
    [
        (without_brief, "Judge the plan.", "name none"),
        (without_tools, 3, "takes inputs, as kickoff does"),
        (without_tools, {"breif": "x"}, "name the inputs brief, which .* lacks; found breif"),
        (without_tools, {}, "name the inputs brief, which .* lacks; found none"),
        (lambda llm: crew(who := agents(llm), tasks(who, item=True)), "Judge the plan.", "name brief, item"),
        (agents, {"brief": "x"}, "are asked a text"),
        (lambda llm: flow_of(llm, made_in="class"), "Judge the plan.", "begins with its state"),
    ],
    ids=["no input", "a number", "another name", "none", "two inputs", "agents", "a flow"],
)
def test_a_task_that_nothing_can_begin_with_is_refused_by_name(servers, new_llm, build, task, names) -> None:
    """With the way to say it."""
    made = build(lambda: new_llm(servers("openai", answering)))
    with pytest.raises(SetupError, match=names):
        preview(made, Session(), task=task)


def test_a_crew_that_was_kicked_off_before_is_foreseen_as_a_fresh_one(servers, new_llm) -> None:
    """A kickoff fills the inputs into the crew's texts, and the next one goes by those that it had before."""
    provider = servers("openai", answering)
    made = without_tools(lambda: new_llm(provider))
    fresh = [preview(made, Session(), task=task) for task in (BRIEF, None)]
    made.kickoff(inputs={"brief": "Another one."})
    before = [task.description for task in made.tasks]
    assert [preview(made, Session(), task=task).as_dict() for task in (BRIEF, None)] == [one.as_dict() for one in fresh]
    assert preview(made, Session(), task=BRIEF["brief"]).as_dict() == fresh[0].as_dict()
    with pytest.raises(SetupError, match=r"name the inputs brief, which .* lacks; found breif"):
        preview(made, Session(), task={"breif": "x"})
    assert [task.description for task in made.tasks] == before


@pytest.mark.parametrize("front_door", [preview, wrap], ids=["preview", "wrap"])
def test_an_error_of_a_crews_own_class_is_the_applications(front_door: Any, recwarn: Any) -> None:
    """It was said to be a failure of the plugin."""
    from crewai.project import CrewBase

    @CrewBase
    class Broken:
        """A class that makes no crew."""

        agents_config: Any = {}  # noqa: RUF012
        tasks_config: Any = {}  # noqa: RUF012

        def crew(self) -> Crew:
            """What the application's own error says."""
            raise LookupError("no such tenant")

    with pytest.raises(LookupError, match="no such tenant"):
        front_door(Broken(), Session())
    assert not [one for one in recwarn if issubclass(one.category, CacheprefixPluginWarning)]


def flow_of(llm: Any, *, made_in: str) -> Any:
    """Two crews on one brief, as attributes of the flow or of classes that its methods name."""
    from crewai.project import CrewBase
    from crewai.project import agent as agent_of
    from crewai.project import crew as crew_of
    from crewai.project import task as task_of

    def single(at: int) -> Crew:
        who = agents(llm, tools=False)[at : at + 1]
        said = Task(description=f"Part {at}.\n\nThe brief:\n{{brief}}", expected_output="A text.", agent=who[0])
        return crew(who, [said])

    @CrewBase
    class Second:
        """A crew as ``crewai create`` makes it."""

        agents_config: Any = {}  # noqa: RUF012
        tasks_config: Any = {}  # noqa: RUF012

        @agent_of
        def writer(self) -> Any:
            """Its agent."""
            return single(1).agents[0]

        @task_of
        def part(self) -> Any:
            """Its task."""
            made = single(1).tasks[0]
            made.agent = self.writer()
            return made

        @crew_of
        def crew(self) -> Crew:
            """Its crew."""
            return crew([self.writer()], [self.part()])

    def of_class(_: Any) -> Any:
        return Second().crew()

    def of_flow(flow: Any) -> Any:
        return flow.second

    second = of_class if made_in == "class" else of_flow

    class Paper(Flow):  # type: ignore[misc, type-arg]
        """One after the other."""

        @start()
        def collect(self) -> str:
            """First."""
            return str(self.first.kickoff(inputs={"brief": self.state["brief"]}).raw)

        @listen(collect)
        def work_out(self) -> str:
            """Second."""
            return str(second(self).kickoff(inputs={"brief": self.state["brief"]}).raw)

    made = Paper()
    made.memory, made.first = None, single(0)
    if made_in != "class":
        made.second = single(1)
    return made


@pytest.mark.parametrize("made_in", ["attributes", "class"])
def test_a_flows_preview_is_what_its_crews_send(servers, new_llm, made_in) -> None:
    """Those that it has, and those of the classes that its methods name; they share the brief of its state."""
    provider = servers("openai", answering)
    flow = flow_of(lambda: new_llm(provider), made_in=made_in)
    session = Session(caching=Caching(counter=ESTIMATE))
    foreseen = preview(flow, session, task=BRIEF)
    assert not provider.requests
    assert not session.calls
    with install(flow, session):
        flow.kickoff(inputs=BRIEF)
    assert [one.agent for one in foreseen.requests] == [call.agent for call in session.calls]
    assert [one.input_tokens for one in foreseen.requests] == [call.input_tokens for call in session.calls]
    assert [one.layout for one in foreseen.requests] == [call.layout for call in session.calls] == ["fork", "fork"]


@pytest.mark.parametrize("more", [False, True])
def test_a_flows_preview_says_of_no_method_that_it_starts_more_than_the_flow_has_where_it_does_not(
    servers, new_llm, more
) -> None:
    """What it starts is an attribute of the flow; a method that makes a crew beside that is named."""
    provider = servers("openai", answering)
    who = agents(lambda: new_llm(provider), tools=False)[:1]

    class Paper(Flow):  # type: ignore[misc, type-arg]
        """One crew that it has, and one that it makes."""

        @start()
        def collect(self) -> str:
            """Start what it has."""
            return str(self.part.kickoff(inputs=BRIEF))

        if more:

            @listen(collect)
            def work_out(self) -> str:
                """Start what it has and what it makes."""
                return f"{self.part.kickoff(inputs=BRIEF)} {Crew(agents=who, tasks=[]).kickoff()}"

    made = Paper()
    made.part = crew(who, [Task(description="Begin.", expected_output="x", agent=who[0])])
    beside = [note for note in preview(made, Session(), task=BRIEF).notes if "starts beside" in note]
    assert len(beside) == more
    assert all("work_out" in note for note in beside)


def test_what_a_flows_methods_make_themselves_is_named(servers, new_llm) -> None:
    """Nobody knows of it before the run."""
    from test_flows import flow_of as made

    foreseen = preview(made(new_llm(servers("openai", answering))), Session(), task=BRIEF)
    assert foreseen.requests == ()
    assert any("collect" in note for note in foreseen.notes)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::cacheprefix.CacheprefixWarning")
@pytest.mark.parametrize("kind", ["openai", "anthropic", "gemini"])
def test_a_preview_fails_where_a_models_class_cannot_make_a_body(servers, new_llm, monkeypatch, kind) -> None:
    """A preview without these requests would foresee too little."""
    provider = servers("anthropic" if kind == "anthropic" else "openai", answering)
    model = gemini(provider) if kind == "gemini" else new_llm(provider, kind)
    made = without_tools(lambda: model)
    make = "_prepare_generation_config" if kind == "gemini" else "_prepare_completion_params"

    def refusing(*_: Any, **__: Any) -> Any:
        raise ValueError("this setting is unknown")

    monkeypatch.setattr(type(model), make, refusing)
    with pytest.raises(SetupError, match="Crew failed in crewai"):
        preview(made, Session(), task=BRIEF)
