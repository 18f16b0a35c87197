"""cacheprefix for LangGraph and LangChain agents."""

from cacheprefix_langgraph._middleware import PrefixMiddleware
from cacheprefix_langgraph._model import wrap_model
from cacheprefix_langgraph._node import forked

__all__ = ["PrefixMiddleware", "forked", "wrap_model"]
