"""What cacheprefix does by itself, as plugins like everyone's: a plugin of the application overrides each."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cacheprefix.errors import plain

if TYPE_CHECKING:
    from cacheprefix.cache import Verdict
    from cacheprefix.history import Strategy, ToolResultBudget
    from cacheprefix.layout import SharedPrefix
    from cacheprefix.prompt import ResultView

log = logging.getLogger("cacheprefix")


class Freezing:
    """Puts the union of tools in order of names and renders each schema once, where the core can read them."""

    def cacheprefix_freeze(self, prefix: SharedPrefix) -> SharedPrefix:
        """The prefix with its dict tools frozen; tools of a framework wait for their adapter."""
        from cacheprefix.layout import Tool  # noqa: PLC0415 - the room imports nothing until a session needs it

        if all(isinstance(tool, Tool) for tool in prefix.tools):
            return prefix.frozen()
        return prefix


class ToolResults:
    """Cuts large tool results by the session's budget; a plugin of the application may say otherwise for each."""

    def cacheprefix_replace_tool_result(self, result: ResultView, budget: ToolResultBudget) -> tuple[int, Strategy]:
        """Tokens and strategy for the result's tool."""
        return budget.limit(result.name)


class BreakDetection:
    """Logs every alarm with its cause, its place and what it cost; never prompt text."""

    def cacheprefix_cache_break(self, verdict: Verdict) -> None:
        """One log line at level WARNING."""
        log.warning(
            "cache break: %s%s, %d tokens lost (agent %s). %s",
            verdict.cause,
            f" at {plain(verdict.path)}" if verdict.path else "",
            verdict.lost_tokens,
            plain(verdict.agent) or "unnamed",
            verdict.fix,
        )


BUILTINS: tuple[tuple[str, object], ...] = (
    ("freezing", Freezing()),
    ("tool-result budget", ToolResults()),
    ("break detection", BreakDetection()),
)
"""Names and plugins, in the order they are registered."""
