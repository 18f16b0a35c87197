"""Runs one tool call through the cache: look it up, join an identical running call or run the tool, keep the result.

Written as flows, once for sync and async callers.
"""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import logging
import secrets
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from cacheprefix.effects import Flow, in_a_loop
from cacheprefix.errors import StoreError, told
from cacheprefix.locks import RLock
from cacheprefix.stores.effects import Do, Settle, aside
from cacheprefix.stores.lease import LEASE_SECONDS, Lease, Renewing, elect
from cacheprefix.stores.memory import Lru
from cacheprefix.stores.protocol import Departure, Store, is_blocking, is_shared
from cacheprefix.toolcache.codec import Kept, NotKeptError, keep, seal, unseal
from cacheprefix.toolcache.flight import Flight, Flights, Join, Ran, Run
from cacheprefix.toolcache.keys import Plan
from cacheprefix.toolcache.options import ToolCacheOptions
from cacheprefix.toolcache.stats import Counters, Outcome

_log = logging.getLogger("cacheprefix")

# Entries of at most _SMALL bytes are remembered decoded, _OPENED of them (2 MB in all): checking one costs as much as
# reading it.
_SMALL = 4_096
_OPENED = 512

# Seconds after which a failed store is tried again: the first time, and at most.
_FIRST_RETRY = 0.25
_SLOWEST_RETRY = 5.0

# Errors after which a writing tool may still be running: a thread does not end with the task that waits for it.
_STILL_WRITING = (asyncio.CancelledError, TimeoutError, asyncio.TimeoutError)


class Looked(NamedTuple):
    """What a lookup found: ``kept`` and a copy of its ``value``, or neither.

    ``stamp`` holds the generations (what writes change) at that moment; None means that the store failed. ``outdated``:
    an entry was there, but what it depends on has been written since.
    """

    stamp: bytes | None
    kept: Kept | None = None
    value: Any = None
    outdated: bool = False


_BLIND = Looked(None)


class Answer(NamedTuple):
    """How a call ended: the result or error, where it came from, and the tool's seconds that were saved."""

    ran: Ran
    outcome: Outcome
    saved: float = 0.0


