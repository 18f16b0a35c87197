"""``subgraph``: a compiled graph whose model calls are forks, as a node, a supervisor's or a swarm's worker."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel
from langgraph.pregel.protocol import PregelProtocol
from langgraph.types import Command

from cacheprefix import ForkPolicy, Session
from cacheprefix.adapter import AdapterSession, VolatileRole, check_volatile
from cacheprefix.errors import SetupError
from cacheprefix_langgraph.fork_context import Frame, aunder, said_now, scope_of, under, unlaid
from cacheprefix_langgraph.schemas import foresee
from cacheprefix_langgraph.state import conversation_of, hand_on, ledger_in, messages_in, update_of, writes_of
from cacheprefix_langgraph.tools import render

G = TypeVar("G", bound="Pregel[Any, Any, Any, Any]")

_ENTER = "__cacheprefix_enter__"
_LEAVE = "__cacheprefix_leave__"
_PARTS = "__cacheprefix_parts__"


@dataclass(frozen=True, slots=True)
class FrameParts:
    """What a graph was made a fork with."""

    session: AdapterSession
    role: str
    instruction: str
    messages_key: str
    pinned: bool
    volatile_role: VolatileRole
    policy: ForkPolicy | None


def subgraph(
    graph: G,
    session: Session,
    *,
    role: str | None = None,
    instruction: str = "",
    messages_key: str = "messages",
    pinned: bool = False,
    volatile: Callable[[Any], Mapping[str, str]] | None = None,
    volatile_role: VolatileRole = "user",
    policy: ForkPolicy | None = None,
) -> G:
    """A copy of a compiled graph whose wrapped models' calls are forks of the session's prefix.

    For agents that are added as nodes or given to ``create_supervisor`` and ``create_swarm``: the copy is still a
    compiled graph, so LangGraph finds, draws, streams and checkpoints it as before. ``role`` defaults to the
    graph's name. The tools of its tool nodes join the shared union now, before the first request. With
    ``pinned=True`` the role's text stands where the graph was entered instead of at the very end; see ``forked``.
    In ``observe`` mode it is the very same graph, whose calls are told by the names of nodes.
    Its models must be wrapped with the same session (``wrap_model``). Raises ``SetupError`` for anything that is
    not a compiled graph, and ``ToolClashError`` when a tool's name already has another schema.
    """
    given: object = graph
    if not isinstance(given, Pregel):
        todo = "call .compile() first, or decorate a function with forked(...)"
        if isinstance(given, PregelProtocol):
            todo = "a remote graph asks its models where it is served: wrap them and its nodes there"
        message = f"subgraph takes a compiled LangGraph graph, found {type(given).__name__}; {todo}"
        raise SetupError(message)
    check_volatile(volatile, volatile_role)
    bound = session.adapter
    if bound.mode == "observe":
        return graph
    for node in graph.nodes.values():
        if isinstance(node.bound, ToolNode):
            bound.adopt_tools(list(node.bound.tools_by_name.values()), render, grows=True)
        else:
            foresee(bound, node.bound)
    name = role or graph.get_name()
    bound.join(name)

    def enter(state: Any, config: Any, said: Mapping[str, str]) -> Frame:
        messages = messages_in(state, messages_key)
        returned = writes_of(config) is not None
        talk = conversation_of(bound, config, ledger_in(state, bound), messages or (), returned=returned)
        return Frame(
            session=bound,
            role=name,
            instruction=instruction,
            shared=messages if pinned else None,
            conversation=talk.id,
            state=talk,
            scope=scope_of(config),
            pinned=pinned,
            volatile=said,
            volatile_role=volatile_role,
            policy=policy,
        )

    copy = graph.copy()
    base = type(graph).__mro__[1] if _ENTER in graph.__dict__ else type(graph)
    object.__setattr__(copy, "__class__", _subclass(base))

    def entered(state: Any, config: Any) -> Frame | None:
        # A resumed run has no state to ask about. What the application's function raises is the application's.
        said = {} if state is None or isinstance(state, Command) else said_now(bound, volatile, state)
        plain = unlaid(bound, name, instruction, said, volatile_role)
        return bound.attempt("subgraph", lambda: enter(state, config, said), plain)

    def left(frame: Frame | None, state: Any, config: Any) -> None:
        if frame is not None and frame.state is not None:
            talk = frame.state
            bound.attempt("ledger", lambda: hand_on(config, update_of(bound, talk, ledger_in(state, bound))), None)

    copy.__dict__[_ENTER], copy.__dict__[_LEAVE] = entered, left
    copy.__dict__[_PARTS] = FrameParts(bound, name, instruction, messages_key, pinned, volatile_role, policy)
    return copy


def frame_parts(graph: Any) -> FrameParts | None:
    """What a graph's fork is made of; None for one that ``subgraph`` has not made."""
    found = graph.__dict__.get(_PARTS)
    return found if isinstance(found, FrameParts) else None


@functools.lru_cache(maxsize=16)
def _subclass(base: type[Any]) -> type[Any]:
    class ForkedGraph(base):  # type: ignore[misc]
        # ``invoke`` and ``ainvoke`` run these two; neither is a generator, so the fork is entered when it is called.
        def stream(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - LangGraph's own name
            frame = self.__dict__[_ENTER](input, config)
            done = functools.partial(self.__dict__[_LEAVE], frame, input, config)
            return under(frame, base.stream(self, input, config, **kwargs), done)

        def astream(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - LangGraph's own name
            frame = self.__dict__[_ENTER](input, config)
            done = functools.partial(self.__dict__[_LEAVE], frame, input, config)
            return aunder(frame, base.astream(self, input, config, **kwargs), done)

    for name in ("stream", "astream"):
        functools.update_wrapper(vars(ForkedGraph)[name], getattr(base, name), updated=())
    ForkedGraph.__name__, ForkedGraph.__qualname__, ForkedGraph.__module__ = (
        base.__name__,
        base.__qualname__,
        base.__module__,
    )
    return ForkedGraph
