"""Set breakpoints on a wire body, without touching the body that was given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cacheprefix.prompt import Api, Prompt

if TYPE_CHECKING:
    from cacheprefix.cache.breakpoints.plan import Breakpoint

_STEP = re.compile(r"^(tools|functions|system|messages)\[(\d+)\](?:\.content(?:\[(\d+)\])?)?$")


def mark(body: Mapping[str, Any], api: Api, prompt: Prompt, breakpoints: Sequence[Breakpoint]) -> dict[str, Any]:
    """A copy of ``body`` with the breakpoints set; everything that is not marked is the very same object.

    ``prompt`` is the body decoded. A text that stands as a bare string becomes one text block, which providers
    take for the same; a tool result is marked on its own block, so that its content keeps its shape. What
    cannot carry a breakpoint is left as it is.
    """
    copy = _Copy(body, api)
    # From the end: Bedrock's cache points are blocks of their own and move the indexes behind them.
    for one in sorted(breakpoints, key=lambda one: -one.section):
        if one.section < 0:
            continue
        section = prompt.sections[one.section]
        copy.set(section.path, section.head, one.ttl)
    if api.startswith("openai") and any(one.alone for one in breakpoints):
        copy.body.setdefault("prompt_cache_options", {"mode": "explicit"})
    return copy.body


class _Copy:
    """A body that is copied only along the ways that change."""

    def __init__(self, body: Mapping[str, Any], api: Api) -> None:
        self.body = dict(body)
        self._api = api
        self._mine: set[int] = set()

    def set(self, path: str, head: str, ttl: str | None) -> None:
        """Mark the block that a section's path names."""
        found = _STEP.match(path)
        if found is None:
            return
        tier, number, block = found[1], int(found[2]), found[3]
        if self._api == "bedrock":
            self._point(tier, number, block, ttl)
        elif self._api == "anthropic":
            self._anthropic(tier, number, block, _anthropic(ttl))
        elif self._api == "openai-chat" and tier in ("system", "messages"):
            self._content(self._list(self.body, "messages"), number, block, "text", _openai(ttl))
        elif self._api == "openai-responses" and tier in ("system", "messages"):
            self._responses(tier, number, block, head, _openai(ttl))

    def _anthropic(self, tier: str, number: int, block: str | None, marker: Mapping[str, Any]) -> None:
        if tier == "messages":
            self._content(self._list(self.body, "messages"), number, block, "text", marker)
        elif tier == "system" and isinstance(self.body.get("system"), str):
            self.body["system"] = [{"type": "text", "text": self.body["system"], **marker}]
        else:
            self._block(self._list(self.body, tier), number, "text", marker)

    def _responses(self, tier: str, number: int, block: str | None, head: str, marker: Mapping[str, Any]) -> None:
        if head == "instructions":
            return
        if isinstance(self.body.get("input"), str):
            self.body["input"] = [{"role": "user", "content": self.body["input"]}]
        shift = 1 if tier == "system" and self.body.get("instructions") is not None else 0
        kind = "output_text" if head == "assistant" else "input_text"
        self._content(self._list(self.body, "input"), number - shift, block, kind, marker)

    def _content(
        self, messages: list[Any], number: int, block: str | None, kind: str, marker: Mapping[str, Any]
    ) -> None:
        message = self._item(messages, number)
        content = message.get("content")
        if isinstance(content, str):
            message["content"] = [{"type": kind, "text": content, **marker}]
        elif isinstance(content, Sequence) and content:
            self._block(self._list(message, "content"), int(block or 0), kind, marker)

    def _block(self, blocks: list[Any], number: int, kind: str, marker: Mapping[str, Any]) -> None:
        block = blocks[number]
        plain = {"type": kind, "text": block} if isinstance(block, str) else block
        blocks[number] = {**plain, **marker}

    def _point(self, tier: str, number: int, block: str | None, ttl: str | None) -> None:
        point = {"cachePoint": {"type": "default", **({} if ttl is None else {"ttl": ttl})}}
        if tier == "tools":
            config = dict(self.body["toolConfig"])
            self.body["toolConfig"] = config
            self._list(config, "tools").insert(number + 1, point)
        elif tier == "system":
            self._list(self.body, "system").insert(number + 1, point)
        else:
            message = self._item(self._list(self.body, "messages"), number)
            self._list(message, "content").insert(int(block or 0) + 1, point)

    def _list(self, holder: dict[str, Any], name: str) -> list[Any]:
        held: list[Any] = holder[name]
        if id(held) not in self._mine:
            held = holder[name] = list(held)
            self._mine.add(id(held))
        return held

    def _item(self, items: list[Any], number: int) -> dict[str, Any]:
        item: dict[str, Any] = items[number]
        if id(item) not in self._mine:
            item = items[number] = dict(item)
            self._mine.add(id(item))
        return item


def _anthropic(ttl: str | None) -> dict[str, Any]:
    return {"cache_control": {"type": "ephemeral", **({} if ttl is None else {"ttl": ttl})}}


def _openai(ttl: str | None) -> dict[str, Any]:
    return {"prompt_cache_breakpoint": {"mode": "explicit", **({} if ttl is None else {"ttl": ttl})}}
