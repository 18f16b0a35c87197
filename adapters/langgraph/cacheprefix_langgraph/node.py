"""``forked``: a graph node whose model calls are forks of the shared prefix."""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MethodType
from typing import Any, TypeVar, cast, overload

from langchain_core.runnables import Runnable, RunnableConfig, RunnableSequence
from langchain_core.runnables.base import coerce_to_runnable
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.pregel.protocol import PregelProtocol

from cacheprefix import ForkPolicy, Session
from cacheprefix.adapter import (
    Lock,
    VolatileRole,
    check_volatile,
    given_or_configured,
    users_session,
)
from cacheprefix.errors import SetupError, check_text
from cacheprefix_langgraph.fork_context import (
    FORK,
    FRAME,
    ForkSettings,
    Frame,
    aunder,
    configurable,
    scope_of,
    under,
    within_frame,
    within_run,
)
from cacheprefix_langgraph.schemas import decorated, foresee
from cacheprefix_langgraph.state import conversation_of, ledger_in, messages_in, update_of, with_update
from cacheprefix_langgraph.subgraphs import subgraph
from cacheprefix_langgraph.tools import names_given
from cacheprefix_langgraph.unwrapped import note_unwrapped
from cacheprefix_langgraph.wrapping import held

_ORIGINAL = "__cacheprefix_original__"
"""The attribute of a forked object that keeps the object, with which it shares its state."""

_TASKS = 1_000
"""How many tasks under way a sequence remembers its forks for."""

_KEEPS_CONTEXT = sys.version_info >= (3, 11)
"""Whether tasks can be given a context, by which LangGraph's nodes find their run."""

F = TypeVar("F", bound="Callable[..., Any] | Runnable[Any, Any]")


@overload
def forked(session: F, /) -> F: ...
@overload
def forked(
    session: Session | None = None,
    *,
    role: str | None = None,
    instruction: str = "",
    tools: Sequence[Any] | None = None,
    messages_key: str = "messages",
    pinned: bool = False,
    volatile: Callable[[Any], Mapping[str, str]] | None = None,
    volatile_role: VolatileRole = "user",
    policy: ForkPolicy | None = None,
) -> Callable[[F], F]: ...
def forked(
    session: Any = None,
    *,
    role: str | None = None,
    instruction: str = "",
    tools: Sequence[Any] | None = None,
    messages_key: str = "messages",
    pinned: bool = False,
    volatile: Callable[[Any], Mapping[str, str]] | None = None,
    volatile_role: VolatileRole = "user",
    policy: ForkPolicy | None = None,
) -> Any:
    """Make a node's calls of wrapped models forks of the session's prefix.

    The node's body stays as it is: its own system message becomes the role's text at the end of the prompt. ``role``
    defaults to the function's name. ``tools`` are those the role may use, or their names, where that is less than what
    it binds; a name that no tool has is warned about. ``pinned=True`` puts the role's text before the messages that the
    node adds itself: cheaper for a node with a tool loop of its own that is not committed to the conversation.
    ``volatile`` gives text for this call only (time, retrieval) from the state; it stands behind everything, said by
    ``volatile_role`` (Anthropic's API knows the user's there alone). What it raises is the node's error; it is not
    called in ``observe`` mode.
    Takes what LangGraph takes as a node: functions, coroutine functions, generators of both kinds, methods, partials,
    callables, and Runnables (a copy of which is given back, with the same state; of a compiled graph, what ``subgraph``
    makes of it). In ``observe`` mode all but a function is given back as it is, and its calls are told by the name of
    the graph's node, inside another graph behind that one's (``answer/critic``), and not by ``role``.
    ``forked`` without a session makes one by ``Session.from_config()``, and attaches it as ``cacheprefix_session`` to
    whatever it does not give back as it is.
    Raises ``SetupError`` for anything else.
    """
    if not isinstance(session, Session) and (callable(session) or isinstance(session, Runnable)):
        return forked()(session)
    if session is not None and not isinstance(session, Session):
        raise SetupError(f"forked(session) takes a cacheprefix Session, found {type(session).__name__}")
    check_volatile(volatile, volatile_role)
    check_text("role", role, optional=True)
    check_text("instruction", instruction)
    allowed = names_given(tools)
    bound = given_or_configured(session)

    def decorate(node: F) -> F:
        given: Any = node
        if bound.off:
            return node
        if isinstance(given, PregelProtocol):
            if tools is not None:
                raise SetupError("forked(tools=...) restricts a node; a compiled graph's agents have their own tools")
            return cast(
                "F",
                subgraph(
                    given,  # type: ignore[type-var]
                    users_session(bound),
                    role=role,
                    instruction=instruction,
                    messages_key=messages_key,
                    pinned=pinned,
                    volatile=volatile,
                    volatile_role=volatile_role,
                    policy=policy,
                ),
            )
        if isinstance(given, dict):
            given = coerce_to_runnable(given)
        if not callable(given) and not isinstance(given, Runnable):
            raise SetupError(
                f"forked decorates a node (a function, method, callable or Runnable), found {type(given).__name__}: "
                "pass the node itself"
            )
        name = role or _name_of(given, len(bound.team.roles))
        note_unwrapped(bound, name, given)
        if bound.mode == "observe" and not inspect.isfunction(given):
            # LangGraph and applications go by which object a node is and by what it holds. What its models ask is told
            # by the node's name; only a function, which passes for itself under a wrapper, tells its role's.
            return node
        bound.join(name)
        bound.attempt("tools", lambda: decorated(bound, name, given), None)
        foresee(bound, given)
        fork = ForkSettings(bound, name, instruction, allowed, messages_key, pinned, volatile, volatile_role, policy)
        make = _runnable if isinstance(given, Runnable) else _function if inspect.isroutine(given) else _object
        return cast("F", make(given, fork))

    return decorate


