"""What an installation does to a crew, its agents, memory and models, and to the copies that CrewAI makes of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from typing import Any

from cacheprefix.adapter import APPLICATIONS
from cacheprefix_crewai.binding import (
    EACH,
    RESUMED,
    RUN,
    Binding,
    ForEach,
    bind,
    binding_of,
    bound_to,
    only_binding,
    owners_of,
    subclassed,
    unbind,
)
from cacheprefix_crewai.history import Executions
from cacheprefix_crewai.llm import swap, unswap
from cacheprefix_crewai.tasks import same_tools_for_all
from cacheprefix_crewai.tool_cache import forget, new_turn
from cacheprefix_crewai.tools import RunTools

_MARK = "__cacheprefix_subclass__"
_OF_CREW = ("manager_llm", "planning_llm", "function_calling_llm", "chat_llm")
_OF_AGENT = ("llm", "function_calling_llm")
"""The attributes in which crews and agents have their models."""


def parts_of(target: Any) -> tuple[Any, list[Any]]:
    """The crew of what a user gave, None for agents, and its agents; none for what ``install`` does not take."""
    from crewai import Crew  # noqa: PLC0415 - CrewAI loads slowly
    from crewai.agents.agent_builder.base_agent import BaseAgent  # noqa: PLC0415 - as above

    if isinstance(target, BaseAgent):
        return None, [target]
    if isinstance(target, (list, tuple)):
        return None, list(target) if all(isinstance(one, BaseAgent) for one in target) else []
    if not isinstance(target, Crew) and not is_flow(target):
        made = getattr(target, "crew", None)
        target = _made_by(made) if callable(made) else target
    return (target, agents_of(target)) if isinstance(target, Crew) else (None, [])


def _made_by(crew: Callable[[], Any]) -> Any:
    """What the ``crew`` method of a ``@CrewBase`` instance gives. Raises what that raises, as the application's own."""
    try:
        return crew()
    except Exception as error:
        vars(error)[APPLICATIONS] = True
        raise


def is_flow(target: Any) -> bool:
    """Whether an object is a flow, which has its crews and agents in its methods."""
    from crewai.flow.flow import Flow  # noqa: PLC0415 - CrewAI loads slowly

    return isinstance(target, Flow)


def agents_of(crew: Any) -> list[Any]:
    """A crew's agents, those of its tasks and its manager among them; each once."""
    found = list(crew.agents)
    found += [task.agent for task in crew.tasks if task.agent is not None]
    if crew.manager_agent is not None:
        found.append(crew.manager_agent)
    return list({id(agent): agent for agent in found}.values())


def binding_on(target: Any) -> Binding | None:
    """What is installed on a crew, on one of its agents, or on a flow; None without.

    A crew that a flow started may be asked about behind its run too, unless several flows have started it.
    """
    found = only_binding(target)
    if found is not None:
        return found
    crew, agents = parts_of(target)
    return next((one for each in (crew, *agents) if (one := only_binding(each)) is not None), None)


# ---------------------------------------------------------------------- binding


def bind_crew(binding: Binding, crew: Any, *, copy: bool = False) -> None:
    """Make a crew, its memory and the models that it has itself part of an installation.

    A ``copy`` (one run of a ``kickoff_for_each``) is not restored when the installation ends.
    """
    bind(crew, binding)
    binding.began(crew)
    binding.joined(crew, same_tools=same_tools_for_all(crew))
    kind: Any = type(crew)
    if not hasattr(kind, _MARK):
        object.__setattr__(crew, "__class__", _subclass(kind))
    if not copy:
        binding.undo.append(functools.partial(freed, crew, binding))
    for name in _OF_CREW:
        _bind_llm(binding, crew, name, copy=copy)
    _bind_memory(binding, getattr(crew, "_memory", None), copy=copy)


def freed(target: Any, binding: Binding) -> None:
    """Take an installation off a crew or agent, and the generated class with the last one."""
    if unbind(target, binding) and hasattr(type(target), _MARK):
        object.__setattr__(target, "__class__", type(target).__mro__[1])


def bind_agent(binding: Binding, agent: Any, *, copy: bool = False) -> None:
    """Make an agent and its models part of an installation."""
    bind(agent, binding)
    if not copy:
        binding.agents.append(agent)
        binding.undo.append(functools.partial(freed, agent, binding))
    for name in _OF_AGENT:
        _bind_llm(binding, agent, name, copy=copy)
    _bind_memory(binding, getattr(agent, "memory", None), copy=copy)


