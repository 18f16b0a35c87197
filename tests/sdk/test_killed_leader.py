"""A leader in another process, with the lease that the library gives: killed, and alive for longer than that."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import leading_worker
import pytest
from sdk_driver import make_client

from cacheprefix.layout import store_gate
from cacheprefix.server import Latency, SimulatedProvider
from cacheprefix.stores.lease import LEASE_SECONDS
from cacheprefix_sdk import role, wrap

PATIENCE = 120
SLACK = LEASE_SECONDS / 4
"""Seconds beyond its lease: the last look comes up to an eighth of a second late, the rest is a busy machine's."""


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """The worker's module sets it too."""
    monkeypatch.setattr(store_gate, "CALL_SECONDS", 30.0)


@pytest.fixture
def provider():
    """Anthropic's rules: an entry can be read once the first answer has begun."""
    with SimulatedProvider("anthropic") as made:
        yield made


@pytest.fixture
def lead(provider, where):
    """``lead(seconds, way)``: a process that leads, whose answer begins after so many seconds."""
    with ExitStack() as stack:

        def start(seconds, way):
            # The scale stays the same: it is read again when the request is in the log already.
            provider.simulator.latency = Latency(base=seconds, uncached=0, cached=0, output=0, scale=1)
            command = [sys.executable, leading_worker.__file__, provider.url, where, way]
            process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})

            def end():
                process.kill()
                process.wait(PATIENCE)

            stack.callback(end)
            until(lambda: process.poll() is not None or any(one.modelled_ttft for one in provider.requests))
            assert process.poll() is None, "the leader ended before its answer"
            provider.simulator.latency = Latency(base=0, uncached=0, cached=0, output=0, scale=1)
            return process

        yield start


@pytest.fixture
def sibling(where, provider):
    """``sibling(later)``: a session of this process, and a function that asks one request of it."""
    with ExitStack() as stack:

        def make(*, later=False):
            session, store = leading_worker.session_on(where)
            stack.callback(store.close)

            async def aask():
                async with make_client("anthropic", provider, later=True) as plain:
                    with role("sibling"):
                        return await wrap(plain, session).messages.create(**leading_worker.asked(stream=False))

            def ask():
                if later:
                    return asyncio.run(aask())
                with make_client("anthropic", provider) as plain, role("sibling"):
                    return wrap(plain, session).messages.create(**leading_worker.asked(stream=False))

            return session, store, ask

        yield make


def until(true):
    """Wait for something that nothing tells."""
    ends = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.01)


def kill(process):
    """As the system does that has no memory left."""
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(PATIENCE) == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize(("way", "later"), [("whole", False), ("stream", True)], ids=["sync", "async"])
def test_siblings_of_a_killed_process_go_on_within_its_lease(provider, lead, sibling, way, later):
    """They wait for what is left of it, and the next cold start of the same prefix waits for nobody."""
    assert LEASE_SECONDS <= 2
    leader = lead(PATIENCE, way)
    session, store, ask = sibling(later=later)
    keys, acquire = [], store.acquire

    def noting(key, *rest):
        keys.append(key)
        return acquire(key, *rest)

    store.acquire = noting
    with ThreadPoolExecutor(1) as pool:
        came = time.monotonic()
        asking = pool.submit(ask)
        until(lambda: len(keys) > 3)
        (open_one,) = provider.requests
        assert open_one.first_token_at is None
        kill(leader)
        before = time.monotonic() - came
        assert asking.result(PATIENCE).usage.cache_creation_input_tokens > 1_000
    used = session.report().gate
    assert used.led == 1
    assert used.gave_up == used.followed == 0
    assert used.seconds <= before + LEASE_SECONDS + SLACK
    # The prefix is cold again, as when the provider has dropped it, for a process that knows nothing.
    until(lambda: store.get(keys[0]) is not None)
    store.delete(keys[0])
    provider.reset()
    fresh, _, again = sibling(later=later)
    assert again().usage.cache_creation_input_tokens > 1_000
    assert fresh.report().gate.led == 1
    assert fresh.report().gate.seconds < LEASE_SECONDS / 2
    assert not session.failures
    assert not fresh.failures


@pytest.mark.slow
def test_who_comes_after_the_leader_was_killed_waits_for_no_more_than_its_lease(lead, sibling):
    """All that it waits is of the lease."""
    kill(lead(PATIENCE, "stream"))
    session, store, ask = sibling()
    told, put = [], store.set
    store.set = lambda *given: told.append(put(*given))
    assert ask().content
    used = session.report().gate
    until(lambda: told)
    assert used.led == 1
    assert used.seconds <= LEASE_SECONDS + SLACK
    assert not session.failures


@pytest.mark.slow
@pytest.mark.parametrize("way", ["whole", "stream"])
def test_a_leader_that_lives_keeps_its_lease_for_as_long_as_its_answer_takes(provider, lead, sibling, way):
    """Twice the lease and more: its sibling waits all that time, and then reads what it wrote."""
    leader = lead(2.5 * LEASE_SECONDS, way)
    session, _, ask = sibling()
    assert ask().usage.cache_read_input_tokens > 1_000
    used = session.report().gate
    assert (used.led, used.followed) == (0, 1)
    assert used.seconds > LEASE_SECONDS
    assert leader.wait(PATIENCE) == 0
    assert len(provider.requests) == 2
    assert not session.failures
