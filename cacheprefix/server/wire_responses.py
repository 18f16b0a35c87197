"""OpenAI responses: what goes out, as the openai SDK reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cacheprefix.profiles import Profile
from cacheprefix.server.outcome import CacheOutcome
from cacheprefix.server.replies import ScriptedCall, ScriptedTurn, event, identifier, pieces, report
from cacheprefix.server.script import Asked
from cacheprefix.server.wire_chat import check, choose, error

__all__ = ["CALL_ID", "EARLY", "answer", "asked", "check", "error", "events", "items", "usage"]

CALL_ID = "call_"
EARLY = 2


def asked(body: Mapping[str, Any]) -> Asked:
    """What a responses body asks of the answer."""
    tools = {
        str(one["name"]): one.get("parameters") or {}
        for one in body.get("tools") or []
        if isinstance(one, Mapping) and "name" in one
    }
    choice, allowed = choose(body.get("tool_choice"))
    form = (body.get("text") or {}).get("format") if isinstance(body.get("text"), Mapping) else None
    schema: Any = None
    if isinstance(form, Mapping) and form.get("type") == "json_schema":
        schema = form.get("schema")
    elif isinstance(form, Mapping) and form.get("type") == "json_object":
        schema = {"type": "object"}
    limit = body.get("max_output_tokens")
    return Asked(
        stream=body.get("stream") is True,
        tools=tools,
        choice=choice,
        allowed=allowed,
        parallel=body.get("parallel_tool_calls") is not False,
        schema=schema if isinstance(schema, Mapping) else None,
        max_output=limit if isinstance(limit, int) else None,
    )


def usage(outcome: CacheOutcome, output: int, profile: Profile) -> dict[str, Any]:
    """``input_tokens`` includes what was read and written (openai SDK, ``ResponseUsage``)."""
    details = {"cached_tokens": outcome.read_tokens, "cache_write_tokens": outcome.written_tokens}
    made: dict[str, Any] = {
        "input_tokens": outcome.input_tokens,
        "input_tokens_details": details,
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": outcome.input_tokens + output,
    }
    return report(made, profile, outcome)


def items(turn: ScriptedTurn) -> list[dict[str, Any]]:
    """The output items: reasoning, a message, function calls."""
    made: list[dict[str, Any]] = []
    if turn.thinking:
        made.append(_reasoning(turn))
    if turn.text or not turn.calls:
        made.append(_message(turn, turn.text))
    made += [_call(turn, number, call) for number, call in enumerate(turn.calls)]
    return made


def answer(turn: ScriptedTurn) -> dict[str, Any]:
    """A completed ``response``."""
    short = turn.stop == "length"
    made = _frame(turn, "incomplete" if short else "completed", items(turn))
    made["incomplete_details"] = {"reason": "max_output_tokens"} if short else None
    made["usage"] = turn.usage
    return made


def events(turn: ScriptedTurn) -> Iterator[bytes]:
    """The typed events of a streamed response, numbered."""
    number = -1

    def send(kind: str, **fields: Any) -> bytes:
        nonlocal number
        number += 1
        return event({"type": kind, "sequence_number": number, **fields}, kind)

    begun = {**_frame(turn, "in_progress", []), "usage": None}
    yield send("response.created", response=begun)
    yield send("response.in_progress", response=begun)
    for index, item in enumerate(items(turn)):
        where = {"output_index": index, "item_id": item["id"]}
        if item["type"] == "message":
            part = item["content"][0]
            empty = {**part, "text": ""}
            yield send(
                "response.output_item.added", output_index=index, item={**item, "status": "in_progress", "content": []}
            )
            yield send("response.content_part.added", **where, content_index=0, part=empty)
            for piece in pieces(turn.text):
                yield send("response.output_text.delta", **where, content_index=0, delta=piece, logprobs=[])
            yield send("response.output_text.done", **where, content_index=0, text=turn.text, logprobs=[])
            yield send("response.content_part.done", **where, content_index=0, part=part)
        elif item["type"] == "function_call":
            begun_item = {**item, "status": "in_progress", "arguments": ""}
            yield send("response.output_item.added", output_index=index, item=begun_item)
            for piece in pieces(item["arguments"]):
                yield send("response.function_call_arguments.delta", **where, delta=piece)
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield send("response.function_call_arguments.done", **where, **done)
        else:
            yield send("response.output_item.added", output_index=index, item=item)
        yield send("response.output_item.done", output_index=index, item=item)
    kind = "response.incomplete" if turn.stop == "length" else "response.completed"
    yield send(kind, response=answer(turn))


def _frame(turn: ScriptedTurn, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    """A response object as the Responses API has it, around its output."""
    body = turn.body
    return {
        "id": identifier("resp_", turn.seed),
        "object": "response",
        "created_at": turn.created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": body.get("metadata") or {},
        "model": turn.model,
        "output": output,
        "parallel_tool_calls": turn.asked.parallel,
        "previous_response_id": body.get("previous_response_id"),
        "prompt_cache_key": body.get("prompt_cache_key"),
        "reasoning": body.get("reasoning") or {"effort": None, "summary": None},
        "service_tier": "default",
        "store": body.get("store", True),
        "temperature": body.get("temperature", 1.0),
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools") or [],
        "top_p": body.get("top_p", 1.0),
        "truncation": "disabled",
        "user": body.get("user"),
    }


def _message(turn: ScriptedTurn, text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "id": identifier("msg_", turn.seed),
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [part],
    }


def _reasoning(turn: ScriptedTurn) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": turn.thinking}]
    return {"id": identifier("rs_", turn.seed), "type": "reasoning", "summary": summary}


def _call(turn: ScriptedTurn, number: int, call: ScriptedCall) -> dict[str, Any]:
    return {
        "id": identifier("fc_", turn.seed, number),
        "type": "function_call",
        "status": "completed",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
    }
