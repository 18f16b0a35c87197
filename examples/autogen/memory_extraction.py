"""What is worth remembering: a fork reads the finished conversation from the cache and writes the memory."""

from __future__ import annotations

from _run import Example, main, role
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.memory import ListMemory, MemoryContent

from cacheprefix import ForkPolicy
from cacheprefix_autogen import ask

QUESTION = "List what should be remembered for the next task, one fact a line, nothing else."


async def memory_extraction(example: Example) -> str:
    """A first task fills the memory, a second one reads it; memory stands behind the shared part."""
    memory = ListMemory(name="facts")
    agents = [
        AssistantAgent(name, example.client(), system_message=role(name, duty), description=duty, memory=[memory])
        for name, duty in {"analyst": "Work out the facts.", "reviewer": "Check them."}.items()
    ]
    team = example.wrapped(RoundRobinGroupChat(agents, max_turns=2))
    await team.run(task="Which of our three suppliers was late most often last year?")
    if example.layout == "unmodified":
        facts = (await agents[0].run(task=QUESTION)).messages[-1].to_text()
    else:
        facts = (await ask(team, QUESTION, role="memory", policy=ForkPolicy.memory_update())).text
    for fact in facts.splitlines():
        await memory.add(MemoryContent(content=fact, mime_type="text/plain"))
    await team.run(task="And this year?")
    example.extra["remembered"] = len(memory.content)
    return facts


if __name__ == "__main__":
    main(memory_extraction)
