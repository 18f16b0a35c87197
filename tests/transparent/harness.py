"""Runs a piece of a framework unmodified, observed and forked, and compares what the application saw.

A driver (``test_FRAMEWORK.py``) makes a ``Stage`` of its own, registers constructs, and calls ``check`` and
``check_used``; README.md beside this file shows one.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import re
import warnings
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import pytest

from cacheprefix import Session
from cacheprefix.server import Echo, Latency, Queue, SimulatedProvider, app
from tests.transparent.compare import Allowed, Found, allowed_in, differences
from tests.transparent.plain import normalised, plain

Mode = Literal["unmodified", "observed", "forked"]
T = TypeVar("T")

_SAME_EVERYWHERE = (
    "host",
    "content-length",
    "x-stainless-retry-count",
    "amz-sdk-invocation-id",
    "x-amz-date",
    "idempotency-key",
    "traceparent",
    "baggage",
)
_HARMLESS = (ResourceWarning,)


class Stage:
    """What a construct is given: a scripted provider, and the framework with or without us."""

    rules: ClassVar[str] = "auto"
    """The provider's cache rules, by name."""

    shapes: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    """See ``plain``."""

    opaque: ClassVar[tuple[str, ...]] = ()
    """See ``plain``."""

    random: ClassVar[tuple[tuple[str, re.Pattern[str]], ...]] = ()
    """See ``normalised``."""

    once: ClassVar[tuple[str, ...]] = ()
    """Parts of what the framework warns of once in a process, whichever construct is the first."""

    def __init__(self, mode: Mode, provider: SimulatedProvider) -> None:
        self.mode = mode
        self.provider = provider
        self._sessions: dict[str, Session] = {}

    @property
    def unmodified(self) -> bool:
        """Whether the application runs without us."""
        return self.mode == "unmodified"

    def script(self, *replies: Any) -> None:
        """What the provider answers from now on: replies one after the other, or one script.

        In every mode the same, so a script may go by the order of requests or by what both layouts hold (a role's
        instruction), never by where it stands.
        """
        one = replies[0] if len(replies) == 1 and callable(replies[0]) else None
        self.provider.simulator.script = one if one is not None else Queue(replies)

    def slow(self, seconds: float) -> None:
        """Let every first token take this long, so that siblings overlap."""
        self.provider.simulator.latency = Latency(base=seconds, uncached=0, cached=0, output=0, scale=1)

    async def asked(self, number: int) -> None:
        """Until the provider has got this many requests: what is cancelled then was sent, on a busy machine too."""

        async def come() -> None:
            while len(self.provider.requests) < number:  # noqa: ASYNC110 - the server's thread tells nobody
                await asyncio.sleep(0.005)

        await asyncio.wait_for(come(), 30)

    def session(self, name: str = "", **options: Any) -> Session:
        """The session of that name, made when first asked for; only for what an unmodified application does not do.

        ``new_session`` says what is in it.
        """
        if self.unmodified:
            raise AssertionError("an unmodified application has no session")
        if name not in self._sessions:
            mode: Literal["observe", "fork"] = "observe" if self.mode == "observed" else "fork"
            self._sessions[name] = self.new_session(mode=mode, **options)
        return self._sessions[name]

    @property
    def sessions(self) -> list[Session]:
        """All that were made."""
        return list(self._sessions.values())

    def new_session(self, **options: Any) -> Session:
        """A session as this framework's constructs use it."""
        return Session(**options)

    def close(self) -> None:
        """Called when the construct has run: a driver drops its clients here."""


class ApiStage(Stage):
    """A stage of coroutine functions, which a driver registers for one of a framework's APIs or for each."""

    apis: ClassVar[Mapping[str, str]] = {}
    """The provider's rules by API; the first is the usual one."""

    patience: ClassVar[float] = 30.0
    """Seconds after which a construct hangs."""

    def __init__(self, mode: Mode, provider: SimulatedProvider) -> None:
        super().__init__(mode, provider)
        self.api = next(iter(self.apis))

    async def aclose(self) -> None:
        """Called in the construct's event loop when it has run."""


S = TypeVar("S", bound=Stage)
Later = Callable[[Any], Coroutine[Any, Any, Any]]


