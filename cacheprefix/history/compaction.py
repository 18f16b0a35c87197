"""Compaction: decides when a history is shortened, what is removed, and what that costs; replay carries it out.

A plan is made and priced before anything changes. It is due when the window forces it, when the
cache is cold anyway, or when it pays within the turns that can be expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from cacheprefix.errors import BudgetError, SetupError
from cacheprefix.history.budget import ToolResultBudget
from cacheprefix.history.compaction_plan import STUCK, Plan, Prices, Reason, estimate
from cacheprefix.history.draft import Draft, Protection, head_of, loosen, relaxations
from cacheprefix.history.ledger import Ledger
from cacheprefix.history.policies import clear_thinking, clear_tool_results, drop_tool_uses, sliding_window
from cacheprefix.history.record import actions_of, record
from cacheprefix.history.replaying import sent, summary_view
from cacheprefix.history.shape import Shape
from cacheprefix.history.situation import Policy, Situation, referenced_by_later
from cacheprefix.history.summary import (
    INSTRUCTION,
    REMOVED,
    Removed,
    Summarise,
    SummaryRequest,
    extract,
    number_of,
    numbered,
    summarised,
)
from cacheprefix.history.window import RequestBudget
from cacheprefix.history.zones import Consolidate, concatenate
from cacheprefix.prompt import estimate_tokens
from cacheprefix.prompt.decisions import Drop, Insert
from cacheprefix.prompt.views import Count, MessageView

_FRESH = 3
"""Number of newest results that are cleared last: three of four later quotes of results are of these
(tau-bench, benchmarks/bench_compaction.py)."""
_LEAST_SUMMARY = 40
"""Tokens."""
_ALL_GIVEN_UP = 99
"""A number of protections given up that is more than there are: for a request that must fit its window."""
_SCARCE = 0.9
"""A compaction must bring the request under this share of its trigger, or it would come back at once."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """Settings of compaction. A user's limit is the ``trigger``; the target is half of it.

    ``keep_turns`` counts turns of the user, and inside one long turn the assistant's steps.
    ``policies`` replaces the built-in policies. ``thinking_bound`` is the provider's rule, when it has one,
    that ties thinking blocks to the prefix they were made under; thinking is then never cleared for its own sake,
    and goes with every other change before it.
    """

    trigger: int | None = 180_000
    """Tokens of the whole request; None takes the model's window less the reserve."""
    target: int | None = None
    """Tokens to come down to; half of the trigger by default."""
    keep_turns: int = 8
    keep_users: bool = True
    keep_head: float = 0.2
    """Share of the target that stays at the start: already in the cache, and it holds the task."""
    batch: float = 0.25
    """Least share of the trigger that one removal takes out (cue's rule)."""
    slack: float = 0.5
    """Share of the way from target to trigger above which protections (last turns, user messages) are given up: 0
    always reaches the target (fewer and deeper compactions, cheaper), 0.5 keeps the last turns longer."""
    policies: tuple[Policy, ...] | None = None
    consolidate: Consolidate = concatenate
    """Joins durable context under one key, in a framework's history and where a conversation names no other."""
    summarise: Summarise | Literal["fork"] | None = extract
    """Writes the text that replaces removed messages; ``"fork"`` asks the model by way of ``Plan.request``. None puts
    nothing in their place, not even a note."""
    summary_tokens: int | None = None
    """Tokens of a summary; by default a twelfth of what the target leaves for the history. Under 40: a note instead."""
    summaries: int | None = None
    """How many of the newest summaries are kept, each numbered; None for a single one, which includes the older."""
    horizon: float | None = None
    """Turns within which a compaction must pay; by default as many as there were so far."""
    thinking_bound: str = ""

    def __post_init__(self) -> None:
        if self.trigger is not None and self.trigger < 1:
            raise SetupError(f"Compaction.trigger must be a positive number of tokens, found {self.trigger}")
        if self.target is not None and self.target < 1:
            raise SetupError(f"Compaction.target must be a positive number of tokens, found {self.target}")
        if self.target is not None and self.trigger is not None and self.target > self.trigger:
            raise SetupError(f"Compaction.target {self.target} is above its trigger {self.trigger}")
        if self.keep_turns < 1:
            raise SetupError(f"Compaction.keep_turns must be at least 1, found {self.keep_turns}")
        if self.summaries is not None and self.summaries < 1:
            raise SetupError(f"Compaction.summaries must be at least 1, found {self.summaries}")
        if not all(0 <= share < 1 for share in (self.keep_head, self.batch, self.slack)):
            raise SetupError("Compaction.keep_head, batch and slack are shares: 0 or more and below 1")

    def row(self) -> tuple[Policy, ...]:
        """The policies in the order in which they are tried."""
        if self.policies is not None:
            return self.policies
        return (
            clear_tool_results(keep_last=_FRESH),
            drop_tool_uses(),
            clear_thinking(),
            clear_tool_results(None, keep_last=_FRESH),
            sliding_window(batch=self.batch),
        )

    def limits(self, request: RequestBudget | None) -> tuple[int, int]:
        """Trigger and target in tokens of the whole request."""
        room = None if request is None else request.room
        trigger = self.trigger if self.trigger is not None else room
        if trigger is None:
            raise SetupError("Compaction(trigger=None) needs a RequestBudget with the model's window")
        if room is not None:
            trigger = min(trigger, room)
        target = trigger // 2 if self.target is None else min(self.target, trigger)
        return trigger, max(target, 1)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a plan depends on beside the history."""

    static_tokens: int = 0
    """System text, tools and volatile text: whatever is sent beside the history."""
    request: RequestBudget | None = None
    prices: Prices = field(default_factory=Prices)
    front_moves: bool = False
    """Whether a compaction also changes what stands before the history (zones, durable context)."""
    budget: ToolResultBudget | None = None
    """The tool-result budget, which has the user's own strategies that the ledger names."""
    readable: bool = False
    """Whether cleared results will be kept in a store, so that their placeholders name the tool to read them."""


