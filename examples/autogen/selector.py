"""A model chooses who speaks next; its question is a fork like the agents' requests."""

from __future__ import annotations

from _run import Example, main, role
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import SelectorGroupChat

from cacheprefix.server import Echo, Reply, Request

ORDER = ("researcher", "analyst", "writer")


def model() -> object:
    """A model that names the roles in turn when it is asked for one."""
    echo = Echo()
    chosen = iter(ORDER * 100)

    def answer(request: Request) -> Reply:
        return Reply(next(chosen)) if "Only return the role" in request.tail else echo(request)

    return answer


async def selector(example: Example) -> str:
    """Three roles, six turns, a selection before each."""
    agents = [
        AssistantAgent(
            name, example.client(), system_message=role(name, f"Do the work of a {name}."), description=f"A {name}."
        )
        for name in ORDER
    ]
    team = example.wrapped(SelectorGroupChat(agents, example.client(), max_turns=6))
    result = await team.run(task="How did the price of copper develop over the last ten years?")
    return result.messages[-1].to_text()


if __name__ == "__main__":
    main(selector, script=model)
