"""Lays a request out as a fork: shared system text, union of tools, transcript; then the role's text and tool loop.

The core's planner decides whether it is a fork, which tools it carries and where the role's text stands.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from agent_framework import Content, Message

from cacheprefix import Conversation, Prompt
from cacheprefix.adapter import (
    AdapterSession,
    AgentRequest,
    Api,
    CountedHistory,
    OwnTools,
    Reason,
    RequestPlan,
    digest_of,
    find_text,
    for_own_tools,
    instruction_of,
    list_refused,
    overlaid,
    provider_tools,
    reason,
)
from cacheprefix.wire import asks
from cacheprefix_maf.history import history_of, own_history, thinks
from cacheprefix_maf.member import Member
from cacheprefix_maf.tools import carried, differing, plain

OBSERVED: RequestPlan[Message] = RequestPlan("observed", ())
"""The plan of a request that is only measured."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The request as it is to be sent."""

    messages: list[Message]
    options: Mapping[str, Any]
    plan: RequestPlan[Message] = OBSERVED
    """What the planner decided, with its reasons."""
    changed: bool = True
    """Whether it differs from the application's own request."""
    passing: bool = False
    """Whether costs decided for the agent's own layout, which may change: it is marked only where it repeats."""

    @property
    def tail(self) -> str:
        """The role's text as it is sent; empty in the agent's own layout."""
        return self.plan.text if self.plan.forks else ""

    @property
    def union(self) -> bool:
        """Whether it carries the tools of all roles."""
        return self.plan.forks and self.plan.tools is not None and not self.plan.tools.name

    def boundary(self, prompt: Prompt) -> int | None:
        """How many sections of the prompt are shared, up to the role's text; None where it is no fork."""
        if not self.plan.forks:
            return None
        found = prompt.last_of(self.tail)
        return len(prompt.sections) if found is None else found


def laid_out(
    member: Member,
    conversation: Conversation,
    messages: Sequence[Message],
    options: Mapping[str, Any],
    api: Api,
    model: str,
    *,
    private: bool = False,
    over: Mapping[str, Any] = MappingProxyType({}),
) -> Layout:
    """Lay a request out as a fork, or in the application's own layout. ``private``: no other role has its history.

    The layout stays the application's for a single role, for a response schema (which stands in front of the prompt,
    so that nobody shares it), for instructions in a provider's own blocks, and below the provider's minimum.
    ``over`` are the fields that the application puts over the finished body.
    """
    session = member.session
    instructions, shared = options.get("instructions") or "", session.prefix.system.strip()
    refused = _refused(member, options, over, alone=session.alone or (private and not shared))
    # A chat's instructions are one of its messages.
    leads = (api == "openai-chat" and bool(instructions)) or any(one.role == "system" for one in messages)
    own = list(options.get("tools") or ())
    # Provider's rule: where thoughts are bound to what stood before them, those of an earlier turn, in front of which
    # the role's text has moved since, are refused.
    thoughts = not session.profile(model).thinking_bound
    history = (
        own_history(messages, member.name)
        if private
        else history_of(messages, member.name, member.tool_memory, thoughts=thoughts)
    )
    names = tuple(getattr(tool, "name", "") for tool in own)
    same = {tool.name for tool in session.prefix.tools} == set(names)
    forced = for_own_tools(options.get("tool_choice"), names, session.prefix.tool_names)
    differ = member.differing or differing(session, own)
    united = not (refused or forced or differ) and all(map(plain, own)) and (same or not private)
    free = options.get("tool_choice") in (None, "auto", {"mode": "auto"})
    texts = (instructions, *history.beside) if isinstance(instructions, str) else ()
    span = find_text(shared, instructions) if texts else None

    def tokens(message: Message) -> int:
        return _tokens(message, session, model)

    run = None
    if member.run is not None and united and not (private or own):
        run = member.run.ahead(member.role, session, model)
    plan = session.plan(
        AgentRequest(
            member.role,
            model,
            conversation,
            instruction_of(texts, shared),
            lambda _: CountedHistory(history.shared, _digest, tokens, history.local, _joined),
            spoken=lambda behind: [session.count(message.text, model) for message in history.shared[behind:]],
            api=api,
            shared_at=None if span is None else len(instructions[: span[0]].strip()),
            tools=OwnTools(names, carried="union" if private else "open", free=free, differ=()) if united else None,
            known=(*_known(own, forced=forced), *(reason("tool_schema_differs", name) for name in differ)),
            holds_shared=session.holds_shared((*texts, *(one.text for one in messages if one.role == "user"))),
            own=refused,
            asks=asks((_only_text(one) for one in messages if one.role != "system"), system=leads),
            # A private history is shared with nobody: the role's text stands in front of it, and is read from the cache
            # with every later request.
            place="front" if private else "cheapest",
            # What only the agent has seen stands behind its text: when that moves, it is paid uncached again.
            moves=sum(tokens(message) for _, message in history.private),
            text_counts=True,
            alike=run is not None and member.run is not None and member.run.alike(shared),
            ahead=run,
        )
    )
    if plan.at is None:
        # Where costs decided (not ``refused``), a later request may be a fork: this one is marked only if it repeats.
        own_alone = bool(private or refused or plan.unasked)
        return replace(_plain(member, messages, options), plan=plan, passing=not own_alone)
    rest = {name: value for name, value in options.items() if name not in ("instructions", "tools")}
    system = {"instructions": session.prefix.text} if session.prefix.text else {}
    spoken = [Message("user", [plan.text])] if plan.text else []
    sent = [*history.shared[: plan.at], *spoken, *history.behind(plan.at)]
    fields = carried(session, own, plan, free=free)
    return Layout(sent, {**rest, **system, **fields}, plan)


