"""OpenAI chat completions, and the many servers that speak it.

What it refuses: developers.openai.com/api/docs/guides/function-calling and the API's own 400s ("An assistant message
with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'", "messages with role 'tool' must
be a response to a preceding message with 'tool_calls'", "Duplicate value for 'tool_call_id'"), read 2026-11-22.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cacheprefix.errors import BodyError, named_field
from cacheprefix.prompt.canonical_json import loads
from cacheprefix.prompt.decisions import Decision, Drop, DropCall, DropResult, DropThinking, ReplaceResult
from cacheprefix.prompt.sections import Kind, Marker, Prompt, Section, Tier
from cacheprefix.prompt.views import CallView, Count, MessageView, make_call, make_message
from cacheprefix.wire.body_copy import BodyCopy
from cacheprefix.wire.messages import (
    Answer,
    Found,
    Message,
    Takes,
    ToolRequest,
    arguments_of,
    as_list,
    listed,
    marks_of,
    replaced,
    requested,
    result_of,
    role_of,
    texts_and_media,
    unknown_tools,
)
from cacheprefix.wire.reader import (
    Fields,
    Reader,
    Split,
    envelope,
    items,
    mapping,
    messages_of,
    open_envelope,
    pop_marker,
    string,
    ttl_field,
)

# A tuple: what stands as a role in a body may be anything, also what has no hash.
SYSTEM_ROLES = ("system", "developer")
FIELDS = Fields(
    path=re.compile(r"/chat/completions$"),
    content=frozenset({"model", "messages", "tools", "functions"}),
    history="messages",
    leading=SYSTEM_ROLES,
    only_marked={"prompt_cache_options": {"mode": "explicit"}},
    schema=("response_format",),
    limits=("max_tokens", "max_completion_tokens"),
    asks_usage={"stream_options": {"include_usage": True}},
    answer="choices",
    # It takes any message, a system one alone too.
    least="system",
    # LiteLLM's completions, where it asks the responses API with them, and Gemini's.
    chained=("previous_response_id",),
    template="cached_content",
)
REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Assistant fields beside the content in which OpenAI-compatible servers carry visible reasoning."""

_ROLES = (*SYSTEM_ROLES, "user", "assistant", "tool", "function")
_ENVELOPE = ("role", "name", "tool_call_id")
_PLAIN = frozenset({*_ENVELOPE, "content"})
_HANDLED = frozenset({*_ENVELOPE, "content", "tool_calls"})
_KINDS: dict[str, Kind] = {"image_url": "image", "input_image": "image"}


def sections(body: Mapping[str, Any], reader: Reader) -> list[Section]:
    """The sections of a chat-completions body in cache order."""
    tools = [one for name in ("tools", "functions") for one in reader.units("tools", name, body.get(name), split_tool)]
    messages = items(body.get("messages", []), "messages")
    return tools + reader.history(messages, split_message, plain=_PLAIN, leading=FIELDS.leading)


def unit(body: Mapping[str, Any], field: str, number: int) -> tuple[Any, Split]:
    """The tool or message that a path names, and how it is read."""
    if field in ("tools", "functions"):
        return body[field][number], split_tool
    return body["messages"][number], split_message


def split_tool(reader: Reader, tier: Tier, path: str, tool: Any) -> list[Section]:
    """A tool is one section: its JSON without cache markers, at either nesting level."""
    plain, marker = pop_marker(mapping(tool, path), path)
    function = plain.get("function")
    if isinstance(function, Mapping):
        inner, inner_marker = pop_marker(function, f"{path}.function")
        if inner is not function:
            plain, marker = {**plain, "function": inner}, marker or inner_marker
    return [reader.json(tier, path, "tool", "tool", plain, marker)]


