"""LiteLLM's form of a chat-completions body: breakpoints as Anthropic spells them, whoever serves the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MARK = "prompt_cache_breakpoint"


def for_litellm(params: dict[str, Any]) -> dict[str, Any]:
    """A body with breakpoints as ``cache_control``, which LiteLLM hands on to Anthropic."""

    def changed(block: Any) -> Any:
        mark = _mark_of(block)
        if mark is None:
            return block
        return {**{key: value for key, value in block.items() if key != _MARK}, "cache_control": mark}

    def rewritten(message: Any) -> Any:
        content = message.get("content")
        if not isinstance(content, list):
            return message
        if message.get("role") != "tool":
            return {**message, "content": [changed(block) for block in content]}
        # A tool result carries its mark beside its content: inside, Anthropic would not see one, and the text would
        # be another than in the request that follows.
        mark = next((found for block in content if (found := _mark_of(block)) is not None), None)
        if mark is None or len(content) != 1 or content[0].get("type") != "text":
            return message
        return {**message, "content": content[0]["text"], "cache_control": mark}

    messages = [rewritten(message) for message in params["messages"]]
    return {**{k: v for k, v in params.items() if k != "prompt_cache_options"}, "messages": messages}


def for_responses(params: dict[str, Any]) -> dict[str, Any]:
    """A body that LiteLLM asks by OpenAI's Responses API: it keeps marks of blocks alone that are spelled as there.

    It takes that spelling from all but users, whose marks are lost. In LiteLLM 1.105,
    ``validate_chat_completion_user_messages`` and ``_convert_content_to_responses_format``; read 2026-11-28.
    """

    def changed(message: Any) -> Any:
        content = message.get("content")
        if not isinstance(content, list) or message.get("role") == "user":
            return message
        blocks = [
            {**one, "type": "input_text"} if _MARK in one and one.get("type") == "text" else one for one in content
        ]
        return {**message, "content": blocks}

    return {**params, "messages": list(map(changed, params["messages"]))}


def _mark_of(block: Any) -> dict[str, Any] | None:
    """A content block's breakpoint as Anthropic spells it."""
    if not isinstance(block, Mapping) or _MARK not in block:
        return None
    ttl = block[_MARK].get("ttl")
    return {"type": "ephemeral", **({"ttl": ttl} if ttl else {})}
