"""Ctrl-C, a cancellation or a lack of memory at any point of a request leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import cacheprefix
from cacheprefix import Caching, Gate, Session, SharedPrefix
from cacheprefix.bodies import Role, fork_body
from cacheprefix.calls.pending import PendingCall
from cacheprefix.prompt import ESTIMATE

ROOM = str(Path(cacheprefix.__file__).parent)
HANDBOOK = "The handbook says that every statement needs a source. " * 400
USAGE = {"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 3_000}
PLACES = {"gate.py": 1, "pending.py": 1, ".py": 23}
"""Where it is interrupted, and at each which point: at all 2,000 it takes a minute. A prime, as loops have a rhythm."""
WEAK = ("/weakref.py", "/_weakrefset.py")
CALLBACKS = {"remove", "_remove", "__call__"}
"""The standard library's callbacks of weak references, in those files: called when what they refer to is dropped."""


def ask(session: Session, name: str) -> None:
    """A request that leads on a cold prefix, from its body to its usage."""
    body = {"model": "claude-sonnet-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}
    fork = fork_body(session.adapter, body, "anthropic", Role(name, f"You are {name}.", name))
    with fork.begin(fork.queue()) as turn:
        pass
    turn.first_token()
    turn.finish(USAGE)


def interrupted(session: Session, point: int, place: str, error: type[BaseException]) -> bool:
    """A request with ``error`` raised where the ``point``-th function of ``place`` begins; whether it has so many.

    That is where CPython runs the handlers of signals. What is raised while an object is dropped reaches nobody, be
    it its ``__del__`` or the callback of a weak reference to it.
    """
    count = 0

    def raising(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        names, files, at = [], [], frame
        while at is not None:
            names.append(at.f_code.co_name)
            files.append(at.f_code.co_filename)
            at = at.f_back
        # Inside its own locks' Python, and in what the garbage collector calls there, the standard library is not safe
        # from signals; that is not ours to mend.
        ours = any(file.startswith(ROOM) for file in files) and not any(file.endswith("threading.py") for file in files)
        dropped = {"__del__", "<genexpr>"} & set(names) or (names[0] in CALLBACKS and files[0].endswith(WEAK))
        if event == "call" and ours and files[0].endswith(place) and not dropped:
            count += 1
            if count == point:
                sys.settrace(before)
                raise error

    before = sys.gettrace()
    sys.settrace(raising)
    try:
        ask(session, "first")
    except error as caught:
        # The frames of a traceback hold what was under way.
        caught.__traceback__ = None
    finally:
        sys.settrace(before)
    return count >= point


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError])
def test_a_request_that_is_interrupted_anywhere_leads_nobody(place: str, error: type[BaseException]) -> None:
    """No flight is left and no lock is held: the next request goes on, and each is counted once at most."""
    point = 1
    while True:
        session = Session(
            SharedPrefix(system=HANDBOOK),
            caching=Caching(provider="anthropic", counter=ESTIMATE),
            gate=Gate(limit=600, price=0),
        )
        if not interrupted(session, point, place, error):
            break
        gc.collect(0)
        assert not session.adapter._gate._flights, f"a leader is left that was interrupted at point {point}"
        before = len(session.calls)
        assert before <= 1
        ask(session, "second")
        assert len(session.calls) == before + 1
        point += PLACES[place]
    assert point > 5


def begun(session: Session, said: str) -> PendingCall:
    """A role's request that is under way, and has shared text in front of its own."""
    messages = [{"role": "user", "content": "hello"}, *([{"role": "user", "content": said}] if said else [])]
    system = f"{HANDBOOK}\n\nYou are a critic."
    body = {"model": "claude-sonnet-4-6", "max_tokens": 9, "system": system, "messages": messages}
    turn = fork_body(session.adapter, body, "anthropic", Role("critic", conversation="one")).begin()
    turn.first_token()
    return turn


def dropped(session: Session, point: int, end: Callable[[PendingCall], object]) -> bool:
    """Whether a request has so many points; at that one the request before it ends.

    So it does where the garbage collector drops a stream: in any thread that makes an object, between any two lines.
    """
    count, stream = 0, begun(session, "")

    def dropping(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        if event == "call" and frame.f_code.co_filename.startswith(ROOM):
            count += 1
            if count == point:
                sys.settrace(before)
                end(stream)

    before = sys.gettrace()
    sys.settrace(dropping)
    try:
        begun(session, "And then?").finish(USAGE)
    finally:
        sys.settrace(before)
    return count >= point


@pytest.mark.slow
@pytest.mark.parametrize("end", [PendingCall.finish, PendingCall.fail], ids=["finish", "fail"])
def test_a_stream_that_is_dropped_in_the_middle_of_any_step_breaks_none(end: Callable[[PendingCall], object]) -> None:
    """Each step is done as if the stream had been dropped before or behind it, and each answer is judged once."""
    point, seen = 1, set()
    while True:
        session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider="anthropic", counter=ESTIMATE))
        if not dropped(session, point, end):
            break
        assert session.failures == {}, f"at point {point}"
        assert len(session.calls) == 2
        seen.add(tuple(sorted((call.units, call.unmodified_units) for call in session.calls)))
        point += 17
    assert point > 1_000
    assert len(seen) <= 3, seen


def test_who_waits_for_a_leader_waits_for_no_plugin() -> None:
    """When a hook is told of the answer, the siblings are on their way: it may take its time."""
    left: list[int] = []

    class Slow:
        def cacheprefix_after_call(self) -> None:
            left.append(len(session.adapter._gate._flights))

    session = Session(
        SharedPrefix(system=HANDBOOK),
        caching=Caching(provider="anthropic", counter=ESTIMATE),
        gate=Gate(limit=600, price=0),
        plugins=[Slow()],
    )
    body = {"model": "claude-sonnet-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}
    fork = fork_body(session.adapter, body, "anthropic", Role("first", "You are first.", "first"))
    with fork.begin(fork.queue()) as turn:
        assert session.adapter._gate._flights
        turn.finish(USAGE)
    assert left == [0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_what_was_put_off_is_done_in_the_process_that_sent_it() -> None:
    """A child that is forked off by then has sent nothing: two processes would log one call."""
    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider="anthropic", counter=ESTIMATE))
    stream = begun(session, "")
    with session.adapter.shared.totals._lock:
        stream.finish(USAGE)
    child = os.fork()
    if child == 0:
        os._exit(len(session.report().lines))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(session.report().lines) == 1
