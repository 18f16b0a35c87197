"""Core agents on the gRPC runtime, in processes of their own."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from autogen_teams import HANDBOOK, TASK, Says, common, prompts, role, tail_index

from cacheprefix import Session, SharedPrefix
from cacheprefix.errors import SetupError
from cacheprefix.server import ToolCall
from cacheprefix_autogen import ForkRequest, wrap

WORKER = Path(__file__).parent / "grpc_worker.py"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def test_a_fork_request_survives_json_and_is_answered_on_the_same_prefix(provide, new_client):
    """What another process sends shares everything that the wrapped agent was sent."""
    provider = provide("openai", Says())
    agent = wrap(role("planner", new_client(provider)), Session(SharedPrefix(system=HANDBOOK)))
    await agent.run(task=TASK)
    request = ForkRequest.of(agent, role="critic", instruction="You are the critic.")
    received = ForkRequest.model_validate_json(request.model_dump_json())
    assert received == request
    await received.answer(new_client(provider))
    first, second = prompts(provider.requests)
    assert common(first, second) == tail_index(first)
    assert second.sections[-1].text.startswith('<role name="critic">')


async def test_an_agent_that_is_not_wrapped_has_no_fork_request(provide, new_client):
    """The error names what to do."""
    with pytest.raises(SetupError, match="wrap it first"):
        ForkRequest.of(role("planner", new_client(provide("openai"))))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
async def test_two_worker_processes_answer_on_one_prefix(provide, new_client, tmp_path):
    """Requests of two gRPC workers and of this process share all but the role's text.

    An agent whose saved state travels between the workers goes on byte-identically under another budget, and what
    its tool read in one process is known in the other.
    """
    grpc = pytest.importorskip("autogen_ext.runtimes.grpc", reason="needs the extra grpc, which make test installs")
    from autogen_core import AgentId, try_get_known_serializers_for_type
    from grpc_worker import Answer, Continue

    reads = ToolCall("read", {"path": "a"})
    provider = provide("openai", Says({"keeper": (reads, "It says much.", reads, "It still does.", "That is all.")}))
    agent = wrap(role("planner", new_client(provider)), Session(SharedPrefix(system=HANDBOOK)))
    await agent.run(task=TASK)
    address = f"127.0.0.1:{_free_port()}"
    host = grpc.GrpcWorkerAgentRuntimeHost(address=address)
    host.start()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    workers = [
        subprocess.Popen(  # noqa: ASYNC220 - starting is quick, and what it prints is read in a thread
            [sys.executable, str(WORKER), address, name, provider.openai_base_url, str(tmp_path / "s.db"), budget],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, budget in (("critic", "300"), ("writer", "100"))
    ]
    try:
        for worker in workers:
            assert (await asyncio.to_thread(worker.stdout.readline)).strip() == "ready"
        caller = grpc.GrpcWorkerAgentRuntime(host_address=address)
        for kind in (ForkRequest, Answer, Continue):
            caller.add_message_serializer(try_get_known_serializers_for_type(kind))
        await caller.start()
        for name in ("critic", "writer"):
            request = ForkRequest.of(agent, role=name, instruction=f"You are the {name}.")
            answer = await asyncio.wait_for(caller.send_message(request, AgentId(name, "default")), 60)
            assert answer.text.startswith(f"{name} speaks")
        state, runs = {}, []
        for turn, name in enumerate(("critic", "writer", "critic")):
            given = Continue(state=state, task=f"Task {turn}.")
            back = await asyncio.wait_for(caller.send_message(given, AgentId(f"{name}-keeper", "default")), 60)
            state = back.state
            runs.append(int(back.task))
        await caller.stop()
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait(10)
            worker.stdout.close()
        await host.stop()
    own, critic, writer, *kept = prompts(provider.requests)
    assert common(own, critic) == tail_index(own)
    assert common(critic, writer) == tail_index(critic)
    assert len(kept) == 5
    assert runs == [1, 0, 1]
    for before, after in pairwise(kept):
        assert common(before, after) >= tail_index(before)
    cut, again = ([s.text for s in kept[i].sections if "a found passage" in s.text] for i in (1, 3))
    # What it read first stays with it, and what the other process reads anew is cut alike.
    assert again == [*cut, *cut] != []
    assert "1999:" in cut[0]
    assert "1000:" not in cut[0]
