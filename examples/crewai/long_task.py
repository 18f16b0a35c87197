"""A task with a long tool loop: old results go by decision, where CrewAI would have the model summarise everything.

The hour of the day stands behind everything cached, in every request anew.
"""

from __future__ import annotations

from typing import Any

from _run import Example, main
from crewai import Agent, Crew, Task
from crewai.tools import tool

from cacheprefix.server import Echo, Reply, Request, ToolCall

STEPS = 16


@tool
def chapter(number: int) -> str:
    """Give one chapter of the annual report."""
    return "\n".join(f"Chapter {number}, line {line}: revenue, orders and staff by region." for line in range(20))


class Reading:
    """Plays a model that reads chapter after chapter and then answers."""

    def __init__(self) -> None:
        self.read = 0

    def __call__(self, request: Request) -> Reply:
        """The next chapter, or the answer."""
        if not request.asked.tools or self.read == STEPS or request.asked.choice == "none":
            return Echo()(request)
        self.read += 1
        return Reply(tool_calls=(ToolCall("chapter", {"number": self.read}),))


def run(example: Example) -> Any:
    """One agent reads all chapters."""
    who = Agent(
        role="Archivist",
        goal="Read reports to the end",
        backstory="You never skip a page.",
        llm=example.llm(),
        tools=[chapter],
        max_iter=2 * STEPS,
        respect_context_window=False,
        use_better_compaction=False,
    )
    read = Task(name="read", description=f"Read all {STEPS} chapters.", expected_output="What they come to.", agent=who)
    crew = Crew(agents=[who], tasks=[read], verbose=False)
    with example.installed(crew, volatile=lambda: {"now": "Monday, 9 o'clock"}):
        result = crew.kickoff()
    example.extra["largest_request"] = max(call.input_tokens for call in example.session.calls)
    example.extra["compacted"] = sum(call.verdict.cause == "compacted" for call in example.session.calls)
    return result.raw


if __name__ == "__main__":
    main(run, __doc__, Reading(), compaction=4_000)
