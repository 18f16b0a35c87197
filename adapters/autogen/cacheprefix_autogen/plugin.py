"""What the entry point ``autogen`` loads: the adapter's hooks, for AutoGen's agents, teams and model clients."""

from cacheprefix.entry_points import previews, wraps

cacheprefix_wrap = wraps("autogen_core", "cacheprefix_autogen.front_door")
cacheprefix_preview = previews("autogen_core", "cacheprefix_autogen.preview")
