"""The gate: one leader, the rest behind it where that pays, nobody stuck, and nothing left of a leader that is gone."""

import asyncio
import gc
import itertools
import threading
import time
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheprefix import Caching, Gate, Session, SharedPrefix
from cacheprefix.adapter import Request
from cacheprefix.calls.gating import Gating
from cacheprefix.effects import Until, adrive, drive
from cacheprefix.layout import Pace, Pass, ProcessGate, StoreGate, Worth
from cacheprefix.stores import MemoryStore


def run_threads(count, work):
    """Start threads."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_followers_wait_for_the_leader_and_then_all_go():
    """Fifteen threads arrive and stay until the leader's first token."""
    gate = ProcessGate()
    leader = drive(gate.entering(b"k"))
    assert leader.leader
    through = []
    waiting = threading.Barrier(16)

    def follow(number):
        waiting.wait(5)
        through.append(number)
        drive(gate.entering(b"k"))
        through.append(number)

    threads = run_threads(15, follow)
    waiting.wait(5)
    while len(through) < 15:
        time.sleep(0.001)
    assert len(through) == 15
    leader.release(ok=True)
    for thread in threads:
        thread.join(5)
    assert len(through) == 30


def test_when_the_leader_fails_the_next_one_leads():
    """Failure is passed on to exactly one of the waiting."""
    gate = ProcessGate()
    leader = drive(gate.entering(b"k"))
    seen = []
    entered = threading.Event()

    def follow(number):
        entered.set()
        mine = drive(gate.entering(b"k"))
        seen.append(mine.leader)
        mine.release(ok=True)

    (thread,) = run_threads(1, follow)
    entered.wait(5)
    leader.release(ok=False)
    thread.join(5)
    assert seen == [True]


def test_waiting_is_bounded():
    """A leader that hangs holds nobody for longer than the limit."""
    gate = ProcessGate(limit=0.05)
    leader = drive(gate.entering(b"k"))
    assert not drive(gate.entering(b"k")).leader
    leader.release(ok=True)


def test_keys_do_not_wait_for_each_other():
    """Another prefix has its own leader."""
    gate = ProcessGate()
    assert drive(gate.entering(b"a")).leader
    assert drive(gate.entering(b"b")).leader


def test_a_pass_is_released_once():
    """First token, end and failure may all report; the first counts."""
    gate = ProcessGate()
    leader = drive(gate.entering(b"k"))
    leader.release(ok=True)
    second = drive(gate.entering(b"k"))
    leader.release(ok=False)
    assert second.leader
    assert not leader.leader


def test_tasks_wait_without_blocking_the_loop_and_a_cancelled_one_frees_nobody_early():
    """The loop goes on while tasks wait; cancelling a follower does not release the others."""

    async def go():
        gate = ProcessGate()
        leader = await adrive(gate.entering(b"k"))
        tasks = [asyncio.create_task(adrive(gate.entering(b"k"))) for _ in range(10)]
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in tasks)
        tasks[0].cancel()
        await asyncio.sleep(0.01)
        assert sum(task.done() for task in tasks) == 1
        leader.release(ok=True)
        done = await asyncio.gather(*tasks[1:])
        return [mine.leader for mine in done]

    assert asyncio.run(go()) == [False] * 9


# ------------------------------------------------------------------ a leader that is gone


def test_a_pass_that_nobody_holds_any_more_frees_those_who_wait():
    """Whatever way a leader is lost in its own process, the next one leads, at once."""
    gate = ProcessGate(limit=600.0)
    leader = drive(gate.entering(b"k"))
    found = []
    (thread,) = run_threads(1, lambda _: found.append(drive(gate.entering(b"k")).leader))
    while not leader.awaited:
        time.sleep(0.001)
    del leader
    gc.collect()
    thread.join(30)
    assert found == [True]


