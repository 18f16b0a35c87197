"""Models that a node or a graph asks, with us or without, as far as its code names them."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable, RunnableSequence
from langgraph.pregel import Pregel

from cacheprefix.adapter import AdapterSession
from cacheprefix_langgraph.wrapping import held, wrapping_of

AGENTS = "langchain.agents.factory"
"""The module whose functions are the nodes of ``create_agent``'s agents."""
_DEPTH = 8
"""How deep middleware's handlers are composed."""


def note_unwrapped(session: AdapterSession, role: str, node: Any) -> None:
    """Say that a role's code names a model that is not wrapped, for front doors.

    In the report; where it names no other model, and forks are made, in a warning too.
    """
    if session.off:
        return
    models: list[BaseChatModel] = session.attempt("unwrapped", lambda: [*_models(node)], [])
    bare = [model for model in models if wrapping_of(model) is None]
    if not bare:
        return
    kinds = sorted({type(model).__name__ for model in bare})
    said = (
        f"the role {role!r} asks a model that is not wrapped ({', '.join(kinds)}): "
        "those requests are neither changed nor measured; give it wrap_model(model, session)"
    )
    session.note(said)
    # Beside a wrapped one it may be meant, as for steps that are dearer as forks.
    if session.mode != "observe" and len(models) == len(bare):
        session.warn_once(f"unwrapped:{role}", said)


def _models(node: Any) -> Iterator[BaseChatModel]:
    """The models that a node names, or the nodes of a graph; none that middleware of ours asks."""
    if isinstance(node, Pregel):
        for one in node.nodes.values():
            yield from _models(one.bound)
        return
    function = _function(node)
    if getattr(function, "__module__", "") == AGENTS:
        made = closed_over(function)
        # Whoever moves the agent's prompt wraps its model itself.
        ours = getattr(sys.modules.get("cacheprefix_langgraph.middleware"), "PrefixMiddleware", ())
        given = [] if any(isinstance(one, ours) for one in middleware_in(made)) else [made.get("model")]
    elif isinstance(node, RunnableSequence):
        given = [*node.steps, *(one for step in node.steps for one in named(_function(step)))]
    else:
        given = [node, *named(function)]
    for each in given:
        model: Any = each
        while isinstance(model, Runnable) and not isinstance(model, BaseChatModel):
            # Structured output is a model with a parser behind it.
            model = model.steps[0] if isinstance(model, RunnableSequence) else _attribute(model, "bound")
        if isinstance(model, BaseChatModel):
            yield model


def _function(node: Any) -> Any:
    """The function that a node runs; the node itself where it is or holds one."""
    while isinstance(node, functools.partial):
        node = node.func
    return _attribute(node, "func") or _attribute(node, "afunc") or node


def _attribute(one: Any, name: str) -> Any:
    """What an object itself has under a name. Models that are made when they are called would be made for the rest."""
    return getattr(one, "__dict__", {}).get(name)


def closed_over(function: Any) -> dict[str, Any]:
    """The variables that a function uses of the function around it, by name, as far as they are set yet."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def named(function: Any) -> Iterator[Any]:
    """What a function's code names: its own variables and defaults, the module's, and what its object has."""
    function = inspect.unwrap(function) if inspect.isroutine(function) else function
    if inspect.ismethod(function):
        yield from vars(function.__self__).values() if hasattr(function.__self__, "__dict__") else ()
        function = function.__func__
    code = getattr(function, "__code__", None) if inspect.isroutine(function) else None
    if code is None:
        yield from vars(function).values() if hasattr(function, "__dict__") else ()
        return
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield from closed_over(function).values()
    yield from (function.__globals__[name] for name in code.co_names if name in function.__globals__)


def middleware_in(made: Any) -> Iterator[Any]:
    """The middleware around an agent's model, the outermost first, by the variables of its node."""
    yield from _middleware(made.get("wrap_model_call_handler"), _DEPTH)


def _middleware(handler: Any, depth: int) -> Iterator[Any]:
    """The middleware that a handler of ``create_agent`` is composed of, the outermost first."""
    from langchain.agents.middleware import AgentMiddleware  # noqa: PLC0415 - loaded already, where there is an agent

    owner = getattr(handler, "__self__", None)
    if isinstance(owner, AgentMiddleware):
        yield owner
    elif depth and getattr(handler, "__closure__", None):
        for one in closed_over(handler).values():
            if callable(one):
                yield from _middleware(one, depth - 1)


def binds_tools(node: Any) -> bool:
    """Whether a node's code binds tools as it runs."""
    function = inspect.unwrap(_function(node)) if inspect.isroutine(_function(node)) else _function(node)
    codes = [getattr(one, "__code__", None) for one in (function, getattr(function, "__func__", None))]
    return any(code is not None and "bind_tools" in code.co_names for code in codes)


def models_named(function: Any, bound: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The wrapped models that a node names, with the options that were bound to them."""
    given: Iterable[Any] = named(function)
    if isinstance(bound, RunnableSequence):
        given = [*bound.steps, *(one for step in bound.steps for one in named(held(step, "func") or step))]
    elif isinstance(bound, Runnable):
        given = [bound, *given]
    for one in given:
        model, options = unbound(one)
        if wrapping_of(model) is not None:
            yield model, options


def unbound(given: Any) -> tuple[Any, dict[str, Any]]:
    """A model under its bindings, with what they bind."""
    options: dict[str, Any] = {}
    while isinstance(given, Runnable) and wrapping_of(given) is None:
        if isinstance(given, RunnableSequence):
            # Structured output is a model with a parser behind it.
            given = next((step for step in given.steps if wrapping_of(unbound(step)[0]) is not None), None)
            continue
        options = {**(held(given, "kwargs") or {}), **options}
        given = held(given, "bound")
    return given, options
