"""What the entry point ``openai_agents`` loads: the adapter's hooks, for agents, models and providers of models."""

from cacheprefix.entry_points import previews, wraps

cacheprefix_wrap = wraps("agents", "cacheprefix_openai_agents.models")
cacheprefix_preview = previews("agents", "cacheprefix_openai_agents.preview")