async def test_a_cancelled_leader_frees_those_who_wait():
    """A task that holds a pass is cancelled, and so is one that is itself waiting for the lead."""
    gate = ProcessGate(limit=600.0)

    async def lead():
        held = await adrive(gate.entering(b"k"))
        await asyncio.get_running_loop().create_future()
        held.release(ok=True)

    leading = asyncio.create_task(lead())
    await asyncio.sleep(0)
    waiting = asyncio.create_task(adrive(gate.entering(b"k")))
    await asyncio.sleep(0)
    leading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leading
    del leading
    gc.collect()
    assert (await asyncio.wait_for(waiting, 30)).leader


def test_a_leader_of_whom_nothing_is_heard_is_given_up():
    """Those who come later do not wait for it again: the next one leads, and its end does not disturb the new one."""
    now = [0.0]
    gate = ProcessGate(limit=10.0, clock=lambda: now[0])
    lost = drive(gate.entering(b"k"))
    now[0] = 10.5
    second = drive(gate.entering(b"k"))
    assert second.leader
    lost.release(ok=False)
    assert len(gate._flights) == 1
    second.release(ok=True)
    assert not gate._flights


@pytest.mark.parametrize("before", [True, False], ids=["already", "later"])
def test_a_leader_whose_answer_rests_unread_is_given_up(before):
    """Of those who wait, one leads in its place; what the first one still does changes nothing for them."""
    gate = ProcessGate(limit=600)
    leader = drive(gate.entering(b"k"))
    passes = []
    if before:
        leader.rests()
    threads = run_threads(3, lambda _: passes.append(drive(gate.entering(b"k"))))
    leader.rests()
    while sum(each.leader for each in passes) != 1:
        time.sleep(0.01)
    leader.reads()
    leader.release(ok=True)
    assert len(passes) == 1
    while passes[0].awaited != 2:
        time.sleep(0.01)
    passes[0].release(ok=True)
    for thread in threads:
        thread.join(60)
    assert [each.followed for each in passes] == [False, True, True]
    assert not gate._flights


async def test_tasks_give_a_leader_up_whose_answer_rests_unread():
    """As threads do."""
    gate = ProcessGate(limit=600)
    leader = await adrive(gate.entering(b"k"))
    waiting = asyncio.create_task(adrive(gate.entering(b"k")))
    await asyncio.sleep(0)
    leader.rests()
    assert (await asyncio.wait_for(waiting, 60)).leader


def test_a_leader_that_is_read_again_in_time_is_waited_for():
    """A reader may take a while with what came, but not for long."""
    gate = ProcessGate(limit=600)
    leader = drive(gate.entering(b"k"))
    (thread,) = run_threads(1, lambda _: drive(gate.entering(b"k")))
    for _ in range(10):
        leader.rests()
        leader.reads()
    time.sleep(0.2)
    assert thread.is_alive()
    leader.release(ok=True)
    thread.join(60)


def test_a_pass_says_how_many_wait():
    """An adapter streams a leader only for somebody."""
    gate = ProcessGate()
    leader = drive(gate.entering(b"k"))
    assert leader.awaited == 0
    threads = run_threads(3, lambda _: drive(gate.entering(b"k")))
    while leader.awaited < 3:
        time.sleep(0.001)
    leader.release(ok=True)
    for thread in threads:
        thread.join(30)
    assert leader.awaited == 0


# ------------------------------------------------------------------ for whom a leader is streamed


def test_a_leader_finds_out_whether_somebody_comes():
    """Nobody at first; then one who waits, or came and was not willing to."""
    gate = ProcessGate()
    leader = drive(gate.entering(b"k", Worth(2.0, usual=1.0)))
    assert not leader.joined(0.001)
    drive(gate.entering(b"k", Worth(0.0)))
    assert leader.joined(0.001)
    leader.release(ok=True)
    assert not leader.joined(0.001)


