"""A team that saves its state after every task and is killed inside a tool of the next one."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient
from autogen_teams import LONG, TASK, role

from cacheprefix import Session, ToolResultBudget
from cacheprefix_autogen import wrap

INFO = ModelInfo(
    vision=False, function_calling=True, json_output=True, family=ModelFamily.GPT_4O, structured_output=True
)


def team(url: str, budget: int, *, hangs: bool = False) -> RoundRobinGroupChat:
    """Two agents that search; with ``hangs`` the second task's search never ends."""
    client = OpenAIChatCompletionClient(model="gpt-4o-2024-08-06", base_url=url, api_key="any", model_info=INFO)

    async def search(query: str) -> str:
        """Looks things up."""
        if hangs and query == "second":
            sys.stdout.write("inside\n")
            sys.stdout.flush()
            await asyncio.sleep(600)
        return LONG

    agents = [role(name, client, tools=[search], reflect_on_tool_use=True) for name in ("planner", "critic")]
    return wrap(RoundRobinGroupChat(agents, max_turns=2), Session(budget=ToolResultBudget(max_tokens=budget)))


def keep(path: str, state: Mapping[str, Any]) -> None:
    """Put a state on disk."""
    Path(path).write_text(json.dumps(state), encoding="utf-8")


async def main(url: str, path: str) -> None:
    """One task, its state on disk, and another one that does not end."""
    made = team(url, 100, hangs=True)
    await made.run(task=f"{TASK} first")
    keep(path, await made.save_state())
    await made.run(task="And the second?")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
