"""Answers by a schema that CrewAI has ``instructor`` ask for, past its model's class: each request is in the report."""

from __future__ import annotations

from typing import Any

import pytest
from crewai import Agent, Crew, Task
from crewai.tools import tool
from crewai.utilities.internal_instructor import InternalInstructor
from pydantic import BaseModel

from cacheprefix import Session
from cacheprefix.profiles import cost_units, normalise_usage
from cacheprefix.server import Reply, Request, ToolCall
from cacheprefix_crewai import install
from cacheprefix_crewai.sending import PendingRequest

WORDS = "The bridge is sound, and its second pier is to be looked at again in the spring. " * 20


class Verdict(BaseModel):
    """What is asked for."""

    text: str
    parts: int


@tool("weigh")
def weigh(part: str) -> str:
    """Weigh a part."""
    return f"{part} weighs a ton."


@pytest.fixture
def served(provide, monkeypatch):
    """``served(kind, model)`` is a provider, whose address ``instructor`` finds in the environment alone."""

    def serve(kind: str, model: Any) -> Any:
        provider = provide("anthropic" if "anthropic" in kind else "openai", model)
        for name, url in (("OPENAI", provider.openai_base_url), ("ANTHROPIC", provider.anthropic_base_url)):
            monkeypatch.setenv(f"{name}_BASE_URL", url)
            monkeypatch.setenv(f"{name}_API_KEY", "any")
        return provider

    return serve


def judge(wrong: int = 0) -> Any:
    """A model that says in words what it was asked for by a schema, unless it must; and first a few times wrong."""
    left = [wrong]

    def answer(request: Request) -> Reply:
        for name in ("Verdict", "structured_output"):
            if name in request.asked.tools:
                left[0] -= 1
                return Reply("", (ToolCall(name, {"text": "Sound."} | ({} if left[0] >= 0 else {"parts": 2})),))
        return Reply(WORDS)

    return answer


def run(llm: Any, session: Session, form: str) -> Any:
    """One task with an answer by a schema, and one in words; asked by the agent itself, or of its text afterwards."""
    who = Agent(role="judge", goal="Judge.", backstory="Long a judge.", llm=llm, tools=[weigh] * (form == "json"))
    kind = {"output_json": Verdict} if form == "json" else {"output_pydantic": Verdict}
    asked = Task(description=f"Judge it.\n{WORDS}", expected_output="A verdict.", agent=who, **kind)
    told = Task(description="Say it again.", expected_output="Words.", agent=who)
    team = Crew(agents=[who], tasks=[asked, told])
    with install(team, session):
        first = team.kickoff().tasks_output[0]
    return first.json_dict if form == "json" else first.pydantic.model_dump()


def units(session: Session, provider: Any) -> tuple[list[float], list[float]]:
    """Cost units request by request: as the session counts them, and as the provider billed them."""
    profile = session.calls[0].profile
    billed = [cost_units(normalise_usage(one.usage, one.api, profile=profile), profile) for one in provider.requests]
    return [call.units for call in session.calls], billed


@pytest.mark.parametrize("mode", ["observe", "fork"])
@pytest.mark.parametrize(
    ("kind", "form"),
    [("litellm", "pydantic"), ("litellm-anthropic", "pydantic"), ("openai", "json")],
)
def test_an_answer_by_a_schema_costs_in_the_report_what_it_cost(served, new_llm, kind, form, mode) -> None:
    """LiteLLM's, which go out in another form than the model's class makes, and those that a converter asks for."""
    provider = served(kind, judge())
    session = Session(mode=mode)
    assert run(new_llm(provider, kind), session, form) == {"text": "Sound.", "parts": 2}
    ours, billed = units(session, provider)
    assert ours == billed
    assert session.report().total.unmodified_units == pytest.approx(sum(billed), rel=0.02)
    assert not session.failures
    assert not session.report().unanswered


def test_an_answer_that_does_not_fit_is_asked_for_again_and_counted(served, new_llm) -> None:
    """``instructor`` asks again by itself; CrewAI sees one answer."""
    provider = served("litellm", judge(wrong=1))
    session = Session()
    assert run(new_llm(provider, "litellm"), session, "pydantic") == {"text": "Sound.", "parts": 2}
    ours, billed = units(session, provider)
    assert len(billed) == 3
    assert ours == billed


def test_a_converter_that_is_asked_twice_is_counted_twice(served, new_llm) -> None:
    """Each time as it was billed."""
    provider, session = served("litellm", judge()), Session()
    llm = new_llm(provider, "litellm")
    made = InternalInstructor(content=WORDS, model=Verdict, llm=llm)
    who = Agent(role="judge", goal="Judge.", backstory="Long a judge.", llm=llm)
    asks = Task(description="Say it.", expected_output="Words.", agent=who, callback=lambda _: made.to_pydantic())
    other = Task(description="Say it again.", expected_output="Words.", agent=who, callback=asks.callback)
    team = Crew(agents=[who], tasks=[asks, other])
    with install(team, session):
        team.kickoff()
    ours, billed = units(session, provider)
    assert len(billed) == 4
    assert ours == billed


def test_what_fails_in_counting_it_is_counted_once_and_changes_nothing(served, new_llm, monkeypatch, recwarn) -> None:
    """A hook of ``instructor`` that raises would be a warning to the application."""
    provider = served("litellm", judge())

    def broken(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(PendingRequest, "made_anew", broken)
    session = Session()
    assert run(new_llm(provider, "litellm"), session, "pydantic") == {"text": "Sound.", "parts": 2}
    assert session.failures == {"structured answer": 1}
    assert not [one for one in recwarn if "handler" in str(one.message)]
