"""Replay: what the ledger says about a history, as decisions on its messages.

Results are addressed by content alone at first sight, since that decision is a function of content.
What a compaction did is addressed by content and occurrence (``digest``, ``digest#1`` for the second
time the same content stands there): when a tool gives the same text again after its old result was
cleared, the new one is news and stays.

A decision applies only where what it speaks of stands in this history. What a compaction removed, and the summary in
its place, go together: both name the messages from the first one lost to the last one, and hold where those very
messages stand. Anywhere else (another conversation, a cleared or rewound thread) they are dormant.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import NamedTuple

from cacheprefix.history.budget import PLAIN, Cutting, ToolResultBudget, budget_results
from cacheprefix.history.groups import Group
from cacheprefix.history.joints import Joints, current_step, give_back_halves
from cacheprefix.history.ledger import Ledger
from cacheprefix.history.shape import Shape, removable
from cacheprefix.history.zones import ZONES, blocks_of, texts_of
from cacheprefix.prompt.decisions import Decision, Drop, DropCall, DropResult, DropThinking, Insert, ReplaceResult
from cacheprefix.prompt.views import Count, MessageView, ResultView, Role, make_message


class Item(NamedTuple):
    """A message as it will be sent: its view after all decisions, and where it comes from."""

    view: MessageView
    index: int  # type: ignore[assignment]  # nobody looks for tuple.index on an item
    """Index of the native message; for an inserted text that of the message it stands before."""
    address: str
    """The ledger's address of an inserted text; of messages it is worked out when one is needed."""
    inserted: bool = False


@dataclass(frozen=True, slots=True)
class Replayed:
    """A history under its ledger."""

    decisions: tuple[Decision, ...]
    items: tuple[Item, ...]
    ledger: Ledger
    """With the decisions on results that were seen for the first time."""

    @property
    def tokens(self) -> int:
        """Tokens of all messages as they will be sent."""
        return sum(item.view.tokens for item in self.items)


def replay(
    views: Sequence[MessageView],
    ledger: Ledger,
    budget: ToolResultBudget | None = None,
    how: Cutting = PLAIN,
) -> Replayed:
    """All decisions that hold for a history, old ones from the ledger and new ones by the budget.

    Linear in the number of messages. Raises ``StateError`` as ``budget_results`` does.
    """
    held = holding(views, ledger, budget, how)
    items = _items(views, held.partial, held.texts, how.count, held.gone)
    decisions = [*held.partial, *(Drop(index) for index in sorted(held.gone))]
    decisions += [new for _, new in held.texts]
    return Replayed(tuple(decisions), items, held.ledger)


def sent(shape: Shape, ledger: Ledger, budget: ToolResultBudget | None, count: Count) -> tuple[Item, ...] | None:
    """The history as it will be sent; None where it goes out as it is."""
    if not ledger and budget is None:
        return None
    held = holding(shape.views, ledger, budget, Cutting(count), shape)
    if not held.partial and not held.texts and not held.gone:
        return None
    return _items(shape.views, held.partial, held.texts, count, held.gone)


@dataclass(frozen=True, slots=True)
class Holding:
    """What holds for a history, before it is put into decisions: thousands of messages may go at once."""

    partial: Sequence[Decision]
    gone: set[int]
    texts: Sequence[tuple[str, Insert]]
    ledger: Ledger


def holding(
    views: Sequence[MessageView],
    ledger: Ledger,
    budget: ToolResultBudget | None = None,
    how: Cutting = PLAIN,
    shape: Shape | None = None,
) -> Holding:
    """What ``replay`` makes its decisions of."""
    budgeted = budget_results(views, ledger, budget, how)
    # A result stands in one message at one part, so this finds its replacement again.
    shown: dict[tuple[int, int], ReplaceResult] = {(d.index, d.part): d for d in budgeted.decisions}
    actions = ledger.section("actions")
    inserts = ledger.section("inserts")
    joined = ledger.section("blocks")
    dropped: set[int] = set()
    partial: list[Decision] = []
    texts: list[tuple[str, Insert]] = []
    if actions or inserts or joined:
        known = shape or Shape(views)
        dropped = _dropped_runs(known, actions)
        blocks = blocks_of(views, joined, known.place) if joined else []
        # A history may have been edited so that it ends with context: taken away, nobody would be asked anything.
        step = current_step(known) if blocks else 0
        blocks = [block for block in blocks if max(block.sources) < step]
        dropped.update(index for block in blocks for index in block.sources)
        partial = _partial(known, actions, shown, dropped, readable=how.readable)
        texts = [*texts_of(blocks, views), *_texts(known, actions, inserts)]
        if texts:
            # Also what older versions recorded: a text never parts a call from its result or reasoning from its calls.
            joints = Joints(views, known.groups, dropped)
            texts = [(address, replace(new, index=joints.before(new.index))) for address, new in texts]
        # Most stable first: the zones, durable context, and then what stands for a part of the history.
        texts.sort(key=lambda entry: (entry[1].index, entry[1].key != ZONES, entry[1].key is None))
    live = [d for d in shown.values() if d.index not in dropped]
    return Holding([*live, *partial], dropped, texts, budgeted.ledger)


