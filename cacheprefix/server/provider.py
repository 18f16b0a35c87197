"""The simulated provider as a server in this process, for tests, demonstrations and benchmarks."""

from __future__ import annotations

import atexit
import socket
import threading
import time
from collections.abc import Callable, MutableSequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import Self

from cacheprefix.errors import MissingExtraError, SetupError
from cacheprefix.profiles import Profile, Registry
from cacheprefix.prompt import IMAGE_TOKENS, CountTokens, estimate_tokens
from cacheprefix.server.latency import Latency
from cacheprefix.server.request_log import Log, Record
from cacheprefix.server.script import Script
from cacheprefix.server.simulator import AUTO, Simulator

if TYPE_CHECKING:
    import uvicorn

_PATIENCE = 10.0
_STEP = 0.002

_KEEP_ALIVE = 600
"""Seconds until a connection that nobody uses is closed. uvicorn closes it after 5, and httpx uses it until then:
what is sent in that moment is lost."""


class SimulatedProvider:
    """A provider whose cache follows ``rules``, at an address of its own.

    >>> with SimulatedProvider(rules="anthropic") as provider:  # doctest: +SKIP
    ...     client = anthropic.Anthropic(base_url=provider.anthropic_base_url, api_key="any")

    ``rules`` is the name of a profile row (``exact``, ``openai``, ``openai-5.6``, ``anthropic`` …), a
    ``Profile``, or ``auto`` for the rules of each request's model. Other parameters:

    - ``script`` decides the answers (default: ``Echo``), ``latency`` their pace (default: none is slept).
    - ``clock`` gives seconds; a test of lifetimes passes its own.
    - ``count`` counts tokens; the client must count alike for exact comparisons.
    - ``image_tokens`` is what one image counts, whatever its bytes.
    - ``port`` 0 takes a free one. ``record`` is a file for the log that ``cacheprefix audit`` reads.
    - ``keep`` bounds how many requests are remembered, ``capacity_tokens`` how much is cached.
    - ``crowding`` spreads busy routing keys over machines as the profile's ``rate_per_key`` says.
    - ``strict`` answers 400 to what the real provider would not take: a result without its call, a call without its
      result, empty texts, wrong order, a prefill where the model takes none (``cacheprefix.wire.structure_errors``).

    Raises ``SetupError`` for a busy port, ``ProfileError`` for unknown rules, ``MissingExtraError``.
    """

    def __init__(
        self,
        rules: str | Profile = AUTO,
        script: Script | None = None,
        *,
        latency: Latency | None = None,
        clock: Callable[[], float] = time.time,
        count: CountTokens = estimate_tokens,
        image_tokens: int = IMAGE_TOKENS,
        registry: Registry | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        record: str | Path | None = None,
        keep: int | None = None,
        capacity_tokens: int | None = None,
        crowding: bool = False,
        strict: bool = True,
    ) -> None:
        for package in ("starlette", "uvicorn"):
            if find_spec(package) is None:
                raise MissingExtraError("the simulated provider", "server", package)
        self._host = host
        self._port = port
        self._log = None if record is None else Log(record)
        self.simulator = Simulator(
            rules,
            script,
            latency=latency,
            clock=clock,
            count=count,
            image_tokens=image_tokens,
            registry=registry,
            capacity_tokens=capacity_tokens,
            crowding=crowding,
            keep=keep,
            log=self._log,
            strict=strict,
        )
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Begin to listen; returns when requests are answered."""
        import uvicorn  # noqa: PLC0415 - an extra

        from cacheprefix.server.app import create_app  # noqa: PLC0415 - needs the extra

        listening = self._listen()
        self._port = listening.getsockname()[1]
        config = uvicorn.Config(
            create_app(self.simulator),
            log_config=None,
            log_level="critical",
            lifespan="off",
            access_log=False,
            timeout_graceful_shutdown=1,
            timeout_keep_alive=_KEEP_ALIVE,
            ws="none",
        )
        self._server = server = uvicorn.Server(config)
        self._thread = threading.Thread(target=server.run, args=([listening],), name="simulated-provider", daemon=True)
        self._thread.start()
        # uvloop's timers call into Python whether it still stands or not: a server that runs when the interpreter ends
        # can end the process with a segmentation fault.
        atexit.register(self.stop)
        until = time.monotonic() + _PATIENCE
        while not server.started:
            if not self._thread.is_alive() or time.monotonic() > until:
                listening.close()
                raise SetupError("the simulated provider did not start; another event loop policy may be in the way")
            time.sleep(_STEP)
        return self

    def stop(self) -> None:
        """Stop listening and close the log. Calls under way get a second to end."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(_PATIENCE)
        self._server = self._thread = None
        atexit.unregister(self.stop)
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """The port in use."""
        return self._port

    @property
    def url(self) -> str:
        """``http://host:port``."""
        return f"http://{self._host}:{self._port}"

    @property
    def openai_base_url(self) -> str:
        """What OpenAI's clients want as ``base_url``."""
        return f"{self.url}/v1"

    @property
    def anthropic_base_url(self) -> str:
        """What Anthropic's clients want as ``base_url``."""
        return self.url

    @property
    def requests(self) -> MutableSequence[Record]:
        """The requests so far, in order of arrival."""
        return self.simulator.requests

    def reset(self) -> None:
        """Forget all requests and empty all caches."""
        self.simulator.reset()

    def _listen(self) -> socket.socket:
        """A socket that listens; raises ``SetupError`` for a port that is taken."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        # Named as TCP, or asyncio does not turn off the delay of small packets and every answer waits 40 ms.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((self._host, self._port))
        except OSError as error:
            listening.close()
            raise SetupError(
                f"cannot listen on {self._host}:{self._port} ({error.strerror}); "
                "choose another port, or 0 for a free one"
            ) from error
        return listening