def entered(fork: ForkSettings, state: Any, config: Any = None) -> Frame | None:
    """The fork that is in force while a node runs on ``state``.

    Where that cannot be made it is one that keeps the application's layout, in ``observe`` mode None. What
    ``volatile`` raises reaches the application.
    """
    session = fork.session
    config = var_child_runnable_config.get() or config
    said = fork.said_now(state)

    def frame() -> Frame:
        shared = messages_in(state, fork.messages_key)
        with within_run(config):
            ledger = ledger_in(state, session)
        talk = conversation_of(session, config, ledger, shared or (), key=fork.messages_key)
        return fork.frame(talk, said, shared=shared, scope=scope_of(config))

    return session.attempt("forked", frame, fork.unlaid(said))


def _left(fork: ForkSettings, frame: Frame | None, state: Any, result: Any, config: Any = None) -> Any:
    """A node's result, with the decisions that were made for its calls."""
    if frame is None or frame.state is None:
        return result
    talk, session = frame.state, fork.session

    def made() -> Any:
        with within_run(config):
            update = update_of(session, talk, ledger_in(state, session))
            return with_update(result, update, session)

    return session.attempt("ledger", made, result)


def _function(function: Callable[..., Any], fork: ForkSettings) -> Callable[..., Any]:
    """Wrap a node's function so that its model calls are forks; it stays sync, async or a generator, as it was."""
    reads = _reader(function)
    call = getattr(function, "__call__", None)  # noqa: B004 - looked at, not called: what kind of function is it
    wrapped: Any

    if inspect.isasyncgenfunction(function) or inspect.isasyncgenfunction(call):

        async def wrapped(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            state, config = reads(args, kwargs)
            frame, last = entered(fork, state, config), None
            async for last in aunder(frame, function(*args, **kwargs)):
                yield last
            done = _completed(fork, frame, state, last, config)
            if done is not None:
                yield done

    elif inspect.isgeneratorfunction(function) or inspect.isgeneratorfunction(call):

        def wrapped(*args: Any, **kwargs: Any) -> Iterator[Any]:
            state, config = reads(args, kwargs)
            frame, last = entered(fork, state, config), None
            for last in under(frame, function(*args, **kwargs)):
                yield last
            done = _completed(fork, frame, state, last, config)
            if done is not None:
                yield done

    elif inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):

        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            state, config = reads(args, kwargs)
            frame = entered(fork, state, config)
            with within_frame(frame):
                result = await function(*args, **kwargs)
            return _left(fork, frame, state, result, config)

    else:

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            state, config = reads(args, kwargs)
            frame = entered(fork, state, config)
            with within_frame(frame):
                result = function(*args, **kwargs)
            return _left(fork, frame, state, result, config)

    _dress(wrapped, function)
    if not _KEEPS_CONTEXT:
        _asks_for_config(wrapped, function)
    wrapped.cacheprefix_session, wrapped.cacheprefix_role = users_session(fork.session), fork.role
    setattr(wrapped, FORK, fork)
    return cast("Callable[..., Any]", wrapped)


def _object(node: Any, fork: ForkSettings) -> Any:
    """A callable object of a class of its own, whose calls are forks and whose state is the very node's.

    A function where no class can be derived, or where state is not in the object's ``__dict__``: in slots, or C's.
    """
    base, call = type(node), type(node).__call__
    slots = any(vars(kind).get("__slots__") for kind in base.__mro__)
    if slots or not inspect.isfunction(call) or not hasattr(node, "__dict__"):
        return _function(node, fork)
    told = {"__call__": _function(call, fork), FORK: fork, _ORIGINAL: node}
    told |= {"cacheprefix_session": users_session(fork.session), "cacheprefix_role": fork.role}
    if hasattr(base, "__del__"):
        # What the state holds is closed when the node itself goes, which is not before this object.
        told["__del__"] = lambda _: None
    told |= {name: getattr(base, name) for name in ("__qualname__", "__module__", "__doc__")}
    try:
        made: Any = object.__new__(type(base.__name__, (base,), told))
    except TypeError:
        return _function(node, fork)
    object.__setattr__(made, "__dict__", node.__dict__)
    return made


