"""OpenAI responses: ``instructions`` and a list of input items.

What it refuses: cookbook.openai.com/examples/responses_api/reasoning_items and the 400s "No tool output found for
function call", "No tool call found for function call output", "Item 'rs_…' of type 'reasoning' was provided without its
required following item", read 2026-11-22. OpenAI pairs outputs by ``call_id``; servers that speak the same form want
nothing but the model's own items between a call and its output (deepseek-ai/awesome-deepseek-integration#740), so that
is the rule here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cacheprefix.errors import BodyError
from cacheprefix.prompt import dumps
from cacheprefix.prompt.canonical_json import loads
from cacheprefix.prompt.decisions import Decision, Drop, DropCall, DropResult, ReplaceResult
from cacheprefix.prompt.sections import Kind, Marker, Prompt, Section, Tier
from cacheprefix.prompt.views import Count, MessageView, make_call, make_message
from cacheprefix.wire.body_copy import BodyCopy
from cacheprefix.wire.messages import (
    Answer,
    Found,
    Message,
    Takes,
    ToolRequest,
    arguments_of,
    listed,
    marks_of,
    replaced,
    requested,
    result_of,
    role_of,
    texts_and_media,
)
from cacheprefix.wire.openai_chat import (
    SYSTEM_ROLES,
    marker_field,
    not_filled,
    split_tool,
    unknown_choice,
    with_marker,
)
from cacheprefix.wire.reader import (
    EMPTY,
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
)

_TEMPLATE = "prompt"

FIELDS = Fields(
    path=re.compile(r"/responses$"),
    content=frozenset({"model", "instructions", "input", "tools"}),
    history="input",
    system="instructions",
    leading=SYSTEM_ROLES,
    signs=("input", "instructions"),
    only_marked={"prompt_cache_options": {"mode": "explicit"}},
    schema=("text",),
    limits=("max_output_tokens",),
    answer="output",
    # It takes any item, a system message alone too.
    least="system",
    chained=("previous_response_id", "conversation"),
    template=_TEMPLATE,
)
AHEAD = ("response.created", "response.queued", "response.in_progress")
"""Events of a stream that tell of a response before the prompt is read."""

_TEXT_TYPES = ("input_text", "output_text", "text")
_ITEM_KINDS: dict[str, Kind] = {
    "function_call": "tool_use",
    "custom_tool_call": "tool_use",
    "function_call_output": "tool_result",
    "custom_tool_call_output": "tool_result",
    "reasoning": "thinking",
}
_INSTRUCTIONS = "instructions"
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
"""Items that hold a tool's output as text or parts; those of OpenAI's own tools (``computer_call_output``) do not."""
_PARTS = ("input_text", "input_image", "input_file")


def sections(body: Mapping[str, Any], reader: Reader) -> list[Section]:
    """The sections of a responses body in cache order."""
    made = reader.units("tools", "tools", body.get("tools"), split_tool)
    instructions = body.get("instructions")
    if instructions is not None:
        made += reader.unit("system", "system[0]", instructions, _split_instructions)
    given = body.get("input", [])
    if isinstance(given, str):
        made += reader.unit("messages", "messages[0]", {"role": "user", "content": given}, _split_item)
        return made
    # Instructions count into the paths of the system items behind them.
    lead, kind = (0, "") if instructions is None else (1, "instructed")
    return made + reader.history(items(given, "input"), _split_item, leading=FIELDS.leading, lead=lead, kind=kind)


def unit(body: Mapping[str, Any], field: str, number: int) -> tuple[Any, Split]:
    """The tool or item that a path names, and how it is read."""
    if field == "tools":
        return body["tools"][number], split_tool
    instructed = field == "system" and body.get("instructions") is not None
    if instructed and not number:
        return body["instructions"], _split_instructions
    return body["input"][number - instructed], _split_item


def _split_instructions(reader: Reader, tier: Tier, path: str, value: Any) -> list[Section]:
    return [reader.text(tier, path, _INSTRUCTIONS, string(value, "instructions"))]


def _split_item(reader: Reader, tier: Tier, path: str, value: Any) -> list[Section]:
    """The sections of one item: of a message each block, of any other item the whole."""
    item, marker = pop_marker(mapping(value, path), path)
    kind = _kind(item)
    if kind in _OUTPUTS and isinstance(item.get("output"), list):
        item, marker = _unmarked_output(item, path, marker)
    if kind != "message" or "role" not in item:
        return [reader.json(tier, path, _ITEM_KINDS.get(kind, "block"), "item", item, marker)]
    role = envelope(string(item.get("role"), f"{path}.role"))
    made: list[Section] = []
    content = item.get("content")
    if isinstance(content, str):
        where = path if tier == "system" else f"{path}.content"
        made.append(reader.text(tier, where, role, content, marker))
    else:
        for index, block in enumerate(items(content or [], f"{path}.content")):
            where = f"{path}.content[{index}]"
            plain, block_marker = pop_marker(mapping(block, where), where)
            head = "+" if made else role
            if plain.get("type") in _TEXT_TYPES and isinstance(plain.get("text"), str):
                made.append(reader.text(tier, where, head, plain["text"], block_marker))
            else:
                image: Kind = "image" if plain.get("type") == "input_image" else "block"
                made.append(reader.json(tier, where, image, head, plain, block_marker))
    return made or [reader.make(tier, path, "block", role, EMPTY)]


def _unmarked_output(item: Message, path: str, marker: Marker | None) -> tuple[Message, Marker | None]:
    """A tool's output without marks on its parts, and the mark that stands on the last one.

    A single text says the same as a string, which it was before it was marked. An earlier part's mark is none of the
    item's end, which is the only place that a section has.
    """
    parts = []
    for index, part in enumerate(item["output"]):
        plain, found = pop_marker(part, f"{path}.output[{index}]") if isinstance(part, Mapping) else (part, None)
        parts.append(plain)
        marker = found if index + 1 == len(item["output"]) and found is not None else marker
    first = parts[0] if len(parts) == 1 and isinstance(parts[0], Mapping) else {}
    alone = set(first) == {"type", "text"} and first["type"] == "input_text"
    return {**item, "output": first["text"] if alone else parts}, marker


def body(prompt: Prompt) -> dict[str, Any]:
    """The canonical responses body of a prompt."""
    out: dict[str, Any] = {}
    tools = [with_marker(loads(tool.data), tool.marker) for tool in prompt.tier("tools")]
    if tools:
        out["tools"] = tools
    told = [*prompt.tier("system"), *prompt.tier("messages")]
    for one in told:
        if one.head == _INSTRUCTIONS:
            out["instructions"] = one.text
    out["input"] = [_item(group) for group in messages_of(one for one in told if one.head != _INSTRUCTIONS)]
    return out


def _item(group: Sequence[Section]) -> dict[str, Any]:
    """The item that ``_split_item`` made these sections of."""
    first = group[0]
    if first.head == "item":
        item: dict[str, Any] = loads(first.data)
        if first.marker is None or not _takes_mark(item):
            return with_marker(item, first.marker)
        output = item["output"]
        parts = [{"type": "input_text", "text": output}] if isinstance(output, str) else output
        return {**item, "output": [*parts[:-1], with_marker(parts[-1], first.marker)]}
    message = open_envelope(first.head)
    written = "output_text" if message["role"] == "assistant" else "input_text"
    blocks = [
        with_marker(
            {"type": written, "text": section.text} if section.kind == "text" else loads(section.data),
            section.marker,
        )
        for section in group
        if section.kind == "text" or section.data != EMPTY
    ]
    if len(blocks) == 1 and set(blocks[0]) == {"type", "text"}:
        return {**message, "content": blocks[0]["text"]}
    return {**message, "content": blocks}


def carries(prompt: Prompt, section: Section) -> bool:  # noqa: ARG001 - as every API is asked
    """Whether OpenAI takes a breakpoint there: on content blocks and parts of a tool's output, not tools, instructions.

    Source: ``FunctionCallOutput.output`` and ``ResponseInputTextContentParam`` of openai 2.54.0, whose types are made
    of OpenAI's own description of the API; read 2026-11-25.
    """
    if section.kind == "tool_result":
        return _takes_mark(loads(section.data))
    text = section.kind in ("text", "image") and section.head != _INSTRUCTIONS
    return section.tier != "tools" and text and "assistant" not in section.head


def _takes_mark(item: Message) -> bool:
    """Whether a tool's output may be marked at its end: it is text, or its last part is one of the application's."""
    output = item.get("output") if item.get("type") in _OUTPUTS else None
    last = output[-1] if isinstance(output, list) and output else None
    return bool(output) and (isinstance(output, str) or (isinstance(last, Mapping) and last.get("type") in _PARTS))


def mark(copy: BodyCopy, section: Section, number: int, block: int, ttl: str | None) -> None:
    """Set a breakpoint on a content block of an item or the last part of a tool's output; instructions take none."""
    if section.tier == "tools" or section.head == _INSTRUCTIONS:
        return
    if isinstance(copy.body.get("input"), str):
        copy.body["input"] = [{"role": "user", "content": copy.body["input"]}]
    shift = 1 if section.tier == "system" and copy.body.get("instructions") is not None else 0
    kind = "output_text" if section.head == "assistant" else "input_text"
    field, block = ("output", -1) if section.kind == "tool_result" else ("content", block)
    copy.mark_content(copy.items("input"), number - shift, block, kind, marker_field(ttl), field)


