"""What the core decides on a history (large results, compaction), carried out on LangChain's own messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from cacheprefix.adapter import Decision, Drop, DropCall, DropResult, DropThinking, Insert, ReplaceResult
from cacheprefix.wire import apply
from cacheprefix_langgraph.views import CALLS, KEY, SUMMARY, THINKING, is_raw, is_text, raw_form, text_in


class Decided(NamedTuple):
    """A history after its decisions."""

    messages: list[BaseMessage]
    border: int
    """Where the message that stood at the given border stands now."""
    restored: tuple[tuple[str, str], ...]
    """Shortened tool results: the text sent and the text the application had."""
    lossless: bool
    """Whether every message is still there, so that ``restored`` gives the application's own history back."""


def carried_out(messages: Sequence[BaseMessage], decisions: Sequence[Decision], border: int) -> Decided:
    """The messages with the decisions carried out; one that no decision names stays the very same object.

    A message that loses its calls and has no words is left out, as no provider takes an empty one.
    """
    if not decisions:
        return Decided(list(messages), border, (), lossless=True)
    inserts: dict[int, list[Insert]] = defaultdict(list)
    others: dict[int, list[Decision]] = defaultdict(list)
    for decision in decisions:
        if isinstance(decision, Insert):
            inserts[decision.index].append(decision)
        else:
            others[decision.index].append(decision)
    out: list[BaseMessage] = []
    restored: list[tuple[str, str]] = []
    moved = border
    for index in range(len(messages) + 1):
        if index == border:
            # A summary at the border stands for what was before it.
            moved = len(out) + len(inserts[index])
        out += [_inserted(new) for new in inserts[index]]
        if index == len(messages):
            break
        mine = others.get(index)
        message = messages[index]
        changed = message if mine is None else _changed(message, mine)
        if changed is None:
            continue
        restored += [
            (one.text, _result_text(message, one.part)) for one in mine or () if isinstance(one, ReplaceResult)
        ]
        out.append(changed)
    lossless = all(isinstance(decision, ReplaceResult) for decision in decisions)
    return Decided(out, moved, tuple(restored), lossless)


def _inserted(new: Insert) -> BaseMessage:
    """A message that a decision puts into the history."""
    marks: dict[str, Any] = {SUMMARY: True} if new.summary else {} if new.key is None else {KEY: new.key}
    made = SystemMessage if new.role == "system" else AIMessage if new.role == "assistant" else HumanMessage
    return made(new.text, additional_kwargs=marks)


def _changed(message: BaseMessage, decisions: Sequence[Decision]) -> BaseMessage | None:
    """A message after its decisions: a changed copy, or nothing."""
    if is_raw(message):
        form = apply([raw_form(message)], [replace(one, index=0) for one in decisions], "anthropic")
        return message.model_copy(update={"content": form[0]["content"]}) if form else None
    if any(isinstance(decision, (Drop, DropResult)) for decision in decisions):
        return None
    for decision in decisions:
        if isinstance(decision, ReplaceResult) and isinstance(message, ToolMessage):
            message = message.model_copy(update={"content": _replaced(message.content, decision)})
    calls = {decision.call_id for decision in decisions if isinstance(decision, DropCall)}
    parts = {decision.part for decision in decisions if isinstance(decision, DropThinking)}
    return without(message, calls, parts) if calls or parts else message


def _result_text(message: BaseMessage, part: int) -> str:
    """The text of a tool's result: of a message, or of a block of one in Anthropic's shape."""
    content: Any = message.content
    block = content[part] if isinstance(content, list) and part < len(content) else None
    if not (isinstance(block, Mapping) and block.get("type") == "tool_result"):
        return message.text
    inner = block.get("content") or ""
    return inner if isinstance(inner, str) else "\n".join(text_in(one) for one in inner if is_text(one))


def _replaced(content: Any, decision: ReplaceResult) -> Any:
    """A tool result's content with its text cut; images beside the text stay where the decision says so."""
    kept = [block for block in content if not is_text(block)] if isinstance(content, list) else []
    return [{"type": "text", "text": decision.text}, *kept] if kept and decision.keep_media else decision.text


def without(message: BaseMessage, calls: set[str], parts: set[int]) -> BaseMessage | None:
    """An assistant's message without some calls and thinking; None when nothing is said any more."""
    content: Any = message.content
    if isinstance(content, list):
        content = [block for part, block in enumerate(content) if not _goes(block, part, calls, parts)]
        if all(isinstance(block, Mapping) and block.get("type") in THINKING for block in content):
            content = []
    update: dict[str, Any] = {"content": content}
    left: list[Any] = []
    if isinstance(message, AIMessage):
        left = [call for call in message.tool_calls if call["id"] not in calls]
        update["tool_calls"] = left
        extra = dict(message.additional_kwargs)
        raw = extra.pop("tool_calls", None)
        if raw:
            kept = [call for call in raw if call.get("id") not in calls]
            extra |= {"tool_calls": kept} if kept else {}
        update["additional_kwargs"] = extra
    return message.model_copy(update=update) if content or left else None


def _goes(block: Any, part: int, calls: set[str], parts: set[int]) -> bool:
    """Whether a content block is one of the calls, or one of the parts, that are taken out."""
    if not isinstance(block, Mapping):
        return False
    kind = block.get("type")
    if kind in CALLS:
        return block.get("call_id") in calls or block.get("id") in calls
    # The responses API takes a reasoning item and what it was made for only together.
    return kind != "reasoning" and part in parts
