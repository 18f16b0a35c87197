"""``install`` and ``uninstall``: the agents of a crew or flow as forks of one shared prefix."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from typing_extensions import Self

from cacheprefix import Call, Session
from cacheprefix.adapter import (
    AdapterSession,
    VolatileRole,
    check_volatile,
    given_or_configured,
    names_in,
    supported,
    users_session,
)
from cacheprefix.errors import SetupError, check_text, found_instead
from cacheprefix_crewai.asked_models import WATCH_MODELS
from cacheprefix_crewai.binding import Binding, Options, Volatile, bind, binding_of, bindings_on, bound_to, ending_on
from cacheprefix_crewai.crew import bind_agent, bind_crew, binding_on, freed, is_flow, parts_of
from cacheprefix_crewai.delegation import FIND_COWORKERS
from cacheprefix_crewai.flows import WATCH, WATCH_AGENTS, join, parts_in
from cacheprefix_crewai.framing import SYSTEM
from cacheprefix_crewai.history import RESULT_BUDGET
from cacheprefix_crewai.llm import kind_of
from cacheprefix_crewai.overlays import WATCH_OVERLAYS
from cacheprefix_crewai.structured import WATCH_STRUCTURED
from cacheprefix_crewai.tool_cache import TOOL_CACHE
from cacheprefix_crewai.tools import CrewTools, adopt, crew_tools


class Installation:
    """What ``install`` returns: leave the ``with`` block, or call ``undo()``, to take everything back.

    Runs that were kicked off in the block, streams (``Crew(stream=True)``) among them, go on in it until they end, and
    change nothing for others; behind ``undo()`` everything goes out as without us at once.
    """

    def __init__(self, target: Any, binding: Binding) -> None:
        self._target = target
        self._binding = binding
        self._left = False
        with binding.lock:
            binding.holders += 1
            binding.ending = False
        self._made = binding.made()

    @property
    def session(self) -> Session:
        """The session in force."""
        return users_session(self._binding.given)

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
        return tuple(self._binding.calls.values())

    def undo(self) -> None:
        """Restore every object, when whoever else installed the same has done so too; twice is harmless."""
        if self._left_by_all():
            self._binding.take_back()

    def _left_by_all(self) -> bool:
        """Leave the installation; whether nobody holds it any longer."""
        binding = self._binding
        with binding.lock:
            if self._left:
                return False
            self._left = True
            if self._made:
                binding.left()
            binding.holders -= 1
            return not binding.holders

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # A run that was kicked off inside goes on as it began: a stream is read where its block has been left.
        if self._left_by_all():
            self._binding.end()


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

    ``target`` is a crew, an instance of a ``@CrewBase`` class, a flow, an agent, or a list of agents. Crews and agents
    that start in a flow become part of its installation, and share the long texts of its state that they hold.
    Inputs of at least 200 characters that two tasks contain stand once in the shared part of these tasks;
    ``shared_inputs`` names the inputs instead. ``shared_context`` is a text that the prompts of a flow's agents
    contain. Neither is in a request that does not hold it itself, as it is after CrewAI's hooks. ``gate=False`` lets
    tasks that start together all write the shared part. ``volatile`` gives texts by name for each request (time,
    retrieval); they stand behind everything cached, under ``volatile_role``, and nothing keeps them. ``scope`` is the
    tenant whose crew it is, by default the session's: decisions, cache lanes, side questions and cached tool results
    of tenants are kept apart.

    Installing again with the same session, scope and ``volatile`` joins the installation there is, whose options stay;
    it ends when each ``install`` was undone. With another, that one is in force until it is undone; threads and tasks
    that install side by side on one object, as requests of a server do, have each their own. Crews may share agents:
    each crew's runs are its own installation's. What flows share, each has in its own runs, and nobody behind them.
    Raises ``SetupError`` for anything else. Models are changed in place and restored. Of what is the process's,
    CrewAI's tool hooks are used with a budget or a tool cache, its delegation tools find a coworker also by a role with
    its placeholders, the methods that start an agent by itself, and what asks for answers by a schema past a model's
    class, say so, ``llm_overlay`` makes models like installed ones as they were made, and with a flow those that start
    crews and flows look whether they run in one; all ends with the last installation.
    """
    flow = target if is_flow(target) else None
    crew, agents = parts_of(target)
    if flow is None and crew is None and not agents:
        raise _not_taken(target)
    known = binding_of(next(one for one in (flow, crew, *agents) if one is not None))
    if known is not None:
        same = session is None or known.given is session.adapter
        if same and known.joined_with(scope, volatile) and all(binding_of(a) is known for a in agents):
            return Installation(target, known)
    bound = given_or_configured(users_session(known.given) if session is None and known is not None else session)
    options = _options(bound, shared_inputs, shared_context, gate, volatile, volatile_role, scope)
    binding = Binding(bound, options, _conversation(target, crew, agents), of_flow=flow is not None)
    if bound.mode != "observe":
        bound.adopt_system(SYSTEM)
        found = bound.attempt("tools", lambda: crew_tools(crew, agents), CrewTools([], {}))
        adopt(binding, *found)
        binding.undo.append(FIND_COWORKERS.use(binding))
        if bound.histories.budget is not None:
            binding.undo.append(RESULT_BUDGET.use(binding))
        if bound.tool_cache is not None:
            binding.undo.append(TOOL_CACHE.use(binding))
    binding.undo += [WATCH_AGENTS.use(binding), WATCH_STRUCTURED.use(binding), WATCH_MODELS.use(binding)]
    binding.undo.append(WATCH_OVERLAYS.use(binding))
    if flow is not None:
        bind(flow, binding, flow=True)
        binding.undo += [lambda: freed(flow, binding), WATCH.use(binding)]
        for part in parts_in(flow):
            if binding_of(part) is None and not bound_to(part, binding):
                bound.attempt("flow", functools.partial(join, binding, part), None)
    if crew is not None:
        bind_crew(binding, crew)
    for agent in agents:
        bind_agent(binding, agent)
    models = [agent.llm for agent in (*(crew.agents if crew is not None else ()), *agents)]
    # Where no model is of a kind that is known, that is why nothing is seen, and it is noted by itself.
    if not bound.off and (not models or any(kind_of(one) is not None for one in models)):
        bound.note_if_unasked(
            f"no request has come from {_named(flow, crew, agents)}: install on the very object that is kicked off, "
            "before it is (CrewBase classes may make another crew at each call; of a crew's agents alone, "
            "the crew's own requests are not theirs), and read the report after its run"
        )
    return Installation(target, binding)


