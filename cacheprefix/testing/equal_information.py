"""What two requests say: whether a fork holds all that the unmodified request holds, once, and nothing else."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from cacheprefix.layout import find_text, unframed
from cacheprefix.layout.framing import framing_in
from cacheprefix.prompt import Prompt


@dataclass(frozen=True, slots=True)
class Information:
    """How what a fork says differs from what the unmodified request says: words, and how often each."""

    missing: Mapping[str, int]
    """Words of the unmodified request that the fork does not hold, or not as often."""
    added: Mapping[str, int]
    """Words of the fork that neither the unmodified request nor the shared prefix holds, or not as often."""

    @property
    def equal(self) -> bool:
        """Whether both say the same."""
        return not (self.missing or self.added)


def information(unmodified: Prompt, fork: Prompt, shared: str = "") -> Information:
    """Compare what two requests say; white space, order, tools, ids and our own framing (``layout.framing``) apart.

    ``shared`` is what the user gave to the shared prefix (``SharedPrefix.text``): the fork holds it once, however often
    the unmodified request does.
    """
    own, known = _said(unmodified), _words(unframed(shared))
    expected = _words(unframed(own))
    times, rest = 0, own
    while shared.strip() and (span := find_text(unframed(shared), rest)) is not None:
        times, rest = times + 1, f"{rest[: span[0]]} {rest[span[1] :]}"
    expected.update(known)
    for _ in range(times):
        expected.subtract(known)
    said = _said(fork)
    found = _words(unframed(said))
    # The application may have said one of our own words itself: then the fork has it as well.
    lost = Counter(framing_in(rest)) - Counter(framing_in(said))
    return Information(+(expected - found) + lost, +(found - expected))


_ID = re.compile(r"\b(?:call|toolu|fc|rs|msg)_\w+")
"""A name that the provider gave to a call, an item or a message: another one in each run."""


def _said(prompt: Prompt) -> str:
    return _ID.sub("id", "\n".join(section.text for section in prompt.sections if section.tier != "tools"))


def _words(text: str) -> Counter[str]:
    return Counter(text.split())
