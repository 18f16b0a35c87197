"""Structural rules of the providers' APIs: what a request body must look like to be taken at all.

A provider answers 400 to a tool result without its call, a call without its result, an empty text, a message in the
wrong place, or an answer begun for a model that takes none. What is checked here is what the named pages, error
messages and recorded answers say; what they leave open is taken. All were looked up on 2026-11-22.

- OpenAI chat: developers.openai.com/api/docs/guides/function-calling and the API's own 400s ("An assistant message with
  'tool_calls' must be followed by tool messages responding to each 'tool_call_id'", "messages with role 'tool' must be
  a response to a preceding message with 'tool_calls'", "Duplicate value for 'tool_call_id'").
- OpenAI responses: cookbook.openai.com/examples/responses_api/reasoning_items and the 400s "No tool output found for
  function call", "No tool call found for function call output", "Item 'rs_…' of type 'reasoning' was provided without
  its required following item". OpenAI pairs outputs by ``call_id``; servers that speak the same form want nothing but
  the model's own items between a call and its output (deepseek-ai/awesome-deepseek-integration#740), so that is the
  rule here.
- Anthropic: platform.claude.com/docs/en/agents-and-tools/tool-use/implement-tool-use (a result directly behind its
  call, results first in their message), /build-with-claude/mid-conversation-system-messages, and the 400s "`tool_use`
  ids must be unique", "text content blocks must be non-empty", "The final block in an assistant message cannot be
  `thinking`", "When `thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the
  lastmost set of `tool_use` and `tool_result` blocks)" (Kilo-Org/kilocode#5219); that no text may stand behind a call
  shows in opencode's recorded ``rejects-malformed-assistant-tool-order``. Messages of one role in a row are one turn.
- Gemini: ai.google.dev/gemini-api/docs/function-calling and the 400s "function call turn comes immediately after a
  user turn or after a function response turn" and "the number of function response parts is equal to the number of
  function call parts" (google-gemini/gemini-cli#3814, #26486); a history that ends with the model is refused
  (crewAIInc/crewAI#6973), and so are responses beside other parts (envoyproxy/ai-gateway#2686).
- Bedrock Converse: docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Message.html and the exceptions
  "A conversation must start with a user message", "must alternate between user and assistant roles", "The text field
  in the ContentBlock object … is blank", "The number of toolResult blocks … exceeds the number of toolUse blocks of
  previous turn", "The toolConfig field must be defined when using toolUse and toolResult content blocks".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cacheprefix.errors import BodyError
from cacheprefix.prompt.sections import Api

_ID = re.compile(r"[a-zA-Z0-9_-]+")
_CHAT_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_THINKING = ("thinking", "redacted_thinking")
_SERVER_USES = ("server_tool_use", "mcp_tool_use")
"""Calls that Anthropic runs itself: their results stand in the same message, and a paused turn may end with one."""

_Found = Iterator[tuple[str, str]]


def structure_errors(
    body: Mapping[str, Any], api: Api, *, prefill: bool = True, mid_system: bool = True
) -> list[BodyError]:
    """What a provider would refuse a request body for, in the order in which it stands; empty for a valid request.

    ``prefill`` is whether the model takes a last message of its own as the beginning of its answer, ``mid_system``
    whether it takes a system message among the others (Anthropic alone asks); a profile has both by these names.
    What cannot be read at all is an error too. Never raises for a mapping. Which rules: see this module's docstring.
    """
    found: _Found
    if api == "openai-chat":
        found = _chat(body)
    elif api == "openai-responses":
        found = _responses(body)
    elif api == "anthropic":
        found = _anthropic(body, prefill=prefill, mid_system=mid_system)
    elif api == "gemini":
        found = _gemini(body, prefill=prefill)
    else:
        found = _bedrock(body, prefill=prefill)
    return [BodyError(path, said) for path, said in found]


# ---------------------------------------------------------------------------------------------------- OpenAI chat


def _chat(body: Mapping[str, Any]) -> _Found:
    messages = body.get("messages")
    if not _listed(messages) or not messages:
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
            yield from _filled(message.get("content"), path, calls=False)
            continue
        if awaited:
            yield path, f"stands where the results of the calls {', '.join(map(repr, awaited))} belong"
            awaited = []
        if role not in _CHAT_ROLES:
            yield f"{path}.role", f"expected one of {', '.join(_CHAT_ROLES)}, found {role!r}"
            continue
        calls = message.get("tool_calls")
        if calls is not None and (not _listed(calls) or not calls):
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
        yield from _filled(message.get("content"), path, calls=bool(calls) or other)
    if awaited:
        yield f"messages[{len(messages)}]", f"missing: the results of the calls {', '.join(map(repr, awaited))}"
    tools = body.get("tools")
    if tools is not None and (not _listed(tools) or not tools):
        yield "tools", "expected a list of at least one tool, or none at all"
    if not tools and not body.get("functions"):
        # OpenAI refuses both settings without tools, whatever they say.
        for name in ("tool_choice", "parallel_tool_calls"):
            if body.get(name) is not None:
                yield name, "is only allowed when tools are specified"
    else:
        names = {_tool_name(tool) for tool in _items(tools)}
        yield from _named(_chosen(body.get("tool_choice")), names, "tool_choice")


def _filled(content: Any, path: str, *, calls: bool) -> _Found:
    """OpenAI takes an empty string, but neither null without calls nor an empty list."""
    if content is None and not calls:
        yield f"{path}.content", "expected text or a list of blocks, found null"
    elif _listed(content) and not content and not calls:
        yield f"{path}.content", "expected at least one block"


def _tool_name(tool: Any) -> str:
    inner = tool.get("function") or tool.get("custom") if isinstance(tool, Mapping) else None
    named = inner if isinstance(inner, Mapping) else tool
    return str(named.get("name") or "") if isinstance(named, Mapping) else ""


def _chosen(choice: Any) -> list[str]:
    """The names that OpenAI's ``tool_choice`` speaks of."""
    if not isinstance(choice, Mapping):
        return []
    if choice.get("type") == "allowed_tools":
        inner = choice.get("allowed_tools", choice)
        listed = inner.get("tools") if isinstance(inner, Mapping) else None
        return [name for tool in _items(listed) if (name := _tool_name(tool))]
    name = _tool_name(choice)
    return [name] if name else []


