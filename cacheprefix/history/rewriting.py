"""Compacts a history that the conversation keeps itself, by rewriting its messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cacheprefix.errors import BudgetError, SetupError
from cacheprefix.history.budget import Cutting
from cacheprefix.history.compaction import Circumstances, Compaction, plan_compaction
from cacheprefix.history.compaction_plan import Plan
from cacheprefix.history.groups import digests_of
from cacheprefix.history.ledger import Ledger
from cacheprefix.history.replaying import holding, replay
from cacheprefix.history.settling import Standing, Terms, decided, planned
from cacheprefix.history.state import ContextState, Log, refresh_zones, tokens_beside
from cacheprefix.history.window import RequestBudget
from cacheprefix.prompt import estimate_tokens
from cacheprefix.prompt.decisions import Decision, Insert
from cacheprefix.prompt.views import MESSAGE_TOKENS, Count, digest_of
from cacheprefix.wire.apply_decisions import apply, kept, sendable
from cacheprefix.wire.message_views import views_of
from cacheprefix.wire.messages import Form

_TERMS = Terms()


def standing(state: ContextState) -> Standing:
    """The history before a request, with an empty ledger, as its messages are already rewritten by all decisions."""
    return Standing(state.views, Ledger(), state.tokens)


def with_beside(state: ContextState, around: Circumstances, terms: Terms) -> Circumstances:
    """``around`` with the tokens sent beside the history added, and whether staged zones would be shown."""
    moves = around.front_moves or any(zone.staged is not None for zone in state.zones)
    beside = terms.static_tokens + tokens_beside(state, terms.system, terms.count)
    return replace(around, static_tokens=around.static_tokens + beside, front_moves=moves)


def plan(
    state: ContextState,
    settings: Compaction | None = None,
    around: Circumstances | None = None,
    terms: Terms = _TERMS,
    *,
    force: bool = False,
) -> Plan:
    """What ``compact`` would do, what it costs and whether it is due; nothing changes."""
    here = with_beside(state, around or Circumstances(), terms)
    readable = terms.store is not None
    return planned(standing(state), settings or Compaction(), here, count=terms.count, readable=readable, force=force)


def compact(
    state: ContextState,
    settings: Compaction | None = None,
    around: Circumstances | None = None,
    terms: Terms = _TERMS,
    *,
    scope: str = "",
    summary: str = "",
    force: bool = False,
) -> ContextState:
    """The state compacted where that is due; the same object where not.

    As the prefix is rewritten anyway, durable context is joined into one block for each key at the front, and staged
    zones are shown. Of ``terms`` these are used: what is sent beside the history, the counter, the store and
    ``consolidate``. ``summary`` is a model's answer to ``plan(...).request``.
    Raises ``BudgetError`` when a request budget in ``around`` cannot be met.
    """
    made = plan(state, settings, around, terms, force=force)
    if not made.due:
        return state
    ledger = decided(standing(state), made.with_summary(summary), terms, scope)
    if ledger is None:
        return state
    return carried_out(state, made, ledger, terms.count, readable=terms.readable())


def compact_for_request(
    state: ContextState,
    request: RequestBudget,
    settings: Compaction | None = None,
    terms: Terms = _TERMS,
    *,
    scope: str = "",
) -> ContextState:
    """The state compacted so that the whole request fits the budget; the same object where it does already."""
    check_fixed(terms, request)
    rules = replace(settings or Compaction(), trigger=None, target=None)
    return compact(state, rules, Circumstances(request=request), terms, scope=scope)


def check_fixed(terms: Terms, request: RequestBudget, more: int = 0) -> None:
    """Raise ``BudgetError`` where system text and tools, and ``more`` tokens, leave no room for a history."""
    fixed = terms.static_tokens + more + (terms.count(terms.system) + MESSAGE_TOKENS if terms.system else 0)
    if fixed >= request.room:
        over = fixed - request.room
        raise BudgetError(
            f"system text and tools have {fixed} tokens and leave no room for a history in {request.room}", over
        )


def carried_out(
    state: ContextState, planned: Plan, made: Ledger, count: Count, *, readable: bool = True
) -> ContextState:
    """The state with the decisions of a plan (in ledger ``made``) carried out, as one new epoch of its own ledger.

    Messages that were appended since it was planned stay as they are.
    """
    views = state.views
    known = planned.shape if planned.shape is not None and planned.shape.views == views else None
    held = holding(views, made, None, Cutting(count, readable=readable), known)
    # Decisions are split at the border of committed history and current turn; a text at the border goes to the former.
    border = len(state.committed)
    first: list[Decision] = []
    second: list[Decision] = []
    for one in (*held.partial, *(new for _, new in held.texts)):
        if one.index < border or (one.index == border and isinstance(one, Insert)):
            first.append(one)
        else:
            second.append(replace(one, index=one.index - border))
    history = kept(state.committed.messages, first, held.gone, state.api)
    gone = {index - border for index in held.gone if index >= border}
    turn = kept(state.turn.messages, second, gone, state.api)
    new = replace(
        state,
        committed=Log.of(history, state.api, count),
        turn=Log.of(turn, state.api, count),
        since_removal=0,
        last_removed=planned.before - planned.after,
    )
    ledger = state.ledger.prune(digests_of(new.views))
    for key, value in made.since(planned.ledger).section("epochs").items():
        # The same removal may happen twice, where the same messages came again: each is an epoch under its own name.
        name = key
        while state.ledger.get("epochs", name) is not None:
            name = digest_of(name)
        ledger = ledger.record([("epochs", name, value)])
    return refresh_zones(replace(new, ledger=ledger))


def compaction_hook(
    messages: Sequence[Mapping[str, Any]],
    target: int,
    *,
    api: Form = "openai-chat",
    settings: Compaction | None = None,
    count: Count | None = None,
) -> list[Mapping[str, Any]]:
    """The messages shortened to ``target`` tokens; the same objects where nothing had to change.

    Results that a tool can give again are cleared first, then old tool uses are dropped, then the oldest messages
    removed, each call with its results; system and pinned messages, and the last turns, stay. ``settings`` is used but
    for its trigger and target; ``api`` is the form of the messages. Nothing is remembered: called again with the
    original history and more, it decides anew, and the cache is lost. So keep what it returns and append to that, or
    use a ``Conversation``, which decides once. Raises ``SetupError`` for a target below 1, and ``BodyError`` for
    a malformed message.
    """
    if target < 1:
        raise SetupError(f"compaction_hook needs a target of at least 1 token, found {target}")
    counter = count or estimate_tokens
    views = [replace(view, pinned=True) if view.role == "system" else view for view in views_of(messages, api, counter)]
    if sum(view.tokens for view in views) <= target:
        return list(messages)
    rules = replace(settings or Compaction(), trigger=target, target=target)
    made = plan_compaction(views, Ledger(), rules, count=counter, force=True)
    done = replay(views, made.commit(), None, Cutting(counter, readable=False))
    return list(sendable(apply(messages, done.decisions, api)))
