"""What a team's agents will ask first, before anything is sent: their own code runs up to where a request would go out.

All of it happens on copies of the agents, with clients that cannot send; no tool, memory or server is asked.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from autogen_agentchat.agents import AssistantAgent, BaseChatAgent, SocietyOfMindAgent
from autogen_agentchat.messages import BaseChatMessage, TextMessage
from autogen_agentchat.teams import BaseGroupChat, MagenticOneGroupChat, SelectorGroupChat
from autogen_agentchat.tools import AgentTool, TeamTool
from autogen_core import BaseAgent, CancellationToken
from autogen_core.models import ChatCompletionClient, ModelFamily, SystemMessage, UserMessage

from cacheprefix import Session
from cacheprefix.adapter import AdapterSession, Preview, Unsent, preview_of, rehearsed, unsent_client
from cacheprefix_autogen.agent import clients_of, runners_of, tools_of
from cacheprefix_autogen.binding import Binding, binding_of
from cacheprefix_autogen.client import PrefixClient
from cacheprefix_autogen.front_door import bind
from cacheprefix_autogen.managers import SelectorMember
from cacheprefix_autogen.member import Options
from cacheprefix_autogen.provider_clients import api_of
from cacheprefix_autogen.sending import SENDING, ending

_OWN = ("autogen_", "cacheprefix_autogen")
"""Packages whose code has no effects before a request."""


def preview(target: object, session: Session, task: object = None) -> Preview | None:
    """The first requests of a team's or an agent's models, as ``wrap`` would have them sent; None for anything else.

    ``task`` is what ``run`` takes: a text, a message or several.
    """
    if isinstance(target, BaseAgent):
        held = ", ".join(clients_of(target)) or "none that can be seen"
        note = f"{type(target).__name__}: what it asks its model clients ({held}) is known in the run alone"
        return preview_of(session.adapter.rehearsal(), [note])
    if not isinstance(target, (BaseChatAgent, BaseGroupChat)):
        return None
    known = binding_of(target)
    options = Options() if known is None or known.group is None else known.group.options
    said = _messages(task)
    return rehearsed(session.adapter, lambda dry, notes: _DryRun(dry, options, said, notes).played(target))


def _messages(task: object) -> list[BaseChatMessage]:
    if isinstance(task, BaseChatMessage):
        return [task]
    if isinstance(task, (list, tuple)):
        return [one for one in task if isinstance(one, BaseChatMessage)]
    return [TextMessage(content=task if isinstance(task, str) else "", source="user")]


class _DryRun:
    """One preview: the copies that it is made with, and what is not known before a run."""

    def __init__(
        self, session: AdapterSession, options: Options, task: list[BaseChatMessage], notes: list[str]
    ) -> None:
        self.session, self.options, self.task, self.notes = session, options, task, notes
        self._clients: dict[int, ChatCompletionClient] = {}

    async def played(self, target: BaseChatAgent | BaseGroupChat) -> None:
        """Bind a copy of the target and let each of its agents come to its first request."""
        made = self._copied(target)
        binding = bind(made, self.session, self.options)
        await self._asked(binding, self.task)
        if len(self.session.shared.totals.calls) > 1:
            self.notes.append("what agents answer is not known before the run, and not counted in what others read")

    # ------------------------------------------------------------------ copies

    def _copied(self, target: Any) -> Any:
        """A copy that shares nothing with the application's object which binding it could change."""
        made = copy.copy(target)
        # A copy of what is wrapped is made of the object as it was.
        if isinstance(target, BaseGroupChat):
            made._participants = [self._copied(one) for one in target._participants]
            vars(made)["_runtime"] = None  # what was said so far stays with the original
            if isinstance(target, SelectorGroupChat) and (target._selector_func or target._candidate_func):
                self.notes.append(f"{target.name}: whom its own functions leave to choose from is known at its turn")
        for name in ("_wrapped_agent", "_team", "inner"):
            if isinstance(vars(made).get(name), (BaseChatAgent, BaseGroupChat)):
                setattr(made, name, self._copied(vars(made)[name]))
        client = vars(made).get("_model_client")
        if isinstance(client, ChatCompletionClient):
            made._model_client = self._unsent(client)
        context = vars(made).get("_model_context")
        if context is not None:
            made._model_context = context = copy.deepcopy(context)
            if getattr(context, "_messages", None):
                context._messages = list(getattr(context, "_initial_messages", None) or ())
        if vars(made).get("_memory"):
            made._memory = None
            self.notes.append(f"{made.name}: what its memory adds is known when it is asked, and not counted")
        if vars(made).get("_workbench"):
            made._workbench = self._benches(made)
        return made

    def _benches(self, agent: Any) -> list[Any]:
        """An agent's tools, without those that only a server knows; agents among them are copied as others are."""
        found = []
        for bench in agent._workbench:
            if not hasattr(bench, "_tools") or not type(bench).__module__.startswith(_OWN):
                self.notes.append(f"{agent.name}: the tools of its {type(bench).__name__} are known at its first turn")
                continue
            made = copy.copy(bench)
            made._tools = [self._tool(tool) for tool in bench._tools]
            found.append(made)
        return found

    def _tool(self, tool: Any) -> Any:
        """A tool; of one that asks an agent or a team, a copy that asks the copy of that."""
        if not isinstance(tool, (AgentTool, TeamTool)):
            return tool
        made: Any = copy.copy(tool)
        made._task_runner = self._copied(made._task_runner)
        return made

    def _unsent(self, client: Any) -> ChatCompletionClient:
        """A client that makes its requests and never sends them; one for each, as agents share theirs."""
        while not hasattr(client, "_client") and isinstance(getattr(client, "client", None), ChatCompletionClient):
            client = client.client
        if id(client) not in self._clients:
            made: Any = copy.copy(client)
            if api_of(client) is None:
                # Its requests cannot be seen on their way. Only their arguments' names are looked at.
                for name in ("create", "create_stream"):
                    vars(made)[name] = functools.wraps(getattr(client, name))(_ended)
            else:
                made._client = unsent_client(client._client, _seen)
            self._clients[id(client)] = made
        return self._clients[id(client)]

    # ------------------------------------------------------------------ first requests

    async def _asked(self, binding: Binding, task: Sequence[BaseChatMessage]) -> None:
        """Every agent of a binding asks once, in the order of the participants; a selector before them."""
        target: Any = binding.patches.target
        if isinstance(target, BaseGroupChat):
            await self._manager(target, task)
        if binding.member is not None:
            await self._agent(binding, target, task)
        tools = {id(runner) for each in (binding, *binding.inner) for runner in runners_of(each.patches.target)}
        for inner in binding.inner:
            one: Any = inner.patches.target
            heard = task
            if id(one) in tools:
                self.notes.append(f"{one.name}: works as a tool, and its task is known when it is called")
                heard = [TextMessage(content="", source="user")]
            await self._asked(inner, heard)

    async def _agent(self, binding: Binding, agent: Any, task: Sequence[BaseChatMessage]) -> None:
        """Let an agent come to its first request; for one of which that is not known, a note that says why."""
        client, member = getattr(agent, "_model_client", None), binding.member
        if not isinstance(client, PrefixClient) or member is None:
            held = ", ".join(clients_of(agent))
            when = f"what it asks by {held} is known in the run alone" if held else "asks no model that is known before"
            self.notes.append(f"{agent.name}: {when}")
            return
        known = type(agent).on_messages_stream is AssistantAgent.on_messages_stream
        known = known and type(member.context).__module__.startswith(_OWN)
        with suppress(Unsent):
            if known:
                async with ending(agent.on_messages_stream(task, CancellationToken())) as items:
                    async for _ in items:
                        pass
                return
            self.notes.append(f"{agent.name}: {_why(agent)}, so only its role, tools and the task are counted")
            said = [one.to_model_message() for one in task]
            await client.create([*_system(agent), *said], tools=tools_of(agent))

    async def _manager(self, team: BaseGroupChat, task: Sequence[BaseChatMessage]) -> None:
        """Let a team's selector come to its first request; a note for an orchestrator."""
        client = getattr(team, "_model_client", None)
        if isinstance(team, MagenticOneGroupChat):
            self.notes.append(
                "the orchestrator's requests follow from what it is answered and are not counted; agents hear the task "
                "in its words, and are counted with the task itself"
            )
        if not isinstance(team, SelectorGroupChat) or not isinstance(client, PrefixClient):
            return
        member, names = client.member, list(team._participant_names)
        if not isinstance(member, SelectorMember) or len(names) < 2:
            return
        # As AutoGen 0.7's SelectorGroupChatManager words it.
        roles = "\n".join(
            " ".join(f"{name}: {one.description}".split()) for name, one in zip(names, team._participants, strict=True)
        )
        member.observe(task)
        asked = team._selector_prompt.format(roles=roles, participants=str(names), history=member.said)
        family = client.model_info["family"]
        message = (
            SystemMessage(content=asked) if ModelFamily.is_openai(family) else UserMessage(content=asked, source="user")
        )
        with suppress(Unsent):
            await client.create([message])


def _seen() -> None:
    """A request is where it would be sent: it counts as the provider's rules let expect."""
    sending = SENDING.get()
    if sending is not None:
        sending.answered(None)


def _ended(*_: object, **__: object) -> Any:
    """Stands in for a client's method: the request is where it would be sent."""
    _seen()
    raise Unsent


def _system(agent: Any) -> list[SystemMessage]:
    """What an agent says of its role, as far as its attributes tell."""
    found = getattr(agent, "_system_messages", None)
    if found is None and isinstance(agent, SocietyOfMindAgent):
        return [SystemMessage(content=agent._instruction)]
    return list(found or ())


def _why(agent: Any) -> str:
    """Why an agent's first request is not known before the run."""
    if isinstance(agent, SocietyOfMindAgent):
        return "what it asks follows from what its team said"
    return f"what a {type(agent).__name__} asks is known at its first turn"
