"""The text of a tail: role, task limits, volatile context. Everything that differs between forks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence


def tail_text(
    role: str,
    instruction: str,
    *,
    card: bool = False,
    tools: Sequence[str] | None = None,
    volatile: Mapping[str, str] | None = None,
) -> str:
    """What is appended for one call; empty when there is nothing to say.

    ``card`` says that the role's text already stands in the shared system text. ``tools`` names those the
    role may use, where the provider has no way to restrict them without touching the cached part.
    """
    parts: list[str] = []
    if card:
        parts.append(f"You now speak as {json.dumps(role, ensure_ascii=False)}.")
    elif instruction:
        parts.append(f"<role name={json.dumps(role, ensure_ascii=False)}>\n{instruction}\n</role>")
    if tools is not None:
        listed = ", ".join(tools) if tools else "none"
        parts.append(f"Tools you may use in this role: {listed}.")
    parts += [f"<{key}>\n{value}\n</{key}>" for key, value in (volatile or {}).items()]
    return "\n\n".join(parts)
