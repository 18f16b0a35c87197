"""``read_tool``: the tool by which an agent reads the cut tool results of its own thread again."""

from __future__ import annotations

from functools import partial

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool

from cacheprefix import Conversation, ReadBudget, Session
from cacheprefix.adapter import READ_TOOL_SCHEMA, AdapterSession
from cacheprefix_langgraph.state import conversation_of, ledger_in


def read_tool(session: Session, *, budget: ReadBudget | None = None) -> BaseTool:
    """A LangChain tool, ``read_full_result(ref, offset, limit)``, for the agents that may read what a budget cut.

    It reads results of the thread that it runs in (of the run, where there is no thread) and of no other; ``budget``
    is the most that one call returns. The note of a cut result names it in the requests that carry it.
    """
    bound, most = session.adapter, budget or ReadBudget()

    def read(ref: str, offset: int = 0, limit: int = 8_000, *, config: RunnableConfig) -> str:
        return bound.histories.reader(partial(_thread, bound, config), most)(ref, offset, limit)

    return StructuredTool.from_function(
        read,
        name=READ_TOOL_SCHEMA["name"],
        description=READ_TOOL_SCHEMA["description"],
        args_schema=READ_TOOL_SCHEMA["parameters"],
    )


def _thread(session: AdapterSession, config: RunnableConfig) -> Conversation:
    """The thread's conversation, with what its checkpoint holds: another process may have asked the model."""
    return conversation_of(session, config, ledger_in(None, session), ())
