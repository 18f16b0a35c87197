"""Asks a team's tool servers for their tools before the first request, so that these do not arrive in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

_PATIENCE = 5.0
"""Seconds to wait for all servers together: a server of an agent that may never be asked holds nobody up for longer."""
_LATE: set[asyncio.Task[Any]] = set()
"""Servers that have not answered yet: taken back, AutoGen's MCP session would end with an error."""


def served(agent: Any) -> list[Any]:
    """The workbenches of an agent that have no fixed list of tools: a server's, which may bring others later."""
    return [one for one in getattr(agent, "_workbench", None) or [] if not hasattr(one, "_tools")]


async def ask_servers(workbenches: Sequence[Any]) -> dict[int, list[Any] | Exception]:
    """The tools of each workbench by its ``id``, or its error; nothing of one that takes too long."""
    asked = {id(one): asyncio.ensure_future(one.list_tools()) for one in workbenches}
    if not asked:
        return {}
    try:
        await asyncio.wait(asked.values(), timeout=_PATIENCE)
    except asyncio.CancelledError:
        # As if they had been awaited here.
        for task in asked.values():
            task.cancel()
        raise
    found: dict[int, list[Any] | Exception] = {}
    for key, task in asked.items():
        if not task.done():
            _LATE.add(task)
            task.add_done_callback(_forget)
        elif not task.cancelled():
            error = task.exception()
            if error is None:
                found[key] = list(task.result())
            elif isinstance(error, Exception):
                found[key] = error
    return found


def _forget(task: asyncio.Task[Any]) -> None:
    """Let go of a server's late answer, and take note of its error, which nobody waits for."""
    _LATE.discard(task)
    if not task.cancelled():
        task.exception()
