"""cacheprefix for AutoGen teams. Nothing is here yet; the package holds the name and the tested range."""

__all__: list[str] = []
