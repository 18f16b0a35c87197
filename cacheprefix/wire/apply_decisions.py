"""Carry out decisions on message dicts. Pure: a new list; whatever no decision names is the same object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cacheprefix.errors import SetupError
from cacheprefix.prompt.decisions import Decision, Drop, DropCall, DropResult, DropThinking, Insert, ReplaceResult
from cacheprefix.prompt.views import Role
from cacheprefix.wire.message_views import MARKS, REASONING_FIELDS, Form

Message = Mapping[str, Any]


def apply(messages: Sequence[Message], decisions: Iterable[Decision], api: Form) -> list[Message]:
    """The messages with the decisions carried out, in the form they came in.

    A message that a decision leaves without content, calls and results is left out: no provider
    takes an empty message. A reasoning item of the responses form stays or goes with the item behind it,
    since the API takes neither alone. Raises ``SetupError`` for a decision beyond the end of the list.
    """
    gone: set[int] = set()
    partial: list[Decision] = []
    for decision in decisions:
        if not 0 <= decision.index < len(messages) + isinstance(decision, Insert):
            raise SetupError(f"{decision} names no message: there are {len(messages)}")
        if isinstance(decision, Drop):
            gone.add(decision.index)
        else:
            partial.append(decision)
    return kept(messages, partial, gone, api)


def kept(messages: Sequence[Message], decisions: Iterable[Decision], gone: set[int], api: Form) -> list[Message]:
    """``apply`` without ``gone``, the indexes of messages that go as a whole: those may be many thousands."""
    by_index: dict[int, list[Decision]] = {}
    inserts: dict[int, list[Insert]] = {}
    for decision in decisions:
        if isinstance(decision, Insert):
            inserts.setdefault(decision.index, []).append(decision)
        else:
            by_index.setdefault(decision.index, []).append(decision)
    if not by_index and not inserts and not gone:
        return list(messages)
    if api == "openai-responses":
        gone = _with_reasoning(messages, by_index, gone)
    out: list[Message] = []
    for index, message in enumerate(messages):
        if index in inserts:
            out.extend(text_message(new.role, new.text, summary=new.summary) for new in inserts[index])
        if index in gone:
            continue
        mine = by_index.get(index)
        if mine is None:
            out.append(message)
            continue
        changed = _APPLY[api](message, mine)
        if changed is not None:
            out.append(changed)
    if len(messages) in inserts:
        out.extend(text_message(new.role, new.text, summary=new.summary) for new in inserts[len(messages)])
    return out


def text_message(
    role: Role, text: str, key: str | None = None, *, pinned: bool = False, summary: bool = False
) -> dict[str, Any]:
    """A message of one text, the same in all forms; key, pin and summary flag go into its marks."""
    message: dict[str, Any] = {"role": role, "content": text}
    marks: dict[str, Any] = {}
    if key is not None:
        marks["key"] = key
    if pinned:
        marks["pinned"] = True
    if summary:
        marks["summary"] = True
    if marks:
        message[MARKS] = marks
    return message


def sendable(messages: Iterable[Message]) -> list[Message]:
    """The messages without this room's marks; a message that has none is the same object."""
    return [
        {name: value for name, value in message.items() if name != MARKS} if MARKS in message else message
        for message in messages
    ]


def _openai(message: Message, decisions: Sequence[Decision]) -> Message | None:
    out: dict[str, Any] = dict(message)
    for decision in decisions:
        if isinstance(decision, (Drop, DropResult)):
            return None
        if isinstance(decision, ReplaceResult):
            out["content"] = _replaced(out.get("content"), decision)
        elif isinstance(decision, DropThinking):
            for name in REASONING_FIELDS:
                out.pop(name, None)
        elif isinstance(decision, DropCall):
            calls = [call for call in out.get("tool_calls") or () if call.get("id") != decision.call_id]
            out.pop("tool_calls", None)
            if calls:
                out["tool_calls"] = calls
            legacy = out.get("function_call")
            if legacy and legacy.get("name") == decision.call_id:
                del out["function_call"]
    empty = not out.get("content") and not out.get("tool_calls") and not out.get("function_call")
    return None if empty and out.get("role") == "assistant" and "audio" not in out else out


def _anthropic(message: Message, decisions: Sequence[Decision]) -> Message | None:
    content = message.get("content")
    if any(isinstance(decision, Drop) for decision in decisions):
        return None
    if not isinstance(content, Sequence) or isinstance(content, str):
        return message
    gone: set[int] = set()
    new: dict[int, Mapping[str, Any]] = {}
    for decision in decisions:
        if isinstance(decision, (DropResult, DropThinking)):
            gone.add(decision.part)
        elif isinstance(decision, ReplaceResult):
            block: Mapping[str, Any] = new.get(decision.part) or content[decision.part]
            new[decision.part] = {**block, "content": _replaced(block.get("content"), decision)}
        elif isinstance(decision, DropCall):
            gone |= {
                part
                for part, block in enumerate(content)
                if isinstance(block, Mapping)
                and block.get("type") == "tool_use"
                and block.get("id") == decision.call_id
            }
    kept = [new.get(part, block) for part, block in enumerate(content) if part not in gone]
    # Thinking cannot stand alone: the API wants an answer or a call after it.
    if all(isinstance(block, Mapping) and block.get("type") in ("thinking", "redacted_thinking") for block in kept):
        return None
    return {**message, "content": kept}


def _responses(item: Message, decisions: Sequence[Decision]) -> Message | None:
    out: dict[str, Any] = dict(item)
    for decision in decisions:
        if isinstance(decision, (Drop, DropResult, DropCall)):
            return None
        if isinstance(decision, ReplaceResult):
            out["output"] = _replaced(out.get("output"), decision, "input_text")
    return out


def _with_reasoning(items: Sequence[Message], by_index: dict[int, list[Decision]], gone: set[int]) -> set[int]:
    """Give each reasoning item the fate of the calls or the answer it was made for."""
    bound = set(gone)
    behind: list[bool] = []
    for index in range(len(items) - 1, -1, -1):
        kind = str(items[index].get("type") or "message")
        if kind == "reasoning":
            by_index.pop(index, None)
            if behind:
                bound.discard(index)
            if behind and all(behind):
                bound.add(index)
        elif kind.endswith("_call") or items[index].get("role") == "assistant":
            dropped = any(isinstance(decision, DropCall) for decision in by_index.get(index, ()))
            behind.append(index in gone or dropped)
        else:
            behind = []
    return bound


def _replaced(content: Any, decision: ReplaceResult, kind: str = "text") -> Any:
    """String content stays a string; in blocks the first text takes the new one, other texts go."""
    if not isinstance(content, Sequence) or isinstance(content, str):
        return decision.text
    out: list[Any] = []
    placed = False
    for block in content:
        is_text = isinstance(block, str) or (isinstance(block, Mapping) and isinstance(block.get("text"), str))
        if is_text and not placed:
            out.append(decision.text if isinstance(block, str) else {**block, "text": decision.text})
            placed = True
        elif not is_text and decision.keep_media:
            out.append(block)
    if not placed:
        out.insert(0, {"type": kind, "text": decision.text})
    return out


_APPLY: dict[Form, Callable[[Message, Sequence[Decision]], Message | None]] = {
    "openai-chat": _openai,
    "openai-responses": _responses,
    "anthropic": _anthropic,
}
