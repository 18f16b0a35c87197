"""Turns the changes of a compaction's draft into ledger entries, and joins durable context into blocks."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from cacheprefix.history.compaction_plan import Action, Clearing
from cacheprefix.history.draft import Draft
from cacheprefix.history.groups import turn_starts
from cacheprefix.history.ledger import Ledger
from cacheprefix.history.replaying import is_placeholder
from cacheprefix.history.shape import Shape
from cacheprefix.history.zones import Consolidate, blocks_of, concatenate, joined_text, may_join
from cacheprefix.prompt.decisions import Drop, DropCall, DropResult, DropThinking, ReplaceResult
from cacheprefix.prompt.views import MessageView, digest_of

_NO_BASE: Mapping[str, str] = {}
_KINDS: dict[type, str] = {
    ReplaceResult: "results cleared",
    DropCall: "tool uses dropped",
    DropResult: "tool uses dropped",
    DropThinking: "thinking dropped",
    Drop: "messages removed",
}


@dataclass(slots=True)
class Record:
    """The ledger entries of a draft's changes; results to be cleared get theirs once their text is stored."""

    entries: list[tuple[str, str, str]] = field(default_factory=list)
    clearings: list[Clearing] = field(default_factory=list)
    summary_at: str = ""


def record(draft: Draft, shape: Shape, ledger: Ledger) -> Record:
    """A draft's changes as entries for ``ledger``, whose grammar its module describes."""
    out = Record()
    if not draft.decided and not draft.inserted:
        return out
    span = _span(draft, shape, ledger.section("inserts"))
    _record_changes(out, draft, shape)
    _record_removals(out, draft, shape, ledger.section("actions"), span)
    _record_texts(out, draft, shape, ledger.section("inserts"), span)
    return out


def _record_changes(out: Record, draft: Draft, shape: Shape) -> None:
    """Record what was taken out of messages that stay: results, calls and thinking."""
    for position, (view, index) in enumerate(zip(draft.views, draft.origins, strict=True)):
        decisions = None if view is None else draft.decided.get(position)
        if decisions is None:
            continue
        native, message = shape.views[index], shape.messages[index]
        for decision in decisions:
            if isinstance(decision, ReplaceResult):
                _record_clear(out, decision, native, shape.results[index, decision.part])
            elif isinstance(decision, DropCall):
                numbers = [n for n, call in enumerate(native.calls) if call.id == decision.call_id]
                out.entries.extend(("actions", f"{message}/c{n}", "c") for n in numbers)
        if any(isinstance(decision, DropThinking) for decision in decisions):
            out.entries.append(("actions", f"{message}/t", "b" if position in draft.bound else "t"))


def _record_removals(out: Record, draft: Draft, shape: Shape, actions: Mapping[str, str], span: str) -> None:
    """Record the messages that were removed, each run of neighbours as one entry."""
    messages = shape.messages
    for first, last in _removed_runs(draft):
        # Several recorded runs may begin with the same message: which apply is told by their spans.
        start = messages[first] if messages[first] not in actions else f"{messages[first]}/{digest_of(span)}"
        out.entries.append(("actions", start, f"r:{messages[last]}:{span}"))


def _removed_runs(draft: Draft) -> list[tuple[int, int]]:
    """First and last index of each run of removed messages; a text of the ledger's inside it does not divide it."""
    runs: list[tuple[int, int]] = []
    going_on = False
    for position, (view, index) in enumerate(zip(draft.views, draft.origins, strict=True)):
        if view is not None:
            going_on = False
        elif position not in draft.texts:
            runs.append((runs.pop()[0], index) if going_on else (index, index))
            going_on = True
    return runs


def _record_texts(out: Record, draft: Draft, shape: Shape, inserts: Mapping[str, str], span: str) -> None:
    """Record which earlier texts of the ledger's are gone, and the new one."""
    for position, address in draft.texts.items():
        if draft.views[position] is None:
            out.entries.append(("actions", f"{address}/i", f"d:{span}"))
    for position, new in draft.inserted.items():
        # A text is addressed by the message that it stands before, also with an older inserted text between.
        behind = (n for n in range(position, len(draft.whole)) if n not in draft.texts)
        at = shape.messages[draft.origins[next(behind)]]
        out.summary_at = f"{at}~{len(inserts)}" if at in inserts else at
        out.entries.append(("inserts", out.summary_at, json.dumps([new.role, new.text, span])))


def _span(draft: Draft, shape: Shape, inserts: Mapping[str, str]) -> str:
    """Name the messages from the first to the last change, with those that removed older summaries stood for."""
    spoken: list[int] = []
    for position in {*draft.decided, *draft.inserted}:
        spoken.append(min(draft.origins[position], len(shape.views) - 1))
        value = inserts.get(draft.texts.get(position, ""), "null")
        for span in (json.loads(value) or ())[2:]:
            spoken += [shape.place[end] for end in span.split(":")[:2]]
    return shape.span(min(spoken), max(spoken))


