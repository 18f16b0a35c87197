"""Plan, specialists side by side, synthesis: a GraphFlow whose branches share everything but their role."""

from __future__ import annotations

from _run import Example, main, role
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow

SPECIALISTS = {
    "security": "Judge the plan by what an attacker could do with it.",
    "operations": "Judge the plan by what it takes to run it at night.",
    "cost": "Judge the plan by what it costs in a year.",
}


async def specialists(example: Example) -> str:
    """One plan, three judgements in parallel, one answer; the join reads them in a fixed order."""

    def agent(name: str, duty: str) -> AssistantAgent:
        return AssistantAgent(name, example.client(), system_message=role(name, duty), description=duty)

    planner = agent("planner", "Lay out a plan in five steps.")
    branches = [agent(name, duty) for name, duty in SPECIALISTS.items()]
    synthesis = agent("synthesis", "Bring the judgements together into one decision.")
    builder = DiGraphBuilder()
    for node in (planner, *branches, synthesis):
        builder.add_node(node)
    for branch in branches:
        builder.add_edge(planner, branch).add_edge(branch, synthesis)
    team = example.wrapped(GraphFlow([planner, *branches, synthesis], builder.build()))
    result = await team.run(task="Should we move the nightly reports from cron to a queue?")
    spoken = [message for message in result.messages if message.source == "synthesis"]
    return spoken[-1].to_text()


if __name__ == "__main__":
    main(specialists)
