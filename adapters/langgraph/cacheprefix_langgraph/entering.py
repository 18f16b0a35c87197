"""A fork from where a node is entered to where it is left: with its conversation, and with what was decided on it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables.utils import AddableDict

from cacheprefix_langgraph.fork_context import run_of, scope_of, task_of, within_run
from cacheprefix_langgraph.state import CHANNEL, conversation_of, handed_on, ledger_in, messages_in, with_update

if TYPE_CHECKING:
    from cacheprefix_langgraph.fork_context import ForkSettings, Frame


def entered(fork: ForkSettings, state: Any, config: Any = None) -> Frame | None:
    """The fork that is in force while a node runs on ``state``.

    Where that cannot be made it is one that keeps the application's layout, in ``observe`` mode None. What
    ``volatile`` raises reaches the application.
    """
    session = fork.session
    config = run_of(config)
    said = fork.said_now(state)

    def frame() -> Frame:
        shared = messages_in(state, fork.messages_key)
        with within_run(config):
            ledger = ledger_in(state, session)
        talk = conversation_of(session, config, ledger, shared or (), key=fork.messages_key)
        return fork.frame(talk, said, shared=shared, scope=scope_of(config))

    made = session.attempt("forked", frame, fork.unlaid(said))
    if made is not None:
        made.task = task_of(config)
    return made


def left(fork: ForkSettings, frame: Frame | None, state: Any, result: Any, config: Any = None) -> Any:
    """A node's result, with the decisions that were made for its calls."""
    if frame is None or frame.state is None:
        return result
    talk, session = frame.state, fork.session

    def made() -> Any:
        with within_run(config):
            update = handed_on(session, talk, ledger_in(state, session))
            return with_update(result, update, session)

    return session.attempt("ledger", made, result)


class Parts:
    """What a node gives in parts, which LangChain adds up; it keeps the last of those that cannot be added."""

    def __init__(self) -> None:
        self._parts: list[Any] = []

    def add(self, part: Any) -> None:
        """Note a part. What is only said is in no state, and takes no decisions."""
        if not isinstance(part, (str, BaseMessage)):
            self._parts.append(part)

    def rest(self, fork: ForkSettings, frame: Frame | None, state: Any, config: Any) -> list[Any]:
        """What is still to be given, so that the whole has the decisions; empty where there are none."""
        if not self._parts:
            return []
        whole = added(self._parts)
        done = left(fork, frame, state, whole, config)
        if done is whole:
            return []
        if isinstance(whole, AddableDict) and whole.get(CHANNEL) is None:
            return [AddableDict({CHANNEL: done[CHANNEL]})]
        # Two states of our channel cannot be added: the last part is kept, which is the whole then.
        return [done[len(whole) :]] if isinstance(whole, list) else [done]


def added(parts: Sequence[Any]) -> Any:
    """Parts as one, as LangChain adds up what streams for what takes no streams; None where there is none."""
    return functools.reduce(_plus, parts) if parts else None


def _plus(whole: Any, part: Any) -> Any:
    try:
        return whole + part
    except TypeError:
        return part
