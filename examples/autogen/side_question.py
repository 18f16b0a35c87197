"""A question beside the conversation: it reads the team's cached prefix and leaves no trace."""

from __future__ import annotations

from _run import Example, main, role
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat

from cacheprefix_autogen import ask


async def side_question(example: Example) -> str:
    """Two roles work; in between someone wants to know what was decided so far."""
    agents = [
        AssistantAgent(name, example.client(), system_message=role(name, duty), description=duty)
        for name, duty in {"author": "Draft the text.", "editor": "Cut what is not needed."}.items()
    ]
    team = example.wrapped(RoundRobinGroupChat(agents, max_turns=2))
    await team.run(task="Write a notice about the maintenance on Sunday.")
    if example.layout == "unmodified":
        # Without forks a side question is a turn like any other, with its own prompt and its trace in the history.
        answer = (await agents[0].run(task="In one sentence: what have you two agreed on so far?")).messages[-1]
        said = answer.to_text()
    else:
        said = (await ask(team, "In one sentence: what have the two agreed on so far?")).text
    await team.run(task="Go on.")
    return f"Asked on the side: {said}"


if __name__ == "__main__":
    main(side_question)
