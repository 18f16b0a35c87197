"""Summaries of removed messages: an extract made here at once, or one written by a model.

The extract keeps what a later turn can quote: the names, numbers and paths of the removed messages.
It is a pure function of them, needs no call, and says what it is.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cacheprefix.errors import told
from cacheprefix.history.situation import names_in, own_texts
from cacheprefix.history.strategies import between_characters
from cacheprefix.prompt.views import Count, MessageView


@dataclass(frozen=True, slots=True)
class Removed:
    """The removed messages, those that stay, and how many tokens their summary may have."""

    views: Sequence[MessageView]
    kept: Sequence[MessageView]
    max_tokens: int
    count: Count


Summarise = Callable[[Removed], str]
"""Writes the summary of removed messages; too long a text is cut, on an error an extract is used."""

REMOVED = "[Earlier messages were removed from this conversation.]"
OPENING = "[Earlier messages were removed from this conversation. Names and values in them: "
_SCANNED = 200_000

INSTRUCTION = (
    "Pause the task. Summarise this conversation so far for yourself, since its older part will be removed: "
    "the task and its constraints, decisions and their reasons, facts, names, identifiers, paths and numbers "
    "you may need again, what was tried and failed, and what is left to do. Answer with the summary only."
)


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """A summary asked of the model as a fork of the running conversation.

    Send the prompt as it is, tools included, and ``instruction`` as one more user message: everything
    before it is read from the cache.
    """

    instruction: str
    max_tokens: int
    loses: tuple[int, ...] = ()
    """Indexes of the history's messages that are removed or lose a result: the prompt that is asked has to hold them.
    """


def extract(removed: Removed) -> str:
    """Names and values that only the removed messages contain, as many as fit.

    Picked by how often they were used (up to three times), then by how late; written in the order of their last use.
    """
    uses: Counter[str] = Counter()
    last: dict[str, int] = {}
    for age, names in enumerate(_newest_first(removed.views)):
        for name in names:
            uses[name] += 1
            last.setdefault(name, -age)
    for names in _newest_first(removed.kept):
        for name in names:
            uses.pop(name, None)
    picked: list[str] = []
    room = removed.max_tokens - removed.count(OPENING) - 1
    for name in sorted(uses, key=lambda name: (-min(uses[name], 3), -last[name], name)):
        room -= removed.count(f"{name}, ")
        if room < 0:
            break
        picked.append(name)
    if not picked:
        return REMOVED
    return f"{OPENING}{', '.join(sorted(picked, key=lambda name: (last[name], name)))}]"


def summarised(removed: Removed, summarise: Summarise) -> str:
    """The summary, cut to the allowed length; an extract where ``summarise`` fails or returns nothing."""
    try:
        text = summarise(removed)
    except Exception as error:
        warnings.warn(f"the summary failed ({told(error)}); an extract stands in its place", stacklevel=2)
        text = ""
    return fitted(text or extract(removed), removed.max_tokens, removed.count)


_NUMBERED = re.compile(r"\[Summary (\d+) of this conversation\]\n")


def numbered(number: int) -> str:
    """The opening of a numbered summary (one of several)."""
    return f"[Summary {number} of this conversation]\n"


def number_of(view: MessageView) -> int:
    """The number of a numbered summary; 0 for any other message."""
    found = _NUMBERED.match(view.text) if view.summary else None
    return int(found[1]) if found else 0


def opening_of(text: str) -> str:
    """The numbered opening of a summary's text; empty without one."""
    found = _NUMBERED.match(text)
    return found[0] if found else ""


def fitted(text: str, max_tokens: int, count: Count) -> str:
    """The text cut to ``max_tokens``, as a longer summary could trigger the next compaction."""
    tokens = count(text)
    chars = len(text)
    while tokens > max_tokens and chars > 0:
        chars = between_characters(text, min(chars * max_tokens // tokens, chars - 1))
        text = text[:chars]
        tokens = count(text)
    return text


def _newest_first(views: Sequence[MessageView]) -> Iterator[set[str]]:
    """The names in each message; the scan ends after a bounded number of characters."""
    room = _SCANNED
    for view in reversed(views):
        names: set[str] = set()
        for text in own_texts(view):
            names |= names_in(text[: max(0, room)])
            room -= len(text)
        yield names
        if room <= 0:
            return
