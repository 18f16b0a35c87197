"""Which messages belong together: a tool call and its results, and the user's turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cacheprefix.prompt.views import CallView, MessageView, ResultView, digest_of


class Group(NamedTuple):
    """One assistant message with tool calls and the results that answer it, in the order they stand."""

    index: int  # type: ignore[assignment]  # nobody looks for tuple.index on a group
    calls: tuple[CallView, ...]
    results: tuple[tuple[int, ResultView], ...]

    @property
    def complete(self) -> bool:
        """Whether every call has its result."""
        return len({result.call_id for _, result in self.results}) >= len({call.id for call in self.calls})

    @property
    def last(self) -> int:
        """Index of the last message that belongs to the group."""
        return self.results[-1][0] if self.results else self.index

    @property
    def digest(self) -> str:
        """Digest of the results in order, without call ids, which differ between runs."""
        return digest_of(*(result.digest for _, result in self.results))


def groups_of(views: Sequence[MessageView]) -> list[Group]:
    """All groups in order. A result answers the latest earlier call of its id that has no result yet.

    Ids may be used again by a later call: results never reach back over it.
    """
    found: list[tuple[int, tuple[CallView, ...], list[tuple[int, ResultView]]]] = []
    waiting: dict[str, list[tuple[int, ResultView]]] = {}
    for index, view in enumerate(views):
        for result in view.results:
            answers = waiting.pop(result.call_id, None)
            if answers is not None:
                answers.append((index, result))
        if view.calls:
            answers = []
            for call in view.calls:
                waiting[call.id] = answers
            found.append((index, view.calls, answers))
    return [Group(index, calls, tuple(answers)) for index, calls, answers in found]


def joins_of(views: Sequence[MessageView]) -> list[Group]:
    """The groups, with the calls of one answer merged where each is an item of its own (Responses API).

    For what concerns all results of a turn. A merged group's ``index`` is that of its first call.
    """
    groups = groups_of(views)
    if not any(views[group.index].item for group in groups):
        return groups
    joined: list[Group] = []
    ends: list[int] = []
    for group in groups:
        if joined and views[group.index].item and ends[-1] + 1 == group.index:
            first = joined[-1]
            results = sorted((*first.results, *group.results), key=lambda one: one[0])
            joined[-1] = Group(first.index, (*first.calls, *group.calls), tuple(results))
            ends[-1] = group.index
        else:
            joined.append(group)
            ends.append(group.index)
    return joined


def reasons_of(views: Sequence[MessageView]) -> dict[int, list[int]]:
    """For each reasoning item the calls and texts behind it: the API accepts it only with at least one of them."""
    found: dict[int, list[int]] = {}
    behind: list[int] = []
    for index in range(len(views) - 1, -1, -1):
        view = views[index]
        if view.role != "assistant":
            behind = []
        elif view.item and not view.calls:
            found[index] = list(behind)
        else:
            behind.append(index)
    return found


def digests_of(views: Sequence[MessageView]) -> set[str]:
    """All digests that decisions on a history may be addressed by; what ``Ledger.prune`` takes as live."""
    digests = {view.digest for view in views}
    digests |= {result.digest for view in views for result in view.results}
    return digests | {group.digest for group in joins_of(views)}


def turn_starts(views: Sequence[MessageView]) -> list[int]:
    """Indexes of the user's messages, each of which begins a turn; durable context does not."""
    return [index for index, view in enumerate(views) if view.is_prompt and view.key is None]


def is_open(views: Sequence[MessageView]) -> bool:
    """Whether the history ends inside a tool call: the last message with calls lacks a result."""
    answered: set[str] = set()
    called = False
    for view in reversed(views):
        if called and not view.calls:
            return False
        answered.update(result.call_id for result in view.results)
        if view.calls:
            if any(call.id not in answered for call in view.calls):
                return True
            if not view.item:
                return False
            called = True
        elif view.is_prompt or (view.role == "assistant" and not view.calls):
            return False
    return False
