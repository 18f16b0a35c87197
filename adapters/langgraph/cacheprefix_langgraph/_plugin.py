"""What the entry point ``cacheprefix: langgraph`` loads: the adapter's hooks as plain functions of this module."""