def plan_compaction(
    views: Sequence[MessageView],
    ledger: Ledger,
    settings: Compaction | None = None,
    around: Circumstances | None = None,
    *,
    count: Count | None = None,
    force: bool = False,
) -> Plan:
    """Plan a compaction of a history under its ledger; nothing changes before ``Plan.commit``.

    ``force`` compacts to the target whatever the trigger and the price say. Raises ``BudgetError`` with ``over_by``
    when even the least that must be sent is above the request budget.
    """
    rules, here, counter = settings or Compaction(), around or Circumstances(), count or estimate_tokens
    shape = Shape(views)
    draft = Draft.of(shape, sent(shape, ledger, here.budget, counter), counter, here.static_tokens)
    before = draft.tokens
    reason = reason_of(rules, here, before, force=force)
    if reason == "none":
        return Plan.nothing(before, here.prices, ledger, counter)
    turns = [view.role for view in draft.whole].count("assistant")
    aims = _Aims.of(rules, here, draft, reason, turns)
    refusals, row = _allowed_policies(rules, draft.whole)
    run = _PolicyRun(draft, row, rules, aims, here.readable, Protection.of(draft.whole, _summaries_kept(rules, draft)))
    run.shorten(here.request)
    summed_up = _insert_notice(draft, rules, aims)
    held, thinking = _thinking_behind(draft, rules, here, reason, run.protection.end)
    # Money: what stands before the first change is still read from the cache.
    kept = here.static_tokens if here.front_moves else draft.before_first_change()
    changes = record(draft, shape, ledger)
    ask = rules.summarise == "fork" and summed_up and bool(changes.summary_at)
    # Money: a summary by the model costs a further request, with the whole history as its input.
    price = estimate(before, draft.tokens, kept, here.prices, asked=before if ask else 0)
    horizon = rules.horizon if rules.horizon is not None else float(max(turns, 1))
    # Money: a compaction that hardly comes below the trigger would be paid for again at once.
    stuck = reason == "trigger" and draft.tokens >= _SCARCE * aims.trigger
    # Money: only one that nothing but the trigger asks for must pay; with a cold cache all is written anew anyway.
    worth = reason != "trigger" or (not stuck and price.pays(horizon))
    return Plan(
        reason,
        before,
        draft.tokens,
        kept,
        price,
        due=bool(changes.entries or changes.clearings) and not held and worth,
        actions=actions_of(draft),
        refusals=(*refusals, *thinking, *((STUCK,) if stuck else ())),
        stuck=stuck,
        request=SummaryRequest(INSTRUCTION, aims.summary, draft.lost_messages()) if ask else None,
        horizon=horizon,
        ledger=ledger,
        entries=tuple(changes.entries),
        clearings=tuple(changes.clearings),
        summary_at=changes.summary_at,
        opening=_summary_opening(rules, draft.whole) if ask else "",
        count=counter,
        shape=shape,
    )


