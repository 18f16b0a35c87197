"""``wrap`` and ``unwrap``: agents, teams and model clients as forks of one shared prefix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TypeVar, get_args

from autogen_agentchat.agents import BaseChatAgent
from autogen_agentchat.teams import BaseGroupChat
from autogen_core.models import ChatCompletionClient

from cacheprefix import Session
from cacheprefix.adapter import AdapterSession, VolatileRole, given_or_configured, majority_text, users_session
from cacheprefix.errors import SetupError
from cacheprefix_autogen.agent import runners_of, system_texts
from cacheprefix_autogen.binding import Binding, binding_of
from cacheprefix_autogen.client import PrefixClient
from cacheprefix_autogen.member import Options, ToolMemory, Volatile
from cacheprefix_autogen.settings import adopt
from cacheprefix_autogen.state import carry_over
from cacheprefix_autogen.team import agents_in, bind_alone, bind_team, copied

T = TypeVar("T")


def wrap(
    target: T,
    session: Session | None = None,
    *,
    copy: bool = False,
    tool_memory: ToolMemory = "keep",
    volatile: Volatile | None = None,
    volatile_role: VolatileRole = "user",
    scope: str | None = None,
) -> T:
    """Make an agent, a team or a model client send forks of the session's shared prefix.

    In place, also in a team that has already run; with ``copy=True`` the original stays as it is. The agents
    of a team share its transcript; what most of their system messages have in common becomes the shared system text
    unless the session's prefix has one, and an agent without it keeps its own requests. ``tool_memory="drop"`` leaves
    out of an agent's later requests what it called and was given, all but what it said to the others: it is shown less
    than without us. ``volatile`` gives texts for one
    request of an agent (time, retrieval); they stand behind everything cached, in each step of a tool loop too,
    under ``volatile_role``, and nothing keeps them. ``scope`` is the tenant whose conversation it is, by default the
    session's: decisions, cache lanes, side questions and cached tool results of tenants are kept apart. Without a
    session one is made from the configuration; ``session_of`` finds it.

    Raises ``SetupError`` for anything else, for what is wrapped already, for an unknown ``tool_memory``, and for an
    AutoGen whose private names are not those this version knows.
    """
    if tool_memory not in get_args(ToolMemory):
        message = f"tool_memory is one of {', '.join(map(repr, get_args(ToolMemory)))}, found {tool_memory!r}"
        raise SetupError(message)
    if isinstance(target, ChatCompletionClient):
        return PrefixClient(target, session)  # type: ignore[return-value]
    if not isinstance(target, (BaseChatAgent, BaseGroupChat)):
        message = f"wrap takes an AutoGen agent, team or model client, found {type(target).__name__}"
        raise SetupError(message)
    if binding_of(target) is not None:
        message = f"{target.name!r} is wrapped already; unwrap it first, or wrap with copy=True before"
        raise SetupError(message)
    if copy:
        target = copied(target)
    _free(target)
    bind(target, given_or_configured(session), Options(tool_memory, volatile, volatile_role, scope))
    return target


def _free(target: Any) -> None:
    """Take back what was wrapped by itself inside ``target``; what is part of something else is not ours to take."""
    inside = {id(one): one for one in _inside(target)}
    bound = [binding for one in inside.values() if (binding := binding_of(one)) is not None]
    for binding in bound:
        whole = binding.root.patches.target
        if id(whole) not in inside:
            name, other = binding.patches.target.name, whole.name
            message = (
                f"{name!r} is wrapped already as a part of {other!r}: unwrap that first, or wrap both in one team. "
                "What two wraps share could not be taken back by one of them"
            )
            raise SetupError(message)
    for binding in bound:
        binding.root.undo()


def _inside(target: Any) -> Iterator[Any]:
    """The agents and teams within a team, a filter or a mind, those that hold others included."""
    if isinstance(target, BaseGroupChat):
        parts: Sequence[Any] = target._participants
    else:
        parts = [getattr(target, name) for name in ("_wrapped_agent", "_team") if hasattr(target, name)]
    for part in parts:
        yield part
        yield from _inside(part)


def bind(target: Any, session: AdapterSession, options: Options) -> Binding:
    """Bind an agent or a team with all in it, which nothing of ours holds yet."""
    agents = agents_in(target)
    session = _settled(session, agents)
    if isinstance(target, BaseGroupChat):
        binding = bind_team(target, session, options)
    else:
        declared = bool(session.prefix.system or session.prefix.tools) and len(agents) == 1
        binding = bind_alone(target, session, options, private=not declared)
    for each in binding.whole:
        each.root = binding
        each.patches.rebind = partial(_bind_copy, each, session, options)
    return binding


def _bind_copy(original: Binding, session: AdapterSession, options: Options, made: Any) -> None:
    """Bind a deep copy as its original is, in a conversation of its own that begins with what was said so far."""
    bind(made, session, options)
    copy = binding_of(made)
    if copy is not None and session.mode != "observe":
        session.attempt("copy", lambda: carry_over(original, copy), None)


def unwrap(target: T) -> T:
    """Take everything back; the agent or team goes on with its own full context. Does nothing when not wrapped."""
    if isinstance(target, PrefixClient):
        return target.client  # type: ignore[return-value]
    binding = binding_of(target)
    if binding is not None:
        binding.undo()
    return target


def session_of(target: Any) -> Session | None:
    """The session of a wrapped agent, team or client; None when it is not wrapped."""
    if isinstance(target, PrefixClient):
        return target.session
    binding = binding_of(target)
    return None if binding is None else users_session(binding.session)


def _settled(session: AdapterSession, agents: Sequence[BaseChatAgent]) -> AdapterSession:
    """The session with what most of the agents' system texts have in common, unless it has a system text."""
    if session.mode == "observe" or session.prefix.text:
        return session
    runners = [agent for outer in agents for runner in runners_of(outer) for agent in agents_in(runner)]
    asking = [agent for agent in (*agents, *runners) if getattr(agent, "_model_client", None) is not None]
    texts = ["\n".join(map(str, system_texts(agent))) for agent in asking]
    found, holders = majority_text(texts)
    # One that few have would be a lane of theirs alone: without it, all share what is said.
    if not found or 2 * len(holders) <= len(texts):
        return session
    adopt(session, found)
    if others := [agent.name for at, agent in enumerate(asking) if at not in holders]:
        session.note(
            f"agents {', '.join(map(repr, others))} have not the text that the others begin with, and are not shown "
            "it: they keep their own requests. SharedPrefix(system=...) would give it to all"
        )
    return session
