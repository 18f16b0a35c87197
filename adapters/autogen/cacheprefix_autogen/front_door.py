"""``wrap`` and ``unwrap``: agents, teams and model clients as forks of one shared prefix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TypeVar, get_args

from autogen_agentchat.agents import BaseChatAgent, SocietyOfMindAgent
from autogen_agentchat.teams import BaseGroupChat
from autogen_core import BaseAgent
from autogen_core.models import ChatCompletionClient

from cacheprefix import Session
from cacheprefix.adapter import (
    AdapterSession,
    VolatileRole,
    check_volatile,
    digest_of,
    dumps,
    given_or_configured,
    majority_text,
    users_session,
)
from cacheprefix.errors import SetupError, check_text, found_instead
from cacheprefix_autogen.agent import clients_of, runners_of, tools_of
from cacheprefix_autogen.binding import Binding, binding_of
from cacheprefix_autogen.client import PrefixClient, note_moved, unwrapped
from cacheprefix_autogen.member import DEFAULTS, Member, Options, ToolMemory, Volatile, system_texts
from cacheprefix_autogen.provider_clients import name_of
from cacheprefix_autogen.state import carry_over
from cacheprefix_autogen.team import agents_in, bind_alone, bind_team, copied
from cacheprefix_autogen.tool_restriction import frozen_schema, rendered

T = TypeVar("T")


def known(target: object) -> bool:
    """Whether ``wrap`` takes it."""
    return isinstance(target, (BaseChatAgent, BaseGroupChat, BaseAgent, ChatCompletionClient))


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
    """Make an agent, a team, a model client or a ``RoutedAgent`` send forks of the session's shared prefix.

    In place, also in a team that has already run; with ``copy=True`` the original stays as it is. The agents
    of a team share its transcript; what most of their system messages have in common becomes the shared system text
    unless the session's prefix has one, and an agent without it keeps its own requests. ``tool_memory="drop"`` leaves
    out of an agent's later requests what it called and was given, all but what it said to the others: it is shown less
    than without us. ``volatile`` gives texts for one
    request of an agent (time, retrieval); they stand behind everything cached, in each step of a tool loop too,
    under ``volatile_role``, and nothing keeps them. ``scope`` is the tenant whose conversation it is, by default the
    session's: decisions, cache lanes, side questions and cached tool results of tenants are kept apart. Without a
    session one is made from the configuration, but for a team with agents of a wrapped one, which joins that;
    ``session_of`` finds it.

    Raises ``SetupError`` for anything else, for what is wrapped already, for what works as a tool of agents that are
    wrapped with another session, ``scope`` or ``volatile``, for an unknown ``tool_memory``, and for an AutoGen whose
    private names are not those this version knows.
    """
    if tool_memory not in get_args(ToolMemory):
        raise SetupError(f"tool_memory is one of {', '.join(map(repr, get_args(ToolMemory)))}, found {tool_memory!r}")
    if not isinstance(copy, bool):
        raise SetupError(f"copy is True or False, found {copy!r}")
    check_volatile(volatile, volatile_role)
    check_text("scope", scope, optional=True)
    if not known(target):
        raise SetupError(f"wrap takes an AutoGen agent, team or model client, {found_instead(target)}")
    if isinstance(target, PrefixClient):
        raise SetupError("the client is wrapped already; unwrap it first")
    options = Options(tool_memory, volatile, volatile_role, scope)
    if isinstance(target, ChatCompletionClient):
        client = PrefixClient(target, session)
        client.member.options = options
        return client  # type: ignore[return-value]
    if binding_of(target) is not None:
        name = getattr(target, "name", type(target).__name__)
        raise SetupError(f"{name!r} is wrapped already; unwrap it first, or wrap with copy=True before")
    if isinstance(target, BaseAgent):
        _bind_core_agent(target, given_or_configured(session), options)
        return target
    if copy:
        target = copied(target)
    _check_tools(target, session, options)
    joined = _free(target, session)
    bound = given_or_configured(session) if joined is None else joined
    bind(target, bound, options)
    return target


def _bind_core_agent(agent: BaseAgent, session: AdapterSession, options: Options) -> None:
    """Bind a ``RoutedAgent``: nothing but its clients, which lay out what they are asked by its messages alone."""
    clients, name = clients_of(agent), agent.id.type if hasattr(agent, "_id") else type(agent).__name__
    if not clients:
        raise SetupError(
            f"{type(agent).__name__} holds no model client that can be seen: wrap it once it has one, or give it "
            f"PrefixClient(client, session, role={name!r})"
        )
    binding = Binding(agent, session)
    for attribute, client in clients.items():
        member = Member(session, name, options=options)
        note_moved(client, session, name)
        made = PrefixClient(unwrapped(client), users_session(session), role=name, member=member)
        binding.patches.set(attribute, made)
    binding.roots.append(binding.attach())


def _free(target: Any, session: Session | None) -> AdapterSession | None:
    """Take back what was wrapped by itself inside ``target``.

    Gives the session of the agents that another wrapped team has too, with which ``target`` then shares a transcript;
    None where there are none. Raises ``SetupError`` for those of another session, and for what is deeper inside.
    """
    inside = {id(one): one for one in _inside(target)}

    def elsewhere(one: Any) -> Binding | None:
        known = binding_of(one)
        return next((root for root in known.roots if id(root.patches.target) not in inside), None) if known else None

    joined: AdapterSession | None = None
    shared: set[int] = set()
    for one in getattr(target, "_participants", ()):
        known, other = binding_of(one), elsewhere(one)
        if known is None or other is None or not isinstance(other.patches.target, BaseGroupChat):
            continue
        if session is None or session is users_session(known.session):
            joined = known.session
            shared |= {id(one), *map(id, _inside(one))}
    own = [one for at, one in inside.items() if at not in shared]
    for one in own:
        other = elsewhere(one)
        if other is not None:
            raise SetupError(
                f"{one.name!r} is wrapped already as a part of {other.patches.target.name!r}: give both teams the same "
                "session, or unwrap that first. What is inside an agent or an inner team belongs to one wrap alone"
            )
    for one in own:
        known = binding_of(one)
        for root in [] if known is None else list(known.roots):
            root.undo()
    return joined


def _check_tools(target: Any, session: Session | None, options: Options, above: tuple[Any, ...] = ()) -> None:
    """Raise ``SetupError`` where what works as a tool in ``target`` was wrapped with somebody else's agent."""
    for caller in (target, *_inside(target)):
        for runner in runners_of(caller):
            if any(runner is one for one in above):
                continue  # agents that are each other's tools
            known = binding_of(runner)
            other = "" if known is None else _others(known, session, options)
            if other:
                raise SetupError(
                    f"{runner.name!r} works as a tool of {caller.name!r}, and is wrapped already with another {other}: "
                    "make one for each user, or unwrap what it was wrapped with first"
                )
            if known is None:
                _check_tools(runner, session, options, (*above, target, runner))


