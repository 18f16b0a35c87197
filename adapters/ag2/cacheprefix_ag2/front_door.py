"""``wrap`` and ``unwrap``: agents as forks of one shared prefix."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ag2 import Agent, Middleware
from ag2.tools.final import FunctionTool

from cacheprefix import Session
from cacheprefix.adapter import (
    AdapterSession,
    BlockVar,
    check_volatile,
    given_or_configured,
    majority_text,
    users_session,
)
from cacheprefix.errors import SetupError, check_id, found_instead
from cacheprefix_ag2.client import SUBTASK, PrefixClient, kept_tools, model_of, named, options_of
from cacheprefix_ag2.layout import ConversationId, adopt
from cacheprefix_ag2.policy import BoundPolicy, LayoutMiddleware, Volatile
from cacheprefix_ag2.team import Seat, schema_key, team_of

T = TypeVar("T")

_BINDING = "_cacheprefix"
_NEEDED = ("config", "system_prompt", "tools", "_additional_tools", "_drive_scope", "_run_subtask")


@dataclass(frozen=True, slots=True)
class _Binding:
    """What ``wrap`` put on an agent: its session, role and middleware; copies of the agent share it."""

    session: AdapterSession
    role: str
    middleware: Middleware

    def __deepcopy__(self, memo: dict[int, Any]) -> _Binding:
        return self

    def client(self, client: Any, config: Any) -> PrefixClient:
        """The client of a turn, inside a ``PrefixClient``."""
        if isinstance(client, PrefixClient):
            if client.session is users_session(self.session):
                return client
            # Privacy: a config may be made once for all; the agent's requests are its own session's.
            client = client.client
        model = str(options_of(client).get("model") or model_of(config))
        return PrefixClient(client, users_session(self.session), model)


_PARENT: BlockVar[_Binding] = BlockVar("cacheprefix_ag2_parent")
"""The binding of the agent whose sub-task runs: ag2 makes a new agent for each, with the parent's config."""


def known(target: object) -> bool:
    """Whether ``target`` is an ag2 agent, or a list, tuple or dict of agents."""
    found = agents_in(target)
    return bool(found) and all(isinstance(each, Agent) for each in found)


def wrap(
    target: T,
    session: Session | None = None,
    *,
    volatile: Volatile | None = None,
    conversation: ConversationId | None = None,
) -> T:
    """Make an agent, or a list, tuple or dict of agents, send forks of the session's shared prefix; in place.

    What most agents' system prompts have in common becomes the shared system text unless the session's prefix has
    one. ``volatile`` gives texts for one request (time, retrieval), which stand at its end; ``conversation`` is the
    id of a request's conversation, or gives it; by default its channel's or stream's. Nothing that an agent shows of
    itself changes. Without a session one is made from the configuration; ``session_of``
    finds it.

    Raises ``SetupError`` for anything else, for what is wrapped already, for two agents of one name, and for an ag2
    whose names are not those this version knows.
    """
    if not known(target):
        raise SetupError(f"wrap takes an ag2 Agent, or a list of them, {found_instead(target, several=True)}")
    check_volatile(volatile)
    check_id("conversation", conversation)
    agents = agents_in(target)
    bound = given_or_configured(session)
    names = [agent.name for agent in agents]
    for agent in agents:
        if _BINDING in vars(agent):
            raise SetupError(f"{agent.name!r} is wrapped already; unwrap it first")
        missing = [name for name in _NEEDED if not hasattr(agent, name)]
        if missing:
            raise SetupError(f"this ag2's Agent has no {missing[0]}: install ag2 1.2, or a newer cacheprefix-ag2")
    _watch()
    team_of(bound)
    double = {name for name in names if names.count(name) > 1}
    if double:
        raise SetupError(f"two agents are named {min(double)!r}; roles are told apart by name")
    bound.adopt_system(majority_text(["\n".join(agent.system_prompt) for agent in agents])[0], with_context=True)
    for agent in agents:
        _bind(agent, bound, BoundPolicy(users_session(bound), volatile=volatile, conversation=conversation))
    return target


