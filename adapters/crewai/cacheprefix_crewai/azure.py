"""Requests of CrewAI's class for Azure as OpenAI's: its SDK has objects for tools, and a place for unknown fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_EXTRAS = "model_extras"
"""The SDK's argument for fields of the body that it has no argument for."""
_ARGUMENTS = ("messages", "tools", "tool_choice")


def as_body(params: Mapping[str, Any], model: str) -> dict[str, Any]:
    """The body that the SDK makes of its arguments; ``model`` where only the address says it."""
    body = {name: _plain(value) for name, value in params.items() if name != _EXTRAS}
    return {"model": model, **body, **(params.get(_EXTRAS) or {})}


def as_arguments(params: Mapping[str, Any], body: Mapping[str, Any], sent: Mapping[str, Any]) -> Any:
    """The arguments for ``sent`` where ``body`` is what ``params`` make; the very same where nothing was changed."""
    changed = {name: value for name, value in sent.items() if name not in body or value != body[name]}
    if not changed:
        return params
    known = {name: value for name, value in changed.items() if name in params or name in _ARGUMENTS}
    extras = {name: value for name, value in changed.items() if name not in known and name != "model"}
    kept = {name: value for name, value in params.items() if name in sent or name in ("model", _EXTRAS)}
    given = {**(params.get(_EXTRAS) or {}), **extras}
    return {**kept, **known, **({_EXTRAS: given} if given else {})}


def _plain(value: Any) -> Any:
    """An object of Azure's SDK as its API has it in JSON."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    dump = getattr(value, "as_dict", None)
    return dump() if callable(dump) else value