def models_in(owner: Any) -> list[Any]:
    """What a crew or agent has in the places of its models: model objects, their names, or nothing."""
    return [vars(owner).get(name) for name in (*_OF_CREW, *_OF_AGENT)]


def bind_late(binding: Binding, *owners: Any) -> None:
    """Make part of an installation what its crew was given since: agents, and the models of these and of others.

    A callback may choose the model for each kickoff, so that none is kept alive.
    """
    for owner in owners:
        if not bound_to(owner, binding):
            bind(owner, binding)
            binding.remember(owner, freed)
        for name in (*_OF_CREW, *_OF_AGENT):
            llm = vars(owner).get(name)
            known = owners_of(llm)
            if llm is None or (known is not None and binding in known.alive):
                continue
            _bind_llm(binding, owner, name, copy=True)
            if owners_of(llm) is not None:
                binding.remember(llm, unswap)


def _bind_copy(binding: Binding, crew: Any) -> None:
    """Make a copy that CrewAI made of a crew part of the installation, with its agents."""
    if binding_of(crew) is None:
        bind_crew(binding, crew, copy=True)
    for agent in agents_of(crew):
        if binding_of(agent) is None:
            bind_agent(binding, agent, copy=True)


def _bind_manager(binding: Binding, crew: Any) -> None:
    """Make the manager part of the installation that CrewAI made for a crew."""
    manager = crew.manager_agent
    if manager is not None and binding_of(manager) is None:
        bind_agent(binding, manager)


def _bind_memory(binding: Binding, memory: Any, *, copy: bool) -> None:
    """Watch a memory's model: a copy that the memory made of its own, or of an agent's."""
    memory = getattr(memory, "_memory", None) or memory  # a scope or slice holds the memory it looks into
    llm = getattr(memory, "_llm_instance", None)
    if llm is None and isinstance(getattr(memory, "llm", None), str):
        llm = _memory_model(binding, memory)
    if llm is not None:
        _bind_llm(binding, memory, "_llm_instance", copy=copy)
        owners = owners_of(llm)
        if owners is not None:
            owners.remembers = True


def _bind_llm(binding: Binding, owner: Any, name: str, *, copy: bool) -> None:
    """Make the model that an object has as an attribute part of the installation."""
    from crewai.llms.base_llm import BaseLLM  # noqa: PLC0415 - CrewAI loads slowly

    # Not by the attribute: CrewAI warns of one that it deprecates, which the application has not asked for.
    llm = vars(owner)[name] if name in vars(owner) else getattr(owner, name, None)
    if isinstance(llm, BaseLLM) and swap(llm, binding) and not copy:
        binding.undo.append(lambda: unswap(llm, binding))


def _planner_by_name(binding: Binding, given: Any) -> Any:
    """The planner's model where it has only a name, CrewAI's own choice too: made as CrewAI would, and watched.

    None where the application made it itself.
    """
    from crewai.utilities.llm_utils import create_llm  # noqa: PLC0415 - CrewAI loads slowly
    from crewai.utilities.planning_handler import CrewPlanner  # noqa: PLC0415 - CrewAI loads slowly

    model = CrewPlanner([], given).planning_agent_llm
    if not isinstance(model, str):
        return None
    llm = create_llm(model)
    swap(llm, binding)
    return llm


def _memory_model(binding: Binding, memory: Any) -> Any:
    """A memory's model, made from its name now instead of at its first use; None where that cannot be."""
    try:
        llm = memory._llm
    except Exception:
        # CrewAI raises again where the model is needed, and not every memory comes to need it.
        binding.session.unseen(f"memory: its model {memory.llm!r} cannot be made yet, so its requests are not counted")
        return None
    binding.undo.append(lambda: setattr(memory, "_llm_instance", None))
    return llm


# ---------------------------------------------------------------------- the crew's own class


