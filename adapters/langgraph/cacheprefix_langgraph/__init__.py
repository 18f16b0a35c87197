"""cacheprefix for LangGraph and LangChain agents."""

__all__: list[str] = []
