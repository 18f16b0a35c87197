"""A prompt that waits for a person is read before it expires, as far as that is worth its money."""

import asyncio
import time

import anthropic
import pytest

from cacheprefix import Caching, KeepAlive, Session
from cacheprefix.errors import SetupError
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import SimulatedProvider

BODY = {
    "model": "claude-opus-4-1",
    "max_tokens": 100,
    "system": [{"type": "text", "text": "A rule. " * 3_000, "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": "May I?"}],
}


class World:
    """A provider, a client and a session by one clock."""

    def __init__(self, provider, now):
        self.provider, self.now = provider, now
        self.client = anthropic.Anthropic(base_url=provider.anthropic_base_url, api_key="k", max_retries=0)
        self.session = Session(caching=Caching(counter=ESTIMATE, clock=lambda: now[0]))

    def send(self, body):
        return self.client.messages.create(**body)

    def keeper(self, send=None, **allowed):
        return self.session.keep_alive(body=BODY, api="anthropic", send=send or self.send, keep=KeepAlive(**allowed))

    def wait(self, keeper, seconds):
        """Let time pass, with the reads that are due."""
        ends = self.now[0] + seconds
        while (left := keeper.due()) is not None and self.now[0] + left < ends:
            self.now[0] += left
            keeper.keep()
        self.now[0] = ends


@pytest.fixture
def world():
    """A world whose time stands still."""
    now = [1_000_000.0]
    with SimulatedProvider("anthropic", clock=lambda: now[0]) as provider:
        world = World(provider, now)
        world.send(BODY)
        yield world


def test_a_pause_of_twenty_minutes_is_read_through(world):
    """Each read comes before the five minutes are over, leaves no trace, and the next request reads the prompt."""
    keeper = world.keeper()
    world.wait(keeper, 20 * 60)
    world.send(BODY)
    assert keeper.reads == 4
    assert all(record.outcome.read_tokens > 5_000 for record in world.provider.requests[1:])
    assert {call.agent for call in world.session.calls} == {"keep-alive"}
    assert keeper.units < keeper.bound


def test_what_represents_it_holds_no_text(world):
    """Debuggers and logs show representations."""
    assert "A rule. A rule." not in repr(world.keeper())


@pytest.mark.parametrize(("allowed", "reads"), [({}, 11), ({"max_units": 1_300.0}, 2), ({"max_usd": 0.0}, 0)])
def test_no_more_is_spent_than_is_allowed(world, allowed, reads):
    """By default as much as writing it anew would cost more than reading it; then it is let go, and says why."""
    keeper = world.keeper(**allowed)
    world.wait(keeper, 100 * 60)
    assert keeper.reads == reads
    assert keeper.units <= keeper.bound
    assert "another read would cost more" in keeper.stopped


@pytest.mark.parametrize("awaited", [False, True])
def test_a_failure_ends_it_and_is_counted(world, awaited):
    """The application hears of nothing, and the session's failures do."""

    def send(body):
        raise RuntimeError("gone")

    async def asend(body):
        raise RuntimeError("gone")

    keeper = world.keeper(asend if awaited else send)
    with pytest.warns(match="keep-alive"):
        if awaited:
            world.now[0] += keeper.due()
            assert not asyncio.run(keeper.akeep())
        else:
            world.wait(keeper, 20 * 60)
    assert (keeper.reads, keeper.stopped) == (0, "the read failed")
    assert world.session.failures == {"keep-alive": 1}


def test_a_block_that_ends_takes_no_cancellation_for_its_own(world):
    """Who is cancelled while a slow read is given up is cancelled."""

    async def paused():
        reading, ends = asyncio.Event(), asyncio.Event()

        async def stubborn(body):
            reading.set()
            try:
                await asyncio.sleep(60)
            finally:
                await ends.wait()

        async def pause():
            keeper = world.keeper(stubborn)
            world.now[0] += 280.0
            async with keeper:
                await reading.wait()
            return "went on"

        task = asyncio.create_task(pause())
        await reading.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        ends.set()
        return await asyncio.wait({task}), task

    _, task = asyncio.run(paused())
    assert task.cancelled()


def test_a_clock_that_fails_ends_the_reads_and_not_the_application(world):
    """What stands in the block goes on, and the failure is counted."""

    async def paused():
        keeper = world.keeper(world.send)

        def broken():
            raise RuntimeError("no time")

        keeper.clock = broken
        async with keeper:
            await asyncio.sleep(0.01)
        return keeper

    with pytest.warns(match="keep-alive"):
        keeper = asyncio.run(paused())
    assert keeper.reads == 0
    assert world.session.failures == {"keep-alive": 1}


def test_a_block_keeps_it_while_it_lasts(world):
    """In a thread, or in a task where sending is awaited; nothing is sent behind the block."""
    sent, came = [], asyncio.Event()

    async def asend(body):
        sent.append(body)
        answer = await asyncio.to_thread(world.send, body)
        came.set()
        return answer

    keeper = world.keeper()
    world.now[0] += 280.0
    with keeper:
        for _ in range(3_000):
            if keeper.reads:
                break
            time.sleep(0.01)
    assert keeper.reads == 1
    assert keeper.due() is None
    before = len(world.provider.requests)
    keeper2 = world.keeper(asend)
    world.now[0] += 280.0

    async def kept():
        async with keeper2:
            await asyncio.wait_for(came.wait(), 30)
            await asyncio.sleep(0.05)

    asyncio.run(kept())
    assert len(world.provider.requests) == before + 1 == before + len(sent)


def test_what_cannot_be_kept_says_so(world):
    """A short prompt, and a bound that makes no sense."""
    short = {**BODY, "system": "Be brief."}
    keeper = world.session.keep_alive(body=short, api="anthropic", send=world.send)
    assert keeper.due() is None
    assert "fewer than" in keeper.stopped
    with pytest.raises(SetupError, match="max_units"):
        KeepAlive(max_units=-1)
