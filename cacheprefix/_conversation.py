"""One thread, team run or kickoff: its ledger of decisions, and what was decided on its messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cacheprefix.context import Ledger, MessageView, ReplaceResult, ToolResultBudget, budget_results
from cacheprefix.errors import StateError
from cacheprefix.prompt import dumps, loads

if TYPE_CHECKING:
    from cacheprefix.context import Results, ResultView

VERSION = 1


class Conversation:
    """The state of one conversation. Safe to use from several threads.

    Adapters keep ``dumps()`` where the framework keeps its own state. ``id`` is the framework's thread or run id, ``scope`` who may share with it. The ledger only grows.
    """

    def __init__(self, id: str, *, scope: str = "", prefix_key: str = "", ledger: Ledger | None = None) -> None:  # noqa: A002
        self.id = id
        self.scope = scope
        self.prefix_key = prefix_key
        self._ledger = ledger or Ledger()
        self._lock = threading.Lock()

    @property
    def ledger(self) -> Ledger:
        """The decisions so far; an immutable value."""
        return self._ledger

    def merge(self, other: Ledger | Mapping[str, Any] | None) -> None:
        """Take in decisions made elsewhere (a joined branch, a saved state); order does not matter."""
        if other is None:
            return
        ledger = other if isinstance(other, Ledger) else Ledger.from_json(other)
        with self._lock:
            self._ledger = self._ledger.merge(ledger)

    def fork(self) -> Conversation:
        """A conversation that starts with the same decisions and keeps its own from here on."""
        return Conversation(self.id, scope=self.scope, prefix_key=self.prefix_key, ledger=self._ledger.clone())

    def shorten(
        self,
        views: Sequence[MessageView],
        budget: ToolResultBudget | None,
        *,
        count: Callable[[str], int],
        store: Results | None = None,
        replace: Callable[[ResultView], str | None] | None = None,
    ) -> tuple[ReplaceResult, ...]:
        """Decide on tool results never seen before, and repeat what was decided on the others."""
        with self._lock:
            done = budget_results(
                views, self._ledger, budget, count=count, store=store, scope=self.scope, replace=replace
            )
            self._ledger = done.ledger
        return done.decisions

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types: version, prefix key, ledger. Holds no prompt text."""
        return {
            "version": VERSION,
            "id": self.id,
            "prefix": self.prefix_key,
            "ledger": self._ledger.to_json(),
        }

    def dumps(self) -> str:
        """The state as JSON; loaded elsewhere, the same messages give byte-identical prompts."""
        return dumps(self.to_json(), "conversation").decode()

    def restore(self, state: str | Mapping[str, Any], *, rebase: bool = False) -> None:
        """Merge a saved state into this conversation.

        Raises ``StateError`` when it is of another shape, of a newer version, or was saved under another
        prefix; ``rebase=True`` takes it over to the prefix now in force.
        """
        data = loads(state, "conversation") if isinstance(state, str) else state
        if not isinstance(data, Mapping) or "version" not in data:
            message = "this is no saved conversation: a JSON object with a version is expected"
            raise StateError(message)
        if data["version"] != VERSION:
            message = f"the conversation was saved by version {data['version']} of its format, this one reads {VERSION}"
            raise StateError(message)
        saved = data.get("prefix")
        if saved and self.prefix_key and saved != self.prefix_key and not rebase:
            message = (
                f"the conversation was saved under prefix {saved}, the session has {self.prefix_key}; "
                "restore the old system text and tools, or pass rebase=True and pay for one rewrite"
            )
            raise StateError(message)
        self.merge(data.get("ledger"))
