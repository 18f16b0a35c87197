"""From wire bodies to prompts and back, for every API that is read; and which API a path belongs to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args
from urllib.parse import unquote

from cacheprefix.errors import BodyError, SetupError
from cacheprefix.prompt.canonical_json import dumps_sorted, loads
from cacheprefix.prompt.sections import ABOUT, Api, CountTokens, Envelope, Prompt, Section, relearn
from cacheprefix.prompt.tokens import estimate_tokens
from cacheprefix.wire import anthropic, bedrock, gemini, openai_chat, openai_responses
from cacheprefix.wire.reader import Memo, Reader, Split, mapping, settings_of

_SECTIONS: dict[str, Callable[[Mapping[str, Any], Reader], list[Section]]] = {
    "openai-chat": openai_chat.sections,
    "openai-responses": openai_responses.sections,
    "anthropic": anthropic.sections,
    "gemini": gemini.sections,
    "bedrock": bedrock.sections,
}
_BODIES: dict[str, Callable[[Prompt], dict[str, Any]]] = {
    "openai-chat": openai_chat.body,
    "openai-responses": openai_responses.body,
    "anthropic": anthropic.body,
    "gemini": gemini.body,
    "bedrock": bedrock.body,
}
_UNITS: dict[str, Callable[[Mapping[str, Any], str, int], tuple[Any, Split]]] = {
    "openai-chat": openai_chat.unit,
    "openai-responses": openai_responses.unit,
    "anthropic": anthropic.unit,
}
_UNIT = re.compile(r"^(tools|functions|system|messages)\[(\d+)\]")
_CONTENT: dict[str, frozenset[str]] = {
    "openai-chat": openai_chat.CONTENT,
    "openai-responses": openai_responses.CONTENT,
    "anthropic": anthropic.CONTENT,
    "gemini": gemini.CONTENT,
    "bedrock": bedrock.CONTENT,
}


def decode(
    body: Mapping[str, Any] | bytes | str,
    api: Api,
    *,
    headers: Mapping[str, str] | None = None,
    count: CountTokens | None = None,
    memo: Memo | None = None,
    envelope: Envelope = ABOUT,
) -> Prompt:
    """Read a request body into a prompt.

    ``headers`` are those that matter to the cache (``anthropic-beta`` …). With a ``memo`` an append-only
    history costs only its new messages. ``envelope`` is what the model's template puts around each. Raises
    ``BodyError`` with the path of what cannot be read.
    """
    if api not in _SECTIONS:
        message = f"unknown API form {api!r}; use one of {', '.join(get_args(Api))}"
        raise SetupError(message)
    fields = mapping(loads(body) if isinstance(body, (bytes, str)) else body, "body")
    model = fields.get("model", fields.get("modelId", ""))
    if not isinstance(model, str):
        raise BodyError("model", f"expected a string, found {type(model).__name__}")
    reader = Reader(api, model, count or estimate_tokens, memo, envelope=envelope)
    sections = tuple(_SECTIONS[api](fields, reader))
    settings = settings_of(fields, _CONTENT[api], headers)
    if api == "bedrock":
        choice = bedrock.tool_choice(fields)
        if choice is not None:
            settings["toolChoice"] = dumps_sorted(choice, "toolConfig.toolChoice")
    top = anthropic.top_marker(fields) if api == "anthropic" else None
    prompt = Prompt(api, model, sections, settings, top)
    reader.keep(prompt)
    return prompt


def redecode(prompt: Prompt, body: Mapping[str, Any], places: Iterable[int], count: CountTokens) -> Prompt | None:
    """The prompt of ``body``, which is that of ``prompt`` with other markers at ``places`` and other settings.

    Nothing else is read or hashed again. None for forms where a marker moves what stands behind it. Raises as
    ``decode`` does.
    """
    find = _UNITS.get(prompt.api)
    if find is None:
        return None
    made, changed = list(prompt.sections), set[int]()
    for place in places:
        found = _UNIT.match(made[place].path)
        if found is None:
            return None
        first, end = place, place + 1
        while made[first].head == "+":
            first -= 1
        while end < len(made) and made[end].head == "+":
            end += 1
        value, split = find(body, found[1], int(found[2]))
        reader = Reader(prompt.api, prompt.model, count, None, made[first:end])
        again = split(reader, made[place].tier, found[0], value)
        if [one.digest for one in again] != [one.digest for one in made[first:end]]:
            return None
        made[first:end] = again
        changed.update(range(first, end))
    kept = {name: value for name, value in prompt.settings.items() if name.startswith("header:")}
    settings = {**settings_of(body, _CONTENT[prompt.api], None), **kept}
    top = anthropic.top_marker(body) if prompt.api == "anthropic" else None
    marked = Prompt(prompt.api, prompt.model, tuple(made), settings, top)
    relearn(marked, prompt, changed)
    return marked


def encode(prompt: Prompt) -> dict[str, Any]:
    """The canonical wire body of a prompt: ``decode(encode(p), p.api)`` equals ``p`` for what a provider takes."""
    body = _BODIES[prompt.api](prompt)
    body["modelId" if prompt.api == "bedrock" else "model"] = prompt.model
    for name, value in prompt.settings.items():
        if name.startswith("header:"):
            continue
        if prompt.api == "bedrock" and name == bedrock.TOOL_CHOICE:
            body.setdefault("toolConfig", {})[name] = loads(value)
        else:
            body[name] = loads(value)
    return body


def guess_api(body: Mapping[str, Any]) -> Api:
    """The API form of a bare body, from the fields it has."""
    if "contents" in body:
        return "gemini"
    if "input" in body or "instructions" in body:
        return "openai-responses"
    if "modelId" in body or "toolConfig" in body or "inferenceConfig" in body:
        return "bedrock"
    if "system" in body or "anthropic_version" in body or "thinking" in body or "cache_control" in body:
        return "anthropic"
    tools = body.get("tools")
    if isinstance(tools, list) and tools and isinstance(tools[0], Mapping) and "input_schema" in tools[0]:
        return "anthropic"
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else []:
        content = message.get("content") if isinstance(message, Mapping) else None
        for block in content if isinstance(content, list) else []:
            if isinstance(block, Mapping) and (
                block.get("type") in ("tool_use", "tool_result", "thinking") or "cache_control" in block
            ):
                return "anthropic"
    return "openai-chat"


_PATHS: tuple[tuple[re.Pattern[str], Api], ...] = (
    (re.compile(r"/chat/completions$"), "openai-chat"),
    (re.compile(r"/responses$"), "openai-responses"),
    (re.compile(r"/messages$"), "anthropic"),
    (re.compile(r"/models/(?P<model>[^/]+):(?:stream)?[gG]enerateContent$"), "gemini"),
    (re.compile(r"/model/(?P<model>[^/]+)/converse(?:-stream)?$"), "bedrock"),
)


def api_of_path(path: str) -> tuple[Api, str | None] | None:
    """The API of a request to ``path``, and the model where the path names it.

    None for a path that asks no model for an answer (embeddings, counting tokens, lists of models). ``path`` is that
    of a URL, without the query.
    """
    for pattern, api in _PATHS:
        found = pattern.search(path)
        if found is not None:
            model = found.groupdict().get("model")
            return api, None if model is None else unquote(model)
    return None
