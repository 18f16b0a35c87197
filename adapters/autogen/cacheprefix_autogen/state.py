"""Saves and loads this adapter's part of an agent's and a team's state, beside AutoGen's own part."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

from cacheprefix.adapter import Lane, SelectorLane
from cacheprefix.errors import StateError, check_version, found_instead
from cacheprefix_autogen.binding import Binding
from cacheprefix_autogen.member import Group, Kept, Member
from cacheprefix_autogen.model_context import STATE
from cacheprefix_autogen.own_rounds import Turn
from cacheprefix_autogen.transcript import Entry, entry_from

VERSION = 1
_JOINS: Mapping[Any, SelectorLane] = {True: "joined", False: "apart"}
_HOLDERS: WeakValueDictionary[tuple[int, str | None, str], Group] = WeakValueDictionary()
"""Who saved or loaded a conversation last, by session, scope and the conversation's id."""


def hold(group: Group, state: Mapping[str, Any] | None) -> None:
    """Remember the loaded ``state``: it is what is saved again as long as nothing is said or decided.

    None stands for a loaded state without this adapter's part, and for no loaded state, just after wrapping: then the
    save has no such part either, and loading it takes the messages over from the application's own state again.
    """
    group.kept = None if group.joined else Kept(state, _seen(group), _decided(group))


def _untouched(group: Group) -> bool:
    """Whether nothing was said or decided since a state was loaded, or since the wrapping."""
    kept = group.kept
    if kept is None or kept.seen != _seen(group) or kept.decided != _decided(group):
        group.kept = None
        return False
    return True


def _seen(group: Group) -> Any:
    """What a saved state holds of the group and its members, without the messages; to find out whether it changed."""
    members = [
        (
            None if member.view is None else [entry.id for entry in member.view.everything()],
            member.keeps_layout,
            member.before,
            list(member.turns),
            list(member.told),
        )
        for _, member in group.members
    ]
    lanes = [caller.lane for caller in group.callers]
    told = [entry.id for entry in group.told_so_far]
    return group.transcript.id, group.lanes, lanes, told, members


def _decided(group: Group) -> Any:
    """The conversation's decisions as they would be saved; None where there is no conversation yet."""
    known = group.session.known(group.transcript.id, group.options.scope)
    return None if known is None else (known.to_json(places=False), group.session.places(known))


def saved_member(member: Member, group: Group) -> dict[str, Any]:
    """This adapter's part of an agent's saved state, under its key; empty where there is none."""
    if _untouched(group):
        said = group.said_of.get(member)
        return {} if said is None else {STATE: said}
    found = save_member(member, group)
    return {STATE: found} if found else {}


def saved_transcript(group: Group) -> dict[str, Any]:
    """This adapter's part of a team's saved state, under its key; empty where there is none."""
    kept = group.kept
    if kept is not None and _untouched(group):
        return {} if kept.state is None else {STATE: kept.state}
    return {STATE: save_transcript(group)}


def save_member(member: Member, group: Group) -> dict[str, Any]:
    """What one agent has seen, by message id; the messages too, where no team's state holds them."""
    view = member.view
    if view is None:
        return {}
    group.heed()
    held = member.digest
    state: dict[str, Any] = {
        "version": VERSION,
        "view": [entry.id for entry in view.entries],
        "own": [entry.id for entry in view.pending()],
        "keeps": member.keeps_layout,
        "before": member.before,
        "turns": [(turn.start, turn.end, turn.at) for turn in member.turns],
        **({"told_at": member.told} if member.told else {}),
        **({"broken": True} if member.broken else {}),
        **({} if held is None else {"held": held}),
    }
    if not group.team:
        state |= save_transcript(group)
    return state


def load_member(member: Member, group: Group, state: Mapping[str, Any] | None) -> None:
    """Take over what an agent had seen; of a state that was saved without us, what its own context holds."""
    member.reset(alone=True)
    if member.view is None:
        return
    if not state:
        if not group.team:
            # Privacy: what was decided and told belongs to the conversation that stood here before.
            group.let_go()
        if not group.from_thread:
            group.session.attempt("take over", member.take_over, None)
        return
    check_version(state.get("version"), VERSION)
    if "entries" in state:
        load_transcript(group, state)
    known = group.loaded
    member.view.restore([known[i] for i in state["view"] if i in known], [known[i] for i in state["own"] if i in known])
    # Of a state that names none, all is from before.
    member.before = state.get("before", 0)
    member.turns = [Turn(*turn) for turn in state.get("turns", ())]
    # Earlier versions had it under the name that the transcript's own has beside it in the state of an agent by itself.
    told = state.get("told_at", () if "entries" in state else state.get("told", ()))
    member.told = [(at, one) for at, one in told]
    member.keeps_layout = member.resumed = bool(state.get("keeps"))
    # What the application changed in the context, no view knows, in another process neither.
    member.broken = bool(state.get("broken")) or any(i not in known for i in (*state["view"], *state["own"]))
    member.look()
    if "held" in state:
        member.check(state["held"])