def _record_clear(out: Record, decision: ReplaceResult, view: MessageView, address: str) -> None:
    """Record a result cleared by the built-in placeholder, or replaced by a user's policy with its own text."""
    result = next(result for result in view.results if result.part == decision.part)
    if is_placeholder(decision.text):
        out.clearings.append(Clearing(address, result.tokens, result.text or ""))
    else:
        out.entries.append(("actions", address, f"={json.dumps(decision.text)}"))


def actions_of(draft: Draft) -> tuple[Action, ...]:
    """The changes of a draft counted by kind, each with the tokens that it takes out."""
    removed = tokens = 0
    counts: dict[str, list[int]] = {}
    for index, decisions in draft.decided.items():
        view = draft.views[index]
        if view is None and isinstance(decisions[-1], Drop):
            removed += 1
            tokens += draft.whole[index].tokens
            continue
        entry = counts.setdefault(_KINDS[type(decisions[0])], [0, 0])
        entry[0] += 1
        entry[1] += draft.whole[index].tokens - (0 if view is None else view.tokens)
    if removed:
        counts["messages removed"] = [removed, tokens]
    for new in draft.inserted.values():
        entry = counts.setdefault("summaries", [0, 0])
        entry[0] += 1
        entry[1] -= draft.count(new.text)
    return tuple(Action(kind, number, tokens) for kind, (number, tokens) in sorted(counts.items()))


def to_join(
    views: Sequence[MessageView], ledger: Ledger, based: Collection[str] = (), *, waits: bool = True
) -> dict[str, list[int]]:
    """Indexes of durable context that is in no block yet and is to be joined, by key.

    With ``waits``, context behind the user's newest message is left for later. A key needs two texts or more, or a
    block, to be joined; for keys in ``based`` one is enough.
    """
    questions = turn_starts(views) if waits else [len(views)]
    ready = [index for index in range(questions[-1]) if may_join(views[index])] if questions else []
    if not ready:
        return {}
    recorded = ledger.section("blocks")
    standing = blocks_of(views, recorded, Shape(views).place) if recorded else []
    held = {index for block in standing for index in block.sources}
    out: dict[str, list[int]] = {}
    for index in ready:
        key = views[index].key
        if index not in held and key is not None:
            out.setdefault(key, []).append(index)
    # A single text of a key right behind the static text is where its block would be: nothing to do.
    front = next(index for index, view in enumerate(views) if view.role != "system")
    lead = next((index for index in range(front, len(views)) if not may_join(views[index])), len(views))
    known = {*based, *(block.key for block in standing)}
    return {key: at for key, at in out.items() if key in known or len(at) > 1 or at[0] >= lead}


def join_context(
    views: Sequence[MessageView],
    ledger: Ledger,
    hook: Consolidate = concatenate,
    base: Mapping[str, str] = _NO_BASE,
    *,
    alone: bool = False,
) -> list[tuple[str, str, str]]:
    """Ledger entries that join durable context into one block for each key; to be used when the prefix changes anyway.

    ``alone`` says that ``views`` are durable context only, so that none of it waits for a message of the user.

    ``hook`` gets the block so far, or ``base``'s text of the key in the shared prefix, and then what was appended
    since. Without a hook a block holds only what was appended, as the base stands before it in the prefix. Raises
    ``SetupError`` when it returns no text.
    """
    based = base if alone and hook is not concatenate else ()
    fresh = to_join(views, ledger, based, waits=not alone)
    if not fresh:
        return []
    shape = Shape(views)
    names, place = shape.messages, shape.place
    standing = {block.key: block for block in blocks_of(views, ledger.section("blocks"), place)}
    entries: list[tuple[str, str, str]] = []
    for key, new in fresh.items():
        old = standing.get(key)
        # In a history that the conversation keeps, the earlier block is a message, which contains the base already.
        fresh_base = hook is not concatenate and key in base and base[key] not in views[new[0]].text
        begun = [base[key]] if fresh_base else []
        begun = [old.text] if old is not None and old.text else begun
        texts = [*begun, *(views[index].text for index in new)]
        plain = hook is concatenate and (old is None or not old.written)
        text = None if plain or (len(texts) == 1 and old is None) else joined_text(key, texts, hook)
        at = [names[index] for index in (*(() if old is None else old.sources), *new)]
        entries.append(("blocks", f"{at[0]}/{digest_of(*at)}", json.dumps([key, at, text])))
    return entries
