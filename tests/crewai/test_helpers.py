"""Requests that no agent's executor makes: sent as they were, and counted."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from crew_wire import INPUTS, bodies, heads, outputs, prompts
from crewai import Agent

from benchmarks.crewai_workloads import CrewModel, Finding, agents, crew, tasks
from cacheprefix import Session
from cacheprefix.server import Reply, Request
from cacheprefix_crewai import install

Build = Callable[..., Any]


def embedded(texts: Sequence[str]) -> list[list[float]]:
    """An embedding that needs no network: 16 numbers of a text's digest."""
    return [[byte / 255 for byte in hashlib.blake2b(text.encode(), digest_size=16).digest()] for text in texts]


def steady(body: dict[str, Any]) -> str:
    """A body without what CrewAI itself draws anew in every run: memory addresses in the planner's prompt."""
    return re.sub(r"0x[0-9a-f]+", "0x", json.dumps({key: body[key] for key in body if key != "prompt_cache_key"}))


def planned(who: list[Any], made: list[Any], llm: Any, folder: Any) -> Any:
    """A crew whose planner writes a plan first."""
    return crew(who, made, planning=True, planning_llm=llm)


def structured(who: list[Any], made: list[Any], llm: Any, folder: Any) -> Any:
    """A crew whose answers a converter makes into objects."""
    for one in made:
        one.output_pydantic = Finding
    return crew(who, made)


def guarded(who: list[Any], made: list[Any], llm: Any, folder: Any) -> Any:
    """A crew whose answers an agent of CrewAI's own judges."""
    from crewai.tasks.llm_guardrail import LLMGuardrail

    made[0]._guardrail = LLMGuardrail(description="It names a source.", llm=who[0].llm)
    return crew(who, made)


def remembering(who: list[Any], made: list[Any], llm: Any, folder: Any) -> Any:
    """A crew with a memory that a model analyses."""
    from crewai.memory.unified_memory import Memory

    return crew(who, made, memory=Memory(llm=llm, embedder=embedded, storage=str(folder)))


def remembering_each(who: list[Any], made: list[Any], llm: Any, folder: Any) -> Any:
    """A crew of which one agent has a memory of its own, which writes when the kickoff is over."""
    from crewai.memory.unified_memory import Memory

    who[1].memory = Memory(llm=llm, embedder=embedded, storage=str(folder))
    return crew(who, made)


def knowing(who: list[Any], made: list[Any], llm: Any, folder: Any) -> Any:
    """A crew whose agents ask for knowledge by a rewritten query, on a shelf of one book."""
    from crewai.knowledge.knowledge import Knowledge
    from crewai.knowledge.storage.base_knowledge_storage import BaseKnowledgeStorage

    class Shelf(BaseKnowledgeStorage):
        """A storage of one text."""

        def search(self, *_: Any, **__: Any) -> list[Any]:
            """The text, whatever is asked."""
            return [{"id": "1", "content": "Service revenue was 12 million.", "metadata": {}, "score": 1.0}]

        async def asearch(self, *_: Any, **__: Any) -> list[Any]:
            """The text, whatever is asked."""
            return self.search()

        def save(self, documents: list[str]) -> None:
            """Nothing is taken in."""

        async def asave(self, documents: list[str]) -> None:
            """Nothing is taken in."""

        def reset(self) -> None:
            """Nothing to forget."""

        async def areset(self) -> None:
            """Nothing to forget."""

    return crew(who, made, knowledge=Knowledge(collection_name="crew", sources=[], storage=Shelf()))


class Helped(CrewModel):
    """Plays the model for helpers too."""

    def __call__(self, request: Request, /) -> Reply:
        """Answer the planner and memory by their schemas, everyone else by plan."""
        if "(plan " not in request.text and request.asked.schema is None:
            return Reply("service revenue north")
        return super().__call__(request)


def of_executor(body: dict[str, Any]) -> bool:
    """Whether an agent's executor asks: its role stands in the request."""
    text = json.dumps(body["messages"])
    return all(words in text for words in ("Your personal goal is", "Current Task: ")) and not any(
        helper in text for helper in ("Task Execution Planner", "Guardrail Agent")
    )


@pytest.mark.parametrize("key", ["any", ""])
def test_a_memory_whose_model_is_a_name_is_counted_or_said_not_to_be(monkeypatch, new_llm, tmp_path, key) -> None:
    """CrewAI would make the model at its first use; it is made at once, and where it cannot be that is said once."""
    from crewai.memory.unified_memory import Memory

    monkeypatch.setenv("OPENAI_API_KEY", key)
    memory = Memory(llm="gpt-5.4-mini", embedder=embedded, storage=str(tmp_path))
    who = agents(lambda: new_llm(SimpleNamespace(openai_base_url="http://127.0.0.1:9/v1")))
    with install(crew(who, tasks(who), memory=memory)) as installed:
        made = memory._llm_instance
        said = [note for note in installed.session.report().notes if "gpt-5.4-mini" in note]
        assert (made is None) == bool(said) == (not key)
        assert made is None or "__cacheprefix__" in vars(made)
    assert memory._llm_instance is None
    assert made is None or "__cacheprefix__" not in vars(made)
    assert not installed.session.failures


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [planned, structured, guarded, knowing, remembering, remembering_each],
    ids=lambda one: one.__name__,
)
def test_helpers_are_sent_as_they_were_and_measured(servers, new_llm, tmp_path, build) -> None:
    """Every helper's request of the crew as it was is sent again, byte for byte, and every request is counted."""
    runs = []
    for session in (None, Session()):
        provider = servers("openai", Helped())
        who = agents(lambda provider=provider: new_llm(provider), tools=build is structured)
        team = build(who, tasks(who), new_llm(provider), tmp_path / str(len(runs)))
        if session is not None:
            install(team, session)
        result = team.kickoff(inputs=INPUTS)
        for memory in (getattr(team, "_memory", None), *(agent.memory for agent in team.agents)):
            drained = getattr(memory, "drain_writes", None)
            if callable(drained):
                drained()
        sent = bodies(provider)
        runs.append((outputs(result), sorted(steady(body) for body in sent if not of_executor(body))))
    assert runs[1][0] == runs[0][0]
    assert runs[0][1]
    if build in (remembering, remembering_each):  # it saves in threads: which memories it compares is a matter of time
        runs = [(said, {body[:300] for body in sent}) for said, sent in runs]
    assert runs[1][1] == runs[0][1]
    assert len(session.calls) == len(provider.requests)
    forks = [prompt for prompt, body in zip(prompts(provider), sent, strict=True) if of_executor(body)]
    assert len(heads(forks)) == 1
    assert session.failures == {}


