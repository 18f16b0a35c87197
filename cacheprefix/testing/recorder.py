"""Records the prompts of a run: on the wire through httpx, through a session, or at a simulated provider."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from cacheprefix.errors import BodyError, SetupError
from cacheprefix.prompt import Prompt, loads
from cacheprefix.wire import api_of_path, decode, guess_api
from cacheprefix.wire.apis import SHAPES

if TYPE_CHECKING:
    from cacheprefix.profiles import Profile
    from cacheprefix.server import Script, SimulatedProvider
    from cacheprefix.session import Session

_CLIENTS = ("httpx", "httpx2")
"""HTTP clients of the providers' SDKs; each is watched where it is installed."""
_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One model request as it was sent."""

    index: int
    prompt: Prompt
    body: bytes = b""
    """The bytes on the wire; empty for a call recorded through a session."""
    url: str = ""
    agent: str = ""


class PrefixRecorder:
    """The fixture ``prefix_recorder``: a context manager that may also be used without pytest.

    While it is open, every model request that goes through httpx is recorded, whatever answers it. ``watch(session)``
    records through a session instead, ``serve()`` at a simulated provider that the SDKs' environment variables then
    point to; each source switches the former one off, so that no request is recorded twice. A request that an SDK
    sends again is a request of its own.
    """

    def __init__(self, *, setenv: Callable[[str, str], None] | None = None) -> None:
        self._setenv = setenv
        self._calls: list[RecordedCall] = []
        self._lock = threading.Lock()
        self._http = contextlib.ExitStack()
        self._rest = contextlib.ExitStack()
        self._provider: SimulatedProvider | None = None

    def __enter__(self) -> Self:
        for name in _CLIENTS:
            if find_spec(name) is not None:
                self._patch(import_module(name))
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()
        self._rest.close()

    @property
    def calls(self) -> tuple[RecordedCall, ...]:
        """The calls so far, in the order in which they went out."""
        if self._provider is not None:
            return tuple(
                RecordedCall(at, record.prompt, record.body, record.path, record.agent or "")
                for at, record in enumerate(self._provider.requests)
                if record.prompt is not None
            )
        with self._lock:
            return tuple(self._calls)

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """Their prompts."""
        return tuple(call.prompt for call in self.calls)

    def __iter__(self) -> Iterator[RecordedCall]:
        return iter(self.calls)

    def __len__(self) -> int:
        return len(self.calls)

    def clear(self) -> None:
        """Forget what was recorded; a simulated provider's cache is emptied as well."""
        with self._lock:
            self._calls.clear()
        if self._provider is not None:
            self._provider.reset()

    def watch(self, session: Session) -> Session:
        """Record the requests of ``session`` and its children from here on, and give the session back."""
        self._http.close()
        session.plugins.register(_Watch(self), "prefix_recorder")
        return session

    def serve(self, rules: str | Profile = "auto", script: Script | None = None, **options: Any) -> SimulatedProvider:
        """Start a simulated provider, record there, and let the SDKs find it by their environment variables.

        ``rules``, ``script`` and ``options`` are those of ``SimulatedProvider``. Needs
        the extra ``server``. Raises ``SetupError`` when the recorder serves already.
        """
        if self._provider is not None:
            raise SetupError(f"this recorder serves already, at {self._provider.url}; use its provider, or clear()")
        from cacheprefix.server import SimulatedProvider  # noqa: PLC0415 - loaded where it is used

        provider = self._rest.enter_context(SimulatedProvider(rules, script, **options))
        self._http.close()
        self._provider = provider
        if self._setenv is not None:
            self._setenv("OPENAI_BASE_URL", provider.openai_base_url)
            self._setenv("ANTHROPIC_BASE_URL", provider.anthropic_base_url)
            for name in _KEYS:
                self._setenv(name, "any")
        return provider

    def add(self, prompt: Prompt, body: bytes = b"", url: str = "") -> None:
        """Take in a prompt recorded elsewhere."""
        with self._lock:
            self._calls.append(RecordedCall(len(self._calls), prompt, body, url))

    def _patch(self, client: Any) -> None:
        """Look at what the two client classes send; the request itself goes on as it is."""
        for kind in (client.Client, client.AsyncClient):
            original = kind.send

            def send(own: Any, request: Any, *args: Any, _original: Any = original, **options: Any) -> Any:
                self._saw(request)
                return _original(own, request, *args, **options)

            kind.send = send
            self._http.callback(setattr, kind, "send", original)

    def _saw(self, request: Any) -> None:
        # A test records what it can read; a body that is streamed, or no prompt, is somebody else's request.
        with contextlib.suppress(BodyError, RuntimeError):
            if request.method == "POST":
                path = str(request.url.path)
                content: bytes = request.content
                prompt = _prompt(path, content, {name.lower(): value for name, value in request.headers.items()})
                if prompt is not None:
                    self.add(prompt, content, path)


class _Watch:
    """The session's plugin behind ``watch``."""

    def __init__(self, recorder: PrefixRecorder) -> None:
        self._recorder = recorder

    def cacheprefix_before_call(self, prompt: Prompt) -> None:
        """Take the prompt in."""
        self._recorder.add(prompt)


def _prompt(path: str, content: bytes, headers: Mapping[str, str]) -> Prompt | None:
    """The prompt of a request, by the address it goes to; None for embeddings and the like."""
    addressed = api_of_path(path)
    if addressed is not None:
        api, named = addressed
        body = loads(content)
        if not isinstance(body, Mapping):
            return None
        if named is not None:
            body = {**body, SHAPES[api].FIELDS.model: named}
        kept = {name: headers[name] for name in ("anthropic-beta",) if name in headers}
        return decode(body, api, headers=kept)
    # Counting tokens takes a prompt as well, and caches nothing.
    body = loads(content) if content[:1] == b"{" and not path.endswith("count_tokens") else None
    return decode(body, guess_api(body)) if isinstance(body, Mapping) and "messages" in body else None
