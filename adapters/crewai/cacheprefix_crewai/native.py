"""Requests of CrewAI's classes for Gemini and Bedrock: what their SDKs are given, as the body that goes out; back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

KEPT_IN_WORDS = ("crewai.llms.providers.gemini.completion", "crewai.llms.providers.bedrock.completion")
"""Classes whose requests take no list of allowed tools: roles are kept to theirs in words."""
_CONFIG = {"systemInstruction": "system_instruction", "tools": "tools"}
"""Fields of Gemini's body that a layout changes, by their names in the SDK's settings."""


def gemini_arguments(contents: Any, config: Any, body: Mapping[str, Any], sent: Mapping[str, Any]) -> tuple[Any, Any]:
    """The arguments for ``sent`` where ``body`` is what these make; the very same where nothing was changed."""
    from google.genai import types  # noqa: PLC0415 - an extra of CrewAI

    before, after = body["contents"], sent["contents"]
    if after[: len(before)] == before:
        contents = [*contents, *map(types.Content.model_validate, after[len(before) :])]
    else:
        contents = [types.Content.model_validate(one) for one in after]
    changed = {name: sent.get(name) for name in _CONFIG if sent.get(name) != body.get(name)}
    if changed:
        read = types.GenerateContentConfig.model_validate(changed)
        config = config.model_copy(update={_CONFIG[name]: getattr(read, _CONFIG[name]) for name in changed})
    return contents, config


def alternating(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Converse messages with those of one role behind another joined: Bedrock refuses them apart."""
    made: list[dict[str, Any]] = []
    for message in messages:
        if made and made[-1]["role"] == message["role"]:
            made[-1] = {**made[-1], "content": [*made[-1]["content"], *message["content"]]}
        else:
            made.append(dict(message))
    return made


def with_last(body: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Gemini's body with a text for this request alone behind everything else."""
    return {**body, "contents": [*body["contents"], {"role": "user", "parts": [{"text": text}]}]}
