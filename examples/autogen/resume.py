"""Stop, save, load elsewhere: the next request is byte-identical, so the provider's cache is still good."""

from __future__ import annotations

import json
from typing import Any

from _run import Example, main, role
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat


async def resume(example: Example) -> str:
    """A team works, is saved as JSON, and a new team of the same kind goes on from there."""

    def build() -> Any:
        agents = [
            AssistantAgent(name, example.client(), system_message=role(name, duty), description=duty)
            for name, duty in {"author": "Draft the text.", "editor": "Cut what is not needed."}.items()
        ]
        return example.wrapped(RoundRobinGroupChat(agents, max_turns=2))

    first = build()
    await first.run(task="Write a notice about the maintenance on Sunday.")
    saved = json.dumps(await first.save_state())
    second = build()
    await second.load_state(json.loads(saved))
    result = await second.run(task="Make it half as long.")
    example.extra["state_bytes"] = len(saved)
    return result.messages[-1].to_text()


if __name__ == "__main__":
    main(resume)