def save_transcript(group: Group) -> dict[str, Any]:
    """The messages that anyone in the group has in view, once each, and the decisions taken on tool results."""
    entries: dict[str, Entry] = {}
    group.heed()
    _HOLDERS[_held_as(group, group.transcript.id)] = group
    for _, member in group.members:
        if member.view is not None:
            entries |= {entry.id: entry for entry in member.view.everything()}
    alone = {name: (lane.cost, lane.saved) for name, lane in (group.lanes or {}).items() if lane.saved}
    ordered = sorted(entries.values(), key=lambda entry: (entry.depth, entry.rank))
    return {
        "version": VERSION,
        "id": group.transcript.id,
        "prefix": group.session.prefix.key,
        "lanes": None if group.lanes is None else {name: lane.names for name, lane in group.lanes.items()},
        "joins": {caller.name: caller.lane for caller in group.callers},
        "entries": [entry.as_dict() for entry in ordered],
        "conversation": group.conversation.to_json(places=False),
        **({} if group.sent_plain is None else {"sent_plain": group.sent_plain}),
        **({"told": [entry.id for entry in group.told_so_far]} if group.told_so_far else {}),
        "places": group.session.places(group.conversation),
        **({"costs": alone} if alone else {}),
    }


def load_transcript(group: Group, state: Mapping[str, Any]) -> None:
    """Hold saved messages ready for the members, and take over the decisions."""
    session = group.session
    check_version(state.get("version"), VERSION)
    group.transcript.id, group.sent_plain = _id_of(group, state["id"]), state.get("sent_plain")
    if state["prefix"] != session.prefix.key:
        session.note(
            "the state was saved under another prefix (system text or tools changed since): "
            "the first requests after loading are paid in full once"
        )
    if group.conversation.state.messages or group.conversation.state.zones:
        # What was appended or set since the state was saved is not in it.
        session.forget(group.transcript.id, group.options.scope)
    # Of a team, or an agent by itself, the state holds all that was decided on what it holds: in the process that went
    # on, too, nothing that came behind it counts.
    several = not group.team and len(group.members) > 1
    group.conversation.restore(state["conversation"], rebase=True, merge=several)
    group.session.restore_places(group.conversation, state.get("places") or {})
    for caller in group.callers:
        lane = (state.get("joins") or {}).get(caller.name)
        # Earlier versions knew two, and saved whether it joins.
        caller.lane = _JOINS.get(lane, lane)
    saved = state.get("lanes")
    costs = state.get("costs") or {}
    if saved is not None:
        saved = {name: Lane(tuple(lane), *costs.get(name, ())) for name, lane in saved.items()}
    group.lanes = saved
    group.loaded = {item["id"]: group.transcript.keep(entry_from(item)) for item in state["entries"]}
    group.resume(state.get("told") or ())


def _held_as(group: Group, conversation: str) -> tuple[int, str | None, str]:
    """The key of a group's conversation among those that are held here."""
    return id(group.session.shared), group.options.scope, conversation


def _id_of(group: Group, given: object) -> str:
    """The id under which a group goes on with a saved conversation: a new one where another holds that already.

    Raises ``StateError`` for what is none.
    """
    if not isinstance(given, str):
        raise StateError(f"the state's conversation has an id that is a text, {found_instead(given)}")
    saved = given
    held = _held_as(group, saved)
    holder = _HOLDERS.get(held)
    if holder is not None and holder is not group and holder.transcript.id == saved:
        # Privacy: of a state that several begin with each one's is a conversation of its own.
        saved = secrets.token_hex(16)
        held = _held_as(group, saved)
    _HOLDERS[held] = group
    return saved


def carry_over(original: Binding, copy: Binding) -> None:
    """Let a deep copy's agents begin with what the original's have seen and decided."""
    pairs = list(zip(original.whole, copy.whole, strict=True))
    news = {id(new.group): (old.group, new.group) for old, new in pairs if old.group and new.group}
    for old, new in news.values():
        load_transcript(new, {**save_transcript(old), "id": new.transcript.id})
    for before, after in pairs:
        if before.member is None or after.member is None or before.group is None or after.group is None:
            continue
        saved = save_member(before.member, before.group)
        load_member(after.member, after.group, {name: one for name, one in saved.items() if name != "entries"})
        after.member.broken |= before.member.broken