@functools.lru_cache(maxsize=16)
def _subclass(base: Any) -> Any:
    """A crew's class that says which crew is running, and passes the binding on to its copies."""

    def above(self: Any, name: str) -> Any:
        """What the crew's class has now: a tracer, or a test, may have replaced it since."""
        # Not by ``super``: another thread may have given the crew its own class back.
        found = inspect.getattr_static(base, name)
        return found.__get__(self, base) if hasattr(type(found), "__get__") else found

    def copy(self: Any) -> Any:
        made = above(self, "copy")()
        binding = binding_of(self)
        if binding is not None:
            binding.session.attempt("crew copy", lambda: _bind_copy(binding, made), None)
        return made

    def _create_manager_agent(self: Any) -> Any:
        made = above(self, "_create_manager_agent")()
        binding = binding_of(self)
        if binding is not None:
            binding.session.attempt("manager agent", lambda: _bind_manager(binding, self), None)
        return made

    def reset_memories(self: Any, command_type: str) -> None:
        above(self, "reset_memories")(command_type)
        binding = binding_of(self)
        if binding is not None:
            forget(binding)

    def _get_agent_to_use(self: Any, task: Any) -> Any:
        agent, binding = above(self, "_get_agent_to_use")(task), binding_of(self)
        if agent is not None and binding is not None:
            # A callback of the task before may have given it another model.
            binding.session.attempt("late parts", lambda: bind_late(binding, agent), None)
        return agent

    def from_checkpoint(_: Any, config: Any) -> Any:
        # CrewAI looks in the checkpoint for a crew of the class that is asked: it holds one of the crew's own.
        made, binding = base.from_checkpoint(config), RESUMED.get()
        if binding is not None:
            binding.session.attempt("checkpoint", lambda: _bind_copy(binding, made), None)
        return made

    own: dict[str, Any] = {_MARK: True}
    for block, names in _BLOCKS:
        own |= {name: run_inside(getattr(base, name), block, above) for name in names if hasattr(base, name)}
    for function in (copy, _create_manager_agent, reset_memories, _get_agent_to_use):
        if hasattr(base, function.__name__):  # another version of CrewAI may lack it
            own[function.__name__] = functools.wraps(getattr(base, function.__name__))(function)
    if hasattr(base, from_checkpoint.__name__):
        own[from_checkpoint.__name__] = classmethod(from_checkpoint)
    return subclassed(base, own)


def run_inside(
    method: Any,
    block: Callable[[Any, str, Mapping[str, Any]], AbstractContextManager[None]],
    current: Callable[[Any, str], Any] | None = None,
) -> Any:
    """A method of a crew or flow that runs inside ``block(object, the method's name, its arguments by name)``.

    ``current`` gives what is called in the end, where that is to be looked up at each call; else it is ``method``.
    """
    name, places = method.__name__, list(inspect.signature(method).parameters)[1:]

    def entered(self: Any, given: tuple[Any, ...], named: dict[str, Any]) -> AbstractContextManager[None]:
        return block(self, name, {**dict(zip(places, given, strict=False)), **named})

    def bound(self: Any) -> Any:
        return functools.partial(method, self) if current is None else current(self, name)

    def run(self: Any, *given: Any, **named: Any) -> Any:
        with entered(self, given, named):
            return _read_in_run(self, bound(self)(*given, **named))

    async def arun(self: Any, *given: Any, **named: Any) -> Any:
        with entered(self, given, named):
            return _read_in_run(self, await bound(self)(*given, **named))

    return functools.wraps(method)(arun if inspect.iscoroutinefunction(method) else run)


def _read_in_run(crew: Any, result: Any) -> Any:
    """What a method of a crew gave; a stream runs the crew where it is read, in the installation that kicked it off.

    Privacy: who reads it may know nothing of that, and another request may have installed on the crew meanwhile.
    """
    binding = binding_of(crew) if _streams(crew) else None
    if binding is not None:
        for name, read in (("_sync_iterator", _read), ("_async_iterator", _aread)):
            if getattr(result, name, None) is not None:
                begun: list[Callable[[], object]] = []
                stream = read(binding, getattr(result, name), begun)
                begun.append(binding.held_by(stream))
                setattr(result, name, stream)
    return result


def _read(binding: Binding, stream: Any, started: Sequence[Callable[[], object]]) -> Iterator[Any]:
    """A stream as it comes. CrewAI starts the run, in a copy of the context, where the first piece is asked for.

    Those in ``started`` are told that it has: from then on the run holds the installation by itself, also one that
    whoever reads it breaks off.
    """
    run = RUN.stretched(binding)
    try:
        with RUN.stretch(run):
            begun = list(islice(stream, 1))
        for one in started:
            one()
        yield from begun
        yield from stream
    finally:
        stream.close()
        run.end()


async def _aread(binding: Binding, stream: Any, started: Sequence[Callable[[], object]]) -> AsyncIterator[Any]:
    """``_read`` of an asynchronous one."""
    run = RUN.stretched(binding)
    try:
        with RUN.stretch(run):
            first = await anext(stream, None)
        for begun in started:
            begun()
        if first is not None:
            yield first
        async for one in stream:
            yield one
    finally:
        await stream.aclose()
        run.end()


def _streams(crew: Any) -> bool:
    """Whether a kickoff of it gives a stream, and kicks it off once more where that is read."""
    return bool(getattr(crew, "tasks", None)) and bool(getattr(crew, "stream", False))


