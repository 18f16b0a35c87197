"""How a finished body reaches the provider: LiteLLM's form of it, and requests by a model's own SDK client."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cacheprefix.adapter import Api

_MARK = "prompt_cache_breakpoint"


def is_claude(llm: Any) -> bool:
    """Whether a model is Anthropic's by way of LiteLLM."""
    return bool(getattr(llm, "is_litellm", False)) and "claude" in str(getattr(llm, "model", "")).lower()


def for_litellm(params: dict[str, Any]) -> dict[str, Any]:
    """A body with breakpoints in the form LiteLLM hands on to Anthropic."""

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


def sender(llm: Any, api: Api) -> Callable[[dict[str, Any]], Any]:
    """A function that sends a body by the SDK client of a CrewAI model and gives the SDK's answer."""
    if getattr(llm, "is_litellm", False):

        def by_litellm(body: dict[str, Any]) -> Any:
            from litellm import completion  # noqa: PLC0415 - an extra of CrewAI

            return completion(**(for_litellm(body) if is_claude(llm) else body))

        return by_litellm

    def by_client(body: dict[str, Any]) -> Any:
        client = llm._get_sync_client()
        if api == "anthropic":
            create = client.messages.create
        else:
            create = client.responses.create if api == "openai-responses" else client.chat.completions.create
        return create(**_arguments(body, create))

    return by_client


def _mark_of(block: Any) -> dict[str, Any] | None:
    """A content block's breakpoint as Anthropic spells it."""
    if not isinstance(block, Mapping) or _MARK not in block:
        return None
    ttl = block[_MARK].get("ttl")
    return {"type": "ephemeral", **({"ttl": ttl} if ttl else {})}


def _arguments(body: Mapping[str, Any], create: Any) -> dict[str, Any]:
    """A body as the SDK's arguments; fields its version does not name go beside."""
    known = inspect.signature(create).parameters
    named = {name: value for name, value in body.items() if name in known}
    rest = {name: value for name, value in body.items() if name not in known}
    return {**named, "extra_body": {**(named.get("extra_body") or {}), **rest}} if rest else named
