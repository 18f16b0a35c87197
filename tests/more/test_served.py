"""The applications of ``examples/served`` in FastAPI's workers, gunicorn's prefork model and LangGraph's own server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import httpx
import pytest

from cacheprefix.server import Latency, SimulatedProvider

pytest.importorskip("fastapi", reason="the servers are in the core's environment (make test-core)")

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "served"
PINS = ROOT / "constraints" / "served.txt"
PATIENCE = 120.0
THREADS = ("one", "two", "three", "four")
READ = 2_000
"""Tokens: less than the handbook, and more than anything else that is said."""


@contextmanager
def serving(
    command: list[str], provider: SimulatedProvider, folder: Path, ready: str, *beside: str
) -> Iterator[httpx.Client]:
    """A server of the example, which ends with the block; what it said is shown where the block fails."""
    shutil.copytree(EXAMPLES, folder, dirs_exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(folder), *beside]),
        "OPENAI_BASE_URL": provider.openai_base_url,
        "OPENAI_API_KEY": "k",
        "TEAM_FOLDER": str(folder),
        "LANGSMITH_TRACING": "false",
        "PYTHONWARNINGS": "ignore",
    }
    said = folder / "said.log"
    with said.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *(part.replace("PORT", port) for part in command)],
            cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    client = httpx.Client(
        base_url=f"http://127.0.0.1:{port}",
        timeout=PATIENCE,
        # A connection for each request: which worker takes it is the system's choice.
        limits=httpx.Limits(max_keepalive_connections=0),
    )
    try:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                if client.get(ready).is_success:
                    break
            except httpx.TransportError:
                assert process.poll() is None, said.read_text()
                assert time.monotonic() < until, said.read_text()
                time.sleep(0.1)
        yield client
    except BaseException:
        print(said.read_text()[-5_000:])
        raise
    finally:
        client.close()
        process.terminate()
        process.wait(30)


def fastapi(client: httpx.Client, thread: str, text: str) -> dict[str, Any]:
    """One turn of a thread."""
    found: dict[str, Any] = client.post(f"/threads/{thread}", json={"text": text}).raise_for_status().json()
    return found


def gunicorn(client: httpx.Client, thread: str, text: str) -> dict[str, Any]:
    """The same."""
    found: dict[str, Any] = client.get(f"/{thread}", params=text).raise_for_status().json()
    assert found["failures"] == {}
    return found


PREFORK = ["gunicorn", "--preload", "--workers", "2", "--bind", "127.0.0.1:PORT", "prefork_app:application"]
SERVERS = {
    "fastapi": (fastapi, "/openapi.json", ["uvicorn", "fastapi_app:app", "--workers", "2", "--port", "PORT"]),
    "gunicorn": (gunicorn, "/warm", PREFORK),
}


def grows(provider: SimulatedProvider, thread: str) -> int:
    """How many requests a thread made; each begins with all that stood in front of the role's text in the one before.

    That is all but the role's text, or the handbook alone, where a role begins one thread after another in a worker.
    """
    texts = [[section.text for section in record.prompt.sections] for record in provider.requests]
    own = [one for one in texts if any(f"thread {thread} " in text for text in one)]
    for earlier, later in pairwise(own):
        shared = [*takewhile(lambda text: not text.startswith("<role name="), earlier)]
        assert len(shared) in (1, len(earlier) - 1)
        assert later[: len(shared)] == shared
    return len(own)


@pytest.mark.parametrize("name", SERVERS)
def test_workers_share_threads_and_who_writes_a_cold_prefix(tmp_path: Path, name: str) -> None:
    """Threads that start together in several processes follow one leader; each goes on in whichever worker is free."""
    ask: Callable[[httpx.Client, str, str], dict[str, Any]]
    ask, ready, command = SERVERS[name]
    latency = Latency(base=0.5, uncached=0.0, cached=0.0, output=0.0, scale=1.0)
    with (
        SimulatedProvider("openai-5.6", latency=latency) as provider,
        serving(command, provider, tmp_path, ready) as to,
    ):
        provider.reset()
        with ThreadPoolExecutor(len(THREADS)) as pool:
            said = list(pool.map(lambda thread: ask(to, thread, f"In thread {thread} we plan."), THREADS))
        if name == "fastapi":
            # gunicorn's was warm before: that it was up could be asked only by a question.
            assert [bool(one.outcome.read_tokens > READ) for one in provider.requests].count(False) == 1
        workers = {one["worker"] for one in said}
        turns = 1
        while len(workers) < 2 or turns < 3:
            assert turns < 40, "one worker takes all connections"
            workers |= {ask(to, thread, "Go on.")["worker"] for thread in THREADS[:2]}
            turns += 1
        assert {grows(provider, thread) for thread in THREADS[:2]} == {2 * turns}
        assert all(one.outcome.read_tokens > READ for one in provider.requests[len(THREADS) :])


@pytest.fixture(scope="session")
def langgraph_server(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What LangGraph's own server needs beside this environment, in a folder that goes with the tests."""
    folder = tmp_path_factory.mktemp("langgraph-server")
    install = ["pip", "install", "--quiet", "--no-deps", "--target", str(folder), "--requirement", str(PINS)]
    subprocess.run([sys.executable, "-m", *install], check=True)
    return str(folder)


def test_langgraphs_own_server_keeps_a_threads_prefix(tmp_path: Path, langgraph_server: str) -> None:
    """As ``langgraph dev`` serves it: each request begins with what its thread sent before, read from the cache."""
    command = ["langgraph_cli", "dev", "--no-browser", "--no-reload", "--port", "PORT"]
    with (
        SimulatedProvider("openai-5.6") as provider,
        serving(command, provider, tmp_path, "/ok", langgraph_server) as to,
    ):
        thread = to.post("/threads", json={}).raise_for_status().json()["thread_id"]
        for turn in range(2):
            asked = {"messages": [{"role": "user", "content": f"In thread one we plan, turn {turn}."}]}
            run = {"assistant_id": "team", "input": asked}
            out = to.post(f"/threads/{thread}/runs/wait", json=run).raise_for_status().json()
        assert len(out["messages"]) == 6
        assert grows(provider, "one") == 4
        assert [record.outcome.read_tokens > READ for record in provider.requests] == [False, True, True, True]
