"""Time a call of a CrewAI crew takes when cacheprefix is installed, as a multiple of the unmodified crew's.

``python -m benchmarks.bench_crewai_overhead`` prints a table and writes ``benchmarks/results/crewai_overhead.json``.
An agent with a tool, whose loop is given a conversation of the wanted length by CrewAI's own hook before its first
call; what is timed is the way from one call of the tool to the next. No model is called.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

os.environ.setdefault("CREWAI_DISABLE_TELEMETRY", "true")
os.environ.setdefault("CREWAI_DISABLE_VERSION_CHECK", "true")
os.environ.setdefault("CREWAI_TRACING_ENABLED", "false")
os.environ.setdefault("OTEL_SDK_DISABLED", "true")
os.environ.setdefault("CREWAI_STORAGE_DIR", tempfile.mkdtemp(prefix="crewai-"))

from crewai import LLM, Agent, Crew, Task
from crewai.hooks import register_before_llm_call_hook, unregister_before_llm_call_hook
from crewai.tools import tool

from benchmarks import _overhead
from cacheprefix import Session, SharedPrefix
from cacheprefix_crewai import install

RULES = "Keep every claim next to the place it comes from. " * 120
ROUNDS = 5


def builder(url: str) -> Callable[[int, bool], _overhead.Side]:
    """Makes the two sides."""
    called: list[float] = []

    @tool("look")
    def look(at: int) -> str:
        """Look at one place of the file."""
        called.append(time.perf_counter())
        return _overhead.filler(at)

    def build(size: int, shared: bool) -> _overhead.Side:  # noqa: FBT001 - one of two sides
        history = [{"role": "assistant" if n % 2 else "user", "content": _overhead.filler(n)} for n in range(size)]

        def fill(context: Any) -> None:
            if len(context.messages) < size:
                context.messages.extend(dict(message) for message in history)

        def run() -> list[float]:
            llm = LLM(model="openai/gpt-5.2", base_url=url, api_key="none")
            people = [
                Agent(
                    role=name,
                    goal="Find it",
                    backstory="Careful.",
                    llm=llm,
                    tools=[look],
                    respect_context_window=False,  # else it sums up long histories itself
                )
                for name in ("reader", "writer")
            ]
            tasks = [Task(description=f"{RULES} Read.", expected_output="A note.", agent=person) for person in people]
            crew = Crew(agents=people, tasks=tasks, verbose=False)  # type: ignore[call-arg]
            register_before_llm_call_hook(fill)
            called.clear()
            try:
                if shared:
                    with install(crew, Session(SharedPrefix(system=RULES))):
                        crew.kickoff()
                else:
                    crew.kickoff()
            finally:
                unregister_before_llm_call_hook(fill)
            gaps = [after - before for before, after in pairwise(called)]
            # The gap between the two agents' loops is no call.
            return gaps[: ROUNDS - 1] + gaps[ROUNDS:]

        return run

    return build


if __name__ == "__main__":
    packages = ("crewai", "openai")
    sys.exit(_overhead.main(__doc__, "CrewAI", builder, packages=packages, tool_rounds=ROUNDS))
