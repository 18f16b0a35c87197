"""Anthropic messages, direct and through Vertex or Bedrock's InvokeModel.

What it refuses: platform.claude.com/docs/en/agents-and-tools/tool-use/implement-tool-use (a result directly behind its
call, results first in their message), /build-with-claude/mid-conversation-system-messages, and the 400s "`tool_use` ids
must be unique", "text content blocks must be non-empty", "The final block in an assistant message cannot be
`thinking`", "When `thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the
lastmost set of `tool_use` and `tool_result` blocks)" (Kilo-Org/kilocode#5219); that no text may stand behind a call
shows in opencode's recorded ``rejects-malformed-assistant-tool-order``. Messages of one role in a row are one turn.
All read 2026-11-22.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cacheprefix.errors import BodyError
from cacheprefix.prompt.canonical_json import loads
from cacheprefix.prompt.decisions import Decision, Drop, DropCall, DropResult, DropThinking, ReplaceResult
from cacheprefix.prompt.sections import Kind, Marker, Prompt, Section, Tier
from cacheprefix.prompt.views import CallView, Count, MessageView, ResultView, make_call, make_message
from cacheprefix.wire.body_copy import BodyCopy
from cacheprefix.wire.messages import (
    Answer,
    Found,
    Message,
    Takes,
    ToolRequest,
    arguments_of,
    as_list,
    blocks_of,
    fingerprint,
    listed,
    marks_of,
    repeated,
    replaced,
    result_of,
    role_of,
    unknown_tools,
)
from cacheprefix.wire.reader import (
    EMPTY,
    MARKER_FIELDS,
    Fields,
    Reader,
    Split,
    envelope,
    items,
    mapping,
    pop_marker,
    string,
    ttl_field,
    written,
)

FIELDS = Fields(
    path=re.compile(r"/messages$"),
    content=frozenset({"model", "system", "messages", "tools", "cache_control"}),
    history="messages",
    system="system",
    signs=("system", "anthropic_version", "thinking", "cache_control"),
    top_marker="cache_control",
    schema=("output_config", "output_format"),
    limits=("max_tokens",),
    answer="content",
    begun=True,
    # The SDK's message threads (beta of 2026-08-12), as its tool_runner has them by default from 2.11 on; it calls
    # system and tools CREATE_ONLY_FIELDS (anthropic/lib/threads).
    thread="thread",
)
AHEAD = ("message_start", "ping")
"""Events of a stream that say that the request was taken, and nothing of the answer."""
THINKING = ("thinking", "redacted_thinking")
"""Blocks that the model thought in; they go back as they came, or not at all."""

_HANDLED = frozenset({"role", "content", *MARKER_FIELDS})
_KINDS: dict[str, Kind] = {
    "tool_use": "tool_use",
    "server_tool_use": "tool_use",
    "tool_result": "tool_result",
    "thinking": "thinking",
    "redacted_thinking": "thinking",
    "image": "image",
}
_SERVER_USES = ("server_tool_use", "mcp_tool_use")
"""Calls that Anthropic runs itself: their results stand in the same message, and a paused turn may end with one."""
_ID = re.compile(r"[a-zA-Z0-9_-]+")

_Blocks = Sequence[tuple[str, Mapping[str, Any]]]
"""Blocks of a turn, each with its path."""


def recognises(body: Mapping[str, Any]) -> bool:
    """Whether tools or messages of a body with the fields of chat completions are Anthropic's."""
    tools = body.get("tools")
    if isinstance(tools, list) and tools and isinstance(tools[0], Mapping) and "input_schema" in tools[0]:
        return True
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else []:
        content = message.get("content") if isinstance(message, Mapping) else None
        for block in content if isinstance(content, list) else []:
            if isinstance(block, Mapping) and (
                block.get("type") in ("tool_use", "tool_result", "thinking") or "cache_control" in block
            ):
                return True
    return False


def sections(body: Mapping[str, Any], reader: Reader) -> list[Section]:
    """The sections of a messages body in cache order."""
    made = reader.units("tools", "tools", body.get("tools"), _split_tool)
    system = body.get("system")
    if isinstance(system, str):
        made += reader.unit("system", "system[0]", system, _split_system)
    else:
        made += reader.units("system", "system", system, _split_system)
    return made + reader.history(items(body.get("messages", []), "messages"), _split_message)


