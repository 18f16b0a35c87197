"""What agents will ask first, before anything is sent: agents made alike run up to where a request would go out.

Their clients cannot send; no tool, middleware, knowledge or server of the application's is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ag2 import Agent
from ag2.config import LLMClient, ModelConfig
from ag2.events import ModelMessage, ModelResponse
from ag2.tools.final import FunctionTool

from cacheprefix import Session
from cacheprefix.adapter import AdapterSession, Preview, Unsent, known_in_part, rehearsed, unsent_client, users_session
from cacheprefix_ag2.client import PrefixConfig
from cacheprefix_ag2.front_door import agents_in, known, wrap


def preview(target: object, session: Session, task: object = None) -> Preview | None:
    """The first request of each agent, as ``wrap`` would have it sent; None for what ``wrap`` does not take.

    ``task`` is what each of them is asked, in a conversation of its own: agents that go on with what others said send
    that too, and it is not known before.
    """
    if not known(target):
        return None
    return rehearsed(session.adapter, lambda rehearsal, notes: _played(agents_in(target), rehearsal, task, notes))


class _Unsent(LLMClient):
    """A client of the application's config that makes its requests and never sends them; the answer is empty.

    An answer there must be: a turn of ag2's waits for it, whatever was raised.
    """

    def __init__(self, client: Any) -> None:
        self.client = client
        self._client = client._client = unsent_client(client._client)
        self._create_options = getattr(client, "_create_options", None)
        self._extra_body = getattr(client, "_extra_body", None)

    async def __call__(self, *given: Any, **named: Any) -> ModelResponse:
        with suppress(Unsent):
            await self.client(*given, **named)
        return ModelResponse(ModelMessage(""))


class _Config(PrefixConfig):
    """The application's config with such clients."""

    def create(self) -> Any:
        return _Unsent(self.config.create())


async def _played(agents: Sequence[Any], session: AdapterSession, task: object, notes: list[str]) -> None:
    asked = [agent for agent in agents if _asks(agent, notes)]
    made = wrap([_alike(agent, session, notes) for agent in asked], users_session(session))
    for agent in made:
        await agent.ask(task if isinstance(task, str) else "")
    if len(session.shared.totals.calls) > 1:
        notes.append("each agent is counted with the task alone: what others answer is not known before the run")


def _asks(agent: Any, notes: list[str]) -> bool:
    """Whether a request of the agent can be made here."""
    if agent.config is None or not hasattr(agent.config.create(), "_client"):
        notes.append(f"{agent.name}: asks no model that is known before the run")
        return False
    return True


def _alike(agent: Any, session: AdapterSession, notes: list[str]) -> Agent[Any]:
    """An agent that asks as this one does, of what it has that is known before a run."""
    tools = [tool for tool in agent.tools if isinstance(tool, FunctionTool)]
    # The framework's own have no effects before a request.
    policies = [one for one in agent.assembly if type(one).__module__.partition(".")[0] == "ag2"]
    unknown = {
        "tools that only a server knows": len(tools) < len(agent.tools),
        "what its functions add to its prompt": bool(agent.dynamic_prompt),
        "what its middleware changes": bool(agent.middleware),
        "what its own assembly policies change": len(policies) < len(agent.assembly),
    }
    notes += [f"{agent.name}: {what} is known when it is asked" for what, there in unknown.items() if there]
    if any(unknown.values()):
        known_in_part(session, agent.name)
    config: ModelConfig = _Config(agent.config, users_session(session))
    return Agent(
        agent.name,
        list(agent.system_prompt),
        config=config,
        tools=tools,
        response_schema=agent.response_schema,
        dependencies=dict(agent.dependencies),
        variables=dict(agent.variables),
        assembly=policies,
        tasks=agent.tasks or False,
    )
