"""The schemas of structured answers that nodes bind when they run, found in their code when they are decorated.

Under function calling a schema is a tool, and tools stand before everything else in a prompt. One that comes with a
node's first request makes the shared tools grow there, and the conversation is written once more; one that is known
before is shared from the first request on. A node's compiled code says by name which it will bind, as in
``llm.with_structured_output(Plan)``. What it does not say by name is bound as it comes.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any, Final, NamedTuple

from langchain_core.runnables import Runnable, RunnableSequence
from pydantic import BaseModel

from cacheprefix.adapter import AdapterSession, names_known_to
from cacheprefix_langgraph.fork_context import runs
from cacheprefix_langgraph.tools import adopt
from cacheprefix_langgraph.wrapping import held

_BINDS: Final = "with_structured_output"
STRUCTURED: Final = "ls_structured_output_format"
"""The option by which LangChain's classes tell a schema that they bind as a tool from a tool."""
_DEPTH: Final = 3
"""Functions that call one another, from the node's own to the one that binds."""
_BESIDE: Final = "langgraph schemas"
"""The key under which a session keeps the schemas that were foreseen."""
_OURS: Final = __name__.partition(".")[0]
_FUNCTION_CALLING: Final = "function_calling"
_METHODS: Final = (_FUNCTION_CALLING, "json_schema", "json_mode")


class Schema(NamedTuple):
    """A schema that a node's code binds."""

    schema: Any
    method: str | None
    """As the code says it; None for the model class's default."""


def decorated(session: AdapterSession, role: str, node: Any) -> None:
    """Note that a node is made for a role; for front doors, at set-up."""
    function = next(_functions(node), None)
    # What a step of our teams and task graphs is made with is noted where its worker is made.
    if runs() or (function is not None and str(function.__module__).partition(".")[0] == _OURS):
        return
    # Where the very same code is decorated again for the role, what the function holds may be another user's.
    if function is None:
        session.makes(("node", role), "")
    else:
        session.makes(("node", role, function.__code__.co_filename, function.__code__.co_firstlineno), None)


def foresee(session: AdapterSession, node: Any) -> None:
    """Remember the schemas that a node will bind; for front doors, at set-up."""
    if session.begun or runs():
        # Privacy: a node that is made later, or in a run, may be made for one user, and so may what its code binds.
        return
    nothing: list[Schema] = []
    found = session.attempt("schemas", lambda: list(bound_schemas(node)), nothing)
    if found:
        session.beside.setdefault(_BESIDE, []).extend(found)


def adopt_foreseen(session: AdapterSession, model: Any, *, calls: bool = False) -> None:
    """Put the schemas that were foreseen into the shared tools, where they are tools.

    ``calls`` says that the application binds one by function calling now. Without, the code or the default of the
    model's class must say so: a tool that nobody ever binds would be sent in vain.
    """
    known: list[Schema] = session.beside.get(_BESIDE) or []
    if not known or session.mode == "observe":
        return
    default = _default_method(type(model).with_structured_output)
    ready = [one for one in known if (one.method or (_FUNCTION_CALLING if calls else default)) == _FUNCTION_CALLING]
    if ready:
        # Put in first: a sibling that finds nothing left to do may ask at once.
        adopt(session, [one.schema for one in ready], of_code=True)
        known[:] = [one for one in known if one not in ready]


@functools.lru_cache(maxsize=64)
def _default_method(binds: Callable[..., Any]) -> str:
    """How a model class binds a schema where it is told nothing."""
    found = inspect.signature(binds).parameters.get("method")
    return str(found.default) if found is not None else ""


def bound_schemas(node: Any) -> Iterator[Schema]:
    """The schemas that a node's code, and the functions that it calls by name, bind by ``with_structured_output``."""
    seen: set[FunctionType] = set()
    for function in _functions(node):
        yield from _in_function(function, seen, _DEPTH)


