"""OpenAI's and Anthropic's own clients, wrapped once for a tenant's people or for each request."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

import anthropic
import openai

from cacheprefix.wire.answers import read_answer
from cacheprefix_sdk import role as in_role
from cacheprefix_sdk import wrap
from tests.sdk.sdk_driver import MODELS, creator, final, make_client, streamer
from tests.transparent.compare import Allowed
from tests.trial.applications import Person, Role, Turn, asking, hooks
from tests.trial.loops import Loops

_TRANSPORTS = [import_module(name).HTTPError for name in ("httpx", "httpx2") if find_spec(name)]
"""What a transport raises: some versions of the clients speak by the one library, some by the other."""


class Trial(Loops):
    """A wrapped client's ``create`` and streams."""

    # A client passes on what its transport raises while a stream is read; one asserts that events come in order, and
    # Anthropic's reads the usage of a stream that says none.
    errors = (
        *(openai.OpenAIError, anthropic.AnthropicError, *_TRANSPORTS),
        *(AssertionError, AttributeError, ValueError, RuntimeError),
    )
    framework: ClassVar[str] = "sdk"
    allowed: ClassVar[tuple[Allowed, ...]] = (
        Allowed(("sdk",), "*", "saw*response.tools[*", ("value", "type", "added", "removed"), "tools",
                "an answer of the Responses API says which tools were sent: the team's, in the team's order"),
        Allowed(("sdk",), "*", "saw*].tools[*", ("value", "type", "added", "removed"), "tools", "the same"),
        Allowed(("sdk",), "*", "saw*tool_choice", ("value", "type"), "tools", "a role's own are what it may choose of"),
    )  # fmt: skip

    @property
    def model(self) -> str:
        """Of the API."""
        return MODELS[self.app.api]

    def run(self) -> Any:
        """By clients of the kind that the application is."""
        self.wrapped: dict[tuple[int, str], Any] = {}

        async def main() -> Any:
            self.client = make_client(self.app.api, self.provider, later=True, hooks=hooks(later=True))
            async with self.client:
                return await self.play()

        if self.app.later:
            return self.later(main())
        with make_client(self.app.api, self.provider, hooks=hooks()) as self.client, ThreadPoolExecutor(9) as pool:
            return asyncio.run(self.play(pool))

    def _wrapped(self, person: Person) -> Any:
        if self.unmodified:
            return self.client
        made, key = wrap(self.client, self.session_of(person)), (self.process, person.tenant)
        return self.wrapped.setdefault(key, made) if self.common else made

    def close(self) -> None:
        """Let go of the clients."""
        self.wrapped.clear()

    async def request(
        self, turn: Turn, person: Person, role: Role, history: list[Any], attempt: int
    ) -> tuple[Any, Any]:
        """What was seen of one request, and the answer; None where it did not come to its end."""
        api, body = self.app.api, self.body(turn, person, role, history)
        client, named = self._wrapped(person), person.thread if self.app.named else ""
        told = self.volatile(turn, person)
        doing = contextlib.nullcontext() if self.unmodified else in_role(role.name, conversation=named, volatile=told)
        way = turn.way if not turn.form else "whole"
        agent = f"{role.name}#cancelled" if way == "cancelled" else role.name
        with asking(person, turn, agent, attempt), doing:
            if way == "cancelled":
                task = asyncio.create_task(creator(client, api)(**body))
                await asyncio.sleep(self.app.latency / 2)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, *self.errors):
                    await task
                return "cancelled", None
            if way == "left":
                stream = await _got(creator(client, api)(**body, stream=True))
                async with _entered(stream) as events:
                    first = await events.__anext__() if self.app.later else next(events)
                return [first, stream.response.is_closed], None
            if way == "stream" and "tools" not in body:
                async with _entered(streamer(client, api)(**body)) as stream:
                    events = [event async for event in stream] if self.app.later else list(stream)
                    whole = await _got(final(stream, api))
                return [events, whole], read_answer(whole, api)
            whole = await _got(creator(client, api)(**body))
            return whole, read_answer(whole, api)


async def _got(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


@contextlib.asynccontextmanager
async def _entered(manager: Any) -> Any:
    if hasattr(manager, "__aenter__"):
        async with manager as given:
            yield given
    else:
        with manager as given:
            yield given
