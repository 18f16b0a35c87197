"""The ways in which people start crews and agents: all of them send forks, and give what they gave."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, ClassVar

import pytest
from crew_wire import BRIEF, INPUTS, bodies, heads, outputs, prompts, raw

from benchmarks.crewai_workloads import CrewModel, agents, crew, tasks
from cacheprefix import Session
from cacheprefix_crewai import callback, install, session_of, uninstall

ITEMS = [{"brief": BRIEF, "item": item} for item in ("north", "south")]


@pytest.fixture
def team(servers, new_llm):
    """``team()`` gives a provider and a crew of two tool-less specialists on it; ``item`` for several inputs."""

    def make(*, item: bool = False, **options: Any):
        provider = servers("openai")
        who = agents(lambda: new_llm(provider), tools=False)
        made = tasks(who, item=item)
        return provider, crew(who, made, **options)

    return make


def _streamed(made: Any) -> Any:
    streaming = made.kickoff(inputs=INPUTS)
    assert "".join(chunk.content for chunk in streaming)
    return streaming.result


STARTS = {
    "kickoff": lambda made: made.kickoff(inputs=INPUTS),
    "kickoff_async": lambda made: asyncio.run(made.kickoff_async(inputs=INPUTS)),
    "akickoff": lambda made: asyncio.run(made.akickoff(inputs=INPUTS)),
    "copy": lambda made: made.copy().kickoff(inputs=INPUTS),
    "kickoff_for_each": lambda made: made.kickoff_for_each(inputs=ITEMS),
    "kickoff_for_each_async": lambda made: asyncio.run(made.kickoff_for_each_async(inputs=ITEMS)),
    "akickoff_for_each": lambda made: asyncio.run(made.akickoff_for_each(inputs=ITEMS)),
}


@pytest.mark.slow
@pytest.mark.parametrize("start", STARTS)
def test_every_way_of_starting_sends_forks_and_gives_the_same_outputs(team, start) -> None:
    """One beginning for all roles and runs, the outputs of the crew as it was, every request counted."""
    several = "each" in start
    provider, plain = team(item=several)
    before = STARTS[start](plain)
    assert len(heads(prompts(provider))) == 3
    provider, made = team(item=several)
    with install(made) as installed:
        after = STARTS[start](made)
    assert len(heads(prompts(provider))) == 1
    assert len(installed.session.calls) == len(provider.requests) == (6 if several else 3)
    assert installed.session.failures == {}
    before, after = (given if several else [given] for given in (before, after))
    assert [outputs(one) for one in after] == [outputs(one) for one in before]


def test_a_streaming_crew_sends_forks_chunk_by_chunk(team) -> None:
    """``Crew(stream=True)`` runs in a thread of its own, and belongs to the installation there too."""
    provider, made = team(stream=True)
    with install(made) as installed:
        result = _streamed(made)
    assert len(heads(prompts(provider))) == 1
    assert all(body["stream"] for body in bodies(provider))
    assert len(installed.session.calls) == 3
    assert result.raw.startswith("Result of writing")


def test_a_replay_repeats_the_requests_of_the_run(team) -> None:
    """From the second task on a replay sends the very bytes of the kickoff."""
    provider, made = team()
    with install(made) as installed:
        made.kickoff(inputs=INPUTS)
        made.replay(str(made.tasks[1].id))
    sent = raw(provider)
    assert sent[3:] == sent[1:3]
    assert len(installed.session.calls) == 5


def test_a_manager_given_by_name_is_watched_and_left_as_crewai_leaves_it(servers, new_llm, monkeypatch) -> None:
    """CrewAI makes the model of a name at kickoff, and keeps it: its requests are forks until ours is taken away."""
    from crewai import Process
    from crewai.utilities.llm_utils import create_llm

    provider = servers("openai")
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    monkeypatch.setenv("OPENAI_BASE_URL", provider.openai_base_url)
    who = agents(lambda: new_llm(provider))
    made = crew(who, tasks([None] * 3), process=Process.hierarchical, manager_llm="gpt-5-mini")
    with install(made) as installed:
        made.kickoff(inputs=INPUTS)
    managers = [call for call in installed.session.calls if call.agent == "Crew Manager"]
    assert {call.model for call in managers} == {"gpt-5-mini"}
    assert len(managers) == 6
    sent = [prompt for prompt in prompts(provider) if prompt.model == "gpt-5-mini"]
    assert len(heads(sent)) == 1
    assert type(made.manager_llm) is type(create_llm("gpt-5-mini"))


def test_a_crewbase_class_is_installed_through_its_crew(servers, new_llm) -> None:
    """An instance of a ``@CrewBase`` class gives one crew, and that one sends forks."""
    from crewai import Crew
    from crewai.project import CrewBase, agent, task
    from crewai.project import crew as crew_method

    provider = servers("openai")
    who = agents(lambda: new_llm(provider), tools=False)
    made = tasks(who)

    @CrewBase
    class Board:
        """A crew as CrewAI's project template writes it."""

        agents_config: ClassVar[dict[str, Any]] = {}
        tasks_config: ClassVar[dict[str, Any]] = {}

        @agent
        def researcher(self) -> Any:
            """The first role."""
            return who[0]

        @agent
        def analyst(self) -> Any:
            """The second role."""
            return who[1]

        @task
        def research(self) -> Any:
            """The first task."""
            return made[0]

        @task
        def analysis(self) -> Any:
            """The second task."""
            return made[1]

        @crew_method
        def crew(self) -> Any:
            """The crew of both."""
            return Crew(agents=self.agents, tasks=self.tasks, verbose=False)

    board = Board()
    with install(board) as installed:
        board.crew().kickoff(inputs=INPUTS)
        assert session_of(board) is installed.session
    assert len(heads(prompts(provider))) == 1
    assert len(installed.session.calls) == 2
    assert session_of(board) is None