def unit(body: Mapping[str, Any], field: str, number: int) -> tuple[Any, Split]:
    """The tool, system block or message that a path names, and how it is read."""
    if isinstance(body[field], str):
        return body[field], _split_system
    return body[field][number], {"tools": _split_tool, "system": _split_system, "messages": _split_message}[field]


def _split_tool(reader: Reader, tier: Tier, path: str, value: Any) -> list[Section]:
    tool, marker = pop_marker(mapping(value, path), path)
    return [reader.json(tier, path, "tool", "tool", tool, marker)]


def _split_system(reader: Reader, tier: Tier, path: str, value: Any) -> list[Section]:
    return [_block(reader, tier, path, "system", value)]


def _split_message(reader: Reader, tier: Tier, path: str, value: Any) -> list[Section]:
    """The sections of a message: one a block."""
    if type(value) is dict and len(value) == 2:
        plain_role, text = value.get("role"), value.get("content")
        if type(plain_role) is str and type(text) is str:
            # A role and a text, as most messages are: nothing else is to be looked for.
            return [reader.text(tier, f"{path}.content", envelope(plain_role), text)]
    message = mapping(value, path)
    role = string(message.get("role"), f"{path}.role")
    head = envelope(role, **{name: value for name, value in message.items() if name not in _HANDLED})
    content = message.get("content")
    if isinstance(content, str):
        return [reader.text(tier, f"{path}.content", head, content)]
    made: list[Section] = []
    for index, block in enumerate(items(content, f"{path}.content")):
        made.append(_block(reader, tier, f"{path}.content[{index}]", "+" if made else head, block))
    return made or [reader.make(tier, path, "block", head, EMPTY)]


def _block(reader: Reader, tier: Tier, path: str, head: str, value: Any) -> Section:
    """The section of a block; ``head`` is the envelope that it opens, ``+`` for those behind the first."""
    if isinstance(value, str):
        return reader.text(tier, path, head, value)
    block, marker = pop_marker(mapping(value, path), path)
    kind = str(block.get("type"))
    if kind == "text" and len(block) == 2 and isinstance(block.get("text"), str):
        return reader.text(tier, path, head, block["text"], marker)
    if kind == "tool_result":
        block, marker = _without_inner_markers(block, path, marker)
    return reader.json(tier, path, _KINDS.get(kind, "block"), head, block, marker)


def _without_inner_markers(
    block: Mapping[str, Any], path: str, marker: Marker | None
) -> tuple[Mapping[str, Any], Marker | None]:
    """A marker inside a tool result marks that result; the shape of its content stays as sent."""
    content = block.get("content")
    if isinstance(content, str) or not isinstance(content, list):
        return block, marker
    plain: list[Any] = []
    for index, inner in enumerate(content):
        if isinstance(inner, Mapping):
            stripped, found = pop_marker(inner, f"{path}.content[{index}]")
            plain.append(stripped)
            marker = marker or found
        else:
            plain.append(inner)
    return ({**block, "content": plain}, marker)


def body(prompt: Prompt) -> dict[str, Any]:
    """The canonical messages body of a prompt."""
    out: dict[str, Any] = {}
    tools = [with_marker(loads(tool.data), tool.marker) for tool in prompt.tier("tools")]
    if tools:
        out["tools"] = tools
    system = [_wire(block) for block in prompt.tier("system")]
    if system:
        out["system"] = system
    out["messages"] = written(prompt.tier("messages"), "content", lambda section: (_wire(section),))
    for message in out["messages"]:
        blocks = message["content"]
        if len(blocks) == 1 and set(blocks[0]) == {"type", "text"} and blocks[0]["type"] == "text":
            message["content"] = blocks[0]["text"]
    return with_marker(out, prompt.top_marker)


def _wire(section: Section) -> dict[str, Any]:
    block = {"type": "text", "text": section.text} if section.kind == "text" else loads(section.data)
    return with_marker(block, section.marker)


def marker_field(ttl: str | None) -> dict[str, Any]:
    """A breakpoint, as a field of a block, a tool or the whole body."""
    return {"cache_control": {"type": "ephemeral", **ttl_field(ttl)}}


def with_marker(block: dict[str, Any], marker: Marker | None) -> dict[str, Any]:
    """The block with ``cache_control``, where a marker stood."""
    return block if marker is None else {**block, **marker_field(marker.ttl)}


def carries(prompt: Prompt, section: Section) -> bool:  # noqa: ARG001 - as every API is asked
    """Any block takes a breakpoint that is neither thinking nor empty text."""
    return True