async def test_a_task_finds_out_whether_somebody_comes():
    """One who comes while it looks wakes it."""
    gate = ProcessGate()
    leader = await adrive(gate.entering(b"k"))
    assert not await adrive(leader.joining(0.001))
    looking = asyncio.create_task(adrive(leader.joining(60.0)))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(adrive(gate.entering(b"k")))
    assert await asyncio.wait_for(looking, 30)
    leader.release(ok=True)
    assert (await waiting).followed


def test_those_who_come_to_a_leader_that_is_not_streamed_go_by_whole_answers():
    """Its first token lets nobody go, so those for whom that is too long go at once."""
    gate = ProcessGate()
    alone = drive(gate.entering(b"alone", Worth(2.0, usual=1.0)))
    assert alone.goes_whole(30.0)
    late = drive(gate.entering(b"alone", Worth(2.0, usual=1.0)))
    assert (late.leader, late.waited < 1.0, late.followed) == (False, True, False)
    followed = drive(gate.entering(b"followed", Worth(2.0, usual=1.0)))
    drive(gate.entering(b"followed", Worth(0.0)))
    assert not followed.goes_whole(30.0)
    assert followed.flight.worth.streams


def test_a_session_streams_leaders_for_those_who_came_the_last_time():
    """An agent whose siblings come late, behind work of their own, is expected to have them again."""
    session = Session(SharedPrefix(system="x"), gate=Gate(price=0.0))
    body = {"model": "gpt-5.6", "messages": [{"role": "user", "content": "word " * 4000}]}
    found = []
    for number, comes in enumerate((False, True, False, False)):
        key = f"{number}".encode()
        leader = session.adapter.waiting.follow((key, Worth(2.0, usual=1.0)))
        found.append(session.adapter.waiting.followed(leader, "worker", "gpt-5.6"))
        if comes:
            session.adapter.waiting.follow((key, Worth(0.0)))
        turn = session.adapter.begin(Request(body, "openai-chat", agent="worker", conversation="c", boundary=1), leader)
        turn.finish(None)
    assert found == [False, False, True, False]


def test_a_leader_of_several_processes_is_streamed():
    """Its siblings cannot be seen from here; a store was given because there are some."""
    session = Session(gate=Gate(price=0.0, store=MemoryStore()))
    waiting = session.adapter.waiting
    assert waiting.followed(waiting.follow((b"k", Worth(2.0, usual=1.0))), "worker", "gpt-5.6")


@pytest.mark.parametrize("processes", [False, True])
async def test_a_thread_that_runs_a_loop_waits_for_nobody(processes):
    """The leader may be a task of that very loop: a model that is asked there without awaiting it goes at once."""
    gate = StoreGate(MemoryStore(), 30, failed=print) if processes else ProcessGate(30)
    leader = await adrive(gate.entering(b"k"))
    began = time.monotonic()
    assert not drive(gate.entering(b"k")).leader
    leader.release(ok=True)
    alone = drive(gate.entering(b"other"))
    assert alone.leader
    assert not alone.joined(30)
    assert time.monotonic() - began < 3


async def test_a_loop_that_has_ended_is_not_woken(caplog):
    """Its follower gave up and is gone when the leader goes on."""
    gate = ProcessGate(limit=0.01)
    leader = drive(gate.entering(b"k"))
    thread = threading.Thread(target=lambda: asyncio.run(adrive(gate.entering(b"k"))))
    thread.start()
    thread.join(30)
    leader.release(ok=True)
    assert not caplog.records


# ------------------------------------------------------------------ where waiting pays


def test_nobody_waits_for_a_leader_that_takes_longer_than_it_saves():
    """A whole answer of five seconds is not waited for where two seconds would pay; one of one second is."""
    now = [0.0]
    gate = ProcessGate(clock=lambda: now[0])
    slow, quick = Worth(2.0, usual=5.0, streams=False), Worth(2.0, usual=1.0, streams=False)
    leader = drive(gate.entering(b"slow", slow))
    found = drive(gate.entering(b"slow", slow))
    assert (found.leader, found.followed, found.waited) == (False, False, 0.0)
    now[0] = 3.5
    # What is left of it may pay.
    assert slow.left(3.5) == 2.0
    assert quick.left() == 2.0
    leader.release(ok=True)


