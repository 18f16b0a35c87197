"""``ScriptedModel``: a model that says what a test tells it to, and remembers what it was asked."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from cacheprefix.prompt import Api, dumps, loads
from cacheprefix.server import Echo, Reply, Request, Script, SimulatedProvider, Simulator
from cacheprefix.wire import guess_api

_PATHS: Mapping[Api, str] = {
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "anthropic": "/v1/messages",
}


class ScriptedModel:
    """Answers with what was queued, then by ``then`` (default: an echo). Give it to a provider as its script.

    >>> model = ScriptedModel("first", Reply(tool_calls=(ToolCall("search", {"q": "x"}),)))  # doctest: +SKIP
    >>> with model.serve("openai-5.6") as provider: ...  # doctest: +SKIP
    >>> model.requests[-1].text  # doctest: +SKIP

    ``send(body)`` answers in this process, without HTTP: for ``Session.fork(send=model.send)`` and loops of one's
    own. Safe to call from several threads.
    """

    def __init__(self, *replies: Reply | str, then: Script | None = None, rules: str = "auto") -> None:
        self._queue: deque[Reply] = deque()
        self._then: Script = then or Echo()
        self._rules = rules
        self._lock = threading.Lock()
        self._simulator: Simulator | None = None
        self.requests: list[Request] = []
        """What was asked, in order."""
        self.enqueue(*replies)

    def enqueue(self, *replies: Reply | str) -> None:
        """Add answers behind those that wait."""
        with self._lock:
            self._queue.extend(Reply(one) if isinstance(one, str) else one for one in replies)

    @property
    def waiting(self) -> int:
        """Queued answers that were not asked for yet; a test that told all of its script ends with 0."""
        return len(self._queue)

    def __call__(self, request: Request) -> Reply:
        """The next answer."""
        with self._lock:
            self.requests.append(request)
            queued = self._queue.popleft() if self._queue else None
        return self._then(request) if queued is None else queued

    def serve(self, rules: str | None = None, **options: Any) -> SimulatedProvider:
        """A simulated provider that answers by this script; use it as a context manager."""
        return SimulatedProvider(rules or self._rules, self, **options)

    def send(self, body: Mapping[str, Any], api: Api | None = None) -> dict[str, Any]:
        """Answer a request body as the provider would, cache counts included.

        Speaks OpenAI chat, OpenAI responses and Anthropic messages. Raises ``RuntimeError`` where the provider
        would have refused the request.
        """
        api = api or guess_api(body)
        with self._lock:
            simulator = self._simulator = self._simulator or Simulator(self._rules, self)
        exchange = simulator.accept(api, _PATHS.get(api, ""), dumps(dict(body), "body"), {})
        simulator.begin(exchange)
        simulator.end(exchange)
        if exchange.turn is None or exchange.record.status != 200:
            raise RuntimeError(f"the scripted model refused the request: {exchange.record.error}")
        answer: dict[str, Any] = loads(dumps(exchange.wire.answer(exchange.turn), "answer"))
        return answer
