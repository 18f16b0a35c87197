"""One kickoff in a process of a pool: its own session, budget and crew; the file it is told to share with the others.

Loaded once by a fork server, before CrewAI has started any thread.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from benchmarks import crewai_workloads as work

from crewai import Agent, Crew, Task
from crewai.tools import BaseTool

from cacheprefix import Session, SharedPrefix, ToolResultBudget
from cacheprefix.stores import SqliteStore
from cacheprefix.toolcache import ToolCacheOptions, ToolResultCache, ToolSpec
from cacheprefix_crewai import install

HANDBOOK = "The handbook. " + "Everyone keeps to these rules of the house and cites them by number. " * 80
LONG = "\n".join(f"{number}: a found passage" for number in range(2000))


class Read(BaseTool):
    """Leaves a line for each of its runs."""

    name: str = "read"
    description: str = "Read a file."
    log: str = ""

    def _run(self, path: str) -> str:
        with Path(self.log).open("a") as file:
            file.write(f"{path}\n")
        return LONG


def kick(url: str, folder: str, budget: int, saved: str | None) -> tuple[int, str]:
    """Run the crew once; the process and what it decided, as JSON."""
    warnings.simplefilter("ignore")
    made = []
    for role in ("Researcher", "Writer"):
        llm = work.new_llm("gpt-5-2025-08-07", url)
        tools = [Read(log=f"{folder}/runs")]
        made.append(Agent(role=role, goal="Work", backstory=f"A {role}.", llm=llm, tools=tools, verbose=False))
    tasks = [
        Task(description=f"Step {i} of the work.", expected_output="Text.", agent=agent) for i, agent in enumerate(made)
    ]
    session = Session(
        SharedPrefix(system=HANDBOOK),
        budget=ToolResultBudget(max_tokens=budget),
        tool_cache=ToolResultCache(
            SqliteStore(f"{folder}/store.db"), ToolCacheOptions(tools=[ToolSpec("read", cacheable=True, version="1")])
        ),
    )
    with install(Crew(agents=made, tasks=tasks, verbose=False), session) as installed:
        conversation = session.conversation(installed.conversation)
        if saved is not None:
            conversation.restore(saved)
        installed._target.kickoff()
        return os.getpid(), conversation.dumps()
