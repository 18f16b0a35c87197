"""AutoGen: single agents, round robins, selectors, swarms and graphs, each person's team on clients that all share.

Or a tenant's people take turns at one team, whose state is loaded for whoever comes; and agents of the application's
own class on such clients, as with AutoGen's core alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import tiktoken
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import MultiModalMessage, StructuredMessage, TextMessage
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow, RoundRobinGroupChat, SelectorGroupChat, Swarm
from autogen_core import CancellationToken, Image
from autogen_core.model_context import (
    BufferedChatCompletionContext,
    ChatCompletionContext,
    UnboundedChatCompletionContext,
)
from autogen_core.models import (
    AssistantMessage,
    ChatCompletionClient,
    CreateResult,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    ModelFamily,
    ModelInfo,
    SystemMessage,
    UserMessage,
)
from autogen_core.tools import FunctionTool
from autogen_ext.models.anthropic import AnthropicChatCompletionClient
from autogen_ext.models.openai import OpenAIChatCompletionClient

from cacheprefix.layout.framing import unframed
from cacheprefix.server import Reply, Request, SimulatedProvider, ToolCall
from cacheprefix_autogen import ForkContext, PrefixClient, wrap
from cacheprefix_autogen.messages import ABOVE, ANSWER, MEMORY, STANDS
from cacheprefix_autogen.settings import forget_sessions
from tests.transparent.test_autogen import Characters
from tests.trial.applications import (
    IMAGE,
    RETRIEVED,
    Answers,
    Application,
    Built,
    Person,
    Role,
    Tool,
    Turn,
    asking,
    hooks,
    who,
    whose,
)
from tests.trial.checks import Framing
from tests.trial.playing import Driver

KINDS = ("agent", "round", "round", "selector", "swarm", "graph", "core", "core")
SELECTOR = "selector"
_SPOKEN = re.compile(r"^\[(?:tool \w+|\w+ calls (?P<tool>\w+)|\w+)\](?:\s|$)")
_EARLIER = re.compile(r'<earlier_call tool="(\w+)">|</?result>|</earlier_call>')
_RETRIEVED = re.compile(rf"<{RETRIEVED}>.*?</{RETRIEVED}>", re.DOTALL)
"""AutoGen itself knows no text for one request alone."""
_OURS = re.compile("|".join(map(re.escape, (STANDS, ANSWER, ABOVE, *(part for part in MEMORY.split("\n{}\n"))))))


def _words(text: str) -> str:
    """What a text says without AutoGen's adapter's own framing; a call is its tool's name and its arguments."""
    if text.startswith("{"):
        with contextlib.suppress(ValueError):
            part = json.loads(text)
            call = part.get("function", part)
            if call.get("name"):
                text = f"{call['name']} {call.get('arguments', call.get('input'))}"
            elif part.get("type") == "tool_result":
                text = str(part["content"])
    text = unframed(_RETRIEVED.sub("", text))
    text = _SPOKEN.sub(lambda found: f"{found['tool'] or ''} ", text)
    text = _EARLIER.sub(lambda found: f" {found[1] or ''} ", text)
    # JSON's own signs and white space are none of what is said.
    return re.sub(r"[{}\[\]\"':,]", " ", _OURS.sub(" ", text))


_SPEAKER = re.compile(r"^\w+: ", re.MULTILINE)


def _asked(text: str) -> str:
    """What a selector's prompt says; AutoGen's own puts the speaker in front of each message."""
    return _words(_SPEAKER.sub("", text))


class Script(Answers):
    """As any model, and a selector that names each agent in turn, and hand-offs among a swarm's."""

    def __init__(self, app: Application, provider: SimulatedProvider) -> None:
        super().__init__(app, provider)
        self._named: Counter[tuple[str, int]] = Counter()

    def _said(self, request: Request, person: Person, turn: Turn, agent: str, nth: str, *, calls: bool) -> Reply:
        role, roles = agent.partition("#")[0], self._app.roles
        if role == SELECTOR:
            at = self._named[person.name, turn.number] = self._named[person.name, turn.number] + 1
            return Reply(roles[(turn.number + at) % len(roles)].name)
        silent = request.asked.choice == "none" or ANSWER in request.text[-200:]
        reply = super()._said(request, person, turn, agent, nth, calls=calls and not silent)
        named = (f"transfer_to_{one.name}" for one in roles if one.name != role)
        others = [name for name in named if name in request.asked.tools]
        rng = random.Random(f"{self._app.seed}/{person.name}/{turn.number}/{role}/{nth}/hand-off")
        if others and not silent and rng.random() < 0.5:
            call = ToolCall(rng.choice(others), {}, id=f"call_{person.name}{role}{turn.number}h{nth}")
            return replace(reply, tool_calls=(*reply.tool_calls, call))
        return reply


