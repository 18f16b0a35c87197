"""A worker process of the gRPC test: answers fork requests as one role."""

from __future__ import annotations

import asyncio
import sys

from autogen_core import MessageContext, RoutedAgent, rpc
from pydantic import BaseModel

from cacheprefix_autogen import ForkRequest


class Answer(BaseModel):
    """What the role said."""

    text: str


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


async def main(address: str, name: str, base_url: str) -> None:
    """Join the host and serve until the process is ended."""
    from autogen_core import try_get_known_serializers_for_type
    from autogen_ext.runtimes.grpc import GrpcWorkerAgentRuntime

    runtime = GrpcWorkerAgentRuntime(host_address=address)
    for kind in (ForkRequest, Answer):
        runtime.add_message_serializer(try_get_known_serializers_for_type(kind))
    await runtime.start()
    await Role.register(runtime, name, lambda: Role(name, base_url))
    print("ready", flush=True)
    await runtime.stop_when_signal()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