def placeholder(name: str, tokens: int, ref: str) -> str:
    """What stands in the place of a cleared result; a function of recorded values alone."""
    where = f"; read_full_result(ref={ref!r}) returns it" if ref else ""
    return f"[old {name or 'tool'} result cleared, {tokens} tokens{where}]"


def is_placeholder(text: str | None) -> bool:
    """Whether a result's text is what ``placeholder`` writes."""
    return text is not None and text.startswith("[old ") and " result cleared, " in text[:300]


def _dropped_runs(shape: Shape, actions: dict[str, str]) -> set[int]:
    dropped: set[int] = set()
    views, place = shape.views, shape.place
    for address, value in actions.items():
        if not value.startswith("r:"):
            continue
        end, _, span = value[2:].partition(":")
        first, last = place.get(address.split("/", 1)[0]), place.get(end)
        # A run that is found by half says nothing about this history: taking its rest would lose messages of others.
        if first is None or last is None or (span and not shape.holds(span)):
            continue
        dropped.update([at for at, view in enumerate(views[first : last + 1], first) if removable(view)])
    if not dropped:
        return dropped
    for group in shape.groups:
        # A history that a framework has edited must not lose one half of a pair.
        if group.index in dropped:
            for index, _ in group.results:
                if index not in dropped and _only_results(views[index]):
                    dropped.add(index)
    give_back_halves(shape, actions, dropped)
    return dropped


def _partial(
    shape: Shape,
    actions: dict[str, str],
    shown: dict[tuple[int, int], ReplaceResult],
    dropped: set[int],
    *,
    readable: bool,
) -> list[Decision]:
    out: list[Decision] = []
    views, messages = shape.views, shape.messages
    # Most compactions take whole runs and nothing else; then only halves of what went are left to look for.
    runs_only = all(value.startswith("r:") for value in actions.values())
    step = current_step(shape)
    # A rewound history may end with results again: what they were asked for with stays, as Anthropic wants it back.
    # Of an empty history, as after a rewind to its beginning, there is no step.
    asking = step if 0 <= step < len(views) and views[step].calls else len(views)
    for index, view in enumerate(() if runs_only else views):
        if index in dropped:
            continue
        if view.thinking and actions.get(f"{messages[index]}/t", "") in (("t", "b") if index < asking else ("b",)):
            out.extend(DropThinking(index, thought.part) for thought in view.thinking)
        for result in view.results:
            value = actions.get(shape.results[index, result.part], "")
            text = ""
            if value.startswith("x:"):
                _, tokens, ref = value.split(":", 2)
                text = placeholder(result.name, int(tokens), ref if readable else "")
            elif value.startswith("="):
                text = json.loads(value[1:])
            if value:
                shown[index, result.part] = ReplaceResult(index, result.part, text, keep_media=False)
    for group in shape.groups:
        if group.index >= step or (runs_only and (group.index not in dropped or _all_in(dropped, group))):
            continue
        out.extend(_dropped_calls(group, views, actions, messages[group.index], shown, dropped))
    return out


def _all_in(dropped: set[int], group: Group) -> bool:
    for index, _ in group.results:  # noqa: SIM110 - called for every group, where a generator costs most
        if index not in dropped:
            return False
    return True


def _dropped_calls(
    group: Group,
    views: Sequence[MessageView],
    actions: dict[str, str],
    address: str,
    shown: dict[tuple[int, int], ReplaceResult],
    dropped: set[int],
) -> list[Decision]:
    out: list[Decision] = []
    gone_with_message = group.index in dropped
    gone: set[str] = set()
    for number, call in enumerate(group.calls):
        if gone_with_message or f"{address}/c{number}" in actions:
            gone.add(call.id)
            if not gone_with_message:
                out.append(DropCall(group.index, call.id))
    for index, result in group.results:
        if result.call_id in gone and index not in dropped:
            shown.pop((index, result.part), None)
            out.append(DropResult(index, result.part))
    if gone and not gone_with_message and len(gone) == len(group.calls) and not views[group.index].texts:
        dropped.add(group.index)
    return out


