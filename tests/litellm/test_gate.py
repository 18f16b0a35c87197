"""The session's gate and its life, where LiteLLM's functions and routers ask in it."""

from __future__ import annotations

import asyncio

import litellm
import pytest
from litellm_driver import HANDBOOK, MODELS, messages, place, router_for

from cacheprefix import Gate, Session, SharedPrefix
from cacheprefix.server import Latency, SimulatedProvider
from cacheprefix_litellm import role, unwrap, wrap
from tests.dropping import check_dropped


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "waits"), [(0.1, False), (600.0, True)])
def test_a_sibling_waits_no_longer_than_the_gates_limit(limit, waits):
    """Behind a leader that takes longer it goes on; with a limit that is long it waits for the answer."""

    async def asked(provider):
        ask = wrap(litellm.acompletion, Session(SharedPrefix(system=HANDBOOK), gate=Gate(limit=limit, price=0.0)))

        async def one(name):
            with role(name):
                return await ask(model=MODELS["openai"], messages=messages(name), **place("openai", provider))

        await asyncio.gather(one("planner"), one("critic"))

    with SimulatedProvider("openai-5.6", latency=Latency(base=2.5, output=0.0, scale=1.0)) as provider:
        asyncio.run(asked(provider))
        first, second = sorted(provider.requests, key=lambda record: record.started_at)
        assert (second.started_at >= first.ended_at) == waits


@pytest.mark.slow
def test_sessions_that_are_dropped_leave_nothing():
    """A function, and a router that the next one is asked by."""
    with SimulatedProvider("openai-5.6") as provider:
        own = router_for(("openai", provider))

        def asked(ask, router):
            with role("critic"):
                ask(model=MODELS["openai"], messages=messages("critic"), **place("openai", provider))
                router.completion(model="openai", messages=messages("critic"))
            provider.reset()

        def use(session, asks):
            ask, router = wrap(litellm.completion, session), wrap(own, session)
            if asks:
                asked(ask, router)
            unwrap(router)

        # LiteLLM holds something of each request for itself.
        check_dropped(use, lambda: asked(litellm.completion, own))
