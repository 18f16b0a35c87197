"""Plays an application three times, unmodified, observed and forked, and a fourth time where state was resumed."""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.util
import logging
import random
import re
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from cacheprefix import Gate, Session, SharedPrefix
from cacheprefix.notices import MADE
from cacheprefix.server import Latency, SimulatedProvider
from tests.transparent.compare import Allowed, allowed_in
from tests.transparent.harness import Mode, Stage, serving, witnessed
from tests.trial.applications import Answers, Application, Person
from tests.trial.checks import AS_THEY_ARE, Broken, Framing, Run, check, is_fork, replayed

ADAPTERS = ("sdk", "langgraph", "autogen", "crewai", "maf", "ag2", "litellm", "openai_agents")
"""The core runs the first two, every other one its own environment."""
PATIENCE = 90.0
"""Seconds after which an application hangs."""
_IDLE = 0.01
"""Of the processor's time: who has less of it does not work but waits."""
_AGAIN = 3
"""How often what is resumed, and what fails unmodified, is played again where requests are made at the same time."""


class Driver(Stage):
    """What each adapter's module has, called ``Trial``: it makes a framework's objects of ``app`` and runs them."""

    framework: ClassVar[str]
    """Its name in ``tests/transparent/differences.toml``."""
    apis: ClassVar[Sequence[str]] = ("openai-chat", "openai-responses", "anthropic")
    allowed: ClassVar[Sequence[Allowed]] = ()
    """Differences beside those of ``differences.toml`` that only trials show."""
    framing: Framing = Framing()
    """What its forks say in words of its own."""
    random: ClassVar[tuple[tuple[str, re.Pattern[str]], ...]] = (
        ("a length", re.compile(r"expected \d+\b|received \d+ of \d+ bytes")),
    )
    """An answer that breaks off says how long it would have been: as the request was."""
    warns: ClassVar[frozenset[str]] = frozenset()
    """Warnings of the framework's own that the clock decides: how far a run had come when it was cancelled."""
    resumable: ClassVar[bool] = True
    """Whether a ``resume`` gives the bytes of one session (invariant 2)."""

    def __init__(self, mode: Mode, provider: SimulatedProvider, app: Application, *, resumes: bool = True) -> None:
        super().__init__(mode, provider)
        self.app = app
        self.resumes = resumes
        """Whether a ``resume`` is one, or nothing."""
        rng = random.Random(f"common/{app.seed}")
        self.common = rng.random() < 0.5
        """Whether clients, agents and graphs are made once, for all people who can use them, or for each of these."""
        self.apart = rng.random() < 0.5 and mode == "forked" and app.broken is None
        """Whether text of one turn alone is given as volatile text, which only a fork knows, or stands in requests."""
        self.process = 0
        """How often all sessions were made anew: add one, and ``session_of`` gives new ones."""
        self.left: list[str] = []
        self._teams: dict[tuple[int, str], Session] = {}
        self._lock = threading.RLock()

    def run(self) -> Any:
        """Play ``app``, and return all that it saw, by person; ``applications.asking`` says whose requests they are.

        In each turn, those who ask do so at the same time. What must be the same in all modes goes by ``app`` alone.
        """
        raise NotImplementedError

    def new_session(self, **options: Any) -> Session:
        """One with the application's prefix and options."""
        case = self.app.broken
        given = {**self.app.options, **options}
        if case is not None:
            given["plugins"] = case.plugins()
            if case.store is not None:
                given["gate"] = Gate(store=case.store())
        return Session(self.prefix(), **given)

    def prefix(self) -> SharedPrefix:
        """What all agents share."""
        return SharedPrefix(system=self.app.handbook)

    def session_of(self, person: Person) -> Session:
        """The session of a person's tenant: those of further tenants are children of the first one's."""
        made, key = self.session_of_all(), (self.process, person.tenant)
        with self._lock:
            if person.tenant != self.app.tenants[0] and key not in self._teams:
                self._teams[key] = made.child(person.tenant, scope=person.tenant)
            return self._teams.get(key, made)

    def session_of_all(self) -> Session:
        """The first tenant's, for what serves all of them."""
        with self._lock:
            return self.session(str(self.process))

    def later(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end, and note which tasks are left then."""

        async def whole() -> Any:
            saw = await main
            # What was cancelled just now comes to its end.
            for _ in range(50):
                left = asyncio.all_tasks() - {asyncio.current_task()}
                if not left:
                    break
                await asyncio.sleep(0.02)
            self.left += [f"the task {task.get_coro()}" for task in left]
            return saw

        return asyncio.run(whole())


def driver(adapter: str) -> type[Driver]:
    """The driver of an adapter."""
    found: type[Driver] = importlib.import_module(f"tests.trial.{adapter}").Trial
    return found


def played(kind: type[Driver], app: Application) -> tuple[list[Broken], int, int]:
    """What is broken in an application, the number of requests that were looked at, and of those that were forks."""
    runs: dict[str, Run] = {}
    modes: list[tuple[str, Mode]] = [("unmodified", "unmodified"), ("observed", "observed"), ("forked", "forked")]
    if kind.resumable and app.broken is None and app.resumed:
        modes.append(("continued", "forked"))
        again = range(_AGAIN if app.parallel else 0)
        modes += [(f"{name} {number}", "forked") for number in again for name in ("forked", "continued")]
    for name, mode in modes:
        if name[-1].isdigit() and not [*replayed(app, runs, ())]:
            break
        stuck: list[str] = []
        made = within(PATIENCE, lambda mode=mode, name=name: one_run(kind, app, mode, name), stuck)  # type: ignore[misc]
        if made is None:
            number = 0 if mode == "unmodified" else 5
            return [Broken(number, f"{name}: not at its end after {PATIENCE:.0f} s\n{stuck[0]}")], 0, 0
        runs[name] = made
    allowed = [*allowed_in(kind.framework), *kind.allowed]
    found = check(app, runs, allowed)
    if found and app.parallel and any(turn.fault for turn in app.turns):
        for number in range(2 * _AGAIN):
            for mode in AS_THEY_ARE:
                runs[f"{mode} {number}"] = one_run(kind, app, mode, mode)
        found = check(app, runs, allowed)
    forks = sum(is_fork(record.prompt, kind.framing.own) for record in runs["forked"].records)
    return found, sum(len(run.records) for run in runs.values()), forks


def one_run(kind: type[Driver], app: Application, mode: Mode, name: str) -> Run:
    """One play of an application; by a name that begins with ``continued`` one process plays all of it."""
    found, held = _staged(kind, app, mode, name)
    ends, used = time.monotonic() + PATIENCE, time.process_time() + 10
    while any(one() is not None for one in held) and time.monotonic() < ends and time.process_time() < used:
        # A thread of the run, as of a stream that was left, may come to its end a little later: on a busy machine this
        # process has few of ten seconds.
        time.sleep(0.02)
        gc.collect()
    left = ["a session that nobody holds" for one in held if one() is not None]
    return replace(found, left=(*found.left, *left))


def _staged(kind: type[Driver], app: Application, mode: Mode, name: str) -> tuple[Run, list[weakref.ref[Session]]]:
    """One run, and its sessions, which only this frame holds: libraries look into those that call them, and keep it."""
    # Applications of a process are many here, and each is to be as the only one.
    MADE.forget()
    with serving(app.rules) as (provider, headers), pytest.MonkeyPatch.context() as patched:
        provider.simulator.script = Answers(app, provider)
        provider.simulator.latency = Latency(base=app.latency, uncached=0, cached=0, output=0, scale=1)
        stage = kind(mode, provider, app, resumes=not name.startswith("continued"))
        if app.broken is not None and app.broken.break_ and mode != "unmodified":

            def fails(*_: Any, **__: Any) -> Any:
                raise RuntimeError("on purpose")

            patched.setattr(app.broken.break_, fails)
        seen = witnessed(stage, lambda stage: stage.run(), headers)
        records = tuple(provider.requests)
        told = "".join(f"{one.report()}{one.calls!r}{one.failures}" for one in stage.sessions)
        # A stream that was left unread in a circle of its library's own (LiteLLM's) ends here; till then nobody waits
        # for it longer than ``UNREAD``.
        gc.collect()
        left = (*stage.left, *_flights(stage))
        held = [weakref.ref(one) for one in (*stage.sessions, *stage._teams.values())]
        stage.close()
        # CrewAI keeps the errors of its runs, and with them the frames in which they came up, this stage's among them.
        stage._sessions.clear()
        stage._teams.clear()
    if isinstance(seen.tree, dict):
        # Which thread warned first, the clock decides.
        warned = [one for one in seen.tree.get("warnings", []) if one["says"] not in kind.warns]
        seen.tree["warnings"] = sorted(warned, key=str)
    return Run(name, records, seen, left, told, broke=bool(app.broken), framing=stage.framing), held


def _flights(stage: Driver) -> list[str]:
    gates = [session.adapter._gate for session in stage.sessions]
    gates += [getattr(gate, "_local", None) for gate in gates]
    return [f"a leader at the gate ({key!r})" for gate in gates for key in list(getattr(gate, "_flights", ()))]


def within(seconds: float, work: Any, stuck: list[str]) -> Any:
    """What ``work`` gives, or None where it takes longer: then ``stuck`` says where all threads stand.

    On a busy machine it may take longer, up to ten times ``seconds``, as long as this process has work to do at all:
    who waits for something that never comes has none.
    """
    gave: list[Any] = []

    def target() -> None:
        try:
            gave.append(work())
        except BaseException as error:  # shown to whoever started it
            gave.append(error)

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    for _ in range(10):
        used = time.process_time()
        thread.join(seconds)
        if gave or time.process_time() - used < _IDLE * seconds:
            break
    if not gave:
        frames = sys._current_frames().items()
        stuck.append("\n".join("".join(traceback.format_stack(frame, limit=9)) for number, frame in frames
                               if number != threading.get_ident()))  # fmt: skip
        return None
    if isinstance(gave[0], BaseException):
        raise gave[0]
    return gave[0]


def quiet() -> None:
    """What a trial's own process does not need to hear: it is part of what applications see."""
    warnings.simplefilter("ignore", ResourceWarning)
    logging.getLogger().addHandler(logging.NullHandler())


def patient() -> None:
    """Let the SDKs' clients wait a minute for a connection: on a machine that a trial fills, five seconds are few."""
    for name in ("openai", "anthropic"):
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name).DEFAULT_TIMEOUT.connect = 60.0
