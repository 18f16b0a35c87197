"""Real servers that fork their workers from a process with a session in use: gunicorn's and Celery's prefork models."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cacheprefix.server import Latency, SimulatedProvider

pytest.importorskip("celery", reason="the servers are in the core's environment (make test-core)")

HERE = Path(__file__).parent
WORKERS = 3
PATIENCE = 120.0
LATENCY = Latency(base=1.0, uncached=0.0, cached=0.0, output=0.0, scale=1.0)
"""So that requests that start together overlap."""

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


@pytest.fixture
def provider() -> Iterator[SimulatedProvider]:
    """Anthropic's rules."""
    with SimulatedProvider("anthropic", latency=LATENCY) as made:
        yield made


@contextmanager
def serving(command: list[str], provider: SimulatedProvider, folder: Path) -> Iterator[None]:
    """A server with its workers, ended with the block; what it said is shown where the block fails."""
    for name in ("queue", "control", "results"):
        (folder / name).mkdir()
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "CACHEPREFIX_TEST_URL": provider.anthropic_base_url,
        "CACHEPREFIX_TEST_FOLDER": str(folder),
        "PYTHONWARNINGS": "ignore",
    }
    said = folder / "said.log"
    with said.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            env=environment,
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield
    except BaseException:
        print(said.read_text("utf-8", "replace")[-4_000:])
        raise
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)


def get(url: str) -> dict[str, Any]:
    """What a worker says; waits for a server that is starting."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except (urllib.error.URLError, ConnectionError):  # noqa: PERF203 - a server that is starting
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def holds(answers: list[dict[str, Any]]) -> None:
    """All were asked in workers, as forks that were counted, without a failure and without waiting for the parent."""
    assert not any(answer.get("parent") for answer in answers)
    assert [answer["failures"] for answer in answers] == [{}] * len(answers)
    assert all(answer["calls"] for answer in answers)
    assert all(answer["seconds"] < PATIENCE for answer in answers)


def test_gunicorns_workers_share_a_session_made_before_the_fork(provider, tmp_path):
    """Those that start together on a cold prefix follow one leader, in whatever worker; and all go on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = f"127.0.0.1:{port}"
    command = ["gunicorn", "--preload", "--workers", str(WORKERS), "--bind", where, "--timeout", "300"]
    with serving([*command, "prefork_app:application"], provider, tmp_path), ThreadPoolExecutor(WORKERS) as pool:
        seen: set[int] = set()
        until = time.monotonic() + PATIENCE
        while len(seen) < WORKERS and time.monotonic() < until:
            seen |= {one["pid"] for one in pool.map(get, [f"http://{where}/"] * WORKERS)}
        assert len(seen) == WORKERS
        first = list(pool.map(get, [f"http://{where}/role{number}" for number in range(WORKERS)]))
        later = list(pool.map(get, [f"http://{where}/role{number}" for number in range(WORKERS)]))
    holds([*first, *later])
    assert {one["pid"] for one in first} <= seen
    assert [bool(one["read"]) for one in first].count(False) == 1
    assert all(one["read"] for one in later)
    assert len(provider.requests) == 2 * WORKERS


def test_celerys_workers_share_a_session_made_before_the_fork(provider, tmp_path):
    """Tasks of a prefork pool, also on the model whose cold prefix the parent leads on."""
    from celery import Celery

    options = ["--pool", "prefork", "--concurrency", str(WORKERS), "--loglevel", "WARNING"]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    command = ["celery", "-A", "prefork_app:queue", "worker", *options, *quiet]
    folders = {name: str(tmp_path / "queue") for name in ("data_folder_in", "data_folder_out")}
    with serving(command, provider, tmp_path):
        queue = Celery("asking", broker="filesystem://", backend=f"file://{tmp_path / 'results'}")
        queue.conf.broker_transport_options = {**folders, "control_folder": str(tmp_path / "control")}
        sent = [queue.send_task("ask", [f"role{number}"]) for number in range(2 * WORKERS)]
        sent += [queue.send_task("ask", ["leader", "claude-opus-4-8"])]
        answers = [each.get(timeout=PATIENCE) for each in sent]
    holds(answers)
    assert len({one["pid"] for one in answers}) > 1
    assert [bool(one["read"]) for one in answers[:-1]].count(False) == 1
