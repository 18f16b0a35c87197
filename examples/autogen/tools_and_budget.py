"""Agents with different tools share one array of them; large results are shortened once, for everyone."""

from __future__ import annotations

from _run import Example, main, role
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat

from cacheprefix import ToolResultBudget
from cacheprefix.server import Reply, Request, ToolCall


async def search_code(query: str) -> str:
    """Search the code base."""
    return "\n".join(f"src/module_{n}.py:{n}: def {query}_{n}(): ..." for n in range(200))


async def read_log(service: str) -> str:
    """Read the log of a service."""
    return "\n".join(f"12:00:{n % 60:02} {service} request {n} took {n * 7 % 90} ms" for n in range(300))


def model() -> object:
    """A model that calls the tool its role may use, then answers."""

    def answer(request: Request) -> Reply:
        allowed = request.asked.allowed if request.asked.allowed is not None else set(request.asked.tools)
        if request.rounds == 0 and allowed and request.asked.choice != "none":
            name = min(allowed)
            argument = "query" if name == "search_code" else "service"
            return Reply(tool_calls=(ToolCall(name, {argument: "report"}),))
        return Reply("The slow requests all go through report_17. " * 5)

    return answer


async def tools_and_budget(example: Example) -> str:
    """A developer and an operator look at different things and reflect on what they found."""
    agents = [
        AssistantAgent(
            name,
            example.client(),
            system_message=role(name, duty),
            description=duty,
            tools=[tool],
            reflect_on_tool_use=True,
        )
        for name, duty, tool in (
            ("developer", "Find the code behind the problem.", search_code),
            ("operator", "Find the traces of the problem.", read_log),
        )
    ]
    team = example.wrapped(RoundRobinGroupChat(agents, max_turns=4))
    result = await team.run(task="Why is the monthly report slow?")
    return result.messages[-1].to_text()


if __name__ == "__main__":
    main(tools_and_budget, script=model, budget=ToolResultBudget(max_tokens=400))