@contextmanager
def _in_thread(crew: Any, _: str, asked: Mapping[str, Any]) -> Iterator[None]:
    """Around a kickoff that is one only in its thread: what it goes on from is restored before."""
    binding = binding_of(crew)
    if binding is None:
        yield
        return
    with resuming(binding, asked):
        yield


def resuming(binding: Binding, asked: Mapping[str, Any]) -> AbstractContextManager[None]:
    """A kickoff's block: with a checkpoint to go on from, CrewAI makes what it holds and kicks that off instead."""
    restores = getattr(asked.get("from_checkpoint"), "restore_from", None) is not None
    return RESUMED.within(binding if restores else None)


def ended(binding: Binding, run: str) -> None:
    """A kickoff is over: what it said and which tools it came with is let go."""
    binding.part(Executions).ended(run)
    binding.part(RunTools).ended(run)


def as_installed(method: Any) -> Any:
    """A method of CrewAI's crew as an installed crew has it, which knows while it runs that the crew is running."""
    block = next((block for block, names in _BLOCKS if method.__name__ in names), None)
    return method if block is None else run_inside(method, block)


@contextmanager
def _running(crew: Any, *_: Any) -> Iterator[None]:
    """What happens here belongs to the crew's binding, in its threads and tasks too."""
    binding = binding_of(crew)
    if binding is not None:
        binding.session.attempt("late parts", lambda: bind_late(binding, crew, *agents_of(crew)), None)
    # Privacy: what nobody installed here runs for the run around it, and not for whoever else installed on its agents.
    with nullcontext() if binding is None else RUN.within(binding):
        yield


@contextmanager
def _kickoff(crew: Any, name: str, asked: Mapping[str, Any]) -> Iterator[None]:
    """One run of the crew. A kickoff is a conversation: the same crew's next one is somebody else's."""
    binding = binding_of(crew)
    if binding is None:
        with _running(crew):
            yield
        return
    if _streams(crew):
        with resuming(binding, asked):
            yield
        return
    binding.session.attempt("kickoff", lambda: binding.began(crew), None)
    if name != "replay":
        if (each := binding.for_each) is not None:
            with binding.lock:
                each.left = max(0, each.left - 1)
        new_turn(binding, crew)
    with binding.going_on(), _running(crew), resuming(binding, asked), binding.kickoff():
        own = binding.kickoff_id
        try:
            yield
        finally:
            binding.session.attempt("kickoff", lambda: ended(binding, own), None)


@contextmanager
def _planning(crew: Any, *_: Any) -> Iterator[None]:
    """A crew's planner is made and asked. Before and after, the application sees the name that it gave its model."""
    binding, given, made = binding_of(crew), crew.planning_llm, None
    if binding is not None:
        made = binding.session.attempt("planning_llm", lambda: _planner_by_name(binding, given), None)
    if made is None:
        yield
        return
    crew.planning_llm = made
    try:
        yield
    finally:
        crew.planning_llm = given


@contextmanager
def _for_each(crew: Any, _: str, asked: Mapping[str, Any]) -> Iterator[None]:
    """A ``kickoff_for_each``: it is known which inputs stay the same, and how many runs are to come."""
    binding, inputs = binding_of(crew), asked.get("inputs")
    if binding is None or not isinstance(inputs, (list, tuple)) or not inputs:
        yield
        return
    nothing: frozenset[str] = frozenset()
    constant = binding.session.attempt("kickoff_for_each", lambda: _constant_in(inputs), nothing)
    with EACH.within(ForEach(binding, constant, len(inputs))):
        yield


def _constant_in(inputs: Sequence[Any]) -> frozenset[str]:
    """The names of inputs that are the same in all of several runs; none where a run has no inputs."""
    first, *others = inputs
    if not others or not all(isinstance(one, Mapping) for one in inputs):
        return frozenset()  # CrewAI takes a run without inputs, and says itself what it does not take
    return frozenset(name for name, value in first.items() if all(one.get(name) == value for one in others))


_BLOCKS = (
    (_kickoff, ("kickoff", "akickoff", "replay")),
    (_in_thread, ("kickoff_async",)),
    (
        _running,
        (
            "_run_sequential_process",
            "_run_hierarchical_process",
            "_arun_sequential_process",
            "_arun_hierarchical_process",
            "train",  # its evaluations come behind the runs, and name no agent
        ),
    ),
    (_planning, ("_handle_crew_planning",)),
    (_for_each, ("kickoff_for_each", "kickoff_for_each_async", "akickoff_for_each")),
)
"""The crew's methods, by what is known while they run."""
