"""Views of message dicts in the forms of OpenAI's two APIs and of Anthropic, with memory of messages seen.

A message's JSON bytes are the key of the memory, so a message changed in place is never mistaken
for its earlier self, and a history that only grows costs one short look at each old message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal
from weakref import WeakKeyDictionary

from cacheprefix.bounded import Generations
from cacheprefix.errors import BodyError
from cacheprefix.locks import Lock
from cacheprefix.prompt import Api, dumps, estimate_tokens
from cacheprefix.prompt.views import (
    CallView,
    Count,
    MessageView,
    ResultView,
    Role,
    digest_of,
    make_call,
    make_message,
    make_result,
)
from cacheprefix.wire.frozen import FrozenDict

Form = Literal["openai-chat", "openai-responses", "anthropic"]
"""``openai-responses``: a message is one item of ``input`` (message, function_call, its output, reasoning)."""
MARKS = "_cacheprefix"
"""The field of a message dict that holds its key and pin; taken off before anything is sent."""
REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Assistant fields beside the content in which OpenAI-compatible servers carry visible reasoning."""

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_FORMS: dict[str, Form] = {
    "openai-chat": "openai-chat",
    "openai-responses": "openai-responses",
    "anthropic": "anthropic",
}
_THINKING = ("thinking", "redacted_thinking", "reasoning")

Read = Callable[[Mapping[str, Any], str, Count], MessageView]


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
    key, memo = (api, blake2b(data, digest_size=16).digest()), _memo_of(count)
    view_found = memo.get(key)
    if view_found is None:
        view_found = _READERS[api](message, path, count)
        memo.put(key, view_found, len(data) + _OVERHEAD)
    if type(message) is FrozenDict:
        message.view = ((api, count), view_found)
    return view_found


def named(view: MessageView, names: Mapping[str, str]) -> MessageView:
    """The view with its results' tool names filled in from the calls they answer."""
    results = tuple([_with_name(result, names.get(result.call_id, "")) for result in view.results])
    return MessageView(
        view.role,
        view.digest,
        view.tokens,
        view.calls,
        results,
        view.thinking,
        view.key,
        view.pinned,
        view.texts,
        view.media,
        view.summary,
        view.item,
    )


def _with_name(result: ResultView, name: str) -> ResultView:
    if result.name or not name:
        return result
    digest = digest_of(name, result.digest)
    return ResultView(
        result.call_id, name, digest, result.tokens, result.is_error, result.text, result.kind, result.part
    )


def _named(view: MessageView, names: Mapping[str, str], count: Count) -> MessageView:
    asked = [(names.get(result.call_id, ""), result.call_id, result.part) for result in view.results]
    key, memo = (view.digest, *asked), _memo_of(count)
    found = memo.get(key)
    if found is None:
        found = named(view, names)
        memo.put(key, found, 4 * view.tokens + _OVERHEAD)
    return found


def form_of(api: Api) -> Form | None:
    """The message form of an API; None for those whose messages this room cannot read."""
    return _FORMS.get(api)


def is_reasoning(item: Mapping[str, Any], api: Form) -> bool:
    """Whether it is a reasoning item of the responses form, which the API takes only with what comes behind it."""
    return api == "openai-responses" and item.get("type") == "reasoning"


def role_of(message: Mapping[str, Any], path: str) -> Role:
    """The role in this room's four words; raises ``BodyError`` for a missing or unknown one."""
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise BodyError(f"{path}.role", f"expected one of {', '.join(_ROLES)}, found {role!r}")
    return _ROLES[role]


