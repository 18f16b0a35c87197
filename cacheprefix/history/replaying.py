"""Replay: turns what the ledger recorded about a history into decisions on its messages.

The first decision on a result (keep or cut) is addressed by its content alone, since it is a function of the content.
What a compaction did is addressed by content and occurrence (``digest``, ``digest#1`` for the second occurrence of the
same content): when a tool returns the same text again after its old result was cleared, the new one stays.

A decision applies only where the messages that it names are in this history. A removal and the summary in its place
both name the messages from the first removed one to the last one, and apply where exactly those are found. Anywhere
else (another conversation, a cleared or rewound thread) they have no effect.
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
from cacheprefix.prompt.views import Count, MessageView, ResultView, Role, make_message, with_parts


class Item(NamedTuple):
    """A message as it will be sent: its view after all decisions, and which native message it comes from."""

    view: MessageView
    index: int  # type: ignore[assignment]  # nobody looks for tuple.index on an item
    """Index of the native message; for an inserted text that of the message it stands before."""
    address: str
    """The ledger's address of an inserted text; empty for messages, whose address is computed only when needed."""
    inserted: bool = False


@dataclass(frozen=True, slots=True)
class Replayed:
    """A history with the decisions of its ledger applied."""

    decisions: tuple[Decision, ...]
    items: tuple[Item, ...]
    ledger: Ledger
    """The ledger, with decisions on results that were seen for the first time added."""

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
    """All decisions that apply to a history: recorded ones from the ledger, and new ones by the budget.

    Linear in the number of messages. Raises ``StateError`` as ``budget_results`` does.
    """
    held = holding(views, ledger, budget, how)
    items = _items(views, held.partial, held.texts, how.count, held.gone)
    decisions = [*held.partial, *(Drop(index) for index in sorted(held.gone))]
    decisions += [new for _, new in held.texts]
    return Replayed(tuple(decisions), items, held.ledger)


def sent(shape: Shape, ledger: Ledger, budget: ToolResultBudget | None, count: Count) -> tuple[Item, ...] | None:
    """The history as it will be sent; None where no decision changes it."""
    if not ledger and budget is None:
        return None
    held = holding(shape.views, ledger, budget, Cutting(count), shape)
    if not held.partial and not held.texts and not held.gone:
        return None
    return _items(shape.views, held.partial, held.texts, count, held.gone)


@dataclass(frozen=True, slots=True)
class Holding:
    """What applies to a history; removed messages as a set of indexes, as thousands may be removed at once."""

    partial: Sequence[Decision]
    """Decisions that change a message and do not remove it."""
    gone: set[int]
    """Indexes of the removed messages."""
    texts: Sequence[tuple[str, Insert]]
    """Inserted texts, each with its address in the ledger."""
    ledger: Ledger


def holding(
    views: Sequence[MessageView],
    ledger: Ledger,
    budget: ToolResultBudget | None = None,
    how: Cutting = PLAIN,
    shape: Shape | None = None,
) -> Holding:
    """Find what the ledger and the budget say about a history, for ``replay`` and the like."""
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
        dropped = _removed_by_runs(known, actions)
        blocks = blocks_of(views, joined, known.place) if joined else []
        # An edited history may end with durable context: it stays there, or the request would have no last message.
        step = current_step(known) if blocks else 0
        blocks = [block for block in blocks if max(block.sources) < step]
        dropped.update(index for block in blocks for index in block.sources)
        partial = _partial(known, actions, shown, dropped, readable=how.readable)
        texts = [*texts_of(blocks, views), *_texts(known, actions, inserts)]
        if texts:
            # Provider's rule: no text between a call and its result, or reasoning and its calls. Corrected here, as
            # ledgers of older versions may hold such places.
            joints = Joints(views, known.groups, dropped)
            texts = [(address, replace(new, index=joints.before(new.index))) for address, new in texts]
        # Most stable first, for the cache: the zones, then durable context, then summaries.
        texts.sort(key=lambda entry: (entry[1].index, entry[1].key != ZONES, entry[1].key is None))
    live = [d for d in shown.values() if d.index not in dropped]
    return Holding([*live, *partial], dropped, texts, budgeted.ledger)