def view(item: Message, path: str, count: Count) -> MessageView:
    """What an item says, calls or answers."""
    marks = marks_of(item)
    kind = _kind(item)
    if kind == "message":
        texts, media = texts_and_media(item.get("content"), f"{path}.content")
        role = role_of(item, path)
        return make_message(role, texts, count, media=media, **marks)
    call_id = item.get("call_id")
    if kind.endswith("_call_output") and isinstance(call_id, str):
        result = result_of(call_id, "", item.get("output"), f"{path}.output", count)
        return make_message("tool", (), count, results=(result,), **marks)
    if kind.endswith("_call") and isinstance(call_id, str):
        given = item.get("arguments", item.get("input", item.get("action")))
        call = make_call(call_id, str(item.get("name") or kind), arguments_of(given, path), count)
        return make_message("assistant", (), count, calls=(call,), item=True, **marks)
    if kind == "reasoning":
        # No thinking that could be cleared by itself: the API refuses the item behind it without it.
        summaries, _ = texts_and_media(item.get("summary") or "", f"{path}.summary")
        shown, _ = texts_and_media(item.get("content") or "", f"{path}.content")
        sealed = str(item.get("encrypted_content") or "")
        said = [*summaries, *shown, sealed or str(item.get("id") or "")]
        return make_message("assistant", said, count, item=True)
    # What a kind unknown here belongs to cannot be known either, so it stays where it is.
    data = dumps(item, path).decode("utf-8", "surrogatepass")
    return make_message("assistant", (data,), count, key=marks["key"], pinned=True)


