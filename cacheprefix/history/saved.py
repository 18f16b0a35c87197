"""Saved conversations: plain JSON with a version. Whatever a version of this library wrote, later ones read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from cacheprefix.errors import BodyError, StateError, check_version
from cacheprefix.history.ledger import Ledger
from cacheprefix.history.state import FORMS, MODES, ContextState, Log, check_system
from cacheprefix.history.zones import Zone
from cacheprefix.prompt import estimate_tokens
from cacheprefix.prompt.views import Count, digest_of
from cacheprefix.wire.frozen import freeze
from cacheprefix.wire.message_views import views_of

VERSION: Final = 1
"""Version of the saved forms of a conversation, its history and its ledger; none has changed yet."""

PLACES: Final = "standing"
"""Key of a saved conversation: where the texts of its roles stand."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A saved conversation, read and checked."""

    id: str
    ledger: Ledger
    history: ContextState | None
    """None where the framework keeps the history."""
    cold_after: float | None
    places: Mapping[str, Any]
    """Where the texts of roles stood; empty where none was saved."""


def written(id_: str, prefix: str, state: ContextState, cold_after: float | None) -> dict[str, Any]:
    """A conversation in plain JSON types; of the prefix it holds digests alone."""
    data: dict[str, Any] = {"version": VERSION, "id": id_, "prefix": prefix, "ledger": state.ledger.to_json()}
    if state.messages or state.zones:
        data["context"] = to_json(replace(state, ledger=Ledger()))
        data["cold_after"] = cold_after
    return data


def read(
    saved: str | Mapping[str, Any],
    prefix: str = "",
    system: str = "",
    *,
    rebase: bool = False,
    count: Count | None = None,
) -> Saved:
    """Read what ``written`` wrote, as JSON text too.

    Raises ``StateError`` when it is of another shape or version, or belongs to another prefix or ``system`` text and
    is not to be rebased.
    """
    data = _parsed(saved, "conversation") if isinstance(saved, str) else saved
    if not isinstance(data, Mapping) or "version" not in data:
        raise StateError("this is no saved conversation: a JSON object with a version is expected")
    check_version(data["version"], VERSION)
    made_under = data.get("prefix")
    if made_under and prefix and made_under != prefix and not rebase:
        raise StateError(
            f"the conversation was saved under prefix {made_under}, the session has {prefix}; "
            "restore the old system text and tools, or pass rebase=True and pay for one rewrite"
        )
    held = from_json(data["context"], count=count) if "context" in data else None
    if held is not None and system:
        if not rebase:
            check_system(held, system)
        held = replace(held, system_digest=digest_of(system))
    cold = data.get("cold_after")
    cold_after = float(cold) if isinstance(cold, (int, float)) else None
    places = data.get(PLACES)
    if not isinstance(places, Mapping):
        places = {}
    return Saved(str(data.get("id", "")), Ledger.from_json(data.get("ledger")), held, cold_after, places)


def dumps(state: ContextState) -> str:
    """The state as JSON text; equal states give equal text."""
    # Keys keep their order: inside a message it is part of the bytes that the cache compares.
    return json.dumps(to_json(state), separators=(",", ":"))


def loads(text: str, *, system: str | None = None, count: Count | None = None) -> ContextState:
    """Read ``dumps``' text. Raises ``StateError`` when it is none, or belongs to another ``system`` text."""
    state = from_json(_parsed(text, "state"), count=count)
    if system is not None:
        check_system(state, system)
    return state


def to_json(state: ContextState) -> dict[str, Any]:
    """The state as plain dicts, lists, strings and integers."""
    rows = {
        "committed": state.committed.messages,
        "turn": state.turn.messages,
        "pending": state.pending,
        "waiting": state.waiting,
    }
    return {
        "version": VERSION,
        "api": state.api,
        "mode": state.mode,
        "system": state.system_digest,
        "zones": [[zone.name, zone.shown, zone.staged] for zone in state.zones],
        **{name: json.loads(json.dumps(messages)) for name, messages in rows.items()},
        "ledger": state.ledger.to_json(),
        "since_removal": state.since_removal,
        "last_removed": state.last_removed,
    }


def from_json(data: Any, *, count: Count | None = None) -> ContextState:
    """Read what ``to_json`` wrote; raises ``StateError`` for any other shape or version."""
    if not isinstance(data, Mapping):
        raise StateError(f"state: expected an object, found {type(data).__name__}")
    check_version(data.get("version"), VERSION)
    api, mode, counter = data.get("api"), data.get("mode"), count or estimate_tokens
    if mode not in MODES or api not in FORMS:
        raise StateError(f"state: mode {mode!r} or api {api!r} is unknown")
    try:
        state = ContextState(
            api,
            mode,
            str(data["system"]),
            tuple(Zone(str(name), str(shown), staged) for name, shown, staged in data["zones"]),
            Log.of(map(dict, data["committed"]), api, counter),
            Log.of(map(dict, data["turn"]), api, counter),
            tuple(freeze(dict(message), "pending") for message in data["pending"]),
            tuple(freeze(dict(message), "waiting") for message in data["waiting"]),
            Ledger.from_json(data["ledger"]),
            int(data["since_removal"]),
            int(data["last_removed"]),
        )
        views_of([*state.pending, *state.waiting], state.api, counter)
    except (KeyError, TypeError, ValueError, BodyError) as error:
        raise StateError(f"state: {error!r}; load what dumps wrote") from None
    return state


def _parsed(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise StateError(f"this is no saved {what}: not JSON ({error})") from None
