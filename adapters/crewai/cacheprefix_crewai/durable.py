"""What the application said to a crew's conversation: its zones and durable context, which every agent is to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cacheprefix.adapter import Bounded, context_block

if TYPE_CHECKING:
    from cacheprefix import Conversation
    from cacheprefix_crewai.binding import Binding

_KEEP = 2_000


class DurableTexts:
    """The texts of an installation's conversation, as each run of a task has them.

    Zones (``set_zone``) stay as they were when the kickoff began; durable context (``append_context``) is there from
    the next task on. A task goes on with what it began with, so that its requests only grow at their end.

    What a kickoff finds said under one key stands in one block. Where it was said since the kickoff before, that costs
    no more than the key's own text: what stands behind it is read nowhere any more in any case.
    """

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self._begun: Bounded[str, _Begun] = Bounded(_KEEP)
        self._whose: Conversation | None = None
        self._tasks: Bounded[tuple[str, str], tuple[str, ...]] = Bounded(_KEEP)

    def of(self, task: str, *, first: bool) -> tuple[str, ...]:
        """The texts that a run of a task is told: those of its first request (``first``), in all its later ones too.

        ``task`` is what the run begins with, by which it is found again.
        """
        if not self._binding.rewrites:
            return ()
        key = self._binding.kickoff_id, task
        with self._binding.lock:
            held = self._binding.held
            if self._whose is not held:
                # The session was told to forget the one before: what it was told goes with it.
                self._whose = held
                self._begun.clear()
                self._tasks.clear()
            known = None if first else self._tasks.get(key)
        if known is not None:
            return known
        # Without the lock: the application's own consolidation may ask a model.
        found = self._now(key[0], held)
        with self._binding.lock:
            if self._whose is held:
                self._tasks[key] = found
        return found

    def _now(self, kickoff: str, held: Conversation) -> tuple[str, ...]:
        """What is said to a kickoff from its next task on: its zones as it began, and durable context to date."""
        # Agents without a crew have no kickoffs: whatever they are asked begins with the newest.
        known = self._begun.get(kickoff) if kickoff else None
        begun = known or _begun(held)
        with self._binding.lock:
            if kickoff and self._whose is held:
                begun = self._begun.of(kickoff, lambda: begun)
        return *begun.zones, *(context_block(key, text) for key, text in held.durable_context(begun.joined))


@dataclass(frozen=True, slots=True)
class _Begun:
    """What a kickoff found said when it began."""

    zones: tuple[str, ...]
    joined: int
    """Texts of durable context, which stand in one block a key."""


def _begun(held: Conversation) -> _Begun:
    """What the conversation says to a kickoff that begins now."""
    shown = (zone.refreshed() for zone in held.state.zones)
    return _Begun(tuple(zone.text() for zone in shown if zone.shown), held.join_context())
