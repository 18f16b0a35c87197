"""cacheprefix for AutoGen: agents and teams as forks of one shared prompt prefix."""

from cacheprefix.adapter import supported
from cacheprefix_autogen.asking import ask
from cacheprefix_autogen.client import CachedUsage, PrefixClient
from cacheprefix_autogen.fork_agent import ForkAgent
from cacheprefix_autogen.fork_request import ForkRequest
from cacheprefix_autogen.front_door import conversation_of, session_of, unwrap, wrap
from cacheprefix_autogen.model_context import ForkContext
from cacheprefix_autogen.reading import read_tool
from cacheprefix_autogen.settings import PrefixSettings
from cacheprefix_autogen.tool_cache import cached

__all__ = [
    "CachedUsage",
    "ForkAgent",
    "ForkContext",
    "ForkRequest",
    "PrefixClient",
    "PrefixSettings",
    "ask",
    "cached",
    "conversation_of",
    "read_tool",
    "session_of",
    "unwrap",
    "wrap",
]

supported("cacheprefix-autogen")