def _kind(item: Message) -> str:
    """What an item is. A message need not say it, nor a reference to what the provider keeps, which is an id alone."""
    told = "message" if "role" in item or "id" not in item else "item_reference"
    return str(item.get("type") or told)


def is_call(item: Message) -> bool:
    """Whether it is a call that the application answers; those that the provider runs itself have no ``call_id``."""
    return str(item.get("type", "")).endswith("_call") and "call_id" in item


def is_output(item: Message) -> bool:
    """Whether it is the result of a call."""
    return str(item.get("type", "")).endswith("_call_output") and "call_id" in item


def is_reasoning(item: Message) -> bool:
    """Whether it is reasoning, which the API takes only with what comes behind it."""
    return item.get("type") == "reasoning"


def changed(item: Message, decisions: Sequence[Decision]) -> Message | None:
    """The item with the decisions carried out; None where it goes."""
    out: dict[str, Any] = dict(item)
    for decision in decisions:
        if isinstance(decision, (Drop, DropResult, DropCall)):
            return None
        if isinstance(decision, ReplaceResult):
            out["output"] = replaced(out.get("output"), decision, "input_text")
    return out


def bound(items: Sequence[Message], by_index: dict[int, list[Decision]], gone: set[int]) -> set[int]:
    """``gone`` with each reasoning item given the fate of the calls or the answer it was made for."""
    out = set(gone)
    behind: list[bool] = []
    for index in range(len(items) - 1, -1, -1):
        kind = _kind(items[index])
        if kind == "reasoning":
            by_index.pop(index, None)
            if behind:
                out.discard(index)
            if behind and all(behind):
                out.add(index)
        elif kind.endswith("_call") or items[index].get("role") == "assistant":
            dropped = any(isinstance(decision, DropCall) for decision in by_index.get(index, ()))
            behind.append(index in gone or dropped)
        else:
            behind = []
    return out


