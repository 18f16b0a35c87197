"""Dependency waves: tasks start as soon as those they depend on are done, all on one prefix."""

from __future__ import annotations

from _run import Example, main, role
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow

TASKS: dict[str, tuple[str, ...]] = {
    "schema": (),
    "api": ("schema",),
    "storage": ("schema",),
    "client": ("api",),
    "migration": ("storage",),
    "release": ("client", "migration"),
}


async def waves(example: Example) -> str:
    """Six tasks in four waves; each agent reads what all earlier waves have said, in one order."""
    agents = {
        name: AssistantAgent(
            name,
            example.client(),
            system_message=role(name, f"Do the task {name!r}; it depends on {', '.join(needs) or 'nothing'}."),
            description=f"Does {name}.",
        )
        for name, needs in TASKS.items()
    }
    builder = DiGraphBuilder()
    for agent in agents.values():
        builder.add_node(agent)
    for name, needs in TASKS.items():
        for need in needs:
            builder.add_edge(agents[need], agents[name])
    team = example.wrapped(GraphFlow(list(agents.values()), builder.build()))
    result = await team.run(task="Add a field 'owner' to every report, from the database to the screen.")
    return [message for message in result.messages if message.source == "release"][-1].to_text()


if __name__ == "__main__":
    main(waves)
