"""What a request does to the provider's cache: which entries it reads, writes, and takes back when it fails."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from cacheprefix.cache._tree import Common, Life

if TYPE_CHECKING:
    from cacheprefix.cache._model import Observation

_KEEP_COMMONS = 64


def enter(observation: Observation, now: float) -> None:
    """Read and write as expected: entries that are read live on, those that are written begin."""
    seen, profile, path = observation.outlook, observation.profile, observation.path
    for node in path[: seen.alive]:
        entry = node.entry
        if entry is not None and entry.refreshes and entry.readable_at <= now <= entry.expires:
            entry.refresh(now)
    at_once = profile.readable == "start" or profile.cold_parallel_shares
    for index, ttl in seen.ends.items():
        node = path[index]
        known = node.entry
        if known is None or now > known.expires:
            entry = node.entry = Life(ttl, now)
        else:
            entry = known
            if index >= seen.sections:
                entry.write(ttl, now)
        if at_once:
            entry.readable_at = min(entry.readable_at, now)
        elif entry.readable_at > now:
            entry.writers += 1
            observation.fresh.append(entry)
        observation.used.append(entry)
    if seen.common is not None:
        _keep_common(observation, now)
    for index in () if seen.marks.refused else seen.marks.dropped:
        path[index].dropped = True


def _keep_common(observation: Observation, now: float) -> None:
    """A beginning found to be common becomes a unit that later requests can read."""
    found, path = observation.outlook.common, observation.path
    if found is None:
        return
    at, size, tokens = found
    section, holder = observation.record.sections[at], path[at].parent
    assert holder is not None
    kept = [one for one in holder.commons or () if now <= one.life.expires]
    same = next((one for one in kept if one.size == size and one.begins(section)), None)
    if same is None:
        same = Common(section, size, tokens, Life(observation.profile.default_ttl, now))
        kept.append(same)
    same.life.writers += 1
    observation.fresh.append(same.life)
    holder.commons = kept[-_KEEP_COMMONS:]


def open_entries(observation: Observation, at: float) -> None:
    """What the request wrote can be read from now on."""
    for life in observation.fresh:
        life.readable_at = min(life.readable_at, at)


def leave(observation: Observation) -> None:
    """Take back what the request entered, as if it had never been sent."""
    record = observation.record
    for life in observation.fresh:
        life.writers -= 1
    for node in observation.path:
        entry = node.entry
        if entry is not None and entry.writers <= 0 and entry.readable_at == inf:
            node.entry = None
    for node, before in zip(observation.path, observation.before, strict=True):
        if node.last == record.index:
            node.last = before