def mark(copy: BodyCopy, section: Section, number: int, block: int, ttl: str | None) -> None:
    """Set a breakpoint on a tool, a system block or a block of a message."""
    marker = marker_field(ttl)
    if section.tier == "messages":
        copy.mark_content(copy.items("messages"), number, block, "text", marker)
    elif section.tier == "system" and isinstance(copy.body.get("system"), str):
        copy.body["system"] = [{"type": "text", "text": copy.body["system"], **marker}]
    else:
        copy.mark_block(copy.items(section.tier), number, "text", marker)


def view(message: Message, path: str, count: Count) -> MessageView:
    """What a message says, thinks, calls and answers."""
    role = role_of(message, path)
    content = message.get("content")
    texts: list[str] = []
    media: list[str] = []
    calls: list[CallView] = []
    results: list[ResultView] = []
    thinking: list[tuple[int, str]] = []
    if isinstance(content, str):
        texts += [content] if content else []
        content = None
    for part, block in enumerate(() if content is None else blocks_of(content, f"{path}.content")):
        where = f"{path}.content[{part}]"
        kind = block.get("type")
        if kind == "text":
            texts.append(string(block.get("text"), f"{where}.text"))
        elif kind == "tool_use":
            arguments = arguments_of(block.get("input"), where)
            calls.append(make_call(str(block.get("id") or ""), str(block.get("name") or ""), arguments, count))
        elif kind == "tool_result":
            # Anthropic's flag is optional and false when absent, yet many tools only say it in words.
            failed = True if block.get("is_error") else None
            call, inner = block.get("tool_use_id"), block.get("content")
            results.append(result_of(call, "", inner, f"{where}.content", count, is_error=failed, part=part))
        elif kind in THINKING or kind == "reasoning":
            thinking.append((part, str(block.get("thinking") or block.get("data") or "")))
        else:
            media.append(fingerprint(block, where))
    return make_message(
        role,
        texts,
        count,
        calls=calls,
        results=results,
        thinking=thinking,
        media=media,
        **marks_of(message),
    )


def changed(message: Message, decisions: Sequence[Decision]) -> Message | None:
    """The message with the decisions carried out; None where nothing that may stand alone is left of it."""
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
            new[decision.part] = {**block, "content": replaced(block.get("content"), decision)}
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
    if all(isinstance(block, Mapping) and block.get("type") in THINKING for block in kept):
        return None
    return {**message, "content": kept}


def paused_turn(history: Sequence[Any]) -> int:
    """How many messages at the end are one turn that the provider runs on from there, so that no text may stand behind.

    Such a turn (``pause_turn``) ends with a call that the provider runs itself, or with what that brought; one that
    was ended ends with a text. A call may also wait for results of the application's tools, which follow. Behind a
    text it is refused: "tool use with id … was found without a corresponding web_search_tool_result block"
    (anthropics/anthropic-sdk-python#961; platform.claude.com/docs/en/agents-and-tools/tool-use/server-tools, both
    read 2026-11-28).
    """
    at = len(history)
    while at and _only_results(history[at - 1]):
        at -= 1
    turn = history[at - 1] if at else None
    if not isinstance(turn, Mapping) or turn.get("role") != "assistant":
        return 0
    blocks = [one for one in as_list(turn.get("content")) if isinstance(one, Mapping)]
    brought = {one.get("tool_use_id") for one in blocks}
    waits = any(one.get("type") in _SERVER_USES and one.get("id") not in brought for one in blocks)
    kind = str(blocks[-1].get("type")) if blocks else ""
    ends = at == len(history) and (kind in _SERVER_USES or kind.endswith("_tool_result"))
    return len(history) - at + 1 if waits or ends else 0


def _only_results(message: Any) -> bool:
    """Whether a message is results of the application's tools, and nothing else."""
    blocks = as_list(message.get("content")) if isinstance(message, Mapping) else []
    return bool(blocks) and all(isinstance(one, Mapping) and one.get("type") == "tool_result" for one in blocks)


def answer(data: Mapping[str, Any]) -> Answer:
    """What a message of the model says and calls."""
    blocks = data.get("content")
    if not isinstance(blocks, list):
        raise BodyError("response.content", "no list of blocks")
    text = "".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text")
    calls = tuple(
        ToolRequest(str(block.get("id")), str(block.get("name")), block.get("input"))
        for block in blocks
        if block.get("type") == "tool_use"
    )
    messages: tuple[Message, ...] = ({"role": "assistant", "content": blocks},) if blocks else ()
    return Answer(text, calls, messages, data.get("usage"))


