"""What agents will ask first, before anything is sent: their own code runs up to where a request would go out.

All of it happens on copies of the agents, with clients that cannot send; no tool, memory or server is asked.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

from agent_framework import Agent, InMemoryHistoryProvider, Message

from cacheprefix import Session
from cacheprefix.adapter import AdapterSession, Preview, Unsent, known_in_part, rehearsed, unsent_client
from cacheprefix_maf.client_requests import api_of
from cacheprefix_maf.front_door import agents_of, bind, known, member_of, without_ours

_SDK_CLIENTS = ("anthropic_client", "client")
"""Where the framework's clients keep the SDK's, Anthropic's first."""


def preview(target: object, session: Session, task: object = None) -> Preview | None:
    """The first request of each agent, as ``wrap`` would have it sent; None for what ``wrap`` does not take.

    ``task`` is what ``run`` takes: a text, a message or several.
    """
    if not known(target):
        return None
    said: Any = task if isinstance(task, (str, Message, list, tuple)) else ""
    return rehearsed(session.adapter, lambda rehearsal, notes: _played(target, rehearsal, said, notes))


async def _played(target: Any, session: AdapterSession, task: Any, notes: list[str]) -> None:
    """Bind copies of the agents, and let each of them come to its first request, in the workflow's order."""
    clients: dict[int, Any] = {}
    found = [(_copied(agent, clients, session, notes), leads, member_of(agent)) for agent, leads in agents_of(target)]
    bind(found, session, together=not isinstance(target, (Agent, list, tuple, dict)))
    for agent, leads, _ in found:
        if leads:
            notes.append(f"{_name(agent)}: what it asks follows from what the others said, and is not counted")
        elif api_of(agent.client) is None:
            notes.append(f"{_name(agent)}: the requests of a {type(agent.client).__name__} are not known")
        else:
            with suppress(Unsent):
                await agent.run(task)
    if len(session.shared.totals.calls) > 1:
        notes.append("what agents answer is not known before the run, and not counted in what others read")


def _copied(agent: Any, clients: dict[int, Any], session: AdapterSession, notes: list[str]) -> Any:
    """A copy that shares nothing with the application's agent which binding or a run could change."""
    made, said = copy.copy(agent), len(notes)
    made.default_options = dict(agent.default_options)
    others = without_ours(agent)
    made.middleware = [one for one in others if _frameworks_own(one)] or None
    if len(made.middleware or ()) < len(others):
        notes.append(f"{_name(agent)}: what its own middleware changes is known when it is asked")
    if agent.mcp_tools:
        made.mcp_tools = []
        notes.append(f"{_name(agent)}: the tools of its MCP servers are known when they are connected")
    if any(not isinstance(one, InMemoryHistoryProvider) for one in agent.context_providers):
        notes.append(f"{_name(agent)}: what its context providers add is known when it is asked")
    made.context_providers = []
    client = agent.client
    if api_of(client) is not None:
        if id(client) not in clients:
            clients[id(client)] = twin = copy.copy(client)
            sdk = next(name for name in _SDK_CLIENTS if hasattr(client, name))
            setattr(twin, sdk, unsent_client(getattr(client, sdk)))
            others = _middleware(client)
            twin.chat_middleware = [one for one in others if _frameworks_own(one)]
            if len(twin.chat_middleware) < len(others):
                notes.append(f"{type(client).__name__}: what its own middleware changes is known when it is asked")
        made.client = clients[id(client)]
    fewer = len(_middleware(made.client)) < len(_middleware(client))
    if fewer or len(notes) > said:
        known_in_part(session, _name(agent))
    return made


def _middleware(client: Any) -> list[Any]:
    """The middleware that a client has itself."""
    return list(getattr(client, "chat_middleware", None) or ())


def _name(agent: Any) -> str:
    return str(agent.name or agent.id)


def _frameworks_own(middleware: Any) -> bool:
    """Whether it is the framework's own, without effects before a request; its other packages' may ask a server."""
    where = getattr(middleware, "__module__", None) or type(middleware).__module__
    return where.partition(".")[0] in ("agent_framework", "agent_framework_orchestrations")
