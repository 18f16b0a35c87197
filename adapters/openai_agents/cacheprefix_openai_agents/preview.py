"""What agents will ask first, before anything is sent: the SDK's own runner goes up to where a request would go out.

All of it happens on copies of the agents, with clients that cannot send; no tool, guardrail or server is asked.
"""

from __future__ import annotations

import copy
from typing import Any

from agents import Agent, MultiProvider, RunConfig, Runner

from cacheprefix import Session
from cacheprefix.adapter import AdapterSession, Preview, Wrap, rehearsed, unsent_client, until_sent
from cacheprefix_openai_agents.models import bind, model_of, sdk_of, team_of


def preview(target: object, session: Session, task: object = None) -> Preview | None:
    """The first request of an agent and of all that it hands off to or calls, as ``wrap`` would have them sent.

    None for what is no agent. ``task`` is what ``Runner.run`` takes: each of them is asked it, by itself.
    """
    if not isinstance(target, Agent):
        return None
    said: Any = task if isinstance(task, (str, list)) else ""
    return rehearsed(session.adapter, lambda dry, notes: _played(list(team_of(target)), dry, said, notes))


async def _played(team: list[Any], session: AdapterSession, task: Any, notes: list[str]) -> None:
    found = [twin for agent in team if (twin := _twin(agent, notes))]
    bind(found, Wrap(session, "preview", team_of), MultiProvider())
    for twin in found:
        with until_sent(twin.name, notes):
            await Runner.run(twin, task, run_config=RunConfig(tracing_disabled=True))
    if len(team) > 1:
        notes.append("each agent is counted with the task alone: what others answer is not known before the run")


def _twin(agent: Any, notes: list[str]) -> Any:
    """A copy that asks as the agent does, of what is known before a run; None where its requests cannot be seen."""
    # No key is asked for: nothing is sent.
    model: Any = copy.copy(model_of(agent, MultiProvider(openai_api_key="unsent")))
    made_later = callable(agent.instructions)
    if made_later or sdk_of(model) is None:
        what = "its instructions" if made_later else f"the requests of a {type(model).__name__}"
        notes.append(f"{agent.name}: {what} are known when it is asked")
        return None
    model._client = unsent_client(model._client)
    known: dict[str, Any] = {"mcp_servers": [], "input_guardrails": [], "hooks": None}
    if agent.mcp_servers:
        notes.append(f"{agent.name}: the tools of its MCP servers are known when they are connected")
    if callable(agent.prompt):
        notes.append(f"{agent.name}: its prompt is known when it is asked")
        known["prompt"] = None
    return agent.clone(**known, model=model)
