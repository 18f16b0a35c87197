"""Reading saved conversations: shape, version, and whether they belong to the prefix in force."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cacheprefix._terms import Terms
from cacheprefix.context import ContextState, Ledger, digest_of, from_json, to_json
from cacheprefix.errors import StateError

VERSION = 1


@dataclass(frozen=True, slots=True)
class Saved:
    """A saved conversation, read and checked."""

    id: str
    ledger: Ledger
    history: ContextState | None
    """None where the framework keeps the history."""
    cold_after: float | None


def written(id_: str, prefix: str, state: ContextState, cold_after: float | None) -> dict[str, Any]:
    """A conversation in plain JSON types; of the prefix it holds digests alone."""
    data: dict[str, Any] = {"version": VERSION, "id": id_, "prefix": prefix, "ledger": state.ledger.to_json()}
    if state.messages or state.zones:
        data["context"] = to_json(replace(state, ledger=Ledger()))
        data["cold_after"] = cold_after
    return data


def read(saved: str | Mapping[str, Any], prefix: str, terms: Terms, *, rebase: bool) -> Saved:
    """Read what ``written`` wrote, as JSON text too.

    Raises ``StateError`` when it is of another shape or version, or belongs to another prefix than ``prefix`` or
    system text than the terms' and is not to be rebased.
    """
    data = _parsed(saved) if isinstance(saved, str) else saved
    if not isinstance(data, Mapping) or "version" not in data:
        message = "this is no saved conversation: a JSON object with a version is expected"
        raise StateError(message)
    if data["version"] != VERSION:
        message = f"the conversation was saved by version {data['version']} of its format, this one reads {VERSION}"
        raise StateError(message)
    made_under = data.get("prefix")
    if made_under and prefix and made_under != prefix and not rebase:
        message = (
            f"the conversation was saved under prefix {made_under}, the session has {prefix}; "
            "restore the old system text and tools, or pass rebase=True and pay for one rewrite"
        )
        raise StateError(message)
    ledger = data.get("ledger")
    cold = data.get("cold_after")
    return Saved(
        str(data.get("id", "")),
        Ledger() if ledger is None else Ledger.from_json(ledger),
        _history(data["context"], terms, rebase=rebase) if "context" in data else None,
        float(cold) if isinstance(cold, (int, float)) else None,
    )


def _history(data: Any, terms: Terms, *, rebase: bool) -> ContextState:
    held = from_json(data, count=terms.count)
    if not terms.system:
        return held
    digest = digest_of(terms.system)
    if held.system_digest and held.system_digest != digest and not rebase:
        message = (
            "the conversation was saved with another static system text, so nothing of its prefix is in the "
            "cache; restore the old text, or pass rebase=True and pay for one rewrite"
        )
        raise StateError(message)
    return replace(held, system_digest=digest)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        message = f"this is no saved conversation: not JSON ({error})"
        raise StateError(message) from None
