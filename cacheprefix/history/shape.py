"""Computes a history's tool-call groups and the addresses under which the ledger records decisions on it."""

from __future__ import annotations

from collections.abc import Sequence

from cacheprefix.history.groups import Group, groups_of
from cacheprefix.locks import once
from cacheprefix.prompt.views import MessageView, digest_of


class Shape:
    """Groups and addresses of one history, each computed at first use; shared by planning and carrying out."""

    def __init__(self, views: Sequence[MessageView]) -> None:
        self.views = views
        self._held: dict[str, bool] = {}

    @once
    def groups(self) -> Sequence[Group]:
        """Tool calls with their results."""
        return groups_of(self.views)

    @once
    def place(self) -> dict[str, int]:
        """Index of each message by its address."""
        return {address: index for index, address in enumerate(self.messages)}

    @once
    def messages(self) -> list[str]:
        """The messages' addresses: content and occurrence."""
        return self._addresses[0]

    @once
    def results(self) -> dict[tuple[int, int], str]:
        """The results' addresses by (index, part)."""
        found = self._addresses[1]
        if found is None:
            views = enumerate(self.views)
            return {(index, result.part): result.digest for index, view in views for result in view.results}
        return found

    def span(self, first: int, last: int) -> str:
        """Name the messages ``first`` to ``last`` that a decision is on: address of both, digest of all between."""
        names = self.messages
        return f"{names[first]}:{names[last]}:{self._digest(first, last)}"

    def holds(self, span: str) -> bool:
        """Whether exactly the messages that a span names are in this history, in that order."""
        known = self._held.get(span)
        if known is None:
            start, end, digest = span.split(":")
            first, last = self.place.get(start), self.place.get(end)
            known = first is not None and last is not None and first <= last and self._digest(first, last) == digest
            self._held[span] = known
        return known

    def _digest(self, first: int, last: int) -> str:
        return digest_of("\n".join(self._removable_addresses[first : last + 1]))

    @once
    def _removable_addresses(self) -> list[str]:
        """The address of each removable message, "" for others: those may be added in between without effect."""
        pairs = zip(self.messages, self.views, strict=True)
        return [name if removable(view) else "" for name, view in pairs]

    @once
    def _addresses(self) -> tuple[list[str], dict[tuple[int, int], str] | None]:
        """Each message's address, and each result's by its place; None for results whose digest is their address."""
        views = self.views
        messages = [view.digest for view in views]
        held = [result.digest for view in views for result in view.results]
        # Where no content occurs twice, each digest is the address.
        if len({*messages, *held}) == len(messages) + len(held):
            return messages, None
        seen: dict[str, int] = {}
        results: dict[tuple[int, int], str] = {}
        for index, view in enumerate(views):
            messages[index] = _address(view.digest, seen)
            for result in view.results:
                results[index, result.part] = _address(result.digest, seen)
        return messages, results


def removable(view: MessageView) -> bool:
    """Whether a compaction may remove a message: no system text, durable context or pin."""
    return view.key is None and not view.pinned and view.role != "system"


def _address(digest: str, seen: dict[str, int]) -> str:
    times = seen.get(digest, 0)
    seen[digest] = times + 1
    return digest if times == 0 else f"{digest}#{times}"