def placeholder(name: str, tokens: int, ref: str) -> str:
    """The text in place of a cleared result; it depends on recorded values alone, so that it never changes."""
    where = f"; read_full_result(ref={ref!r}) returns it" if ref else ""
    return f"[old {name or 'tool'} result cleared, {tokens} tokens{where}]"


def is_placeholder(text: str | None) -> bool:
    """Whether a result's text is what ``placeholder`` writes."""
    return text is not None and text.startswith("[old ") and " result cleared, " in text[:300]


def _removed_by_runs(shape: Shape, actions: dict[str, str]) -> set[int]:
    """Indexes of the messages that recorded removals (runs from a first to a last message) take out."""
    dropped: set[int] = set()
    views, place = shape.views, shape.place
    for address, value in actions.items():
        if not value.startswith("r:"):
            continue
        end, _, span = value[2:].partition(":")
        first, last = place.get(address.split("/", 1)[0]), place.get(end)
        # A run whose two ends and messages between are not all here belongs to another history: applied to this one,
        # it would remove messages that no summary covers.
        if first is None or last is None or (span and not shape.holds(span)):
            continue
        dropped.update([at for at, view in enumerate(views[first : last + 1], first) if removable(view)])
    if not dropped:
        return dropped
    for group in shape.groups:
        # Provider's rule: no result without its call. A framework may have edited the history since.
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
    """Recorded decisions that change a message: cleared results, dropped thinking, dropped calls.

    Adds replaced results to ``shown``, and messages that become empty to ``dropped``.
    """
    out: list[Decision] = []
    views, messages = shape.views, shape.messages
    # Most compactions remove whole runs only: then only calls of removed messages need their results looked for.
    runs_only = all(value.startswith("r:") for value in actions.values())
    step = current_step(shape)
    # Provider's rule (Anthropic): the thinking of a call must be sent back while its results are the last message, as
    # in a rewound history. An empty history (rewound to its beginning) has no current step.
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
    """Whether all messages with results of a group are removed."""
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
    """Decisions that drop calls of one group, each with its results; empties ``shown`` of what is dropped."""
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
    """Recorded texts (summaries, notes, zones) that apply to this history, each with its address."""
    out: list[tuple[int, str, Insert]] = []
    place = shape.place
    for address, value in inserts.items():
        # A later summary for the same place carries a number behind the address.
        anchor = address.split("~", 1)[0]
        index = place.get(anchor)
        if index is None or _removed_later(shape, actions.get(f"{address}/i", "")):
            continue
        role, text, *spans = json.loads(value)
        key = ZONES if address.startswith(ZONES, len(anchor)) else None
        # Zones replace no messages and apply always; a summary only where the messages that it sums up are here.
        if key is None and not (all(map(shape.holds, spans)) if spans else _applies(shape, actions.get(anchor, ""))):
            continue
        out.append((index, address, Insert(index, role, text, summary=key is None, key=key)))
    return [(address, new) for _, address, new in sorted(out, key=lambda entry: entry[:2])]


def _removed_later(shape: Shape, action: str) -> bool:
    """Whether a later compaction that applies here removed an inserted text again (its recorded ``action``)."""
    return action == "d" or (action.startswith("d:") and shape.holds(action[2:]))


def _applies(shape: Shape, action: str) -> bool:
    """Whether the removal at a text's place applies here; for ledgers whose texts do not name what they sum up."""
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
    """The history as it will be sent: changed messages, inserted texts, and no removed messages."""
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
    """View of a text that the ledger inserts. One with a key (zones, durable context) is never compacted."""
    return make_message(new.role, (new.text,), count, key=new.key, summary=new.key is None)


def summary_view(role: Role, text: str, count: Count) -> MessageView:
    """View of a summary of removed messages."""
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
                # Already dropped by an earlier decision: a user's policy may name a result twice.
                continue
            # Pictures of a mixed result stay beside the new text unless the decision clears them too.
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
    return with_parts(view, tokens, tuple(calls), tuple(results.values()), tuple(thinking))


def _only_results(view: MessageView) -> bool:
    return bool(view.results) and not view.texts and not view.media
