"""CrewAI: crews of all processes and agents alone, built for each question or once for all people, as servers do it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import re
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar

from tests.transparent.test_crewai import Crews, crew_seen, output, work  # isort: skip - it quiets CrewAI's import

from crewai import Agent, Crew, Process, Task
from crewai.events.event_listener import event_listener
from crewai.flow.flow import Flow, start
from crewai.llms.hooks.base import BaseInterceptor
from crewai.tools import BaseTool
from pydantic import BaseModel

from cacheprefix.layout.framing import unframed
from cacheprefix_crewai import install
from tests.crewai.conftest import ANTHROPIC_MODEL, OPENAI_MODEL
from tests.crewai.frames import without_frames
from tests.transparent.compare import Allowed
from tests.trial.applications import RETRIEVED, Person, Role, Tool, Turn, asking, whose
from tests.trial.checks import Framing
from tests.trial.playing import Driver


class At(BaseModel):
    """What a tool is asked."""

    at: str


ANYBODY = Person("{name}", "", "")
"""In texts that are made once for all people; a kickoff's inputs say who it is."""
_TOLD = re.compile(r"\bx\w+-told-\d+")
"""Words that the session says for one request, which the application's own has not."""


def _words(text: str) -> str:
    return _TOLD.sub("", unframed(without_frames(text)))


class Asks(BaseInterceptor[Any, Any]):
    """Requests of a model that all people's agents share say whose they are."""

    def __init__(self, role: str) -> None:
        self.role = role

    def on_outbound(self, message: Any) -> Any:
        """A request."""
        message.headers.update({**whose(), "x-cacheprefix-agent": self.role})
        return message

    def on_inbound(self, message: Any) -> Any:
        """An answer."""
        return message

    async def aon_outbound(self, message: Any) -> Any:
        """A request."""
        return self.on_outbound(message)

    async def aon_inbound(self, message: Any) -> Any:
        """An answer."""
        return message


def _told(result: Any) -> Any:
    """An output without the counts of a model that others ask meanwhile."""
    told = output(result)
    told["holds"] = {name: one for name, one in told["holds"].items() if name not in ("token_usage", "usage_metrics")}
    return told


