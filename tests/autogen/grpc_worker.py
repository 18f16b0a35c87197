"""A worker process of the gRPC test: answers fork requests as one role, and goes on with agents that others began."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_core import MessageContext, RoutedAgent, rpc
from pydantic import BaseModel

from cacheprefix import Session, SharedPrefix, ToolResultBudget
from cacheprefix.stores import SqliteStore
from cacheprefix.toolcache import ToolCacheOptions, ToolResultCache, ToolSpec
from cacheprefix_autogen import ForkRequest, wrap

HANDBOOK = "The handbook. " + "Everyone keeps to these rules of the house and cites them by number. " * 80
LONG = "\n".join(f"{number}: a found passage" for number in range(2000))


class Answer(BaseModel):
    """What the role said."""

    text: str


class Continue(BaseModel):
    """The next task of an agent, with what the worker before saved of it."""

    state: dict[str, Any] = {}
    task: str


class Keeper(RoutedAgent):
    """Runs one turn of an agent that lives nowhere: its state comes with the task and goes back with the answer."""

    def __init__(self, name: str, base_url: str, store: str, budget: int) -> None:
        super().__init__(name)
        self._base_url = base_url
        self._store = store
        self._budget = budget
        self.reads = 0

    async def read(self, path: str) -> str:
        """Read a file."""
        self.reads += 1
        return LONG

    @rpc
    async def on_task(self, message: Continue, ctx: MessageContext) -> Continue:
        """One turn; the answer's task is how often this worker ran the tool."""
        from autogen_ext.models.openai import OpenAIChatCompletionClient

        client = OpenAIChatCompletionClient(model="gpt-4o-2024-08-06", base_url=self._base_url, api_key="any")
        session = Session(
            SharedPrefix(system=HANDBOOK),
            budget=ToolResultBudget(max_tokens=self._budget),
            tool_cache=ToolResultCache(
                SqliteStore(self._store), ToolCacheOptions(tools=[ToolSpec("read", cacheable=True, version="1")])
            ),
        )
        agent = AssistantAgent(
            "keeper", client, tools=[self.read], system_message=f"You are the keeper.\n\n{HANDBOOK}",
            reflect_on_tool_use=True,
        )  # fmt: skip
        wrap(agent, session)
        if message.state:
            await agent.load_state(message.state)
        await agent.run(task=message.task)
        await client.close()
        return Continue(state=dict(await agent.save_state()), task=str(self.reads))


class Role(RoutedAgent):
    """Answers on the prefix that comes with the request."""

    def __init__(self, name: str, base_url: str) -> None:
        super().__init__(name)
        self._base_url = base_url

    @rpc
    async def on_request(self, message: ForkRequest, ctx: MessageContext) -> Answer:
        """One answer."""
        from autogen_ext.models.openai import OpenAIChatCompletionClient

        client = OpenAIChatCompletionClient(model="gpt-4o-2024-08-06", base_url=self._base_url, api_key="any")
        result = await message.answer(client, cancellation_token=ctx.cancellation_token)
        await client.close()
        return Answer(text=str(result.content))


async def main(address: str, name: str, base_url: str, store: str, budget: str) -> None:
    """Join the host and serve until the process is ended."""
    from autogen_core import try_get_known_serializers_for_type
    from autogen_ext.runtimes.grpc import GrpcWorkerAgentRuntime

    runtime = GrpcWorkerAgentRuntime(host_address=address)
    for kind in (ForkRequest, Answer, Continue):
        runtime.add_message_serializer(try_get_known_serializers_for_type(kind))
    await runtime.start()
    await Role.register(runtime, name, lambda: Role(name, base_url))
    await Keeper.register(runtime, f"{name}-keeper", lambda: Keeper(name, base_url, store, int(budget)))
    print("ready", flush=True)
    await runtime.stop_when_signal()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