class Trial(Driver):
    """A team of each person's own, or of each tenant's; its state is saved, loaded and reset by AutoGen's methods."""

    framework: ClassVar[str] = "autogen"
    apis: ClassVar[tuple[str, ...]] = ("openai-chat", "anthropic")
    framing = Framing(
        words=_words,
        own=lambda text: "<earlier_call " in text or "<memory>" in text,
        passed=("Transferred to ",),
        asks={SELECTOR: _asked},
    )

    def run(self) -> Any:
        """Each turn's people at once, or one after the other."""
        self.rng = random.Random(f"autogen/{self.app.seed}")
        few = len(self.app.roles) < 2
        chosen = self.rng.choice(("agent", "core")) if few else self.rng.choice(KINDS)
        self.kind = self.app.kind or chosen
        if self.kind == "core":
            # A client by itself knows conversations by what was said in them, but where a context of ours is saved.
            self.framing = replace(self.framing, named=few)
            if not few:
                asks = (replace(one, act="ask" if one.act == "resume" else one.act) for one in self.app.turns)
                self.app = replace(self.app, turns=tuple(asks))
        # What is remembered of a person stands in the system texts of that one's own agents.
        self.turns = self.common and not self.app.memory and self.kind != "core"
        self.streams = self.rng.random() < 0.3
        self.shape = {
            role.name: (self.rng.random() < 0.5, self.rng.choice((1, 1, 3)), self.rng.random() < 0.1)
            for role in self.app.roles
        }
        if self.kind == "graph":
            # A branch that fails leaves its siblings' requests to the clock.
            self.app = replace(self.app, turns=tuple(replace(one, fault="") for one in self.app.turns))
        if self.streams and self.app.api == "anthropic":
            # What is no stream at all AutoGen takes for an empty answer, and sends that in all that comes later.
            kept = (replace(one, fault="" if one.fault == "garbage" else one.fault) for one in self.app.turns)
            self.app = replace(self.app, turns=tuple(kept))
        self.provider.simulator.script = Script(self.app, self.provider)
        self.patched = pytest.MonkeyPatch()
        for name in ("encoding_for_model", "get_encoding"):
            self.patched.setattr(tiktoken, name, lambda _: Characters())
        return self.later(self._main())

    async def _main(self) -> Any:
        # AutoGen's client for Anthropic sends the tools it was given last with questions that have none.
        apart = any(tool.tenant for role in self.app.roles for tool in role.tools)
        self.whose = {person.name: person.tenant if apart else "" for person in self.app.people}
        names = (SELECTOR, *(one.name for one in self.app.roles))
        self.clients = {(role, whose): self._client(role) for role in names for whose in {*self.whose.values()}}
        self.alone: dict[tuple[int, str, str, str], PrefixClient] = {}
        self.tables: dict[str, _Table] = {}
        self.teams = {person.name: self._team(person) for person in self.app.people}
        self.states: dict[str, list[Any]] = {person.name: [] for person in self.app.people}
        saw: dict[str, list[Any]] = {person.name: [] for person in self.app.people}
        try:
            for turn in self.app.turns:
                # AutoGen's own count of turns goes with an error, and stays away where such a team is saved and loaded.
                if turn.act == "resume" and (self.resumes or any(one.fault for one in self.app.turns)):
                    saved = {name: json.dumps(await team.save_state()) for name, team in self.teams.items()}
                    self.process += self.resumes
                    self.tables.clear()
                    for person in self.app.people:
                        self.teams[person.name] = self._team(person)
                        await self.teams[person.name].load_state(json.loads(saved[person.name]))
                asked = [self._turn(turn, person) for person in turn.people]
                gave = await asyncio.gather(*asked) if self.app.later else [await one for one in asked]
                for person, one in zip(turn.people, gave, strict=True):
                    saw[person.name].append(one)
        finally:
            for client in self.clients.values():
                await client.close()
        return saw

    async def _turn(self, turn: Turn, person: Person) -> Any:
        team, states = self.teams[person.name], self.states[person.name]
        if turn.act == "rewind" and states:
            back = self.app.back(turn, len(states))
            await team.load_state(json.loads(states[back]))
            del states[back:]
        elif turn.act == "reset" or self.kind == "graph":
            # Which of two branches was heard first would be in all that comes later.
            alone = self.kind == "agent" and not self.turns
            await (team.on_reset(CancellationToken()) if alone else team.reset())
            states.clear()
        states.append(json.dumps(await team.save_state()))
        gave: list[Any] = []
        for attempt in (0, 1):
            try:
                gave.append(await self._ask(turn, person, team, attempt))
                break
            except Exception as error:
                gave.append([type(error), str(error).splitlines()[:1]])
                await team.load_state(json.loads(states[-1]))
                if not turn.retried:
                    break
        if self.kind == "graph":
            return gave
        return [gave, json.loads(json.dumps(await self.teams[person.name].save_state()))]

    async def _ask(self, turn: Turn, person: Person, team: Any, attempt: int) -> Any:
        text = self.app.question(turn, person)
        task: Any = TextMessage(content=text, source="user")
        if turn.image and self.kind != "selector":
            task = MultiModalMessage(content=[text, Image.from_base64(IMAGE)], source="user")
        if turn.way == "cancelled":
            token = CancellationToken()
            with asking(person, turn, "#cancelled", attempt):
                asyncio.get_running_loop().call_later(self.app.latency / 2, token.cancel)
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await team.run(task=task, cancellation_token=token)
            # What had been said by then, and what is left in the team's queues, the clock decides.
            self.teams[person.name] = self._team(person)
            await self.teams[person.name].load_state(json.loads(self.states[person.name][-1]))
            return "cancelled"
        if isinstance(team, _Core):
            team.form = turn.form and self.app.api != "anthropic"
        with asking(person, turn, "", attempt):
            if turn.way == "left" and self.kind in ("agent", "core"):
                async with contextlib.aclosing(team.run_stream(task=task)) as events:
                    return await anext(events)
            if turn.way == "stream":
                gave = [event async for event in team.run_stream(task=task)]
            else:
                gave = [await team.run(task=task)]
            for one in gave:
                if self.kind == "graph" and hasattr(one, "messages"):
                    one.messages.sort(key=lambda said: said.source)
            return sorted(gave, key=lambda one: getattr(one, "source", "~")) if self.kind == "graph" else gave

    def _team(self, person: Person) -> Any:
        if self.kind == "core":
            return _Core(self, person)
        return _Seat(self, person) if self.turns else self.made(person)

    def made(self, person: Person) -> Any:
        """A team of a person's, or for all of that one's tenant."""
        agents = [self._agent(role, person) for role in self.app.roles]
        turns, client = len(agents) + 1, self.clients[SELECTOR, self.whose[person.name]]
        made: Any = agents[0]
        if self.kind == "round":
            made = RoundRobinGroupChat(agents, max_turns=turns, custom_message_types=[StructuredMessage[Built]])
        elif self.kind == "selector":
            made = SelectorGroupChat(
                agents, client, max_turns=turns, allow_repeated_speaker=True,
                custom_message_types=[StructuredMessage[Built]],
            )  # fmt: skip
        elif self.kind == "swarm":
            made = Swarm(agents, max_turns=turns, custom_message_types=[StructuredMessage[Built]])
        elif self.kind == "graph":
            graph = DiGraphBuilder()
            for agent in agents:
                graph.add_node(agent)
            for agent in agents[1:]:
                graph.add_edge(agents[0], agent)
            made = GraphFlow(agents, graph.build())
        told = self._volatile if self.apart else None
        return made if self.unmodified else wrap(made, self.session_of(person), volatile=told)

    def _volatile(self) -> dict[str, str]:
        name, turn = whose()["x-cacheprefix-session"].split("/")[:2]
        asks, now = next(one for one in self.app.people if one.name == name), self.app.turns[int(turn)]
        return {RETRIEVED: self.app.retrieved(now, asks)} if now.volatile else {}

    def _agent(self, role: Role, person: Person) -> AssistantAgent:
        reflect, iterations, bounded = self.shape[role.name]
        asked = [turn.form for turn in self.app.turns if role in turn.roles]
        form = bool(asked) and all(asked) and self.app.api != "anthropic"
        others = [one.name for one in self.app.roles if one != role]
        return AssistantAgent(
            role.name,
            self.clients[role.name, self.whose[person.name]],
            system_message=self.app.system(role, person),
            tools=[self._tool(tool, person) for tool in self.app.tools(role, person)] or None,
            reflect_on_tool_use=reflect,
            max_tool_iterations=iterations,
            handoffs=others if self.kind == "swarm" else None,
            model_client_stream=self.streams,
            model_context=BufferedChatCompletionContext(5) if bounded else None,
            output_content_type=Built if form else None,
        )

    def asks(self, role: str, person: Person) -> ChatCompletionClient:
        """A core agent's client: one for all people of a tenant, whose conversations it tells apart."""
        whose, native = self.whose[person.name], self.clients[role, self.whose[person.name]]
        if self.unmodified:
            return native
        key = self.process, role, whose, person.tenant
        if key not in self.alone:
            self.alone[key] = PrefixClient(native, self.session_of(person), role=role)
        return self.alone[key]

    def tools(self, role: Role, person: Person) -> Sequence[FunctionTool]:
        """A role's, that answer one person."""
        return [self._tool(tool, person) for tool in self.app.tools(role, person)]

    def _tool(self, tool: Tool, person: Person) -> FunctionTool:
        # AutoGen runs what is not awaited in a thread that knows of nobody.
        async def run(at: str) -> str:
            asks = next(one for one in self.app.people if one.name == who()) if self.turns else person
            return self.app.run_tool(tool.name, asks, at)

        return FunctionTool(run, name=tool.name, description=tool.says)

    def _client(self, role: str) -> ChatCompletionClient:
        """One that everybody shares, and that says whose request it sends."""
        openai = self.app.api != "anthropic"
        info = ModelInfo(
            vision=True,
            function_calling=True,
            json_output=True,
            family=ModelFamily.GPT_5 if openai else ModelFamily.CLAUDE_4_SONNET,
            structured_output=openai,
            multiple_system_messages=openai,
        )
        kind: Any = OpenAIChatCompletionClient if openai else AnthropicChatCompletionClient
        made = kind(
            model="gpt-5.6" if openai else "claude-sonnet-4-5-20250929",
            base_url=self.provider.openai_base_url if openai else self.provider.anthropic_base_url,
            api_key="any", model_info=info, max_retries=0,
        )  # fmt: skip

        made._client._client.event_hooks = hooks(role, later=True)
        return made

    def close(self) -> None:
        """Let go what AutoGen's component loading and tiktoken were told."""
        self.patched.undo()
        forget_sessions()
        self.teams.clear()
        self.tables.clear()
        self.alone.clear()


