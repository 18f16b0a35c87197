"""What a session shares: how its prefix is frozen and grows, what is worth sharing, and what a fork may change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cacheprefix.errors import named
from cacheprefix.layout import Fork, SharedPrefix, Tool, union_tools
from cacheprefix.profiles import CacheprefixProfileWarning, Profile, Registry
from cacheprefix.unnamed import common_key

if TYPE_CHECKING:
    from cacheprefix.plugins import Plugins
    from cacheprefix.prompt import Api
    from cacheprefix.session import Session

KEEP = 10_000
"""Conversations remembered at most."""


def freeze(plugins: Plugins, prefix: SharedPrefix | str | None) -> SharedPrefix:
    """A prefix as the plugins leave it. Raises ``ToolClashError`` when one name has two schemas."""
    made = prefix if isinstance(prefix, SharedPrefix) else SharedPrefix(system=prefix or "")
    # A clash is the application's mistake and raises here; inside a hook it would only be reported.
    union_tools(tool for tool in made.tools if isinstance(tool, Tool))
    frozen = plugins.call_first("freeze", prefix=made)
    return frozen if isinstance(frozen, SharedPrefix) else made


def with_tools(session: Session, tools: Iterable[Any], render: Callable[[Any], Mapping[str, Any]]) -> SharedPrefix:
    """The session's prefix with the union of its tools and ``tools``; see ``Session.adopt_tools``."""
    prefix = session.prefix
    union = prefix.with_tools(tools, render)
    added = [tool.name for tool in union.tools if tool.name not in prefix.tool_names]
    unfrozen = any(not isinstance(tool, Tool) for tool in prefix.tools)
    if added and not unfrozen and session.shared.totals.last is not None:
        session.note(
            f"tools {', '.join(map(named, added))} came after the first request and stay outside the shared union, so "
            "that what follows them is not shared: give all tools to SharedPrefix(tools=...)"
        )
        return prefix
    return union if added or unfrozen else prefix


def shares(session: Session, conversation: str, model: str, tokens: Callable[[], int]) -> bool:
    """Whether what a conversation shares is long enough to be cached; see ``Session.shares``."""
    key = (common_key(conversation), model, session.prefix.key)
    shared = session.shared
    if key in shared.sharing:
        return True
    profile = session.profile(model)
    if profile.control == "none":
        session.note(f"{named(model)}: {profile.name} has no prompt cache, requests are left as they are")
        return False
    if tokens() + session.count(session.prefix.text, model) < profile.min_tokens:
        more = " (role texts given as SharedPrefix(roles=...) with tail='cards' are shared)"
        session.note(
            f"{named(model)}: requests share fewer tokens than the minimum of {profile.min_tokens:,} that "
            f"{profile.name} caches, and are left as they are until they share more{more * (session.tail == 'tail')}"
        )
        return False
    with shared.lock:
        if len(shared.sharing) > KEEP:
            shared.sharing.clear()
        shared.sharing.add(key)
    return True


def forked(session: Session, fork: Fork) -> Fork:
    """A fork as the plugins leave it: its tail may change, anything else is refused and named."""
    for changed in session.plugins.call_all("fork", fork=fork):
        if not isinstance(changed, Fork):
            continue
        if changed.prefix == fork.prefix:
            fork = replace(fork, tail=changed.tail, policy=changed.policy)
        else:
            session.warn_once("fork-hook", "a plugin's fork hook changed the shared prefix; only the tail may change")
    return fork


def profiles_of(plugins: Plugins, registry: Registry) -> Registry:
    """A registry of the session's own, with the rows that plugins add."""
    own = registry.copy()
    plugins.call_all("profiles", register=own.register)
    return own


def profile_of(registry: Registry, model: str, provider: str | None, api: Api | None, *, warn: bool = True) -> Profile:
    """The rules for a model; an unknown one is warned about once, where an application may be warned at all."""
    if not warn:
        return registry.profile_for(model, provider=provider, api=api, warn=False)
    try:
        return registry.profile_for(model, provider=provider, api=api)
    except CacheprefixProfileWarning:
        # A filter turned the one warning about an unknown model into an error; it is said, and not again.
        return registry.profile_for(model, provider=provider, api=api)
