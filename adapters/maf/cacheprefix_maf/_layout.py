"""The layout of a fork: shared system text, union of tools, transcript; then the role's text and this turn's loop."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_framework import Message

from cacheprefix.bodies import instruction_of
from cacheprefix.profiles import Profile
from cacheprefix.prompt import Prompt
from cacheprefix_maf._history import history_of, own_history
from cacheprefix_maf._member import Member
from cacheprefix_maf._tools import plain, united


@dataclass(frozen=True, slots=True)
class Layout:
    """The request as it is to be sent."""

    messages: list[Message]
    options: Mapping[str, Any]
    tail: str = ""
    forked: bool = True
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
    conversation: str,
    messages: Sequence[Message],
    options: Mapping[str, Any],
    profile: Profile,
    model: str,
    *,
    private: bool = False,
) -> Layout | None:
    """The request as a fork; None to leave it as it is. ``private`` says that nobody else has its history.

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
    fields, said, allowed = united(session, own, profile, options) if union else (alike, None, None)
    static = session.count(session.prefix.text, model)
    static += sum(session.count(tool.schema.decode(), model) for tool in session.prefix.tools if union)
    if not session.shares(
        conversation, model, lambda: static + sum(session.count(message.text, model) for message in history.shared)
    ):
        return _plain(member, messages, options)
    tail = session.tail_for(member.role, instruction_of((instructions, *history.beside), shared), tools=said)
    rest = {name: value for name, value in options.items() if name not in ("instructions", "tools")}
    system = {"instructions": session.prefix.text} if session.prefix.text else {}
    # With a history of its own the role stands before that, where it is read again with every later request.
    spoken = [Message("user", [tail])] if tail else []
    sent = [*history.shared, *spoken, *history.local]
    return Layout(sent, {**rest, **system, **fields}, tail, union=union, allowed=allowed)


def _plain(member: Member, messages: Sequence[Message], options: Mapping[str, Any]) -> Layout | None:
    """The agent's own layout, with the shared text where only the session knows it."""
    sent = own_history(messages, member.name, lead=False).local
    own, shared = options.get("instructions") or "", member.session.prefix.system
    if shared.strip() and isinstance(own, str) and shared.strip() not in own:
        return Layout(sent, {**options, "instructions": f"{shared}\n\n{own}" if own else shared}, forked=False)
    return None if all(map(operator.is_, sent, messages)) else Layout(sent, options, forked=False)