class _Table:
    """A team at which a tenant's people take turns."""

    def __init__(self, trial: Trial, person: Person) -> None:
        self.lock = asyncio.Lock()
        self.team: Any = trial.made(person)
        self.sits: _Seat | None = None
        """Whose conversation it goes on with; None where it has to be loaded first."""
        self.alone = trial.kind == "agent"

    async def forget(self) -> None:
        """Forget what was said at it, as teams and single agents do by different names."""
        await (self.team.on_reset(CancellationToken()) if self.alone else self.team.reset())


class _Seat:
    """One person's place there: what was said is loaded when they come behind somebody else, or a team anew for it."""

    def __init__(self, trial: Trial, person: Person) -> None:
        self.trial, self.person = trial, person
        self.state = ""
        """As it was saved; empty before anything was said."""
        self._table()

    async def save_state(self) -> Any:
        """What was said to this person's team."""
        async with self._sits():
            pass
        return json.loads(self.state)

    async def load_state(self, state: Any) -> None:
        """Go on from what was saved, once it is this one's turn."""
        self.state = json.dumps(state)
        self._rises()

    async def reset(self) -> None:
        """Begin anew, behind what was said: what a saved state tells of the roles stays known."""
        async with self._sits():
            await self._table().forget()

    async def run(self, task: Any, cancellation_token: CancellationToken | None = None) -> Any:
        """As a team does; what was cancelled nobody else is to find in its queues."""
        try:
            async with self._sits() as team:
                return await team.run(task=task, cancellation_token=cancellation_token)
        finally:
            if cancellation_token is not None:
                self.trial.tables.pop(self.person.tenant, None)

    async def run_stream(self, task: Any) -> AsyncGenerator[Any, None]:
        """As a team does."""
        async with self._sits() as team, contextlib.aclosing(team.run_stream(task=task)) as events:
            async for one in events:
                yield one

    def _table(self) -> _Table:
        tables = self.trial.tables
        if self.person.tenant not in tables:
            tables[self.person.tenant] = _Table(self.trial, self.person)
        return tables[self.person.tenant]

    def _rises(self) -> None:
        table = self._table()
        if table.sits is self:
            table.sits = None

    @contextlib.asynccontextmanager
    async def _sits(self) -> AsyncIterator[Any]:
        table = self._table()
        await table.lock.acquire()
        while table is not self._table():
            # Somebody's run at that one was cancelled.
            table.lock.release()
            table = self._table()
            await table.lock.acquire()
        try:
            if table.sits is not self:
                table.sits = None
                # Also before a state is loaded: what a selector was told is no part of it, and stays.
                await table.forget()
                if self.state:
                    await table.team.load_state(json.loads(self.state))
                table.sits = self
            yield table.team
            self.state = json.dumps(await table.team.save_state())
        except BaseException:
            table.sits = None
            raise
        finally:
            table.lock.release()


