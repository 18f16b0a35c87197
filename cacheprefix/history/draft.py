"""A history while compaction policies change it: what is left, what was decided, and what is protected."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cacheprefix.history.groups import Group, groups_of, is_open, reasons_of
from cacheprefix.history.joints import Joints
from cacheprefix.history.replaying import Item, changed, summary_view
from cacheprefix.history.shape import Shape
from cacheprefix.prompt.decisions import Decision, Drop, DropCall, DropResult, DropThinking, Insert, ReplaceResult
from cacheprefix.prompt.views import Count, MessageView

_GONE: list[Decision] = [Drop(-1)]
_TOLD: frozenset[type] = frozenset((ReplaceResult, DropThinking))
"""Decisions that need no note of a removal: a replaced result says so itself, thinking needs none."""


@dataclass(slots=True)
class Draft:
    """A history being compacted; all indexes are positions in ``whole``."""

    whole: Sequence[MessageView]
    """The history as it would be sent without this compaction."""
    origins: Sequence[int]
    """For each item the index of its native message; for a text inserted by the ledger, of the message behind it."""
    texts: Mapping[int, str]
    """The ledger's addresses of the texts that it inserted, by index."""
    count: Count
    static_tokens: int
    groups: Sequence[Group]
    """Tool calls with their results, by index."""
    views: list[MessageView | None] = field(init=False)
    """Each item as it is now; None where it is removed."""
    decided: dict[int, list[Decision]] = field(default_factory=dict)
    inserted: dict[int, Insert] = field(default_factory=dict)
    """New texts by the index of the item they stand before."""
    tokens: int = field(init=False)
    alive: list[int] = field(init=False)
    results_at: list[int] = field(init=False)
    thinking_at: list[int] = field(init=False)
    bound: set[int] = field(default_factory=set)
    """Items that lost their thinking since the provider accepts it only behind the prefix it was made under."""
    _owner: dict[int, list[Group]] | None = None
    _reasons: dict[int, list[int]] = field(default_factory=dict)
    """For each reasoning item the items made by it: it is removed once all of them are."""
    units: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """For an item all items that must be removed with it, in order; an item without an entry goes alone."""

    def __post_init__(self) -> None:
        whole = self.whole
        self.views = list(whole)
        self.alive = list(range(len(whole)))
        self.results_at = [index for index, view in enumerate(whole) if view.results]
        self.thinking_at = [index for index, view in enumerate(whole) if view.thinking]
        self.tokens = self.static_tokens + sum([view.tokens for view in whole])
        units = self.units
        for group in self.groups:
            unit = _unit(group)
            for index in unit:
                units[index] = tuple(sorted({*units[index], *unit})) if index in units else unit
        if any(view.item for view in whole):
            self._reasons = {index: made for index, made in reasons_of(whole).items() if made}
            for index, made in self._reasons.items():
                units[index] = tuple(sorted({index, *made, *(at for one in made for at in units.get(one, ()))}))

    @classmethod
    def of(cls, shape: Shape, items: Sequence[Item] | None, count: Count, static_tokens: int) -> Draft:
        """A draft of a history as the ledger has it sent (``items``); ``items`` is None where it is sent unchanged."""
        if items is None:
            return cls(shape.views, range(len(shape.views)), {}, count, static_tokens, shape.groups)
        whole = [item.view for item in items]
        origins = [item.index for item in items]
        texts = {at: item.address for at, item in enumerate(items) if item.inserted}
        return cls(whole, origins, texts, count, static_tokens, groups_of(whole))

    def take(self, decisions: Iterable[Decision], free: Sequence[bool]) -> None:
        """Carry decisions out: a call goes with its results, and items that are not ``free`` stay unchanged."""
        made = list(decisions)
        if not made:
            return
        drops = [decision.index for decision in made if isinstance(decision, Drop)]
        if len(drops) == len(made):
            self._drop(drops, free)
            made = []
        for decision in made:
            if isinstance(decision, Drop):
                self._drop((decision.index,), free)
            elif isinstance(decision, Insert):
                self.insert(decision)
            elif free[decision.index]:
                if isinstance(decision, (DropCall, DropResult)):
                    self._drop_pair(decision, free)
                else:
                    self._change(decision)
        views = self.views
        for index, made_for in self._reasons.items():
            if all(views[at] is None for at in made_for):
                self.remove(index)
        if any(views[index] is None for index in self.alive):
            self._settle(self.groups)

    def _settle(self, groups: Sequence[Group]) -> None:
        """Renew the lists of the items, results, thinking and tool calls that are left."""
        views = self.views
        self.alive = [index for index, view in enumerate(views) if view is not None]
        self.results_at = [index for index in self.alive if self.whole[index].results]
        self.thinking_at = [index for index in self.alive if self.whole[index].thinking]
        self.groups = [group for group in groups if views[group.index] is not None]

    def before_first_change(self) -> int:
        """Tokens of the request before the first changed item: the part that the provider still has cached."""
        first = self.first_change()
        return self.static_tokens + sum([view.tokens for view in self.whole[:first]])

    def first_change(self) -> int | None:
        """Index of the first item that is changed, removed or preceded by a new text; None where nothing changed."""
        return min([*self.decided, *self.inserted], default=None)

    def insert(self, decision: Insert) -> None:
        """Put a text before an item, moved to before the tool call that it would split; replaces one already there."""
        gone = {index for index, view in enumerate(self.views) if view is None}
        decision = replace(decision, index=Joints(self.views, groups_of(self.whole), gone).before(decision.index))
        old = self.inserted.get(decision.index)
        if old is not None:
            self.tokens -= summary_view(old.role, old.text, self.count).tokens
        self.inserted[decision.index] = decision
        self.tokens += summary_view(decision.role, decision.text, self.count).tokens

    def lost(self) -> list[MessageView]:
        """The messages that were removed or lost a result, as they were before; old summaries included."""
        return [self.whole[index] for index in sorted(self.decided) if self._loses(index)]

    def lost_messages(self) -> tuple[int, ...]:
        """Where the messages of ``lost`` stand in the framework's history, which has no summaries."""
        return tuple(self.origins[at] for at in sorted(self.decided) if at not in self.texts and self._loses(at))

    def _loses(self, index: int) -> bool:
        return self.views[index] is None or any(isinstance(d, (ReplaceResult, DropResult)) for d in self.decided[index])

    def place_of_loss(self) -> int | None:
        """Index of the first item that was removed or lost a result; where it answers a call, of the call's message."""
        for index in sorted(self.decided):
            if self._loses(index):
                return min(self.units.get(index, (index,)))
        return None

    def taken_out(self) -> Iterator[int]:
        """Items that were removed, or lost a call or a result with no text in its place."""
        return (index for index, made in self.decided.items() if not _TOLD.issuperset(map(type, made)))

    @property
    def lacks(self) -> bool:
        """Whether anything was taken out."""
        return next(self.taken_out(), None) is not None

    def removes_at_most(self, tokens: int) -> bool:
        """Whether all that was taken out has at most ``tokens`` tokens."""
        views, whole = self.views, self.whole
        for index in self.taken_out():
            view = views[index]
            tokens -= whole[index].tokens - (0 if view is None else view.tokens)
            if tokens < 0:
                return False
        return True

    def give_back(self) -> None:
        """Put back all that was taken out."""
        for index in list(self.taken_out()):
            view = self.views[index]
            self.tokens += self.whole[index].tokens - (0 if view is None else view.tokens)
            self.views[index] = self.whole[index]
            del self.decided[index]
        self._settle(groups_of(self.whole))

    def says_so(self, place: int) -> bool:
        """Whether a new text, or a summary beside ``place``, already tells the model that something was removed."""
        before = next((view for view in reversed(self.views[:place]) if view is not None), None)
        behind = next((view for view in self.views[place:] if view is not None), None)
        return bool(self.inserted) or any(view is not None and view.summary for view in (before, behind))

    def remove(self, index: int) -> None:
        """Take an item out, whatever it is."""
        view = self.views[index]
        if view is not None:
            # One shared list for all removed items: thousands go at a time, and nothing is decided on them again.
            self.decided[index] = _GONE
            self.tokens -= view.tokens
            self.views[index] = None

    def _drop(self, indexes: Sequence[int], free: Sequence[bool]) -> None:
        """Remove messages that are free to go, each with all that belongs to it."""
        views, units, decided = self.views, self.units, self.decided
        for index in indexes:
            view = views[index]
            if view is None:
                continue
            unit = units.get(index)
            if unit is not None:
                self._drop_unit(index, unit, free)
            elif free[index]:
                decided[index] = _GONE
                self.tokens -= view.tokens
                views[index] = None

    def _drop_unit(self, index: int, unit: Sequence[int], free: Sequence[bool]) -> None:
        """Remove a message with its calls, results and reasoning, where all of them are free to go."""
        views, decided = self.views, self.decided
        for at in unit:
            if not free[at]:
                return
        for at in unit:
            view = views[at]
            if view is None:
                continue
            # A user message may hold results and text: the results go with their call, the text stays.
            if view.results and (view.texts or view.media > 0) and (at != index or view.is_prompt):
                for result in view.results:
                    self._change(DropResult(at, result.part))
            else:
                decided[at] = _GONE
                self.tokens -= view.tokens
                views[at] = None

    def _drop_pair(self, decision: DropCall | DropResult, free: Sequence[bool]) -> None:
        """Remove a call and its results, whichever of them the decision names, where they are free to go."""
        for group in self._owners(decision.index):
            for call in group.calls:
                answers = [(at, result) for at, result in group.results if result.call_id == call.id]
                if isinstance(decision, DropCall):
                    meant = group.index == decision.index and call.id == decision.call_id
                else:
                    place = (decision.index, decision.part)
                    meant = any((at, result.part) == place for at, result in answers)
                if meant and all(free[at] for at in (group.index, *(at for at, _ in answers))):
                    self._change(DropCall(group.index, call.id))
                    for at, result in answers:
                        self._change(DropResult(at, result.part))

    def _owners(self, index: int) -> Sequence[Group]:
        """The groups that an item belongs to; most compactions never ask."""
        if self._owner is None:
            self._owner = {}
            for group in groups_of(self.whole):
                for at in {group.index, *(place for place, _ in group.results)}:
                    self._owner.setdefault(at, []).append(group)
        return self._owner.get(index, ())

    def _change(self, decision: Decision) -> None:
        view = self.views[decision.index]
        if view is None or decision in self.decided.get(decision.index, ()):
            return
        new = changed(view, (decision,), self.count)
        self.decided.setdefault(decision.index, []).append(decision)
        self.tokens += (0 if new is None else new.tokens) - view.tokens
        self.views[decision.index] = new


