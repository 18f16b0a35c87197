"""``subgraph``: a compiled graph whose model calls are forks, as a node, a supervisor's or a swarm's worker."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel
from langgraph.pregel.protocol import PregelProtocol
from langgraph.types import Command

from cacheprefix import ForkPolicy, Session
from cacheprefix.adapter import AdapterSession, VolatileRole, check_volatile
from cacheprefix.errors import SetupError, check_text, found_instead
from cacheprefix_langgraph.fork_context import FORK, ForkSettings, Frame, aunder, scope_of, under
from cacheprefix_langgraph.schemas import foresee
from cacheprefix_langgraph.state import (
    conversation_of,
    hand_on,
    handed_on,
    keep_inside,
    ledger_in,
    messages_in,
    with_inside,
    writes_of,
)
from cacheprefix_langgraph.tools import adopt, made_with
from cacheprefix_langgraph.unwrapped import note_unwrapped

G = TypeVar("G", bound="Pregel[Any, Any, Any, Any]")


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
    not a compiled graph. A tool whose name already has another schema stays the role's own, which the report says.
    """
    given: object = graph
    if not isinstance(given, Pregel):
        todo = "call .compile() first, or decorate a function with forked(...)"
        if isinstance(given, PregelProtocol):
            todo = "a remote graph asks its models where it is served: wrap them and its nodes there"
        raise SetupError(f"subgraph takes a compiled LangGraph graph, {found_instead(given)}; {todo}")
    check_volatile(volatile, volatile_role)
    check_text("role", role, optional=True)
    check_text("instruction", instruction)
    bound = session.adapter
    name = role or graph.get_name()
    note_unwrapped(bound, name, graph)
    if bound.mode == "observe":
        return graph
    nodes = [node.bound for node in graph.nodes.values()]
    tools = [tool for node in nodes if isinstance(node, ToolNode) for tool in node.tools_by_name.values()]
    bound.attempt("tools", lambda: made_with(bound, "graph", name, tools, instruction), None)
    for node in nodes:
        if isinstance(node, ToolNode):
            found = [*node.tools_by_name.values()]
            # Privacy: one that is made for each user may have another's tool of the same name with another schema.
            bound.attempt("tools", functools.partial(adopt, bound, found), None)
        else:
            foresee(bound, node)
    bound.join(name)

    copy = graph.copy()
    bound.attempt("channel", lambda: with_inside(copy), None)
    base = type(graph).__mro__[1] if FORK in graph.__dict__ else type(graph)
    object.__setattr__(copy, "__class__", _subclass(base))
    copy.__dict__[FORK] = ForkSettings(
        bound,
        name,
        instruction,
        messages_key=messages_key,
        pinned=pinned,
        volatile=volatile,
        volatile_role=volatile_role,
        policy=policy,
    )
    return copy


def fork_of(graph: Any) -> ForkSettings | None:
    """What a graph was made a fork with; None for one that ``subgraph`` has not made."""
    found = graph.__dict__.get(FORK)
    return found if isinstance(found, ForkSettings) else None


def _entered(fork: ForkSettings, state: Any, config: Any) -> Frame | None:
    """The fork that is in force while a graph runs on ``state``; one that keeps the layout where it cannot be made."""
    session = fork.session
    # A resumed run has no state to ask about. What the application's function raises is the application's.
    said = {} if state is None or isinstance(state, Command) else fork.said_now(state)

    def frame() -> Frame:
        messages = messages_in(state, fork.messages_key)
        returned = writes_of(config) is not None
        talk = conversation_of(session, config, ledger_in(state, session), messages or (), returned=returned)
        return fork.frame(talk, said, shared=messages if fork.pinned else None, scope=scope_of(config))

    return session.attempt("subgraph", frame, fork.unlaid(said))


def _left(session: AdapterSession, frame: Frame | None, state: Any, config: Any) -> None:
    """Hand the decisions that were made for a graph's calls on to the graph around it."""
    if frame is not None and frame.state is not None:
        talk = frame.state
        session.attempt("ledger", lambda: hand_on(config, handed_on(session, talk, ledger_in(state, session))), None)
        # The graph around it may be inside another one, and be interrupted itself.
        session.attempt("ledger", lambda: keep_inside(session, talk, config), None)


@functools.lru_cache(maxsize=16)
def _subclass(base: type[Any]) -> type[Any]:
    """A graph's class whose runs are forks, and which is ``base`` in all else."""

    class ForkedGraph(base):  # type: ignore[misc]
        # ``invoke`` and ``ainvoke`` run these two; neither is a generator, so the fork is entered when it is called.
        def stream(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - LangGraph's own name
            fork = self.__dict__[FORK]
            frame = _entered(fork, input, config)
            done = functools.partial(_left, fork.session, frame, input, config)
            return under(frame, base.stream(self, input, config, **kwargs), done)

        def astream(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - LangGraph's own name
            fork = self.__dict__[FORK]
            frame = _entered(fork, input, config)
            done = functools.partial(_left, fork.session, frame, input, config)
            return aunder(frame, base.astream(self, input, config, **kwargs), done)

        def copy(self, update: dict[str, Any] | None = None) -> Any:
            made = base.copy(self, update)
            made.__dict__[FORK] = self.__dict__[FORK]
            return made

    for name in ("stream", "astream", "copy"):
        functools.update_wrapper(vars(ForkedGraph)[name], getattr(base, name), updated=())
    ForkedGraph.__name__, ForkedGraph.__qualname__, ForkedGraph.__module__ = (
        base.__name__,
        base.__qualname__,
        base.__module__,
    )
    return ForkedGraph
