"""The fork in force for the code that runs now, carried by a context variable.

LangGraph keeps context variables through sub-graphs, tasks and its own thread pools; a plain
``ThreadPoolExecutor`` inside a node loses them, which ``wrap_model`` notices and names.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.errors import ParentCommand

from cacheprefix import Conversation, ForkPolicy
from cacheprefix.adapter import (
    AdapterSession,
    BlockVar,
    Lock,
    VolatileRole,
    reset_in_child,
    supported,
    tail_text,
    texts_said,
)

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig


@dataclass(slots=True)
class Frame:
    """One fork: a role's node or agent while it runs."""

    session: AdapterSession
    role: str
    instruction: str = ""
    shared: Sequence[BaseMessage] | None = None
    """The conversation as it stood when the node was entered; what follows it is the role's own."""
    conversation: str = ""
    allowed: tuple[str, ...] | None = None
    """Tools the role may use; None leaves that to what the application binds."""
    binds: bool = False
    """Whether the node's code binds tools as it runs, so that a request without any tells nothing of the others."""
    pinned: bool = False
    """Role text before the role's own messages rather than at the very end."""
    volatile: Mapping[str, str] = field(default_factory=dict)
    volatile_role: VolatileRole = "user"
    policy: ForkPolicy | None = None
    base: str | None = None
    """System text in place of the prefix's own, for an agent that shares with its own forks only."""
    state: Conversation | None = None
    """The conversation's ledger, merged from the graph's state."""
    scope: str | None = None
    """Tenant whose cache this is; None for the session's."""
    depth: int = 0
    """How many forks of its conversation are in force where its own code runs, this one included."""
    laid: bool = True
    """False where the fork could not be made: the layout is the application's, with what it left to us to say."""
    node: object = None
    """The Runnable that this fork is."""
    task: str | None = None
    """The graph's task that it was entered in; None outside of a graph."""
    answers: bool = False
    """Whether it is an agent of LangChain's, which answers a call of a tool that it does not have, and goes on."""

    @property
    def trails(self) -> bool:
        """Whether text for this call alone stands by itself, apart from the role's text."""
        return bool(self.volatile) and (self.pinned or self.volatile_role != "user")

    @property
    def passing(self) -> str:
        """The text for this call alone."""
        return tail_text(self.role, "", volatile=self.volatile)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What a rewrite did, for the code that finishes the request."""

    messages: list[BaseMessage]
    tail: str
    head: int
    """Messages with the shared system text, at the front."""
    at: int
    """Messages that stand before the tail; all of them where there is none."""
    own: int
    """How many of those, right before the tail, are the role's own."""
    system: tuple[str, ...]
    """The system texts the application had sent."""
    restored: tuple[tuple[str, str], ...] = ()
    """Shortened tool results: the text sent and the text the application had."""
    given: list[BaseMessage] | None = None
    """The messages as the application made them, where those of the fork do not give them back."""
    trailing: str = ""
    """Text for this request alone that is put behind the finished body."""
    trailing_role: VolatileRole = "user"
    continues: bool = False
    """Whether the role's next request may begin with this one."""
    passes: bool = False
    """Whether no later request is expected to begin with anything that is said in this one."""

    @property
    def shared(self) -> list[BaseMessage]:
        """What stands before anything of the role's own."""
        return self.messages[: self.at - self.own]


FRAME: BlockVar[Frame] = BlockVar("cacheprefix_langgraph_frame")


_Key = tuple[int, "str | None"]


def _key(session: AdapterSession, conversation: str | None = None) -> _Key:
    """The key under which forks in force are counted: of a session with its children, or of one conversation of it."""
    return id(session.shared), conversation


class _Running:
    """How many forks are in force in this process, of each session and of each of its conversations."""

    def __init__(self) -> None:
        self.counts: dict[_Key, int] = {}
        self._lock = Lock()
        reset_in_child(self)

    def add(self, frame: Frame, number: int) -> None:
        """Count a fork that begins to run (1) or that ends (-1)."""
        with self._lock:
            for key in (_key(frame.session), _key(frame.session, frame.conversation)):
                now = self.counts.pop(key, 0) + number
                if now > 0:
                    self.counts[key] = now

    def after_fork(self) -> None:
        """Other threads of the parent do not go on in the child; the forking one's own fork does."""
        frame, self.counts = FRAME.get(), {}
        if frame is not None:
            self.add(frame, 1)
            self.counts[_key(frame.session, frame.conversation)] = frame.depth


_RUNNING = _Running()


FORK = "__cacheprefix_fork__"
"""The attribute of a node or a graph that holds what it was made a fork with."""


