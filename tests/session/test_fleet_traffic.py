"""Routing keys in a fleet: processes that share a store count together what none of them sees alone."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from cacheprefix.cache.routing import RoutingKeys
from cacheprefix.calls.fleet_traffic import FleetTraffic
from cacheprefix.profiles import default_registry
from cacheprefix.stores import MemoryStore
from tests.blocking import Hanging
from tests.fault_matrix import Down

OPENAI = default_registry().get("openai-5.6")
TALKS = [f"talk-{number}" for number in range(8)]
EVERY = 5.0
"""Seconds between two requests of one process: 12 a minute, where a key serves 15."""


class Fleet:
    """Real processes, each of which asks when it is told to."""

    def __init__(self, stack, kind, place):
        command = [sys.executable, Path(__file__).with_name("fleet_worker.py"), kind, place]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.now = 1_000_000.0
        self.processes = [stack.enter_context(subprocess.Popen(command, **pipes)) for _ in range(3)]
        stack.callback(lambda: [one.kill() for one in self.processes])

    def ask(self, process, talk):
        """The key of one request."""
        process.stdin.write(f"{self.now} {talk}\n")
        process.stdin.flush()
        return process.stdout.readline()

    def minutes(self, number):
        """All keys of so many minutes in which each process asks every five seconds."""
        keys = set()
        for turn in range(int(number * 60 / EVERY)):
            self.now += EVERY
            keys |= {self.ask(one, TALKS[(turn + at) % len(TALKS)]) for at, one in enumerate(self.processes)}
        return keys

    def of_talks(self):
        """The keys of each conversation, asked in every process at one time."""
        return {talk: {self.ask(one, talk) for one in self.processes} for talk in TALKS}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "valkey"])
def test_processes_that_share_a_store_need_more_keys_together(request, tmp_path, kind):
    """And each conversation has the same key in all of them; that no key serves them all is known after a minute."""
    place = request.getfixturevalue("valkey").url if kind == "valkey" else str(tmp_path / "gate.sqlite")
    with ExitStack() as stack:
        fleet = Fleet(stack, kind, place)
        assert len(fleet.minutes(1)) == 1
        assert len(fleet.minutes(1.5)) > 1
        for _ in range(20):
            # What one process has written the others read seconds later.
            keys = fleet.of_talks()
            if all(len(found) == 1 for found in keys.values()):
                break
            fleet.minutes(0.5)
        assert {len(found) for found in keys.values()} == {1}
        assert len(set.union(*keys.values())) > 1


def test_a_process_that_is_alone_is_within_what_a_key_serves():
    """Twelve requests a minute."""
    assert len(asked(RoutingKeys("auto"), seconds=240, every=EVERY)) == 1


def asked(keys, *, seconds, every=2.0):
    """All keys of one process's requests, each in a conversation of its own."""
    times = [1_000.0 + at * every for at in range(int(seconds / every))]
    return {keys.key("prefix", OPENAI, talk=("", str(at)), now=at)[0] for at in times}


def test_a_store_that_is_down_leaves_each_process_its_own_count():
    """Every failure is told, and the keys are those of a process that is alone."""
    failures = []
    keys = RoutingKeys("auto", FleetTraffic(Down(), failures.append))
    assert len(asked(keys, seconds=50)) == 1
    assert len(asked(RoutingKeys("auto", FleetTraffic(Down(), failures.append)), seconds=180)) > 1
    assert failures


def test_what_a_killed_process_counted_is_dropped_after_a_minute():
    """The others need no more keys for it then; those that there are stay."""
    store = MemoryStore()
    gone, stays = (RoutingKeys("auto", FleetTraffic(store, pytest.fail)) for _ in range(2))
    for at in range(0, 70, 6):
        gone.key("prefix", OPENAI, talk=("", "a"), now=float(at))
    times = map(float, range(120, 300, 6))
    assert len({stays.key("prefix", OPENAI, talk=("", str(at)), now=at)[0] for at in times}) == 1


def test_what_others_count_is_said_once():
    """By the process that learns of it, at its next request."""
    store = MemoryStore()
    both = [RoutingKeys("auto", FleetTraffic(store, pytest.fail)) for _ in range(2)]
    said = [one.key("prefix", OPENAI, talk=("", str(at)), now=float(at))[1] for at in range(0, 120, 5) for one in both]
    told = [text for text in said if text]
    assert len(told) == 2
    assert all("more than the 15 that one routing key serves" in text for text in told)


def test_no_event_loop_waits_for_the_store():
    """The store is asked in a thread, and a request goes by what is known."""
    store = Hanging(0.01)
    keys = RoutingKeys("auto", FleetTraffic(store, pytest.fail))

    async def run():
        asked(keys, seconds=100)
        for _ in range(500):
            if "set" in store.calls:
                return
            await asyncio.sleep(0.01)

    asyncio.run(run())
    assert "set" in store.calls
    assert not store.in_a_loop
