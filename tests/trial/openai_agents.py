"""The OpenAI Agents SDK: agents with handoffs and agents as tools, on lists of items or in sessions of the SDK's."""

from __future__ import annotations

import copy
import itertools
import random
from dataclasses import replace
from typing import Any, ClassVar

import agents
from agents import Agent, FunctionTool, Model, ModelProvider, RunConfig, Runner, SQLiteSession

from cacheprefix.server import Reply, Request, ToolCall
from cacheprefix_openai_agents import wrap
from tests.openai_agents.agents_driver import MODELS, model_for
from tests.transparent.compare import Allowed
from tests.transparent.test_openai_agents import Agents, streamed, told
from tests.trial.applications import IMAGE, Answers, Built, Person, Role, Turn, hooks, who
from tests.trial.checks import Framing
from tests.trial.talks import Talks


class Script(Answers):
    """As any model, and hand-offs and questions to other agents now and then."""

    def _said(self, request: Request, person: Person, turn: Turn, agent: str, nth: str, *, calls: bool) -> Reply:
        reply = super()._said(request, person, turn, agent, nth, calls=calls)
        role = agent.partition("#")[0]
        rng = random.Random(f"{self._app.seed}/{person.name}/{turn.number}/{agent}/{nth}/other")
        others = [one.name for one in self._app.roles if one.name != role]
        named = [f"{kind}_{one}" for one in others for kind in ("transfer_to", "ask")]
        able = [one for one in named if one in request.asked.tools and one in self.has.get(role, ())]
        if not able or rng.random() < 0.7 or request.asked.schema is not None or "n0" not in nth:
            return reply
        name = rng.choice(able)
        given = {"input": f"Ask {self._app.words(person, 'inner', 3)}"} if name.startswith("ask_") else {}
        call = ToolCall(name, given, id=f"call_{person.name}{role}{turn.number}{nth}other")
        return replace(reply, text="", tool_calls=(call,))

    has: ClassVar[dict[str, list[str]]] = {}


class _Models(ModelProvider):
    """The application's models by the names of the roles that ask them."""

    def __init__(self, models: dict[str, Model]) -> None:
        self.models = models

    def get_model(self, model_name: str | None) -> Model:
        return self.models[model_name or ""]


