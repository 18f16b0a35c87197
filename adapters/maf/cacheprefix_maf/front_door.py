"""``wrap`` and ``unwrap``: agents and workflows as forks of one shared prefix."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from agent_framework import Agent, Workflow, WorkflowAgent

from cacheprefix import Session
from cacheprefix.adapter import (
    AdapterSession,
    ByObject,
    VolatileRole,
    given_or_configured,
    majority_text,
    users_session,
)
from cacheprefix.errors import SetupError, found_instead
from cacheprefix_maf.member import Member, ToolMemory, Volatile
from cacheprefix_maf.middleware import is_ours, middleware_of
from cacheprefix_maf.run_plan import run_of
from cacheprefix_maf.tools import adopt, made

T = TypeVar("T")


_TEXTS = "maf.instructions"
"""In a session's ``beside``: tools and instructions of the agents that were wrapped on it by themselves."""


def known(target: object) -> bool:
    """Whether ``wrap`` takes ``target``."""
    if isinstance(target, (list, tuple, dict)):
        return bool(target) and all(isinstance(agent, Agent) for agent in _each(target))
    return isinstance(target, (Agent, Workflow, WorkflowAgent))


def _each(target: Sequence[Any] | Mapping[Any, Any]) -> list[Any]:
    return list(target.values() if isinstance(target, Mapping) else target)


def wrap(
    target: T,
    session: Session | None = None,
    *,
    role: str = "",
    conversation: str = "",
    tool_memory: ToolMemory = "keep",
    volatile: Volatile | None = None,
    volatile_role: VolatileRole = "user",
    scope: str | None = None,
) -> T:
    """Make an agent, several in a list, tuple or dict, or all of a workflow send forks of the session's shared prefix.

    In place; ``unwrap`` takes it back, and it does nothing where the same was done. Wrap a workflow when it is built:
    then the tools of all its agents, hand-offs included, are in the union from the first request on, and what
    most of their instructions have in common becomes the shared system text unless the session's prefix has one (an
    agent whose instructions do not hold it keeps its own layout). So does that of agents which are wrapped one after
    the other on one session, before its first request. An agent that leads a
    group chat or a Magentic team keeps its layout and is measured and marked. For the options see
    ``prefix_middleware``; ``role`` is by default the agent's name.

    Raises ``SetupError`` for anything but agents or a workflow, and for an agent that was wrapped with another session,
    ``scope``, ``volatile`` or ``conversation``.
    """
    if not known(target):
        kind = found_instead(target, several=True)
        todo = "; call .build() first" if callable(getattr(target, "build", None)) else ""
        raise SetupError(f"wrap takes an agent, a list of them, or a workflow of agent_framework, {kind}{todo}")
    bound = given_or_configured(session)
    by_themselves = isinstance(target, (Agent, list, tuple, dict))
    asked = Member(bound, role, "", conversation, tool_memory, volatile, volatile_role, scope)
    if not (by_themselves or conversation):
        asked.runners = ByObject()
    found: list[tuple[Agent, bool, Member]] = []
    for agent, leads in agents_of(target):
        wrapped = member_of(agent)
        if wrapped is None:
            found.append((agent, leads, asked))
        else:
            _check_same(wrapped, asked, session)
    bind(found, bound, together=bool(conversation) or not by_themselves)
    if not by_themselves:
        _name_runners(target)
        bound.attempt("run", lambda: _foresee(target, [agent for agent, leads, _ in found if not leads]), None)
    return target


def _check_same(wrapped: Member, asked: Member, session: Session | None) -> None:
    """Raise ``SetupError`` where an agent is to be wrapped for somebody else than it was."""
    # Privacy: it would go on under the first one's scope, and with what only that one is to be told.
    # Where a session is given and no scope, it is that session's.
    scopes = [one.session.scope if one.scope is None else one.scope for one in (wrapped, asked)]
    others = {
        "session": session is not None and users_session(wrapped.session) is not session,
        "scope": (session is not None or asked.scope is not None) and scopes[0] != scopes[1],
        "volatile": asked.volatile not in (None, wrapped.volatile),
        "conversation": asked.conversation not in ("", wrapped.conversation),
    }
    other = next((name for name, differs in others.items() if differs), "")
    if other:
        raise SetupError(
            f"{wrapped.name!r} is wrapped already with another {other}; unwrap it first, or make an agent for each user"
        )


def _name_runners(target: Any) -> None:
    """Make the runs of a workflow one conversation, where it has no name; wrapped again, it keeps the one it has."""
    members = ((runner, member_of(agent)) for runner, agent, _ in _runners_of(target))
    found = [(runner, member.runners) for runner, member in members if member and member.runners is not None]
    known = (runners.get(runner) for runner, runners in found)
    made = next(filter(None, known), None) or secrets.token_hex(16)
    for runner, runners in found:
        runners[runner] = runners.get(runner) or made


