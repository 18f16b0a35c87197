"""Which provider's rules are in force for a model, for one session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cacheprefix.errors import named
from cacheprefix.profiles.profile import CacheprefixProfileWarning, Profile
from cacheprefix.profiles.registry import Registry
from cacheprefix.prompt import Api


class ProfileLookup(Protocol):
    """Gives the rules for a model, called with its name, the API it is asked through, and a provider's name."""

    def __call__(self, model: str, api: Api | None = None, provider: str | None = None, /) -> Profile:
        """The rules; those of an unknown model say ``automatic, nothing known``."""
        ...


@dataclass(slots=True)
class Profiles:
    """A ``ProfileLookup`` in a registry of its own, where ``provider`` names the one that counts by default.

    An unknown model is warned about once. With ``note``, for a session that only observes, it is told to that
    instead: a warning is something that the application sees.
    """

    registry: Registry
    provider: str | None = None
    note: Callable[[str], None] | None = None

    def __call__(self, model: str, api: Api | None = None, provider: str | None = None, /) -> Profile:
        """The provider rules in force for a model."""
        wanted = provider or self.provider
        if self.note is None:
            try:
                return self.registry.profile_for(model, provider=wanted, api=api)
            except CacheprefixProfileWarning:
                # A filter turned the one warning about an unknown model into an error; it is said, and not again.
                return self.registry.profile_for(model, provider=wanted, api=api)
        found = self.registry.profile_for(model, provider=wanted, api=api, warn=False)
        if not found.known and found.name not in (provider, self.provider):
            told = f"no cache profile for model {named(model)!r}"
            self.note(f"{told}: taken as 'automatic, nothing known'; name its provider")
        return found
