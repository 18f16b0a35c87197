"""A session is freed when its crew is, and before where it was taken back."""

from __future__ import annotations

import gc
import time
import weakref

import pytest

from benchmarks.crewai_workloads import BRIEF, agents, crew, tasks
from cacheprefix import Session
from cacheprefix_crewai import install


@pytest.mark.parametrize("undone", [True, False], ids=["undone", "dropped"])
def test_a_session_goes_with_its_installation(provide, new_llm, undone) -> None:
    """The models that its agents used are the application's, and are used on."""
    provider = provide("openai")
    llm = new_llm(provider, "openai")

    def run():
        session = Session()
        who = agents(lambda: llm)
        team = crew(who, tasks(who))
        installed = install(team, session)
        team.kickoff(inputs={"brief": BRIEF})
        assert session.calls
        if undone:
            installed.undo()
        return weakref.ref(session), team if undone else None

    session, _team = run()
    for _ in range(100):
        gc.collect()
        if session() is None:
            break
        # CrewAI's event bus lets go of what its threads were told when they are through.
        time.sleep(0.05)
    assert session() is None
    assert llm.call([{"role": "user", "content": "still there"}])