def _named(wanted: Iterable[str], names: set[str], path: str) -> _Found:
    for name in wanted:
        if name not in names:
            yield path, f"names the tool {name!r}, which is not among the tools"


# ----------------------------------------------------------------------------------------------- OpenAI responses


def _responses(body: Mapping[str, Any]) -> _Found:
    given = body.get("input")
    continued = any(body.get(name) is not None for name in ("previous_response_id", "conversation", "prompt"))
    if given is None and continued:
        return
    if isinstance(given, str):
        return
    if not _listed(given) or not given:
        yield "input", "expected text or a list of at least one item"
        return
    awaited: dict[str, int] = {}
    ids: set[str] = set()
    for at, item in enumerate(given):
        path = f"input[{at}]"
        if not isinstance(item, Mapping):
            yield path, f"expected an object, found {type(item).__name__}"
            continue
        kind, call = str(item.get("type") or "message"), item.get("call_id")
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
                listed = ", ".join(map(repr, awaited))
                yield path, f"stands between the calls {listed} and their results"
            if item.get("role") not in ("user", "assistant", "system", "developer"):
                yield f"{path}.role", f"expected user, assistant, system or developer, found {item.get('role')!r}"
            yield from _filled(item.get("content"), path, calls=False)
    if awaited:
        yield f"input[{len(given)}]", f"missing: the results of the calls {', '.join(map(repr, awaited))}"
    tools = {_tool_name(tool) for tool in _items(body.get("tools"))}
    yield from _named(_chosen(body.get("tool_choice")), tools, "tool_choice")


def _made(item: Any) -> bool:
    """Whether an item is the model's own: what may stand behind its reasoning."""
    if not isinstance(item, Mapping):
        return False
    kind = str(item.get("type") or "message")
    # References and kinds unknown here may be anything.
    return item.get("role") == "assistant" if kind == "message" else not kind.endswith("_output")


# ------------------------------------------------------------------------------------------------------ Anthropic