def _functions(node: Any) -> Iterator[FunctionType]:
    """The Python functions that a node runs: its own, or those of a chain's steps."""
    while isinstance(node, functools.partial):
        node = node.func
    if isinstance(node, RunnableSequence):
        for step in node.steps:
            yield from _functions(step)
        return
    if isinstance(node, Runnable):
        # LangChain's and LangGraph's around a function; what another one binds was bound when it was made.
        node = held(node, "func") or held(node, "afunc")
    if isinstance(node, MethodType):
        node = node.__func__
    elif not isinstance(node, FunctionType):
        node = type(node).__call__ if callable(node) else None
    if isinstance(node, FunctionType):
        yield node


def _in_function(function: FunctionType, seen: set[FunctionType], depth: int) -> Iterator[Schema]:
    """The schemas that one function binds, and those of the functions it names, ``depth`` of them deep."""
    if depth == 0 or function in seen or not _binds(function, depth):
        return
    seen.add(function)
    names = names_known_to(function)
    for code in _codes(function.__code__):
        arguments: list[Any] | None = None
        """Of a call that binds, as far as they are loaded; None outside of one."""
        for step in _steps(code, names):
            if step.calls:
                yield from _bound(arguments or ())
                arguments = None
            elif step.binds or _binds(step.value, depth - 1):
                arguments = []
            elif arguments is not None:
                arguments.append(step.value)
            if isinstance(step.value, FunctionType):
                yield from _in_function(step.value, seen, depth - 1)


class _Step(NamedTuple):
    """One step of a function's code: it loads something, or calls what was loaded before."""

    value: Any = None
    """What is loaded; None where that is not known."""
    binds: bool = False
    """Whether it is the method that binds a schema."""
    calls: bool = False


def _steps(code: CodeType, names: Mapping[str, Any]) -> Iterator[_Step]:
    """The loads and calls of a function's code, in their order; ``names`` are the objects that it knows by name.

    Goes by the names of the instructions alone, which are the same in all releases of Python from 3.10 on.
    """
    value: Any = None
    for instruction in dis.get_instructions(code):
        kind, name = instruction.opname, instruction.argval
        if kind.startswith("CALL"):
            yield _Step(calls=True)
        elif kind in ("LOAD_ATTR", "LOAD_METHOD"):
            # Of what a module holds is known what it is; of any other object it depends on the run.
            value = getattr(value, name, None) if inspect.ismodule(value) and name != _BINDS else None
            yield _Step(value, binds=name == _BINDS)
        elif kind in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
            value = names.get(name)
            yield _Step(value)
        elif kind in ("LOAD_CONST", "KW_NAMES"):
            yield _Step(code.co_consts[instruction.arg or 0])


def _bound(given: Sequence[Any]) -> Iterator[Schema]:
    """The schema among what a binding call is given."""
    options: dict[Any, Any] = {}
    for one in given:
        options |= one if isinstance(one, dict) and not _is_schema(one) else {}
    named = {name for one in given if isinstance(one, tuple) for name in one}
    # A strict schema is another tool than the one that we would make of it.
    if {"strict", "tools"} & (named | options.keys()):
        return
    methods = [one for one in (*given, options.get("method")) if isinstance(one, str) and one in _METHODS]
    for schema in (*given, options.get("schema")):
        if _is_schema(schema):
            yield Schema(schema, methods[0] if methods else None)


def _is_schema(value: Any) -> bool:
    """Whether a value looks like a schema: a pydantic model, a typed dictionary, a JSON schema or a tool's."""
    typed = isinstance(value, type) and (issubclass(value, BaseModel) or hasattr(value, "__total__"))
    return typed or (isinstance(value, dict) and bool({"title", "name", "function"} & value.keys()))


def _binds(value: Any, depth: int) -> bool:
    """Whether a value binds schemas when it is called: the method itself, or a function that calls it in the end."""
    if isinstance(value, MethodType):
        return value.__name__ == _BINDS
    if depth == 0 or not isinstance(value, FunctionType):
        return False
    named = {name for code in _codes(value.__code__) for name in (*code.co_names, *code.co_freevars)}
    if _BINDS in named:
        return True
    known = names_known_to(value)
    return any(_binds(known.get(name), depth - 1) for name in named)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions that stand in it."""
    yield code
    for one in code.co_consts:
        if inspect.iscode(one):
            yield from _codes(one)
