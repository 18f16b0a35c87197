"""What the system texts of several agents have in common, to stand once at the beginning of all their prompts."""

from __future__ import annotations

from collections.abc import Sequence

_LEAST = 200
"""Characters below which moving a text is not worth a changed prompt; about 50 tokens."""


def common_text(texts: Sequence[str]) -> str:
    """The longest run of whole lines that all texts begin or end with; empty when there is little in common."""
    if len(texts) < 2:
        return ""
    lines = [text.strip().split("\n") for text in texts]
    head = _common_start(lines)
    tail = _common_start([list(reversed(each)) for each in lines])
    found = ["\n".join(head).strip(), "\n".join(reversed(tail)).strip()]
    longest = max(found, key=len)
    return longest if len(longest) >= _LEAST else ""


def _common_start(rows: Sequence[Sequence[str]]) -> list[str]:
    found: list[str] = []
    for parts in zip(*rows, strict=False):
        if len(set(parts)) > 1:
            break
        found.append(parts[0])
    return found
