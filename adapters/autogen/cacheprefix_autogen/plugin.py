"""What the entry point ``autogen`` loads: the adapter's hooks, as plain functions of this module."""

from __future__ import annotations

import sys
from typing import Any

from cacheprefix import Session


def cacheprefix_wrap(target: object, session: Session) -> Any:
    """An AutoGen agent, team or model client with the session bound to it; None for anything else."""
    if "autogen_core" not in sys.modules:
        return None
    from autogen_agentchat.agents import BaseChatAgent
    from autogen_agentchat.teams import BaseGroupChat
    from autogen_core.models import ChatCompletionClient

    if not isinstance(target, (BaseChatAgent, BaseGroupChat, ChatCompletionClient)):
        return None
    from cacheprefix_autogen import wrap

    return wrap(target, session)


def cacheprefix_preview(target: object, session: Session, task: object) -> Any:
    """What the agents of an AutoGen team, or one agent, will ask first; None for anything else."""
    if "autogen_core" not in sys.modules:
        return None
    from cacheprefix_autogen.preview import preview

    return preview(target, session, task)
