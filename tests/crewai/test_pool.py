"""CrewAI in a process pool: sessions of different processes send the same bytes."""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from cacheprefix.server import Reply, ToolCall

sys.path.insert(0, str(Path(__file__).parent))
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["pool_worker"])

DONE = Reply("Thought: I know.\nFinal Answer: done.")


def plays(request):
    """Read once in each task, then answer."""
    return DONE if request.rounds else Reply(tool_calls=(ToolCall("read", {"path": "a"}),))


@pytest.mark.slow
def test_kickoffs_in_a_process_pool_send_the_same_bytes(provide, tmp_path):
    """Two processes with another budget, given the first one's decisions, repeat its requests byte for byte.

    The requests of all begin alike, and the tool runs once in all processes together.
    """
    from pool_worker import kick

    provider = provide("openai", plays)
    url, folder = provider.openai_base_url, str(tmp_path)
    with ProcessPoolExecutor(2, mp_context=PROCESSES) as pool:
        first, saved = pool.submit(kick, url, folder, 300, None).result(120)
        bodies = [record.body for record in provider.requests]
        assert len(bodies) == 4
        later = [pool.submit(kick, url, folder, 100, saved) for _ in range(2)]
        others = [each.result(120)[0] for each in later]
        undecided = pool.submit(kick, url, folder, 100, None).result(120)
    assert len({first, *others, undecided[0]}) == 2
    records = provider.requests
    assert {record.body for record in records[:12]} == set(bodies)
    # The decisions are what made them equal: without them the other budget cuts elsewhere.
    assert {record.body for record in records[12:]} != set(bodies)
    heads = {tuple(s.data for s in record.prompt.sections if s.tier != "messages") for record in records}
    assert len(heads) == 1
    assert (tmp_path / "runs").read_text() == "a\n"
