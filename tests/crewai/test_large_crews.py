"""Crews of many tasks: what it takes to lay one of them out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.crewai_workloads import BRIEF, agents, crew, prose
from cacheprefix import Session
from cacheprefix.server import Reply
from cacheprefix_crewai import install, layout


def steps_for(server: Any, llm: Any, tasks: int, monkeypatch: Any, **options: Any) -> int:
    """What the interpreter calls while it lays out all tasks of a crew."""
    from crewai import Task

    who = agents(lambda: llm, tools=False)
    said = [f"Question {at}.\n\n{{brief}}\n\n{prose(20, at)}" for at in range(tasks)]
    work = [
        Task(description=text, expected_output="Text.", agent=who[at % 3], **options) for at, text in enumerate(said)
    ]
    steps = 0
    real: Callable[..., Any] = layout.settle

    def step(*_: Any) -> None:
        nonlocal steps
        steps += 1

    def counted(*given: Any) -> Any:
        before = sys.getprofile()
        sys.setprofile(step)
        try:
            return real(*given)
        finally:
            sys.setprofile(before)

    team = crew(who, work)
    with monkeypatch.context() as patched, install(team, Session()) as installed:
        patched.setattr(layout, "settle", counted)
        team.kickoff(inputs={"brief": BRIEF})
        assert len(server.requests) == tasks
        assert installed.session.failures == {}
    server.reset()
    return steps


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"context": []}], ids=["all before", "none before"])
def test_laying_out_takes_steps_in_proportion_to_what_the_tasks_say(servers, new_llm, monkeypatch, options) -> None:
    """Four times the tasks, four times the steps; a little more where each reads all results before it."""
    answers = iter(range(10_000))
    server = servers("openai", lambda _: Reply(text=f"Answer {next(answers)}. {prose(60, next(answers))}"))
    llm = new_llm(server)
    few, many = (steps_for(server, llm, tasks, monkeypatch, **options) for tasks in (16, 64))
    # A task that reads all results before it says more as well.
    assert many < few * (5.5 if options else 9)