@dataclass(frozen=True, slots=True)
class Construct:
    """One piece of a framework: ``run(stage)`` builds it, runs it, and returns all that the application saw."""

    name: str
    run: Callable[[Any], Any]
    rules: str
    forks: bool
    """Whether forking changes a request; False for what shares nothing by design."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One run of a construct."""

    tree: Any
    wire: tuple[str, ...]
    """Method, path, headers and body of each request, sorted: parallel ones have no order."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """What of ours failed, which must be nothing."""


class Constructs:
    """The constructs of one framework."""

    notes: ClassVar[Path | None] = None
    """A folder of all processes of a run, for what one of them has seen already."""

    def __init__(self, framework: str, stage: type[Stage]) -> None:
        self.framework = framework
        self._stage = stage
        self._all: dict[str, Construct] = {}
        self._seen = functools.lru_cache(maxsize=None)(self._run)
        self.found = functools.lru_cache(maxsize=None)(self._found)
        """Where the application sees something else in a mode than without us."""

    def add(
        self, name: str | None = None, *, rules: str | None = None, forks: bool = True
    ) -> Callable[[Callable[[S], T]], Callable[[S], T]]:
        """Decorates ``run(stage)``; its name is the construct's."""

        def register(run: Callable[[S], T]) -> Callable[[S], T]:
            made = Construct(name or run.__name__, run, rules or self._stage.rules, forks)
            assert made.name not in self._all, f"two constructs are called {made.name!r}"
            self._all[made.name] = made
            return run

        return register

    def later(self, name: str | None = None, *, api: str = "", forks: bool = True) -> Callable[[Later], Later]:
        """Decorates a coroutine function of an ``ApiStage``, for the usual API or another one."""

        def register(run: Later) -> Later:
            self._later(name or run.__name__, run, api or next(iter(self._apis)), forks=forks)
            return run

        return register

    def everywhere(self, run: Later) -> Later:
        """Decorates a coroutine function of an ``ApiStage``, for each API."""
        for api in self._apis:
            self._later(f"{run.__name__}_{api}", run, api)
        return run

    @property
    def _apis(self) -> Mapping[str, str]:
        assert issubclass(self._stage, ApiStage)
        return self._stage.apis

    def _later(self, name: str, run: Later, api: str, *, forks: bool = True) -> None:
        @self.add(name, rules=self._apis[api], forks=forks)
        def within(stage: ApiStage) -> Any:
            stage.api = api

            async def main() -> Any:
                try:
                    return await asyncio.wait_for(run(stage), stage.patience)
                finally:
                    await stage.aclose()

            return asyncio.run(main())

    @property
    def names(self) -> list[str]:
        """Names of all constructs, in the order of their definition."""
        return list(self._all)

    def _found(self, name: str, mode: Mode) -> list[Found]:
        before, after = self._seen(name, "unmodified"), self._seen(name, mode)
        return list(differences(before.tree, after.tree))

    def check(self, name: str, mode: Mode) -> None:
        """Fail where the application sees a difference that is not listed, or we failed, or observed bytes differ."""
        before, after = self._seen(name, "unmodified"), self._seen(name, mode)
        raised = before.tree.get("raised") if isinstance(before.tree, dict) else None
        if raised:
            pytest.fail(f"{name} does not even run unmodified: {json.dumps(raised)[:2_000]}")
        entries = allowed_in(self.framework) if mode == "forked" else []
        if mode == "forked":
            self._tell(name)
        wrong = [one for one in self.found(name, mode) if not any(entry.covers(name, one) for entry in entries)]
        if wrong:
            told = "\n".join(map(str, wrong[:12]))
            pytest.fail(f"{name}, {mode}: the application sees {len(wrong)} differences\n{told}")
        assert not after.failures, f"{name}, {mode}: ours failed: {dict(after.failures)}"
        if mode == "observed":
            assert after.wire == before.wire, f"{name}: observed requests are not byte for byte the unmodified ones"
        elif self._all[name].forks:
            assert after.wire != before.wire, f"{name}: nothing was forked, so nothing was shown"

    def check_used(self, entry: Allowed) -> None:
        """Fail for a listed difference that no construct shows any more."""
        # Only those that it can be about: each is run, where no process of this run has run it before.
        concerned = list(filter(entry.concerns, self._all))
        if any(repr(entry) in (self._told(name) or ()) for name in concerned):
            return
        for name in concerned:
            if self._told(name) is None:
                self._tell(name)
                if any(entry.covers(name, one) for one in self.found(name, "forked")):
                    return
        pytest.fail(f"no construct of {self.framework} shows the listed difference {entry}: take it out")

    def _note(self, name: str) -> Path | None:
        return None if self.notes is None else self.notes / f"{self.framework}-{list(self._all).index(name)}.json"

    def _tell(self, name: str) -> None:
        """Note for all processes of the run which listed differences a construct shows."""
        found, note = self.found(name, "forked"), self._note(name)
        if note is not None:
            entries = allowed_in(self.framework)
            shown = [repr(entry) for entry in entries if any(entry.covers(name, one) for one in found)]
            note.write_text(json.dumps(shown), "utf-8")

    def _told(self, name: str) -> list[str] | None:
        """The listed differences that a construct shows, where a process of this run has seen it."""
        note = self._note(name)
        try:
            shown: list[str] | None = None if note is None else json.loads(note.read_text("utf-8"))
        except (OSError, ValueError):  # none has, or one is just writing it
            return None
        return shown

    def _run(self, name: str, mode: Mode) -> Seen:
        construct = self._all[name]
        with serving(construct.rules) as (provider, headers):
            stage = self._stage(mode, provider)
            return witnessed(stage, construct.run, headers)


