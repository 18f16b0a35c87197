"""The adapter's own words in a request, to be taken out where only the application's words are looked for."""

from __future__ import annotations

import re

from cacheprefix_crewai.framing import CONTEXT_LABEL, IN_FRONT, SYSTEM

_LABEL = rf"(?:shared input '[^']*'|shared text \d+|result of task \d+|{CONTEXT_LABEL})"
_FRAMES = (
    re.escape(SYSTEM),
    rf"\[{_LABEL}\]\n",
    rf"\(see {_LABEL} above\)",
    re.escape(IN_FRONT),
    r"Your role is [^\n]*\.",
    r"Coworkers you can turn to: [^\n]*\.",
    # The core's, in ``tail_text``.
    r"Tools you may use in this role: [^\n]*\.",
)


def without_frames(text: str) -> str:
    """The text with a space in place of each of our sentences, one kind after the other."""
    for frame in _FRAMES:
        text = re.sub(frame, " ", text)
    return text
