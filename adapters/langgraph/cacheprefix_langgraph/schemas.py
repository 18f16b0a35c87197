"""The schemas of structured answers that nodes bind when they run, found in their code when they are decorated.

Under function calling a schema is a tool, and tools stand before everything else in a prompt: one that comes with a
node's first request parts that node from all others. A node's code says which it will bind, as in
``llm.with_structured_output(Plan)``, so that the shared tools are whole before the first request.
"""

from __future__ import annotations

import ast
import asyncio
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from types import CellType, FunctionType, MethodType
from typing import Any, Final, NamedTuple

from langchain_core.runnables import Runnable, RunnableSequence
from pydantic import BaseModel

from cacheprefix.adapter import AdapterSession
from cacheprefix_langgraph.tools import adopt

_BINDS: Final = "with_structured_output"
STRUCTURED: Final = "ls_structured_output_format"
"""The option by which LangChain's classes tell a schema that they bind as a tool from a tool."""
_DEPTH: Final = 3
_BESIDE: Final = "langgraph schemas"
_FUNCTION_CALLING: Final = "function_calling"


class Schema(NamedTuple):
    """A schema that a node's code binds."""

    schema: Any
    method: str | None
    """As the code says it; None for the model class's default."""


def foresee(session: AdapterSession, node: Any) -> None:
    """Remember the schemas that a node will bind; for front doors, at set-up."""
    nothing: list[Schema] = []
    found = session.attempt("schemas", lambda: list(bound_schemas(node)), nothing)
    if found:
        session.beside.setdefault(_BESIDE, []).extend(found)


def adopt_foreseen(session: AdapterSession, model: Any, *, calls: bool = False) -> None:
    """Put the schemas that were foreseen into the shared tools, before the first request and where they are tools.

    ``calls`` says that the application binds one by function calling now. Without, the code or the default of the
    model's class must say so: a tool that nobody ever binds would be sent in vain.
    """
    known: list[Schema] = session.beside.get(_BESIDE) or []
    if not known or session.mode == "observe":
        return
    if session.shared.totals.last is not None:
        # From now on a tool more would change every prompt from its beginning.
        known.clear()
        return
    default = _default_method(type(model).with_structured_output)
    ready = [one for one in known if (one.method or (_FUNCTION_CALLING if calls else default)) == _FUNCTION_CALLING]
    if ready:
        known[:] = [one for one in known if one not in ready]
        adopt(session, [one.schema for one in ready])


@functools.lru_cache(maxsize=64)
def _default_method(binds: Callable[..., Any]) -> str:
    """How a model class binds a schema where it is told nothing."""
    found = inspect.signature(binds).parameters.get("method")
    return str(found.default) if found is not None else ""


def bound_schemas(node: Any) -> Iterator[Schema]:
    """The schemas that a node's code, and the functions that it calls by name, bind by ``with_structured_output``.

    Found are those that stand there by name. Code without a source, nodes that are made in a running event loop, and
    schemas that are only made when the node runs are not found: they are bound as they come.
    """
    seen: set[int] = set()
    for function in _functions(node):
        yield from _in_function(function, {}, seen, _DEPTH)


def _functions(node: Any) -> Iterator[FunctionType]:
    """The functions that a node runs."""
    while isinstance(node, functools.partial):
        node = node.func
    if isinstance(node, RunnableSequence):
        for step in node.steps:
            yield from _functions(step)
        return
    if isinstance(node, Runnable):
        # LangChain's and LangGraph's around a function; what another one binds was bound when it was made.
        node = getattr(node, "func", None) or getattr(node, "afunc", None)
    if isinstance(node, MethodType):
        node = node.__func__
    elif not isinstance(node, FunctionType):
        node = type(node).__call__ if callable(node) else None
    if isinstance(node, FunctionType):
        yield node


