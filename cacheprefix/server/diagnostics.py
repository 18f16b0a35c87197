"""The provider's own explanation of a miss, as Anthropic gives it on request.

Source: anthropic 2.11.0, types/diagnostics.py and types/cache_miss_*.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cacheprefix.bounded import Bounded
from cacheprefix.prompt import Prompt, shared_sections

_KEPT = 1_000


class Diagnostician:
    """Remembers the prompts of answered requests by the answer's id."""

    def __init__(self) -> None:
        self._known: Bounded[str, Prompt] = Bounded(_KEPT)

    def remember(self, answer: str, prompt: Prompt) -> None:
        """Keep the prompt that ``answer`` replied to, the latest thousand of them."""
        self._known[answer] = prompt

    def explain(self, asked: Any, prompt: Prompt) -> dict[str, Any] | None:
        """The ``diagnostics`` of an answer; None where nothing was asked or nothing parted."""
        if not isinstance(asked, Mapping) or asked.get("previous_message_id") is None:
            return None
        previous = self._known.get(str(asked["previous_message_id"]))
        if previous is None:
            return {"cache_miss_reason": {"type": "previous_message_not_found"}}
        reason = _reason(previous, prompt)
        return None if reason is None else {"cache_miss_reason": reason}


def _reason(before: Prompt, now: Prompt) -> dict[str, Any] | None:
    """Anthropic's ``cache_miss_reason`` for a request that followed another; None where it has none to tell."""
    if before.model != now.model:
        return {"type": "model_changed", "cache_missed_input_tokens": before.tokens}
    shared = shared_sections(before.sections, now.sections)
    if shared < len(before.sections):
        tiers = {one.tier for one in (before.sections[shared : shared + 1] + now.sections[shared : shared + 1])}
        tier = next(tier for tier in ("tools", "system", "messages") if tier in tiers)
        missed = sum(one.tokens for one in before.sections[shared:])
        return {"type": f"{tier}_changed", "cache_missed_input_tokens": missed}
    parameters = ("thinking", "tool_choice", "output_config")
    if any(before.settings.get(name) != now.settings.get(name) for name in parameters):
        return {"type": "unavailable"}
    return None