def without_list(member: Member, messages: Sequence[Message], options: Mapping[str, Any]) -> Layout:
    """The application's own layout of a request whose list of allowed tools the endpoint refused."""
    return replace(_plain(member, messages, options), plan=list_refused())


def _known(tools: Sequence[Any], *, forced: bool) -> tuple[Reason, ...]:
    """The reasons for which a request carries its own tools: those that the provider defines, and a forced call."""
    # OpenAI's custom tools take free text, and the application defines them.
    found = provider_tools(kind for kind in map(_kind, tools) if kind not in ("", "custom"))
    return (*found, reason("forced_tool")) if forced else found


def _kind(tool: Any) -> str:
    """What a tool that is no function of the application's is called: its declared type; empty for a function."""
    # A function that runs a tool of the provider's (a local shell) has the tool's type as its kind.
    declared = tool.get("type") if isinstance(tool, Mapping) else getattr(tool, "kind", None)
    return "" if plain(tool) else declared if isinstance(declared, str) else type(tool).__name__


def _refused(member: Member, options: Mapping[str, Any], over: Mapping[str, Any], *, alone: bool) -> tuple[Reason, ...]:
    """Why the request keeps its own layout whatever it costs; empty where costs decide."""
    if not member.layout:
        return (reason("own_prompt", "an orchestrator's"),)
    if alone:
        return (reason("alone"),)
    if options.get("response_format") is not None:
        return (reason("response_schema"),)
    if not isinstance(options.get("instructions") or "", str):
        return (reason("own_prompt", "instructions in blocks"),)
    return overlaid(over)


def _plain(member: Member, messages: Sequence[Message], options: Mapping[str, Any]) -> Layout:
    """The agent's own layout, with the text that was given to the session alone in front of its instructions."""
    sent = own_history(messages, member.name, lead=False).local
    own = options.get("instructions") or ""
    said = (own, *(one.text for one in messages if one.role in ("system", "user"))) if isinstance(own, str) else ()
    if said and (shared := member.session.unsaid(said, member.role)):
        return Layout(sent, {**options, "instructions": f"{shared}\n\n{own}" if own else shared})
    return Layout(sent, options, changed=not all(map(operator.is_, sent, messages)))


def _only_text(message: Message) -> str | None:
    """The text of a message that is nothing else; None where it has calls, results, pictures or whatever more."""
    return message.text if all(one.type == "text" for one in message.contents) else None


def _digest(message: Message) -> str:
    """The same for two messages that say the same, their calls and results among it."""
    said = [f"{one.type} {one.call_id or ''} {one.uri or _said(one)}" for one in message.contents]
    return digest_of(message.role, *said)


def _joined(before: Message, behind: Message) -> bool:
    """Whether a provider refuses a text between two messages: a call or a thought, and what came of it."""
    held = any(one.type == "function_result" for one in behind.contents)
    return held or behind.role == "tool" or thinks(before)


def _tokens(message: Message, session: AdapterSession, model: str) -> int:
    return sum(session.count(said, model) for said in map(_said, message.contents) if said)


def _said(part: Content) -> str:
    """What a part of a message says: its text, or a call's arguments, or a result."""
    return part.text or str(part.arguments or part.result or "")
