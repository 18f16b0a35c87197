"""``install`` and ``uninstall``: the agents of a crew or flow as forks of one shared prefix."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from typing_extensions import Self

from cacheprefix import Call, Session
from cacheprefix.config import given_or_configured
from cacheprefix.errors import SetupError
from cacheprefix.layout import VolatileRole
from cacheprefix_crewai.binding import KEY, Binding, Options, Owners, bind, binding_of, unbind
from cacheprefix_crewai.crew import is_swapped, swap_crew, unswap_crew
from cacheprefix_crewai.fork_context import SYSTEM, Volatile
from cacheprefix_crewai.llm import swap, unswap
from cacheprefix_crewai.tool_cache import cache_tools
from cacheprefix_crewai.tool_results import unwatch_tools, watch_tools
from cacheprefix_crewai.tools import adopt, schemas


class Installation:
    """What ``install`` returns: leave the ``with`` block, or call ``undo()``, to take everything back."""

    def __init__(self, target: Any, binding: Binding) -> None:
        self._target = target
        self._binding = binding
        self._left = False
        with binding.lock:
            binding.holders += 1

    @property
    def session(self) -> Session:
        """The session in force."""
        return self._binding.session

    @property
    def conversation(self) -> str:
        """Id of the crew's conversation, the same in another process.

        ``session.conversation(id, scope=installation.scope).dumps()`` is its state.
        """
        return self._binding.conversation

    @property
    def scope(self) -> str:
        """The tenant whose crew it is."""
        return self._binding.scope

    @property
    def active(self) -> bool:
        """False once it was taken back."""
        return self._binding.active and not self._left

    @property
    def calls(self) -> tuple[tuple[str, Call], ...]:
        """The recent model requests with the names of their tasks, for usage by agent and task."""
        return tuple(self._binding.tasks.values())

    def undo(self) -> None:
        """Restore every object, when whoever else installed the same has done so too; twice is harmless."""
        binding = self._binding
        with binding.lock:
            if self._left:
                return
            self._left = True
            binding.holders -= 1
            if binding.holders:
                return
        take_back(binding)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


def take_back(binding: Binding) -> None:
    """Restore every object, whoever still holds the installation."""
    binding.active = False
    while binding.undo:
        binding.undo.pop()()


def install(
    target: Any,
    session: Session | None = None,
    *,
    shared_inputs: Iterable[str] | None = None,
    shared_context: str = "",
    gate: bool = True,
    volatile: Volatile | None = None,
    volatile_role: VolatileRole = "user",
    scope: str | None = None,
) -> Installation:
    """Make the agents of a crew send forks of one shared prefix, until ``undo()`` or the end of a ``with``.

    ``target`` is a crew, an instance of a ``@CrewBase`` class, an agent, or a list of agents (those of a flow).
    Inputs of at least 200 characters that two tasks contain stand once in the shared part; ``shared_inputs``
    names them instead. ``shared_context`` is a text that the prompts of a flow's agents contain. ``gate=False``
    lets tasks that start together all write the shared part. ``volatile`` gives texts by name for each request
    (time, retrieval); they stand behind everything cached, under ``volatile_role``, and nothing keeps them. ``scope``
    is the tenant whose crew it is, by default the session's: decisions, cache lanes, side questions and cached tool
    results of tenants are kept apart.

    Installing again with the same session and scope gives the installation there is, which ends when each ``install``
    was undone; with another, that one is in force until it is undone. Crews may share agents: each crew's runs are its
    own installation's.
    Raises ``SetupError`` for anything else. Nothing global changes; models are changed in place and restored.
    """
    crew, agents = _resolved(target)
    if crew is None and not agents:
        message = f"install takes a crew, a @CrewBase instance or agents, found {type(target).__name__}"
        raise SetupError(message)
    known = binding_of(crew if crew is not None else agents[0])
    if known is not None:
        session = known.session if session is None else session
        if known.session is session and scope in (None, known.scope) and all(binding_of(a) is known for a in agents):
            return Installation(target, known)
    session = given_or_configured(session)
    declared = bool(session.prefix.text) and session.prefix.system != SYSTEM
    inputs = None if shared_inputs is None else tuple(shared_inputs)
    options = Options(inputs, shared_context, declared, gate, volatile, volatile_role, scope)
    binding = Binding(session, options, _conversation(crew, agents))
    if session.mode == "fork":
        session.adopt_system(SYSTEM)
        none: list[dict[str, Any]] = []
        found = session.attempt("tools", lambda: _tools(crew, agents), none)
        binding.union = adopt(session, found)
        if session.budget is not None:
            watch_tools(binding)
            binding.undo.append(lambda: unwatch_tools(binding))
        if session.tool_cache is not None:
            cache_tools(binding)
    if crew is not None:
        _bind_crew(binding, crew)
    for agent in agents:
        _bind_agent(binding, agent)
    return Installation(target, binding)


def uninstall(target: Any) -> None:
    """Take an installation back, whoever made it. Does nothing where there is none."""
    crew, agents = _resolved(target)
    for one in (crew, *agents):
        while (binding := binding_of(one)) is not None:
            take_back(binding)


def callback(session: Session | None = None, **options: Any) -> Callable[[Any], Any]:
    """``install`` as a before-kickoff callback: ``Crew(before_kickoff_callbacks=[callback(session)])``.

    Takes the options of ``install``; the crew is the one that calls. The crew stays installed.
    """
    shared = given_or_configured(session)

    def before_kickoff(inputs: Any) -> Any:
        crew = shared.attempt("callback", lambda: _caller(before_kickoff), None)
        if crew is not None and binding_of(crew) is None:
            shared.attempt("install", lambda: install(crew, shared, **options), None)
        return inputs

    return before_kickoff


def session_of(target: Any) -> Session | None:
    """The session of an installed crew or agent; None when it is not installed."""
    found = binding_on(target)
    return None if found is None else found.session


def binding_on(target: Any) -> Binding | None:
    """What is installed on a crew or on one of its agents; None without."""
    crew, agents = _resolved(target)
    return next((one for each in (crew, *agents) if (one := binding_of(each)) is not None), None)


def bind_copy(binding: Binding, crew: Any) -> None:
    """Make a crew's copy (one run of a ``kickoff_for_each``) part of the same installation."""
    if binding_of(crew) is None:
        _bind_crew(binding, crew, copy=True)
    for agent in _agents(crew):
        if binding_of(agent) is None:
            _bind_agent(binding, agent, copy=True)