def answer(data: Mapping[str, Any]) -> Answer:
    """What a response says and calls."""
    output = data.get("output")
    if not isinstance(output, list):
        raise BodyError("response.output", "no list of items")
    text = "".join(
        str(block.get("text", ""))
        for item in output
        if item.get("type") == "message"
        for block in item.get("content") or []
        if block.get("type") == "output_text"
    )
    calls = tuple(
        requested(str(item.get("call_id")), str(item.get("name")), item.get("arguments"))
        for item in output
        if item.get("type") == "function_call"
    )
    return Answer(text, calls, tuple(output), data.get("usage"))


def results(told: Sequence[tuple[ToolRequest, str, bool]]) -> list[dict[str, Any]]:
    """An item a result; the API has no flag for an error."""
    return [{"type": "function_call_output", "call_id": call.id, "output": text} for call, text, _ in told]


def tool(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A tool's declaration; ``schema`` has its name, description and parameters."""
    return {"type": "function", "strict": False, **schema}


def declares(given: Mapping[str, Any]) -> bool:
    """Whether a tool is declared in this API's form."""
    return given.get("type") == "function" and "function" not in given


def allowed_choice(names: Sequence[str]) -> Any:
    """The ``tool_choice`` that allows only ``names``."""
    tools = [{"type": "function", "name": name} for name in names]
    return {"type": "allowed_tools", "mode": "auto", "tools": tools} if names else "none"


def with_last(history: Sequence[Any], text: str, role: str) -> list[Any]:
    """The items with a text behind them."""
    return [*history, {"role": role, "content": text}]


def errors(body: Mapping[str, Any], takes: Takes) -> Found:  # noqa: ARG001 - as every API is asked
    """What the API would refuse a body for, in the order in which it stands."""
    given = body.get("input")
    continued = any(body.get(name) is not None for name in (*FIELDS.chained, _TEMPLATE))
    if given is None and continued:
        return
    if isinstance(given, str):
        yield from unknown_choice(body)
        return
    if not listed(given) or not given:
        yield "input", "expected text or a list of at least one item"
        return
    awaited: dict[str, int] = {}
    ids: set[str] = set()
    for at, item in enumerate(given):
        path = f"input[{at}]"
        if not isinstance(item, Mapping):
            yield path, f"expected an object, found {type(item).__name__}"
            continue
        kind, call = _kind(item), item.get("call_id")
        name = item.get("id")
        if isinstance(name, str) and kind != "item_reference":
            if name in ids:
                yield f"{path}.id", f"two items have the id {name!r}"
            ids.add(name)
        if kind == "reasoning" and not _made(given[at + 1] if at + 1 < len(given) else None):
            yield path, "is reasoning without the item that was made from it behind it"
        elif kind.endswith("_output"):
            if isinstance(call, str) and call in awaited:
                del awaited[call]
            elif not continued:
                yield path, f"answers the call {call!r}, which does not await a result here"
        elif kind.endswith("_call"):
            # Calls that the provider runs itself (web_search_call …) have no call_id and no output item.
            if isinstance(call, str):
                if call in awaited:
                    yield f"{path}.call_id", f"two open calls have the id {call!r}"
                awaited[call] = at
        elif kind == "message":
            if awaited and item.get("role") != "assistant":
                waiting = ", ".join(map(repr, awaited))
                yield path, f"stands between the calls {waiting} and their results"
            if item.get("role") not in ("user", "assistant", "system", "developer"):
                yield f"{path}.role", f"expected user, assistant, system or developer, found {item.get('role')!r}"
            yield from not_filled(item.get("content"), path, calls=False)
    if awaited:
        yield f"input[{len(given)}]", f"missing: the results of the calls {', '.join(map(repr, awaited))}"
    yield from unknown_choice(body)


def _made(item: Any) -> bool:
    """Whether an item is the model's own: what may stand behind its reasoning."""
    if not isinstance(item, Mapping):
        return False
    kind = _kind(item)
    # References and kinds unknown here may be anything.
    return item.get("role") == "assistant" if kind == "message" else not kind.endswith("_output")