@dataclass(frozen=True, slots=True)
class ForkSettings:
    """What a node, a graph or an agent was made a fork with."""

    session: AdapterSession
    role: str
    instruction: str = ""
    allowed: tuple[str, ...] | None = None
    """Tools the role may use; None leaves that to what the application binds."""
    messages_key: str = "messages"
    pinned: bool = False
    """Role text before the role's own messages rather than at the very end."""
    volatile: Callable[[Any], Mapping[str, str]] | None = None
    """Gives texts for one call alone from the state."""
    volatile_role: VolatileRole = "user"
    policy: ForkPolicy | None = None
    binds: bool = False
    """Whether the node's code binds tools as it runs."""

    def said_now(self, state: Any) -> Mapping[str, str]:
        """What the application says with this call alone; nothing in observe mode. Raises what its function raises."""
        return {} if self.session.mode == "observe" else texts_said(self.volatile, state)

    def frame(
        self,
        talk: Conversation,
        said: Mapping[str, str],
        *,
        shared: Sequence[BaseMessage] | None = None,
        scope: str | None = None,
    ) -> Frame:
        """The fork while it runs, in a conversation; ``said`` is what is said with this call alone."""
        return Frame(
            session=self.session,
            role=self.role,
            instruction=self.instruction,
            shared=shared,
            conversation=talk.id,
            allowed=self.allowed,
            binds=self.binds,
            pinned=self.pinned,
            volatile=said,
            volatile_role=self.volatile_role,
            policy=self.policy,
            state=talk,
            scope=scope,
        )

    def unlaid(self, said: Mapping[str, str]) -> Frame | None:
        """What stands in for a fork that could not be made: the application's layout with what it left to us to say.

        None in observe mode, where nothing is left to us.
        """
        if self.session.mode == "observe":
            return None
        return Frame(
            session=self.session,
            role=self.role,
            instruction=self.instruction,
            volatile=said,
            volatile_role=self.volatile_role,
            laid=False,
        )


def configurable(config: Mapping[str, Any] | None, name: str) -> Any:
    """What a run's configuration has under a name; None where it has nothing there."""
    return ((config or {}).get("configurable") or {}).get(name)


def thread_of(config: Mapping[str, Any] | None) -> str:
    """The ``thread_id`` of a run's configuration; empty when it has none."""
    thread = configurable(config, "thread_id")
    return "" if thread is None else str(thread)


def talk_of(
    session: AdapterSession, config: Mapping[str, Any] | None, said: Sequence[BaseMessage], scope: str | None = None
) -> str:
    """The id of the conversation that a call belongs to: its thread's; without one its graph run's, with all subgraphs.

    Outside of a graph, and for a run's first call, it is the one whose messages ``said`` goes on from.
    """
    thread = thread_of(config)
    if thread:
        return thread
    return session.unnamed([_words(message) for message in said], scope, run=_control_of(config))


def memory_of(session: AdapterSession, config: Mapping[str, Any] | None) -> str:
    """Whose memory a call's is: its thread's; without one its graph run's own, also where another said the same."""
    scope, thread = scope_of(config) or session.scope, thread_of(config)
    if not thread:
        return session.unnamed((), f"memory of {scope}", run=_control_of(config))
    # Privacy: tenants may have threads of the same id, and one place for all memories.
    return f"{scope}\0{thread}" if scope else thread


def _control_of(config: Mapping[str, Any] | None) -> object:
    """One object for a run and the runs inside it; LangGraph before 1.1 has none, so each request stands alone."""
    return getattr(configurable(config, "__pregel_runtime"), "control", None)


def _words(message: BaseMessage) -> tuple[str, ...]:
    """The type, text and tool calls of a message, without ids, to tell whether two messages say the same."""
    content = message.content if isinstance(message.content, str) else repr(message.content)
    calls = message.tool_calls if isinstance(message, AIMessage) else ()
    if not calls:
        return message.type, content
    return (message.type, content, *(f"{call['name']} {call['args']}" for call in calls))


def checkpoint_of(config: Mapping[str, Any] | None) -> str:
    """The checkpoint that the outermost graph's step began with; the same for all that run in that step."""
    return str((configurable(config, "checkpoint_map") or {}).get("", ""))


def scope_of(config: Mapping[str, Any] | None) -> str | None:
    """The tenant of a run, ``config["configurable"]["cacheprefix_scope"]``; None for the session's."""
    scope = configurable(config, "cacheprefix_scope")
    return None if scope is None else str(scope)