def reason_of(rules: Compaction, around: Circumstances, tokens: int, *, force: bool = False) -> Reason:
    """Why a request of ``tokens`` tokens would be compacted; ``none`` where there is no reason to.

    The window comes first, since it alone must be met. With a cold cache the whole request is written anew in any case,
    so a compaction begins half of the way from target to trigger.
    """
    trigger, target = rules.limits(around.request)
    if around.request is not None and tokens > around.request.room:
        return "window"
    if force:
        return "forced" if tokens > target else "none"
    if around.prices.cold and tokens > (trigger + target) // 2:
        return "cold"
    return "trigger" if tokens > trigger else "none"


def _allowed_policies(rules: Compaction, views: Sequence[MessageView]) -> tuple[tuple[str, ...], tuple[Policy, ...]]:
    """What the provider's rule on thinking forbids, in words, and the policies that may run under it."""
    row = rules.row()
    if not rules.thinking_bound:
        return (), row
    kept = tuple(policy for policy in row if not getattr(policy, "touches_thinking", False))
    if len(kept) == len(row) or not any(view.thinking for view in views):
        return (), kept
    return (f"thinking is kept: {rules.thinking_bound}",), kept


def _role(view: MessageView | None) -> str | None:
    """The role of a message; None for one that is gone."""
    return None if view is None else view.role