def _completed(fork: ForkSettings, frame: Frame | None, state: Any, last: Any, config: Any) -> dict[str, Any] | None:
    """A generator's last update once more, with the decisions; None where there are none.

    Of several mappings LangGraph keeps the last, so that nothing is applied twice.
    """
    if type(last) is not dict:
        return None
    done = _left(fork, frame, state, last, config)
    return done if isinstance(done, dict) and done is not last else None


def _dress(wrapped: Any, function: Any) -> None:
    """Give the wrapper the name, type hints and signature of the function, by which LangGraph treats a node."""
    plain = inspect.isroutine(function)
    functools.update_wrapper(wrapped, function, updated=("__dict__",) if plain else ())
    if plain:
        # LangGraph looks for subgraphs one step behind a node's ``__wrapped__``: there it has to find what it would
        # find behind the decorators that were there before.
        inner = getattr(function, "__wrapped__", None)
        if callable(inner):
            wrapped.__wrapped__ = MethodType(inner, function.__self__) if inspect.ismethod(function) else inner
        return
    # An object has its name by its class and its hints by its call; a partial function has neither.
    wrapped.__name__ = getattr(function, "__name__", type(function).__name__)
    wrapped.__qualname__ = getattr(function, "__qualname__", wrapped.__name__)
    call = getattr(function, "__call__", None)  # noqa: B004 - looked at, not called
    if inspect.ismethod(call):
        wrapped.__wrapped__ = call
        wrapped.__annotations__ = dict(getattr(call, "__annotations__", {}))
    else:
        wrapped.__annotations__ = {}


def _reader(function: Callable[..., Any]) -> Callable[[Sequence[Any], dict[str, Any]], tuple[Any, Any]]:
    """A function that finds the state and the run's configuration among a node's arguments.

    The state is the first one, behind ``self`` in a class's body. A configuration that only we asked for
    (``_asks_for_config``) is taken out.
    """
    names = list(_parameters(function))
    at = 1 if names[:1] in (["self"], ["cls"]) else 0
    name = names[at] if len(names) > at else "state"
    ours = not _KEEPS_CONTEXT and "config" not in names

    def read(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        state = args[at] if len(args) > at else kwargs.get(name, kwargs.get("state"))
        return state, kwargs.pop("config", None) if ours else kwargs.get("config")

    return read


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function by name; empty where Python cannot tell."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _asks_for_config(wrapped: Any, function: Callable[..., Any]) -> None:
    """Have LangGraph hand the run's configuration to a node that did not ask for it.

    On Python 3.10 there is no other way to it from nodes that run in a task: LangGraph goes by the signature.
    """
    known = _parameters(function)
    if known and "config" not in known:
        given = list(known.values())
        at = len(given) - (given[-1].kind is inspect.Parameter.VAR_KEYWORD)
        asked = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=RunnableConfig)
        wrapped.__signature__ = inspect.Signature([*given[:at], asked, *given[at:]])


def _name_of(node: Any, others: int) -> str:
    """A role's name that is fit to be read, for a node that was given none."""
    while isinstance(node, functools.partial):
        node = node.func
    if isinstance(node, Runnable):
        found = node.get_name()
        inner = held(node, "func") or held(node, "afunc")
        found = getattr(inner, "__name__", found) if inner is not None else found
    else:
        found = str(getattr(node, "__name__", type(node).__name__))
    return found if "<" not in found else f"role {others + 1}"