@given(
    seconds=st.floats(0, 100),
    usual=st.none() | st.floats(0, 100),
    streams=st.booleans(),
    under_way=st.floats(0, 200),
)
def test_waiting_is_never_expected_to_take_longer_than_it_pays(seconds, usual, streams, under_way):
    """R = t - e before the leader is due, R = e behind that, and R <= W or nobody waits for more than a look."""
    left = Worth(seconds, usual, streams).left(under_way)
    assert left <= seconds
    if usual is None and streams:
        usual = 0.5
    expected = inf if usual is None else under_way if under_way >= usual else usual - under_way
    assert left == seconds if expected <= seconds else left <= 0.25


def test_a_price_of_nothing_waits_as_long_as_the_gate_allows():
    """For those whose time costs nothing."""
    assert Worth.of(tokens=2_000, per_token=0.9, price=0.0) == inf
    assert Worth(inf, usual=100.0).left() == inf
    assert Worth.of(tokens=4_000, per_token=1.15, price=4_000.0) == pytest.approx(1.15 + 0.4)


def test_the_pace_is_the_median_of_the_latest():
    """One answer that hangs changes nothing; a model that became slower is known after some."""
    pace = Pace()
    assert pace.usual("m", streamed=True) is None
    for seconds in (1.0, 1.2, 60.0):
        pace.took("m", seconds, streamed=True)
    assert pace.usual("m", streamed=True) == 1.2
    assert pace.usual("m", streamed=False) is None
    for _ in range(16):
        pace.took("m", 3.0, streamed=True)
    assert pace.usual("m", streamed=True) == 3.0


BODY = {
    "model": "claude-sonnet-4-6",
    "max_tokens": 9,
    "system": "The handbook says that every statement needs a source. " * 400,
    "messages": [{"role": "user", "content": "hello"}],
}


def asked(session, *, streams, seconds):
    """A request that was answered, in so many seconds."""
    turn = session.adapter.begin(
        Request(BODY, "anthropic", boundary=1), session.adapter.waiting.queue(BODY, "anthropic", boundary=1)
    )
    time.sleep(seconds)
    if streams:
        turn.first_token()
    turn.finish({"input_tokens": 10, "output_tokens": 1, "cache_read_input_tokens": 4_000})


def test_a_session_knows_how_long_its_models_take():
    """Whole answers and first tokens apart; what was measured decides who waits."""
    now = [0.0]
    session = Session(SharedPrefix(system=BODY["system"]), caching=Caching(clock=lambda: now[0]))
    pace = session.adapter.shared.gating.pace
    asked(session, streams=True, seconds=0.02)
    assert pace.usual(BODY["model"], streamed=True) >= 0.02
    assert pace.usual(BODY["model"], streamed=False) is None
    asked(session, streams=False, seconds=0.02)
    assert pace.usual(BODY["model"], streamed=False) >= 0.02
    for _ in range(16):
        pace.took(BODY["model"], 60.0, streamed=False)
    now[0] = 3_600.0
    leader = session.adapter.waiting.queue(BODY, "anthropic", boundary=1)
    assert leader.leader
    assert session.adapter.waiting.queue(BODY, "anthropic", boundary=1).waited == 0
    assert session.report().gate.at_once == 1
    leader.release(ok=False)


