"""What a wrapped team's first call does in its event loop, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, sys
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient
from cacheprefix import Session, SharedPrefix
from cacheprefix.server import SimulatedProvider
from cacheprefix_autogen import wrap

HANDBOOK = "The handbook, rule by rule. " * 400

async def run(client, team):
    before = set(sys.modules)
    await team.run(task="Go.")
    await client.close()
    return set(sys.modules) - before

with SimulatedProvider("openai") as provider:
    client = OpenAIChatCompletionClient(model="gpt-4o", base_url=provider.openai_base_url, api_key="k", max_retries=0)
    agents = [AssistantAgent(name, client, system_message=HANDBOOK + name) for name in ("a", "b")]
    team = wrap(RoundRobinGroupChat(agents, max_turns=2), Session(SharedPrefix(system=HANDBOOK)))
    new = asyncio.run(run(client, team))
OURS = ("cacheprefix", "genai_prices", "tiktoken", "importlib.metadata")
print(sorted(name for name in new if name.startswith(OURS)))
"""


@pytest.mark.slow
def test_the_first_wrapped_call_imports_nothing_of_ours() -> None:
    """What a call needs is there when the team is wrapped, price tables and vocabularies too."""
    shown = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
