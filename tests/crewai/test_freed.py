"""A session is freed when its crew is, and before where it was taken back."""

from __future__ import annotations

import gc
import time
import weakref

import pytest
from crewai.tasks.task_output import TaskOutput

from benchmarks.crewai_workloads import BRIEF, CrewModel, agents, crew, tasks
from cacheprefix import Session, ToolResultBudget
from cacheprefix_crewai import ask, install
from cacheprefix_crewai.binding import binding_of


def _gone(session) -> bool:
    for _ in range(100):
        gc.collect()
        if session() is None:
            return True
        # CrewAI's event bus lets go of what its threads were told when they are through.
        time.sleep(0.05)
    return False


@pytest.mark.slow
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
    assert _gone(session)
    assert llm.call([{"role": "user", "content": "still there"}])


def test_what_a_kickoff_said_goes_when_it_is_over(provide, new_llm) -> None:
    """Of a crew that is kicked off for many people; its last task can still be asked."""
    provider = provide("openai", CrewModel(tools=False))
    who = agents(lambda: new_llm(provider), tools=False)
    team = crew(who, tasks(who))

    def held(words: str) -> int:
        bodies = [one for one in gc.get_objects() if isinstance(one, dict) and {"model", "messages"} <= one.keys()]
        return sum(words in str(body["messages"]) for body in bodies)

    # What stands by now is not looked through.
    gc.freeze()
    with install(team):
        team.kickoff_for_each(inputs=[{"brief": f"For {user}. {BRIEF}"} for user in ("Alice", "Bob")])
        provider.reset()
        gc.collect()
        assert held("Collect the facts") == 0
        assert held("Write the memo") > 0
        assert ask(team, "In one word?").text
    gc.unfreeze()


def test_what_a_crew_of_an_installation_held_goes_with_that_crew(provide, new_llm) -> None:
    """By its address its outputs were kept."""
    who = agents(lambda: new_llm(provide("openai")))
    team = crew(who, tasks(who))

    def ran_before() -> weakref.ref[TaskOutput]:
        other = crew(who, tasks(who))
        other.tasks[0].output = said = TaskOutput(description="d", agent="r", raw="For Alice.")
        binding.began(other)
        assert not binding.finished(other, other.tasks[0])
        return weakref.ref(said)

    with install(team, Session()):
        binding = binding_of(team)
        said = ran_before()
        assert _gone(said)


def test_what_was_changed_in_crewai_goes_with_a_dropped_crew(provide, new_llm) -> None:
    """Nobody has to take an installation back: CrewAI's hooks are its own again without it."""
    from crewai.hooks import get_after_tool_call_hooks

    llm, hooks = new_llm(provide("openai"), "openai"), len(get_after_tool_call_hooks())

    def dropped():
        session = Session(budget=ToolResultBudget(max_tokens=100))
        who = agents(lambda: llm)
        install(crew(who, tasks(who)), session)
        assert len(get_after_tool_call_hooks()) > hooks
        return weakref.ref(session.adapter)

    assert _gone(dropped())
    assert len(get_after_tool_call_hooks()) == hooks