def witnessed(stage: S, run: Callable[[S], Any], headers: Sequence[str] = ()) -> Seen:
    """One run on a stage: what was seen, warnings and an exception included, and what was sent."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            tree = {"saw": run(stage)}
        except Exception as error:  # the application's own, and so part of what it sees
            tree = {"raised": error}
        stage.close()
    told = [one for one in warned if not issubclass(one.category, _HARMLESS)]
    told = [one for one in told if not any(part in str(one.message) for part in stage.once)]
    tree["warnings"] = [{"category": one.category.__name__, "says": str(one.message)} for one in told]
    # Everything is shown before the next run, so that nothing of this one is still under way.
    shown = normalised(plain(tree, shapes=stage.shapes, opaque=stage.opaque), stage.random)
    failures = {key: n for one in stage.sessions for key, n in one.failures.items()}
    bodies = [f"{record.path} {record.body.decode('utf-8', 'replace')}" for record in stage.provider.requests]
    return Seen(shown, tuple(sorted(normalised(bodies, stage.random))) + tuple(sorted(headers)), failures)


_PROVIDERS: dict[str, tuple[SimulatedProvider, list[str]]] = {}


@contextlib.contextmanager
def serving(rules: str) -> Iterator[tuple[SimulatedProvider, list[str]]]:
    """One server a rule set for the whole process, empty: the address is the same in every mode."""
    if rules not in _PROVIDERS:
        headers: list[str] = []
        with pytest.MonkeyPatch.context() as patched:
            made = app.create_app
            patched.setattr(app, "create_app", lambda simulator: _noting(made(simulator), headers))
            _PROVIDERS[rules] = (SimulatedProvider(rules).start(), headers)
    provider, headers = _PROVIDERS[rules]
    # What stands by now (frameworks, other tests) is not looked through again before every run.
    gc.collect()
    gc.freeze()
    provider.simulator.script, provider.simulator.latency = Echo(), Latency()
    provider.reset()
    headers.clear()
    yield provider, headers


def _noting(app: Any, headers: list[str]) -> Any:
    """The server's application, which notes every request's line and headers."""

    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            told = [(k.decode(), v.decode("latin-1")) for k, v in scope["headers"]]
            # Amazon's signature is made of the time and of all that is compared anyway.
            told = [(k, v) for k, v in told if not v.startswith("AWS4-HMAC-SHA256 ")]
            kept = sorted(f"{k}: {v}" for k, v in told if k not in _SAME_EVERYWHERE)
            headers.append(f"{scope['method']} {scope['path']}?{scope['query_string'].decode()} {kept}")
        await app(scope, receive, send)

    return asgi
