"""Killed processes: what CrewAI resumes sends what it would have sent."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from crew_wire import bodies

from cacheprefix.server import Reply, Request, ToolCall

HERE = Path(__file__).parent


def plays(request: Request) -> Reply:
    """Read the file the task names, then answer."""
    name = re.findall(r"\(read (\w)\)", request.text)[-1]
    if request.rounds:
        return Reply(f"{name} is read.")
    return Reply(tool_calls=(ToolCall("read", {"path": name}),))


@pytest.mark.slow
def test_a_killed_process_is_resumed_byte_identically(servers, tmp_path) -> None:
    """SIGKILL inside the second step of a crew with checkpoints, of one that is replayed, and of a persisted flow.

    Another process with another budget and the decisions of the first sends what an undisturbed run sends.
    """
    killed_and_resumed(servers("openai", plays), tmp_path)
    gc.collect()  # CrewAI closes no asynchronous client, which is to be found out here and not when all is over


def killed_and_resumed(provider: Any, tmp_path: Path) -> None:
    """Kill one process, resume its runs in this one, and compare both with runs that nobody disturbed."""
    import killing
    from crewai import Crew
    from crewai.flow.persistence.sqlite import SQLiteFlowPersistence
    from crewai.memory.storage.kickoff_task_outputs_storage import KickoffTaskOutputsSQLiteStorage
    from crewai.state.checkpoint_config import CheckpointConfig

    url = provider.openai_base_url
    command = f"import killing; killing.main({url!r}, {str(tmp_path)!r})"
    with subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE, text=True, cwd=HERE) as process:
        try:
            assert any(line == "inside\n" for line in process.stdout)
        finally:
            process.kill()
    assert process.returncode == -9
    before = bodies(provider)
    assert len(before) == 9

    def resumed(kind: str, target: Any, run: Any) -> list[Any]:
        bound = killing.installed(target, 100)
        bound.session.conversation(bound.conversation).restore((tmp_path / f"{kind}.json").read_text())
        provider.reset()
        run()
        bound.undo()
        assert bound.session.failures == {}
        return bodies(provider)

    def undisturbed(target: Any, run: Any) -> list[Any]:
        bound = killing.installed(target, 300)
        provider.reset()
        run()
        bound.undo()
        return bodies(provider)

    stored = KickoffTaskOutputsSQLiteStorage().load()
    assert [one["task_index"] for one in stored] == [0]
    repeated = killing.crew(url)
    replayed = resumed("replay", repeated, lambda: repeated.replay(stored[0]["task_id"]))
    kept = Crew.from_checkpoint(CheckpointConfig(restore_from=min((tmp_path / "checkpoints").rglob("*.json"))))
    continued = resumed("checkpoint", kept, kept.kickoff)
    works, who = killing.flow(url, f"{tmp_path}/flow.db")
    flowed = resumed("flow", who, lambda: works.kickoff(inputs={"id": "killed"}))
    assert (works.state.a, works.state.b) == ("a is read.", "b is read.")

    whole = killing.crew(url)
    control = undisturbed(whole, whole.kickoff)
    assert len(control) == 6
    assert before[:3] == before[6:] == control[:3]
    assert replayed == control
    assert continued == control[2:]
    other, some = killing.flow(url, f"{tmp_path}/other.db")
    assert flowed == undisturbed(some, lambda: other.kickoff(inputs={"id": "other"}))[2:]
    assert "cut" in control[3]["messages"][-1]["content"]
    assert SQLiteFlowPersistence(f"{tmp_path}/flow.db").load_state("killed")["b"] == "b is read."
