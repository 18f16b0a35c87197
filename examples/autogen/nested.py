"""A team within a team, and an agent as a tool of another: what each of them shares."""

from __future__ import annotations

from _run import Example, main, role
from autogen_agentchat.agents import AssistantAgent, SocietyOfMindAgent
from autogen_agentchat.teams import RoundRobinGroupChat


async def nested(example: Example) -> str:
    """Two inner agents agree on a draft; an outer editor answers them."""

    def agent(name: str, duty: str) -> AssistantAgent:
        return AssistantAgent(name, example.client(), system_message=role(name, duty), description=duty)

    inner = RoundRobinGroupChat([agent("drafter", "Draft."), agent("checker", "Check.")], max_turns=2)
    society = SocietyOfMindAgent("authors", team=inner, model_client=example.client())
    team = example.wrapped(RoundRobinGroupChat([society, agent("editor", "Edit.")], max_turns=4))
    result = await team.run(task="Write the minutes of today's meeting.")
    return result.messages[-1].to_text()


if __name__ == "__main__":
    main(nested)
