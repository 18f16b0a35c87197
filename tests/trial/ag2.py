"""ag2's agents, each person on a stream, with agents that a tenant shares; streams are saved as their events."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import httpx2
from ag2 import Agent, MemoryStream, Middleware
from ag2 import tool as as_tool
from ag2.context import ConversationContext
from ag2.events import BaseEvent, ModelRequest, ModelResponse, TextInput
from ag2.middleware import BaseMiddleware, LLMCall

from cacheprefix.layout.framing import unframed
from cacheprefix.server import Reply
from cacheprefix_ag2 import PrefixState, wrap
from tests.ag2.ag2_driver import CONFIGS, MODELS, RULES
from tests.transparent.test_ag2 import CERTIFICATES, Agents, kept, noted, told
from tests.trial.applications import RETRIEVED, Answers, Built, Person, Role, Turn, hooks
from tests.trial.checks import Framing
from tests.trial.talks import Talks

_SPEAKER = re.compile(r"^\[\w+\]:?(?:\s|$)")
_HOOKS = re.compile(r"</?context>")
"""Around what prompt hooks say."""


class Script(Answers):
    """One call at a time: results of several ag2 puts on the stream as they end."""

    def _said(self, *given: Any, **more: Any) -> Reply:
        reply = super()._said(*given, **more)
        return replace(reply, tool_calls=reply.tool_calls[:1])


class Retrieved(BaseMiddleware):
    """Puts text of a turn alone behind a request's events, as an application does without us."""

    def __init__(self, event: BaseEvent, context: ConversationContext, *, says: Callable[[], str]) -> None:
        super().__init__(event, context)
        self._says = says

    async def on_llm_call(
        self, call_next: LLMCall, events: Sequence[BaseEvent], context: ConversationContext
    ) -> ModelResponse:
        """Into this one request."""
        said = self._says()
        return await call_next([*events, ModelRequest([TextInput(said)])] if said else events, context)


class Trial(Talks):
    """Agents are made for each person, whose tools they have, or once for a tenant, and wrapped together."""

    framework: ClassVar[str] = "ag2"
    apis: ClassVar[tuple[str, ...]] = tuple(RULES)
    random = Agents.random
    opaque = Agents.opaque
    framing = Framing(words=lambda text: _SPEAKER.sub("", _HOOKS.sub(" ", unframed(text))), apart=True)

    async def begin(self) -> None:
        """A client a role, and agents of this process."""
        if not self.process:
            self.clients = {
                role.name: httpx2.AsyncClient(verify=CERTIFICATES, event_hooks=hooks(role.name, later=True))
                for role in self.app.roles
            }
            self.streaming = self.app.api == "openai-responses" or self.rng.random() < 0.4
            if self.streaming and self.app.api == "openai-chat":
                # What is no stream at all ag2 takes for an answer of nothing, and sends that in all that comes later.
                kept = (replace(one, fault="" if one.fault == "garbage" else one.fault) for one in self.app.turns)
                self.app = replace(self.app, turns=tuple(kept))
            self.provider.simulator.script = Script(self.app, self.provider)
        self.agents: dict[tuple[str, str], Any] = {}
        for person in {self.of(one): one for one in self.app.people}.values():
            team = [self._agent(role, person) for role in self.app.roles]
            if not self.unmodified:
                more: dict[str, Any] = {"volatile": self.found} if self.for_all else {}
                if self.app.named:
                    more["conversation"] = lambda _, person=person: self.now(person).thread
                wrap(team, self.session_of(person), **more)
            self.agents |= {(self.of(person), role.name): one for role, one in zip(self.app.roles, team, strict=True)}

    async def end(self) -> None:
        """Close the clients."""
        for client in self.clients.values():
            await client.aclose()
        self.agents.clear()

    def new(self, person: Person) -> Any:
        """A stream of one's own."""
        del person
        return MemoryStream()

    async def save(self, talk: Any) -> Any:
        """Its events; ours as the JSON that they say they are."""
        events = [
            json.dumps(event.to_dict()) if isinstance(event, PrefixState) else event for event in await kept(talk)
        ]
        return talk.id, events

    async def load(self, person: Person, saved: Any) -> Any:
        """A stream of the same id."""
        del person
        made = MemoryStream(id=saved[0])
        events = [PrefixState.from_dict(json.loads(one)) if isinstance(one, str) else one for one in saved[1]]
        await made.history.replace(events)
        return made

    async def ask(self, turn: Turn, person: Person, role: Role, text: str, talk: Any) -> Any:
        """What is on the stream of it, and the reply."""
        seen = noted(talk)
        more: dict[str, Any] = {"response_schema": Built} if turn.form else {}
        reply = await self.agents[self.of(person), role.name].ask(text, stream=talk, **more)
        # Of later turns each tells itself: how far one comes that is cancelled, the clock decides.
        return [await told(reply), list(seen)]

    def _agent(self, role: Role, person: Person) -> Agent:
        tools = []
        for tool in self.app.tools(role, person):
            # Others ag2 runs in threads, which end as they like.
            async def run(at: str, name: str = tool.name) -> str:
                return self.app.run_tool(name, self.now(person), at)

            schema = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
            tools.append(as_tool(run, name=tool.name, description=tool.says, schema=schema))
        claude = self.app.api == "anthropic"
        base = self.provider.anthropic_base_url if claude else self.provider.openai_base_url
        made = {"model": MODELS[self.app.api], "api_key": "k", "base_url": base, "max_retries": 0}
        if self.app.api == "openai-responses":
            made["store"] = False
        config = CONFIGS[self.app.api](**made, streaming=self.streaming, http_client=self.clients[role.name])
        if not self.for_all:
            return Agent(role.name, self.app.system(role, person), config=config, tools=tools)
        said: list[Any] = [replace(self.app, memory=False).system(role, person)]
        if self.app.memory:
            said.append(lambda: self.app.remembered(self.now(person)))
        apart = Middleware(Retrieved, says=lambda: self.found().get(RETRIEVED, ""))
        middleware = [] if self.mode == "forked" else [apart]
        return Agent(role.name, said, config=config, tools=tools, middleware=middleware)
