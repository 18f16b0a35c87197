"""An append-only list that many states share.

A state is a value, and yet appending to it must not copy its history. States therefore share one
growing list and each knows how much of it is its own. Appending to the newest costs one step; an
older state that is appended to (a fork) takes a copy first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from cacheprefix.context._apply import sendable
from cacheprefix.context._frozen import FrozenDict
from cacheprefix.context._views import MessageView
from cacheprefix.locks import Lock


class _Shared:
    """The lists behind logs: messages, the same without marks, views, and tokens up to each."""

    __slots__ = ("lock", "messages", "sums", "views", "wire")

    def __init__(self) -> None:
        self.messages: list[FrozenDict] = []
        self.wire: list[FrozenDict] = []
        self.views: list[MessageView] = []
        self.sums: list[int] = []
        self.lock = Lock()

    def copy(self, size: int) -> _Shared:
        new = _Shared()
        new.messages = self.messages[:size]
        new.wire = self.wire[:size]
        new.views = self.views[:size]
        new.sums = self.sums[:size]
        return new


class Log:
    """The first ``size`` entries of shared lists. Immutable."""

    __slots__ = ("_shared", "size")

    def __init__(self, shared: _Shared | None = None, size: int = 0) -> None:
        self._shared: Final = shared or _Shared()
        self.size: Final = size

    @property
    def messages(self) -> list[FrozenDict]:
        """The messages with their marks."""
        return self._shared.messages[: self.size]

    @property
    def wire(self) -> list[FrozenDict]:
        """The messages as they are sent."""
        return self._shared.wire[: self.size]

    def send_to(self, out: list[Any]) -> None:
        """Append the messages as they are sent; one copy where the log is the newest of its kind."""
        wire, start = self._shared.wire, len(out)
        if len(wire) > 2 * self.size:
            out += wire[: self.size]
            return
        out += wire
        # Another thread may have appended to the shared list, also in this very moment.
        del out[start + self.size :]

    @property
    def views(self) -> list[MessageView]:
        """The messages' views."""
        return self._shared.views[: self.size]

    @property
    def tokens(self) -> int:
        """Tokens of all messages."""
        return self._shared.sums[self.size - 1] if self.size else 0

    def view(self, index: int) -> MessageView:
        """One view, by index from the start."""
        return self._shared.views[index]

    def extended(self, entries: Iterable[tuple[FrozenDict, MessageView]]) -> Log:
        """The log with entries appended."""
        shared, size = self._shared, self.size
        with shared.lock:
            if len(shared.messages) != size:
                shared = shared.copy(size)
            tokens = shared.sums[-1] if shared.sums else 0
            for message, view in entries:
                tokens += view.tokens
                bare: Any = sendable([message])[0]
                shared.messages.append(message)
                shared.wire.append(bare if isinstance(bare, FrozenDict) else FrozenDict(bare))
                shared.views.append(view)
                shared.sums.append(tokens)
            return Log(shared, len(shared.messages))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Log) and self.messages == other.messages

    __hash__ = None  # type: ignore[assignment]  # messages are dicts

    def __len__(self) -> int:
        return self.size
