"""What other middleware does to the prefix, told once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from langchain_core.messages import BaseMessage, ToolMessage

from cacheprefix import Session

_CLEARED = (
    "ContextEditingMiddleware clears another tool result with nearly every request, and what stands behind it is not "
    "read again (measured dearer than clearing nothing); Session(budget=ToolResultBudget(...)) cuts each result once, "
    "at first sight"
)
_SUMMARISED = (
    "SummarizationMiddleware rewrites the history by a request that shares nothing with the conversation; "
    "Session(compaction=...) summarises by a fork of the prefix, and only where that pays"
)


def advise(session: Session, messages: Sequence[BaseMessage]) -> None:
    """Note traces that LangChain's own history middleware left in a request."""
    for message in messages:
        edited = message.response_metadata.get("context_editing") if isinstance(message, ToolMessage) else None
        if isinstance(edited, Mapping) and edited.get("cleared"):
            session.note(_CLEARED)
        elif message.additional_kwargs.get("lc_source") == "summarization":
            session.note(_SUMMARISED)