def bind_manager(binding: Binding, crew: Any) -> None:
    """Bind the manager that CrewAI makes when a hierarchical crew starts."""
    manager = crew.manager_agent
    if manager is not None and binding_of(manager) is None:
        _bind_agent(binding, manager)


def _resolved(target: Any) -> tuple[Any, list[Any]]:
    from crewai import Crew  # noqa: PLC0415 - CrewAI loads slowly
    from crewai.agents.agent_builder.base_agent import BaseAgent  # noqa: PLC0415 - as above

    if isinstance(target, BaseAgent):
        return None, [target]
    if isinstance(target, (list, tuple)):
        return None, [agent for agent in target if isinstance(agent, BaseAgent)] if _all(target, BaseAgent) else []
    if not isinstance(target, Crew):
        made = getattr(target, "crew", None)
        target = made() if callable(made) else target
    return (target, _agents(target)) if isinstance(target, Crew) else (None, [])


def _all(items: Sequence[Any], kind: type) -> bool:
    return all(isinstance(item, kind) for item in items)


def _agents(crew: Any) -> list[Any]:
    found = list(crew.agents)
    found += [task.agent for task in crew.tasks if task.agent is not None]
    if crew.manager_agent is not None:
        found.append(crew.manager_agent)
    return list({id(agent): agent for agent in found}.values())


def _conversation(crew: Any, agents: Sequence[Any]) -> str:
    """A name for the ledger that is the same in another process."""
    if crew is None:
        return "crewai:" + ",".join(str(agent.role) for agent in agents)
    return f"crewai:{crew.name or 'crew'}:{crew.key}"


def _bind_crew(binding: Binding, crew: Any, *, copy: bool = False) -> None:
    bind(crew, binding)
    binding.began(crew)
    if not is_swapped(crew):
        swap_crew(crew)
    if not copy:
        binding.undo.append(lambda: unswap_crew(crew) if unbind(crew, binding) else None)
    for name in ("manager_llm", "planning_llm", "function_calling_llm", "chat_llm"):
        _bind_llm(binding, crew, name, copy=copy)
    _bind_memory(binding, getattr(crew, "_memory", None), copy=copy)


