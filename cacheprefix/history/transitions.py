"""Hooks that rewrite what a turn commits to the history; plain functions over message dicts of any form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from cacheprefix.wire.anthropic import THINKING
from cacheprefix.wire.openai_responses import is_call, is_output, is_reasoning

Mode = Literal["none", "manual", "agent_cycle"]
"""When messages are committed to the history: at once, on demand, or with the agent's final answer."""
TransitionHook = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
"""Gets copies of the turn's messages and returns what is committed in their place."""


def trim_tool_outputs(lines: int = 20) -> TransitionHook:
    """A hook that keeps the last ``lines`` lines of every tool output."""

    def hook(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for message in messages:
            if message.get("role") == "tool":
                message["content"] = _trimmed(message.get("content"), lines)
            if is_output(message):
                message["output"] = _trimmed(message.get("output"), lines)
            for block in _blocks(message):
                if block.get("type") == "tool_result":
                    block["content"] = _trimmed(block.get("content"), lines)
        return messages

    return hook


def drop_tool_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A hook that commits text only: tool calls and results are removed; text beside a call stays."""
    kept: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        if message.get("role") == "tool" or is_output(message) or is_call(message):
            continue
        if is_reasoning(message) and not _answered(messages[number + 1 :]):
            continue
        blocks = _blocks(message)
        if blocks:
            words = [block for block in blocks if block.get("type") not in ("tool_use", "tool_result")]
            if any(block.get("type") not in THINKING for block in words):
                kept.append({**message, "content": words})
            continue
        if "tool_calls" in message or "function_call" in message:
            if message.get("content"):
                kept.append({k: v for k, v in message.items() if k not in ("tool_calls", "function_call")})
            continue
        kept.append(message)
    return kept


def _answered(items: Sequence[Mapping[str, Any]]) -> bool:
    """Whether text follows reasoning in the same answer: the API refuses reasoning without what follows it."""
    for item in items:
        if item.get("role") == "assistant":
            return True
        if not is_call(item) and not is_reasoning(item):
            return False
    return False


def _blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _trimmed(content: Any, lines: int) -> Any:
    """A result's content with its last ``lines`` lines, and a note of how many were cut."""
    if isinstance(content, str):
        rows = content.splitlines()
        if len(rows) <= lines:
            return content
        return "\n".join([f"[{len(rows) - lines} earlier lines cut]", *rows[len(rows) - lines :]])
    if isinstance(content, list):
        return [
            {**block, "text": _trimmed(block["text"], lines)}
            if isinstance(block, dict) and isinstance(block.get("text"), str)
            else block
            for block in content
        ]
    return content
