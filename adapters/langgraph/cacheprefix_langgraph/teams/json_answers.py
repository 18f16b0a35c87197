"""The JSON object in a model's answer: fenced, with words around it, or nearly right."""

from __future__ import annotations

import json
import re
from typing import Any

_TRAILING_COMMA = re.compile(r",(\s*[}\]])")
_TRIES = 50


def object_in(text: str) -> dict[str, Any] | None:
    """The largest JSON object in a text; None where there is none.

    Code fences and words around it do not matter, a comma before a closing bracket neither. Linear in practice: at
    most fifty places where an object may begin are tried.
    """
    for candidate in (text, _TRAILING_COMMA.sub(r"\1", text)):
        found = _largest(candidate)
        if found is not None:
            return found
    return None


def strings_in(value: Any) -> tuple[str, ...]:
    """The texts of a list, whatever a model put into it: a text alone, numbers, objects with one text."""
    if isinstance(value, str):
        value = value.splitlines() if "\n" in value else [value]
    if isinstance(value, dict):
        value = [f"{name}: {inner}" for name, inner in value.items()]
    if not isinstance(value, list):
        return ()
    texts = (_text(item) for item in value)
    return tuple(dict.fromkeys(text for text in texts if text))


def _text(item: Any) -> str:
    if isinstance(item, dict):
        inner = [one for one in item.values() if isinstance(one, str)]
        item = inner[0] if len(inner) == 1 else json.dumps(item, ensure_ascii=False)
    if isinstance(item, bool) or not isinstance(item, (str, int, float)):
        return ""
    return " ".join(str(item).split()).removeprefix("- ").removeprefix("* ").strip()


def _largest(text: str) -> dict[str, Any] | None:
    """The longest JSON object that begins at one of the first opening braces; None where there is none."""
    decoder = json.JSONDecoder(strict=False)
    best: dict[str, Any] | None = None
    size = at = tries = 0
    while tries < _TRIES and (at := text.find("{", at)) >= 0:
        tries += 1
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        if isinstance(value, dict) and end - at > size:
            best, size = value, end - at
        at = end
    return best
