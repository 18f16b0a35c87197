"""How many tokens a provider counts for one of ours: learnt for each model and kind of content from reported usage.

A tokenizer spends about one token on four letters of prose and on two characters of JSON. Each report gives one sum
over sections of several kinds; the scales follow by multiplicative updates: with s[k] tokens of theirs for one of
ours in kind k, and o[k] of ours in the report of ``counted`` tokens,

    s[k] = (sum of s[k] * o[k] * counted / (sum over all kinds of s * o)) / (sum of o[k])

where the sums run over the reports so far. It is the usual iteration for a sum with non-negative parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters, digits

from cacheprefix.prompt import Section

_LETTERS = (ascii_letters + " ").encode()
_DIGITS = digits.encode()
_KINDS = 20_000
_LOOKED = 2_000
"""Bytes of a section that are looked at: its kind shows soon."""
_BOUNDS = (0.03, 0.08, 0.16, 0.28)
"""Shares of signs that part prose, prose with structure, code and JSON. All-numeric content counts as the last."""
_MEMORY = 50_000.0
"""Tokens of ours that a scale remembers; what is older fades."""
_FIRST = 400.0
"""Tokens that the assumption of one for one counts for before anything was reported."""


class Calibration:
    """The scales of all models that were heard of. Bounded by the number of models."""

    def __init__(self) -> None:
        self._scales: dict[tuple[str, int], list[float]] = {}
        self._models: set[str] = set()
        """Those that have a scale."""
        self._kinds: dict[bytes, int] = {}

    def weigh(self, sections: Sequence[Section], model: str) -> float:
        """What the provider is likely to count for these sections."""
        found = 0.0
        for one in sections:
            row = self._scales.get((model, self._kind(one)))
            found += one.tokens if row is None else one.tokens * (row[0] / row[1])
        return found

    def exact(self, sections: Sequence[Section], model: str, within: float) -> bool:
        """Whether no report speaks against one token of theirs for one of ours, in any kind of content.

        ``within`` is the share by which a scale may be another.
        """
        if model not in self._models:
            return True
        return all(abs(self._scale(model, kind) - 1) <= within for kind in {self._kind(one) for one in sections})

    def learn(self, sections: Sequence[Section], model: str, counted: int) -> None:
        """The provider counted ``counted`` tokens for these sections together."""
        ours: dict[int, int] = {}
        for one in sections:
            kind = self._kind(one)
            ours[kind] = ours.get(kind, 0) + one.tokens
        expected = sum(tokens * self._scale(model, kind) for kind, tokens in ours.items())
        if expected <= 0 or counted <= 0:
            return
        self._models.add(model)
        for kind, tokens in ours.items():
            row = self._scales.setdefault((model, kind), [_FIRST, _FIRST])
            theirs = tokens * self._scale(model, kind) * min(4.0, max(0.25, counted / expected))
            fade = min(1.0, _MEMORY / (row[1] + tokens))
            row[0], row[1] = (row[0] + theirs) * fade, (row[1] + tokens) * fade

    def _kind(self, section: Section) -> int:
        found = self._kinds.get(section.digest)
        if found is None:
            if len(self._kinds) >= _KINDS:
                self._kinds.clear()
            found = self._kinds[section.digest] = _kind(section)
        return found

    def _scale(self, model: str, kind: int) -> float:
        row = self._scales.get((model, kind))
        return 1.0 if row is None else row[0] / row[1]


def _kind(section: Section) -> int:
    data = section.data[:_LOOKED]
    if not data:
        return 0
    others = data.translate(None, _LETTERS)
    numbers = len(others) - len(others.translate(None, _DIGITS))
    share = (len(others) - numbers / 2) / len(data)
    return sum(share > bound for bound in _BOUNDS)