@pytest.mark.parametrize("asynchronous", [False, True], ids=["kickoff", "kickoff_async"])
def test_agents_without_a_crew_share_what_they_are_told_to(servers, new_llm, asynchronous) -> None:
    """``Agent.kickoff``, as flows use it, in both forms."""
    provider = servers("openai")
    who = agents(lambda: new_llm(provider), tools=False)

    async def work() -> list[str]:
        said = []
        for one, name in zip(who, ("research", "analysis", "writing"), strict=True):
            words = f"Do your part. (plan {name})\n\n{BRIEF}"
            done = await one.kickoff_async(words) if asynchronous else await asyncio.to_thread(one.kickoff, words)
            said.append(done.raw)
        return said

    with install(who, shared_context=BRIEF) as installed:
        said = asyncio.run(work())
    assert len(heads(prompts(provider))) == 1
    assert [text.split(":", 1)[0] for text in said] == [
        "Result of research",
        "Result of analysis",
        "Result of writing",
    ]
    assert len(installed.session.calls) == 3


@pytest.mark.parametrize("asynchronous", [False, True], ids=["kickoff", "akickoff"])
def test_a_crew_in_a_flow_is_the_crew_it_is_outside(team, asynchronous) -> None:
    """A flow's step starts the crew, in a thread or on its loop; the bytes are those of a kickoff by itself."""
    from crewai.flow.flow import Flow, start

    provider, made = team()
    with install(made):
        made.kickoff(inputs=INPUTS)
    alone = raw(provider)
    provider, made = team()

    class Board(Flow):
        """One step."""

        if asynchronous:

            @start()
            async def work(self) -> str:
                """Run the crew on the flow's loop."""
                return str((await made.akickoff(inputs=INPUTS)).raw)

        else:

            @start()
            def work(self) -> str:
                """Run the crew in a thread."""
                return str(made.kickoff(inputs=INPUTS).raw)

    with install(made):
        Board(suppress_flow_events=True).kickoff()
    assert raw(provider) == alone


def test_crews_nested_in_one_flow_keep_to_their_own_sessions(servers, new_llm) -> None:
    """Two installed crews and one that is not, side by side on one model object, in steps of one flow."""
    from crewai.flow.flow import Flow, listen, start

    provider = servers("openai")
    llm = new_llm(provider)
    crews = [crew(who, tasks(who)) for who in (agents(lambda: llm, tools=False) for _ in range(3))]
    plain = crews[2]
    plain.kickoff(inputs=INPUTS)
    before = raw(provider)
    provider.reset()
    first, second = install(crews[0]), install(crews[1])

    class Board(Flow):
        """Two steps at once, then a third."""

        @start()
        def one(self) -> str:
            """The first crew."""
            return str(crews[0].kickoff(inputs=INPUTS).raw)

        @start()
        def two(self) -> str:
            """The second crew."""
            return str(crews[1].kickoff(inputs=INPUTS).raw)

        @listen(two)
        def three(self) -> str:
            """The crew that nobody installed on."""
            provider.reset()
            return str(plain.kickoff(inputs=INPUTS).raw)

    Board(suppress_flow_events=True).kickoff()
    assert [len(one.session.calls) for one in (first, second)] == [3, 3]
    assert [body for body in raw(provider) if body in before] == before
    first.undo()
    second.undo()


