"""A draft's changes in the words of the ledger."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cacheprefix.context._decisions import DropCall, DropThinking, ReplaceResult
from cacheprefix.context._draft import Draft
from cacheprefix.context._plan import Clearing
from cacheprefix.context._replay import addresses, is_placeholder
from cacheprefix.context._views import MessageView


@dataclass(slots=True)
class Record:
    """What a draft's changes become in the ledger."""

    entries: list[tuple[str, str, str]] = field(default_factory=list)
    clearings: list[Clearing] = field(default_factory=list)
    summary_at: str = ""


def record(
    draft: Draft,
    views: Sequence[MessageView],
    inserts: Mapping[str, str],
) -> Record:
    """A draft's changes as ledger entries; ``inserts`` is what the ledger has of them already."""
    out = Record()
    if not draft.decided and not draft.inserted:
        return out
    messages, results = addresses(views)
    first = last = -1
    for position, (view, item) in enumerate(zip(draft.views, draft.items, strict=True)):
        if view is None:
            if item.inserted:
                out.entries.append(("actions", f"{item.address}/i", "d"))
            else:
                first, last = (item.index if first < 0 else first), item.index
            continue
        if first >= 0:
            out.entries.append(("actions", messages[first], f"r:{messages[last]}"))
            first = -1
        decisions = draft.decided.get(position)
        if decisions is None:
            continue
        thinking = False
        for decision in decisions:
            if isinstance(decision, ReplaceResult):
                at = results[item.index, decision.part]
                _record_clear(out, decision, views[item.index], at)
            elif isinstance(decision, DropThinking):
                thinking = True
            elif isinstance(decision, DropCall):
                numbers = [n for n, call in enumerate(views[item.index].calls) if call.id == decision.call_id]
                out.entries.extend(("actions", f"{messages[item.index]}/c{n}", "c") for n in numbers)
        if thinking:
            out.entries.append(("actions", f"{messages[item.index]}/t", "t"))
    if first >= 0:
        out.entries.append(("actions", messages[first], f"r:{messages[last]}"))
    for position, new in draft.inserted.items():
        # The text stands before its item; a new place in front of an old text is that text's own place.
        at = next(messages[item.index] for item in draft.items[position:] if not item.inserted)
        if at in inserts:
            at = f"{at}~{len(inserts)}"
        out.summary_at = at
        out.entries.append(("inserts", at, json.dumps([new.role, new.text])))
    return out


def _record_clear(out: Record, decision: ReplaceResult, view: MessageView, address: str) -> None:
    result = next(result for result in view.results if result.part == decision.part)
    if is_placeholder(decision.text):
        out.clearings.append(Clearing(address, result.tokens, result.text or ""))
    else:
        out.entries.append(("actions", address, f"={json.dumps(decision.text)}"))