def relaxations(views: Sequence[MessageView], keep_turns: int) -> list[tuple[int, bool]]:
    """Protections from the strongest to the weakest, as (index from which all is kept, whether user messages stay).

    First the last ``keep_turns`` turns, then half as many, down to one; then so the last steps inside the last turn (an
    assistant message with what follows it), down to the current one; at last that step without the user messages.
    """
    # Walk backwards until ``keep_turns`` turns are found: what is older plays no part.
    turns: list[int] = []
    in_turn: list[int] = []
    for index in range(len(views) - 1, -1, -1):
        view = views[index]
        if not turns and view.role == "assistant":
            in_turn.append(index)
        elif view.key is None and view.is_prompt:
            turns.append(index)
            if len(turns) >= keep_turns:
                break
    turns.reverse()
    last_turn = turns[-1] if turns else 0
    in_turn = [index for index in reversed(in_turn) if index > last_turn]
    edges: list[int] = []
    keep = keep_turns
    while keep >= 1:
        edges.append(turns[-keep] if keep <= len(turns) else 0)
        keep //= 2
    keep = max(keep_turns, 1)
    while keep >= 1:
        edges.append(in_turn[-keep] if keep <= len(in_turn) else last_turn)
        keep //= 2
    ordered = sorted(set(edges))
    return [*((edge, True) for edge in ordered), (ordered[-1], False)]


