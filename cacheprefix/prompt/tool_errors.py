"""Whether a tool's text reports a failure: told by its beginning, where the framework does not say."""

from __future__ import annotations

import re

_FAILED = re.compile(
    r"\s*(?:\[?error\]?\b\s*[:\-\]]|traceback \(most recent call last\)|fatal(?: error)?:|exception:"
    r"|\w*(?:error|exception): |\{\s*\"(?:error|is_error|isError)\"\s*:\s*(?!null|false))",
    re.IGNORECASE,
)


def reads_as_error(text: str) -> bool:
    """Return whether a tool result looks like a failure by its first words."""
    return _FAILED.match(text, 0, 200) is not None
