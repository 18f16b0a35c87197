"""cacheprefix for Microsoft Agent Framework: agents and workflows as forks of one shared prompt prefix."""

from cacheprefix_maf._middleware import PrefixChatMiddleware, PrefixFunctionMiddleware, prefix_middleware
from cacheprefix_maf._wrap import session_of, unwrap, wrap

__all__ = ["PrefixChatMiddleware", "PrefixFunctionMiddleware", "prefix_middleware", "session_of", "unwrap", "wrap"]