@pytest.mark.parametrize("named", ["gpt-4.1", None], ids=["given", "left to CrewAI"])
def test_a_planner_whose_model_is_a_name_is_counted_and_the_name_stays(servers, new_llm, monkeypatch, named) -> None:
    """CrewAI makes the model when it plans; the crew's attribute is the application's to read."""
    provider = servers("openai", Helped())
    monkeypatch.setenv("OPENAI_BASE_URL", provider.openai_base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    who = agents(lambda: new_llm(provider), tools=False)
    team = crew(who, tasks(who), planning=True, planning_llm=named)
    with install(team, Session(mode="observe")) as installed:
        assert team.planning_llm == named
        team.kickoff(inputs=INPUTS)
        assert team.planning_llm == named
    assert any("Task Execution Planner" in json.dumps(body) for body in bodies(provider))
    assert len(installed.session.calls) == len(provider.requests)


def test_a_planner_that_cannot_be_made_here_is_crewais_own(servers, new_llm, monkeypatch) -> None:
    """A failure of ours costs the application nothing: it plans and runs as without us, and the failure is counted."""
    provider = servers("openai", Helped())
    monkeypatch.setenv("OPENAI_BASE_URL", provider.openai_base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setattr("crewai.utilities.llm_utils.create_llm", lambda *_: 1 / 0)
    who = agents(lambda: new_llm(provider), tools=False)
    team = crew(who, tasks(who), planning=True, planning_llm="gpt-4.1")
    with install(team, Session(mode="observe")) as installed:
        team.kickoff(inputs=INPUTS)
    assert any("Task Execution Planner" in json.dumps(body) for body in bodies(provider))
    assert installed.session.failures == {"planning_llm": 1}


def test_what_a_training_asks_behind_its_runs_is_measured(servers, new_llm, tmp_path, monkeypatch) -> None:
    """CrewAI has the feedback on each agent's work evaluated by the agent's model, outside of any run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda *_: "Name a source.")
    judged = json.dumps({"suggestions": ["Name sources."], "quality": 7.0, "final_summary": "Name sources."})
    provider = servers("openai", lambda asked: Reply(judged if "Human Feedback:" in asked.text else "Done."))
    who = agents(lambda: new_llm(provider), tools=False)
    team = crew(who, tasks(who))
    with install(team, Session()) as installed:
        team.train(n_iterations=1, filename="trained.pkl", inputs=INPUTS)
    evaluated = sum("Human Feedback:" in json.dumps(body) for body in bodies(provider))
    assert evaluated == 3
    assert len(installed.session.calls) == len(provider.requests)


def test_a_call_for_a_structured_answer_is_left_alone(servers, new_llm) -> None:
    """Its schema belongs to the lane: an agent without tools that answers in one sends what it sent."""
    sent = []
    for installed in (False, True):
        provider = servers("openai")
        who = agents(lambda provider=provider: new_llm(provider), tools=False)
        team = crew(who, tasks(who, output_pydantic=Finding))
        session = Session()
        if installed:
            install(team, session, volatile=lambda: {"now": "noon"})
        output = team.kickoff(inputs=INPUTS)
        assert isinstance(output.pydantic, Finding)
        sent.append([(body["messages"], body["response_format"]) for body in bodies(provider)])
    assert sent[1] == sent[0]
    assert len(session.calls) == 3


@pytest.mark.parametrize("mode", ["observe", "fork"])
@pytest.mark.parametrize("waits", [False, True], ids=["kickoff", "kickoff_async"])
def test_a_guardrail_of_an_agent_without_a_crew_is_sent_as_it_was_and_counted(servers, new_llm, mode, waits) -> None:
    """CrewAI has an agent of its own judge the answer, which no installation knows."""
    sent = []
    for session in (None, Session(mode=mode)):
        verdict = json.dumps({"valid": True, "feedback": None})
        provider = servers("openai", lambda asked, verdict=verdict: Reply(verdict if asked.asked.schema else "Done."))
        llm = new_llm(provider)
        judged = Agent(role="Writer", goal="Write.", backstory="Old.", llm=llm, guardrail="It names a source.")
        others = Agent(role="Reader", goal="Read.", backstory="New.", llm=llm)
        held = install([judged, others], session) if session is not None else None
        install([Agent(role="Elsewhere", goal="Be.", backstory="Far.", llm=llm)])
        for _ in range(2):
            said = asyncio.run(judged.kickoff_async("Tell me.")) if waits else judged.kickoff("Tell me.")
            assert said.raw == "Done."
        sent.append([steady(body) for body in bodies(provider) if "Guardrail Agent" in steady(body)])
    assert len(sent[0]) == 2
    assert sent[1] == sent[0]
    assert held is not None
    assert [call.agent for call in session.calls] == ["Writer", "Guardrail Agent"] * 2
    assert not session.failures