def _options(
    session: AdapterSession,
    shared_inputs: Iterable[str] | None = None,
    shared_context: str = "",
    gate: bool = True,  # noqa: FBT001, FBT002 - as ``install`` has it
    volatile: Volatile | None = None,
    volatile_role: VolatileRole = "user",
    scope: str | None = None,
) -> Options:
    """What the user chose at ``install``. Raises ``SetupError`` for what no request could be made of."""
    # Another crew may have given the session its two sentences.
    declared = bool(session.prefix.context or session.prefix.roles) or session.prefix.system not in ("", SYSTEM)
    inputs = names_in("shared_inputs", shared_inputs)
    check_text("shared_context", shared_context)
    waits: object = gate
    if not isinstance(waits, bool):
        message = f"gate is True or False, whether tasks that start together may wait, found {type(waits).__name__}"
        raise SetupError(f"{message}; a Gate is the session's: Session(gate=Gate(...))")
    check_volatile(volatile, volatile_role)
    check_text("scope", scope, optional=True)
    return Options(inputs, shared_context, declared, gate, volatile, volatile_role, scope)


def uninstall(target: Any) -> None:
    """Take an installation back, whoever made it. Does nothing where there is none."""
    crew, agents = parts_of(target)
    for one in (target if is_flow(target) else None, crew, *agents):
        for binding in (*bindings_on(one), *ending_on(one)):
            binding.take_back()


