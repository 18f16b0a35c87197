"""What an agent's and a team's saved state carry for us, beside AutoGen's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cacheprefix.adapter import economics
from cacheprefix_autogen.own_rounds import Turn
from cacheprefix_autogen.transcript import Entry, entry_from

if TYPE_CHECKING:
    from cacheprefix_autogen.binding import Binding
    from cacheprefix_autogen.group import Group
    from cacheprefix_autogen.member import Member

VERSION = 1


def save_member(member: Member, group: Group) -> dict[str, Any]:
    """What one agent has seen, by message id; the messages too, where no team's state holds them."""
    view = member.view
    if view is None:
        return {}
    group.heed()
    state: dict[str, Any] = {
        "version": VERSION,
        "view": [entry.id for entry in view.entries],
        "own": [entry.id for entry in view.pending()],
        "keeps": member.keeps_layout,
        "before": member.before,
        "turns": [(turn.start, turn.end, turn.at) for turn in member.turns],
        **({"told": member.told} if member.told else {}),
    }
    if not group.team:
        state |= save_transcript(group)
    return state


def load_member(member: Member, group: Group, state: Mapping[str, Any] | None) -> None:
    """Take over what an agent had seen; of a state that was saved without us, what its own context holds."""
    member.reset()
    if member.view is None:
        return
    if not state or state.get("version") != VERSION:
        if not group.from_thread:
            group.session.attempt("take over", member.take_over, None)
        return
    if "entries" in state:
        load_transcript(group, state)
    known = group.loaded
    member.view.restore([known[i] for i in state["view"] if i in known], [known[i] for i in state["own"] if i in known])
    # Of a state that names none, all is from before.
    member.before = state.get("before", 0)
    member.turns = [Turn(*turn) for turn in state.get("turns", ())]
    member.told = [(at, one) for at, one in state.get("told", ())]
    member.keeps_layout = member.resumed = bool(state.get("keeps"))
    member.broken = any(i not in known for i in (*state["view"], *state["own"]))


def save_transcript(group: Group) -> dict[str, Any]:
    """The messages that anyone in the group has in view, once each, and the decisions taken on tool results."""
    entries: dict[str, Entry] = {}
    group.heed()
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
        "joins": {caller.name: caller.joins for caller in group.callers},
        "entries": [entry.as_dict() for entry in ordered],
        "conversation": group.conversation.to_json(places=False),
        **({"told": [entry.id for entry in group.told_so_far]} if group.told_so_far else {}),
        "places": group.session.places(group.conversation),
        **({"costs": alone} if alone else {}),
    }


def load_transcript(group: Group, state: Mapping[str, Any]) -> None:
    """Hold saved messages ready for the members, and take over the decisions."""
    session = group.session
    group.transcript.id = state["id"]
    if state["prefix"] != session.prefix.key:
        session.note(
            "the state was saved under another prefix (system text or tools changed since): "
            "the first requests after loading are paid in full once"
        )
    if group.conversation.state.messages:
        # What was appended since the state was saved is not in it.
        session.forget(group.transcript.id, group.options.scope)
    # Of a team, or an agent by itself, the state holds all that was decided on what it holds: in the process that went
    # on, too, nothing that came behind it counts.
    several = not group.team and len(group.members) > 1
    group.conversation.restore(state["conversation"], rebase=True, merge=several)
    group.session.restore_places(group.conversation, state.get("places") or {})
    for caller in group.callers:
        caller.joins = (state.get("joins") or {}).get(caller.name)
    saved = state.get("lanes")
    costs = state.get("costs") or {}
    if saved is not None:
        saved = {name: economics.Lane(tuple(lane), *costs.get(name, ())) for name, lane in saved.items()}
    group.lanes = saved
    group.loaded = {item["id"]: group.transcript.keep(entry_from(item)) for item in state["entries"]}
    group.resume(state.get("told") or ())


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
