"""AutoGen's gRPC runtime: a planner here, a critic and a writer in processes of their own, on one cached prefix.

AgentChat teams do not run on that runtime; core agents do. What a worker needs to go on with the planner's
conversation crosses it as a message (``ForkRequest``), and the worker's request begins with the planner's very bytes.
Unmodified, each worker begins with its own role, and is told the conversation behind that.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import AsyncExitStack

from _run import Example, main, role
from autogen_agentchat.agents import AssistantAgent
from autogen_core import AgentId, MessageContext, RoutedAgent, rpc, try_get_known_serializers_for_type
from autogen_core.models import SystemMessage, UserMessage
from autogen_ext.runtimes.grpc import GrpcWorkerAgentRuntime, GrpcWorkerAgentRuntimeHost
from pydantic import BaseModel

from cacheprefix import Session
from cacheprefix_autogen import ForkRequest

DUTIES = {"critic": "Say what could go wrong.", "writer": "Write the notice that goes out."}
TASK = "Plan the maintenance on Sunday, from the first call to the last.\n" + "\n".join(
    f"{number}. What was agreed on in meeting {number} about the machines, the crews and the neighbours holds."
    for number in range(1, 61)
)


class Plain(BaseModel):
    """A conversation as an application without us sends it to a worker."""

    said: list[str]


class Answer(BaseModel):
    """What a worker said."""

    text: str


class Worker(RoutedAgent):
    """Answers as one role."""

    def __init__(self, name: str, example: Example) -> None:
        super().__init__(DUTIES[name])
        self.name, self.example = name, example

    @rpc
    async def on_plain(self, message: Plain, ctx: MessageContext) -> Answer:
        """With its own system message first."""
        said = [UserMessage(content=text, source="user") for text in message.said]
        told = SystemMessage(content=role(self.name, DUTIES[self.name]))
        answer = await self.example.client().create([told, *said], cancellation_token=ctx.cancellation_token)
        return Answer(text=str(answer.content))

    @rpc
    async def on_fork(self, message: ForkRequest, ctx: MessageContext) -> Answer:
        """On the prefix that came with the request."""
        answer = await message.answer(self.example.client(), cancellation_token=ctx.cancellation_token)
        return Answer(text=str(answer.content))


async def connected(address: str) -> GrpcWorkerAgentRuntime:
    """A runtime that knows the messages."""
    runtime = GrpcWorkerAgentRuntime(host_address=address)
    for kind in (ForkRequest, Plain, Answer):
        runtime.add_message_serializer(try_get_known_serializers_for_type(kind))
    await runtime.start()
    return runtime


async def work(name: str, address: str, api: str, base_url: str) -> None:
    """One worker process: serves until it is ended."""
    example = Example("", api, Session(), base_url or None, offline=not os.environ.get(f"{api.upper()}_API_KEY"))
    runtime = await connected(address)
    await Worker.register(runtime, name, lambda: Worker(name, example))
    print("ready", flush=True)
    await runtime.stop_when_signal()


async def grpc_workers(example: Example) -> str:
    """The planner speaks, then both workers answer."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    planner = AssistantAgent("planner", example.client(), system_message=role("planner", "Plan in three steps."))
    planner = example.wrapped(planner)
    async with AsyncExitStack() as stack:
        host = GrpcWorkerAgentRuntimeHost(address=address)
        host.start()
        stack.push_async_callback(host.stop)
        for name in DUTIES:
            given = (__file__, name, address, example.api, example.base_url or "")
            process = await asyncio.create_subprocess_exec(sys.executable, *given, stdout=asyncio.subprocess.PIPE)
            stack.push_async_callback(process.wait)
            stack.callback(process.terminate)
            assert process.stdout is not None
            await process.stdout.readline()
        plan = (await planner.run(task=TASK)).messages[-1].to_text()
        runtime = await connected(address)
        stack.push_async_callback(runtime.stop)
        answers = []
        for name, duty in DUTIES.items():
            if example.layout == "shared":
                asked: BaseModel = ForkRequest.of(planner, role=name, instruction=f"You are the {name}. {duty}")
            else:
                asked = Plain(said=[TASK, plan])
            answer = await runtime.send_message(asked, AgentId(name, "default"))
            answers.append(f"{name}: {answer.text}")
        return "\n".join(answers)


if __name__ == "__main__":
    if len(sys.argv) == 5 and sys.argv[1] in DUTIES:
        asyncio.run(work(*sys.argv[1:]))
    else:
        main(grpc_workers)