def running_scope() -> str | None:
    """The tenant in whose run the code here runs; None for the session's, and outside of any run."""
    frame = FRAME.get()
    return scope_of(var_child_runnable_config.get()) if frame is None else frame.scope


def runs() -> bool:
    """Whether the code here runs in a run, and not where applications are built."""
    return FRAME.get() is not None or var_child_runnable_config.get() is not None


def run_of(config: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The configuration of the run that the code here belongs to: what it was given, where that is a graph's task's.

    Steps that LangGraph runs behind a node's first are given theirs and do not find it: what they find is that of the
    code that runs the graph, which may be another graph's node.
    """
    if configurable(config, "__pregel_task_id") is not None:
        return config
    return var_child_runnable_config.get() or config


def task_of(config: Mapping[str, Any] | None) -> str | None:
    """The graph's task that the code here runs in, given this configuration; None outside of a graph."""
    task = configurable(run_of(config), "__pregel_task_id")
    return None if task is None else str(task)


@contextmanager
def within_run(config: Mapping[str, Any] | None) -> Iterator[None]:
    """Run a block with a run's configuration in force, where LangGraph has not put it there.

    Before Python 3.11 a task cannot be given a context, so that async nodes of LangGraph do not find their run.
    """
    settled = run_of(config)
    if settled is None or settled is var_child_runnable_config.get():
        yield
        return
    token = var_child_runnable_config.set(cast("RunnableConfig", settled))
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)


@contextmanager
def within_frame(frame: Frame | None) -> Iterator[None]:
    """Run a block with a fork in force; where it is that already, nothing changes."""
    if frame is not None and FRAME.get() is frame:
        yield
        return
    with _counted(frame), FRAME.within(frame):
        yield


@contextmanager
def _counted(frame: Frame | None) -> Iterator[None]:
    """Count a fork while it runs."""
    if frame is None:
        yield
        return
    frame.depth = 1 + _depth(frame.session, frame.conversation)
    _RUNNING.add(frame, 1)
    try:
        yield
    finally:
        _RUNNING.add(frame, -1)


class _Reading:
    """One block for all of a stream's reads: tasks that one of them starts are still under way in the next."""

    def __init__(self, frame: Frame | None) -> None:
        self._frame = frame
        self._block = FRAME.stretched(frame)

    @contextmanager
    def read(self) -> Iterator[None]:
        """Around one read."""
        if self._frame is not None and FRAME.get() is self._frame:
            yield
            return
        with _counted(self._frame), FRAME.stretch(self._block):
            yield

    def end(self) -> None:
        """Let the fork go, in what was started by any read too."""
        self._block.end()


def under(
    frame: Frame | None, items: Iterator[Any], done: Callable[[], None] = lambda: None
) -> Generator[Any, None, None]:
    """Iterate with the fork in force only while the iterator's own code runs, also where that is closed early.

    ``done`` is called where it comes to its end, also by a command to the graph around it.
    """
    reading = _Reading(frame)
    try:
        while True:
            try:
                with reading.read():
                    item = next(items)
            except StopIteration:
                done()
                return
            except ParentCommand:
                done()
                raise
            yield item
    finally:
        close = getattr(items, "close", None)
        try:
            if close is not None:
                with reading.read():
                    close()
        finally:
            reading.end()


async def aunder(
    frame: Frame | None, items: AsyncIterator[Any], done: Callable[[], None] = lambda: None
) -> AsyncGenerator[Any, None]:
    """``under`` for an asynchronous iterator."""
    reading = _Reading(frame)
    try:
        while True:
            try:
                with reading.read():
                    item = await items.__anext__()
            except StopAsyncIteration:
                done()
                return
            except ParentCommand:
                done()
                raise
            yield item
    finally:
        close = getattr(items, "aclose", None)
        try:
            if close is not None:
                with reading.read():
                    await close()
        finally:
            reading.end()


def running(session: AdapterSession) -> bool:
    """Whether a fork of the session is in force somewhere in this process."""
    return _key(session) in _RUNNING.counts


def siblings(session: AdapterSession, conversation: str) -> bool:
    """Whether other forks of a conversation are in force now, beside those that the code here runs in."""
    return _RUNNING.counts.get(_key(session, conversation), 0) > _depth(session, conversation)


def _depth(session: AdapterSession, conversation: str) -> int:
    """How many forks of a conversation are in force where the code here runs."""
    frame = FRAME.get()
    same = frame is not None and _key(frame.session, frame.conversation) == _key(session, conversation)
    return frame.depth if frame is not None and same else 0


# Every front door loads this module.
supported("cacheprefix-langgraph")
