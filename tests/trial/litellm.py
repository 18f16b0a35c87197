"""LiteLLM's functions and routers, both ways of asking; bodies are in OpenAI's form whoever serves the model."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar

from tests.transparent.test_litellm import MODELS, Calls  # isort: skip - it sets what LiteLLM reads when it is loaded

import httpx
import litellm
import openai
from litellm.router import Router

from cacheprefix.wire.answers import read_answer
from cacheprefix_litellm import install, unwrap, wrap
from cacheprefix_litellm import role as in_role
from tests.trial.applications import Answers, Person, Role, Turn, asking, whose
from tests.trial.checks import Framing
from tests.trial.loops import Loops


class Trial(Loops):
    """Wrapped functions, or a wrapped router a tenant, or one that all share, with ``install`` around each call."""

    framework: ClassVar[str] = "litellm"
    apis: ClassVar[tuple[str, ...]] = ("openai-chat", "anthropic")
    errors = (openai.OpenAIError, httpx.HTTPError, ValueError)
    shapes = Calls.shapes
    opaque = Calls.opaque
    framing = Framing(filler="dummy_tool")
    # What of LiteLLM's own a cancelled call had begun, the clock decides.
    once = (*Calls.once, "was never awaited")

    @property
    def form(self) -> str:
        """OpenAI's, whoever answers."""
        return "openai-chat"

    @property
    def model(self) -> str:
        """The group of a router, or the model."""
        return "team" if self.routed else MODELS[self.vendor]

    def run(self) -> Any:
        """By functions of the kind that the application is."""
        gc.disable()  # a stream that is collected inside httpcore's pool waits for itself: tests/collecting.py
        self.vendor = "anthropic" if self.app.api == "anthropic" else "openai"
        self.routed = self.app.kind == "router" if self.app.kind else self.app.seed % 3 == 0
        # Not awaited where a loop runs, as it does here, one that is not wrapped asks in a thread of LiteLLM's own.
        self.everybodys = self.routed and self.common and self.app.later
        self.routers: dict[tuple[int, str], Any] = {}
        self.functions: dict[tuple[int, str], Any] = {}
        if self.routed and not self.app.later:
            # Behind a stream that breaks off a router asks again, without us too, and here each would break off.
            kept = (replace(one, fault="" if one.fault == "cut" else one.fault) for one in self.app.turns)
            self.app = replace(self.app, turns=tuple(kept))
            self.provider.simulator.script = Answers(self.app, self.provider)
        if self.vendor == "anthropic":
            # LiteLLM asks Claude for a form by a tool of its own.
            self.app = replace(self.app, turns=tuple(replace(one, form=False) for one in self.app.turns))
        if self.app.later:
            return self.later(self._main())
        with ThreadPoolExecutor(9) as pool:
            return asyncio.run(self.play(pool))

    async def _main(self) -> Any:
        saw = await self.play()
        await Calls.aclose(self)  # type: ignore[arg-type]
        return saw

    def _function(self, person: Person) -> Any:
        name = "acompletion" if self.app.later else "completion"
        if not self.routed:
            plain = getattr(litellm, name)
            made = plain if self.unmodified else wrap(plain, self.session_of(person))
            return self.functions.setdefault((self.process, person.tenant), made) if self.common else made
        key = self.process, "" if self.everybodys else person.tenant
        if key not in self.routers:
            made = Router([{"model_name": "team", "litellm_params": {"model": MODELS[self.vendor], **self._place}}],
                          num_retries=0)  # fmt: skip
            self.routers[key] = made if self.unmodified or self.everybodys else wrap(made, self.session_of(person))
        return getattr(self.routers[key], name)

    @property
    def _place(self) -> dict[str, Any]:
        claude = self.vendor == "anthropic"
        base = self.provider.anthropic_base_url if claude else self.provider.openai_base_url
        return {"api_base": base, "api_key": "k", "max_retries": 0}

    async def request(
        self, turn: Turn, person: Person, role: Role, history: list[Any], attempt: int
    ) -> tuple[Any, Any]:
        """What was seen of one request, and the answer; None where it did not come to its end."""
        body = {**self.body(turn, person, role, history), **({} if self.routed else self._place)}
        ask = self._function(person)
        way = turn.way if not turn.form else "whole"
        with (
            asking(person, turn, f"{role.name}#cancelled" if way == "cancelled" else role.name, attempt),
            self._doing(turn, person, role),
        ):
            body["extra_headers"] = whose()
            if way == "cancelled":
                task = asyncio.create_task(ask(**body))
                await asyncio.sleep(self.app.latency / 2)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, *self.errors):
                    await task
                return "cancelled", None
            if way not in ("left", "stream"):
                whole = ask(**body)
                whole = await whole if inspect.isawaitable(whole) else whole
                return whole, read_answer(whole, "openai-chat")
            stream = ask(**body, stream=True)
            stream = await stream if inspect.isawaitable(stream) else stream
            if way == "left":
                first = await anext(stream) if self.app.later else next(stream)
                if self.app.later:
                    await stream.aclose()
                return first, None
            chunks = [chunk async for chunk in stream] if self.app.later else list(stream)
            whole = litellm.stream_chunk_builder(chunks)
            return [chunks, whole], read_answer(whole, "openai-chat")

    @contextlib.contextmanager
    def _doing(self, turn: Turn, person: Person, role: Role) -> Iterator[None]:
        """The blocks around a call: in whose session, where a router is everybody's, and in which role."""
        if self.unmodified:
            yield
            return
        named, told = person.thread if self.app.named else "", self.volatile(turn, person)
        whose = install(self.session_of(person)) if self.everybodys else contextlib.nullcontext()
        with whose, in_role(role.name, conversation=named, volatile=told):
            yield

    def close(self) -> None:
        """Routers are the application's own again."""
        for one in self.routers.values() if not (self.unmodified or self.everybodys) else ():
            unwrap(one)
        self.routers.clear()
        self.functions.clear()
        gc.collect()