def _others(known: Binding, session: Session | None, options: Options) -> str:
    """What a tool's agent or team was wrapped with that its new caller is not; empty for nothing."""
    # Privacy: it would go on under the first user's scope, and with what only that one is to be told.
    held, root = DEFAULTS if known.joins is None else known.joins.options, next(iter(known.roots), known)
    by_itself = known in known.roots
    given = None if session is None else session.adapter
    scopes = [one.scope if given is None or one.scope is not None else given.scope for one in (held, options)]
    if scopes[0] != scopes[1] and not (by_itself and held.scope is None):
        return "scope"
    if by_itself:
        return ""  # as its user has chosen
    if given is not None and users_session(root.session) is not session:
        return "session"
    return "volatile" if held.volatile is not options.volatile else ""


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
    """Put our model in place of the agents' own in an agent or a team, with all in it, which nothing of ours holds yet.

    A team's agents share one conversation.
    """
    agents = agents_in(target)
    if not any(binding_of(agent) for agent in agents):
        session = _settled(session.attempt("tools", lambda: _edition(session, agents, options), session), agents)
    if isinstance(target, BaseGroupChat):
        binding = bind_team(target, session, options)
    else:
        # Money: an agent by itself has nobody to share with, but for those of other wraps that begin with the same
        # text or tools of ``SharedPrefix``.
        declared = bool(session.prefix.system or session.prefix.tools) and len(agents) == 1
        binding = bind_alone(target, session, options, private=not declared)
    for each in binding.whole:
        if not each.roots:
            each.patches.rebind = partial(_bind_copy, each, session, options)
        each.roots.append(binding)
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


def conversation_of(target: Any) -> str:
    """The id of a wrapped team's conversation, or of an agent's, which can be had before its first run.

    ``session.conversation(conversation_of(team)).set_zone("memories", text)`` says something to all its agents before
    the first request, and later with the next compaction; ``append_context(text, key="world")`` with each agent's next
    turn, behind what was said by then. A team whose state is loaded goes on under the id that was saved. Raises
    ``SetupError`` for what is not wrapped, and for what has no conversation of its own (clients, ``RoutedAgent``).
    """
    binding = binding_of(target) if hasattr(target, "__dict__") else None
    group = None if binding is None else binding.joins
    if group is None:
        raise SetupError(f"conversation_of takes a wrapped team or agent, found {type(target).__name__}; wrap it first")
    return group.transcript.id


def _edition(session: AdapterSession, agents: Sequence[BaseChatAgent], options: Options) -> AdapterSession:
    """The session, or where another team's tools contradict those of these agents, an edition of it for such tools.

    Tools stand in front of every prompt: an agent whose tool differs would share nothing with the others of its team.
    """
    unique = {name_of(tool): frozen_schema(tool) for agent in reversed(agents) for tool in reversed(tools_of(agent))}
    name = "" if session.mode == "observe" else session.team.contradicts(unique.values(), rendered)
    if not name or name in session.team.public:
        return session
    scope = session.scope if options.scope is None else options.scope
    session.note(
        f"teams on this session have tools of the name {name!r} with different definitions (description or "
        "parameters): each shares among its own agents alone; where teams are made for a user each, describe the tool "
        "alike for all, and say what is the user's in the task"
    )
    return session.edition(scope, digest_of(*(dumps(unique[one], one).decode() for one in sorted(unique))))


def _settled(session: AdapterSession, agents: Sequence[BaseChatAgent]) -> AdapterSession:
    """The session with what most of the agents' system texts have in common, unless it has a system text."""
    if session.mode == "observe" or session.prefix.system or session.prefix.roles:
        return session
    runners = [agent for outer in agents for runner in runners_of(outer) for agent in agents_in(runner)]
    # One that keeps its context elsewhere words its requests itself, as a mind does, and is shown nothing.
    asking = [one for one in (*agents, *runners) if clients_of(one) and getattr(one, "_model_context", None)]
    asking = [one for one in asking if not isinstance(one, SocietyOfMindAgent)]
    texts = ["\n".join(map(str, system_texts(agent))) for agent in asking]
    found, holders = majority_text(texts)
    # One that few have would be a lane of theirs alone: without it, all share what is said.
    if not found or 2 * len(holders) <= len(texts):
        return session
    session.adopt_system(found, with_context=True)
    if others := [agent.name for at, agent in enumerate(asking) if at not in holders]:
        session.note(
            f"agents {', '.join(map(repr, others))} have not the text that the others begin with, and are not shown "
            "it: they keep their own requests. SharedPrefix(system=...) would give it to all"
        )
    return session