def _in_function(function: FunctionType, given: Mapping[str, Any], seen: set[int], depth: int) -> Iterator[Schema]:
    """The schemas bound in a function that is called with ``given`` arguments."""
    tree = _tree(function) if _mentions(function) else None
    if tree is None or depth == 0:
        return
    names = {**_names(function), **given}
    for call in (one for one in ast.walk(tree) if isinstance(one, ast.Call)):
        called = _value(call.func, names)
        if (isinstance(call.func, ast.Attribute) and call.func.attr == _BINDS) or _is_binding(called):
            yield from _bound(call, names)
        elif isinstance(called, FunctionType) and _mentions(called):
            arguments = _arguments(called, call, names)
            key = hash((id(called), *(id(value) for value in arguments.values())))
            if key not in seen:
                seen.add(key)
                yield from _in_function(called, arguments, seen, depth - 1)


def _bound(call: ast.Call, names: Mapping[str, Any]) -> Iterator[Schema]:
    options: dict[str, Any] = {}
    for word in call.keywords:
        value = _value(word.value, names)
        options |= {word.arg: value} if word.arg else value if isinstance(value, dict) else {}
    schema = _value(call.args[0], names) if call.args else options.get("schema")
    # A strict schema is another tool than the one that we would make of it.
    if _is_schema(schema) and "strict" not in options and "tools" not in options:
        method = options.get("method")
        yield Schema(schema, method if isinstance(method, str) else None)


def _is_schema(value: Any) -> bool:
    typed = isinstance(value, type) and (issubclass(value, BaseModel) or hasattr(value, "__total__"))
    return typed or (isinstance(value, dict) and bool({"title", "name", "function"} & value.keys()))


def _is_binding(value: Any) -> bool:
    return isinstance(value, MethodType) and value.__name__ == _BINDS


def _mentions(function: FunctionType) -> bool:
    """Whether a function's code binds a schema, or a function or method does that it calls by name."""
    named = {name for code in _codes(function.__code__) for name in code.co_names}
    if _BINDS in named:
        return True
    around = [*_closure(function).values(), *(function.__globals__.get(name) for name in named)]
    return any(
        _is_binding(value) or (isinstance(value, FunctionType) and _BINDS in value.__code__.co_names)
        for value in around
    )


def _codes(code: Any) -> Iterator[Any]:
    yield code
    for one in code.co_consts:
        if inspect.iscode(one):
            yield from _codes(one)


def _tree(function: FunctionType) -> ast.AST | None:
    if _in_loop():
        # Reading a file would hold up all that runs in it.
        return None
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        # There is no source, or a lambda's line is none that stands alone.
        return None


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _names(function: FunctionType) -> dict[str, Any]:
    return {**function.__globals__, **_closure(function)}


def _closure(function: FunctionType) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    return {name: cell.cell_contents for name, cell in cells if _is_set(cell)}


def _is_set(cell: CellType) -> bool:
    """Whether what a function takes from around it is defined yet."""
    try:
        cell.cell_contents  # noqa: B018 - asked for only to see whether it is there
    except ValueError:
        return False
    return True


def _value(place: ast.expr, names: Mapping[str, Any]) -> Any:
    """What stands at a place of the code; None where only running it would tell."""
    if isinstance(place, ast.Constant):
        return place.value
    if isinstance(place, ast.Name):
        return names.get(place.id)
    if isinstance(place, ast.Attribute) and inspect.ismodule(module := _value(place.value, names)):
        return vars(module).get(place.attr)
    return None


def _arguments(called: FunctionType, call: ast.Call, names: Mapping[str, Any]) -> dict[str, Any]:
    """What a function is called with, as far as that is known before."""
    code = called.__code__
    number = code.co_argcount + code.co_kwonlyargcount
    parameters = code.co_varnames[:number]
    words = {word.arg: _value(word.value, names) for word in call.keywords if word.arg}
    known = {name: _value(place, names) for name, place in zip(parameters, call.args, strict=False)}
    known |= {name: value for name, value in words.items() if name in parameters}
    if code.co_flags & inspect.CO_VARKEYWORDS:
        last = code.co_varnames[number + bool(code.co_flags & inspect.CO_VARARGS)]
        known[last] = {name: value for name, value in words.items() if name not in parameters}
    return {name: value for name, value in known.items() if value is not None}