def _bind_memory(binding: Binding, memory: Any, *, copy: bool) -> None:
    """Watch a memory's model: a copy that the memory made of its own, or of an agent's."""
    memory = getattr(memory, "_memory", None) or memory  # a scope or slice holds the memory it looks into
    llm = getattr(memory, "_llm_instance", None)
    if llm is None and isinstance(getattr(memory, "llm", None), str):
        llm = _made_by(binding, memory)
    if llm is not None:
        _bind_llm(binding, memory, "_llm_instance", copy=copy)
        owners = vars(llm).get(KEY)
        if isinstance(owners, Owners):
            owners.remembers = True


def _bind_agent(binding: Binding, agent: Any, *, copy: bool = False) -> None:
    bind(agent, binding)
    if not copy:
        binding.agents.append(agent)
        binding.undo.append(partial(_unbound, agent, binding))
    for name in ("llm", "function_calling_llm"):
        _bind_llm(binding, agent, name, copy=copy)


def _unbound(agent: Any, binding: Binding) -> None:
    unbind(agent, binding)


def _bind_llm(binding: Binding, owner: Any, name: str, *, copy: bool) -> None:
    from crewai.llms.base_llm import BaseLLM  # noqa: PLC0415 - CrewAI loads slowly

    # Not by the attribute: CrewAI warns of one that it deprecates, which the application has not asked for.
    llm = vars(owner)[name] if name in vars(owner) else getattr(owner, name, None)
    if isinstance(llm, str) and name in ("manager_llm", "planning_llm"):
        model = llm
        llm = binding.session.attempt(name, lambda: _made(binding, owner, name, model), None)
    if isinstance(llm, BaseLLM) and swap(llm, binding) and not copy:
        binding.undo.append(lambda: unswap(llm, binding))


def _made(binding: Binding, owner: Any, name: str, model: str) -> Any:
    """A model given by name is made now, as CrewAI would at kickoff, so that it can be watched."""
    from crewai.utilities.llm_utils import create_llm  # noqa: PLC0415 - CrewAI loads slowly

    llm = create_llm(model)
    setattr(owner, name, llm)
    binding.undo.append(lambda: setattr(owner, name, model))
    return llm


def _made_by(binding: Binding, memory: Any) -> Any:
    """The model that a memory makes from a name, made now instead of at its first use; None where it cannot be."""
    try:
        llm = memory._llm
    except Exception:
        # CrewAI raises again where the model is needed, and not every memory comes to need it.
        binding.session.note(f"memory: its model {memory.llm!r} cannot be made yet, so its requests are not counted")
        return None
    binding.undo.append(lambda: setattr(memory, "_llm_instance", None))
    return llm


def _tools(crew: Any, agents: Sequence[Any]) -> list[dict[str, Any]]:
    """The schemas of all tools that forks may need, delegation with one roster."""
    from crewai import Process  # noqa: PLC0415 - CrewAI loads slowly
    from crewai.tools.agent_tools.agent_tools import AgentTools  # noqa: PLC0415 - as above

    if crew is None:
        return [schema for agent in agents for schema in schemas(agent.tools or [])]
    delegation = schemas(AgentTools(agents=crew.agents).tools())
    found = [schema for agent in agents for schema in schemas(agent.tools or [])]
    found += [schema for task in crew.tasks for schema in schemas(task.tools or [])]
    if crew.process == Process.hierarchical or any(agent.allow_delegation for agent in crew.agents):
        found += delegation
    memory = getattr(crew, "_memory", None)
    if memory is not None:
        from crewai.tools.memory_tools import create_memory_tools  # noqa: PLC0415 - CrewAI loads slowly

        found += schemas(create_memory_tools(memory))
    return found


def _caller(wanted: Any) -> Any:
    """The crew on the stack that has this callback: CrewAI gives callbacks the inputs only."""
    from crewai import Crew  # noqa: PLC0415 - CrewAI loads slowly

    frame: Any = sys._getframe(1)  # the only way from a callback to its crew
    while frame is not None:
        for value in (frame.f_locals.get("crew"), frame.f_locals.get("self")):
            if isinstance(value, Crew) and any(one is wanted for one in value.before_kickoff_callbacks):
                return value
        frame = frame.f_back
    return None


def known(target: Any) -> bool:
    """Whether ``install`` can take the object."""
    crew, agents = _resolved(target) if not isinstance(target, type) else (None, [])
    return crew is not None or bool(agents)