def _texts(shape: Shape, actions: dict[str, str], inserts: dict[str, str]) -> list[tuple[str, Insert]]:
    out: list[tuple[int, str, Insert]] = []
    place = shape.place
    for address, value in inserts.items():
        # A later summary for the same place carries a number behind the address.
        anchor = address.split("~", 1)[0]
        index = place.get(anchor)
        if index is None or _taken_out(shape, actions.get(f"{address}/i", "")):
            continue
        role, text, *spans = json.loads(value)
        key = ZONES if address.startswith(ZONES, len(anchor)) else None
        # The application's zones stand for nothing that was said; a summary goes with what it sums up.
        if key is None and not (all(map(shape.holds, spans)) if spans else _stands(shape, actions.get(anchor, ""))):
            continue
        out.append((index, address, Insert(index, role, text, summary=key is None, key=key)))
    return [(address, new) for _, address, new in sorted(out, key=lambda entry: entry[:2])]


def _taken_out(shape: Shape, action: str) -> bool:
    """Whether a later compaction, which holds here, took a text out again."""
    return action == "d" or (action.startswith("d:") and shape.holds(action[2:]))


def _stands(shape: Shape, action: str) -> bool:
    """Whether the removal that a text stands for holds here; of ledgers that do not say what a text speaks of."""
    if not action.startswith("r:"):
        return True
    end, _, span = action[2:].partition(":")
    return shape.holds(span) if span else end in shape.place


def _items(
    views: Sequence[MessageView],
    decisions: Sequence[Decision],
    texts: Sequence[tuple[str, Insert]],
    count: Count,
    dropped: set[int],
) -> tuple[Item, ...]:
    by_index: dict[int, list[Decision]] = {}
    for decision in decisions:
        by_index.setdefault(decision.index, []).append(decision)
    before: dict[int, list[tuple[str, Insert]]] = {}
    for address, new in texts:
        before.setdefault(new.index, []).append((address, new))
    if not by_index and not before and not dropped:
        return tuple(map(Item, views, range(len(views)), repeat("")))
    out: list[Item] = []
    for index in range(len(views) + 1):
        for address, new in before.get(index, ()):
            out.append(Item(_inserted_view(new, count), index, address, inserted=True))
        if index == len(views) or index in dropped:
            continue
        view: MessageView | None = views[index]
        if index in by_index and view is not None:
            view = changed(view, by_index[index], count)
        if view is not None:
            out.append(Item(view, index, ""))
    return tuple(out)


def _inserted_view(new: Insert, count: Count) -> MessageView:
    """View of a text that the ledger puts in; one with a key is no compaction's to take out again."""
    return make_message(new.role, (new.text,), count, key=new.key, summary=new.key is None)


def summary_view(role: Role, text: str, count: Count) -> MessageView:
    """View of a summary."""
    return make_message(role, (text,), count, summary=True)


def changed(view: MessageView, decisions: Sequence[Decision], count: Count) -> MessageView | None:
    """The view as it is after its own decisions; None when nothing is left of the message."""
    results = {result.part: result for result in view.results}
    calls = list(view.calls)
    thinking = list(view.thinking)
    tokens = view.tokens
    for decision in decisions:
        if isinstance(decision, ReplaceResult):
            old = results.get(decision.part)
            if old is None:
                # Gone by an earlier decision: a user's policy may name a result twice.
                continue
            # The media of a mixed result stay beside the new text unless the decision clears them too.
            media = old.tokens - count(old.text or "") if decision.keep_media and old.text else 0
            new = ResultView(
                old.call_id,
                old.name,
                old.digest,
                count(decision.text) + media,
                old.is_error,
                decision.text,
                old.kind,
                old.part,
            )
            results[decision.part] = new
            tokens += new.tokens - old.tokens
        elif isinstance(decision, DropResult):
            gone = results.pop(decision.part, None)
            tokens -= gone.tokens if gone else 0
        elif isinstance(decision, DropCall):
            tokens -= sum(call.tokens for call in calls if call.id == decision.call_id)
            calls = [call for call in calls if call.id != decision.call_id]
        elif isinstance(decision, DropThinking):
            tokens -= sum(thought.tokens for thought in thinking if thought.part == decision.part)
            thinking = [thought for thought in thinking if thought.part != decision.part]
    if not calls and not results and not view.texts and not view.media:
        return None
    return MessageView(
        view.role,
        view.digest,
        tokens,
        tuple(calls),
        tuple(results.values()),
        tuple(thinking),
        view.key,
        view.pinned,
        view.texts,
        view.media,
        view.summary,
        view.item,
    )


def _only_results(view: MessageView) -> bool:
    return bool(view.results) and not view.texts and not view.media
