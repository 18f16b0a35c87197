"""The session's gate and its life, where agents of the Agents SDK ask in it."""

from __future__ import annotations

import asyncio

import pytest
from agents import Agent, Runner
from agents_driver import HANDBOOK, model_for

from cacheprefix import Gate, Session, SharedPrefix
from cacheprefix.server import Latency, SimulatedProvider
from cacheprefix_openai_agents import wrap
from tests.dropping import check_dropped


def team_of(model):
    """Two agents on one handbook."""
    told = {name: f"You are the {name}.\n\n{HANDBOOK}" for name in ("planner", "critic")}
    return [Agent(name, instructions=text, model=model) for name, text in told.items()]


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "waits"), [(0.1, False), (600.0, True)])
def test_a_sibling_waits_no_longer_than_the_gates_limit(limit, waits):
    """Behind a leader that takes longer it goes on; with a limit that is long it waits for the answer."""

    async def asked(provider):
        session = Session(SharedPrefix(system=HANDBOOK), gate=Gate(limit=limit, price=0.0))
        model = model_for("openai-responses", provider)
        team = [wrap(one, session) for one in team_of(model)]
        await asyncio.gather(*(Runner.run(one, "What now?") for one in team))
        await model._client.close()

    with SimulatedProvider("openai-5.6", latency=Latency(base=2.5, output=0.0, scale=1.0)) as provider:
        asyncio.run(asked(provider))
        first, second = sorted(provider.requests, key=lambda record: record.started_at)
        assert (second.started_at >= first.ended_at) == waits


@pytest.mark.slow
def test_sessions_that_are_dropped_leave_nothing():
    """Two agents in each, on a model that all share."""

    async def asked(provider):
        model = model_for("openai-responses", provider)
        loop = asyncio.get_running_loop()

        def use(session, asks):
            team = [wrap(one, session) for one in team_of(model)]
            for one in team if asks else ():
                asyncio.run_coroutine_threadsafe(Runner.run(one, "What now?"), loop).result(60)
            provider.reset()

        await asyncio.to_thread(check_dropped, use)
        await model._client.close()

    with SimulatedProvider("openai-5.6") as provider:
        asyncio.run(asked(provider))
