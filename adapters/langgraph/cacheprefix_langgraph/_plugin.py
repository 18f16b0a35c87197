"""What the entry point ``langgraph`` loads: the adapter's hooks, as plain functions of this module."""