def test_the_report_says_what_waiting_cost_and_saved():
    """In seconds and in cost units, by what the provider reported."""
    now = [0.0]
    session = Session(SharedPrefix(system=BODY["system"]), caching=Caching(clock=lambda: now[0]), gate=Gate(price=0.0))
    assert session.report().gate is None
    leader = session.adapter.waiting.queue(BODY, "anthropic", boundary=1)
    (thread,) = run_threads(1, lambda _: asked(session, streams=False, seconds=0.0))
    while not leader.awaited:
        time.sleep(0.001)
    time.sleep(0.01)
    leader.release(ok=True)
    thread.join(30)
    use = session.report().gate
    assert (use.led, use.followed, use.gave_up, use.at_once) == (1, 1, 0, 0)
    assert use.seconds >= 0.01
    worth = session.adapter.waiting.worth(BODY["model"], "anthropic", cold=4_000)
    assert use.saved_units == pytest.approx(worth.saved(4_000))
    assert use.saved_units > 4_000
    assert "gate: 1 requests followed a sibling" in str(session.report())
    assert session.report().as_dict()["gate"]["followed"] == 1


@pytest.mark.parametrize("end", ["answered", "freed before", "failed"])
def test_the_report_names_who_went_ahead_however_that_one_ended(end):
    """Also where an adapter lets siblings go before it tells the end, and where they waited in vain for a failure."""
    limit = 0.1 if end == "failed" else 60.0
    session = Session(SharedPrefix(system=BODY["system"]), gate=Gate(limit, price=0.0))
    leader = session.adapter.waiting.queue(BODY, "anthropic", boundary=1)
    turn = session.adapter.begin(Request(BODY, "anthropic", agent="writer", boundary=1), leader)
    (thread,) = run_threads(1, lambda _: asked(session, streams=False, seconds=0.0))
    while not leader.awaited:
        time.sleep(0.001)
    if end == "failed":
        thread.join(30)
        turn.fail()
    else:
        if end == "freed before":
            leader.release(ok=True)
        turn.finish({"input_tokens": 10, "output_tokens": 1})
        thread.join(30)
    (fan_out,) = session.report().gate.fan_outs
    assert (fan_out.leader, fan_out.followed, fan_out.gave_up) == ("writer", end != "failed", end == "failed")


def test_the_report_names_who_wrote_what_all_share_and_not_who_leads_one_conversation_behind_it():
    """A request of another conversation follows for the handbook, and leads only those that share its history too."""
    session = Session(SharedPrefix(system=BODY["system"]), gate=Gate(60.0, price=0.0))
    waiting = session.adapter.waiting

    def ask(agent, said):
        body = {**BODY, "messages": [{"role": "user", "content": said}]}
        leave = waiting.queue(body, "anthropic", boundary=2)
        return leave, session.adapter.begin(Request(body, "anthropic", agent=agent, boundary=2), leave)

    leader, turn = ask("writer", "a")
    behind = []
    (thread,) = run_threads(1, lambda _: behind.append(ask("critic", "b")))
    while not leader.awaited:
        time.sleep(0.001)
    turn.finish({"input_tokens": 10, "output_tokens": 1})
    thread.join(30)
    ((leave, later),) = behind
    assert leave.leader
    later.finish({"input_tokens": 10, "output_tokens": 1})
    (fan_out,) = session.report().gate.fan_outs
    assert (fan_out.leader, fan_out.followed) == ("writer", 1)


def test_short_parts_and_providers_that_share_anyway_are_not_waited_for():
    """Below 1,024 cold tokens, on engines, and where nothing is cached."""
    session = Session()
    assert session.adapter.waiting.worth("claude-sonnet-4-6", "anthropic", cold=1_000) is None
    found = session.adapter.waiting.worth("claude-sonnet-4-6", "anthropic", cold=2_000)
    assert found.seconds == pytest.approx(2_000 * (1.15 / 4_000 + 0.0001))
    shares = Session(caching=Caching(provider="vllm")).adapter.waiting
    assert shares.worth("some-model", "openai-chat", cold=50_000) is None


