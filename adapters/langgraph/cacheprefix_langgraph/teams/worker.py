"""One agent at work: a forked node's model calls with a tool loop of their own, for threads and event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langgraph.errors import GraphBubbleUp

from cacheprefix import Session
from cacheprefix.adapter import AdapterSession, Flow, WaitingFor, adrive, drive, given_or_configured, users_session
from cacheprefix.errors import SetupError
from cacheprefix_langgraph.fork_context import within_run
from cacheprefix_langgraph.model import session_of, wrap_model
from cacheprefix_langgraph.node import forked
from cacheprefix_langgraph.teams.outcomes import Outcome, Watch
from cacheprefix_langgraph.tools import made_with


@dataclass(frozen=True, slots=True)
class Worker:
    """A role's model, text and tools."""

    model: Any
    session: AdapterSession
    role: str
    instructions: str = ""
    tools: tuple[BaseTool, ...] = ()
    max_turns: int = 10

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise SetupError(f"max_turns of {self.role!r} must be at least 1, found {self.max_turns}")

    @property
    def bound(self) -> Any:
        """The model with the role's tools."""
        return self.model.bind_tools(list(self.tools)) if self.tools else self.model

    def opening(self, shared: Sequence[BaseMessage], order: str) -> list[BaseMessage]:
        """The first request as applications write it: the role's system text, the conversation, the order."""
        system = "\n\n".join(text for text in (self.instructions, self.session.prefix.text) if text)
        head: list[BaseMessage] = [SystemMessage(system)] if system else []
        return [*head, *shared, *([HumanMessage(order)] if order else [])]


def worker_for(
    model: Any, session: AdapterSession, role: str, instructions: str, tools: Sequence[Any] = (), max_turns: int = 10
) -> Worker:
    """A worker whose model is wrapped with the session. Raises ``SetupError`` for tools that cannot run."""
    for tool in tools:
        if not isinstance(tool, BaseTool):
            raise SetupError(f"role {role!r}: tools are LangChain tools (use @tool), found {type(tool).__name__}")
    session.attempt("tools", lambda: made_with(session, "worker", role, tools, instructions), None)
    return Worker(wrap_model(model, users_session(session)), session, role, instructions, tuple(tools), max_turns)


def session_for(model: Any, session: Session | None) -> AdapterSession:
    """The session given, that of a wrapped model, or ``Session.from_config()``."""
    return given_or_configured(session or session_of(model))


class NodeFlow(Protocol):
    """What a node does with a state, for a caller in a thread or (``later``) in an event loop."""

    def __call__(self, state: Any, *, later: bool) -> Flow[dict[str, Any]]:
        """The state's update."""
        ...


class Step(Runnable[Any, Any]):
    """A node's flow in its two forms. Unlike ``RunnableLambda`` it reads no source code, which takes long.

    ``bind`` makes a fork of each form (``forked(...)``).
    """

    def __init__(self, name: str, run: NodeFlow, bind: Callable[[Any], Any]) -> None:
        def now(state: Any) -> dict[str, Any]:
            return drive(run(state, later=False))

        async def later(state: Any) -> dict[str, Any]:
            return await adrive(run(state, later=True))

        self.name = name
        self._run: Callable[[Any], dict[str, Any]] = bind(now)
        self._arun: Callable[[Any], Awaitable[dict[str, Any]]] = bind(later)

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> dict[str, Any]:  # noqa: A002, ARG002
        """Run the node on a state."""
        with within_run(config):
            return self._run(input)

    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> dict[str, Any]:  # noqa: A002, ARG002
        """Run the node on a state without blocking the event loop."""
        with within_run(config):
            return await self._arun(input)


AfterRound = Callable[[Sequence[BaseMessage], int], None]
"""Told of the messages of a request that was answered, and of the number of tool rounds in it."""


def work(
    worker: Worker, shared: Sequence[BaseMessage], order: str, after: AfterRound | None = None, *, later: bool
) -> Flow[list[BaseMessage]]:
    """What the worker said and what its tools answered; the last message is its answer.

    ``later`` is for callers in an event loop, which is not blocked: neither by ``after``, nor by model and tools.
    """
    messages, own = worker.opening(shared, order), list[BaseMessage]()
    bound, known = worker.bound, {tool.name: tool for tool in worker.tools}
    for turn in range(1, worker.max_turns + 1):
        sent = [*messages, *own]
        answer: AIMessage = yield WaitingFor(bound.ainvoke if later else bound.invoke, sent)
        if after is not None and turn > 1:
            # Now the request with the newest results is in the cache, and a fork of it reads them.
            told = sent, turn - 1
            yield WaitingFor(asyncio.to_thread, after, *told) if later else WaitingFor(after, *told)
        own.append(answer)
        if not answer.tool_calls or turn == worker.max_turns:
            break
        for called in answer.tool_calls:
            call: dict[str, Any] = {**called, "type": "tool_call"}
            try:
                tool = _tool(known, call)
                result: Any = yield WaitingFor(tool.ainvoke if later else tool.invoke, call)
            except GraphBubbleUp:
                raise
            except Exception as error:
                result = _failed(call, error)
            own.append(_message(call, result))
    return own


def text_of(own: Sequence[BaseMessage]) -> str:
    """The last words of a worker."""
    return next((message.text for message in reversed(own) if isinstance(message, AIMessage) and message.text), "")


def step_of(
    name: str,
    worker: Worker,
    place: Callable[[Any], tuple[Worker, str] | Outcome],
    update: Callable[[Outcome], dict[str, Any]] | None = None,
    *,
    after: AfterRound | None = None,
    isolate: bool = True,
    wave: int = 0,
) -> Step:
    """A node that works and reports; with ``isolate`` its failure stays its own.

    ``place`` gives who works on a state and the order, or an outcome where nobody does; ``update`` what the state gets
    beside the outcome.
    """

    def run(state: Any, *, later: bool) -> Flow[dict[str, Any]]:
        begun = place(state)
        outcome = begun if isinstance(begun, Outcome) else (yield from worked(state, *begun, later=later))
        return {**(update(outcome) if update else {}), "outcomes": {name: outcome.as_dict()}}

    def worked(state: Any, who: Worker, order: str, *, later: bool) -> Flow[Outcome]:
        with Watch(worker.session, worker.model) as watch:
            try:
                own = yield from work(who, state["messages"], order, after, later=later)
                return watch.outcome(name, "completed", text_of(own), own, wave=wave)
            except GraphBubbleUp:
                raise
            except Exception as error:
                if not isolate:
                    raise
                return watch.outcome(name, "failed", "", (), error=f"{type(error).__name__}: {error}", wave=wave)

    return Step(name, run, forked(users_session(worker.session), role=worker.role, pinned=bool(worker.tools)))


def _tool(known: Mapping[str, BaseTool], call: Mapping[str, Any]) -> BaseTool:
    found = known.get(call["name"])
    if found is None:
        raise LookupError(f"there is no tool {call['name']!r} for this role; there are: {', '.join(known) or 'none'}")
    return found


def _failed(call: Mapping[str, Any], error: Exception) -> ToolMessage:
    return ToolMessage(
        f"error: {type(error).__name__}: {error}", tool_call_id=call["id"] or "", name=call["name"], status="error"
    )


def _message(call: Mapping[str, Any], result: Any) -> ToolMessage:
    if isinstance(result, ToolMessage):
        return result
    return ToolMessage(str(result), tool_call_id=call["id"] or "", name=call["name"])