def unwrap(target: T) -> T:
    """Take everything back. Does nothing when not wrapped."""
    for agent in agents_in(target):
        binding = getattr(agent, "__dict__", {}).pop(_BINDING, None)
        if isinstance(binding, _Binding):
            team_of(binding.session).seats.pop(agent.name, None)
    return target


def session_of(target: Any) -> Session | None:
    """The session of a wrapped agent, or of the first of several; None when it is not wrapped."""
    found = (getattr(agent, "__dict__", {}).get(_BINDING) for agent in agents_in(target))
    return next((users_session(binding.session) for binding in found if isinstance(binding, _Binding)), None)


def _bind(agent: Any, session: AdapterSession, policy: BoundPolicy) -> None:
    """Have an agent's requests laid out: its tools and role join the team, and our middleware stands innermost."""
    schemas = [tool.schema for tool in agent.tools if isinstance(tool, FunctionTool)]
    if session.mode != "observe":
        # First: where an agent is made anew, its tools are not everybody's.
        session.makes(("agent", agent.name), "\n".join(agent.system_prompt), schemas)
        adopt(session, schemas, f"agent {agent.name!r}")
    model = model_of(agent.config)
    session.join(agent.name)
    first = "\n".join(agent.system_prompt).lstrip().startswith(session.prefix.system.strip())
    team_of(session).seats[agent.name] = Seat(model, schema=schema_key(agent.response_schema), first=first)
    setattr(agent, _BINDING, _Binding(session, agent.name, Middleware(LayoutMiddleware, policy=policy)))


def _watch() -> None:
    """Let the turns of wrapped agents go through their sessions, once for all agents.

    Here every turn begins, however it was asked for. The agents themselves stay as they are: an application sees its
    own config and its own middleware, and a copy is driven by itself.
    """
    if getattr(Agent._drive_scope, _BINDING, False):
        return
    scope, subtask = Agent._drive_scope, Agent._run_subtask

    @functools.wraps(scope)
    def drive_scope(self: Any, event: Any, *, client: Any, additional_middleware: Any = (), **rest: Any) -> Any:
        own: _Binding | None = vars(self).get(_BINDING)
        found = own or (_PARENT.get() if self.name.startswith(SUBTASK) else None)
        client = _unwrapped(client)
        if found is not None:
            client = found.client(client, self.config)
            rest["additional_tools"] = tuple(rest.get("additional_tools", ()))
            if rest["additional_tools"]:
                client.lasting = frozenset(named(kept_tools(self)))
        if own is not None and own.session.mode != "observe":
            # Innermost, behind the application's own policies and middleware: what they leave is what is laid out.
            # Once, though this may have been put around itself: behind what another library put around it, or where two
            # threads wrapped the first agents at once.
            others = (one for one in tuple(additional_middleware) if one is not own.middleware)
            additional_middleware = (*others, own.middleware)
        return scope(self, event, client=client, additional_middleware=additional_middleware, **rest)

    @functools.wraps(subtask)
    async def run_subtask(self: Any, *given: Any, **named: Any) -> Any:
        token = _PARENT.set(vars(self).get(_BINDING))
        try:
            return await subtask(self, *given, **named)
        finally:
            _PARENT.reset(token)

    setattr(drive_scope, _BINDING, True)
    Agent._drive_scope, Agent._run_subtask = drive_scope, run_subtask  # type: ignore[method-assign]


def _unwrapped(client: Any) -> Any:
    """The application's own client: a reply asks by the one of its turn, whose wrapping may have been taken back."""
    return client.client if isinstance(client, PrefixClient) and not client.by_hand else client


def agents_in(target: Any) -> list[Any]:
    """The agents of what ``wrap`` takes."""
    if isinstance(target, Mapping):
        return list(target.values())
    return list(target) if isinstance(target, (list, tuple)) else [target]
