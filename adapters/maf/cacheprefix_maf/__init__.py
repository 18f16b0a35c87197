"""cacheprefix for Microsoft Agent Framework: agents and workflows as forks of one shared prompt prefix."""

from cacheprefix.adapter import supported
from cacheprefix_maf.front_door import session_of, unwrap, wrap
from cacheprefix_maf.middleware import PrefixChatMiddleware, PrefixFunctionMiddleware, prefix_middleware

__all__ = ["PrefixChatMiddleware", "PrefixFunctionMiddleware", "prefix_middleware", "session_of", "unwrap", "wrap"]

supported("cacheprefix-maf")