class Trial(Driver):
    """A crew a question, or crews and agents that are made once for all people; what lasts is the session."""

    framework: ClassVar[str] = "crewai"
    apis: ClassVar[tuple[str, ...]] = ("openai-chat", "openai-responses", "anthropic")
    # A turn is a kickoff of a new crew, and no conversation is resumed: its layout goes by what the process has seen.
    # That checkpoints and replays go on with the same bytes is held by tests/crewai/test_resume.py.
    resumable: ClassVar[bool] = False
    opaque = Crews.opaque
    # An input stands in front of all roles where several tasks name it: a crew with one task is laid out otherwise.
    # A manager's tasks may all end with the same words, and a task's result is said once.
    framing = Framing(
        words=_words, own=lambda text: text.startswith("You are "), last=False, by_roles=True, once=True, raises=True,
    )
    allowed: ClassVar[tuple[Allowed, ...]] = tuple(
        Allowed(("crewai",), "*", "saw*messages[*].content", ("value",), "large results",
                "CrewAI's own hook around tools cuts them to the budget, before any of its messages", shows=shows)
        for shows in ('"*_* *.a*n*.*: x*characters)', '"*_* *.a*n*.*: x*characters cut here]*')
    )  # fmt: skip

    def run(self) -> Any:
        """Each turn's people at once, in threads or as tasks."""
        rng = random.Random(f"crewai/{self.app.seed}")
        self.kind = rng.choice(("sequential", "sequential", "parallel", "manager"))
        # A crew that is kicked off writes inputs into its tasks, so that each has it in turn, or a copy.
        self.once = rng.choice(("", "", "", "", "agents", "copies", "each", "turns"))
        self.in_flow, self.keeps, self.tells = (rng.random() < share for share in (0.3, 0.5, 0.5))
        event_listener.formatter.verbose = False  # it shows each agent that is asked alone
        self.in_turn, self.ain_turn = threading.Lock(), asyncio.Lock() if self.app.later else None
        self.made: dict[Any, Any] = {}
        self.kept: dict[tuple[str, int], Any] = {}
        self.contexts = {person.name: contextvars.Context() for person in self.app.people}
        saw: dict[str, list[Any]] = {person.name: [] for person in self.app.people}
        turns = [replace(turn, way="stream" if turn.way in ("stream", "left") else "whole") for turn in self.app.turns]
        try:
            if self.app.later:
                return self.later(self._main(turns, saw))
            with ThreadPoolExecutor(9) as pool:
                for turn in turns:
                    self._begin(turn)
                    asked = [pool.submit(self._context(turn, one).run, self._turn, turn, one) for one in turn.people]
                    for person, one in zip(turn.people, asked, strict=True):
                        saw[person.name].append(one.result())
            return self._saw(saw)
        finally:
            self._leave()

    async def _main(self, turns: list[Turn], saw: dict[str, list[Any]]) -> Any:
        for turn in turns:
            self._begin(turn)
            tasks = [self._context(turn, one).run(asyncio.ensure_future, self._aturn(turn, one)) for one in turn.people]
            for person, one in zip(turn.people, await asyncio.gather(*tasks), strict=True):
                saw[person.name].append(one)
        return self._saw(saw)

    def _saw(self, saw: dict[str, list[Any]]) -> Any:
        """With the requests that the session was not asked about, as none of its own words are in them."""
        if self.mode != "forked" or not (self.once and self.tells) or self.app.broken is not None:
            return {**saw, "nobody's": []}
        names = [(str(one.session), one.agent, one.body.decode()) for one in self.provider.requests]
        lost = [(session, agent) for session, agent, body in names if f"{session.partition('/')[0]}-told-" not in body]
        return {**saw, "nobody's": lost}

    def _begin(self, turn: Turn) -> None:
        if turn.act == "resume" and self.resumes:
            self.process += 1
            self._leave()
            self.made.clear()

    def _leave(self) -> None:
        for one in self.kept.values():
            one.undo()
        self.kept.clear()

    def _context(self, turn: Turn, person: Person) -> contextvars.Context:
        """Where a person's question is asked: in one of its own, or in that which has what the person installed."""
        if not (self.once and self.keeps and not self.in_flow):
            return contextvars.Context()
        context = self.contexts[person.name]
        for target in self._targets(turn, person) if not self.unmodified else ():
            if (person.name, id(target)) not in self.kept:
                self.kept[person.name, id(target)] = context.run(self._installed, target, person)
        return context

    def _turn(self, turn: Turn, person: Person) -> Any:
        gave: list[Any] = []
        for attempt in (0, 1):
            with asking(person, turn, "", attempt):
                try:
                    return [*gave, *self._served(turn, person)]
                except Exception as error:
                    gave.append([type(error), str(error).splitlines()[:1]])
            if not turn.retried:
                return gave
        return gave

    async def _aturn(self, turn: Turn, person: Person) -> Any:
        gave: list[Any] = []
        for attempt in (0, 1):
            with asking(person, turn, "", attempt):
                try:
                    return [*gave, *await self._aserved(turn, person, "kickoff_async" if attempt else "akickoff")]
                except Exception as error:
                    gave.append([type(error), str(error).splitlines()[:1]])
            if not turn.retried:
                return gave
        return gave

    def _served(self, turn: Turn, person: Person) -> list[Any]:
        if not self.once:
            crew, inputs = self._crew(turn, person)
            with self._installed(crew, person):
                return [output(crew.kickoff(inputs=inputs)), crew_seen(crew)]
        if self.in_flow:

            class Board(Flow):  # type: ignore[misc, type-arg]
                """A person's own, which starts what is made once for all."""

                @start()
                def serve(self) -> Any:
                    """All of it."""
                    return stage()._asked(turn, person)  # type: ignore[union-attr]

            # CrewAI's own loop keeps the flow in its context.
            stage, flow = weakref.ref(self), Board(suppress_flow_events=True)
            flow.memory = None
            with self._installed(flow, person):
                return flow.kickoff()  # type: ignore[no-any-return]
        with self._installed_on(self._targets(turn, person), person):
            return self._asked(turn, person)

    async def _aserved(self, turn: Turn, person: Person, way: str) -> list[Any]:
        if not self.once:
            crew, inputs = self._crew(turn, person)
            with self._installed(crew, person):
                return [output(await getattr(crew, way)(inputs=inputs)), crew_seen(crew)]
        if self.in_flow:

            class Board(Flow):  # type: ignore[misc, type-arg]
                """A person's own, which starts what is made once for all."""

                @start()
                async def serve(self) -> Any:
                    """All of it."""
                    return await stage()._aasked(turn, person, way)  # type: ignore[union-attr]

            # CrewAI's own loop keeps the flow in its context.
            stage, flow = weakref.ref(self), Board(suppress_flow_events=True)
            flow.memory = None
            with self._installed(flow, person):
                return await getattr(flow, way)()  # type: ignore[no-any-return]
        with self._installed_on(self._targets(turn, person), person):
            return await self._aasked(turn, person, way)

    def _installed(self, target: Any, person: Person) -> Any:
        if self.unmodified:
            return contextlib.nullcontext()
        volatile = (lambda: {RETRIEVED: self.app.words(person, "told", 9)}) if self.once and self.tells else None
        return install(target, self.session_of(person), volatile=volatile)

    @contextlib.contextmanager
    def _installed_on(self, targets: list[Any], person: Person) -> Any:
        with contextlib.ExitStack() as stack:
            for target in targets if not self.keeps else ():
                stack.enter_context(self._installed(target, person))
            yield

    # ------------------------------------------------------------------ what is made once for all people

    def _targets(self, turn: Turn, person: Person) -> list[Any]:
        """What answers a turn's question of a person, and whoever else asks."""
        agents = [self._shared(("agent", role.name), turn, person, self._agent, role) for role in turn.roles]
        if self.once == "agents":
            return agents
        return [self._shared(("crew", *(role.name for role in turn.roles)), turn, person, self._crew_of, agents)]

    def _shared(self, key: Any, turn: Turn, person: Person, make: Callable[..., Any], of: Any) -> Any:
        """The one of its kind; where a tenant has tools of its own, that tenant's."""
        with self._lock:
            apart = person.tenant if any(tool.tenant for role in self.app.roles for tool in role.tools) else ""
            at = (key, turn.way, apart)
            if at not in self.made:
                self.made[at] = make(of, turn, replace(ANYBODY, tenant=apart))
            return self.made[at]

    def _asked(self, turn: Turn, person: Person) -> list[Any]:
        """All that answers, in a thread."""
        targets, inputs = self._targets(turn, person), self._inputs(turn, person)
        if self.once == "each":
            return [_told(one) for one in targets[0].kickoff_for_each(inputs=[inputs])]
        if self.once == "copies":
            return [_told(targets[0].copy().kickoff(inputs=inputs))]
        if self.once == "turns":
            with self.in_turn:
                return [_told(targets[0].kickoff(inputs=inputs))]
        gave: list[Any] = []
        said = self._question(turn, person)
        for agent in targets:
            answer = agent.kickoff(said)
            gave.append(_told(answer))
            said = f"{said}\n\nBefore: {answer.raw}"
        return gave

    async def _aasked(self, turn: Turn, person: Person, way: str) -> list[Any]:
        """All that answers, as a task."""
        targets, inputs = self._targets(turn, person), self._inputs(turn, person)
        if self.once == "each":
            several = getattr(targets[0], way.replace("kickoff", "kickoff_for_each"))
            return [_told(one) for one in await several(inputs=[inputs])]
        if self.once == "copies":
            return [_told(await getattr(targets[0].copy(), way)(inputs=inputs))]
        if self.once == "turns":
            async with self.ain_turn:  # type: ignore[union-attr]
                return [_told(await getattr(targets[0], way)(inputs=inputs))]
        gave: list[Any] = []
        said = self._question(turn, person)
        for agent in targets:
            answer = await getattr(agent, way)(said)
            gave.append(_told(answer))
            said = f"{said}\n\nBefore: {answer.raw}"
        return gave

    def _question(self, turn: Turn, person: Person) -> str:
        memory = self.app.words(person, "memory", 12) if self.app.memory else ""
        return f"{memory} {self.app.question(turn, person)}\n\n{self.app.words(person, 'brief', 60)}"

    def _inputs(self, turn: Turn, person: Person) -> dict[str, str]:
        brief = self.app.words(person, "brief", 60)
        return {"name": person.name, "asked": self.app.question(turn, person), "brief": brief}

    def _crew_of(self, agents: list[Agent], turn: Turn, person: Person) -> Crew:
        del person
        return self._crew_that(agents, turn, "{asked}", cache=False)

    # ------------------------------------------------------------------ what is made for a question

    def _crew(self, turn: Turn, person: Person) -> tuple[Any, dict[str, str]]:
        agents = [self._agent(role, turn, person) for role in turn.roles]
        crew = self._crew_that(agents, turn, self.app.question(turn, person))
        return crew, {"brief": self.app.words(person, "brief", 60)}

    def _crew_that(self, agents: list[Agent], turn: Turn, asked: str, **more: Any) -> Crew:
        tasks = [
            Task(
                description=f"{role.name}: {asked}\n\n{{brief}}",
                expected_output="An answer.",
                agent=None if self.kind == "manager" else agent,
                async_execution=self.kind == "parallel" and at < len(agents) - 1,
                **({"context": []} if self.kind == "parallel" else {}),
            )
            for at, (role, agent) in enumerate(zip(turn.roles, agents, strict=True))
        ]
        options: dict[str, Any] = {"memory": False, **more}
        if self.kind == "manager":
            options |= {"process": Process.hierarchical, "manager_llm": self._llm("manager", turn)}
        return work.crew(agents, tasks, **options)

    def _agent(self, role: Role, turn: Turn, person: Person) -> Agent:
        brief = replace(role, duty=f"Long a {role.name}.")
        return Agent(
            role=role.name,
            goal=role.duty,
            # Without a crew nobody says who asks, before the question.
            backstory=self.app.handbook if self.once == "agents" else self.app.system(brief, person),
            llm=self._llm(role.name, turn),
            tools=[self._tool(tool, person) for tool in self.app.tools(role, person)],
            # CrewAI's cache gives one person's results to all that ask the same.
            cache=not self.once,
        )

    def _llm(self, role: str, turn: Turn) -> Any:
        claude = self.app.api == "anthropic"
        options: dict[str, Any] = {"api": "responses"} if self.app.api == "openai-responses" else {}
        if self.once:
            options["interceptor"] = Asks(role)
        else:
            options["client_params"] = {"default_headers": {**whose(), "x-cacheprefix-agent": role}}
        return work.new_llm(
            ANTHROPIC_MODEL if claude else OPENAI_MODEL,
            self.provider.anthropic_base_url if claude else self.provider.openai_base_url,
            max_retries=0, stream=turn.way == "stream", **options,
        )  # fmt: skip

    def _tool(self, given: Tool, person: Person) -> BaseTool:
        app = self.app

        class Made(BaseTool):
            name: str = given.name
            description: str = given.says
            args_schema: type[BaseModel] = At

            def _run(self, at: str) -> str:
                name = whose()["x-cacheprefix-session"].partition("/")[0]
                asks = next(one for one in app.people if one.name == name) if person.name == ANYBODY.name else person
                return app.run_tool(given.name, asks, at)

        return Made()