def callback(session: Session | None = None, **options: Any) -> Callable[[Any], Any]:
    """``install`` as a before-kickoff callback: ``Crew(before_kickoff_callbacks=[callback(session)])``.

    Takes the options of ``install``, and raises ``SetupError`` for any other. The crew is the one that calls; it stays
    installed.
    """
    given: object = session
    if isinstance(given, Mapping):
        # CrewAI calls what it was given with the kickoff's inputs.
        raise SetupError("callback makes the crew's callback: before_kickoff_callbacks=[callback(session)]")
    shared = given_or_configured(session)
    known = [name for name in inspect.signature(_options).parameters if name != "session"]
    unknown = sorted(options.keys() - known)
    if unknown:
        raise SetupError(f"callback takes the options of install ({', '.join(known)}), found {', '.join(unknown)}")
    asked = _options(shared, **options)

    def before_kickoff(inputs: Any) -> Any:
        crew = shared.attempt("callback", lambda: _caller(before_kickoff), None)
        if crew is not None and binding_of(crew) is None and all(one.options != asked for one in bindings_on(crew)):
            shared.attempt("install", lambda: install(crew, users_session(shared), **options), None)
        return inputs

    return before_kickoff


def session_of(target: Any) -> Session | None:
    """The session of an installed crew or agent; None when it is not installed."""
    found = binding_on(target)
    return None if found is None else users_session(found.given)


def conversation_of(target: Any) -> str:
    """The id of a crew's conversation, or of agents', which can be had before it is installed.

    ``session.conversation(conversation_of(crew)).set_zone("project", text)`` says something to all its agents from the
    next kickoff on, ``append_context(text, key)`` from the next task on. Raises ``SetupError`` for anything that
    ``install`` does not take.
    """
    crew, agents = parts_of(target)
    if crew is None and not agents and not is_flow(target):
        raise _not_taken(target, "conversation_of")
    found = binding_on(target)
    return _conversation(target, crew, agents) if found is None else found.conversation


def known(target: Any) -> bool:
    """Whether ``install`` can take the object."""
    crew, agents = parts_of(target) if not isinstance(target, type) else (None, [])
    return crew is not None or bool(agents) or is_flow(target)


def _conversation(target: Any, crew: Any, agents: Sequence[Any]) -> str:
    """A name for the ledger that is the same in another process."""
    if is_flow(target):
        return f"crewai:flow:{target.name or type(target).__name__}"
    if crew is None:
        return "crewai:" + ",".join(str(agent.role) for agent in agents)
    return f"crewai:{crew.name or 'crew'}:{crew.key}"


def _named(flow: Any, crew: Any, agents: Sequence[Any]) -> str:
    """What was installed on, for a person."""
    if flow is not None:
        return f"flow {type(flow).__name__}"
    roles = ", ".join(str(agent.role).strip() for agent in agents)
    return f"the agents {roles}" if crew is None else f"crew {crew.name!r} of {roles}"


def _not_taken(target: Any, door: str = "install") -> SetupError:
    """The error for an object that is no crew, flow or agent, with what to give instead."""
    from crewai import Task  # noqa: PLC0415 - CrewAI loads slowly
    from crewai.llms.base_llm import BaseLLM  # noqa: PLC0415 - as above

    found = found_instead(target, several=True)
    if isinstance(target, BaseLLM):
        found += ": give the crew or the agents that ask the model"
    elif isinstance(target, Task):
        found += ": give the task's crew, or its agent"
    elif isinstance(target, (list, tuple)) and any(known(one) for one in target):
        found += " that holds others than agents: give crews and flows one by one, all with one session"
    return SetupError(f"{door} takes a crew, a @CrewBase instance, a flow or agents, {found}")


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


supported("cacheprefix-crewai")
