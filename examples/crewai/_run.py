"""What every CrewAI example has in common: its arguments, its model, and its report.

``--layout unmodified`` only observes; ``--layout shared`` makes the agents forks of one prefix. With
``OPENAI_API_KEY`` or ``OPENAI_BASE_URL`` set, that provider is asked (``ANTHROPIC_API_KEY`` or
``ANTHROPIC_BASE_URL`` with ``--api anthropic``); without, a simulated one answers, and nothing leaves the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

# Before CrewAI is imported: no telemetry, no look-up of versions, no question about traces on a terminal.
os.environ.setdefault("CREWAI_DISABLE_TELEMETRY", "true")
os.environ.setdefault("CREWAI_DISABLE_VERSION_CHECK", "true")
os.environ.setdefault("CREWAI_TRACING_ENABLED", "false")
os.environ.setdefault("CREWAI_TESTING", "true")  # no notice about traces behind a flow's answer
os.environ.setdefault("CREWAI_STORAGE_DIR", tempfile.mkdtemp(prefix="crewai-"))

from crewai import LLM, Agent, Task
from crewai.events.event_listener import event_listener

from cacheprefix import Session
from cacheprefix.server import Script, SimulatedProvider
from cacheprefix_crewai import Installation, install

BRIEF = "The brief of the board.\n" + "\n".join(
    f"{number}. {line}"
    for number, line in enumerate(
        (
            "Utilities plan in budgets of five years and buy through tenders with long lead times.",
            "Service grew twice as fast as the sale of new equipment, from a small base.",
            "Two competitors from abroad offer lower prices and have few service partners.",
            "The board decides before winter whether to build a second service hub in the north.",
            "All figures need a source, and every recommendation an estimate of what it costs.",
        )
        * 14,
        1,
    )
)

PEOPLE = (
    ("Market Researcher", "Find facts with their sources", "You have read every study in the trade."),
    ("Financial Analyst", "Turn facts into figures that hold", "You audited utilities for ten years."),
    ("Report Writer", "Write what the board reads to the end", "You were a journalist."),
)


@dataclass
class Example:
    """One run: the model to build agents with, and the session that watches it."""

    layout: str
    api: str
    session: Session
    base_url: str | None
    offline: bool
    stream: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    """What the example adds to its JSON."""

    def llm(self) -> Any:
        """CrewAI's own model of the provider in use."""
        openai = self.api == "openai"
        model = os.environ.get("MODEL") or ("gpt-5-mini" if openai else "claude-sonnet-4-5-20250929")
        options: dict[str, Any] = {"base_url": self.base_url} if self.base_url else {}
        if self.offline:
            options["api_key"] = "offline"
        return LLM(model=f"{self.api}/{model}", stream=self.stream, **options)

    def agents(self, tools: Callable[[], list[Any]] = list) -> list[Agent]:
        """A researcher, an analyst and a writer."""
        return [
            Agent(
                role=role,
                goal=goal,
                backstory=story,
                llm=self.llm(),
                tools=tools(),
                respect_context_window=False,
                use_better_compaction=False,
            )
            for role, goal, story in PEOPLE
        ]

    def installed(self, target: Any, **options: Any) -> Installation:
        """The session bound to a crew or to agents."""
        return install(target, self.session, **options)


def task(name: str, words: str, agent: Agent | None, **options: Any) -> Task:
    """A task that carries the brief."""
    return Task(
        name=name,
        description=f"{words}\n\n{{brief}}",
        expected_output="Plain text.",
        agent=agent,
        **options,
    )


def main(run: Callable[[Example], Any], doc: str | None, script: Script | None = None, **session: Any) -> None:
    """Parse the arguments, run the example, print what its requests cost."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--layout", choices=("unmodified", "shared"), default="shared")
    parser.add_argument("--api", choices=("openai", "anthropic"), default="openai")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    prefix = given.api.upper()
    base_url = os.environ.get(f"{prefix}_BASE_URL")
    offline = not base_url and not os.environ.get(f"{prefix}_API_KEY")
    event_listener.formatter.verbose = False  # a crew sets this by its own ``verbose``; a flow has none
    watching = Session(mode="observe" if given.layout == "unmodified" else "fork", **session)
    with ExitStack() as stack:
        if offline:
            provider = stack.enter_context(SimulatedProvider(given.api, script))
            base_url = provider.openai_base_url if given.api == "openai" else provider.anthropic_base_url
        example = Example(given.layout, given.api, watching, base_url, offline, given.stream)
        result = run(example)
    report = watching.report()
    if given.json:
        plain = {"layout": given.layout, "result": str(result), **example.extra, "report": report.as_dict()}
        print(json.dumps(plain, indent=1))
    else:
        print(result)
        print(report)