class Engine:
    """Runs the cache's calls on one store: lookups, calls in flight, and marks of calls that write.

    Before a tool writes, what it may change is marked in the store. Until the write has ended, or its lease is over
    because the writer died, no result that depends on it is kept or taken. A thread renews the marks of running writes
    and repeats what the store refused.
    """

    def __init__(
        self, store: Store, options: ToolCacheOptions, counters: Counters, objects: Lru[tuple[bytes, Kept]]
    ) -> None:
        self.store = store
        self.flights = Flights()
        self._codec = options.codec
        self._counters = counters
        self._objects = objects
        self._lease = options.lease
        self._is_error = options.is_error
        self._clock = options.clock
        self._lock = RLock()
        # One owner for all leases of this process: a lease that it failed to release can be taken again by it.
        self._owner = secrets.token_hex(16)
        self._renewing = Renewing(options.clock, self.failed)
        # Entries already checked and decoded, by key, each with the bytes that it came from.
        self._opened: dict[str, tuple[bytes, tuple[bytes, Kept]]] = {}
        # Marks and bumps that the store refused, by writer: until it takes them, no kept result can be trusted.
        self._owed: dict[str, tuple[str, ...]] = {}
        # Those of them whose tools may write still, although their callers are gone.
        self._left: set[str] = set()
        # Marks and bumps that threads are to tell the store, one after the other, and have not yet told it.
        self._to_tell: deque[Callable[[], object]] = deque()
        self._telling = RLock()
        # Running writes: by writer, the names of what each may change.
        self._writing: dict[str, tuple[str, ...]] = {}
        self._tended = False
        self._wake: SimpleQueue[None] = SimpleQueue()
        _engines.add(self)

    def look(self, plan: Plan) -> Looked:
        """Look a call up; where the store fails, nothing is found and ``stamp`` is None."""
        try:
            return self.ask(plan)
        except Exception as error:
            self.failed(error)
            return _BLIND

    def ask(self, plan: Plan) -> Looked:
        """Look a call up.

        Raises:
            StoreError: the store failed.
        """
        key = plan.key or ""
        if self._owed:
            # The store refused a mark or bump, which a thread repeats: until then its results may be outdated.
            self._counters.error()
            return _BLIND
        if self._to_tell:
            # What the store is about to hear of may outdate what it holds: the tool runs.
            return _BLIND
        data, stamp = self.store.read(key, plan.names) if self._storable(plan) else self._generations(plan)
        if not isinstance(stamp, bytes):
            raise StoreError(f"{type(self.store).__name__} gave {type(stamp).__name__} for generations, not bytes")
        if data is None:
            if not len(self._objects):
                return Looked(stamp)
            with self._lock:
                found = self._objects.get(key)
        else:
            seen = self._opened.get(key)
            # The same bytes object as before was checked already; a store that copies gives a new one each time.
            found = seen[1] if seen is not None and seen[0] is data else self._open(plan, key, data)
        if found is None:
            return Looked(stamp)
        if found[0] != stamp:
            return Looked(stamp, outdated=True)
        kept = found[1]
        try:
            value = kept.fresh()
        except Exception:
            # Its checksum is right and it cannot be decoded: another codec or version wrote it.
            self.store.delete(key)
            return Looked(stamp)
        return Looked(stamp, kept, value)

    def _storable(self, plan: Plan) -> bool:
        """Whether the result may be kept in the store: in a shared one, only if other processes know the same tool."""
        return plan.shared or not is_shared(self.store)

    def _generations(self, plan: Plan) -> tuple[None, bytes]:
        return None, self.store.generations(plan.names)

    def _open(self, plan: Plan, key: str, data: bytes) -> tuple[bytes, Kept] | None:
        """Check and decode an entry; a damaged one is deleted from the store, and None comes back."""
        found = unseal(plan.check, data, self._codec)
        if found is None:
            self.store.delete(key)
        elif len(data) <= _SMALL and not is_shared(self.store):
            if len(self._opened) >= _OPENED:
                self._opened.clear()
            self._opened[key] = (data, found)
        return found

    def miss(self, plan: Plan, run: Callable[[], Any], looked: Looked) -> Flow[Answer]:
        """Answer a call that was not found: run the tool, or take the result of an identical call in flight.

        Without a stamp the store told nothing, and the tool simply runs. Else the first of identical calls leads, and
        the others join it for one lease in all. Where nothing comes of the call that was joined, a second one is
        joined or led; where nothing comes of that either, or the lease is over, the tool runs for this call alone.
        """
        began = self._clock()
        for last in (False, True):
            stamp = looked.stamp
            if stamp is None:
                break
            flight, leads = self.flights.enter(plan.key or "", stamp)
            # A clock that was set back must not make a call wait for longer than a lease.
            left = max(0.0, min(self._lease, self._lease - (self._clock() - began)))
            if leads:
                return (yield from self._lead(plan, run, flight, stamp, left))
            over = yield Join(flight, left)
            joined = self._joined(flight) if over else None
            if joined is not None:
                return joined
            if last or not over:
                ran, _ = yield from self._run_and_keep(plan, run, None, stamp)
                return Answer(ran, "miss")
            # The call that was joined kept nothing: it failed, or its result is its caller's alone. Another may have.
            looked = yield Do(self.store, self.look, plan)
            if looked.kept is not None:
                return Answer(Ran(looked.value), "hit", looked.kept.seconds)
        return Answer((yield Run(run)), "miss")

    def _joined(self, flight: Flight) -> Answer | None:
        """The answer of the call that was joined, which is over; None where it kept none that can be read."""
        kept = flight.done.result()
        if kept is None:
            return None
        try:
            return Answer(Ran(kept.fresh()), "joined", kept.seconds)
        except Exception as error:
            self.failed(error)
            return None

    def write(self, plan: Plan, run: Callable[[], Any]) -> Flow[Answer]:
        """Run a call that writes: mark what it may change before, give it new generations after."""
        writer = secrets.token_hex(16)
        with self._lock:
            self._writing[writer] = plan.writes
        try:
            yield Do(self.store, self._mark, writer)
            ran: Ran = yield Run(run)
        except BaseException:
            # Cancelled or dropped half way, so the tool may still write: its mark stays until the lease ends.
            self._leave_marked(writer)
            raise
        if isinstance(ran.error, _STILL_WRITING):
            self._leave_marked(writer)
        else:
            yield Settle(self.store, self._written, writer)
        return Answer(ran, "written")

    def tell(self, work: Callable[[], object]) -> None:
        """Have a thread tell the store of a write, without waiting; until it has, this process looks nothing up."""
        self._to_tell.append(work)
        aside(self.store, self._tell_next)

    def _tell_next(self) -> None:
        """Tell the store what stands first: were a mark told behind its own end, nothing would take it away again."""
        with self._telling:
            try:
                self._to_tell[0]()
            finally:
                self._to_tell.popleft()

    def _mark(self, writer: str) -> None:
        """Mark in the store what a writer may change."""
        names = self._writing.get(writer)
        if names is None:
            return
        try:
            self.store.mark(names, writer, self._lease if is_shared(self.store) else float("inf"))
        except Exception as error:
            self.failed(error)
            self._remember_refused(writer, names)
        if is_shared(self.store):
            self._tend()

    def _written(self, writer: str) -> None:
        """End a writer's marks and outdate what depends on what it may have changed."""
        with self._lock:
            names = self._writing.pop(writer, ())
        try:
            self.store.bump(names, writer)
        except Exception as error:
            self.failed(error)
            self._remember_refused(writer, names)
        else:
            with self._lock:
                self._owed.pop(writer, None)

    def _leave_marked(self, writer: str) -> None:
        """Let the mark of a write whose tool may still run, unseen, end with its lease.

        Calls no store that blocks, as this may run in an event loop: a shared store's marks have a lease already.
        """
        with self._lock:
            names = self._writing.pop(writer, ())
            if writer in self._owed:
                self._left.add(writer)
        if not is_shared(self.store) and names:
            try:
                self.store.mark(names, writer, self._lease)
            except Exception as error:
                self.failed(error)
                self._left.add(writer)
                self._remember_refused(writer, names)

    def _remember_refused(self, writer: str, names: tuple[str, ...]) -> None:
        """Remember a mark or bump that the store refused, and have the thread repeat it."""
        with self._lock:
            self._owed[writer] = names
        self._wake.put(None)
        self._tend()

    def settle(self) -> bool:
        """Repeat the marks and bumps that the store refused; return whether none is left."""
        try:
            for writer, names in tuple(self._owed.items()):
                if writer in self._writing or writer in self._left:
                    self.store.mark(names, writer, self._lease)
                else:
                    self.store.bump(names, writer)
                with self._lock:
                    self._owed.pop(writer, None)
                    self._left.discard(writer)
        except Exception as error:
            self.failed(error)
        return not self._owed

    def _tend(self) -> None:
        """Start the thread that renews marks and repeats refused ones, unless it runs."""
        with self._lock:
            if self._tended:
                return
            self._tended = True
        threading.Thread(target=self._tend_loop, name="cacheprefix-tool-cache", daemon=True).start()

    def _tend_loop(self) -> None:
        """The thread's loop; ends once no write runs and nothing is to be repeated."""
        pause = _FIRST_RETRY
        renewed = self._clock()
        while True:
            with self._lock:
                if not self._writing and not self._owed:
                    self._tended = False
                    return
            with suppress(Empty):
                self._wake.get(timeout=pause if self._owed else self._lease / 3)
            pause = _FIRST_RETRY if self.settle() else min(pause * 2, _SLOWEST_RETRY)
            if abs(self._clock() - renewed) >= self._lease / 3:
                renewed = self._clock()
                self._renew()

    def _renew(self) -> None:
        """Renew the marks of running writes for one lease."""
        try:
            for writer, names in tuple(self._writing.items()):
                self.store.mark(names, writer, self._lease)
        except Exception as error:
            # Marks that were not renewed hold for two thirds of a lease more, and are tried again after one third.
            self.failed(error)

    def clear(self, prefix: str) -> int:
        """Forget what is kept under ``prefix``, here and in the store; return how many entries."""
        with self._lock:
            gone = self._objects.clear(prefix)
            self._opened.clear()
        return gone + self.store.clear(prefix)

    def held(self, prefix: str) -> dict[str, int]:
        """Return what is kept under ``prefix``: bytes by key."""
        with self._lock:
            self._objects.sweep()
            sizes = dict(self._objects.sizes(prefix))
        if is_blocking(self.store) and in_a_loop():
            # An event loop must not wait for a store to list its entries.
            return sizes
        try:
            sizes.update(self.store.sizes(prefix))
        except Exception as error:
            self.failed(error)
        return sizes

    def failed(self, error: Exception) -> None:
        """Count a failure that a call survived; the first one is logged."""
        if self._counters.error():
            _log.warning("tool-result cache failed, tools run as without it (told once): %s", told(error))

    def after_fork(self) -> None:
        """In a forked child: drop what belongs to the parent, its calls in flight, marks and leases."""
        self._owner = secrets.token_hex(16)
        self.flights.after_fork()
        # The parent ends its own writes and repeats its own marks; its thread does not exist here.
        self._writing = {}
        self._owed, self._left, self._to_tell = {}, set(), deque()
        self._tended = False
        self._wake = SimpleQueue()

    def _lead(self, plan: Plan, run: Callable[[], Any], flight: Flight, stamp: bytes, patience: float) -> Flow[Answer]:
        """Run a call that identical ones of this process join; in a shared store, let one process run it."""
        kept: Kept | None = None
        lease: Lease | None = None
        renewed: int | None = None
        try:
            # An identical call may have ended between this call's lookup and its entry: look again.
            looked: Looked = yield Do(self.store, self.look, plan)
            if looked.kept is None and looked.stamp is not None and is_shared(self.store) and plan.shared:
                looked, lease = yield from self._elect(plan, looked, patience)
            if lease is not None:
                # For as long as others may wait for it: a process that is killed is replaced when its lease ends.
                renewed = self._renewing.start(lease, self._lease)
            if looked.kept is not None:
                kept = looked.kept
                return Answer(Ran(looked.value), "joined", kept.seconds)
            ran, kept = yield from self._run_and_keep(plan, run, flight, looked.stamp)
            if lease is not None:
                self._renewing.end(renewed)
                yield Settle(self.store, self._release, lease)
            return Answer(ran, "miss")
        except BaseException:
            # Dropped, or cancelled while its result is kept.
            self._renewing.end(renewed)
            if lease is not None:
                aside(self.store, self._release, lease)
            raise
        finally:
            self.flights.leave(plan.key or "", stamp, flight, kept)

    def _elect(self, plan: Plan, looked: Looked, patience: float) -> Flow[tuple[Looked, Lease | None]]:
        """Wait at most ``patience`` seconds for another process's result, or get the lease to run the call."""
        last = looked

        def look() -> Looked | None:
            nonlocal last
            last = self.ask(plan)
            return last if last.kept is not None else None

        # The lease is per generations, so that a call after a write never waits for a result from before it.
        mark = hashlib.blake2b(looked.stamp or b"", digest_size=8).hexdigest()
        try:
            turn = yield from elect(
                self.store,
                f"{plan.key}:{mark}",
                look,
                lease=min(self._lease, LEASE_SECONDS),
                patience=patience,
                owner=self._owner,
                clock=self._clock,
            )
        except Exception as error:
            self.failed(error)
            return _BLIND, None
        return turn.found or last, turn.lease

    def _run_and_keep(
        self, plan: Plan, run: Callable[[], Any], flight: Flight | None, stamp: bytes | None
    ) -> Flow[tuple[Ran, Kept | None]]:
        """Run a tool and keep its result, where it may be kept and nothing was written meanwhile (``stamp``)."""
        began = self._clock()
        ran: Ran = yield Run(run, flight)
        if ran.error is not None or stamp is None:
            return ran, None
        kept = self._keepable(plan, ran.result, max(0.0, self._clock() - began))
        if kept is not None:
            yield Do(self.store, self._keep, plan, stamp, kept)
        return ran, kept

    def reports_error(self, result: Any) -> bool:
        """Whether a result reports a failure, as far as can be told."""
        try:
            return bool(self._is_error(result))
        except Exception as error:
            self.failed(error)
            return False

    def _keepable(self, plan: Plan, result: Any, seconds: float) -> Kept | None:
        """What is kept of a result; None for errors and for what cannot be copied or is its caller's alone."""
        try:
            value = result if plan.keep is None else plan.keep(result)
            return None if self._is_error(value) else keep(value, seconds, self._codec)
        except NotKeptError:
            return None
        except Exception as error:
            self.failed(error)
            return None

    def _keep(self, plan: Plan, stamp: bytes, kept: Kept) -> None:
        """Keep a result in the store or in this process, unless what it depends on was written meanwhile."""
        key = plan.key or ""
        try:
            if self._owed or self._to_tell or self.store.generations(plan.names) != stamp:
                return
            if kept.payload is not None and self._storable(plan):
                self.store.set(key, seal(plan.check, stamp, kept), plan.ttl)
                return
        except Exception as error:
            self.failed(error)
            return
        with self._lock:
            self._objects.put(key, (stamp, kept), kept.size(), plan.ttl)

    def _release(self, lease: Lease) -> None:
        try:
            lease.release()
        except Exception as error:
            # It ends by itself; until then other processes may wait for nothing.
            self.failed(error)


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _settle_all() -> None:
    """At the end of the process, repeat refused marks and bumps a last time."""
    for engine in list(_engines):
        engine.settle()


def departure_counter(counters: Counters, tool_of: Callable[[str], str | None]) -> Callable[[str, Departure], None]:
    """Return a listener that counts dropped entries by tool."""

    def note(key: str, why: Departure) -> None:
        tool = tool_of(key)
        if tool is not None:
            counters.add(tool, why)

    return note