def _runnable(node: Runnable[Any, Any], fork: ForkSettings) -> Any:
    """A copy of a Runnable, of a class of its own that runs as a fork and is otherwise the same."""
    base = type(node)

    class ForkedRunnable(base):  # type: ignore[valid-type,misc]
        def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's own name
            frame = entered(fork, input, config)
            with within_frame(frame):
                result = base.invoke(self, input, config, **kwargs)
            return _left(fork, frame, input, result, config)

        async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's own name
            frame = entered(fork, input, config)
            with within_frame(frame):
                result = await base.ainvoke(self, input, config, **kwargs)
            return _left(fork, frame, input, result, config)

        def stream(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's own name
            frame = entered(fork, input, config)
            # A wrapped model lays its request out where the stream is asked for, a generator where it is read.
            with within_frame(frame):
                items = base.stream(self, input, config, **kwargs)
            return under(frame, items)

        def astream(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's own name
            frame = entered(fork, input, config)
            with within_frame(frame):
                items = base.astream(self, input, config, **kwargs)
            return aunder(frame, items)

        # One call an input: each is a fork of its own state.
        batch = Runnable.batch
        abatch = Runnable.abatch

    ForkedRunnable.cacheprefix_session, ForkedRunnable.cacheprefix_role = users_session(fork.session), fork.role
    setattr(ForkedRunnable, FORK, fork)
    made = _of_class(node, ForkedRunnable)
    if isinstance(made, RunnableSequence):
        # LangGraph takes a sequence apart and runs its steps itself.
        passing = _Passing(fork)
        steps = [_step(step, passing, last=step is made.last) for step in made.steps]
        made.first, made.middle, made.last = steps[0], steps[1:-1], steps[-1]
    return made


class _Passing:
    """The forks of a sequence whose steps are run one by one, from a task's first step to its last. Bounded."""

    def __init__(self, fork: ForkSettings) -> None:
        self._fork = fork
        self._tasks: OrderedDict[str, tuple[Frame | None, Any]] = OrderedDict()
        self._lock = Lock()

    def enter(self, given: Any, config: Any) -> tuple[Frame | None, Any, str | None]:
        """The fork for one step, the state that the first one was run on, and the task; no task where none is told."""
        now = FRAME.get()
        if now is not None and now.session is self._fork.session and now.role == self._fork.role:
            return now, given, None
        settled = config or var_child_runnable_config.get() or {}
        task = configurable(settled, "__pregel_task_id")
        with self._lock:
            known = self._tasks.get(str(task))
        if known is not None:
            return *known, str(task)
        made = (entered(self._fork, given, settled), given)
        with self._lock:
            self._tasks[str(task)] = made
            while len(self._tasks) > _TASKS:
                self._tasks.popitem(last=False)
        return *made, str(task)

    def leave(self, task: str | None, frame: Frame | None, state: Any, result: Any, config: Any) -> Any:
        """The last step's result, with the decisions; nothing is remembered of the task any more."""
        if task is None:
            return result
        self._forget(task)
        return _left(self._fork, frame, state, result, config)

    @contextmanager
    def running(self, task: str | None) -> Iterator[None]:
        """Around one step: a task that fails or is interrupted begins anew, with what is said by then."""
        try:
            yield
        except BaseException:
            if task is not None:
                self._forget(task)
            raise

    def _forget(self, task: str) -> None:
        with self._lock:
            self._tasks.pop(task, None)


def _step(node: Runnable[Any, Any], passing: _Passing, *, last: bool) -> Any:
    """A copy of one step of a sequence, which runs under the sequence's fork."""
    base = type(node)

    class ForkedStep(base):  # type: ignore[valid-type,misc]
        def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's own name
            frame, state, task = passing.enter(input, config)
            with passing.running(task), within_frame(frame):
                result = base.invoke(self, input, config, **kwargs)
            return passing.leave(task, frame, state, result, config) if last else result

        async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's own name
            frame, state, task = passing.enter(input, config)
            with passing.running(task), within_frame(frame):
                result = await base.ainvoke(self, input, config, **kwargs)
            return passing.leave(task, frame, state, result, config) if last else result

    return _of_class(node, ForkedStep)


def _of_class(node: Runnable[Any, Any], kind: Any) -> Any:
    """A copy of a Runnable that is of a generated class, which calls itself as the Runnable's own does.

    It has the Runnable's very state, so that what the application keeps or changes there is the same for both; only a
    sequence gets other steps.
    """
    base = type(node)
    for name in ("invoke", "ainvoke", "stream", "astream"):
        if name in vars(kind):
            functools.update_wrapper(vars(kind)[name], getattr(base, name), updated=())
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(kind, name, getattr(base, name))
    try:
        made = copy.copy(node) if isinstance(node, RunnableSequence) else _twin(node)
        object.__setattr__(made, "__class__", kind)
    except TypeError as error:
        raise SetupError(
            f"forked cannot make a fork of a {base.__name__}: call it in a function and decorate that "
            "(@forked(session) def node(state): return it.invoke(state))"
        ) from error
    return made


def _twin(node: Runnable[Any, Any]) -> Any:
    """Another object of a Runnable's class with the Runnable's very state.

    Nothing is asked of either: a class whose ``__getattr__`` goes by its state has none yet while it is copied.
    """
    made = object.__new__(type(node))
    object.__setattr__(made, "__dict__", node.__dict__)
    for slot in (one for kind in type(node).__mro__ for one in vars(kind).values() if inspect.ismemberdescriptor(one)):
        with suppress(AttributeError):
            slot.__set__(made, slot.__get__(node))
    return made
