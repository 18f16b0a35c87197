"""Flows: the crews and agents that start in one belong to its installation, and share the long texts of its state."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cacheprefix_crewai.binding import (
    ALONE,
    FLOW,
    RUN,
    Binding,
    WhileUsed,
    binding_of,
    bound_to,
    owners_of,
    replaced_method,
)
from cacheprefix_crewai.crew import (
    agents_of,
    as_installed,
    bind_agent,
    bind_crew,
    bind_late,
    ended,
    freed,
    models_in,
    run_inside,
)
from cacheprefix_crewai.flow_run import FlowRun
from cacheprefix_crewai.llm import unswap
from cacheprefix_crewai.tools import RunTools, adopt, crew_tools

_CREWS = (
    "kickoff",
    "kickoff_async",
    "akickoff",
    "kickoff_for_each",
    "kickoff_for_each_async",
    "akickoff_for_each",
    "replay",
)
_AGENTS = ("kickoff", "kickoff_async", "akickoff")
_FLOWS = ("kickoff", "kickoff_async", "akickoff", "resume", "resume_async", "handle_turn")


def parts_in(flow: Any) -> list[Any]:
    """The crews and agents that a flow has as attributes of its own or of its class."""
    from crewai import Crew  # noqa: PLC0415 - CrewAI loads slowly
    from crewai.agents.agent_builder.base_agent import BaseAgent  # noqa: PLC0415 - as above

    kept = [vars(flow), getattr(flow, "__pydantic_private__", None) or {}, *map(vars, type(flow).__mro__)]
    found = [value for names in kept for value in names.values() if isinstance(value, (Crew, BaseAgent))]
    return list({id(one): one for one in found}.values())


def _watch() -> list[Callable[[], object]]:
    """Have crews and agents look whether they start in an installed flow; the functions returned end that.

    Nobody tells of the crews that a flow makes in its methods. CrewAI's own hooks would, with an event at each run that
    the application sees; so the methods that start a run look for themselves, as long as a flow is installed.
    """
    from crewai import Crew  # noqa: PLC0415 - CrewAI loads slowly
    from crewai.flow.flow import Flow  # noqa: PLC0415 - as above

    changes = ((Crew, _CREWS, _joining_crew), (Flow, _FLOWS, _running_flow))
    return [
        replaced_method(kind, name, around) for kind, names, around in changes for name in names if hasattr(kind, name)
    ]


WATCH = WhileUsed(_watch)
"""As long as a flow is installed."""


def _watch_agents() -> list[Callable[[], object]]:
    """Have agents that are kicked off without a crew say so, and join an installed flow that they run in."""
    from crewai import Agent  # noqa: PLC0415 - CrewAI loads slowly

    return [replaced_method(Agent, name, _kicked_off) for name in _AGENTS if hasattr(Agent, name)]


WATCH_AGENTS = WhileUsed(_watch_agents)
"""As long as anything is installed."""


def _joining_crew(method: Any) -> Any:
    """A crew's method; where it joins with this very call, it says that the crew is running, as an installed one's."""
    return _joining(method, as_installed(method))


def _joining(method: Any, joined: Any = None) -> Any:
    """A method that starts a crew or an agent: in a flow, as part of the flow's installation.

    ``joined`` is called instead where the crew becomes part of it now.
    """
    # Never by name: an application's own class may have come here from its own method, which is not to run twice.
    first = joined or method

    def run(self: Any, *given: Any, **named: Any) -> Any:
        return (first if _joins(self) else method)(self, *given, **named)

    async def arun(self: Any, *given: Any, **named: Any) -> Any:
        return await (first if _joins(self) else method)(self, *given, **named)

    return functools.wraps(method)(arun if inspect.iscoroutinefunction(method) else run)


def _kicked_off(method: Any) -> Any:
    """An agent's method that starts a run of its own."""
    return _joining(run_inside(method, _alone))


@contextmanager
def _alone(agent: Any, *_: Any) -> Iterator[None]:
    """Around an agent's own kickoff, a conversation without a crew: CrewAI's helpers in it are counted as its own.

    What is asked of the agent meanwhile, beside the kickoff, is asked of it alone.
    """
    binding = binding_of(agent)
    if binding is None:
        yield
        return
    binding.session.attempt("late parts", lambda: bind_late(binding, agent), None)
    with RUN.within(binding), binding.agent_kickoff():
        kickoff_id = (ALONE.get() or ("",))[-1]
        try:
            yield
        finally:
            binding.session.attempt("kickoff", lambda: ended(binding, kickoff_id), None)


def _running_flow(method: Any) -> Any:
    """A method that runs a flow; what starts while it does may find it."""
    return run_inside(method, _running)


@contextmanager
def _running(flow: Any, *_: Any) -> Iterator[None]:
    """What starts here belongs to the flow's installation; a flow within one belongs to the outer one."""
    outer, binding = FLOW.get(), binding_of(flow)
    if outer is not None and binding is None and type(outer.flow) is type(flow):
        binding = outer.binding  # restored from a checkpoint
    # CrewAI's own loops are flows too: what runs in them belongs to the application's.
    if binding is None or (outer is not None and outer.flow is flow):
        yield
        return
    run = FlowRun(binding, flow)
    token = FLOW.set(run)
    try:
        yield
    finally:
        FLOW.reset(token)
        binding.session.attempt("flow", run.ended, None)
        binding.session.attempt("flow", lambda: ended(binding, run.id), None)


def _joins(target: Any) -> bool:
    """Make a crew or agent that starts in a flow part of the flow's installation; whether it has become so now."""
    run: FlowRun | None = FLOW.get()
    if run is None or not run.binding.active:
        return False
    return run.binding.session.attempt("flow", lambda: _joined(run, target), otherwise=False)


def _joined(run: FlowRun, target: Any) -> bool:
    """``_joins`` in the run of an installed flow."""
    from crewai.flow.flow_context import current_flow_method_name  # noqa: PLC0415 - CrewAI loads slowly

    run.started(target, current_flow_method_name.get())
    if binding_of(target) is not None:
        return False
    if getattr(target, "crew", None) is not None:  # an agent of a crew, which is asked for itself
        return False
    join(run.binding, target, of_run=True)
    return True


def join(binding: Binding, target: Any, *, of_run: bool = False) -> None:
    """Make a crew or agent part of a flow's installation, which does not keep it alive.

    ``of_run`` says that a run of the flow made it, so that it may be made for one user.
    """
    crew = target if hasattr(target, "tasks") else None
    agents = [target] if crew is None else agents_of(crew)
    if binding.session.mode != "observe":
        tools = crew_tools(crew, agents)
        if of_run:
            # Privacy: what a method makes while the flow runs may be made for whom it runs.
            binding.part(RunTools).bring(*tools, asks=False, grows=True)
        else:
            adopt(binding, *tools)
    if crew is not None:
        bind_crew(binding, crew, copy=True)
        binding.remember(crew, freed)
    for agent in agents:
        if binding_of(agent) is None and not bound_to(agent, binding):
            bind_agent(binding, agent, copy=True)
            binding.remember(agent, freed)
    for owner in (crew, *agents):
        for llm in () if owner is None else models_in(owner):
            if owners_of(llm) is not None:
                binding.remember(llm, unswap)
