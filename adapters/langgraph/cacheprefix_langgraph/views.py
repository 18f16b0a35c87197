"""LangChain messages as light views: what the core decides on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage

from cacheprefix.adapter import MessageRole as Role
from cacheprefix.adapter import MessageView, dumps, make_call, make_message, make_result
from cacheprefix.wire import views_of

_KEEP = 20_000

KEY = "cacheprefix_key"
"""In ``additional_kwargs``: the key of durable context, which never meets lossy compaction."""
PINNED = "cacheprefix_pinned"
"""In ``additional_kwargs``: no decision may touch the message."""
SUMMARY = "cacheprefix_summary"
"""In ``additional_kwargs``: a compaction wrote the message."""


class Views:
    """Views of messages, remembered for as long as a message is the same object with the same content and marks.

    Content that is a list, and calls, may be changed in place unseen, so messages with these are viewed anew each time.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[BaseMessage, tuple[Any, ...], MessageView]] = {}

    def of(self, messages: Sequence[BaseMessage], count: Callable[[str], int]) -> list[MessageView]:
        """One view a message, tool results with the names of the calls they answer."""
        names: dict[str, str] = {}
        views = []
        for message in messages:
            view = self._view(message, names, count)
            names.update((call.id, call.name) for call in view.calls)
            views.append(view)
        return views

    def _view(self, message: BaseMessage, names: Mapping[str, str], count: Callable[[str], int]) -> MessageView:
        """A message's view: the known one where the message is the same object, and says the same."""
        content, calls = message.content, getattr(message, "tool_calls", None)
        if not isinstance(content, str) or calls:
            return view_of(message, names, count)
        marks, call = message.additional_kwargs, getattr(message, "tool_call_id", None)
        # The application may pin a message later, or a result may stand behind another call.
        answers = (call, names.get(call), message.name, getattr(message, "status", None)) if call else ()
        holds = (content, marks.get(KEY), bool(marks.get(PINNED)), bool(marks.get(SUMMARY)), *answers)
        known = self._known.get(id(message))
        if known is not None and known[0] is message and known[1] == holds:
            return known[2]
        view = view_of(message, names, count)
        if len(self._known) >= _KEEP:
            self._known.clear()
        self._known[id(message)] = (message, holds, view)
        return view


def view_of(message: BaseMessage, names: Mapping[str, str], count: Callable[[str], int]) -> MessageView:
    """The view of one message; ``names`` gives the tool of a call id."""
    if is_raw(message):
        return _raw_view(message, names, count)
    texts, media, thinking = _parts(message.content)
    if isinstance(message, ToolMessage):
        name = message.name or names.get(message.tool_call_id, "")
        failed = True if message.status == "error" else None
        result = make_result(message.tool_call_id, name, "\n".join(texts) or None, count, is_error=failed, media=media)
        return make_message("tool", (), count, results=(result,))
    calls = []
    if isinstance(message, AIMessage):
        calls = [
            make_call(call["id"] or "", call["name"], dumps(call["args"], "tool call").decode(), count)
            for call in message.tool_calls
        ]
    marks = message.additional_kwargs
    return make_message(
        _role(message),
        texts,
        count,
        calls=calls,
        thinking=thinking,
        media=media,
        key=marks.get(KEY),
        pinned=bool(marks.get(PINNED)),
        summary=bool(marks.get(SUMMARY)),
        item=thinks(message),
    )


def thinks(message: BaseMessage) -> bool:
    """Whether a message holds nothing but what the model thought before the next one.

    A provider's rule: OpenAI's Responses API takes such a thought only with what was made from it right behind.
    """
    content = message.content
    if not isinstance(message, AIMessage) or message.tool_calls or not isinstance(content, list):
        return False
    return bool(content) and all(isinstance(block, Mapping) and block.get("type") in THINKING for block in content)


def is_raw(message: BaseMessage) -> bool:
    """Whether an application wrote a message in Anthropic's shape: results, or calls that LangChain has not read."""
    content = message.content
    if isinstance(content, str):
        return False
    kinds = {block.get("type") for block in content if isinstance(block, Mapping)}
    return "tool_result" in kinds or ("tool_use" in kinds and not getattr(message, "tool_calls", None))


def is_answer(message: BaseMessage) -> bool:
    """Whether a message answers calls of tools: providers refuse a text between those and it."""
    return isinstance(message, ToolMessage) or (
        isinstance(message.content, list)
        and any(isinstance(block, Mapping) and block.get("type") == "tool_result" for block in message.content)
    )


def raw_form(message: BaseMessage) -> dict[str, Any]:
    """A message in Anthropic's shape as the API has it, each part of it where it stands in the content."""
    blocks = [{"type": "text", "text": block} if isinstance(block, str) else block for block in message.content]
    return {"role": "assistant" if isinstance(message, AIMessage) else "user", "content": blocks}


def _raw_view(message: BaseMessage, names: Mapping[str, str], count: Callable[[str], int]) -> MessageView:
    form = raw_form(message)
    # The calls whose results stand in it: those do not repeat their tools' names.
    ids = [block["tool_use_id"] for block in form["content"] if block.get("tool_use_id") in names]
    asked = [{"type": "tool_use", "id": one, "name": names[one], "input": {}} for one in ids]
    view = views_of([{"role": "assistant", "content": asked}, form], "anthropic", count)[1]
    marks = message.additional_kwargs
    return replace(view, key=marks.get(KEY), pinned=bool(marks.get(PINNED)), summary=bool(marks.get(SUMMARY)))


THINKING = ("thinking", "redacted_thinking", "reasoning")
CALLS = ("tool_use", "tool_call", "function_call")
"""Types of content blocks: what the model thought, and the tools that it calls."""


def _parts(content: Any) -> tuple[list[str], list[str], list[tuple[int, str]]]:
    """Texts, media (as JSON, for the digest) and thinking blocks of a message's content."""
    if isinstance(content, str):
        return [content], [], []
    texts: list[str] = []
    media: list[str] = []
    thinking: list[tuple[int, str]] = []
    for index, block in enumerate(content):
        if is_text(block):
            texts.append(text_in(block))
        elif isinstance(block, Mapping) and block.get("type") in THINKING:
            thinking.append((index, dumps(block, "thinking").decode()))
        elif not (isinstance(block, Mapping) and block.get("type") in CALLS):
            media.append(dumps(block, "content").decode())
    return texts, media, thinking


def is_text(block: Any) -> bool:
    """Whether a content block is text, in any of the forms that LangChain's classes keep."""
    return isinstance(block, str) or (
        isinstance(block, Mapping) and block.get("type") in ("text", "input_text", "output_text")
    )


def text_in(block: Any) -> str:
    """The text of a block that is one (``is_text``)."""
    return block if isinstance(block, str) else str(block.get("text", ""))


def _role(message: BaseMessage) -> Role:
    if isinstance(message, AIMessage):
        return "assistant"
    if isinstance(message, SystemMessage):
        return "system"
    return "user"