def test_crews_in_threads_send_what_each_sends_alone(servers, new_llm) -> None:
    """Four crews at once, each with its own model and session: the same requests as one after the other."""
    provider = servers("openai")
    made = [crew(who, tasks(who)) for who in (agents(lambda: new_llm(provider), tools=False) for _ in range(4))]
    with install(made[0]):
        made[0].kickoff(inputs=INPUTS)
    alone = sorted(raw(provider))
    provider.reset()
    installed = [install(one) for one in made]
    threads = [threading.Thread(target=one.kickoff, kwargs={"inputs": INPUTS}) for one in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in installed:
        one.undo()
    assert sorted(raw(provider)) == sorted(alone * 4)
    assert [len(one.session.calls) for one in installed] == [3] * 4


def test_every_callback_of_the_user_fires_as_before(servers, new_llm) -> None:
    """Step, task and kickoff callbacks, on the crew, on tasks and on agents: the same ones, in the same order."""

    def run(*, installed: bool) -> list[str]:
        provider = servers("openai")
        fired: list[str] = []
        who = agents(lambda: new_llm(provider))
        who[0].step_callback = lambda _: fired.append("step of the researcher")
        made = tasks(who)
        made[1].callback = lambda output: fired.append(f"own {output.name}")
        team = crew(
            who,
            made,
            step_callback=lambda _: fired.append("step"),
            task_callback=lambda output: fired.append(f"task {output.name}"),
        )
        team.before_kickoff_callbacks = [
            lambda inputs: fired.append("before") or inputs,
            *([callback(Session())] if installed else []),
            lambda inputs: fired.append("before again") or inputs,
        ]
        team.after_kickoff_callbacks = [lambda output: fired.append("after") or output]
        team.kickoff(inputs=INPUTS)
        if installed:
            assert len(heads(prompts(provider))) == 1
            uninstall(team)
        return fired

    assert run(installed=True) == run(installed=False)


def test_the_callback_of_one_crew_in_several_runs_installs_once(team) -> None:
    """Kickoff after kickoff, one session and one installation."""
    provider, made = team()
    session = Session()
    made.before_kickoff_callbacks = [callback(session)]
    made.kickoff(inputs=INPUTS)
    made.kickoff(inputs=INPUTS)
    assert session_of(made) is session
    assert len(session.calls) == 6
    assert len(heads(prompts(provider))) == 1
    uninstall(made)
    provider.reset()
    made.before_kickoff_callbacks = []
    made.kickoff(inputs=INPUTS)
    assert len(heads(prompts(provider))) == 3


def test_a_guardrail_retry_reads_what_the_first_attempt_wrote(servers, new_llm) -> None:
    """The retry's request begins as the first one did, and its feedback stands behind what is shared."""
    provider = servers("openai")
    who = agents(lambda: new_llm(provider), tools=False)
    seen: list[str] = []

    def check(output: Any):
        first = output.raw not in seen
        seen.append(output.raw)
        return (False, "name a source for every figure") if first else (True, output.raw)

    team = crew(who, tasks(who, guardrail=check, guardrail_max_retries=2))
    with install(team):
        team.kickoff(inputs=INPUTS)
    sent = prompts(provider)
    assert len(sent) == 6
    assert len(heads(sent)) == 1
    retry = sent[1].sections[-1]
    assert "name a source for every figure" in retry.text
    assert "name a source for every figure" not in "".join(s.text for s in sent[1].sections[:-1])


@pytest.mark.slow
def test_text_mode_agents_finish_under_every_start(servers, new_llm) -> None:
    """Agents that write their tool calls as text send no tools, in copies and asynchronous runs too."""
    for start in ("akickoff", "kickoff_for_each"):
        provider = servers("openai", CrewModel())
        who = agents(lambda provider=provider: new_llm(provider, react=True))
        team = crew(who, tasks(who, item="each" in start))
        with install(team) as installed:
            STARTS[start](team)
        assert all("tools" not in body for body in bodies(provider))
        assert installed.session.failures == {}
