"""A safe way in, on CrewAI's wire: off, and a share of the kickoffs."""

from __future__ import annotations

import re

import pytest
from crew_wire import INPUTS, raw

from benchmarks.crewai_workloads import CrewModel, agents, crew, tasks
from cacheprefix import Caching, Session
from cacheprefix.server import Reply, SimulatedProvider
from cacheprefix_crewai import install


@pytest.fixture
def kickoffs(servers, new_llm):
    """``kickoffs(session, n)``: the bodies of each of n kickoffs of one crew."""

    def run(session=None, times=1):
        provider = servers("openai", CrewModel())
        who = agents(lambda: new_llm(provider))
        made, found = crew(who, tasks(who)), []
        if session is not None:
            install(made, session)
        for _ in range(times):
            provider.requests.clear()
            made.kickoff(inputs=INPUTS)
            # The simulated provider numbers calls by all that it was asked.
            found.append([re.sub(rb"call_[0-9a-f]{24}", b"call", body) for body in raw(provider)])
        return found

    return run


def test_off_touches_and_sees_nothing(kickoffs, monkeypatch):
    """The wire has the application's own bytes, and the session no call."""
    monkeypatch.setenv("CACHEPREFIX_MODE", "off")
    session = Session()
    assert kickoffs(session) == kickoffs()
    assert session.calls == ()


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_kickoffs_outside_of_the_share_keep_every_byte(kickoffs, share):
    """A crew that runs again and again: each kickoff is in one arm, whatever the ones before it were."""
    session = Session(caching=Caching(fork_share=share))
    plain, sent = kickoffs(None, 6), kickoffs(session, 6)
    calls = list(session.calls)
    arms = []
    for mine, own in zip(sent, plain, strict=True):
        now, calls = calls[: len(mine)], calls[len(mine) :]
        (arm,) = {session.adapter.shared.arms.arm("", call.conversation) for call in now}
        assert {call.reasons[-1].why == "not_in_fork_share" for call in now} == {arm == "own"}
        assert (mine == own) == (arm == "own")
        arms.append(arm)
    assert share or set(arms) == {"own"}
    assert session.report().arms.own.conversations == arms.count("own")


@pytest.mark.slow
def test_a_role_that_a_guard_returns_says_so_where_its_task_was_left_alone_before(new_llm):
    """The provider keeps nothing, whatever its rules promise, so that others' tools are paid for in full each time."""
    with SimulatedProvider("openai", lambda request: Reply("Final Answer: done"), capacity_tokens=1) as provider:
        who = agents(lambda: new_llm(provider), own_tools=True)
        made = crew(who, tasks(who))
        session = Session(caching=Caching(fork_share=0.5))
        install(made, session)
        for _ in range(60):
            made.kickoff(inputs=INPUTS)
    arms = session.adapter.shared.arms
    for call in session.calls:
        outside = arms.arm("", call.conversation) == "own"
        assert (call.reasons[-1].why == "not_in_fork_share") == outside
    assert "dearer_as_fork" in {call.reasons[-1].why for call in session.calls}