def split_message(reader: Reader, tier: Tier, path: str, message: Any) -> list[Section]:
    """Reasoning and unknown fields, then content blocks, then tool calls, each a section."""
    if type(message) is dict and len(message) == 2 and message.get("content") and message.get("role"):
        plain_role, text = message["role"], message["content"]
        if type(plain_role) is str and type(text) is str:
            # A role and a text, as most messages are: nothing else is to be looked for.
            return [reader.text(tier, path if tier == "system" else f"{path}.content", envelope(plain_role), text)]
    fields, marker = pop_marker(mapping(message, path), path)
    role = string(fields.get("role"), f"{path}.role")
    head = envelope(role, **{name: fields.get(name) for name in _ENVELOPE[1:]})
    made: list[Section] = []

    def next_head() -> str:
        return "+" if made else head

    for name, value in fields.items():
        if name not in _HANDLED and value is not None:
            made.append(reader.json(tier, f"{path}.{named_field(name)}", "block", next_head(), {name: value}))
    calls = items(fields.get("tool_calls") or [], f"{path}.tool_calls")
    content = fields.get("content")
    if isinstance(content, str):
        if content or not (calls or made):
            where = path if tier == "system" else f"{path}.content"
            made.append(reader.text(tier, where, next_head(), content))
    elif content is not None:
        for index, block in enumerate(items(content, f"{path}.content")):
            where = f"{path}.content[{index}]"
            made.append(_block(reader, tier, where, next_head(), block))
    for index, call in enumerate(calls):
        plain = mapping(call, f"{path}.tool_calls[{index}]")
        made.append(reader.json(tier, f"{path}.tool_calls[{index}]", "tool_use", next_head(), plain))
    if not made:
        made.append(reader.json(tier, path, "block", head, {}))
    return _keep_marker(made, marker)


def _keep_marker(made: list[Section], marker: Marker | None) -> list[Section]:
    if marker is None or made[-1].marker is not None:
        return made
    last = made[-1]
    marked = Section(last.tier, last.path, last.kind, last.head, last.data, last.digest, last.tokens, marker)
    return [*made[:-1], marked]


def _block(reader: Reader, tier: Tier, path: str, head: str, value: Any) -> Section:
    if isinstance(value, str):
        return reader.text(tier, path, head, value)
    block, marker = pop_marker(mapping(value, path), path)
    if block.get("type") == "text" and len(block) == 2 and isinstance(block.get("text"), str):
        return reader.text(tier, path, head, block["text"], marker)
    return reader.json(tier, path, _KINDS.get(str(block.get("type")), "block"), head, block, marker)


def body(prompt: Prompt) -> dict[str, Any]:
    """The canonical chat-completions body of a prompt."""
    told = messages_of((*prompt.tier("system"), *prompt.tier("messages")))
    out: dict[str, Any] = {"messages": [_message(group) for group in told]}
    for name in ("tools", "functions"):
        tools = [
            with_marker(loads(section.data), section.marker)
            for section in prompt.tier("tools")
            if section.path.startswith(name)
        ]
        if tools:
            out[name] = tools
    return out


def _message(group: Sequence[Section]) -> dict[str, Any]:
    """A message out of the sections of one: texts and pictures as its content, calls beside it."""
    message = open_envelope(group[0].head)
    blocks: list[dict[str, Any]] = []
    calls: list[Any] = []
    for section in group:
        if section.kind == "tool_use":
            calls.append(loads(section.data))
        elif section.kind == "text":
            blocks.append(with_marker({"type": "text", "text": section.text}, section.marker))
        else:
            value = loads(section.data)
            if ".content[" in section.path:
                blocks.append(with_marker(value, section.marker))
            else:
                message.update(value)
    plain = len(blocks) == 1 and set(blocks[0]) == {"type", "text"} and blocks[0]["type"] == "text"
    # An empty string beside calls or other fields is no section, an empty text block is one.
    if plain and (blocks[0]["text"] or len(group) == 1):
        message["content"] = blocks[0]["text"]
    elif blocks:
        message["content"] = blocks
    elif calls:
        message["content"] = None
    if calls:
        message["tool_calls"] = calls
    last = group[-1]
    return message if last.kind == "text" or ".content[" in last.path else with_marker(message, last.marker)