def _foresee(target: Any, agents: Sequence[Any]) -> None:
    """Give each agent of a workflow the order of the run's calls, where that is known beforehand."""
    members = {id(agent): member for agent in agents if (member := member_of(agent)) is not None}
    workflow = target.workflow if isinstance(target, WorkflowAgent) else target
    run = run_of(workflow, {agent: member.role for agent, member in members.items()})
    for member in members.values():
        member.run = run


def bind(found: Sequence[tuple[Any, bool, Member | None]], session: AdapterSession, *, together: bool) -> None:
    """Make agents members of a session, each with whether it leads the others, and the options asked for it.

    ``together`` says that they have one conversation, so that all carry the union of tools.
    """
    forks = session.mode != "observe"
    sharing = [agent for agent, leads, _ in found if not leads]
    given = session.prefix.system or session.prefix.roles
    if forks and not given and (common := _common(sharing, session, together=together)):
        session.adopt_system(common, with_context=True)
    for agent, leads, asked in found:
        own = agent.name or agent.id
        options = asked or Member(session, "")
        mine = weakref.ref(agent)
        member = replace(options, session=session, role=options.role or own, name=own, layout=not leads, agent=mine)
        if forks and not leads:
            tools, text = agent.default_options.get("tools") or (), agent.default_options.get("instructions")
            # First: where an agent is made anew, its tools are not everybody's.
            made(member, tools, str(text or ""))
            adopt(member, tools)
        # A list of its own: several agents may have been given the same one.
        agent.middleware = [*(agent.middleware or ()), *middleware_of(member)]


def _common(agents: Sequence[Any], session: AdapterSession, *, together: bool) -> str:
    """The text that most agents' instructions have in common; before the first request, with those wrapped earlier."""
    said = {agent.name or agent.id: str(agent.default_options.get("instructions") or "") for agent in agents}
    if together:
        return majority_text(list(said.values()))[0]
    # Kept by name, since an application may make its agents anew for each request.
    asked = session.begun
    kept: dict[str, tuple[frozenset[str], str]] = {} if asked else session.beside.setdefault(_TEXTS, {})
    kept |= {agent.name or agent.id: (_tools_of(agent), said[agent.name or agent.id]) for agent in agents}
    # Agents with histories of their own carry their own tools, which stand in front of the system text: only agents
    # with equal tools can share it.
    sets = [tools for tools, _ in kept.values()]
    return majority_text([text for tools, text in kept.values() if sets.count(tools) > 1])[0]


def _tools_of(agent: Any) -> frozenset[str]:
    return frozenset(str(getattr(tool, "name", tool)) for tool in agent.default_options.get("tools") or ())


def unwrap(target: T) -> T:
    """Take everything back. Does nothing when not wrapped."""
    for agent, _ in agents_of(target):
        kept = without_ours(agent)
        if len(kept) < len(agent.middleware or ()):
            agent.middleware = kept or None
    return target


def session_of(target: Any) -> Session | None:
    """The session of a wrapped agent or workflow; None when it is not wrapped."""
    member = next((found for agent, _ in agents_of(target) if (found := member_of(agent)) is not None), None)
    return None if member is None else users_session(member.session)


def member_of(agent: Any) -> Member | None:
    """What a wrapped agent was wrapped with; None when it is not wrapped."""
    return next((one.member for one in agent.middleware or () if is_ours(one)), None)


def without_ours(agent: Any) -> list[Any]:
    """An agent's middlewares as the application has them."""
    return [one for one in agent.middleware or () if not is_ours(one)]


def agents_of(target: Any) -> Iterator[tuple[Any, bool]]:
    """The agents inside, each once, and whether it leads the others; nested workflows included."""
    if isinstance(target, (list, tuple, dict)):
        found = [(agent, False) for agent in _each(target)]
    elif isinstance(target, Agent):
        found = [(target, False)]
    else:
        found = [(agent, leads) for _, agent, leads in _runners_of(target)]
    seen: set[int] = set()
    for agent, leads in found:
        if id(agent) not in seen:
            seen.add(id(agent))
            yield agent, leads


def _runners_of(target: Any) -> Iterator[tuple[Any, Any, bool]]:
    """What runs a workflow's agents (executors, managers), with the agent, and whether that leads the others."""
    workflow = target.workflow if isinstance(target, WorkflowAgent) else target
    for executor in getattr(workflow, "executors", {}).values():
        led = hasattr(executor, "_participant_registry")
        for runner in (executor, getattr(executor, "_manager", None)):
            agent = getattr(runner, "_agent", None)
            if isinstance(agent, Agent):
                yield runner, agent, led
            elif isinstance(agent, WorkflowAgent):
                yield from _runners_of(agent)
        if isinstance(inner := getattr(executor, "workflow", None), Workflow):
            yield from _runners_of(inner)