class _Core:
    """Agents that keep what they heard themselves and run their tools, one after the other; saved as a team is."""

    def __init__(self, trial: Trial, person: Person) -> None:
        self.trial, self.person, self.roles = trial, person, trial.app.roles
        ours = len(self.roles) < 2 and not trial.unmodified
        make: Any = ForkContext if ours else UnboundedChatCompletionContext
        self.form = False
        """Whether the next answers have to follow a schema; AutoGen's own client asks Claude for none."""
        self.heard: dict[str, ChatCompletionContext] = {role.name: make() for role in self.roles}

    async def reset(self, _: CancellationToken | None = None) -> None:
        """Forget all that was said."""
        for context in self.heard.values():
            await context.clear()

    async def save_state(self) -> dict[str, Any]:
        """What each agent heard."""
        return {name: dict(await context.save_state()) for name, context in self.heard.items()}

    async def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what was saved."""
        for name, context in self.heard.items():
            await context.load_state(state[name])

    async def run(self, task: Any, cancellation_token: CancellationToken | None = None) -> list[Any]:
        """What each agent answered."""
        return [one async for one in self._turns(task, cancellation_token, streams=False)]

    async def run_stream(self, task: Any) -> AsyncGenerator[Any, None]:
        """What each agent answered, piece by piece."""
        async with contextlib.aclosing(self._turns(task, None, streams=True)) as pieces:
            async for one in pieces:
                yield one

    async def _turns(self, task: Any, token: CancellationToken | None, *, streams: bool) -> AsyncGenerator[Any, None]:
        for context in self.heard.values():
            await context.add_message(UserMessage(content=task.content, source="user"))
        for role in self.roles:
            said = ""
            async with contextlib.aclosing(self._answer(role, token, streams=streams)) as pieces:
                async for one in pieces:
                    said = one[1] if isinstance(one, tuple) else said
                    yield one
            for other in self.roles:
                if other != role:
                    await self.heard[other.name].add_message(UserMessage(content=said or "Nothing.", source=role.name))

    async def _answer(self, role: Role, token: CancellationToken | None, *, streams: bool) -> AsyncGenerator[Any, None]:
        """A role's rounds of tools, and its answer: why it ended, and what it says."""
        context, client = self.heard[role.name], self.trial.asks(role.name, self.person)
        tools = self.trial.tools(role, self.person)
        system = SystemMessage(content=self.trial.app.system(role, self.person))
        for _ in range(9):
            asked: dict[str, Any] = {"tools": [] if self.form else tools, "cancellation_token": token}
            if self.form:
                asked["json_output"] = Built
            messages = [system, *await context.get_messages()]
            if streams:
                found: Any = None
                async with contextlib.aclosing(client.create_stream(messages, **asked)) as pieces:
                    async for found in pieces:
                        if isinstance(found, str):
                            yield found
            else:
                found = await client.create(messages, **asked)
            if not isinstance(found, CreateResult) or not found.content:
                # AutoGen takes what is no stream for an empty answer, which providers refuse in a history.
                raise ValueError("no answer came")
            await context.add_message(AssistantMessage(content=found.content, thought=found.thought, source=role.name))
            if isinstance(found.content, str):
                yield found.finish_reason, found.content
                return
            done = []
            for call in found.content:
                tool = next(one for one in tools if one.name == call.name)
                text = tool.return_value_as_string(await tool.run_json(json.loads(call.arguments), CancellationToken()))
                done.append(FunctionExecutionResult(content=text, name=call.name, call_id=call.id, is_error=False))
            await context.add_message(FunctionExecutionResultMessage(content=done))