def marker_field(ttl: str | None) -> dict[str, Any]:
    """OpenAI's explicit breakpoint, as a field of a block."""
    return {"prompt_cache_breakpoint": {"mode": "explicit", **ttl_field(ttl)}}


def with_marker(block: dict[str, Any], marker: Marker | None) -> dict[str, Any]:
    """The block with OpenAI's explicit breakpoint, where one stood."""
    return block if marker is None else {**block, **marker_field(marker.ttl)}


def carries(prompt: Prompt, section: Section) -> bool:  # noqa: ARG001 - as every API is asked
    """OpenAI takes a breakpoint on content blocks of messages, so not on tools and tool calls."""
    text = section.kind in ("text", "image") and "assistant" not in section.head
    return section.tier != "tools" and text and ".tool_calls[" not in section.path


def mark(copy: BodyCopy, section: Section, number: int, block: int, ttl: str | None) -> None:
    """Set a breakpoint on a content block of message ``number``."""
    if section.tier != "tools":
        copy.mark_content(copy.items("messages"), number, block, "text", marker_field(ttl))


def view(message: Message, path: str, count: Count) -> MessageView:
    """What a message says, calls and answers."""
    role = role_of(message, path)
    marks = marks_of(message)
    content, where = message.get("content"), f"{path}.content"
    if role == "tool":
        call = message.get("tool_call_id") or message.get("name")
        # Chat completions have no error flag; frameworks that keep one leave it in the message.
        flag = message.get("is_error")
        failed = flag if isinstance(flag, bool) else None
        result = result_of(call, message.get("name"), content, where, count, is_error=failed)
        return make_message(role, (), count, results=(result,), **marks)
    texts, media = texts_and_media(content, where)
    thinking = [(-1, str(message[field])) for field in REASONING_FIELDS if message.get(field)]
    calls = [_call(call, f"{path}.tool_calls[{n}]", count) for n, call in enumerate(message.get("tool_calls") or ())]
    legacy = message.get("function_call")
    if legacy is not None and isinstance(legacy, Mapping):
        name = str(legacy.get("name") or "")
        calls.append(make_call(name, name, arguments_of(legacy.get("arguments"), path), count))
    return make_message(role, texts, count, calls=calls, thinking=thinking[:1], media=media, **marks)


def _call(call: Any, path: str, count: Count) -> CallView:
    if not isinstance(call, Mapping):
        raise BodyError(path, f"expected an object, found {type(call).__name__}")
    inner = call.get("function") or call.get("custom") or {}
    arguments = inner.get("arguments", inner.get("input"))
    return make_call(str(call.get("id") or ""), str(inner.get("name") or ""), arguments_of(arguments, path), count)


def changed(message: Message, decisions: Sequence[Decision]) -> Message | None:
    """The message with the decisions carried out; None where nothing is left of it."""
    out: dict[str, Any] = dict(message)
    for decision in decisions:
        if isinstance(decision, (Drop, DropResult)):
            return None
        if isinstance(decision, ReplaceResult):
            out["content"] = replaced(out.get("content"), decision)
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


def answer(data: Mapping[str, Any]) -> Answer:
    """What a completion says and calls."""
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0].get("message"), Mapping):
        raise BodyError("response.choices", "no message in it")
    message = {name: value for name, value in choices[0]["message"].items() if value is not None}
    calls = []
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        calls.append(requested(str(call.get("id")), str(function.get("name")), function.get("arguments")))
    kept = {name: message[name] for name in ("role", "content", "tool_calls", "reasoning_content") if name in message}
    kept.setdefault("role", "assistant")
    kept.setdefault("content", None if calls else "")
    return Answer(str(message.get("content") or ""), tuple(calls), (kept,), data.get("usage"))


def results(told: Sequence[tuple[ToolRequest, str, bool]]) -> list[dict[str, Any]]:
    """A message a result; the API has no flag for an error."""
    return [{"role": "tool", "tool_call_id": call.id, "content": text} for call, text, _ in told]


