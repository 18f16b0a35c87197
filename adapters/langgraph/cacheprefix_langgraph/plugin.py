"""What the entry point ``langgraph`` loads: the adapter's hooks, as plain functions of this module."""

from __future__ import annotations

import sys
from typing import Any

from cacheprefix import Session


def cacheprefix_wrap(target: object, session: Session) -> object | None:
    """Wrap a LangChain chat model."""
    from langchain_core.language_models import BaseChatModel

    if isinstance(target, BaseChatModel):
        from cacheprefix_langgraph.model import wrap_model

        return wrap_model(target, session)
    return None


def cacheprefix_preview(target: object, session: Session, task: object) -> object | None:
    """What the nodes and agents of a compiled graph will ask first; None for anything else."""
    if "langgraph" not in sys.modules:
        return None
    from cacheprefix_langgraph.preview import preview

    return preview(target, session, task)


def cacheprefix_commands(cli: Any) -> None:
    """Add ``cacheprefix demo``."""
    from cacheprefix_langgraph.demo.command import register

    register(cli)
