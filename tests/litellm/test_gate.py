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
@pytest.mark.parametrize("vendor", tuple(MODELS))
def test_a_sibling_whose_answer_is_whole_follows_one_that_streams(vendor):
    """What a stream asks with for its usage is no part of the prompt, whoever serves the model."""

    async def asked(provider):
        ask = wrap(litellm.acompletion, Session(SharedPrefix(system=HANDBOOK), gate=Gate(limit=600.0, price=0.0)))

        async def one(name, **options):
            with role(name):
                sent = {"model": MODELS[vendor], "messages": messages(name), **place(vendor, provider)}
                return await ask(**sent, **options)

        async def leader():
            assert [chunk async for chunk in await one("planner", stream=True)]

        leading = asyncio.create_task(leader())
        while not provider.requests:  # noqa: ASYNC110 - nothing tells when a request has come
            await asyncio.sleep(0.01)
        await asyncio.gather(leading, one("critic", user="anna"))

    rules = {"openai": "openai-5.6"}.get(vendor, vendor)
    with SimulatedProvider(rules, latency=Latency(base=1.5, output=0.0, scale=1.0)) as provider:
        asyncio.run(asked(provider))
        first, second = sorted(provider.requests, key=lambda record: record.started_at)
        assert not first.outcome.read_tokens
        assert second.outcome.read_tokens > 1_000


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
