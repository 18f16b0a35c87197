"""Compaction of a state, and its JSON form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cacheprefix.errors import BodyError, BudgetError, StateError
from cacheprefix.history.budget import Results
from cacheprefix.history.compaction import Circumstances, Compaction, plan_compaction
from cacheprefix.history.compaction_plan import Plan
from cacheprefix.history.groups import digests_of
from cacheprefix.history.ledger import Ledger
from cacheprefix.history.replaying import holding
from cacheprefix.history.state import FORMS, MODES, ContextState, Log, check_system, refresh_zones
from cacheprefix.history.window import RequestBudget
from cacheprefix.history.zones import Consolidate, Zone, concatenate, consolidated
from cacheprefix.prompt import estimate_tokens
from cacheprefix.prompt.views import MESSAGE_TOKENS, Count, MessageView, digest_of
from cacheprefix.wire.apply_decisions import kept, text_message
from cacheprefix.wire.frozen import freeze
from cacheprefix.wire.message_views import views_of

VERSION = 1


def plan(
    state: ContextState,
    settings: Compaction | None = None,
    around: Circumstances | None = None,
    *,
    system: str = "",
    readable: bool = False,
    force: bool = False,
    count: Count | None = None,
) -> Plan:
    """What ``compact`` would do, what it costs and whether it is due; nothing changes."""
    counter = count or estimate_tokens
    here = around or Circumstances()
    beside = _beside(state, system, counter)
    views = [*state.committed.views, *state.turn.views]
    moves = any(zone.staged is not None for zone in state.zones) or not _is_joined(state.committed.views)
    here = replace(here, static_tokens=here.static_tokens + beside, front_moves=here.front_moves or moves)
    # The state holds what is sent, so nothing of the ledger is still to be carried out on it.
    return plan_compaction(views, Ledger(), settings, here, count=counter, readable=readable, force=force)


def compact(
    state: ContextState,
    settings: Compaction | None = None,
    around: Circumstances | None = None,
    *,
    system: str = "",
    store: Results | None = None,
    scope: str = "",
    consolidate: Consolidate = concatenate,
    summary: str = "",
    force: bool = False,
    count: Count | None = None,
) -> ContextState:
    """The state compacted, if that is due; the very same state if not.

    The prefix is rewritten here anyway, so durable context is consolidated to one block a key at the
    front, and staged zones are shown. ``summary`` is a model's answer to ``plan(...).request``.
    Raises ``BudgetError`` when a request budget in ``around`` cannot be met.
    """
    counter = count or estimate_tokens
    if not force and _is_small(state, settings or Compaction(), around or Circumstances(), system, counter):
        return state
    planned = plan(state, settings, around, system=system, readable=store is not None, force=force, count=counter)
    if not planned.due:
        return state
    return carry_out(
        state, planned.with_summary(summary), store=store, scope=scope, consolidate=consolidate, count=counter
    )


def compact_for_request(
    state: ContextState,
    request: RequestBudget,
    settings: Compaction | None = None,
    *,
    system: str = "",
    static_tokens: int = 0,
    store: Results | None = None,
    scope: str = "",
    consolidate: Consolidate = concatenate,
    count: Count | None = None,
) -> ContextState:
    """The state such that the whole request fits the budget; the same state when it does already.

    ``static_tokens`` are tools and whatever else is sent beside the system text and the history.
    """
    counter = count or estimate_tokens
    fixed = static_tokens + (counter(system) + MESSAGE_TOKENS if system else 0)
    if fixed >= request.room:
        over = fixed - request.room
        raise BudgetError(
            f"system text and tools have {fixed} tokens and leave no room for a history in {request.room}", over
        )
    rules = replace(settings or Compaction(), trigger=None, target=None)
    around = Circumstances(static_tokens=static_tokens, request=request)
    total = fixed + _beside(state, "", counter) + state.committed.tokens + state.turn.tokens
    if total <= request.room:
        return state
    return compact(
        state, rules, around, system=system, store=store, scope=scope, consolidate=consolidate, count=counter
    )


def carry_out(
    state: ContextState,
    planned: Plan,
    *,
    store: Results | None = None,
    scope: str = "",
    consolidate: Consolidate = concatenate,
    count: Count | None = None,
) -> ContextState:
    """The state with a plan carried out on it, as one new epoch of its ledger."""
    counter = count or estimate_tokens
    messages = [*state.committed.messages, *state.turn.messages]
    views = [*state.committed.views, *state.turn.views]
    ledger = planned.commit(store, scope=scope)
    known = planned.shape if planned.shape is not None and planned.shape.views == views else None
    held = holding(views, ledger, count=counter, shape=known)
    done = [*held.partial, *(new for _, new in held.texts)]
    # The border between history and turn is found again by the objects that no decision touched.
    border = state.committed.size
    first = [decision for decision in done if decision.index < border]
    second = [replace(d, index=d.index - border) for d in done if d.index >= border]
    history = kept(messages[:border], first, held.gone, state.api)
    later = {index - border for index in held.gone if index >= border} if border < len(messages) else set()
    turn = kept(messages[border:], second, later, state.api)
    # Context of a turn that is not committed yet waits for a later compaction, as the turn does.
    keyed = consolidated(views[:border], consolidate)
    front = [text_message("user", text, key) for key, text in keyed]
    rest = [message for message in history if not _key_of(message)]
    committed = _log([*front, *rest], state, counter)
    new = replace(
        state,
        committed=committed,
        turn=_log(turn, state, counter),
        durable_tokens=sum(view.tokens for view in committed.views if view.key is not None),
        since_removal=0,
        last_removed=planned.before - planned.after,
    )
    live = digests_of([*new.committed.views, *new.turn.views])
    fresh = ledger.since(planned.ledger).section("epochs")
    epochs = [("epochs", _unused(state.ledger, key), value) for key, value in fresh.items()]
    return refresh_zones(replace(new, ledger=state.ledger.prune(live).record(epochs)))


def _unused(ledger: Ledger, epoch: str) -> str:
    """Another name for an epoch that there was: what had been removed was said again, and is removed again."""
    while ledger.get("epochs", epoch) is not None:
        epoch = digest_of(epoch)
    return epoch


def dumps(state: ContextState) -> str:
    """The state as JSON text, the same for the same state."""
    # Keys keep their order: inside a message it is part of the bytes that the cache compares.
    return json.dumps(to_json(state), separators=(",", ":"))


def loads(text: str, *, system: str | None = None, count: Count | None = None) -> ContextState:
    """Read ``dumps``' text. Raises ``StateError`` when it is none, or belongs to another ``system`` text."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise StateError(f"state: not JSON ({error}); load what dumps wrote") from None
    state = from_json(data, count=count)
    if system is not None:
        check_system(state, system)
    return state


