"""What the application said to a crew's conversation: its zones and durable context, which every agent is to know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cacheprefix.adapter import Bounded, context_block

if TYPE_CHECKING:
    from cacheprefix_crewai.binding import Binding

_KEEP = 2_000


class DurableTexts:
    """The texts of an installation's conversation, as each run of a task has them.

    Zones (``set_zone``) stay as they were when the kickoff began; durable context (``append_context``) is there from
    the next task on. A task goes on with what it began with, so that its requests only grow at their end.
    """

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self._zones: Bounded[str, tuple[str, ...]] = Bounded(_KEEP)
        self._tasks: Bounded[tuple[str, bytes], tuple[str, ...]] = Bounded(_KEEP)

    def of(self, task: bytes, *, first: bool) -> tuple[str, ...]:
        """Those of a run of a task, by what it begins with; ``first`` for its first request."""
        key = self._binding.kickoff_id, task
        with self._binding.lock:
            if first or key not in self._tasks:
                self._tasks[key] = self._now(key[0])
            return self._tasks[key]

    def _now(self, kickoff: str) -> tuple[str, ...]:
        state = self._binding.held.state
        shown = tuple(zone.text() for zone in (one.refreshed() for one in state.zones) if zone.shown)
        # Agents without a crew have no kickoffs: whatever they are asked begins with the newest zones.
        zones = self._zones.of(kickoff, lambda: shown) if kickoff else shown
        said = zip([*state.committed.messages, *state.turn.messages], state.views, strict=True)
        return *zones, *(context_block(view.key, str(message["content"])) for message, view in said if view.key)
