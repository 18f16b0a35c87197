"""The prompt an application would have sent, rebuilt from the one that was, for the estimate of what it had cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cacheprefix.prompt import Prompt, decode


def unmodified(
    prompt: Prompt,
    *,
    system: Sequence[str],
    tools: Sequence[Mapping[str, Any]] | None,
    tail: str,
    count: Callable[[str, str], int],
) -> Prompt:
    """The prompt as the application made it: its own system texts and tools, no tail, no markers.

    ``tools`` are in the wire form of the prompt's API. Sections of the conversation are taken over as they are.
    """
    body: dict[str, Any] = {"model": prompt.model, "tools": list(tools or [])}
    if prompt.api == "anthropic":
        body["system"] = [{"type": "text", "text": text} for text in system]
    else:
        field = "input" if prompt.api == "openai-responses" else "messages"
        body[field] = [{"role": "system", "content": text} for text in system]
    head = decode(body, prompt.api, count=count).sections
    rest = list(prompt.tier("messages"))
    data = tail.encode("utf-8", "surrogatepass")
    found = next((i for i in range(len(rest) - 1, -1, -1) if rest[i].data == data), None) if tail else None
    if found is not None:
        del rest[found]
    plain = (replace(section, marker=None) if section.marker else section for section in rest)
    return replace(prompt, sections=(*head, *plain), top_marker=None)
