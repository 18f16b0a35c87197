"""``kickoff(from_checkpoint=...)``: what CrewAI restores and kicks off instead belongs to the installation too."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from crew_wire import INPUTS, outputs, raw

from benchmarks.crewai_workloads import agents, crew, tasks
from cacheprefix import Session
from cacheprefix_crewai import install

CREWS = {
    "kickoff": lambda made, at: made.kickoff(from_checkpoint=at),
    "third argument": lambda made, at: made.kickoff(None, None, at),
    "kickoff_async": lambda made, at: asyncio.run(made.kickoff_async(from_checkpoint=at)),
    "akickoff": lambda made, at: asyncio.run(made.akickoff(from_checkpoint=at)),
}


@pytest.fixture
def saved(tmp_path):
    """``saved(run, number)`` saves a checkpoint before the request of that number, and gives where it is."""
    from crewai import CheckpointConfig
    from crewai.events import crewai_event_bus
    from crewai.hooks import register_before_llm_call_hook, unregister_before_llm_call_hook

    crewai_event_bus.reset_runtime_state()  # else it holds what the test before kicked off

    def save(run: Any, number: int) -> Any:
        asked = []

        def keep(context: Any) -> None:
            asked.append(context)
            if len(asked) == number:
                crewai_event_bus.flush()  # CrewAI's writer leaves nothing where an event comes in just then
                crewai_event_bus.runtime_state.checkpoint(str(tmp_path))

        register_before_llm_call_hook(keep)
        try:
            run()
        finally:
            unregister_before_llm_call_hook(keep)
        (file,) = tmp_path.rglob("*.json")
        return CheckpointConfig(restore_from=str(file), location=str(tmp_path / "later"))

    return save


@pytest.fixture
def team(servers, new_llm):
    """``team()`` gives a provider and a crew of three specialists without tools."""

    def make():
        provider = servers("openai")
        who = agents(lambda: new_llm(provider), tools=False)
        return provider, crew(who, tasks(who))

    return make


@pytest.mark.parametrize("go", CREWS)
def test_a_crew_goes_on_from_a_checkpoint_with_the_requests_of_the_run(team, saved, go) -> None:
    """In another installation, which counts them; nothing of it is left on the crew that was kicked off."""
    provider, made = team()
    with install(made):
        whole = {}
        at = saved(lambda: whole.update(found=made.kickoff(inputs=INPUTS)), 2)
    sent = raw(provider)
    provider, again = team()
    kind = type(again)
    with install(again) as installed:
        resumed = CREWS[go](again, at)
        assert installed.session.failures == {}
    # CrewAI kicks the crew off with no inputs there, so that the brief is shared under another name.
    assert raw(provider) == sent[1:] or go == "kickoff_async"
    assert [call.layout for call in installed.session.calls] == ["fork", "fork"]
    assert outputs(resumed) == outputs(whole["found"])
    assert type(again) is kind


def test_an_observed_crew_goes_on_from_a_checkpoint_as_it_did(team, saved) -> None:
    """Byte for byte, and counted; a crew that its class restores outside of a kickoff is nobody's."""
    provider, made = team()
    at = saved(lambda: made.kickoff(inputs=INPUTS), 2)
    sent = raw(provider)
    provider, again = team()
    with install(again, Session(mode="observe")) as installed:
        again.kickoff(from_checkpoint=at)
        assert len(installed.session.calls) == 2
        other = type(again).from_checkpoint(at)
        assert type(other) is type(made)
        other.kickoff()
    assert raw(provider) == sent[1:] * 2
    assert len(installed.session.calls) == 2
