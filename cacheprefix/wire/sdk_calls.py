"""Calls of the providers' SDKs: bodies as their arguments, and what Gemini's is given as a body."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

_GEMINI_FIELDS = ("systemInstruction", "tools", "toolConfig", "cachedContent")
"""Fields of a Gemini body that are cached, or decide on what is."""
_GEMINI_ANSWER = ("responseMimeType", "responseJsonSchema")
"""Settings of Gemini by which an answer follows a schema."""


def sdk_arguments(body: Mapping[str, Any], create: Any) -> dict[str, Any]:
    """A body as the arguments of ``create``, the SDK's function that sends it.

    Fields for which the SDK's version has no argument go into ``extra_body``.
    """
    known = inspect.signature(create).parameters
    named = {name: value for name, value in body.items() if name in known}
    rest = {name: value for name, value in body.items() if name not in known}
    return {**named, "extra_body": {**(named.get("extra_body") or {}), **rest}} if rest else named


def gemini_sdk_body(model: str, contents: Sequence[Any], config: Any) -> dict[str, Any]:
    """The body that Gemini's SDK makes of its arguments, as far as it is cached or decides on that."""
    given = _plain(config) or {}
    body = {"model": model.removeprefix("models/"), "contents": [_plain(one) for one in contents]}
    body |= {name: given[name] for name in _GEMINI_FIELDS if given.get(name)}
    schema = {name: given[name] for name in _GEMINI_ANSWER if given.get(name)}
    return {**body, "generationConfig": schema} if schema else body


def _plain(value: Any) -> Any:
    """An object of Gemini's SDK as its API has it in JSON; anything else as it is."""
    dump = getattr(value, "model_dump", None)
    return value if dump is None else dump(mode="json", by_alias=True, exclude_none=True)
