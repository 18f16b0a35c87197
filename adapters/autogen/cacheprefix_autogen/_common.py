"""What the system texts of several agents have in common, to stand once at the beginning of all their prompts."""

from __future__ import annotations

import os
from collections.abc import Sequence

_LEAST = 200
"""Characters below which moving a text is not worth a changed prompt; about 50 tokens."""


def common_text(texts: Sequence[str]) -> str:
    """The longest run of whole lines that all texts begin or end with; empty when there is little in common."""
    if len(texts) < 2:
        return ""
    lines = [text.strip().split("\n") for text in texts]
    head = os.path.commonprefix(lines)
    tail = os.path.commonprefix([list(reversed(each)) for each in lines])
    found = ["\n".join(head).strip(), "\n".join(reversed(tail)).strip()]
    longest = max(found, key=len)
    return longest if len(longest) >= _LEAST else ""
