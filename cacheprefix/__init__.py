"""Shared, frozen prompt prefixes for agent teams."""
