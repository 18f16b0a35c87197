"""What the parts of a session are handed, so that none of them needs the session: counts, rules, the clock, notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cacheprefix.notices import Notices
from cacheprefix.profiles import ProfileLookup
from cacheprefix.prompt import Count, CountTokens


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