@dataclass(frozen=True, slots=True)
class _Aims:
    """How far one compaction goes. All are tokens; those of the request count what is sent beside the history too."""

    trigger: int
    goal: int
    """Of the request, to come down to."""
    ceiling: int
    """Of the request; a protection is given up only while more is left."""
    head: int
    """Of the start of the history, which stays while anything else can go."""
    summary: int
    """That a summary may have; 0 where only a note about the removal is to be written."""
    note: int
    """Of that note; 0 where the settings want neither note nor summary."""
    room: int | None
    """Of a request that the window takes; None where no window counts."""

    @classmethod
    def of(cls, rules: Compaction, around: Circumstances, draft: Draft, reason: Reason, turns: int) -> _Aims:
        """The aims of compacting a draft for a reason, after so many ``turns``."""
        trigger, target = rules.limits(around.request)
        growth = (draft.tokens - around.static_tokens) / max(1, turns)
        # Money: at least four turns lie before the next compaction, but for that no more than half of the target goes.
        goal = max(min(target, int(trigger - 4 * growth)), target // 2)
        # Money: for ``trigger`` and ``cold`` no protection is given up under ``ceiling``, as the next compaction is far
        # off then; for ``window`` and ``forced`` protections are given up until the goal is reached.
        ceiling = goal if reason in ("window", "forced") else int(goal + rules.slack * (trigger - goal))
        history = max(0, target - around.static_tokens)
        head, room = int(rules.keep_head * history), None if around.request is None else around.request.room
        if rules.summarise is None:
            return cls(trigger, goal, ceiling, head, 0, 0, room)
        summary = history // 12 if rules.summary_tokens is None else rules.summary_tokens
        # Below this a summary says nothing and costs its opening words.
        summary = summary if summary >= _LEAST_SUMMARY else 0
        note = summary_view("user", REMOVED, draft.count).tokens
        return cls(trigger, goal, ceiling, head, summary, note, room)

    def fits(self, tokens: int) -> bool:
        """Whether the window takes a request of so many tokens."""
        return self.room is None or tokens <= self.room

    def sums_up(self, draft: Draft) -> bool:
        """Whether a summary fits into the window and is at most half as long as what it replaces."""
        if not self.summary or not self.fits(draft.tokens + self.summary):
            return False
        standing = [view for view in draft.views if view is not None and view.summary]
        return sum(view.tokens for view in (*draft.lost(), *standing)) > 2 * self.summary


@dataclass(slots=True)
class _PolicyRun:
    """Runs the policies on a draft, giving up one protection after another until the goal is reached."""

    draft: Draft
    row: Sequence[Policy]
    rules: Compaction
    aims: _Aims
    readable: bool
    protection: Protection
    failed: frozenset[int] = frozenset()

    def shorten(self, window: RequestBudget | None) -> None:
        """Take out what is to go. Raises ``BudgetError`` when the least that must be sent does not fit ``window``."""
        draft, aims = self.draft, self.aims
        ceiling = min(aims.ceiling, aims.room or aims.ceiling)
        self.relax(max(1, aims.goal - max(aims.summary, aims.note)), ceiling)
        # Provider's rule: the window must be met, so even protected items go; ``check`` raises where it still is not.
        if window is not None and draft.tokens > window.room:
            self.relax_all(max(1, window.room - aims.note))
            window.check(draft.tokens, "the least that can be sent (last turn, pins, durable context)")
        # Money: where the note about the removal would cost as much as was removed, nothing is removed.
        if aims.fits(draft.tokens + aims.note) and draft.removes_at_most(aims.note) and not aims.sums_up(draft):
            draft.give_back()
        self.lead(aims.room)

    def relax(self, goal: int, ceiling: int) -> None:
        """Run the policies down to ``goal`` tokens; a protection is given up only while above ``ceiling`` tokens."""
        draft = self.draft
        referenced = referenced_by_later(draft.whole)
        self.failed = frozenset(at for at in draft.results_at for result in draft.whole[at].results if result.is_error)
        head = head_of(draft.whole, self.aims.head)
        steps = relaxations(draft.whole, self.rules.keep_turns)
        gentle = tuple(policy for policy in self.row if not getattr(policy, "removes_messages", False))
        # First with all protections. Then policies that remove no message, under ever fewer protections, since a
        # cleared result can be read or asked for again. Only then all policies, under ever fewer protections.
        rounds = [
            (0, self.row),
            *((n, gentle) for n in range(1, len(steps))),
            *((n, self.row) for n in range(1, len(steps))),
        ]
        for step, row in rounds:
            if step and draft.tokens <= ceiling:
                return
            edge, users = steps[step]
            free = self.protection.free(head, edge, keep_users=users and self.rules.keep_users)
            for policy in self._order(row, free, draft.tokens - goal):
                if draft.tokens <= goal:
                    return
                self._take_out(policy, free, goal, referenced, step)

    def _order(self, row: Sequence[Policy], free: Sequence[bool], need: int) -> Sequence[Policy]:
        """The policies in order; removal first where all unprotected items must go, as clearing them is wasted."""
        views = self.draft.views
        if self.rules.policies is not None or row is not self.row:
            return row
        loose = sum([view.tokens for at in self.draft.alive if free[at] and (view := views[at]) is not None])
        if loose > need:
            return row
        return (sliding_window(batch=0), *row)

    def relax_all(self, room: int) -> None:
        """Come down to ``room`` tokens by removing the protected head, user messages and referenced results too."""
        edge, _ = relaxations(self.draft.whole, self.rules.keep_turns)[-1]
        free = Protection.of(self.draft.whole).free(0, edge, keep_users=False)
        for policy in (*self.row, sliding_window(batch=0)):
            if self.draft.tokens > room:
                self.failed = frozenset()
                self._take_out(policy, free, room, frozenset(), _ALL_GIVEN_UP)

    def lead(self, room: int | None) -> None:
        """Keep a user message first where the history began with one: some providers refuse any other.

        What stands before the next user message is removed; where it is protected, a note by the user goes before it.
        Raises ``BudgetError`` where that note does not fit into ``room`` tokens.
        """
        draft = self.draft
        if next((view.role for view in draft.whole if view.role != "system"), None) != "user":
            return
        free: Sequence[bool] = ()
        while True:
            first = next((at for at in draft.alive if _role(draft.views[at]) not in ("system", None)), None)
            if first is None or _role(draft.views[first]) == "user":
                return
            if not free:
                edge, _ = relaxations(draft.whole, self.rules.keep_turns)[-1]
                free = self.protection.free(0, edge, keep_users=False)
            before = draft.tokens
            draft.take([Drop(first)], free)
            if draft.tokens == before:
                break
        draft.insert(Insert(first, "user", REMOVED))
        if room is not None and draft.tokens > room:
            over = draft.tokens - room
            raise BudgetError(f"the request is {over} tokens too large for a first message by the user", over)

    def _take_out(self, policy: Policy, free: Sequence[bool], goal: int, referenced: frozenset[int], step: int) -> None:
        """Take out of the draft what one policy names to come down to ``goal`` tokens, as far as it is ``free``.

        ``referenced`` are the messages with results that a later one builds on; ``step`` says how many protections were
        given up.
        """
        draft = self.draft
        situation = Situation(
            views=draft.views,
            alive=draft.alive,
            results_at=draft.results_at,
            thinking_at=draft.thinking_at,
            groups=draft.groups,
            units=draft.units,
            free=free,
            tokens=draft.tokens,
            target=goal,
            window=self.aims.trigger,
            count=draft.count,
            referenced=referenced,
            readable=self.readable,
            step=step,
            failed=self.failed,
        )
        draft.take(policy(situation), free)


def _summaries_kept(rules: Compaction, draft: Draft) -> Sequence[int]:
    """Indexes of the numbered summaries that are kept beside the new one."""
    if rules.summaries is None:
        return ()
    told = [index for index, view in enumerate(draft.whole) if number_of(view)]
    told.sort(key=lambda index: number_of(draft.whole[index]))
    return told[max(0, len(told) - rules.summaries + 1) :]


def _summary_opening(rules: Compaction, whole: Sequence[MessageView]) -> str:
    """The numbered opening of the new summary; empty where the settings keep only one."""
    return "" if rules.summaries is None else numbered(1 + max(map(number_of, whole), default=0))


def _insert_notice(draft: Draft, rules: Compaction, aims: _Aims) -> bool:
    """Insert a summary or a note where the first message was removed; return whether it was a summary.

    A summary, which includes the old ones, where it is worth its length (``_Aims.sums_up``). Otherwise a note, unless
    a text there already says that something was removed, or the window does not take it. Placeholders of cleared
    results need no note.
    """
    place = draft.place_of_loss()
    if place is None or rules.summarise is None:
        return False
    if not aims.sums_up(draft):
        if aims.fits(draft.tokens + aims.note) and draft.lacks and not draft.says_so(place):
            draft.insert(Insert(place, "user", REMOVED))
        return False
    stay = _summaries_kept(rules, draft)
    # Behind the summaries that are kept, as their messages came earlier.
    place = max(place, *(index + 1 for index in stay)) if stay else place
    for index in [index for index, view in enumerate(draft.whole) if view.summary and index not in stay]:
        draft.remove(index)
    kept = [view for view in draft.views if view is not None]
    write = extract if rules.summarise == "fork" else rules.summarise
    opening = _summary_opening(rules, draft.whole)
    text = summarised(Removed(draft.lost(), kept, max(1, aims.summary - draft.count(opening)), draft.count), write)
    text = f"{opening}{text}" if text and text != REMOVED else text
    if text and (text != REMOVED or draft.lacks):
        draft.insert(Insert(place, "user", text))
    return True


def _thinking_behind(
    draft: Draft, rules: Compaction, around: Circumstances, reason: Reason, end: int
) -> tuple[bool, tuple[str, ...]]:
    """Remove the thinking behind the first change: whether the compaction is put off instead, and that in words.

    Provider's rule: thinking is valid only behind the prefix it was made under, so it goes with changes before it.
    That of an open call, which begins at ``end``, must be sent back: then the compaction waits, unless the window
    forces it.
    """
    if not rules.thinking_bound or not draft.thinking_at or draft.first_change() is None:
        return False, ()
    held = not loosen(draft, end, moved=around.front_moves) and reason != "window"
    why = "an open call's thinking keeps its prefix" if held else "thinking behind a change goes with it"
    return held, (f"{why}: {rules.thinking_bound}",)
