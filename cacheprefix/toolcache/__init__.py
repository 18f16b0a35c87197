"""Tool results once: identical tool calls run one time, and again after a write."""

from __future__ import annotations

from cacheprefix.toolcache._attempt import Attempt
from cacheprefix.toolcache._cache import ToolCacheOptions, ToolResultCache
from cacheprefix.toolcache._codec import Codec, JsonCodec
from cacheprefix.toolcache._errors import looks_like_error
from cacheprefix.toolcache._plan import Cacheable
from cacheprefix.toolcache._repeats import RepeatDetector, repeat_message
from cacheprefix.toolcache._spec import DEFAULT_ALLOW, DEFAULT_DENY, Origin, ToolSpec
from cacheprefix.toolcache._stats import CacheStats, Outcome, ToolCall, ToolStats

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
