"""Extracting memory with a fork that rides the conversation's cached prefix, in a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, SystemMessage
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.config import get_store

from cacheprefix import ForkPolicy, Session
from cacheprefix.adapter import AdapterSession, Flow, WaitingFor, users_session
from cacheprefix.errors import SetupError
from cacheprefix_langgraph.fork_context import memory_of
from cacheprefix_langgraph.model import bound_of, wrap_model
from cacheprefix_langgraph.node import forked
from cacheprefix_langgraph.state import messages_in
from cacheprefix_langgraph.teams.memory import MemoryUpdate, SessionMemory, prompt_for, read_update
from cacheprefix_langgraph.teams.memory_store import MemoryKeeper, StoreMemory
from cacheprefix_langgraph.teams.worker import Step, session_for

ROLE = "memory"


def memory_node(
    model: Any,
    session: Session | None = None,
    *,
    keeper: MemoryKeeper | None = None,
    id: Callable[[Any], str] | str | None = None,  # noqa: A002 - the field's word
    messages_key: str = "messages",
) -> Step:
    """A node that remembers: a fork reads the conversation and its answer is merged into a memory.

    ``keeper`` is a ``FileMemory`` or ``StoreMemory``; by default the graph's own LangGraph store. ``id`` says whose
    memory it is (a text, or a function of the state); by default the thread's, and that run's own where there is no
    thread. The state is left as it is. An answer that cannot be read, and a call that fails, change nothing and are
    noted in the session's report.
    """
    bound = session_for(model, session)

    def place(state: Any) -> tuple[MemoryKeeper, str]:
        where = keeper if keeper is not None else _graphs_own()
        name = id(state) if callable(id) else id
        # Privacy: runs without a thread are of different people, so what one is told must not reach another.
        return where, name or memory_of(bound, var_child_runnable_config.get())

    def request(where: MemoryKeeper, name: str, state: Any) -> list[BaseMessage] | None:
        loaded: SessionMemory | None = bound.attempt("memory", lambda: where.load(name), None)
        return None if loaded is None else _request(bound, loaded, messages_in(state, messages_key) or [])

    def keep(where: MemoryKeeper, name: str, text: str) -> None:
        update = _noted(bound, read_update(text))
        if update:
            bound.attempt("memory", lambda: where.merge(name, update), None)

    def run(state: Any, *, later: bool) -> Flow[dict[str, Any]]:
        where, name = place(state)
        asked = request(where, name, state)
        if asked is None:
            return {}
        try:
            answer = yield WaitingFor(wrapped.ainvoke if later else wrapped.invoke, asked)
        except Exception as error:
            bound.failed("memory", error)
            return {}
        if answer is not None:
            keep(where, name, answer.text)
        return {}

    wrapped = _wrapped(model, bound)
    bind = forked(users_session(bound), role=ROLE, messages_key=messages_key, policy=ForkPolicy.memory_update())
    return Step(ROLE, run, bind)


def _wrapped(model: Any, session: AdapterSession) -> Any:
    return model if session.related(bound_of(model)) else wrap_model(model, users_session(session))


def _request(session: AdapterSession, memory: SessionMemory, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    system = "\n\n".join(text for text in (prompt_for(memory), session.prefix.text) if text)
    rest = [message for message in messages if not isinstance(message, SystemMessage)]
    return [SystemMessage(system), *rest]


def _noted(session: AdapterSession, update: MemoryUpdate) -> MemoryUpdate:
    """The update, with a note in the session where the model's answer could not be read."""
    if not update.understood:
        session.note("a memory fork's answer held no JSON object; nothing was remembered")
    return update


def _graphs_own() -> StoreMemory:
    """The running graph's store. Raises ``SetupError`` where it has none."""
    try:
        store = get_store()
    except (RuntimeError, KeyError):
        store = None
    if store is None:
        raise SetupError(
            "memory_node needs a place to remember in: compile the graph with store=..., or pass keeper=FileMemory(...)"
        )
    return StoreMemory(store)
