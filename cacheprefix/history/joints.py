"""Keeps together what providers refuse apart: calls with their results, reasoning with the calls and text behind it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from cacheprefix.history.groups import Group
from cacheprefix.history.shape import Shape
from cacheprefix.prompt.views import MessageView


class Joints:
    """Finds places for a text that split no call from its result and no reasoning from its answer.

    ``gone`` are the indexes of ``views`` that are not sent. Built once for all texts of a history, in linear time.
    """

    def __init__(self, views: Sequence[MessageView | None], groups: Sequence[Group], gone: AbstractSet[int]) -> None:
        self._views = views
        self._gone = gone
        self._starts: list[int] = []
        self._reach: list[int] = []
        """For each call message the greatest index of a result that answers it or an earlier one."""
        reach = -1
        for group in groups:
            if group.index not in gone:
                reach = max([reach, *(at for at, _ in group.results if at not in gone)])
                self._starts.append(group.index)
                self._reach.append(reach)

    def before(self, index: int) -> int:
        """The nearest place at or before ``index`` where a text splits nothing that belongs together."""
        while True:
            calls = bisect_left(self._starts, index)
            if calls and self._reach[calls - 1] >= index:
                # Between a call and its result: go to the call, and look again, as it may be inside another pair.
                index = self._starts[calls - 1]
                continue
            earlier, later = self._neighbour(index, -1), self._neighbour(index, 1)
            if earlier is None or later is None or not _one_answer(self._views[earlier], self._views[later]):
                return index
            index = earlier

    def _neighbour(self, index: int, step: int) -> int | None:
        """Index of the nearest sent message before ``index`` (``step`` -1) or from it on (``step`` 1), or None."""
        at = index - 1 if step < 0 else index
        while 0 <= at < len(self._views):
            if at not in self._gone and self._views[at] is not None:
                return at
            at += step
        return None


def joined(earlier: MessageView, later: MessageView) -> bool:
    """Whether a provider refuses a text between two messages of which one follows the other."""
    return bool(later.results) or _one_answer(earlier, later)


def _one_answer(*pair: MessageView | None) -> bool:
    """Whether two neighbours are items of one answer of the model (Responses API: reasoning, text, calls)."""
    return all(view is not None and view.role == "assistant" for view in pair) and any(
        view is not None and view.item for view in pair
    )


def current_step(shape: Shape) -> int:
    """Index at which the current step begins: the last message, or the call that it answers.

    From there on nothing is removed: for a rewound history the ledger may hold removals of what is its end now.
    """
    last = len(shape.views) - 1
    return min([group.index for group in shape.groups if group.last == last], default=last)


def give_back_halves(shape: Shape, actions: Mapping[str, str], dropped: set[int]) -> None:
    """Remove from ``dropped``, in place, the current step, and what a sent call or reasoning item needs beside it.

    Where the history was edited after the decision, a removed run may contain a result whose call is still sent, or
    the question that the model is to answer.
    """
    views = shape.views
    dropped.difference_update(range(current_step(shape), len(views)))
    # The newest question stays.
    dropped.discard(max((index for index, view in enumerate(views) if view.is_prompt and view.key is None), default=-1))
    for group in shape.groups:
        if group.index in dropped or not any(at in dropped for at, _ in group.results):
            continue
        # Where a message of calls is still sent, so are the results of those of its calls that are.
        address = shape.messages[group.index]
        gone = {call.id for number, call in enumerate(group.calls) if f"{address}/c{number}" in actions}
        for at, result in group.results:
            if result.call_id not in gone:
                dropped.discard(at)
    # A provider's rule: a reasoning item is refused without what the model answered behind it, and so is a call without
    # the reasoning that led to it. From the end of each answer: whether a part of it behind this one is still sent.
    sent_behind = False
    for index in range(len(views) - 1, -1, -1):
        view = views[index]
        if view.role != "assistant":
            sent_behind = False
        elif not view.item or view.calls:
            sent_behind = sent_behind or index not in dropped
        elif sent_behind:
            dropped.discard(index)
