"""Application code that writes into the tools of a request, as a client, a callback or a listener may."""

from __future__ import annotations

from typing import Any

NOTE = "The caller is Ann Smith."


def note(tools: Any) -> None:
    """Write the note into all of these that can be written into."""
    inner = list(tools.values()) if isinstance(tools, dict) else tools if isinstance(tools, list) else []
    for one in inner:
        note(one)
    if isinstance(tools, dict):
        tools["note"] = NOTE
        # What a schema cannot hold LiteLLM leaves out on Anthropic.
        tools["description"] = f"{tools.get('description', '')} {NOTE}"


def noted(provider: Any) -> list[bool]:
    """Of each request that a provider got, whether the note stands in it."""
    return [NOTE in record.body.decode() for record in provider.requests]