def tool(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A tool's declaration; ``schema`` has its name, description and parameters."""
    return {"type": "function", "function": dict(schema)}


def declares(given: Mapping[str, Any]) -> bool:
    """Whether a tool is declared in this API's form."""
    return "function" in given


def allowed_choice(names: Sequence[str]) -> Any:
    """The ``tool_choice`` that allows only ``names``."""
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}} if names else "none"


def with_last(history: Sequence[Any], text: str, role: str) -> list[Any]:
    """The messages with a text behind them."""
    return [*history, {"role": role, "content": text}]


def errors(body: Mapping[str, Any], takes: Takes) -> Found:  # noqa: ARG001 - as every API is asked
    """What the API would refuse a body for, in the order in which it stands."""
    messages = body.get("messages")
    if not listed(messages) or not messages:
        yield "messages", "expected a list of at least one message"
        return
    awaited: list[str] = []
    for at, message in enumerate(messages):
        path = f"messages[{at}]"
        if not isinstance(message, Mapping):
            yield path, f"expected an object, found {type(message).__name__}"
            continue
        role = message.get("role")
        if role == "tool":
            call = message.get("tool_call_id")
            if call in awaited:
                awaited.remove(call)
            else:
                yield path, f"answers the call {call!r}, which does not await a result here"
            yield from not_filled(message.get("content"), path, calls=False)
            continue
        if awaited:
            yield path, f"stands where the results of the calls {', '.join(map(repr, awaited))} belong"
            awaited = []
        if role not in _ROLES:
            yield f"{path}.role", f"expected one of {', '.join(_ROLES)}, found {role!r}"
            continue
        calls = message.get("tool_calls")
        if calls is not None and (not listed(calls) or not calls):
            yield f"{path}.tool_calls", "expected a list of at least one call, or none at all"
            calls = None
        for number, call in enumerate(calls or ()):
            name = call.get("id") if isinstance(call, Mapping) else None
            if not isinstance(name, str) or not name:
                yield f"{path}.tool_calls[{number}].id", "a call has an id"
            elif name in awaited:
                yield f"{path}.tool_calls[{number}].id", f"two calls of one message have the id {name!r}"
            else:
                awaited.append(name)
        other = any(message.get(name) for name in ("function_call", "audio", "refusal"))
        yield from not_filled(message.get("content"), path, calls=bool(calls) or other)
    if awaited:
        yield f"messages[{len(messages)}]", f"missing: the results of the calls {', '.join(map(repr, awaited))}"
    tools = body.get("tools")
    if tools is not None and (not listed(tools) or not tools):
        yield "tools", "expected a list of at least one tool, or none at all"
    if not tools and not body.get("functions"):
        # OpenAI refuses both settings without tools, whatever they say.
        for name in ("tool_choice", "parallel_tool_calls"):
            if body.get(name) is not None:
                yield name, "is only allowed when tools are specified"
    else:
        yield from unknown_choice(body)


def not_filled(content: Any, path: str, *, calls: bool) -> Found:
    """OpenAI takes an empty string, but neither null without calls nor an empty list."""
    if content is None and not calls:
        yield f"{path}.content", "expected text or a list of blocks, found null"
    elif listed(content) and not content and not calls:
        yield f"{path}.content", "expected at least one block"


def unknown_choice(body: Mapping[str, Any]) -> Found:
    """The names in OpenAI's ``tool_choice`` that no tool has."""
    choice = body.get("tool_choice")
    if not isinstance(choice, Mapping):
        return
    inner = choice.get("allowed_tools", choice)
    some = choice.get("type") == "allowed_tools"
    wanted = as_list(inner.get("tools") if isinstance(inner, Mapping) else None) if some else [choice]
    names = {tool_name(one) for one in as_list(body.get("tools"))}
    yield from unknown_tools((name for one in wanted if (name := tool_name(one))), names)


def tool_name(tool: Any) -> str:
    """The name of a tool that stands by itself or inside a declaration of chat completions; empty without one."""
    inner = tool.get("function") or tool.get("custom") if isinstance(tool, Mapping) else None
    held = inner if isinstance(inner, Mapping) else tool
    return str(held.get("name") or "") if isinstance(held, Mapping) else ""
