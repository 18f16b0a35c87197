"""cacheprefix for AutoGen: agents and teams as forks of one shared prompt prefix."""

from cacheprefix_autogen._ask import ask
from cacheprefix_autogen._client import CachedUsage, PrefixClient, PrefixClientConfig
from cacheprefix_autogen._context import ForkContext
from cacheprefix_autogen._fork_agent import ForkAgent, ForkAgentConfig
from cacheprefix_autogen._request import ForkRequest
from cacheprefix_autogen._settings import PrefixSettings, forget_sessions
from cacheprefix_autogen._toolcache import cached
from cacheprefix_autogen._wrap import session_of, unwrap, wrap

__all__ = [
    "CachedUsage",
    "ForkAgent",
    "ForkAgentConfig",
    "ForkContext",
    "ForkRequest",
    "PrefixClient",
    "PrefixClientConfig",
    "PrefixSettings",
    "ask",
    "cached",
    "forget_sessions",
    "session_of",
    "unwrap",
    "wrap",
]