def to_json(state: ContextState) -> dict[str, Any]:
    """The state as plain dicts, lists, strings and integers."""
    return {
        "version": VERSION,
        "api": state.api,
        "mode": state.mode,
        "system": state.system_digest,
        "zones": [[zone.name, zone.shown, zone.staged] for zone in state.zones],
        "committed": _plain(state.committed.messages),
        "turn": _plain(state.turn.messages),
        "pending": _plain(state.pending),
        "waiting": _plain(state.waiting),
        "ledger": state.ledger.to_json(),
        "since_removal": state.since_removal,
        "last_removed": state.last_removed,
    }


def from_json(data: Any, *, count: Count | None = None) -> ContextState:
    """Read what ``to_json`` wrote; raises ``StateError`` for any other shape or version."""
    if not isinstance(data, Mapping):
        raise StateError(f"state: expected an object, found {type(data).__name__}")
    if data.get("version") != VERSION:
        raise StateError(f"state: version {data.get('version')!r} is not known here (this is {VERSION})")
    if data.get("mode") not in MODES or data.get("api") not in FORMS:
        raise StateError(f"state: mode {data.get('mode')!r} or api {data.get('api')!r} is unknown")
    counter = count or estimate_tokens
    empty = ContextState(data["api"], data["mode"])
    try:
        parts = {name: [dict(m) for m in data[name]] for name in ("committed", "turn", "pending", "waiting")}
        committed = _log(parts["committed"], empty, counter)
        turn = _log(parts["turn"], empty, counter)
        zones = tuple(Zone(str(name), str(shown), staged) for name, shown, staged in data["zones"])
        waiting = tuple(freeze(message, "waiting") for message in parts["waiting"])
        state = replace(
            empty,
            system_digest=str(data["system"]),
            zones=zones,
            committed=committed,
            turn=turn,
            pending=tuple(freeze(message, "pending") for message in parts["pending"]),
            waiting=waiting,
            ledger=Ledger.from_json(data["ledger"]),
            since_removal=int(data["since_removal"]),
            last_removed=int(data["last_removed"]),
        )
        views_of(state.pending, state.api, counter)
        held = [*committed.views, *turn.views, *views_of(waiting, state.api, counter)]
    except (KeyError, TypeError, ValueError, BodyError) as error:
        raise StateError(f"state: {error!r}; load what dumps wrote") from None
    return replace(state, durable_tokens=sum(view.tokens for view in held if view.key is not None))


def _is_small(state: ContextState, settings: Compaction, around: Circumstances, system: str, count: Count) -> bool:
    """Whether nothing can be due, told from running totals alone, so that asking every turn costs nothing."""
    trigger, target = settings.limits(around.request)
    limit = (trigger + target) // 2 if around.prices.cold else trigger
    beside = around.static_tokens + _beside(state, system, count)
    return beside + state.committed.tokens + state.turn.tokens <= limit


def _beside(state: ContextState, system: str, count: Count) -> int:
    open_views = views_of([*state.pending, *state.waiting], state.api, count)
    return (
        (count(system) + MESSAGE_TOKENS if system else 0)
        + sum(count(zone.text()) + MESSAGE_TOKENS for zone in state.zones if zone.shown)
        + sum(view.tokens for view in open_views)
    )


def _is_joined(views: Sequence[MessageView]) -> bool:
    """Whether durable context stands as one block a key at the front already."""
    keys = [(index, view.key) for index, view in enumerate(views) if view.key is not None]
    return len({key for _, key in keys}) == len(keys) and all(index < len(keys) for index, _ in keys)


def _log(messages: Any, state: ContextState, count: Count) -> Log:
    frozen = [freeze(message, f"messages[{n}]") for n, message in enumerate(messages)]
    return Log().extended(zip(frozen, views_of(frozen, state.api, count), strict=True))


def _key_of(message: Mapping[str, Any]) -> str | None:
    marks = message.get("_cacheprefix")
    return marks.get("key") if isinstance(marks, Mapping) else None


def _plain(messages: Any) -> list[Any]:
    return [json.loads(json.dumps(message)) for message in messages]
