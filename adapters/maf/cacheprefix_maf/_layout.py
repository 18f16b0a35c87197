"""The layout of a fork: shared system text, union of tools, transcript; then the role's text and this turn's loop."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_framework import Message

from cacheprefix import Conversation
from cacheprefix.profiles import Profile
from cacheprefix.prompt import Prompt
from cacheprefix_maf._history import History, condensed, history_of, nameless
from cacheprefix_maf._member import Member
from cacheprefix_maf._tools import united


@dataclass(frozen=True, slots=True)
class Layout:
    """The request as it is to be sent."""

    messages: list[Message]
    options: Mapping[str, Any]
    tail: str = ""
    forked: bool = True

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
) -> Layout | None:
    """The request as a fork; None to leave it as it is.

    The layout stays the application's for a single role, for a response schema (a lane that nobody shares), for
    instructions in a provider's own blocks, and below the provider's minimum; large results are shortened there too.
    """
    return _forked(member, conversation, messages, options, profile, model) or _plain(
        member, conversation, messages, options, model
    )


def _plain(
    member: Member, conversation: Conversation, messages: Sequence[Message], options: Mapping[str, Any], model: str
) -> Layout | None:
    given = [nameless(message, member.name) for message in messages]
    done = condensed(member.session, conversation, History((), [], given), model, 0)
    sent = [*done.shared, *done.local]
    same = len(sent) == len(messages) and all(map(operator.is_, sent, messages))
    return None if same else Layout(sent, options, forked=False)


def _forked(
    member: Member,
    conversation: Conversation,
    messages: Sequence[Message],
    options: Mapping[str, Any],
    profile: Profile,
    model: str,
) -> Layout | None:
    session = member.session
    instructions = options.get("instructions") or ""
    alone = session.alone or not member.layout
    if alone or options.get("response_format") is not None or not isinstance(instructions, str):
        return None
    own = list(options.get("tools") or ())
    fields, said = united(member, own, profile, options)
    static = session.count(session.prefix.text, model)
    static += sum(session.count(tool.schema.decode(), model) for tool in session.prefix.tools)
    history = condensed(session, conversation, history_of(messages, member.name, member.tool_memory), model, static)
    shared = session.prefix.system.strip()
    texts = [text.replace(shared, "", 1).strip() if shared else text for text in (instructions, *history.beside)]
    tail = session.tail_for(member.role, "\n\n".join(dict.fromkeys(text for text in texts if text)), tools=said)
    if not session.shares(
        conversation.id, model, lambda: static + sum(session.count(message.text, model) for message in history.shared)
    ):
        return None
    rest = {name: value for name, value in options.items() if name not in ("instructions", "tools")}
    system = {"instructions": session.prefix.text} if session.prefix.text else {}
    spoken = [Message("user", [tail])] if tail else []
    return Layout([*history.shared, *spoken, *history.local], {**rest, **system, **fields}, tail)
