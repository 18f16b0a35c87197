"""CrewAI: sequential, parallel and hierarchical crews, built anew for each question as a server does it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar

from tests.transparent.test_crewai import Crews, crew_seen, output, work  # isort: skip - it quiets CrewAI's import

from crewai import Agent, Process, Task
from crewai.tools import BaseTool
from pydantic import BaseModel

from cacheprefix.layout.framing import unframed
from cacheprefix_crewai import install
from tests.crewai.conftest import ANTHROPIC_MODEL, OPENAI_MODEL
from tests.crewai.frames import without_frames
from tests.transparent.compare import Allowed
from tests.trial.applications import Person, Role, Tool, Turn, asking, whose
from tests.trial.checks import Framing
from tests.trial.playing import Driver


class At(BaseModel):
    """What a tool is asked."""

    at: str


def _words(text: str) -> str:
    return unframed(without_frames(text))


class Trial(Driver):
    """A crew a question; what lasts is the session."""

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
        self.kind = random.Random(f"crewai/{self.app.seed}").choice(("sequential", "sequential", "parallel", "manager"))
        saw: dict[str, list[Any]] = {person.name: [] for person in self.app.people}
        turns = [replace(turn, way="stream" if turn.way in ("stream", "left") else "whole") for turn in self.app.turns]
        if self.app.later:
            return self.later(self._main(turns, saw))
        with ThreadPoolExecutor(9) as pool:
            for turn in turns:
                self.process += turn.act == "resume" and self.resumes
                asked = [pool.submit(contextvars.Context().run, self._turn, turn, one) for one in turn.people]
                for person, one in zip(turn.people, asked, strict=True):
                    saw[person.name].append(one.result())
        return saw

    async def _main(self, turns: list[Turn], saw: dict[str, list[Any]]) -> Any:
        for turn in turns:
            self.process += turn.act == "resume" and self.resumes
            gave = await asyncio.gather(*(self._aturn(turn, person) for person in turn.people))
            for person, one in zip(turn.people, gave, strict=True):
                saw[person.name].append(one)
        return saw

    def _turn(self, turn: Turn, person: Person) -> Any:
        gave: list[Any] = []
        for attempt in (0, 1):
            with asking(person, turn, "", attempt):
                crew, inputs = self._crew(turn, person)
                try:
                    with self._installed(crew, person):
                        result = crew.kickoff(inputs=inputs)
                    return [*gave, output(result), crew_seen(crew)]
                except Exception as error:
                    gave.append([type(error), str(error).splitlines()[:1]])
            if not turn.retried:
                return gave
        return gave

    async def _aturn(self, turn: Turn, person: Person) -> Any:
        gave: list[Any] = []
        for attempt in (0, 1):
            with asking(person, turn, "", attempt):
                crew, inputs = self._crew(turn, person)
                try:
                    with self._installed(crew, person):
                        result = await (crew.kickoff_async if attempt else crew.akickoff)(inputs=inputs)
                    return [*gave, output(result), crew_seen(crew)]
                except Exception as error:
                    gave.append([type(error), str(error).splitlines()[:1]])
            if not turn.retried:
                return gave
        return gave

    def _installed(self, crew: Any, person: Person) -> Any:
        return contextlib.nullcontext() if self.unmodified else install(crew, self.session_of(person))

    def _crew(self, turn: Turn, person: Person) -> tuple[Any, dict[str, str]]:
        agents = [self._agent(role, turn, person) for role in turn.roles]
        asked = self.app.question(turn, person)
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
        options: dict[str, Any] = {"memory": False}
        if self.kind == "manager":
            options |= {"process": Process.hierarchical, "manager_llm": self._llm("manager", turn)}
        return work.crew(agents, tasks, **options), {"brief": self.app.words(person, "brief", 60)}

    def _agent(self, role: Role, turn: Turn, person: Person) -> Agent:
        return Agent(
            role=role.name,
            goal=role.duty,
            backstory=self.app.system(replace(role, duty=f"Long a {role.name}."), person),
            llm=self._llm(role.name, turn),
            tools=[self._tool(tool, person) for tool in self.app.tools(role, person)],
        )

    def _llm(self, role: str, turn: Turn) -> Any:
        claude = self.app.api == "anthropic"
        headers = {**whose(), "x-cacheprefix-agent": role}
        options: dict[str, Any] = {"api": "responses"} if self.app.api == "openai-responses" else {}
        return work.new_llm(
            ANTHROPIC_MODEL if claude else OPENAI_MODEL,
            self.provider.anthropic_base_url if claude else self.provider.openai_base_url,
            max_retries=0, stream=turn.way == "stream", client_params={"default_headers": headers}, **options,
        )  # fmt: skip

    def _tool(self, given: Tool, person: Person) -> BaseTool:
        app = self.app

        class Made(BaseTool):
            name: str = given.name
            description: str = given.says
            args_schema: type[BaseModel] = At

            def _run(self, at: str) -> str:
                return app.run_tool(given.name, person, at)

        return Made()
