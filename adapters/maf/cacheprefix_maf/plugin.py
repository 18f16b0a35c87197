"""What the entry point ``maf`` loads: the adapter's hooks, for agents and workflows of Microsoft Agent Framework."""

from cacheprefix.entry_points import previews, wraps

cacheprefix_wrap = wraps("agent_framework", "cacheprefix_maf.front_door")
cacheprefix_preview = previews("agent_framework", "cacheprefix_maf.preview")
