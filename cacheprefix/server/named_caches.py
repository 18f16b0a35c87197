"""Caches made beforehand and named in requests, as Gemini's ``cachedContents``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from cacheprefix.profiles import Profile
from cacheprefix.prompt import Prompt
from cacheprefix.server.outcome import CacheOutcome, RefusedError
from cacheprefix.server.replies import identifier, seed

_HOUR = 3600.0
"""Source: ai.google.dev/gemini-api/docs/caching: "If not set, the TTL defaults to 1 hour"."""


@dataclass(slots=True)
class _Named:
    name: str
    model: str
    scope: str
    tokens: int
    made: float
    expires: float
    display: str | None


class NamedCaches:
    """Named prefixes. A request that names one reads all of it, whatever else it says."""

    def __init__(self) -> None:
        self._known: dict[str, _Named] = {}

    def create(
        self, prompt: Prompt, body: Mapping[str, Any], profile: Profile, scope: str, now: float
    ) -> dict[str, Any]:
        """Keep a prefix. Raises ``RefusedError`` when it is shorter than the profile's minimum."""
        tokens = prompt.tokens
        if tokens < profile.min_tokens:
            raise RefusedError(
                f"Cached content is too small. total_token_count={tokens}, min_total_token_count={profile.min_tokens}"
            )
        name = "cachedContents/" + identifier("", seed(prompt, len(self._known)))
        expires = now + (_seconds(body.get("ttl")) or _HOUR)
        display = body.get("displayName")
        made = _Named(
            name, bare(prompt.model), scope, tokens, now, expires, display if isinstance(display, str) else None
        )
        self._known[name] = made
        return _resource(made)

    def get(self, name: str, scope: str, now: float) -> dict[str, Any]:
        """The resource as JSON. Raises ``RefusedError`` (403, as Google does) when it is gone or another's."""
        return _resource(self._find(name, scope, now))

    def all(self, scope: str, now: float) -> list[dict[str, Any]]:
        """The resources of a scope."""
        return [_resource(one) for one in self._known.values() if one.scope == scope and now <= one.expires]

    def extend(self, name: str, body: Mapping[str, Any], scope: str, now: float) -> dict[str, Any]:
        """Give a cache another lifetime, from now on."""
        found = self._find(name, scope, now)
        found.expires = now + (_seconds(body.get("ttl")) or _HOUR)
        return _resource(found)

    def delete(self, name: str, scope: str, now: float) -> dict[str, Any]:
        """Forget a cache; the answer is an empty object."""
        del self._known[self._find(name, scope, now).name]
        return {}

    def read(self, outcome: CacheOutcome, name: str, model: str, scope: str, now: float) -> CacheOutcome:
        """The outcome of a request that names a cache: its tokens stand before the request's own, all read."""
        found = self._find(name, scope, now)
        if found.model != bare(model):
            raise RefusedError(f"Model used by GenerateContent request ({model}) and CachedContent has to be the same.")
        return replace(
            outcome,
            input_tokens=outcome.input_tokens + found.tokens,
            read_tokens=outcome.read_tokens + found.tokens,
        )

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()

    def _find(self, name: str, scope: str, now: float) -> _Named:
        found = self._known.get(name)
        if found is None or found.scope != scope or now > found.expires:
            raise RefusedError("CachedContent not found (or permission denied)", status=403)
        return found


def bare(model: str) -> str:
    """A model name without the collection it is addressed in."""
    return model.rpartition("/")[2]


def _seconds(ttl: Any) -> float | None:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)s", ttl) if isinstance(ttl, str) else None
    return float(match.group(1)) if match else None


def _resource(one: _Named) -> dict[str, Any]:
    """A named cache as Gemini's API shows it."""
    made: dict[str, Any] = {
        "name": one.name,
        "model": f"models/{one.model}",
        "createTime": _stamp(one.made),
        "updateTime": _stamp(one.made),
        "expireTime": _stamp(one.expires),
        "usageMetadata": {"totalTokenCount": one.tokens},
    }
    return made if one.display is None else {**made, "displayName": one.display}


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