def results(told: Sequence[tuple[ToolRequest, str, bool]]) -> list[dict[str, Any]]:
    """One message of the user's with a block a result."""
    blocks = [
        {"type": "tool_result", "tool_use_id": call.id, "content": text, **({"is_error": True} if failed else {})}
        for call, text, failed in told
    ]
    return [{"role": "user", "content": blocks}]


def tool(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A tool's declaration; ``schema`` has its name, description and parameters."""
    rest = {key: value for key, value in schema.items() if key != "parameters"}
    return {**rest, "input_schema": schema["parameters"]}


def declares(given: Mapping[str, Any]) -> bool:
    """Whether a tool is declared in this API's form."""
    return "input_schema" in given


def allowed_choice(names: Sequence[str]) -> Any:
    """The ``tool_choice`` that allows no tool, for no ``names``; that some are allowed cannot be said here."""
    return {"type": "auto" if names else "none"}


def with_last(history: Sequence[Any], text: str, role: str) -> list[Any]:
    """The messages with a text behind them: a block of the user's, since no system message may stand there.

    It stands in front of a paused turn, behind which none may.
    """
    held = paused_turn(history)
    if held:
        return [*with_last(history[:-held], text, role), *history[-held:]]
    block = {"type": "text", "text": text}
    last = history[-1] if history else {}
    if last.get("role") != "user":
        return [*history, {"role": "user", "content": [block]}]
    content = last.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
    return [*history[:-1], {**last, "content": [*blocks, block]}]


def errors(body: Mapping[str, Any], takes: Takes) -> Found:
    """What the API would refuse a body for, in the order in which it stands."""
    for number, block in enumerate(as_list(body.get("system"))):
        yield from _without_text(block, f"system[{number}]")
    messages = body.get("messages")
    if not listed(messages) or not messages:
        yield "messages", "expected a list of at least one message"
        return
    turns: list[tuple[str, list[tuple[str, Mapping[str, Any]]]]] = []
    said: list[tuple[str, Mapping[str, Any]]] = []
    for at, message in enumerate(messages):
        path = f"messages[{at}]"
        role = message.get("role") if isinstance(message, Mapping) else None
        if role == "system":
            yield from _mid_system(path, turns, messages[at + 1 :], allowed=takes.mid_system)
            continue
        if role not in ("user", "assistant"):
            yield f"{path}.role", f"expected user or assistant, found {role!r}"
            continue
        content = message.get("content")
        last = at == len(messages) - 1 and role == "assistant"
        if not content and not (last and content is not None):
            yield f"{path}.content", "all messages have content, except the optional final assistant message"
        blocks = list(_blocks(content, f"{path}.content"))
        for where, block in blocks:
            yield from _without_text(block, where)
        said = blocks if role == "assistant" else said
        if role == "assistant" and blocks and blocks[-1][1].get("type") in THINKING:
            yield blocks[-1][0], "the final block of an assistant message cannot be thinking"
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        else:
            turns.append((role, blocks))
    yield from _uses(turns)
    if turns and turns[-1][0] == "user":
        yield from _thought(body.get("thinking"), said, turns[-1][1])
    if turns and turns[-1][0] == "assistant":
        yield from _prefilled(body, turns[-1][1], f"messages[{len(messages) - 1}]", allowed=takes.prefill)
    names: list[str] = [str(tool.get("name")) for tool in as_list(body.get("tools")) if isinstance(tool, Mapping)]
    for name in repeated(names):
        yield "tools", f"tool names must be unique: {name!r}"
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping) and choice.get("type") == "any" and not names:
        yield "tool_choice", "may only be specified while providing tools"
    elif isinstance(choice, Mapping) and choice.get("type") == "tool":
        yield from unknown_tools([str(choice.get("name"))], set(names))


