"""Models that nobody installed and that a run asks: those of a flow and its methods, and those that tools ask.

Nobody tells of them: a flow makes the models of its conversation and of ``@human_feedback`` from their names when it
asks them, and a method, or a tool, makes what it likes. So the model classes look, as long as anything is installed,
whether they are asked in a run of an installation. Their requests are sent as they are, and counted.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cacheprefix.adapter import BlockVar
from cacheprefix_crewai.binding import WhileUsed, binding_for, binding_of, owners_of, replaced_method
from cacheprefix_crewai.llm import asking_methods, swap, unswap

_CALLS = ("call", "acall")
_PROVIDERS = "crewai.llms.providers."

_UNKNOWN: BlockVar[bool] = BlockVar("cacheprefix_crewai_unknown_model")
"""That a model of unknown wire form is being asked here, which may ask another one in its place: both are not seen."""


class _Watched:
    """The model classes whose calls look for a run; each is watched once, also one that is imported later."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._known: set[type[Any]] = set()

    def all(self) -> None:
        """Watch the classes of CrewAI's that are there by now."""
        for kind in _model_classes():
            self.one(kind)

    def one(self, kind: type[Any]) -> None:
        """Watch a class, where it is one of CrewAI's with a ``call`` of its own."""
        if kind in self._known or not _of_crewai(kind):
            return
        self._known.add(kind)
        self._undo += [replaced_method(kind, name, _joining(kind)) for name in _CALLS if name in vars(kind)]

    def undo(self) -> None:
        """Give all classes their methods back."""
        while self._undo:
            self._undo.pop()()


def _watch() -> list[Callable[[], object]]:
    """Have model classes look where they are asked; the functions returned end that."""
    from crewai import LLM  # noqa: PLC0415 - CrewAI loads slowly

    watched = _Watched()
    watched.all()

    def making(method: Any) -> Any:
        @functools.wraps(method)
        def made(*given: Any, **named: Any) -> Any:
            found = method(*given, **named)
            watched.one(type(found))  # CrewAI imports a provider's class when the first model of it is made
            return found

        return made

    return [watched.undo, replaced_method(LLM, "__new__", making)]


WATCH_MODELS = WhileUsed(_watch)
"""As long as anything is installed."""


def _model_classes() -> Iterator[type[Any]]:
    # Another thread may import meanwhile: a copy is made at one go, and a list of a dictionary's values is not.
    for name, module in sys.modules.copy().items():
        if name == "crewai.llm" or name.startswith(_PROVIDERS):
            own = dict.copy(getattr(module, "__dict__", {})).values()
            yield from (one for one in own if isinstance(one, type) and one.__module__ == name)


def _of_crewai(kind: type[Any]) -> bool:
    from crewai.llms.base_llm import BaseLLM  # noqa: PLC0415 - CrewAI loads slowly

    crewais = kind.__module__ == "crewai.llm" or kind.__module__.startswith(_PROVIDERS)
    return crewais and issubclass(kind, BaseLLM)


def _joining(kind: Any) -> Callable[[Any], Any]:
    """How a class's ``call`` or ``acall`` becomes one that joins the run in which it is asked."""

    def around(method: Any) -> Any:
        name = method.__name__

        @functools.cache
        def asking() -> Any:
            return asking_methods(kind)[name]

        parameters = list(inspect.signature(method).parameters)[1:]

        def joined(llm: Any, given: tuple[Any, ...], named: Mapping[str, Any]) -> bool | None:
            agent = {**dict(zip(parameters, given, strict=False)), **named}.get("from_agent")
            return _joined(llm, agent)

        @functools.wraps(method)
        def call(self: Any, *given: Any, **named: Any) -> Any:
            joins = joined(self, given, named)
            if joins is False:
                with _UNKNOWN.within(True):  # noqa: FBT003 - the value of the block
                    return method(self, *given, **named)
            return (asking() if joins else method)(self, *given, **named)

        @functools.wraps(method)
        async def acall(self: Any, *given: Any, **named: Any) -> Any:
            joins = joined(self, given, named)
            if joins is False:
                with _UNKNOWN.within(True):  # noqa: FBT003 - the value of the block
                    return await method(self, *given, **named)
            return await (asking() if joins else method)(self, *given, **named)

        return acall if name == "acall" else call

    return around


def _joined(llm: Any, agent: Any) -> bool | None:
    """Make a model part of the installation in whose run it is asked; whether it has become so now.

    False for one of unknown wire form, which is noted; None where nobody runs, or it is part of it already.
    """
    # An agent's own models come in with the agent.
    if _UNKNOWN.get() or binding_of(agent) is not None:
        return None
    binding = binding_for(llm, agent)
    owners = owners_of(llm)
    if binding is None or binding.session.off or (owners is not None and binding in owners.alive):
        return None
    if not binding.session.attempt("model", lambda: swap(llm, binding), otherwise=False):
        return False
    binding.remember(llm, unswap)
    return True
