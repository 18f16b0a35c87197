"""``read_tool``: the tool by which an agent reads the cut tool results of its own kickoff again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crewai.tools import BaseTool
from pydantic import BaseModel, Field, PrivateAttr

from cacheprefix import ReadBudget, Session
from cacheprefix.adapter import READ_TOOL_SCHEMA
from cacheprefix_crewai.binding import RUN
from cacheprefix_crewai.history import readable_refs

if TYPE_CHECKING:
    from collections.abc import Callable

    from cacheprefix import Conversation

_SAID: dict[str, Any] = READ_TOOL_SCHEMA["parameters"]["properties"]


class ReadArgs(BaseModel):
    """What to read."""

    ref: str = Field(description=_SAID["ref"]["description"])
    offset: int = Field(default=0, description=_SAID["offset"]["description"])
    limit: int = Field(default=8_000, description=_SAID["limit"]["description"])


class ReadTool(BaseTool):  # type: ignore[misc, unused-ignore]
    """Reads results of the kickoff that runs here."""

    name: str = READ_TOOL_SCHEMA["name"]
    description: str = READ_TOOL_SCHEMA["description"]
    args_schema: type[BaseModel] = ReadArgs
    _read: Callable[..., str] = PrivateAttr()

    def _run(self, ref: str, offset: int = 0, limit: int = 8_000) -> str:
        return self._read(ref, offset, limit)


def read_tool(session: Session, *, budget: ReadBudget | None = None) -> BaseTool:
    """A CrewAI tool, ``read_full_result(ref, offset, limit)``, for the agents that may read what a budget cut.

    Agents of an installed crew read results of the kickoff that runs and of no other; without a crew nothing is read.
    ``budget`` is the most that one call returns. The note of a cut result names it for agents and tasks that have it.
    """
    made = ReadTool()
    made._read = session.adapter.histories.reader(_talk, budget or ReadBudget(), _own)
    return made


def _talk() -> Conversation | None:
    """The conversation of the crew that runs here; None without one."""
    binding = RUN.get()
    return None if binding is None else binding.held


def _own(ref: str) -> bool:
    """Whether the kickoff under way here may read a cut result."""
    binding = RUN.get()
    # Privacy: a crew's next kickoff may be somebody else's, and has the same ledger.
    return binding is not None and ref in readable_refs(binding)
