"""Agents of AutoGen's core, which keep their own messages and run their own tools, on clients that fork.

Two conversations go on in turns through the same clients: which one a request belongs to is read from its messages.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from _run import HANDBOOK, Example, main, role
from autogen_core import (
    AgentId,
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    message_handler,
)
from autogen_core.models import (
    AssistantMessage,
    ChatCompletionClient,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    LLMMessage,
    SystemMessage,
    UserMessage,
)
from autogen_core.tools import FunctionTool

from cacheprefix import SharedPrefix
from cacheprefix.server import Reply, Request, ToolCall
from cacheprefix_autogen import PrefixClient

METALS = ("copper", "tin")


@dataclass
class Said:
    """What somebody said."""

    text: str
    source: str


def prices(metal: str) -> str:
    """The prices of a metal, year by year."""
    return "\n".join(f"{2015 + year}: a ton of {metal} cost {6_000 + 137 * year}." for year in range(10))


PRICES = FunctionTool(prices, description="The prices of a metal, year by year.")


class Speaker(RoutedAgent):
    """Keeps what it heard, and asks its model until that calls no more tools; one for each conversation."""

    def __init__(self, client: ChatCompletionClient, name: str, duty: str, tools: list[FunctionTool]) -> None:
        super().__init__(duty)
        self._client, self._name, self._tools = client, name, tools
        self._heard: list[LLMMessage] = [SystemMessage(content=role(name, duty))]

    @message_handler
    async def on_said(self, message: Said, ctx: MessageContext) -> Said:
        """Answer what was said."""
        self._heard.append(UserMessage(content=message.text, source=message.source))
        while True:
            answer = await self._client.create(self._heard, tools=self._tools)
            self._heard.append(AssistantMessage(content=answer.content, source=self._name))
            if isinstance(answer.content, str):
                return Said(answer.content, self._name)
            done = []
            for call in answer.content:
                found = await PRICES.run_json(json.loads(call.arguments), ctx.cancellation_token)
                done.append(
                    FunctionExecutionResult(call_id=call.id, name=call.name, content=str(found), is_error=False)
                )
            self._heard.append(FunctionExecutionResultMessage(content=done))


def model() -> object:
    """A model whose analyst looks prices up once for each question."""

    def answer(request: Request) -> Reply:
        metal = next(one for one in METALS if one in request.text)
        if "You are the analyst." in request.text and request.rounds == 0:
            return Reply("", tool_calls=(ToolCall("prices", {"metal": metal}, f"call_{request.index}"),))
        return Reply(f"The price of {metal} rose by 137 a year, by what was looked up. " * 6)

    return answer


async def core_agents(example: Example) -> str:
    """An analyst with a tool and a reviewer, three questions in each of two conversations."""
    runtime = SingleThreadedAgentRuntime()
    for name, duty, tools in (("analyst", "Look prices up.", [PRICES]), ("reviewer", "Have the last word.", [])):
        # One for all conversations of a role.
        client = PrefixClient(example.client(), example.session, role=name)
        await Speaker.register(
            runtime, name, lambda client=client, name=name, duty=duty, tools=tools: Speaker(client, name, duty, tools)
        )
    runtime.start()

    said: dict[str, str] = {}
    for question in ("How did its price develop?", "What may it cost in five years?", "Is that sure?"):
        for metal in METALS:
            asked = Said(f"About {metal}: {question}", "user")
            found = await runtime.send_message(asked, AgentId("analyst", metal))
            said[metal] = (await runtime.send_message(found, AgentId("reviewer", metal))).text
    await runtime.stop_when_idle()
    return "\n".join(said.values())


if __name__ == "__main__":
    main(core_agents, script=model, prefix=SharedPrefix(system=HANDBOOK, tools=[PRICES]))
