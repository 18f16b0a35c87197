"""The prompt an application would have sent, rebuilt from the one that was, for the estimate of what it had cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cacheprefix.prompt import Prompt, Section, dumps, section
from cacheprefix.wire import decode


def unmodified(
    prompt: Prompt,
    *,
    system: Sequence[str],
    tools: Sequence[Mapping[str, Any]] | None,
    tail: str,
    count: Callable[[str, str], int],
    restored: Sequence[tuple[str, str]] = (),
) -> Prompt:
    """The prompt as the application made it: its own system texts and tools, no tail, no markers.

    ``tools`` are in the wire form of the prompt's API. Sections of the conversation are taken over as they are,
    but for tool results that were shortened: ``restored`` pairs the text sent with the text it stands for.
    """
    body: dict[str, Any] = {"model": prompt.model, "tools": list(tools or [])}
    if prompt.api == "anthropic":
        body["system"] = [{"type": "text", "text": text} for text in system]
    elif prompt.api == "gemini":
        body["systemInstruction"] = {"parts": [{"text": text} for text in system]}
    else:
        field = "input" if prompt.api == "openai-responses" else "messages"
        body[field] = [{"role": "system", "content": text} for text in system]
    head = decode(body, prompt.api, count=count).sections
    rest = list(prompt.tier("messages"))
    data = tail.encode("utf-8", "surrogatepass")
    found = next((i for i in range(len(rest) - 1, -1, -1) if rest[i].data == data), None) if tail else None
    if found is not None:
        del rest[found]
    for sent, full in restored:
        rest = [_full(section, sent, full, prompt.model, count) for section in rest]
    plain = (replace(section, marker=None) if section.marker else section for section in rest)
    return replace(prompt, sections=(*head, *plain), top_marker=None)


def _full(one: Section, sent: str, full: str, model: str, count: Callable[[str, str], int]) -> Section:
    """The section with the whole tool result, if it holds the shortened one."""
    if one.kind not in ("text", "tool_result"):
        return one
    if one.kind == "tool_result":
        sent, full = (dumps(text, one.path).decode()[1:-1] for text in (sent, full))
    if sent not in one.text:
        return one
    data = one.text.replace(sent, full, 1).encode("utf-8", "surrogatepass")
    return section(one.tier, one.path, one.kind, one.head, data, lambda text: count(text, model), one.marker)