def _anthropic(body: Mapping[str, Any], *, prefill: bool, mid_system: bool) -> _Found:
    for number, block in enumerate(_items(body.get("system"))):
        yield from _text(block, f"system[{number}]")
    messages = body.get("messages")
    if not _listed(messages) or not messages:
        yield "messages", "expected a list of at least one message"
        return
    turns: list[tuple[str, list[tuple[str, Mapping[str, Any]]]]] = []
    said: list[tuple[str, Mapping[str, Any]]] = []
    for at, message in enumerate(messages):
        path = f"messages[{at}]"
        role = message.get("role") if isinstance(message, Mapping) else None
        if role == "system":
            yield from _mid_system(path, turns, messages[at + 1 :], allowed=mid_system)
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
            yield from _text(block, where)
        said = blocks if role == "assistant" else said
        if role == "assistant" and blocks and blocks[-1][1].get("type") in _THINKING:
            yield blocks[-1][0], "the final block of an assistant message cannot be thinking"
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        else:
            turns.append((role, blocks))
    yield from _uses(turns)
    if turns and turns[-1][0] == "user":
        yield from _thought(body.get("thinking"), said, turns[-1][1])
    if turns and turns[-1][0] == "assistant":
        yield from _prefilled(body, turns[-1][1], f"messages[{len(messages) - 1}]", allowed=prefill)
    names: list[str] = [str(tool.get("name")) for tool in _items(body.get("tools")) if isinstance(tool, Mapping)]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield "tools", f"tool names must be unique: {name!r}"
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping) and choice.get("type") == "any" and not names:
        yield "tool_choice", "may only be specified while providing tools"
    elif isinstance(choice, Mapping) and choice.get("type") == "tool":
        yield from _named([str(choice.get("name"))], set(names), "tool_choice")


