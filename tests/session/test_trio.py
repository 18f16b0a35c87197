"""Tasks of trio's, which the SDKs' asynchronous clients run in too: nothing of asyncio may be awaited there."""

import sys
import threading
import time
import types

import pytest

from cacheprefix.effects import Sleep, adrive, in_a_loop
from cacheprefix.errors import StoreError
from cacheprefix.layout import ProcessGate
from cacheprefix.stores.effects import Do, Settle


class StandIn(types.ModuleType):
    """As much of trio as is asked for: it is no requirement of ours, and stands in no environment of the tests."""

    def __init__(self):
        super().__init__("trio")
        self.running = False
        self.lowlevel = types.SimpleNamespace(in_trio_task=lambda: self.running)

    @staticmethod
    @types.coroutine
    def sleep(seconds):
        """Let the others go on until then."""
        yield time.monotonic() + seconds

    def run(self, *tasks):
        """Run coroutines side by side; gives what each of them gave."""
        given, waiting = {}, dict.fromkeys(tasks, 0.0)
        while waiting:
            for task in [one for one, until in waiting.items() if until <= time.monotonic()]:
                self.running = True
                try:
                    waiting[task] = task.send(None)
                except StopIteration as end:
                    given[task] = end.value
                    del waiting[task]
                finally:
                    self.running = False
            time.sleep(0.001)
        return [given[task] for task in tasks]


@pytest.fixture
def trio(monkeypatch):
    """The stand-in, as if it had been imported."""
    made = StandIn()
    monkeypatch.setitem(sys.modules, "trio", made)
    return made


def test_siblings_wait_for_their_leader(trio):
    """The application's own request failed there: "no running event loop"."""
    gate, order = ProcessGate(), []

    async def asks(name):
        leave = await adrive(gate.entering(b"prefix"))
        order.append(name)
        await Sleep(0.05).later()
        if leave.leader:
            order.append("answered")
            leave.release(ok=True)
        return leave.followed

    assert trio.run(asks("first"), asks("second"), asks("third")) == [False, True, True]
    assert order == ["first", "answered", "second", "third"]


@pytest.mark.parametrize("kind", [Do, Settle])
def test_a_store_is_asked_in_a_thread(trio, kind):
    """The loop goes on meanwhile, and what the store raises reaches who asked."""
    store, other = types.SimpleNamespace(blocking=True), threading.Event()

    async def asks():
        return await kind(store, lambda: (other.wait(5), threading.get_ident())).later()

    async def goes_on():
        assert in_a_loop()
        other.set()

    (told, thread), _ = trio.run(asks(), goes_on())
    assert told
    assert thread != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        trio.run(kind(store, lambda: 1 / 0).later())


def test_a_store_that_hangs_is_waited_for_no_longer_than_it_may(trio):
    """As in a task of asyncio's."""
    store, over = types.SimpleNamespace(blocking=True), threading.Event()
    try:
        with pytest.raises(StoreError, match="did not answer"):
            trio.run(Do(store, over.wait).within(0.05).later())
    finally:
        over.set()
    assert trio.run(Do(store, lambda: "found").within(5).later()) == ["found"]
