"""``read_tool``: the tool by which an agent reads the cut tool results of its own conversation again."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from autogen_core import CancellationToken
from autogen_core.tools import BaseTool
from pydantic import BaseModel, Field

from cacheprefix import Conversation, ReadBudget, Session
from cacheprefix.adapter import READ_TOOL_SCHEMA
from cacheprefix_autogen.sending import ending

if TYPE_CHECKING:
    from cacheprefix_autogen.member import Member

_TURN: ContextVar[weakref.ref[Member] | None] = ContextVar("cacheprefix_autogen_turn", default=None)
"""The agent whose turn it is here; weak, as tasks that outlive the turn keep their context."""

_SAID: dict[str, Any] = READ_TOOL_SCHEMA["parameters"]["properties"]


class ReadArgs(BaseModel):
    """What to read."""

    ref: str = Field(description=_SAID["ref"]["description"])
    offset: int = Field(default=0, description=_SAID["offset"]["description"])
    limit: int = Field(default=8_000, description=_SAID["limit"]["description"])


class ReadTool(BaseTool[ReadArgs, Any]):
    """Reads results of the conversation of the agent that calls it."""

    def __init__(self, session: Session, budget: ReadBudget) -> None:
        super().__init__(ReadArgs, str, READ_TOOL_SCHEMA["name"], READ_TOOL_SCHEMA["description"])
        self._read = session.adapter.histories.reader(_talk, budget)

    async def run(self, args: ReadArgs, cancellation_token: CancellationToken) -> str:  # noqa: ARG002 - AutoGen's own
        """The piece of the result that was asked for."""
        # A store may have to be waited for.
        return await asyncio.to_thread(self._read, args.ref, args.offset, args.limit)


def read_tool(session: Session, *, budget: ReadBudget | None = None) -> BaseTool[ReadArgs, Any]:
    """An AutoGen tool, ``read_full_result(ref, offset, limit)``, for the agents that may read what a budget cut.

    A wrapped agent reads results of its own team's conversation and of no other; one that is not wrapped reads
    nothing by itself, and inside a wrapped one's turn (a tool that asks it) as that one. ``budget`` is the most that
    one call returns. The note of a cut result names it in the requests of agents that have it.
    """
    return ReadTool(session, budget or ReadBudget())


async def in_turn(member: Member, items: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """The events of an agent's turn, with that agent known to the tools that it runs."""
    held = weakref.ref(member)
    async with ending(items):
        while True:
            token = _TURN.set(held)
            try:
                item = await anext(items)
            except StopAsyncIteration:
                return
            finally:
                _TURN.reset(token)
            yield item


def _talk() -> Conversation | None:
    """The conversation of the agent in whose turn the code here runs; None outside of one."""
    held = _TURN.get()
    member = None if held is None else held()
    return None if member is None else member.held_talk