def _blocks(content: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(content, str):
        if content:
            yield path, {"type": "text", "text": content}
        return
    for number, block in enumerate(content if _listed(content) else ()):
        if isinstance(block, Mapping):
            yield f"{path}[{number}]", block


def _text(block: Any, path: str) -> _Found:
    if not isinstance(block, Mapping):
        return
    if block.get("type") == "text":
        text = block.get("text")
        if not isinstance(text, str) or not text:
            yield path, "text content blocks must be non-empty"
        elif not text.strip():
            yield path, "text content blocks must contain non-whitespace text"
    elif block.get("type") == "tool_result" and _listed(block.get("content")):
        for number, inner in enumerate(block["content"]):
            if isinstance(inner, Mapping) and inner.get("type") == "text" and not inner.get("text"):
                yield f"{path}.content[{number}]", "text content blocks must be non-empty"


def _uses(turns: Sequence[tuple[str, Sequence[tuple[str, Mapping[str, Any]]]]]) -> _Found:
    """Each call of a turn is answered once, first in the next turn, and by nobody else."""
    known: set[str] = set()
    awaited: list[str] = []
    for role, blocks in turns:
        if role == "user":
            said = ""
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


def _thought(
    thinking: Any, said: Sequence[tuple[str, Mapping[str, Any]]], told: Sequence[tuple[str, Mapping[str, Any]]]
) -> _Found:
    """The message whose results a request brings, and nothing else, begins with its thinking where that is on."""
    on = isinstance(thinking, Mapping) and thinking.get("type") == "enabled"
    if on and told and all(block.get("type") == "tool_result" for _, block in told):
        for path, block in said[:1]:
            if block.get("type") not in _THINKING:
                yield path, "while thinking is enabled, a message that calls tools starts with a thinking block"


def _mid_system(path: str, before: Sequence[Any], after: Sequence[Any], *, allowed: bool) -> _Found:
    if not allowed:
        yield f"{path}.role", "role 'system' is not supported on this model"
    elif not before:
        yield path, "use the top-level 'system' parameter for the initial system prompt"
    elif before[-1][0] == "assistant" and any(block.get("type") == "tool_use" for _, block in before[-1][1]):
        yield path, "a system message stands between a tool_use and its tool_result"
    elif before[-1][0] != "user" and not any(_role(message) == "user" for message in after):
        yield path, "a system message follows a user's"


def _prefilled(
    body: Mapping[str, Any], blocks: Sequence[tuple[str, Mapping[str, Any]]], path: str, *, allowed: bool
) -> _Found:
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


# --------------------------------------------------------------------------------------------------------- Gemini


def _gemini(body: Mapping[str, Any], *, prefill: bool) -> _Found:
    contents = body.get("contents")
    if isinstance(contents, str):
        return
    if isinstance(contents, Mapping):
        contents = [contents]
    if not _listed(contents) or not contents:
        yield "contents", "expected a list of at least one content"
        return
    awaited = 0
    before = ""
    for at, content in enumerate(contents):
        path = f"contents[{at}]"
        role = str(_role(content) or "user")
        if role not in ("user", "model", "function"):
            yield f"{path}.role", f"expected user or model, found {role!r}"
            continue
        parts = _items(content.get("parts")) if isinstance(content, Mapping) else []
        if not parts:
            yield f"{path}.parts", "expected at least one part"
        for number, part in enumerate(parts):
            if not isinstance(part, Mapping) or not any(part.values()):
                yield f"{path}.parts[{number}]", "a part has data, and a text is not empty"
        calls = sum(_has(part, "functionCall", "function_call") for part in parts)
        results = sum(_has(part, "functionResponse", "function_response") for part in parts)
        if results and results < len(parts):
            yield path, "function responses share a turn with nothing else"
        if results != awaited:
            yield path, f"holds {results} function responses where {awaited} calls of the turn before await one"
        if calls and before == "model":
            yield path, "a function call comes immediately after a user turn or a function response turn"
        if calls and not before:
            yield path, "a function call is not the first turn"
        awaited = calls
        before = role
    if awaited:
        yield f"contents[{len(contents)}]", f"missing: the responses of {awaited} function calls"
    elif before == "model" and not prefill:
        yield f"contents[{len(contents) - 1}]", "a request ends with a user turn or a function response"
    names = [
        str(function.get("name"))
        for tool in _items(body.get("tools"))
        if isinstance(tool, Mapping)
        for function in _items(tool.get("functionDeclarations", tool.get("function_declarations")))
        if isinstance(function, Mapping)
    ]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield "tools", f"duplicate function declaration: {name!r}"


def _has(part: Any, *names: str) -> bool:
    return isinstance(part, Mapping) and any(part.get(name) is not None for name in names)


# ------------------------------------------------------------------------------------------------ Bedrock Converse


def _bedrock(body: Mapping[str, Any], *, prefill: bool) -> _Found:
    for number, block in enumerate(_items(body.get("system"))):
        yield from _not_blank(block, f"system[{number}]")
    messages = body.get("messages")
    if not _listed(messages) or not messages:
        yield "messages", "expected a list of at least one message"
        return
    awaited: list[str] = []
    before, tools = "", False
    for at, message in enumerate(messages):
        path = f"messages[{at}]"
        role = str(_role(message))
        if role not in ("user", "assistant"):
            yield f"{path}.role", f"expected user or assistant, found {role!r}"
            continue
        if not before and role != "user":
            yield path, "a conversation must start with a user message"
        if role == before:
            yield path, "a conversation must alternate between user and assistant roles"
        before = role
        blocks = _items(message.get("content"))
        if not [block for block in blocks if not _has(block, "cachePoint")]:
            yield f"{path}.content", "expected at least one content block"
        for number, block in enumerate(blocks):
            yield from _not_blank(block, f"{path}.content[{number}]")
        answered = [str(block["toolResult"].get("toolUseId")) for block in blocks if _object(block, "toolResult")]
        asked = [str(block["toolUse"].get("toolUseId")) for block in blocks if _object(block, "toolUse")]
        tools = tools or bool(answered or asked)
        for name in answered:
            if name in awaited:
                awaited.remove(name)
            else:
                yield path, f"toolResult for {name!r} has no toolUse in the previous turn"
        if awaited:
            yield path, f"expected toolResult blocks for {', '.join(map(repr, awaited))}"
        if len(set(asked)) < len(asked):
            yield path, "two toolUse blocks of one message have one id"
        awaited = asked
    if awaited:
        yield f"messages[{len(messages)}]", f"expected toolResult blocks for {', '.join(map(repr, awaited))}"
    elif before == "assistant" and not prefill:
        yield f"messages[{len(messages) - 1}]", "the conversation must end with a user message"
    config = body.get("toolConfig")
    if tools and not isinstance(config, Mapping):
        yield "toolConfig", "must be defined when using toolUse and toolResult content blocks"
    names = [
        str(tool["toolSpec"].get("name"))
        for tool in _items(config.get("tools") if isinstance(config, Mapping) else None)
        if _object(tool, "toolSpec")
    ]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield "toolConfig.tools", f"the tool {name!r} is already defined"


def _not_blank(block: Any, path: str) -> _Found:
    if isinstance(block, Mapping) and "text" in block and not str(block["text"] or "").strip():
        yield path, "the text field is blank"


# --------------------------------------------------------------------------------------------------------- inside


def _listed(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _items(value: Any) -> list[Any]:
    return list(value) if _listed(value) else []


def _object(block: Any, name: str) -> bool:
    return isinstance(block, Mapping) and isinstance(block.get(name), Mapping)


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, Mapping) else None
