"""From wire bodies to prompts and back, for every API that is read; and what an API would refuse."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from cacheprefix.errors import BodyError, SetupError
from cacheprefix.prompt.canonical_json import loads
from cacheprefix.prompt.sections import ABOUT, Api, CountTokens, Envelope, Prompt, relearn
from cacheprefix.prompt.tokens import estimate_tokens
from cacheprefix.wire.apis import CHATS, SHAPES, form_of
from cacheprefix.wire.messages import Takes
from cacheprefix.wire.reader import Memo, Reader, mapping, settings_of, top_marker

_UNIT = re.compile(r"^(tools|functions|system|messages)\[(\d+)\]")


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
    shape = SHAPES.get(api)
    if shape is None:
        raise SetupError(f"unknown API form {api!r}; use one of {', '.join(get_args(Api))}")
    fields = mapping(loads(body) if isinstance(body, (bytes, str)) else body, "body")
    model = fields.get("model", fields.get("modelId", ""))
    if not isinstance(model, str):
        raise BodyError("model", f"expected a string, found {type(model).__name__}")
    reader = Reader(api, model, count or estimate_tokens, memo, envelope=envelope)
    sections = tuple(shape.sections(fields, reader))
    settings = settings_of(fields, shape.FIELDS, headers)
    prompt = Prompt(api, model, sections, settings, top_marker(fields, shape.FIELDS))
    reader.keep(prompt)
    return prompt


def redecode(prompt: Prompt, body: Mapping[str, Any], places: Iterable[int], count: CountTokens) -> Prompt | None:
    """The prompt of ``body``, which is that of ``prompt`` with other markers at ``places`` and other settings.

    Nothing else is read or hashed again. None for forms where a marker moves what stands behind it. Raises as
    ``decode`` does.
    """
    form = form_of(prompt.api)
    if form is None:
        return None
    shape = CHATS[form]
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
        value, split = shape.unit(body, found[1], int(found[2]))
        reader = Reader(prompt.api, prompt.model, count, None, made[first:end])
        again = split(reader, made[place].tier, found[0], value)
        if [one.digest for one in again] != [one.digest for one in made[first:end]]:
            return None
        made[first:end] = again
        changed.update(range(first, end))
    kept = {name: value for name, value in prompt.settings.items() if name.startswith("header:")}
    settings = {**settings_of(body, shape.FIELDS, None), **kept}
    marked = Prompt(prompt.api, prompt.model, tuple(made), settings, top_marker(body, shape.FIELDS))
    relearn(marked, prompt, changed)
    return marked


def encode(prompt: Prompt) -> dict[str, Any]:
    """The canonical wire body of a prompt: ``decode(encode(p), p.api)`` equals ``p`` for what a provider takes."""
    shape = SHAPES[prompt.api]
    body = shape.body(prompt)
    body[shape.FIELDS.model] = prompt.model
    for name, value in prompt.settings.items():
        outer = shape.FIELDS.inner.get(name)
        if outer is not None:
            body.setdefault(outer, {})[name] = loads(value)
        elif not name.startswith("header:"):
            body[name] = loads(value)
    return body


def structure_errors(
    body: Mapping[str, Any], api: Api, *, prefill: bool = True, mid_system: bool = True
) -> list[BodyError]:
    """What a provider would refuse a request body for, in the order in which it stands; empty for a valid request.

    A provider answers 400 to a tool result without its call, a call without its result, an empty text, a message in
    the wrong place, or an answer begun for a model that takes none. What is checked is what the pages, error messages
    and recorded answers say that the API's module names; what they leave open is taken.

    ``prefill`` is whether the model takes a last message of its own as the beginning of its answer, ``mid_system``
    whether it takes a system message among the others (Anthropic alone asks); a profile has both by these names.
    What cannot be read at all is an error too. Never raises for a mapping.
    """
    found = SHAPES[api].errors(body, Takes(prefill=prefill, mid_system=mid_system))
    return [BodyError(path, said) for path, said in found]
