"""What must stand together whatever was decided: calls with their results, reasoning with what was made from it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from cacheprefix.history.groups import Group
from cacheprefix.history.shape import Shape
from cacheprefix.prompt.views import MessageView


class Joints:
    """Where a text may be put into a history without parting what belongs together.

    ``gone`` are the indexes of ``views`` that are not sent. Built once for all texts of a history, in linear time.
    """

    def __init__(self, views: Sequence[MessageView | None], groups: Sequence[Group], gone: AbstractSet[int]) -> None:
        self._views = views
        self._gone = gone
        self._starts: list[int] = []
        self._reach: list[int] = []
        """For each call message the last result of it or of one before it."""
        reach = -1
        for group in groups:
            if group.index not in gone:
                reach = max([reach, *(at for at, _ in group.results if at not in gone)])
                self._starts.append(group.index)
                self._reach.append(reach)

    def before(self, index: int) -> int:
        """The nearest place at or before ``index`` that no call, no result and no reasoning reaches across."""
        while True:
            calls = bisect_left(self._starts, index)
            if calls and self._reach[calls - 1] >= index:
                # Between a call and its result: to the call, which itself may stand inside another's span.
                index = self._starts[calls - 1]
                continue
            earlier, later = self._neighbour(index, -1), self._neighbour(index, 1)
            if earlier is None or later is None or not self._one_answer(earlier, later):
                return index
            index = earlier

    def _neighbour(self, index: int, step: int) -> int | None:
        """The first message from a place on, backwards or forwards, that is sent."""
        at = index - 1 if step < 0 else index
        while 0 <= at < len(self._views):
            if at not in self._gone and self._views[at] is not None:
                return at
            at += step
        return None

    def _one_answer(self, earlier: int, later: int) -> bool:
        """Whether two neighbours are items of one answer: reasoning, the words and the calls made from it."""
        pair = self._views[earlier], self._views[later]
        return all(view is not None and view.role == "assistant" for view in pair) and any(
            view is not None and view.item for view in pair
        )


def current_step(shape: Shape) -> int:
    """Index of the last message, or of the call that it answers: where what is asked now begins.

    A ledger may hold a later removal of what a rewound history ends with; the question that is asked now goes out.
    """
    last = len(shape.views) - 1
    return min([group.index for group in shape.groups if group.last == last], default=last)


def give_back_halves(shape: Shape, actions: Mapping[str, str], dropped: set[int]) -> None:
    """Take out of ``dropped`` what is asked now and whatever a call or reasoning that is sent needs; in place.

    A ledger may speak of a history that has since been edited: a removed run then holds a result whose call stands,
    or the question that the model is to answer.
    """
    views = shape.views
    dropped.difference_update(range(current_step(shape), len(views)))
    dropped.discard(max((index for index, view in enumerate(views) if view.is_prompt and view.key is None), default=-1))
    for group in shape.groups:
        if group.index in dropped or not any(at in dropped for at, _ in group.results):
            continue
        address = shape.messages[group.index]
        gone = {call.id for number, call in enumerate(group.calls) if f"{address}/c{number}" in actions}
        for at, result in group.results:
            if result.call_id not in gone:
                dropped.discard(at)
    made_for = False
    for index in range(len(views) - 1, -1, -1):
        view = views[index]
        if view.role != "assistant":
            made_for = False
        elif not view.item or view.calls:
            made_for = made_for or index not in dropped
        elif made_for:
            dropped.discard(index)