SAID = [{"role": "user", "content": "What is next?"}, {"role": "user", "content": "And then?"}]
MARKED = {"type": "text", "text": BODY["system"], "cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    ("api", "body", "other", "waits"),
    [
        # What is not marked is not kept; behind the application's own mark nothing is.
        ("anthropic", {"model": BODY["model"], "system": BODY["system"]}, 1, False),
        ("anthropic", {"model": BODY["model"], "system": [MARKED]}, 1, True),
        # All is kept in blocks: who asks something else reads what both begin with.
        ("openai-chat", {"model": "gpt-4o"}, 1, True),
        # Only whole requests are kept.
        ("openai-chat", {"model": "gpt-5.6"}, 1, False),
        ("openai-chat", {"model": "gpt-5.6"}, 0, True),
    ],
)
def test_in_its_own_layout_a_request_waits_for_what_the_provider_keeps_of_another(api, body, other, waits):
    """Without a boundary, which only forks have. The second is asked while the first is on its way."""
    session = Session(SharedPrefix(system="Short."), gate=Gate(limit=0.05, price=0.0))
    system = [] if api == "anthropic" else [{"role": "system", "content": BODY["system"]}]
    bodies = [{**body, "messages": [*system, SAID[at]]} for at in (0, other)]
    passes = [session.adapter.waiting.queue(one, api, boundary=None) for one in bodies]
    assert [one.waited >= 0.05 for one in passes] == [False, waits]
    for one in passes:
        one.release(ok=False)


def test_nobody_waits_for_a_leader_whose_loop_stands_still():
    """A task that was left behind by ``run_until_complete`` goes on when the loop is run again, if ever."""
    gate, loop = ProcessGate(limit=30), asyncio.new_event_loop()

    async def leads():
        return await adrive(gate.entering(b"k"))

    try:
        leave = loop.run_until_complete(leads())
        assert leave.leader
        began = time.monotonic()
        assert drive(gate.entering(b"k")).leader
        assert asyncio.run(leads()).leader
        assert time.monotonic() - began < 10
        leave.release(ok=True)
    finally:
        loop.close()


@pytest.mark.parametrize("steps", range(4))
async def test_a_follower_that_is_cancelled_as_its_leader_lands_goes_no_further(steps):
    """Its request went out, and the cancellation was lost."""
    gate = ProcessGate()
    leader, through = await adrive(gate.entering(b"k")), []

    async def follow():
        await adrive(gate.entering(b"k"))
        through.append("sent")
        await asyncio.sleep(10)

    follower = asyncio.ensure_future(follow())
    for _ in range(5):
        await asyncio.sleep(0)
    leader.release(ok=True)
    for _ in range(steps):
        await asyncio.sleep(0)
    follower.cancel()
    late = bool(through)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(follower, 5)
    assert through == ["sent"] * late


def test_nobody_waits_for_a_summary_whose_loop_stands_still():
    """As behind a leader: an extract stands in for it."""
    conversation, loop = Session().conversation("one"), asyncio.new_event_loop()

    async def asks():
        held = conversation.asks()
        assert held.__enter__()
        return held

    try:
        held, began = loop.run_until_complete(asks()), time.monotonic()
        assert not Until(conversation.asking, 30).now()
        assert time.monotonic() - began < 10
        held.__exit__(None, None, None)
    finally:
        loop.close()


@pytest.mark.parametrize("loop", [True, False])
def test_who_goes_at_once_has_waited_for_nobody_however_slow_the_machine(loop):
    """In a thread that runs an event loop, and behind a leader who takes longer than pays; each look takes a second."""
    ticks = itertools.count()
    gate, gating = ProcessGate(60.0, clock=lambda: float(next(ticks))), Gating()
    leader = drive(gate.entering(b"wide"))

    async def asks() -> Pass:
        return drive(gate.entering(b"wide"))

    wide = asyncio.run(asks()) if loop else drive(gate.entering(b"wide", Worth(0.0)))
    gating.came_through(drive(gate.entering(b"long")).within(wide), b"long", b"wide")
    assert (gating.use.at_once, gating.use.gave_up, gating.use.seconds) == (1, 0, 0.0)
    leader.release(ok=True)
