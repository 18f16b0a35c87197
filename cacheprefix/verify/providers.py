"""Who answers: a provider over HTTP, or a rehearsal in this process that shows what the real run will ask and cost."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

from cacheprefix.errors import CacheprefixError
from cacheprefix.profiles import Profile, Usage, merge_usage, normalise_usage
from cacheprefix.prompt import Api, dumps, loads
from cacheprefix.server import Echo, Simulator
from cacheprefix.verify.lab import Answer, Body

_SECONDS = 180.0
_BUSY = frozenset({429, 500, 502, 503, 529})
_REFUSED = frozenset({400, 413, 422})
"""Statuses by which a provider says that it does not take such a request."""
_PATHS = {"openai-chat": "/chat/completions", "anthropic": "/v1/messages"}


class HttpProvider:
    """A provider at an address.

    Args:
        url: base address, with ``/v1`` for OpenAI's API and without for Anthropic's, as their SDKs take it.
        key: sent as the API wants it; empty for servers that want none.
        api: ``openai-chat`` or ``anthropic``.
        profile: tells how its token counts are to be read.
    """

    def __init__(self, url: str, key: str, api: Api, profile: Profile) -> None:
        self._url = url.rstrip("/") + _PATHS[api]
        self._api = api
        self._profile = profile
        self._headers = {"content-type": "application/json"}
        if api == "anthropic":
            self._headers |= {"x-api-key": key, "anthropic-version": "2023-06-01"}
        elif key:
            self._headers["authorization"] = f"Bearer {key}"

    def ask(self, body: Body) -> Answer:
        """See ``Provider``."""
        return self._sent(body, lambda answer: normalise_usage(loads(answer.read()), self._api, profile=self._profile))

    def ask_during(self, body: Body, other: Body) -> tuple[Answer, Answer]:
        """See ``Provider``."""
        with ThreadPoolExecutor(1) as pool:
            during: list[Future[Answer]] = []
            first = self._streamed(body, lambda: during.append(pool.submit(self._streamed, other)))
            second = during[0].result() if during else Answer(Usage(), first.refused or "the stream said nothing")
        return first, second

    def ask_together(self, body: Body, other: Body) -> tuple[Answer, Answer]:
        """See ``Provider``."""
        ready = Barrier(2)

        def sent(one: Body) -> Answer:
            ready.wait(_SECONDS)
            return self._streamed(one)

        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(sent, (body, other))
        return first, second

    def _streamed(self, body: Body, begun: Callable[[], None] = lambda: None) -> Answer:
        """An answer that comes in pieces; ``begun`` is called when its first token has come."""
        times: list[float] = []

        def read(answer: Any) -> Usage:
            reports = []
            for line in answer:
                event = loads(line[5:]) if line.startswith(b"data: {") else None
                if not isinstance(event, dict):
                    continue
                if _says_something(event):
                    times.append(time.monotonic())
                    if len(times) == 1:
                        begun()
                if "usage" in str(event.keys()) or "message" in event:
                    reports.append(event)
            held = [one.get("message", one) for one in reports]
            found = merge_usage(*(one["usage"] for one in held if isinstance(one.get("usage"), dict)))
            return normalise_usage(found or None, self._api, profile=self._profile)

        asked: Body = {**body, "stream": True}
        if self._api == "openai-chat":
            asked["stream_options"] = {"include_usage": True}
        answer = self._sent(asked, read)
        return replace(answer, began_at=times[0], ended_at=times[-1]) if times else answer

    def _sent(self, body: Body, read: Callable[[Any], Usage]) -> Answer:
        request = urllib.request.Request(self._url, dumps(body, "body"), self._headers)  # noqa: S310 - the user's address
        for pause in (1.0, 2.0, 4.0, None):
            found = self._attempt(request, read, last=pause is None)
            if found is not None:
                return found
            time.sleep(pause or 0.0)
        raise CacheprefixError("the provider stayed busy; try again later")

    def _attempt(self, request: Any, read: Callable[[Any], Usage], *, last: bool) -> Answer | None:
        """One try; None where the provider was busy, which has nothing to do with the rule under test."""
        began = time.perf_counter()
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310 - the user's address
                return Answer(read(answer), seconds=time.perf_counter() - began)
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(300).decode(errors="replace")
            if error.code in _BUSY and not last:
                return None
            if error.code in _REFUSED:
                return Answer(Usage(), said or str(error.code))
            raise CacheprefixError(f"the provider answered {error.code}: {said}") from error
        except (OSError, ValueError) as error:
            raise CacheprefixError(f"the provider could not be asked: {error}") from error

    def is_simulated(self) -> bool:
        """Whether a simulated provider of ours answers at this address."""
        base = self._url.removesuffix(_PATHS[self._api])
        listed = f"{base}/models" if self._api == "openai-chat" else f"{base}/v1/models"
        request = urllib.request.Request(listed, headers=self._headers)  # noqa: S310 - the user's address
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310 - as above
                return b'"owned_by":"cacheprefix"' in answer.read()
        except OSError:
            return False


def _says_something(event: dict[str, Any]) -> bool:
    """Whether an event of a stream carries the first of the answer's own tokens."""
    delta = (event.get("choices") or [{}])[0].get("delta", {}) if "choices" in event else event.get("delta", {})
    return isinstance(delta, dict) and any(delta.get(name) for name in ("content", "text", "reasoning_content"))


class Rehearsal:
    """A provider in this process that does what the row under test says. No request leaves the machine."""

    def __init__(self, profile: Profile, api: Api) -> None:
        self._now = 0.0
        self._api = api
        self._profile = profile
        self._simulator = Simulator(profile, Echo(20), clock=lambda: self._now, keep=0)

    def sleep(self, seconds: float) -> None:
        """Let so many seconds go by at once."""
        self._now += seconds

    def ask(self, body: Body) -> Answer:
        """See ``Provider``."""
        return self._ended(self._begun(self._accepted(body)))

    def ask_during(self, body: Body, other: Body) -> tuple[Answer, Answer]:
        """See ``Provider``."""
        first = self._begun(self._accepted(body))
        during = self.ask(other)
        return self._ended(first), during

    def ask_together(self, body: Body, other: Body) -> tuple[Answer, Answer]:
        """See ``Provider``."""
        both = [self._accepted(one) for one in (body, other)]
        first, second = [self._ended(self._begun(one)) for one in both]
        return first, second

    def _accepted(self, body: Body) -> Any:
        return self._simulator.accept(self._api, _PATHS[self._api], dumps(body, "body"), {})

    def _begun(self, exchange: Any) -> Any:
        self._now += 0.5
        if exchange.record.status < 400:
            self._simulator.begin(exchange)
        return exchange

    def _ended(self, exchange: Any) -> Answer:
        self._now += 0.5
        self._simulator.end(exchange)
        record = exchange.record
        if record.status >= 400:
            return Answer(Usage(), record.error or "refused")
        return Answer(normalise_usage(record.usage, self._api, profile=self._profile))