def _read_openai(message: Mapping[str, Any], path: str, count: Count) -> MessageView:
    role = role_of(message, path)
    key, pinned, summary = _marks(message)
    texts, media = _content(message.get("content"), f"{path}.content")
    if role == "tool":
        call_id = str(message.get("tool_call_id") or message.get("name") or "")
        text = "\n".join(texts) if texts else None
        # Chat completions have no error flag; frameworks that keep one leave it in the message.
        flag = message.get("is_error")
        result = make_result(
            call_id,
            str(message.get("name") or ""),
            text,
            count,
            is_error=flag if isinstance(flag, bool) else None,
            media=media,
        )
        return make_message(role, (), count, results=(result,), key=key, pinned=pinned, summary=summary)
    thinking = [(-1, str(message[field])) for field in REASONING_FIELDS if message.get(field)]
    calls = [_openai_call(call, f"{path}.tool_calls[{n}]", count) for n, call in _listed(message, "tool_calls")]
    legacy = message.get("function_call")
    if legacy is not None and isinstance(legacy, Mapping):
        name = str(legacy.get("name") or "")
        calls.append(make_call(name, name, _arguments(legacy.get("arguments"), path), count))
    return make_message(
        role, texts, count, calls=calls, thinking=thinking[:1], media=media, key=key, pinned=pinned, summary=summary
    )


def _read_responses(item: Mapping[str, Any], path: str, count: Count) -> MessageView:
    key, pinned, summary = _marks(item)
    kind = str(item.get("type") or "message")
    if kind == "message":
        texts, media = _content(item.get("content"), f"{path}.content")
        role = role_of(item, path)
        return make_message(role, texts, count, media=media, key=key, pinned=pinned, summary=summary)
    call_id = item.get("call_id")
    if kind.endswith("_call_output") and isinstance(call_id, str):
        inner, pictures = _content(item.get("output"), f"{path}.output")
        result = make_result(call_id, "", "\n".join(inner) if inner else None, count, media=pictures)
        return make_message("tool", (), count, results=(result,), key=key, pinned=pinned)
    if kind.endswith("_call") and isinstance(call_id, str):
        given = item.get("arguments", item.get("input", item.get("action")))
        call = make_call(call_id, str(item.get("name") or kind), _arguments(given, path), count)
        return make_message("assistant", (), count, calls=(call,), key=key, pinned=pinned, item=True)
    if kind == "reasoning":
        # No thinking that could be cleared by itself: the API refuses the item behind it without it.
        summaries, _ = _content(item.get("summary") or "", f"{path}.summary")
        shown, _ = _content(item.get("content") or "", f"{path}.content")
        sealed = str(item.get("encrypted_content") or "")
        said = [*summaries, *shown, sealed or str(item.get("id") or "")]
        return make_message("assistant", said, count, item=True)
    # What a kind unknown here belongs to cannot be known either, so it stays where it is.
    data = dumps(item, path).decode("utf-8", "surrogatepass")
    return make_message("assistant", (data,), count, key=key, pinned=True)


def _read_anthropic(message: Mapping[str, Any], path: str, count: Count) -> MessageView:
    role = role_of(message, path)
    key, pinned, summary = _marks(message)
    content = message.get("content")
    if content is None or isinstance(content, str):
        return make_message(role, (content,) if content else (), count, key=key, pinned=pinned, summary=summary)
    texts: list[str] = []
    media: list[str] = []
    calls: list[CallView] = []
    results: list[ResultView] = []
    thinking: list[tuple[int, str]] = []
    for part, block in enumerate(_blocks(content, f"{path}.content")):
        where = f"{path}.content[{part}]"
        kind = block.get("type")
        if kind == "text":
            texts.append(_string(block.get("text"), f"{where}.text"))
        elif kind == "tool_use":
            arguments = _arguments(block.get("input"), where)
            calls.append(make_call(str(block.get("id") or ""), str(block.get("name") or ""), arguments, count))
        elif kind == "tool_result":
            inner, pictures = _content(block.get("content"), f"{where}.content")
            results.append(
                make_result(
                    str(block.get("tool_use_id") or ""),
                    "",
                    "\n".join(inner) if inner else None,
                    count,
                    # Anthropic's flag is optional and false when absent, yet many tools only say it in words.
                    is_error=True if block.get("is_error") else None,
                    media=pictures,
                    part=part,
                )
            )
        elif kind in _THINKING:
            thinking.append((part, str(block.get("thinking") or block.get("data") or "")))
        else:
            media.append(_fingerprint(block, where))
    return make_message(
        role,
        texts,
        count,
        calls=calls,
        results=results,
        thinking=thinking,
        media=media,
        key=key,
        pinned=pinned,
        summary=summary,
    )