class Trial(Talks):
    """Agents are made for each person, or once for all of a tenant, whose tools they have; the first one wraps them.

    Or once for all people, with a provider of models that is wrapped for each tenant and given with each run.
    """

    framework: ClassVar[str] = "openai_agents"
    framing = Framing(apart=True)
    apis: ClassVar[tuple[str, ...]] = tuple(MODELS)
    opaque = Agents.opaque
    allowed: ClassVar[tuple[Allowed, ...]] = (
        Allowed(("openai_agents",), "*", "saw*.response.tools[*", ("value", "type", "added", "removed"), "tools",
                "a raw response says which tools were sent: the team's, in the team's order"),
        Allowed(("openai_agents",), "*", "saw*.response.tool_choice", ("value", "type"), "tools",
                "a role's own are what it may choose of"),
    )  # fmt: skip
    # Its runner makes one coroutine out of another's: where the task is cancelled before its first step, the inner one
    # is left (unmodified too: cancel a run at its third step of the loop).
    warns: ClassVar[frozenset[str]] = frozenset({"coroutine 'run_single_turn' was never awaited"})

    async def begin(self) -> None:
        """Models that all share, and agents of this process."""
        agents.set_tracing_disabled(True)
        if not self.process:
            self.models = {
                role.name: model_for(self.app.api, self.provider, hooks(role.name, later=True))
                for role in self.app.roles
            }
            chosen, kept = self.rng.choice(("plain", "handoffs", "tools")), self.rng.random() < 0.4
            self.kept = self.app.kind == "sessions" if self.app.kind else kept
            self.kind = "plain" if self.app.kind == "sessions" else self.app.kind or chosen
            script = Script(self.app, self.provider)
            names = [role.name for role in self.app.roles]
            # Each knows those that come behind it.
            kind = {"handoffs": "transfer_to", "tools": "ask", "plain": "no"}[self.kind]
            script.has = {name: [f"{kind}_{one}" for one in names[at + 1 :]] for at, name in enumerate(names)}
            self.provider.simulator.script = script
            own = any(tool.tenant for role in self.app.roles for tool in role.tools)
            self.by_run = self.common and not own and self.rng.random() < 0.5
        self.agents: dict[tuple[str, str, bool], Agent[Any]] = {}
        self.providers: dict[str, ModelProvider] = {}
        # Who has an answer's schema is another agent to the SDK, of the same name.
        forms = {turn.form for turn in self.app.turns}
        for person, form in itertools.product(self.app.people, sorted(forms)):
            key = self._users(person)
            if (key, self.app.roles[0].name, form) in self.agents:
                continue
            made: list[Agent[Any]] = []
            for role in reversed(self.app.roles):
                made.insert(0, self._agent(role, person, made, form=form))
            for one in made if not (self.unmodified or self.by_run) else ():
                wrap(one, self.session_of(person), conversation=self._named if self.common else self._thread(person))
            self.agents |= {(key, one.name, form): one for one in made}
        for person in self.app.people if self.by_run else ():
            models = _Models(self.models)
            if not self.unmodified and person.tenant not in self.providers:
                models = wrap(models, self.session_of(person), conversation=self._named)
            self.providers.setdefault(person.tenant, models)

    async def end(self) -> None:
        """Close the clients."""
        for model in self.models.values():
            await model._client.close()
        self.agents.clear()
        self.providers.clear()

    def _users(self, person: Person) -> str:
        """Whose agents a person asks."""
        return "" if self.by_run else person.tenant if self.common else person.name

    def _thread(self, person: Person) -> str:
        return person.thread if self.app.named else ""

    def _asking(self) -> Person:
        return next(one for one in self.app.people if one.name == who())

    def _named(self) -> str:
        """The conversation of whoever asks."""
        return self._thread(self._asking())

    def new(self, person: Person) -> Any:
        """A session of the SDK's, or the items."""
        return SQLiteSession(person.name) if self.kept else []

    async def save(self, talk: Any) -> Any:
        """Its items."""
        return copy.deepcopy(await talk.get_items() if self.kept else talk)

    async def load(self, person: Person, saved: Any) -> Any:
        """The same items."""
        made = self.new(person)
        if self.kept:
            await made.add_items(copy.deepcopy(saved))
            return made
        return copy.deepcopy(saved)

    def dumps(self, person: Person) -> str:
        """What was decided, beside the items: an application keeps it with them."""
        return self.session_of(person).conversation(person.thread).dumps()

    async def ask(self, turn: Turn, person: Person, role: Role, text: str, talk: Any) -> Any:
        """A run's result, and its events where it is streamed."""
        agent, content = self.agents[self._users(person), role.name, turn.form], text
        if turn.image:
            url = f"data:image/png;base64,{IMAGE}"
            content = [{"type": "input_text", "text": text}, {"type": "input_image", "image_url": url}]  # type: ignore[assignment]
        item: Any = {"role": "user", "content": content}
        more: dict[str, Any] = {"session": talk} if self.kept else {}
        said = [item] if self.kept else [*talk, item]
        if self.by_run:
            more["run_config"] = RunConfig(model_provider=self.providers[person.tenant])
        if turn.way in ("stream", "left"):
            events, gave = await streamed(agent, said, **more)
        else:
            events, gave = [], told(await Runner.run(agent, said, **more))
        if not self.kept:
            talk[:] = gave["said"]
        return [events, gave]

    def _agent(self, role: Role, person: Person, behind: list[Agent[Any]], *, form: bool) -> Agent[Any]:
        tools: list[Any] = []
        for tool in self.app.tools(role, person):

            async def invoked(_: Any, arguments: str, name: str = tool.name) -> str:
                return self.app.run_tool(name, self._asking(), arguments.split('"')[-2])

            schema = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
            tools.append(FunctionTool(tool.name, tool.says, schema, invoked, strict_json_schema=False))

        def told(*_: Any) -> str:
            return self.app.system(role, self._asking())

        if self.kind == "tools":
            tools += [one.as_tool(f"ask_{one.name}", f"Asks the {one.name}.") for one in behind]
        return Agent(
            role.name,
            # What is remembered of a person is theirs alone.
            instructions=told if self.common and self.app.memory else self.app.system(role, person),
            model=role.name if self.by_run else self.models[role.name],
            tools=tools,
            handoffs=[*behind] if self.kind == "handoffs" else [],
            output_type=Built if form else None,
        )
