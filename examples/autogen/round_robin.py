"""A planner, a critic and a writer take turns; each request extends the one before it."""

from __future__ import annotations

from _run import Example, main, role
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat

DUTIES = {
    "planner": "Break the task into steps and say who does what.",
    "critic": "Find what is missing or wrong in the plan.",
    "writer": "Write the text that the plan asks for.",
}


async def round_robin(example: Example) -> str:
    """Three roles speak three times each."""
    agents = [
        AssistantAgent(name, example.client(), system_message=role(name, duty), description=duty)
        for name, duty in DUTIES.items()
    ]
    team = example.wrapped(RoundRobinGroupChat(agents, max_turns=9))
    result = await team.run(task="Write a page on why our release notes should name the reason of every change.")
    return result.messages[-1].to_text()


if __name__ == "__main__":
    main(round_robin)
