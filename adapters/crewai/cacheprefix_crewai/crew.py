"""The crew's own class: a subclass that says which crew is running, and passes the binding on to its copies."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cacheprefix_crewai.binding import KEY, KICKOFF, RUN, Binding, as_base, binding_of
from cacheprefix_crewai.tool_cache import new_turn, resetting

if TYPE_CHECKING:
    from cacheprefix_crewai.binding import Binding as _Binding

_RUNS = ("kickoff", "akickoff", "replay")
_SYNC = ("kickoff", "replay", "_run_sequential_process", "_run_hierarchical_process")
_ASYNC = ("akickoff", "_arun_sequential_process", "_arun_hierarchical_process")


def swap_crew(crew: Any) -> None:
    """Give a crew the class that knows its binding."""
    kind: Any = type(crew)
    object.__setattr__(crew, "__class__", _subclass(kind))


def unswap_crew(crew: Any) -> None:
    """Take it back."""
    object.__setattr__(crew, "__class__", type(crew).__mro__[1])


def is_swapped(crew: Any) -> bool:
    """Whether a crew has the generated class."""
    return getattr(type(crew), "__cacheprefix_subclass__", False) is True


@contextmanager
def running(crew: Any, name: str = "") -> Iterator[None]:
    """What happens here belongs to the crew's binding, in its threads and tasks too; ``name`` is the method's."""
    binding = binding_of(crew)
    # A kickoff is a conversation: the same crew's next one is somebody else's.
    token, talk = RUN.set(binding), None
    if binding is not None and name in _RUNS:
        talk = KICKOFF.set(binding.new_talk())
    try:
        yield
    finally:
        if talk is not None:
            KICKOFF.reset(talk)
        RUN.reset(token)


@functools.lru_cache(maxsize=16)
def _subclass(base: Any) -> Any:
    own: dict[str, Any] = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "__cacheprefix_subclass__": True,
        "__reduce_ex__": as_base(base),
    }
    for name in _SYNC:
        if hasattr(base, name):
            own[name] = _ran(base, name)
    for name in _ASYNC:
        if hasattr(base, name):
            own[name] = _aran(base, name)

    def copy(self: Any) -> Any:
        from cacheprefix_crewai.installing import bind_copy  # noqa: PLC0415 - the two modules know each other

        made = base.copy(self)
        binding = binding_of(self)
        if binding is not None:
            binding.session.attempt("crew copy", lambda: bind_copy(binding, made), None)
        return made

    def _create_manager_agent(self: Any) -> Any:
        from cacheprefix_crewai.installing import bind_manager  # noqa: PLC0415 - the two modules know each other

        made = base._create_manager_agent(self)
        binding = binding_of(self)
        if binding is not None:
            binding.session.attempt("manager agent", lambda: bind_manager(binding, self), None)
        return made

    def kickoff_for_each(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        with _several(binding_of(self), inputs):
            return base.kickoff_for_each(self, inputs, *args, **kwargs)

    async def kickoff_for_each_async(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        with _several(binding_of(self), inputs):
            return await base.kickoff_for_each_async(self, inputs, *args, **kwargs)

    async def akickoff_for_each(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        with _several(binding_of(self), inputs):
            return await base.akickoff_for_each(self, inputs, *args, **kwargs)

    for function in (copy, _create_manager_agent, kickoff_for_each, kickoff_for_each_async, akickoff_for_each):
        if hasattr(base, function.__name__):
            own[function.__name__] = functools.wraps(getattr(base, function.__name__))(function)
    if hasattr(base, "reset_memories"):
        own["reset_memories"] = resetting(base)
    return type(base)(base.__name__, (base,), own)


def _ran(base: type, name: str) -> Any:
    @functools.wraps(getattr(base, name))
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        _next_run(self, name)
        with running(self, name):
            return getattr(base, name)(self, *args, **kwargs)

    return run


def _aran(base: type, name: str) -> Any:
    @functools.wraps(getattr(base, name))
    async def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        _next_run(self, name)
        with running(self, name):
            return await getattr(base, name)(self, *args, **kwargs)

    return run


def _next_run(crew: Any, name: str) -> None:
    binding = binding_of(crew)
    if binding is None or name not in _RUNS:
        return
    binding.session.attempt("kickoff", lambda: binding.began(crew), None)
    if name != "replay":
        with binding.lock:
            binding.runs_left = max(0, binding.runs_left - 1)
        new_turn(binding, crew)


@contextmanager
def _several(binding: _Binding | None, inputs: Sequence[Mapping[str, Any]]) -> Iterator[None]:
    """Several runs are known beforehand: which inputs stay the same, and how many are to come."""
    if not isinstance(binding, Binding) or not isinstance(inputs, (list, tuple)) or not inputs:
        yield
        return
    first = inputs[0]
    before = binding.constant, binding.runs_left
    with binding.lock:
        binding.constant = frozenset(
            name for name in first if len(inputs) > 1 and all(one.get(name) == first[name] for one in inputs)
        )
        binding.runs_left = len(inputs)
    try:
        yield
    finally:
        with binding.lock:
            binding.constant, binding.runs_left = before


__all__ = ["KEY", "is_swapped", "running", "swap_crew", "unswap_crew"]
