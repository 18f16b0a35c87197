"""Providers' cache rules as data, and what follows from them: usage, prices, cost units."""

from cacheprefix.profiles._load import VALUE_FIELDS
from cacheprefix.profiles._profile import (
    CacheprefixProfileWarning,
    Confidence,
    Control,
    Evidence,
    MarkerForm,
    Match,
    Profile,
    Readable,
    Restriction,
    Ttl,
)
from cacheprefix.profiles._registry import Registry, default_registry, load_profiles, profile_for

__all__ = [
    "VALUE_FIELDS",
    "CacheprefixProfileWarning",
    "Confidence",
    "Control",
    "Evidence",
    "MarkerForm",
    "Match",
    "Profile",
    "Readable",
    "Registry",
    "Restriction",
    "Ttl",
    "default_registry",
    "load_profiles",
    "profile_for",
]
