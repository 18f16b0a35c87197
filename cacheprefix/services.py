"""What the parts of a session are handed, so that none of them needs the session: counts, rules, the clock, notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

from cacheprefix.notices import Notices
from cacheprefix.profiles import Profile, ProfileLookup
from cacheprefix.prompt import Count, CountTokens

_ALIKE = 0.03
"""By what share the provider's count of text may lie from ours and be taken for the same: how far counts are off."""
TELLING = 500
"""Tokens of reports from which on they tell how a provider counts: in few what it puts around messages weighs much."""
_TOKENIZER = 3.0
"""How many times as many tokens two tokenizers make of a text at most; what lies farther off counts something else."""


@dataclass(frozen=True, slots=True)
class Services:
    """Counts tokens, knows providers' rules and the time, and tells the user. Its parts are safe in any thread."""

    count: CountTokens
    """Tokens of a text for a model."""
    counter: Callable[[str], Count]
    """``count`` for one model; the same object each time, as the memory of views needs it."""
    profile: ProfileLookup
    """The provider rules in force for a model."""
    clock: Callable[[], float]
    """Seconds."""
    notices: Notices
    scale: Callable[[str], float] = lambda _model: 1.0
    """What a model's provider counts for a token of ours, by its counts so far; 1.0 where we count about alike."""
    takes_lists: Callable[[str], bool] = lambda _model: True
    """Whether a model's endpoint takes a list of allowed tools as ``tool_choice``; False once it has refused one."""


@lru_cache(256)
def in_our_tokens(profile: Profile, scale: float) -> Profile:
    """A provider's rules with its minimum and its blocks in our tokens, of which it counts ``scale`` for one."""
    if scale == 1.0:
        return profile
    least, block = ceil(profile.min_tokens / scale), round(profile.block_tokens / scale)
    return replace(profile, min_tokens=least, block_tokens=max(1, block))


def scale_of(theirs: float, ours: float) -> float:
    """What a provider counts for a token of ours, to the hundredth; 1.0 where about the same, or what none explains."""
    found = round(theirs / ours, 2)
    return found if abs(found - 1.0) > _ALIKE and counts_alike(theirs, ours) else 1.0


def counts_alike(theirs: float, ours: float) -> bool:
    """Whether two tokenizers may count so many tokens for the same text."""
    return ours / _TOKENIZER <= theirs <= ours * _TOKENIZER
