"""A simulated provider: the cache rules of a profile interpreted, on HTTP."""

from cacheprefix.server._engine import ProviderCache, Serving
from cacheprefix.server._outcome import CacheOutcome, RefusedError

__all__ = ["CacheOutcome", "ProviderCache", "RefusedError", "Serving"]
