"""A crew, another one to be replayed, and a flow, all stopped inside their second step until the process is killed.

Imported by the test too: CrewAI's checkpoints find the classes of tools and flows by the name of their module.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from benchmarks import crewai_workloads as work

from crewai import Agent, Crew, Task
from crewai.events.event_bus import crewai_event_bus
from crewai.flow.flow import Flow, listen, start
from crewai.flow.persistence import persist
from crewai.flow.persistence.sqlite import SQLiteFlowPersistence
from crewai.tools import BaseTool
from pydantic import BaseModel

from cacheprefix import Session, SharedPrefix, ToolResultBudget
from cacheprefix_crewai import Installation, install

HANDBOOK = "The handbook. " + "Everyone keeps to these rules of the house and cites them by number. " * 80
LONG = "\n".join(f"{number}: a found passage" for number in range(400))
ROLES = ("Researcher", "Writer", "Editor")
DYING: list[str] = []
"""In the process that is to be killed: where checkpoints go."""
STOP = threading.Semaphore(0)
"""Let go once for every run that has come to its second step, where it stays for good."""


class Read(BaseTool):
    """Finds the same long text everywhere; in the process that is to be killed, the second file never comes."""

    name: str = "read"
    description: str = "Read a file."

    def _run(self, path: str) -> str:
        if DYING and path == "b":
            # CrewAI's own writer now and then meets an event that comes in just then, and leaves nothing.
            crewai_event_bus.flush()
            if crewai_event_bus.runtime_state is not None:
                crewai_event_bus.runtime_state.checkpoint(DYING[0])
            STOP.release()
            time.sleep(600)
        return LONG


class Count(BaseTool):
    """Another tool, which one agent alone has."""

    name: str = "count"
    description: str = "Count the pages. " * 40

    def _run(self, path: str) -> str:
        return f"{path} has nine pages."


def agents(url: str) -> list[Agent]:
    """Three agents that read."""
    made = []
    for role in ROLES:
        llm = work.new_llm("gpt-5-2025-08-07", url)
        made.append(Agent(role=role, goal="Work", backstory=f"A {role}.", llm=llm, tools=[Read()], verbose=False))
    return made


def crew(url: str) -> Crew:
    """Three tasks, each with one reading."""
    who = agents(url)
    steps = [
        Task(description=f"Step {name}: (read {name}).", expected_output="Text.", agent=agent)
        for name, agent in zip("abc", who, strict=True)
    ]
    return Crew(agents=who, tasks=steps, verbose=False)


class Steps(BaseModel):
    """What the flow keeps."""

    id: str = "killed"
    a: str = ""
    b: str = ""


def flow(url: str, store: str) -> tuple[Any, list[Agent]]:
    """A flow of two steps that skips what its state already holds, and its agents."""
    who = agents(url)[:2]

    @persist(SQLiteFlowPersistence(store))
    class Work(Flow[Steps]):
        """Two agents, one after the other."""

        @start()
        def first(self) -> None:
            """The first step."""
            self.state.a = self.state.a or str(who[0].kickoff("Step a: (read a).").raw)

        @listen(first)
        def second(self) -> None:
            """The second one, on what the first found."""
            self.state.b = self.state.b or str(who[1].kickoff(f"Found: {self.state.a}\nStep b: (read b).").raw)

    return Work(suppress_flow_events=True), who


def installed(target: Any, budget: int) -> Installation:
    """A session with the common text and this budget for tool results."""
    return install(target, Session(SharedPrefix(system=HANDBOOK), budget=ToolResultBudget(max_tokens=budget)))


def main(url: str, folder: str) -> None:
    """Run everything up to the second step, leave what a careful application saves, and wait for the end."""
    warnings.simplefilter("ignore")

    def begin(kind: str, target: Any, run: Any) -> None:
        bound = installed(target, 300)
        threading.Thread(target=run, daemon=True).start()
        STOP.acquire()
        state = bound.session.conversation(bound.conversation).dumps()
        Path(folder, f"{kind}.json").write_text(state, encoding="utf-8")

    DYING.append(str(Path(folder, "checkpoints")))
    kept = crew(url)
    begin("checkpoint", kept, kept.kickoff)
    works, who = flow(url, f"{folder}/flow.db")
    begin("flow", who, lambda: works.kickoff(inputs={"id": "killed"}))
    # Last, because every kickoff empties what CrewAI keeps for a replay.
    repeated = crew(url)
    begin("replay", repeated, repeated.kickoff)
    sys.stdout.write("inside\n")
    sys.stdout.flush()
    time.sleep(600)
