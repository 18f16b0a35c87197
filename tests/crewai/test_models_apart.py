"""What agents of other models are going to ask does not make a request worth sharing."""

from __future__ import annotations

from typing import Any

import pytest
from crewai import LLM, Agent, Crew, Task
from crewai.flow.flow import Flow, listen, start

from cacheprefix import Session
from cacheprefix.server import Reply, SimulatedProvider
from cacheprefix_crewai import install

BRIEF = "\n".join(
    f"Note {n}: error {n} means that sensor {n % 9} reads high; replace part {n * 7 % 83}." for n in range(90)
)
FIRST, SECOND = "openai/gpt-5.2", "openai/gpt-4.1-2025-04-14"


def _agent(role: str, model: str) -> Agent:
    return Agent(role=role, goal=f"Be a good {role}.", backstory=f"Long a {role}.", llm=LLM(model=model))


@pytest.fixture(autouse=True)
def provider(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A provider that every model is asked at."""
    with SimulatedProvider("auto", lambda request: Reply("Done.")) as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.openai_base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "any")
        yield running


def test_agents_of_another_model_are_not_waited_for() -> None:
    """Agents by themselves share with those of their own model."""
    agents = [_agent("analyst", FIRST), _agent("writer", FIRST), _agent("judge", SECOND)]
    session = Session()
    with install(agents, session):
        for agent in agents:
            agent.kickoff(f"Do your part.\n\n{BRIEF}")
    assert [call.layout for call in session.calls] == ["own"] * 3


def _crew(role: str, asked: str, **options: Any) -> Crew:
    agent = _agent(role, asked)
    work = {"description": "Do it.\n\n{brief}", "expected_output": "A page"}
    # A manager hands out what no agent is named for.
    task = Task(**work) if options else Task(agent=agent, **work)
    return Crew(agents=[agent], tasks=[task], **options)


def _layouts(first: Crew, second: Crew) -> list[str]:
    """How a flow's two crews go out, one behind the other; the flow has one more method, which asks nobody."""

    def found() -> Crew:
        return second

    class Desk(Flow[dict[str, Any]]):
        @start()
        def one(self) -> str:
            return str(first.kickoff(inputs={"brief": BRIEF}).raw)

        @listen(one)
        def two(self, _: str) -> str:
            return str(found().kickoff(inputs={"brief": BRIEF}).raw)

        @listen(two)
        def kept(self, said: str) -> str:
            return said

    session, flow = Session(), Desk()
    with install(flow, session):
        flow.kickoff(inputs={"brief": BRIEF})
    assert session.failures == {}
    return [call.layout for call in session.calls]


@pytest.mark.parametrize(("model", "layout"), [(SECOND, "own"), (FIRST, "fork")])
def test_a_flow_waits_for_its_own_model_alone(model: str, layout: str) -> None:
    """A crew of another model is no reader of what one before it says, and none that read before of one behind it."""
    assert _layouts(_crew("analyst", FIRST), _crew("writer", model)) == [layout] * 2


@pytest.mark.parametrize(("workers", "manager", "layout"), [(SECOND, FIRST, "fork"), (FIRST, SECOND, "own")])
def test_of_a_hierarchical_crew_the_manager_reads(workers: str, manager: str, layout: str) -> None:
    """Its workers share nothing, whatever they ask."""
    managed = _crew("writer", workers, process="hierarchical", manager_llm=LLM(model=manager))
    assert _layouts(_crew("analyst", FIRST), managed)[0] == layout


@pytest.mark.parametrize(("model", "layouts"), [(SECOND, ["fork", "own"]), (FIRST, ["fork", "fork"])])
def test_a_method_that_makes_its_crew_is_known_from_the_second_run_on(model: str, layouts: list[str]) -> None:
    """Of another instance of the flow too."""

    class Desk(Flow[dict[str, Any]]):
        @start()
        def one(self) -> str:
            return str(_crew("analyst", FIRST).kickoff(inputs={"brief": self.state["brief"]}).raw)

        @listen(one)
        def two(self, _: str) -> str:
            return str(_crew("writer", model).kickoff(inputs={"brief": self.state["brief"]}).raw)

    session = Session()
    for run in range(2):
        flow = Desk()
        with install(flow, session):
            flow.kickoff(inputs={"brief": f"Case {run}\n{BRIEF}"})
    assert [call.layout for call in session.calls[::2]] == layouts
    assert session.failures == {}


@pytest.mark.parametrize(("model", "layout"), [(SECOND, "own"), (FIRST, "fork")])
def test_a_managers_text_goes_behind_what_a_crew_of_its_own_model_read(model: str, layout: str) -> None:
    """It is long, and goes there where there are others."""
    managed = _crew("writer", FIRST, process="hierarchical", manager_llm=LLM(model=FIRST))
    assert _layouts(_crew("analyst", model), managed)[1] == layout
