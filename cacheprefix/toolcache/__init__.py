"""Tool results once: identical tool calls run one time, and again after a write."""

from __future__ import annotations

from cacheprefix.toolcache.cache import Attempt, ToolResultCache
from cacheprefix.toolcache.codec import AnswerForm, Codec, JsonCodec, NotKeptError
from cacheprefix.toolcache.errors import looks_like_error
from cacheprefix.toolcache.options import ToolCacheOptions
from cacheprefix.toolcache.repeats import RepeatDetector, repeat_message
from cacheprefix.toolcache.spec import DEFAULT_ALLOW, DEFAULT_DENY, Origin, ToolSpec, origin_of
from cacheprefix.toolcache.stats import CacheStats, ToolCall, ToolStats

__all__ = [
    "DEFAULT_ALLOW",
    "DEFAULT_DENY",
    "AnswerForm",
    "Attempt",
    "CacheStats",
    "Codec",
    "JsonCodec",
    "NotKeptError",
    "Origin",
    "RepeatDetector",
    "ToolCacheOptions",
    "ToolCall",
    "ToolResultCache",
    "ToolSpec",
    "ToolStats",
    "looks_like_error",
    "origin_of",
    "repeat_message",
]