def _blocks(content: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(content, str):
        if content:
            yield path, {"type": "text", "text": content}
        return
    for number, block in enumerate(content if listed(content) else ()):
        if isinstance(block, Mapping):
            yield f"{path}[{number}]", block


def _without_text(block: Any, path: str) -> Found:
    """What is refused of a text block, or of those in a tool's result: that one is empty."""
    if not isinstance(block, Mapping):
        return
    if block.get("type") == "text":
        text = block.get("text")
        if not isinstance(text, str) or not text:
            yield path, "text content blocks must be non-empty"
        elif not text.strip():
            yield path, "text content blocks must contain non-whitespace text"
    elif block.get("type") == "tool_result" and listed(block.get("content")):
        for number, inner in enumerate(block["content"]):
            if isinstance(inner, Mapping) and inner.get("type") == "text" and not inner.get("text"):
                yield f"{path}.content[{number}]", "text content blocks must be non-empty"


def _uses(turns: Sequence[tuple[str, _Blocks]]) -> Found:
    """Each call of a turn is answered once, first in the next turn, and by nobody else."""
    known: set[str] = set()
    awaited: list[str] = []
    running: list[str] = []
    for role, blocks in turns:
        if role == "user":
            said = ""
            if running and not awaited:
                yield "messages", f"tool use {running[0]!r} was found without a corresponding tool result block"
            for path, block in blocks:
                if block.get("type") != "tool_result":
                    said = said or path
                    continue
                name = str(block.get("tool_use_id"))
                if name not in awaited:
                    yield path, f"tool_result for {name!r} has no tool_use in the previous message"
                    continue
                awaited.remove(name)
                if said:
                    yield said, "stands before a tool_result; the results of a turn come first"
            if awaited:
                where = blocks[0][0] if blocks else "messages"
                yield where, f"tool_use {', '.join(map(repr, awaited))} has no tool_result immediately after"
            awaited = []
            continue
        asked = False
        brought = {block.get("tool_use_id") for _, block in blocks}
        running = [str(one.get("id")) for _, one in blocks if one.get("type") == "server_tool_use"]
        running = [name for name in running if name not in brought]
        for path, block in blocks:
            kind = block.get("type")
            if kind == "tool_result":
                yield path, "tool_result blocks can only be in user messages"
            elif kind == "tool_use":
                asked, name = True, str(block.get("id"))
                if not _ID.fullmatch(name):
                    yield f"{path}.id", f"an id is made of letters, digits, _ and -, found {name!r}"
                if name in known:
                    yield f"{path}.id", f"tool_use ids must be unique: {name!r}"
                known.add(name)
                awaited.append(name)
            elif asked and kind == "text":
                yield path, "text stands behind a tool_use, whose tool_result must come immediately after"
    if awaited:
        yield "messages", f"tool_use {', '.join(map(repr, awaited))} has no tool_result immediately after"


def _thought(thinking: Any, said: _Blocks, told: _Blocks) -> Found:
    """The message whose results a request brings, and nothing else, begins with its thinking where that is on."""
    on = isinstance(thinking, Mapping) and thinking.get("type") == "enabled"
    if on and told and all(block.get("type") == "tool_result" for _, block in told):
        for path, block in said[:1]:
            if block.get("type") not in THINKING:
                yield path, "while thinking is enabled, a message that calls tools starts with a thinking block"


def _mid_system(path: str, before: Sequence[Any], after: Sequence[Any], *, allowed: bool) -> Found:
    """What is wrong with a system message among the others: where a model takes it, and where it may stand."""
    if not allowed:
        yield f"{path}.role", "role 'system' is not supported on this model"
    elif not before:
        yield path, "use the top-level 'system' parameter for the initial system prompt"
    elif before[-1][0] == "assistant" and any(block.get("type") == "tool_use" for _, block in before[-1][1]):
        yield path, "a system message stands between a tool_use and its tool_result"
    elif before[-1][0] != "user" and not any(
        isinstance(message, Mapping) and message.get("role") == "user" for message in after
    ):
        yield path, "a system message follows a user's"


def _prefilled(body: Mapping[str, Any], blocks: _Blocks, path: str, *, allowed: bool) -> Found:
    """What is wrong with a conversation that ends with the beginning of the answer."""
    kinds = [block.get("type") for _, block in blocks]
    if any(kind in _SERVER_USES for kind in kinds):
        # A turn that the provider paused is sent back as it is.
        return
    thinking = body.get("thinking")
    if not allowed:
        yield path, "this model takes no beginning of its answer; the conversation must end with a user message"
    elif isinstance(thinking, Mapping) and thinking.get("type") == "enabled":
        yield path, "an answer cannot be begun while thinking is enabled"
    elif kinds and kinds[-1] == "text" and str(blocks[-1][1].get("text")).rstrip() != blocks[-1][1].get("text"):
        yield path, "final assistant content cannot end with trailing whitespace"
