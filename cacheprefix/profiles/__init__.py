"""Providers' cache rules as data, and what follows from them: usage, prices, cost units."""

from cacheprefix.profiles.lookup import ProfileLookup, Profiles
from cacheprefix.profiles.prices import (
    Amount,
    cost_units,
    list_price,
    load_price_library,
    load_price_table,
    lost_money,
    money,
    priced,
    window_of,
)
from cacheprefix.profiles.profile import (
    CacheprefixProfileWarning,
    Confidence,
    Control,
    Evidence,
    MarkerForm,
    Match,
    Profile,
    Readable,
    Restriction,
    Slots,
    Ttl,
)
from cacheprefix.profiles.registry import Registry, default_registry, load_profiles, profile_for
from cacheprefix.profiles.rows import VALUE_FIELDS
from cacheprefix.profiles.usage import NO_CALLS, Usage, merge_usage, normalise_usage, usage_from_dict

__all__ = [
    "NO_CALLS",
    "VALUE_FIELDS",
    "Amount",
    "CacheprefixProfileWarning",
    "Confidence",
    "Control",
    "Evidence",
    "MarkerForm",
    "Match",
    "Profile",
    "ProfileLookup",
    "Profiles",
    "Readable",
    "Registry",
    "Restriction",
    "Slots",
    "Ttl",
    "Usage",
    "cost_units",
    "default_registry",
    "list_price",
    "load_price_library",
    "load_price_table",
    "load_profiles",
    "lost_money",
    "merge_usage",
    "money",
    "normalise_usage",
    "priced",
    "profile_for",
    "usage_from_dict",
    "window_of",
]
