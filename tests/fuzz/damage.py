"""Sound request bodies and log entries, and what breaks them: one node replaced, removed or doubled."""

from __future__ import annotations

import copy
import json
import random

BODIES = {
    "openai-chat": {
        "model": "gpt-5.2",
        "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
        "messages": [
            {"role": "system", "content": "Be brief. " * 400},
            {"role": "user", "content": [{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {}}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "found"},
        ],
        "tool_choice": "auto",
    },
    "openai-responses": {
        "model": "gpt-5.6",
        "instructions": "Be brief. " * 400,
        "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}],
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Look"}]},
            {"type": "reasoning", "id": "r1", "summary": []},
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "found"},
        ],
    },
    "anthropic": {
        "model": "claude-sonnet-4-6",
        "max_tokens": 100,
        "system": [{"type": "text", "text": "Be brief. " * 400, "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        "tools": [{"name": "look", "input_schema": {"type": "object"}}],
        "messages": [
            {"role": "user", "content": "Look"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "tool_use", "id": "t1", "name": "look", "input": {}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "found"}]},
        ],
    },
    "gemini": {
        "model": "gemini-2.5-pro",
        "systemInstruction": {"parts": [{"text": "Be brief. " * 400}]},
        "tools": [{"functionDeclarations": [{"name": "look", "parameters": {"type": "OBJECT"}}]}],
        "contents": [
            {"role": "user", "parts": [{"text": "Look"}]},
            {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {"out": "found"}}}]},
        ],
    },
    "bedrock": {
        "modelId": "anthropic.claude-sonnet-4-5-20250929-v1:0",
        "system": [{"text": "Be brief. " * 400}, {"cachePoint": {"type": "default"}}],
        "toolConfig": {"tools": [{"toolSpec": {"name": "look", "inputSchema": {"json": {"type": "object"}}}}]},
        "messages": [
            {"role": "user", "content": [{"text": "Look"}]},
            {"role": "assistant", "content": [{"toolUse": {"toolUseId": "u1", "name": "look", "input": {}}}]},
            {"role": "user", "content": [{"toolResult": {"toolUseId": "u1", "content": [{"text": "found"}]}}]},
        ],
    },
}
USAGES = {
    "openai-chat": {"prompt_tokens": 900, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 0}},
    "openai-responses": {"input_tokens": 900, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 0}},
    "anthropic": {
        "input_tokens": 5,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 895,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 895},
        "output_tokens": 3,
    },
    "gemini": {"promptTokenCount": 900, "cachedContentTokenCount": 0, "candidatesTokenCount": 3},
    "bedrock": {"inputTokens": 5, "cacheReadInputTokens": 0, "cacheWriteInputTokens": 895, "outputTokens": 3},
}
NONSENSE = (
    None,
    True,
    -1,
    2**70,
    1e308,
    float("nan"),
    "",
    "\ud800",
    "\x00",
    "x" * 5_000,
    [],
    {},
    [[]],
    [None],
    {"type": None},
    {"type": "text"},
    {"": ""},
    {"role": 3, "content": [[{}]]},
)


def entries():
    """A native log entry for each form, with usage and times."""
    provider = {"anthropic": "anthropic", "gemini": "google", "bedrock": "bedrock"}
    return [
        {
            "ts": 1_760_000_000 + at,
            "provider": provider.get(api, "openai"),
            "session": "s",
            "agent": "a",
            "headers": {"anthropic-beta": "x"},
            "request": body,
            "usage": USAGES[api],
            "scope": "t1",
            "diagnostics": {"cache_miss_reason": {"type": "system_changed"}},
            "events": [{"type": "compaction"}],
            "response_started_ts": 1_760_000_001 + at,
            "response_ended_ts": 1_760_000_002 + at,
        }
        for at, (api, body) in enumerate(BODIES.items())
    ]


def damaged(value, seed):
    """A copy with one to three nodes replaced by nonsense, removed, doubled or put somewhere else."""
    rng = random.Random(seed)
    value = copy.deepcopy(value)
    for _ in range(rng.randint(1, 3)):
        nodes = list(_nodes(value))
        if not nodes:
            return value
        holder, key = rng.choice(nodes)
        what = rng.randrange(4)
        if what == 0:
            holder[key] = copy.deepcopy(rng.choice(NONSENSE))
        elif what == 1:
            del holder[key]
        elif what == 2 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        else:
            other, place = rng.choice(nodes)
            holder[key] = copy.deepcopy(other[place])
    return value


def torn(text, seed):
    """Bytes of a log with a few bytes changed, removed or repeated."""
    rng = random.Random(seed)
    raw = bytearray(text)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(raw))
        end = min(len(raw), at + rng.randint(1, 40))
        what = rng.randrange(4)
        if what == 0:
            raw[at] = rng.randrange(256)
        elif what == 1:
            del raw[at:end]
        elif what == 2:
            raw[at:at] = raw[at:end]
        else:
            raw[at:end] = bytes(rng.randrange(256) for _ in range(end - at))
        if not raw:
            return b""
    return bytes(raw)


def log_bytes():
    """A sound log."""
    return b"\n".join(json.dumps(entry).encode() for entry in entries()) + b"\n"


def _nodes(value):
    items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    for key, inner in items:
        yield value, key
        if isinstance(inner, (dict, list)):
            yield from _nodes(inner)
