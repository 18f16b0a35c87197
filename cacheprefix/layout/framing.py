"""All of our own words that may stand in a prompt, beside those of the application and of the user's shared prefix.

Everything else in a fork stands in the unmodified request too, or was given to ``SharedPrefix`` (invariant 9).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

CARDS: Final = (
    "Several agents share this conversation. The last message names the one that speaks next; its role is one of:"
)
ONE_CALL: Final = "Call at most one tool in this answer."
NEXT: Final = "<next/>"
"""A message that only carries a cache mark."""


def role_element(role: str, instruction: str) -> str:
    """A role's text under the role's name."""
    return f"<role name={quoted(role)}>\n{instruction}\n</role>"


def card(role: str) -> str:
    """Names the role whose text stands in the shared system text."""
    return f"You now speak as {quoted(role)}."


def tools_allowed(tools: Sequence[str]) -> str:
    """Names the tools that a role may use."""
    return f"Tools you may use in this role: {', '.join(tools) if tools else 'none'}."


def quoted(role: str) -> str:
    """A role's name in quotes; none can end the element that it names or begin another."""
    return json.dumps(role, ensure_ascii=False).replace("<", "\\u003c").replace(">", "\\u003e")


_NAME = r'"(?:[^"\\]|\\.)*"'
_OURS = re.compile(
    "|".join(
        (
            rf"</?role(?: name={_NAME})?>",
            rf"</?context(?: key={_NAME})?>",
            rf"You now speak as {_NAME}\.",
            r"Tools you may use in this role: [^\n]*\.",
            *map(re.escape, (CARDS, ONE_CALL, NEXT)),
        )
    )
)


def framing_in(text: str) -> list[str]:
    """What of a prompt's text reads as our own words, whoever said it: an application may say them too."""
    return [found[0] for found in _OURS.finditer(text)]


def unframed(text: str) -> str:
    """A prompt's text without our own words."""
    return _OURS.sub(" ", text)
