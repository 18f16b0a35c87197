"""The conversation of ``cacheprefix bench`` in two layouts, turn by turn, and what each turn cost."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from cacheprefix.cli import bench_script as script

if TYPE_CHECKING:
    from cacheprefix.profiles import Profile, Usage
    from cacheprefix.prompt import Api

LIMIT = 3_500
"""Tokens of a request that the application allows itself."""


class Model(Protocol):
    """Who answers a request: a provider's API or the simulated one."""

    api: Api
    name: str
    profile: Profile

    def __call__(self, body: dict[str, Any], turn: int) -> tuple[str, Usage]:
        """The text and the usage of an answer."""


@dataclass(frozen=True)
class TurnRow:
    """One turn in one layout. Tokens; cost in cost units (the price of an uncached token is 1) and USD."""

    turn: int
    layout: str
    matching: str
    input_tokens: int
    cached_tokens: int
    written_tokens: int
    cost_units: float
    usd: float | None
    volatile_changed: bool

    @property
    def cached_share(self) -> float:
        """Cached tokens of all input tokens."""
        return self.cached_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def saving(self) -> float:
        """Share saved against the same request without caching."""
        return 1 - self.cost_units / self.input_tokens if self.input_tokens else 0.0


class Simulated:
    """The rules of a profile, with scripted answers."""

    api: Api = "openai-chat"

    def __init__(self, profile: Profile, model: str) -> None:
        from cacheprefix.server import ProviderCache

        self.profile, self.name = profile, model
        self._cache = ProviderCache(profile)

    def __call__(self, body: dict[str, Any], turn: int) -> tuple[str, Usage]:
        """The scripted answer, and what the rules say was read."""
        from cacheprefix.profiles import Usage
        from cacheprefix.wire import decode

        outcome = self._cache.serve(decode(body, self.api), float(turn * 10), first_token_at=turn * 10 + 1.0)
        written = dict(outcome.write_tokens) or None
        return script.answer(turn), Usage(outcome.input_tokens, outcome.read_tokens, written, 150)


class _Naive:
    """Static and dynamic text in the first message, the oldest messages dropped."""

    def __init__(self, model: Model, static: str) -> None:
        self._model, self._static = model, static
        self._history: list[dict[str, Any]] = []

    def ask(self, turn: int) -> tuple[str, Usage]:
        """Ask a turn's question, the oldest messages dropped as the window asks; the answer, and what it used."""
        from cacheprefix.prompt import estimate_tokens

        self._history.append({"role": "user", "content": script.question(turn)})
        system = f"{self._static}\n\n{script.volatile(turn)}"
        room = LIMIT - estimate_tokens(system)
        while len(self._history) > 1 and sum(estimate_tokens(m["content"]) + 3 for m in self._history) > room:
            del self._history[0]
        while self._history[0]["role"] != "user":
            del self._history[0]
        body = request(self._model, system, self._history)
        if self._model.api == "anthropic":
            # Without a mark nothing would be cached; this is the provider's own automatic one.
            body["cache_control"] = {"type": "ephemeral"}
        text, usage = self._model(body, turn)
        self._history.append({"role": "assistant", "content": text})
        return text, usage


class _Ours:
    """A conversation of a session: static text, history, and the volatile text behind everything cached."""

    def __init__(self, model: Model, static: str) -> None:
        from cacheprefix import Caching, Compaction, Session, SharedPrefix

        self._model = model
        self._session = Session(
            SharedPrefix(system=static),
            caching=Caching(provider=model.profile.name),
            compaction=Compaction(LIMIT),
            gate=None,
        )
        api: Any = model.api if model.api in ("openai-chat", "anthropic") else "openai-chat"
        self._conversation = self._session.conversation("bench", api=api, model=model.name)

    def ask(self, turn: int) -> tuple[str, Usage]:
        """Ask the question of a turn through the session; the answer, and what it used."""
        self._conversation.append({"role": "user", "content": script.question(turn)})
        built = self._conversation.build(script.volatile(turn))
        messages = built.messages[1:] if self._conversation.api == "openai-chat" else built.messages
        body = request(self._model, built.system, messages)
        from cacheprefix.adapter import Request

        asked = Request(body, self._model.api, conversation=self._conversation, boundary=built.boundary)
        sent = self._session.adapter.begin(asked)
        try:
            text, usage = self._model(dict(sent.body), turn)
        except BaseException:
            sent.fail()
            raise
        sent.finish(usage)
        self._conversation.append({"role": "assistant", "content": text})
        return text, usage


def request(model: Model, system: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """A body in the form of the model's API."""
    if model.api == "anthropic":
        return {"model": model.name, "max_tokens": 300, "system": system, "messages": list(messages)}
    if model.api == "gemini":
        contents: list[dict[str, Any]] = []
        for message in messages:
            role = "model" if message["role"] == "assistant" else "user"
            part = {"text": message["content"]}
            if contents and contents[-1]["role"] == role:
                contents[-1]["parts"].append(part)
            else:
                contents.append({"role": role, "parts": [part]})
        return {"model": model.name, "systemInstruction": {"parts": [{"text": system}]}, "contents": contents}
    return {"model": model.name, "messages": [{"role": "system", "content": system}, *messages]}


def hold(
    make: Callable[[], Model], turns: int, *, layouts: tuple[str, ...], matching: str, live: bool
) -> Iterator[TurnRow]:
    """The conversation once in each layout, each with a cache of its own; a row a turn as it happens."""
    from cacheprefix.profiles import cost_units, money

    for layout in layouts:
        model = make()
        # A text of its own keeps a layout from reading what the other, or an earlier run, has written.
        static = f"Desk {uuid.uuid4()}.\n{script.STATIC}" if live else script.STATIC
        side = _Naive(model, static) if layout == "naive" else _Ours(model, static)
        for turn in range(turns):
            _, usage = side.ask(turn)
            total, read = usage.input_tokens or 0, usage.cache_read_tokens or 0
            whole = replace(usage, cache_read_tokens=read)
            yield TurnRow(
                turn + 1,
                layout,
                matching,
                total,
                read,
                usage.cache_write_tokens or 0,
                round(cost_units(whole, model.profile), 1),
                money(whole, model.name, model.profile),
                turn > 0 and turn % script.EVERY == 0,
            )
