"""Several processes on one store: results are shared, identical calls run once, the dead are replaced."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import Self

WORKER = Path(__file__).with_name("worker.py")


class Worker:
    """Another process with a cache of its own."""

    def __init__(self, where: str, log: Path, options: dict[str, Any]) -> None:
        command = [sys.executable, str(WORKER), where, str(log), json.dumps(options)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.process.kill()
        self.process.wait(30)

    def send(self, **command: Any) -> None:
        """Ask for a call."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """Wait for the next line it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the worker ended with {self.process.wait(30)}"
        return json.loads(line)

    def call(self, **command: Any) -> Any:
        """Ask for a call and wait for its end."""
        self.send(**command)
        return self.answer()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where each run of the tool leaves a line."""
    path = tmp_path / "runs.log"
    path.touch()
    return path


@pytest.fixture
def team(where: str, log: Path) -> Iterator[Callable[..., list[Worker]]]:
    """``team(n, **options)`` starts n workers on the shared store and waits until they are ready."""
    with ExitStack() as stack:

        def start(count: int, **options: Any) -> list[Worker]:
            workers = [stack.enter_context(Worker(where, log, options)) for _ in range(count)]
            assert [w.answer() for w in workers] == ["ready"] * count
            return workers

        yield start


def runs(log: Path) -> int:
    """How often the tool ran, in all processes."""
    return len(log.read_text().splitlines())


def test_two_processes_share_results(team, log: Path) -> None:
    """What one has read the other gets from the store, per scope."""
    one, two = team(2)
    first = one.call()["answer"]
    second = two.call()
    assert second["answer"] == first
    assert second["hits"] == 1
    assert runs(log) == 1
    assert two.call(scope="another tenant")["answer"] != first
    assert runs(log) == 2


def test_two_processes_see_each_others_writes(team, log: Path) -> None:
    """A read after a write in another process runs."""
    one, two = team(2)
    assert one.call(content="old")["answer"]["content"] == "old"
    assert two.call(content="old")["answer"]["content"] == "old"
    two.call(tool="write")
    assert one.call(content="new")["answer"]["content"] == "new"
    assert two.call(content="unused")["answer"]["content"] == "new"


@pytest.mark.slow
def test_four_processes_run_an_identical_call_once(team, log: Path) -> None:
    """They start together; one runs and the others wait for its result."""
    workers = team(4, seconds=0.5)
    at = time.time() + 0.3
    for worker in workers:
        worker.send(at=at)
    answers = [w.answer() for w in workers]
    assert len({json.dumps(a["answer"]) for a in answers}) == 1
    assert runs(log) == 1
    assert sum(a["misses"] for a in answers) == 1
    assert sum(a["joined"] + a["hits"] for a in answers) == 3


@pytest.mark.slow
def test_a_leader_that_fails_releases_the_other_processes(team, log: Path) -> None:
    """They do not wait for the end of its lease."""
    one, two = team(2, seconds=0.4, lease=20)
    one.send(fail=True)
    wait_for_runs(log, 1)
    answer = two.call()
    assert one.answer()["answer"] == "the tool failed"
    assert answer["answer"]["content"] == "content"
    assert answer["seconds"] < 10


@pytest.mark.slow
def test_a_leader_killed_by_the_system_is_replaced_after_its_lease(team, log: Path) -> None:
    """SIGKILL in the middle of the tool: the others get their result, two seconds later at most."""
    leader, *others = team(3, seconds=1.5)
    leader.send()
    wait_for_runs(log, 1)
    for worker in others:
        worker.send()
    time.sleep(0.2)
    leader.process.kill()
    answers = [w.answer() for w in others]
    assert all(a["answer"]["content"] == "content" for a in answers)
    # Two seconds until the leader is given up, then the tool's own time; the rest is slack for a busy machine.
    assert all(a["seconds"] < 2 + 1.5 + 5 for a in answers)
    assert leader.process.pid not in {a["answer"]["by"] for a in answers}
    assert 2 <= runs(log) <= 3


def wait_for_runs(log: Path, count: int) -> None:
    """Wait until the tool has started so often."""
    end = time.monotonic() + 20
    while runs(log) < count and time.monotonic() < end:
        time.sleep(0.01)
    assert runs(log) >= count


@pytest.mark.slow
def test_a_server_that_stops_in_the_middle_stops_nobody(tmp_path: Path, log: Path, start_valkey: Any) -> None:
    """While it is away every call runs its tool; when it is back results are shared again."""
    server = start_valkey(tmp_path / "server")
    with ExitStack() as stack:
        stack.callback(server.kill)
        one, two = (stack.enter_context(Worker(server.url, log, {"seconds": 0.5, "lease": 5})) for _ in range(2))
        assert [one.answer(), two.answer()] == ["ready"] * 2
        one.send()
        wait_for_runs(log, 1)
        two.send()
        time.sleep(0.1)
        server.kill()
        answers = [one.answer(), two.answer()]
        assert [a["answer"]["content"] for a in answers] == ["content"] * 2
        assert all(a["seconds"] < 5 for a in answers)
        before = runs(log)
        assert one.call()["answer"]["content"] == "content"
        assert one.call(tool="write")["seconds"] < 5
        assert runs(log) == before + 2
        server.start()
        # Each tries the server again by itself; until then its calls run.
        for number in range(1_000):
            after = {"path": f"after {number}"}
            if one.call(arguments=after)["answer"] == two.call(arguments=after)["answer"]:
                break
            time.sleep(0.05)
        else:
            pytest.fail("nothing is shared again")


def test_a_file_deleted_in_the_middle_stops_nobody(tmp_path: Path, log: Path) -> None:
    """Both processes go on, each with a result of its own or a shared one, never a wrong one."""
    path = tmp_path / "store.db"
    with Worker(str(path), log, {}) as one, Worker(str(path), log, {}) as two:
        assert [one.answer(), two.answer()] == ["ready"] * 2
        one.call(content="a")
        for file in tmp_path.glob("store.db*"):
            file.unlink()
        for worker in (one, two):
            assert worker.call(arguments={"path": "b"}, content="b")["answer"]["content"] == "b"