def _content(content: Any, path: str) -> tuple[list[str], list[str]]:
    """Texts and media fingerprints of string or block content."""
    if content is None or content == "":
        return [], []
    if isinstance(content, str):
        return [content], []
    if isinstance(content, Mapping):
        return [dumps(content, path).decode()], []
    texts: list[str] = []
    media: list[str] = []
    for part, block in enumerate(_blocks(content, path)):
        if isinstance(block.get("text"), str):
            texts.append(block["text"])
        elif isinstance(block.get("refusal"), str):
            texts.append(block["refusal"])
        else:
            media.append(_fingerprint(block, f"{path}[{part}]"))
    return texts, media


def _blocks(content: Any, path: str) -> list[Mapping[str, Any]]:
    if not isinstance(content, Sequence) or isinstance(content, (str, bytes)):
        raise BodyError(path, f"expected text or a list of blocks, found {type(content).__name__}")
    blocks: list[Mapping[str, Any]] = []
    for part, block in enumerate(content):
        if isinstance(block, str):
            blocks.append({"type": "text", "text": block})
        elif isinstance(block, Mapping):
            blocks.append(block)
        else:
            raise BodyError(f"{path}[{part}]", f"expected a block, found {type(block).__name__}")
    return blocks


def _openai_call(call: Any, path: str, count: Count) -> CallView:
    if not isinstance(call, Mapping):
        raise BodyError(path, f"expected an object, found {type(call).__name__}")
    inner = call.get("function") or call.get("custom") or {}
    arguments = inner.get("arguments", inner.get("input"))
    return make_call(str(call.get("id") or ""), str(inner.get("name") or ""), _arguments(arguments, path), count)


def _listed(message: Mapping[str, Any], field: str) -> list[tuple[int, Any]]:
    return list(enumerate(message.get(field) or ()))


def _arguments(value: Any, path: str) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else dumps(value, path).decode("utf-8", "surrogatepass")


def _fingerprint(block: Mapping[str, Any], path: str) -> str:
    # Markers move and are no content; a picture's digest must not change with them.
    plain = {name: value for name, value in block.items() if name != "cache_control"}
    return digest_of(dumps(plain, path).decode("utf-8", "surrogatepass"))


def _string(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise BodyError(path, f"expected a string, found {type(value).__name__}")
    return value


def _marks(message: Mapping[str, Any]) -> tuple[str | None, bool, bool]:
    marks = message.get(MARKS)
    if marks is None or not isinstance(marks, Mapping):
        return None, False, False
    key = marks.get("key")
    return (key if isinstance(key, str) else None), bool(marks.get("pinned")), bool(marks.get("summary"))


_MEMO_BYTES = 64_000_000
_OVERHEAD = 500
"""Bytes of what is kept of a message beside its text."""
_memos: WeakKeyDictionary[Count, Generations[Any, MessageView]] = WeakKeyDictionary()
"""What each counter's messages looked like. A session's counter goes with it, and so does what it has counted."""
_LOCK = Lock()


def _memo_of(count: Count) -> Generations[Any, MessageView]:
    try:
        found = _memos.get(count)
        if found is None:
            with _LOCK:
                found = _memos.setdefault(count, Generations(_MEMO_BYTES))
    except TypeError:
        # A counter that cannot be referred to weakly would be held for ever; its messages are read each time.
        return Generations(0)
    return found


_READERS: dict[Form, Read] = {
    "openai-chat": _read_openai,
    "openai-responses": _read_responses,
    "anthropic": _read_anthropic,
}
