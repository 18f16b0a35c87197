"""A project as ``crewai create crew NAME --classic`` makes it: one call in front of the kickoff, and its files stay.

The project is made by CrewAI's own command. Then a brief is given to its tasks, as a user would do it in
``tasks.yaml``, since what all agents have in common is what is shared.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _run import BRIEF, Example, main


def created(folder: Path) -> type[Any]:
    """The crew class of a fresh project, with a place for the brief in both tasks."""
    command = [sys.executable, "-m", "crewai_cli.cli", "create", "crew", "newsroom", "--classic", "--skip-provider"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)  # noqa: S603 - CrewAI's own command
    source = folder / "newsroom" / "src"
    tasks = source / "newsroom" / "config" / "tasks.yaml"
    tasks.write_text(tasks.read_text("utf-8").replace("  expected_output", "    {brief}\n  expected_output"), "utf-8")
    # It prints as it works, and writes its report into the folder that it runs in.
    crew = source / "newsroom" / "crew.py"
    quiet = crew.read_text("utf-8").replace("verbose=True", "verbose=False").replace("output_file='report.md'", "")
    crew.write_text(quiet, "utf-8")
    for name in [name for name in sys.modules if name.partition(".")[0] == "newsroom"]:
        # Of a folder that is gone, where this runs twice in one process.
        del sys.modules[name]
    sys.path.insert(0, str(source))
    importlib.invalidate_caches()
    try:
        found: type[Any] = importlib.import_module("newsroom.crew").Newsroom
    finally:
        sys.path.remove(str(source))
    return found


def run(example: Example) -> Any:
    """The project's crew, with the session installed on it for one kickoff."""
    with tempfile.TemporaryDirectory() as folder:
        crew = created(Path(folder))().crew()
        for agent in crew.agents:
            # Without the window: CrewAI warns on a terminal that it estimates tokens.
            agent.llm, agent.respect_context_window = example.llm(), False
        with example.installed(crew):
            return crew.kickoff(inputs={"topic": "the trade", "current_year": "2026", "brief": BRIEF}).raw


if __name__ == "__main__":
    main(run, __doc__)
