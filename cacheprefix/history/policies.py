"""Compaction policies: functions from a situation to decisions, run in the order of the settings.

Each takes the oldest first and stops when the target is reached. All keep a call and its results together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from cacheprefix.history.groups import Group
from cacheprefix.history.replaying import is_placeholder, placeholder
from cacheprefix.history.situation import Policy, Situation
from cacheprefix.prompt.decisions import Decision, Drop, DropCall, DropResult, DropThinking, ReplaceResult
from cacheprefix.prompt.views import MessageView

STALE_RESULTS = ("shell", "glob", "grep", "file_read", "web_fetch", "web_search")
"""Tools whose old results can be had again by calling them again; cleared first."""
DONE_USES = ("file_edit", "file_write", "notebook_edit")
"""Tools whose old calls carry large arguments that are in the file by now; call and result go together."""
_SOME_REF = "abcdefghij234567"
"""Stands for a result's reference when a placeholder's tokens are counted: the real one comes with the commit."""


def clear_tool_results(tools: Iterable[str] | None = STALE_RESULTS, *, keep_last: int = 0) -> Policy:
    """Clear old results of ``tools`` (None: of all), the last ``keep_last`` of them excepted.

    Errors stay, and so does a result that is no longer than its placeholder.
    """
    wanted = None if tools is None else frozenset(tools)

    def policy(situation: Situation) -> Iterable[Decision]:
        views, free = situation.views, situation.free
        found = [
            (index, result)
            for index in situation.results_at
            if (view := views[index]) is not None
            for result in view.results
            if (wanted is None or result.name in wanted) and not is_placeholder(result.text)
        ]
        need = situation.need
        kept: frozenset[int] = situation.referenced if situation.step == 0 else frozenset()
        for index, result in found[: len(found) - keep_last] if keep_last else found:
            if need <= 0:
                return
            if result.is_error or not free[index] or index in kept:
                continue
            text = placeholder(result.name, result.tokens, _SOME_REF if situation.readable else "")
            saved = result.tokens - situation.count(text)
            if saved > 0:
                need -= saved
                yield ReplaceResult(index, result.part, text, keep_media=False)

    return policy


def clear_thinking(keep_turns: int = 1) -> Policy:
    """Remove the thinking of all but the newest ``keep_turns`` assistant messages with thinking."""

    def policy(situation: Situation) -> Iterable[Decision]:
        thinking = [index for index in situation.thinking_at if situation.views[index] is not None]
        need = situation.need
        for index in thinking[: len(thinking) - keep_turns] if keep_turns else thinking:
            view = situation.views[index]
            if need <= 0:
                return
            if view is not None and situation.free[index]:
                need -= sum(thought.tokens for thought in view.thinking)
                for thought in view.thinking:
                    yield DropThinking(index, thought.part)

    policy.touches_thinking = True  # type: ignore[attr-defined]  # the planner refuses it where thinking is bound
    return policy


def drop_tool_uses(tools: Iterable[str] | None = DONE_USES, *, keep_last: int = 0) -> Policy:
    """Take out old calls of ``tools`` (None: of all) together with their results; failed ones stay.

    The last ``keep_last`` messages with calls are left alone.
    """
    wanted = None if tools is None else frozenset(tools)

    def policy(situation: Situation) -> Iterable[Decision]:
        need = situation.need
        groups = [group for group in situation.groups if situation.views[group.index] is not None]
        for group in groups[: len(groups) - keep_last] if keep_last else groups:
            if wanted is not None and wanted.isdisjoint([call.name for call in group.calls]):
                continue
            if not _all(situation.free, _members(group)):
                continue
            for call in group.calls:
                if need <= 0:
                    return
                answers = [(at, result) for at, result in group.results if result.call_id == call.id]
                meant = wanted is None or call.name in wanted
                if not meant or not answers or any(result.is_error for _, result in answers):
                    continue
                yield DropCall(group.index, call.id)
                yield from (DropResult(at, result.part) for at, result in answers)
                need -= call.tokens + sum(result.tokens for _, result in answers)

    return policy


def sliding_window(*, batch: float = 0.25, whole_turns: bool = False) -> Policy:
    """Remove the oldest messages in one batch, a tool call always with its results.

    At least ``batch`` (a share of the trigger) is removed at a time, so that the next removal is far off. With
    ``whole_turns`` a user's message is removed only together with all that answered it.
    """

    def policy(situation: Situation) -> Iterable[Decision]:
        if situation.need > 0:
            goal = max(situation.need, int(batch * situation.window))
            for index in _oldest(situation, goal, whole_turns=whole_turns):
                yield Drop(index)

    policy.removes_messages = True  # type: ignore[attr-defined]  # tried after what can be had again
    return policy


def _oldest(situation: Situation, goal: int, *, whole_turns: bool) -> list[int]:
    """Indexes of the oldest messages to remove, up to ``goal`` tokens; those with errors or later references last."""
    free, views = situation.free, situation.views
    owner, valued = situation.units, situation.referenced | situation.failed
    seen: set[int] = set()
    removed: list[int] = []
    later: list[Sequence[int]] = []
    gone = 0
    for index in situation.alive:
        if gone >= goal:
            break
        if not free[index]:
            continue
        members = (_turn(situation, index) if index not in seen else ()) if whole_turns else owner.get(index)
        if members is None:
            members = (index,)
        elif index in seen:
            continue
        else:
            seen.update(members)
            if not _all(free, members):
                continue
        if valued and not valued.isdisjoint(members):
            later.append(members)
            continue
        removed += members
        for at in members:
            view = views[at]
            gone += 0 if view is None else view.tokens
    for members in later:
        if gone >= goal:
            break
        removed += members
        gone += sum(_tokens(views[at]) for at in members)
    return sorted(removed)


def _turn(situation: Situation, first: int) -> tuple[int, ...]:
    """Indexes of the messages from ``first`` up to the user's next message."""
    members: list[int] = []
    for at in range(bisect_left(situation.alive, first), len(situation.alive)):
        index = situation.alive[at]
        view = situation.views[index]
        if members and view is not None and view.is_prompt:
            break
        members.append(index)
    return tuple(members)


def _members(group: Group) -> Sequence[int]:
    return [group.index, *(index for index, _ in group.results)]


def _tokens(view: MessageView | None) -> int:
    return 0 if view is None else view.tokens


def _all(free: Sequence[bool], members: Sequence[int]) -> bool:
    for index in members:  # noqa: SIM110 - called for every unit, where a generator costs most
        if not free[index]:
            return False
    return True
