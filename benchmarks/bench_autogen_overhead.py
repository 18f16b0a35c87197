"""Time a call of an AutoGen team takes when it is wrapped, as a multiple of the unmodified team's.

``python -m benchmarks.bench_autogen_overhead`` prints a table and writes ``benchmarks/results/autogen_overhead.json``.
A round robin of two agents that is run again and again on one growing conversation; no model is called.
"""

from __future__ import annotations

import asyncio
import sys
import time
import warnings
from collections.abc import Callable

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

from benchmarks import _overhead
from cacheprefix import Session, SharedPrefix
from cacheprefix_autogen import wrap

RULES = "Keep every claim next to the place it comes from. " * 120
INFO = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=True,
    family=ModelFamily.GPT_4O,
    structured_output=True,
    multiple_system_messages=True,
)


def builder(url: str) -> Callable[[int, bool], _overhead.Side]:
    """Makes the two sides."""
    loop = asyncio.new_event_loop()

    def build(size: int, shared: bool) -> _overhead.Side:  # noqa: FBT001 - one of two sides
        client = OpenAIChatCompletionClient(model="gpt-4o", base_url=url, api_key="none", model_info=INFO)
        agents = [
            AssistantAgent(name, client, system_message=f"{RULES}\n\nYou are the {name}.")
            for name in ("reader", "writer")
        ]
        team = RoundRobinGroupChat(agents, max_turns=2)  # type: ignore[arg-type]
        if shared:
            wrap(team, Session(SharedPrefix(system=RULES)))
        waiting = [TextMessage(content=_overhead.filler(n), source="user") for n in range(size)]

        def run() -> list[float]:
            task = waiting or [TextMessage(content=_overhead.filler(size), source="user")]
            began = time.perf_counter()
            loop.run_until_complete(team.run(task=task))
            took = (time.perf_counter() - began) / 2
            waiting.clear()
            return [took]

        return run

    return build


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    packages = ("autogen-agentchat", "autogen-ext", "openai")
    sys.exit(_overhead.main(__doc__, "AutoGen", builder, packages=packages))
