"""Time to the first token and whole runs of four AutoGen agents on a real engine: see ``benchmarks/_clocks.py``.

``python -m benchmarks.bench_autogen_clocks`` prints a table and writes ``benchmarks/results/autogen_clocks.json``.
"""

from __future__ import annotations

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import Team
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow, RoundRobinGroupChat
from autogen_core.models import ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

from benchmarks import _clocks
from benchmarks.local_engine import MODEL, LocalEngine
from cacheprefix import Session
from cacheprefix_autogen import wrap


async def _run(engine: LocalEngine, session: Session, handbook: str, *, together: bool) -> None:
    info = ModelInfo(
        vision=False,
        function_calling=True,
        json_output=False,
        family=ModelFamily.UNKNOWN,
        structured_output=False,
        multiple_system_messages=True,
    )
    client = OpenAIChatCompletionClient(
        model=MODEL,
        base_url=engine.openai_base_url,
        api_key="any",
        model_info=info,
        max_tokens=1,
        timeout=900,
        include_name_in_message=False,
    )
    agents = [
        AssistantAgent(role, model_client=client, system_message=f"{text}\n\n{handbook}")
        for role, text in _clocks.ROLES.items()
    ]
    team: Team
    if together:
        builder = DiGraphBuilder()
        for agent in agents:
            builder.add_node(agent)
        team = GraphFlow(list(agents), graph=builder.build())
    else:
        team = RoundRobinGroupChat(list(agents), termination_condition=MaxMessageTermination(len(agents) + 1))
    await wrap(team, session).run(task=_clocks.TASK)
    await client.close()


def in_turn(engine: LocalEngine, session: Session, handbook: str) -> None:
    """One after the other."""
    asyncio.run(_run(engine, session, handbook, together=False))


def at_once(engine: LocalEngine, session: Session, handbook: str) -> None:
    """Four at the same moment."""
    asyncio.run(_run(engine, session, handbook, together=True))


if __name__ == "__main__":
    _clocks.main("autogen_clocks", "AutoGen", {"in turn": in_turn, "four together": at_once}, __doc__)
