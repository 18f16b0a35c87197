"""Views of message dicts in the forms of OpenAI's two APIs and of Anthropic, with memory of messages seen.

A message's JSON bytes are the key of the memory, so a message changed in place is never mistaken
for its earlier self, and a history that only grows costs one short look at each old message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from cacheprefix.bounded import PerOwner
from cacheprefix.errors import BodyError
from cacheprefix.prompt import dumps, estimate_tokens
from cacheprefix.prompt.views import Count, MessageView, ResultView, digest_of, with_parts
from cacheprefix.wire.apis import CHATS
from cacheprefix.wire.frozen import FrozenDict
from cacheprefix.wire.messages import Form


def views_of(messages: Sequence[Mapping[str, Any]], api: Form, count: Count | None = None) -> tuple[MessageView, ...]:
    """One view a message, in order; raises ``BodyError`` where a message is malformed.

    ``count`` gives the tokens of a text, the documented estimate by default. Tool results get their
    tool's name from the call they answer, since most forms do not repeat it.
    """
    counter = count or estimate_tokens
    names: dict[str, str] = {}
    views = []
    for index, message in enumerate(messages):
        view = view_of(message, api, counter, f"messages[{index}]")
        for call in view.calls:
            names[call.id] = call.name
        for result in view.results:
            if not result.name and result.call_id in names:
                view = _named(view, names, counter)
                break
        views.append(view)
    return tuple(views)


def view_of(message: Mapping[str, Any], api: Form, count: Count, path: str) -> MessageView:
    """View of one message, from memory when the same content was viewed before."""
    if type(message) is FrozenDict:
        cached = message.view
        if cached is not None and cached[0] == (api, count):
            view: MessageView = cached[1]
            return view
    elif type(message) is not dict and not isinstance(message, Mapping):
        raise BodyError(path, f"expected an object, found {type(message).__name__}")
    data = dumps(message, path)
    key, memo = (api, blake2b(data, digest_size=16).digest()), _MEMO.of(count)
    view_found = memo.get(key)
    if view_found is None:
        view_found = CHATS[api].view(message, path, count)
        memo.put(key, view_found, len(data) + _OVERHEAD)
    if type(message) is FrozenDict:
        message.view = ((api, count), view_found)
    return view_found


def named(view: MessageView, names: Mapping[str, str]) -> MessageView:
    """The view with its results' tool names filled in from the calls they answer."""
    results = tuple([_with_name(result, names.get(result.call_id, "")) for result in view.results])
    return with_parts(view, view.tokens, view.calls, results, view.thinking)


def _with_name(result: ResultView, name: str) -> ResultView:
    if result.name or not name:
        return result
    digest = digest_of(name, result.digest)
    return ResultView(
        result.call_id, name, digest, result.tokens, result.is_error, result.text, result.kind, result.part
    )


def _named(view: MessageView, names: Mapping[str, str], count: Count) -> MessageView:
    asked = [(names.get(result.call_id, ""), result.call_id, result.part) for result in view.results]
    key, memo = (view.digest, *asked), _MEMO.of(count)
    found = memo.get(key)
    if found is None:
        found = named(view, names)
        memo.put(key, found, 4 * view.tokens + _OVERHEAD)
    return found


_OVERHEAD = 500
"""Bytes of what is kept of a message beside its text."""
_MEMO: PerOwner[Any, MessageView] = PerOwner(64_000_000)
"""What each counter's messages looked like."""


def forget_views(count: Count) -> None:
    """Let go what a counter's messages looked like; they are read anew where they come again."""
    _MEMO.clear(count)
