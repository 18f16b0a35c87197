"""The layout of a fork: shared system text, union of tools, transcript; then the role's text and this turn's loop.

A long role text may stand further in front, where the role last had it (``Session.place``).
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent_framework import Message

from cacheprefix import Conversation, Profile, Prompt
from cacheprefix.adapter import LONG_ROLE, AdapterSession, ToolSet, digest_of, instruction_of
from cacheprefix_maf.history import History, history_of, own_history
from cacheprefix_maf.member import Member
from cacheprefix_maf.tools import plain, united


@dataclass(frozen=True, slots=True)
class Layout:
    """The request as it is to be sent."""

    messages: list[Message]
    options: Mapping[str, Any]
    tail: str = ""
    forked: bool = True
    changed: bool = True
    """Whether anything in it is not the application's own."""
    passing: bool = False
    """Whether it is in the agent's own layout only until it shares enough, and marked only where it comes again."""
    continues: bool = False
    """Whether the role's next request may begin with this one."""
    union: bool = False
    """Whether it carries the tools of all roles."""
    allowed: tuple[str, ...] | None = None
    """Tools to restrict it to by ``tool_choice``."""

    def boundary(self, prompt: Prompt) -> int | None:
        """Where the shared part ends: before the role's text."""
        if not self.forked:
            return None
        sections = prompt.sections
        found = (at for at in range(len(sections) - 1, -1, -1) if sections[at].text == self.tail)
        return next(found, len(sections)) if self.tail else len(sections)


def laid_out(
    member: Member,
    conversation: Conversation,
    messages: Sequence[Message],
    options: Mapping[str, Any],
    profile: Profile,
    model: str,
    *,
    private: bool = False,
) -> Layout:
    """The request as a fork. ``private`` says that nobody else has its history.

    The layout stays the application's for a single role, for a response schema (a lane that nobody shares), for
    instructions in a provider's own blocks, and below the provider's minimum.
    """
    session = member.session
    instructions, shared = options.get("instructions") or "", session.prefix.system.strip()
    alone = session.alone or not member.layout or (private and not shared)
    if alone or options.get("response_format") is not None or not isinstance(instructions, str):
        return _plain(member, messages, options)
    own = list(options.get("tools") or ())
    history = own_history(messages, member.name) if private else history_of(messages, member.name, member.tool_memory)
    same = {tool.name for tool in session.prefix.tools} == {getattr(tool, "name", "") for tool in own}
    union = not member.keeps_tools and all(map(plain, own)) and (same or not private)
    alike = {"tools": own} if own else {}
    lane = _lane(member, conversation, own, history, model) if union and not private else None
    union = union and (lane is None or not lane.name)
    fields, said, allowed = united(session, own, profile, options) if union else (alike, None, None)
    static = session.count(session.prefix.text, model)
    static += sum(session.count(tool.schema.decode(), model) for tool in session.prefix.tools if union)
    tail = session.tail_for(member.role, instruction_of((instructions, *history.beside), shared), tools=said)
    size = session.count(tail, model) if tail else 0
    # A short text counts: with it, the agent's own requests would soon be kept, and leaving those is paid for.
    static += size if size < LONG_ROLE else 0
    shares = (lane is None or lane.shares) and session.shares(
        conversation.id, model, lambda: static + sum(session.count(message.text, model) for message in history.shared)
    )
    # With a history of its own the role stands before that, where it is read again with every later request.
    at, continues = (0 if shares else None), private
    if not private:
        at, continues = session.place(
            conversation,
            member.role,
            tail,
            history.shared,
            model,
            digest=_digest,
            tokens=lambda message: _tokens(message, session, model),
            shared=shares,
            lane=lane.name if lane else "",
        )
    if at is None:
        return replace(_plain(member, messages, options), passing=not private)
    rest = {name: value for name, value in options.items() if name not in ("instructions", "tools")}
    system = {"instructions": session.prefix.text} if session.prefix.text else {}
    spoken = [Message("user", [tail])] if tail else []
    sent = [*history.shared[:at], *spoken, *history.shared[at:], *history.local]
    return Layout(sent, {**rest, **system, **fields}, tail, continues=continues, union=union, allowed=allowed)


def _lane(member: Member, conversation: Conversation, own: Sequence[Any], history: History, model: str) -> ToolSet:
    """The lane of the agent's tools: that of all, or that of those who have the same ones."""
    session = member.session

    def said() -> list[int]:
        return [session.count(message.text, model) for message in history.shared]

    return session.lane(conversation, member.role, [tool.name for tool in own], model, spoken=said)


def _plain(member: Member, messages: Sequence[Message], options: Mapping[str, Any]) -> Layout:
    """The agent's own layout, with the shared text where only the session knows it."""
    sent = own_history(messages, member.name, lead=False).local
    own, shared = options.get("instructions") or "", member.session.prefix.system
    if shared.strip() and isinstance(own, str) and shared.strip() not in own:
        return Layout(sent, {**options, "instructions": f"{shared}\n\n{own}" if own else shared}, forked=False)
    return Layout(sent, options, forked=False, changed=not all(map(operator.is_, sent, messages)))


def _digest(message: Message) -> str:
    said = [f"{one.type} {one.call_id or ''} {one.text or one.uri or ''}" for one in message.contents]
    return digest_of(message.role, *said)


def _tokens(message: Message, session: AdapterSession, model: str) -> int:
    parts = (one.text or str(one.arguments or one.result or "") for one in message.contents)
    return sum(session.count(part, model) for part in parts if part)
