"""``forked``: a graph node whose model calls are forks of the shared prefix."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from types import MethodType
from typing import Any, TypeVar, cast, overload

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.base import coerce_to_runnable
from langgraph.func import task
from langgraph.graph import StateGraph
from langgraph.pregel.protocol import PregelProtocol

from cacheprefix import ForkPolicy, Session
from cacheprefix.adapter import (
    VolatileRole,
    check_volatile,
    given_or_configured,
    users_session,
)
from cacheprefix.errors import SetupError, check_text
from cacheprefix_langgraph.entering import Parts, entered, left
from cacheprefix_langgraph.fork_context import (
    FORK,
    ForkSettings,
    aunder,
    under,
    within_frame,
)
from cacheprefix_langgraph.runnables import forked_runnable
from cacheprefix_langgraph.schemas import decorated, foresee
from cacheprefix_langgraph.subgraphs import subgraph
from cacheprefix_langgraph.tools import names_bound, names_given, usable
from cacheprefix_langgraph.unwrapped import binds_tools, note_unwrapped
from cacheprefix_langgraph.wrapping import held

_ORIGINAL = "__cacheprefix_original__"
"""The attribute of a forked object that keeps the object, with which it shares its state."""

_KEEPS_CONTEXT = sys.version_info >= (3, 11)
"""Whether tasks can be given a context, by which LangGraph's nodes find their run."""

_TASK: Any = type(task(lambda: None))
"""The class of what ``@task`` makes of a function."""

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
    Raises ``SetupError`` for anything else, and for a node that is forked already (or a partial or a ``RunnableLambda``
    of such a function), in another session or with another ``volatile``; as another role it is warned of.
    """
    if not isinstance(session, Session) and (callable(session) or isinstance(session, Runnable)):
        if isinstance(session, BaseChatModel) and (role is not None or tools is not None or pinned):
            raise SetupError(
                f"forked(...) with options takes a session, found {type(session).__name__}: write "
                "forked(session, role=...)(node), whose model is one of wrap_model(model, session)"
            )
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
        if isinstance(given, _TASK):
            # It only starts the task: what is asked in it is asked behind the fork.
            raise SetupError(
                "forked(...) is written above @task: turn them round, with @task above @forked(session, role=...)"
            )
        if isinstance(given, dict):
            given = coerce_to_runnable(given)
        if not callable(given) and not isinstance(given, Runnable):
            todo = "call .compile() first" if isinstance(given, StateGraph) else "pass the node itself"
            raise SetupError(
                f"forked decorates a node (a function, method, callable or Runnable), found {type(given).__name__}: "
                f"{todo}"
            )
        name = role or _name_of(given, len(bound.team.roles))
        known = _known(given)
        if isinstance(known, ForkSettings) and (known.session is not bound or volatile not in (None, known.volatile)):
            # Privacy: the inner fork would count, whose session and volatile text may be another user's.
            raise SetupError(
                f"{name!r} is forked already, in another session or with another volatile: decorate the node itself, "
                "once for each user"
            )
        if isinstance(known, ForkSettings) and role not in (None, known.role):
            bound.warn_once(
                f"twice:{known.role}:{role}",
                f"a node is forked as {role!r} that is forked already, as {known.role!r}: the inner role is the one "
                "that asks; fork it once",
            )
        note_unwrapped(bound, name, given)
        # In ``observe`` too: the day of the switch is too late for it.
        none: list[str] = []
        known = bound.attempt("tools", lambda: names_bound(given), none) if allowed else none
        if known:
            usable(bound, name, allowed, known)
        if bound.mode == "observe" and not inspect.isfunction(given):
            # LangGraph and applications go by which object a node is and by what it holds. What its models ask is told
            # by the node's name; only a function, which passes for itself under a wrapper, tells its role's.
            return node
        bound.join(name)
        bound.attempt("tools", lambda: decorated(bound, name, given), None)
        foresee(bound, given)
        binds = bool(allowed) and bound.attempt("tools", lambda: binds_tools(given), otherwise=True)
        fork = ForkSettings(
            bound, name, instruction, allowed, messages_key, pinned, volatile, volatile_role, policy, binds
        )
        make = forked_runnable if isinstance(given, Runnable) else _function if inspect.isroutine(given) else _object
        return cast("F", make(given, fork))

    return decorate


def _function(function: Callable[..., Any], fork: ForkSettings) -> Callable[..., Any]:
    """Wrap a node's function so that its model calls are forks; it stays sync, async or a generator, as it was."""
    reads = _reader(function)
    call = getattr(function, "__call__", None)  # noqa: B004 - looked at, not called: what kind of function is it
    wrapped: Any

    if inspect.isasyncgenfunction(function) or inspect.isasyncgenfunction(call):

        async def wrapped(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            state, config = reads(args, kwargs)
            frame, parts = entered(fork, state, config), Parts()
            async for part in aunder(frame, function(*args, **kwargs)):
                parts.add(part)
                yield part
            for part in parts.rest(fork, frame, state, config):
                yield part

    elif inspect.isgeneratorfunction(function) or inspect.isgeneratorfunction(call):

        def wrapped(*args: Any, **kwargs: Any) -> Iterator[Any]:
            state, config = reads(args, kwargs)
            frame, parts = entered(fork, state, config), Parts()
            for part in under(frame, function(*args, **kwargs)):
                parts.add(part)
                yield part
            yield from parts.rest(fork, frame, state, config)

    elif inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):

        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            state, config = reads(args, kwargs)
            frame = entered(fork, state, config)
            with within_frame(frame):
                result = await function(*args, **kwargs)
            return left(fork, frame, state, result, config)

    else:

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            state, config = reads(args, kwargs)
            frame = entered(fork, state, config)
            with within_frame(frame):
                result = function(*args, **kwargs)
            return left(fork, frame, state, result, config)

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


def _known(node: Any) -> Any:
    """How a node is forked already, or the function that a partial, a lambda or its bindings are of; None where not."""
    while node is not None:
        # Not by the attribute: a model that is made by its configuration would be made to look for it.
        if (found := inspect.getattr_static(node, FORK, None)) is not None:
            return found
        if isinstance(node, functools.partial):
            node = node.func
        else:
            node = held(node, "func") or held(node, "afunc") if isinstance(node, Runnable) else None
    return None


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
