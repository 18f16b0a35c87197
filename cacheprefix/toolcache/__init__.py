"""Tool results once: identical tool calls run one time, and again after a write."""

from __future__ import annotations

from cacheprefix.toolcache.cache import Attempt, ToolCacheOptions, ToolResultCache
from cacheprefix.toolcache.codec import Codec, JsonCodec
from cacheprefix.toolcache.errors import looks_like_error
from cacheprefix.toolcache.keys import Cacheable
from cacheprefix.toolcache.repeats import RepeatDetector, repeat_message
from cacheprefix.toolcache.spec import DEFAULT_ALLOW, DEFAULT_DENY, Origin, ToolSpec
from cacheprefix.toolcache.stats import CacheStats, Outcome, ToolCall, ToolStats

__all__ = [
    "DEFAULT_ALLOW",
    "DEFAULT_DENY",
    "Attempt",
    "CacheStats",
    "Cacheable",
    "Codec",
    "JsonCodec",
    "Origin",
    "Outcome",
    "RepeatDetector",
    "ToolCacheOptions",
    "ToolCall",
    "ToolResultCache",
    "ToolSpec",
    "ToolStats",
    "looks_like_error",
    "repeat_message",
]
