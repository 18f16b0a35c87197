"""``forked``: a graph node whose model calls are forks of the shared prefix."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

from langchain_core.messages import BaseMessage
from langchain_core.runnables.config import var_child_runnable_config

from cacheprefix import Session
from cacheprefix.config import given_or_configured
from cacheprefix.context import Ledger
from cacheprefix.errors import SetupError
from cacheprefix.prefix import ForkPolicy, VolatileRole
from cacheprefix_langgraph._frame import Frame, scope_of, thread_of, within_frame
from cacheprefix_langgraph._state import conversation_of, ledger_in, with_update

F = TypeVar("F", bound=Callable[..., Any])


@overload
def forked(session: F, /) -> F: ...
@overload
def forked(
    session: Session | None = None,
    *,
    role: str | None = None,
    instruction: str = "",
    tools: Sequence[str] | None = None,
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
    tools: Sequence[str] | None = None,
    messages_key: str = "messages",
    pinned: bool = False,
    volatile: Callable[[Any], Mapping[str, str]] | None = None,
    volatile_role: VolatileRole = "user",
    policy: ForkPolicy | None = None,
) -> Any:
    """Make a node's calls of wrapped models forks of the session's prefix.

    The node's body stays as it is: its own system message becomes the role's text at the end of the
    prompt. ``role`` defaults to the function's name. ``tools`` names those the role may use, where that is
    less than what it binds. ``pinned=True`` puts the role's text before the messages that the node adds
    itself: cheaper for a node with a tool loop of its own that is not committed to the conversation.
    ``volatile`` gives text for this call only (time, retrieval) from the state; it stands behind everything, said by
    ``volatile_role`` (Anthropic's API knows the user's there alone).
    Works on sync and async functions and callables; ``forked`` without a session makes one by
    ``Session.from_config()`` and attaches it as ``cacheprefix_session``.
    """
    if callable(session) and not isinstance(session, Session):
        return forked()(session)
    if session is not None and not isinstance(session, Session):
        message = f"forked(session) takes a cacheprefix Session, found {type(session).__name__}"
        raise SetupError(message)
    bound = given_or_configured(session)

    def decorate(function: F) -> F:
        name = role or str(getattr(function, "__name__", type(function).__name__))
        bound.join(name)

        def frame(args: Sequence[Any], kwargs: Mapping[str, Any], said: Mapping[str, str]) -> Frame:
            state = args[0] if args else kwargs.get("state")
            config = var_child_runnable_config.get()
            thread, scope = thread_of(config), scope_of(config)
            return Frame(
                session=bound,
                role=name,
                instruction=instruction,
                shared=messages_in(state, messages_key),
                conversation=thread,
                state=conversation_of(bound, thread, ledger_in(state, bound), scope),
                scope=scope,
                allowed=None if tools is None else tuple(tools),
                pinned=pinned,
                volatile=said,
                volatile_role=volatile_role,
                policy=policy,
            )

        def entered(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Frame | None:
            # Outside of what fails open: an error of the application's own function is the application's.
            said = said_now(bound, volatile, args[0] if args else kwargs.get("state"))
            plain = unlaid(bound, name, instruction, said, volatile_role)
            return bound.attempt("forked", lambda: frame(args, kwargs, said), plain)

        def left(frame: Frame | None, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
            if frame is None or frame.state is None:
                return result
            ledger = frame.state.ledger
            before = Ledger.from_json(ledger_in(args[0] if args else kwargs.get("state"), bound))
            return bound.attempt("ledger", lambda: with_update(result, ledger.since(before), bound, name), result)

        call = getattr(function, "__call__", None)  # noqa: B004 - looked at, not called: is it a coroutine function
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):

            @functools.wraps(function)
            async def wrapped(*args: Any, **kwargs: Any) -> Any:
                frame = entered(args, kwargs)
                with within_frame(frame):
                    result = await function(*args, **kwargs)
                return left(frame, args, kwargs, result)
        else:

            @functools.wraps(function)
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                frame = entered(args, kwargs)
                with within_frame(frame):
                    result = function(*args, **kwargs)
                return left(frame, args, kwargs, result)

        wrapped.cacheprefix_session = bound  # type: ignore[attr-defined]
        wrapped.cacheprefix_role = name  # type: ignore[attr-defined]
        return wrapped  # type: ignore[return-value]

    return decorate


def said_now(
    session: Session, volatile: Callable[[Any], Mapping[str, str]] | None, state: Any
) -> Mapping[str, str]:
    """What the application says with this call alone; what its function raises reaches it. Empty while observing."""
    return {} if volatile is None or session.mode == "observe" else dict(volatile(state))


def unlaid(
    session: Session, role: str, instruction: str, volatile: Mapping[str, str], volatile_role: VolatileRole
) -> Frame | None:
    """What stands in for a fork that could not be made: the application's layout with what it left to us to say."""
    if session.mode == "observe" or not (instruction or volatile):
        return None
    return Frame(
        session=session, role=role, instruction=instruction, volatile=volatile, volatile_role=volatile_role, laid=False
    )


def messages_in(state: Any, key: str) -> list[BaseMessage] | None:
    """The messages of a state of any shape; None where it has none under that key."""
    value = state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)
    if value is None and isinstance(state, list):
        value = state
    if not isinstance(value, (list, tuple)):
        return None
    return [message for message in value if isinstance(message, BaseMessage)]