def head_of(views: Sequence[MessageView], tokens: int) -> int:
    """Index of the first item behind the first ``tokens`` of the history, never between a call and its result."""
    edge = 0
    waiting: set[str] = set()
    for index, view in enumerate(views):
        if view.role != "system" and view.key is None:
            tokens -= view.tokens
        if tokens < 0 or view.summary:
            break
        waiting -= {result.call_id for result in view.results}
        waiting |= {call.id for call in view.calls}
        if not waiting:
            edge = index + 1
    return edge


@dataclass(frozen=True, slots=True)
class Protection:
    """Which items may be removed or cleared: never system text, durable context, pins, the task or an open call."""

    words: Sequence[bool]
    """For each item whether it may be touched where user messages may be removed too."""
    rest: Sequence[bool]
    """For each item whether it may be touched where user messages stay."""
    summaries: Sequence[int]
    """Indexes of summaries that may be replaced wherever they stand."""
    end: int
    """Index of the open call's message; nothing from there on is touched. The history's length without one."""

    @classmethod
    def of(cls, views: Sequence[MessageView], kept: Collection[int] = ()) -> Protection:
        """The protections of a history; ``kept`` are the indexes of summaries that stay."""
        said = {index for index, view in enumerate(views) if view.role == "user" and view.is_prompt}
        task = max(said, default=-1)
        words = [view.role != "system" and view.key is None and not view.pinned for view in views]
        rest = words.copy()
        for index in said:
            rest[index] = words[index] and bool(views[index].results)
        if said:
            words[task] = rest[task] = False
        end = len(views)
        if is_open(views):
            end = max(index for index, view in enumerate(views) if view.calls)
            # Parallel calls that are items of their own stand in a row, and are one step.
            while end and views[end].item and views[end - 1].calls:
                end -= 1
        summaries = [at for at, view in enumerate(views) if view.summary and not view.pinned and at not in kept]
        for index in kept:
            words[index] = rest[index] = False
        return cls(words, rest, summaries, end)

    def free(self, head: int, edge: int, *, keep_users: bool) -> list[bool]:
        """For each item whether it may be touched, if items before ``head`` and from ``edge`` on are kept."""
        edge = max(head, min(edge, self.end))
        chosen = self.rest if keep_users else self.words
        free = [False] * head + list(chosen[head:edge]) + [False] * (len(chosen) - edge)
        for index in self.summaries:
            free[index] = True
        return free


def _unit(group: Group) -> tuple[int, ...]:
    """Indexes of a call's message and of the messages that answer it, which are removed together."""
    if len(group.results) == 1:
        return (group.index, group.results[0][0])
    return (group.index, *dict.fromkeys([at for at, _ in group.results]))


def loosen(draft: Draft, end: int, *, moved: bool) -> bool:
    """Remove the thinking behind the draft's first change; False, with nothing removed, where some must stay.

    Provider's rule: thinking is accepted only behind the prefix it was made under. ``end`` is where an open call
    begins: its thinking must be sent back as it is. With ``moved`` the front of the history changes as well (zones,
    durable context), so that all thinking is behind a change.
    """
    first = 0 if moved else draft.first_change()
    if first is None:
        return True
    views = draft.views
    behind = [at for at in draft.thinking_at if at >= first and (view := views[at]) is not None and not view.pinned]
    if any(at >= end for at in behind):
        return False
    made = [DropThinking(at, one.part) for at in behind if (view := views[at]) is not None for one in view.thinking]
    draft.take(made, [True] * len(views))
    draft.bound.update(behind)
    return True
