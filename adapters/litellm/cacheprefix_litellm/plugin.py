"""What the entry point ``litellm`` loads: the adapter's hook, for LiteLLM's two functions and its router."""

from cacheprefix.entry_points import wraps

cacheprefix_wrap = wraps("litellm", "cacheprefix_litellm.calls")
