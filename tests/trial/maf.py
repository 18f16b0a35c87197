"""Microsoft Agent Framework: agents with sessions, agents on messages, and workflows."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, ClassVar

from agent_framework import (
    Agent,
    AgentSession,
    ChatContext,
    ChatMiddleware,
    Content,
    ContextProvider,
    FunctionTool,
    Message,
    SessionContext,
)
from agent_framework.orchestrations import ConcurrentBuilder, SequentialBuilder

from cacheprefix.layout.framing import unframed
from cacheprefix_maf import wrap
from tests.maf.maf_driver import RULES, close, make_client
from tests.transparent.test_maf import Agents, streamed, told
from tests.trial.applications import IMAGE, RETRIEVED, Built, Person, Role, Turn, hooks
from tests.trial.checks import Framing
from tests.trial.talks import Talks

_SPEAKER = re.compile(r"^\[\w+\](?:\s|$)")


class Memory(ContextProvider):
    """Tells agents that are made once for all what is remembered of who asks."""

    def __init__(self, says: Callable[[], str]) -> None:
        super().__init__("memory")
        self._says = says

    async def before_run(self, *, context: SessionContext, **_: Any) -> None:
        """Add it to the run's instructions."""
        context.extend_instructions(self.source_id, self._says())


class Retrieved(ChatMiddleware):
    """Puts text of a turn alone behind a request's messages, as an application does without us."""

    def __init__(self, says: Callable[[], str]) -> None:
        self._says = says

    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        """Into this one request."""
        if said := self._says():
            context.messages = [*context.messages, Message("user", [said])]
        await call_next()


class Trial(Talks):
    """Agents made anew for each person, or once for all of a tenant; a conversation is a session or messages."""

    framework: ClassVar[str] = "maf"
    apis: ClassVar[tuple[str, ...]] = tuple(RULES)
    opaque = Agents.opaque
    # Its client asks Claude to "Continue" where an assistant's message is the last one.
    framing = Framing(
        words=lambda text: "" if text == "Continue" else _SPEAKER.sub("", unframed(text)), apart=True
    )

    async def begin(self) -> None:
        """Agents of this process; workflows are built when they are asked."""
        if not self.process:
            chosen = self.rng.choice(("sessions", "messages", "messages", "workflow"))
            self.kind = self.app.kind or chosen
            self.framing = replace(self.framing, goes_on=self.kind != "workflow")
            # What is decided on messages that have neither a name nor a session no other process is told.
            unsaved = self.kind == "messages" and self.app.resumed
            self.for_all = self.for_all and not unsaved
            if self.for_all and self.kind == "messages":
                self.framing = replace(self.framing, named=False)
            self.clients = {
                role.name: make_client(self.app.api, self.provider, hooks(role.name, later=True))
                for role in self.app.roles
            }
        self.agents: dict[tuple[str, str], Any] = {}
        for person in self.app.people if self.kind != "workflow" or self.for_all else ():
            for role in self.app.roles:
                if (self.of(person), role.name) in self.agents:
                    continue
                made = self._agent(role, person)
                named = {"conversation": person.thread} if self.app.named and not self.for_all else {}
                if not (self.unmodified or self.kind == "workflow"):
                    self._wrapped(made, person, **named)
                self.agents[self.of(person), role.name] = made
        if self.kind == "workflow" and self.app.resumed and not self.unmodified:
            # A conversation goes on where the same tools are known: those of workflows that are built later, too.
            for person in self.app.people:
                made = SequentialBuilder(participants=[self._whole(role, person) for role in self.app.roles])
                self._wrapped(made.build(), person)

    async def end(self) -> None:
        """Close the clients."""
        for client in self.clients.values():
            await close(client)
        self.agents.clear()

    def new(self, person: Person) -> Any:
        """One session for all agents, or the messages."""
        del person
        return AgentSession() if self.kind == "sessions" else []

    async def save(self, talk: Any) -> Any:
        """As JSON."""
        given = talk.to_dict() if isinstance(talk, AgentSession) else [one.to_dict() for one in talk]
        return json.dumps(given)

    async def load(self, person: Person, saved: Any) -> Any:
        """By the framework's own methods."""
        del person
        held = json.loads(saved)
        return [Message.from_dict(one) for one in held] if isinstance(held, list) else AgentSession.from_dict(held)

    def dumps(self, person: Person) -> str:
        """Of agents on messages what was decided is beside these, where the application keeps it with them."""
        return self.session_of(person).conversation(person.thread).dumps() if self.kind == "messages" else ""

    async def ask(self, turn: Turn, person: Person, role: Role, text: str, talk: Any) -> Any:
        """One agent's answer, or that of a workflow of all who are to answer."""
        parts: list[Any] = [text]
        if turn.image:
            parts.append(Content.from_uri(f"data:image/png;base64,{IMAGE}", media_type="image/png"))
        asked = Message("user", parts)
        if self.kind == "workflow":
            return await self._flow(turn, person, role, [*talk, asked])
        agent = self.agents[self.of(person), role.name]
        kept = self.kind == "sessions"
        more: dict[str, Any] = {"session": talk} if kept else {}
        if turn.form:
            more["options"] = {"response_format": Built}
        said = asked if kept else [*talk, asked]
        if turn.way == "stream":
            gave = await streamed(agent.run(said, stream=True, **more))
            answer = gave[-1][1]
        else:
            response = await agent.run(said, **more)
            gave, answer = told(response), response.text
        if not kept:
            talk += [asked, Message("assistant", [answer or "Nothing."], author_name=role.name)]
        return gave

    async def _flow(self, turn: Turn, person: Person, role: Role, said: list[Message]) -> Any:
        """A sequence or a fan-out, built anew for each question, as a server does it."""
        if role != turn.roles[0]:
            return None
        kind = ConcurrentBuilder if turn.together else SequentialBuilder
        flow = kind(participants=[self._whole(one, person) for one in turn.roles]).build()
        result = await (flow if self.unmodified else self._wrapped(flow, person)).run(said)
        outputs = [str(getattr(one, "text", one)) for one in result.get_outputs()]
        return sorted(outputs) if turn.together else outputs

    def _wrapped(self, target: Any, person: Person, **more: Any) -> Any:
        return wrap(target, self.session_of(person), volatile=self.found if self.for_all else None, **more)

    def _whole(self, role: Role, person: Person) -> Agent:
        """An agent of a workflow's."""
        return self.agents[self.of(person), role.name] if self.for_all else self._agent(role, person)

    def _agent(self, role: Role, person: Person) -> Agent:
        tools = []
        for tool in self.app.tools(role, person):

            def run(at: str, name: str = tool.name) -> str:
                return self.app.run_tool(name, self.now(person), at)

            schema = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
            tools.append(FunctionTool(name=tool.name, description=tool.says, func=run, input_model=schema))
        options = {"store": False} if self.app.api == "openai-responses" else None
        more: dict[str, Any] = {}
        if self.for_all:
            says = replace(self.app, memory=False).system(role, person)
            if self.app.memory:
                more["context_providers"] = [Memory(lambda: self.app.remembered(self.now(person)))]
            if self.mode != "forked":
                more["middleware"] = [Retrieved(lambda: self.found().get(RETRIEVED, ""))]
        else:
            says = self.app.system(role, person)
        return Agent(self.clients[role.name], says, name=role.name, tools=tools, default_options=options, **more)
