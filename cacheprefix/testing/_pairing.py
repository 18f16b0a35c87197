"""Whether tool calls stand with their results in a request body, in the three APIs that chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cacheprefix.prompt import Api


def unpaired(body: Mapping[str, Any], api: Api) -> str:
    """What is wrong with the calls and results of a body; empty when nothing is."""
    if api == "openai-responses":
        return _items(body.get("input"))
    messages = [one for one in body.get("messages") or () if isinstance(one, Mapping)]
    if api == "anthropic":
        return _blocks(messages)
    return _chat(messages) if api == "openai-chat" else ""


def _chat(messages: Sequence[Mapping[str, Any]]) -> str:
    awaited: list[str] = []
    for at, message in enumerate(messages):
        if message.get("role") == "tool":
            if not awaited or message.get("tool_call_id") != awaited[0]:
                return f"messages[{at}] answers {message.get('tool_call_id')!r}, {awaited[:1] or 'nothing'} is awaited"
            awaited.pop(0)
            continue
        if awaited:
            return f"messages[{at}] stands between a call and its results {awaited}"
        awaited = [str(call.get("id")) for call in message.get("tool_calls") or ()]
        if not message.get("content") and not awaited:
            return f"messages[{at}] is empty"
    return f"the last call has no results: {awaited}" if awaited else ""


def _blocks(messages: Sequence[Mapping[str, Any]]) -> str:
    awaited: set[str] = set()
    for at, message in enumerate(messages):
        content = message.get("content")
        blocks = [one for one in content if isinstance(one, Mapping)] if isinstance(content, list) else []
        if not content:
            return f"messages[{at}] is empty"
        answered = {str(one.get("tool_use_id")) for one in blocks if one.get("type") == "tool_result"}
        if answered - awaited:
            return f"messages[{at}] answers {sorted(answered - awaited)}, which nobody asked there"
        if awaited - answered:
            return f"messages[{at}] stands between a call and its results {sorted(awaited - answered)}"
        awaited = {str(one.get("id")) for one in blocks if one.get("type") == "tool_use"}
    return f"the last call has no results: {sorted(awaited)}" if awaited else ""


def _items(given: Any) -> str:
    open_calls: set[str] = set()
    for at, item in enumerate(given if isinstance(given, list) else ()):
        kind, call = item.get("type"), str(item.get("call_id"))
        if kind == "function_call":
            open_calls.add(call)
        elif kind == "function_call_output":
            if call not in open_calls:
                return f"input[{at}] answers {call!r}, which nobody asked before"
            open_calls.discard(call)
        elif kind in (None, "message") and not item.get("content"):
            return f"input[{at}] is empty"
    return f"calls without results: {sorted(open_calls)}" if open_calls else ""
