"""What the system texts of several agents have in common, to stand once at the beginning of all their prompts."""

from __future__ import annotations

from collections.abc import Sequence

LEAST = 200
"""Characters below which moving a text is not worth a changed prompt; about 50 tokens."""


def common_text(texts: Sequence[str]) -> str:
    """The longest run of whole lines that all texts begin or end with.

    Empty for less than two texts, and where they have less than ``LEAST`` characters in common.
    """
    if len(texts) < 2:
        return ""
    rows = [text.strip().split("\n") for text in texts]
    head, tail = _common_start(rows), _common_start([row[::-1] for row in rows])[::-1]
    longest = max("\n".join(head).strip(), "\n".join(tail).strip(), key=len)
    return longest if len(longest) >= LEAST else ""


def _common_start(rows: Sequence[Sequence[str]]) -> list[str]:
    found: list[str] = []
    for lines in zip(*rows, strict=False):
        if len(set(lines)) > 1:
            break
        found.append(lines[0])
    return found
