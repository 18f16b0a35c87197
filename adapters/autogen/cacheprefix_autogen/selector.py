"""The selector's prompt as a fork: the conversation first, the participants and the question last."""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import Formatter
from typing import Any

from autogen_agentchat.messages import BaseChatMessage, HandoffMessage
from autogen_core.models import AssistantMessage, LLMMessage, SystemMessage, UserMessage

from cacheprefix import Session
from cacheprefix_autogen.layout import Layout, Request, restrict
from cacheprefix_autogen.member import Member, Options
from cacheprefix_autogen.provider_clients import model_of
from cacheprefix_autogen.public_messages import SENDER
from cacheprefix_autogen.transcript import Transcript, View
from cacheprefix_autogen.who_shares import worth_joining

ABOVE = "(the conversation above)"
"""Stands where the selector's own prompt would repeat the history."""


class SelectorMember(Member):
    """Lays out the selection calls of a ``SelectorGroupChat``, whose own logic stays as it is."""

    def __init__(
        self, session: Session, transcript: Transcript, template: str, models: Sequence[str], options: Options
    ) -> None:
        super().__init__(session, "selector", View(transcript), options=options)
        self._template = template
        self._pattern = pattern_of(template)
        self._models = tuple(models)
        self._said: list[str] = []
        """The conversation as AutoGen's own prompt has it, message by message."""

    def _worth(self, model: str, opening: int) -> bool:
        session = self.session
        carried = session.count(session.prefix.text, model)
        carried += sum(session.count(tool.schema.decode(), model) for tool in session.prefix.tools)
        read = session.profile(model).read
        return worth_joining(carried=carried, opening=opening, speakers=len(self._models), read=read)

    def observe(self, thread: Sequence[Any]) -> None:
        """Take in the team's messages as the manager has them."""
        messages = [message for message in thread if isinstance(message, BaseChatMessage)]
        self._said = [line for message in messages for line in _lines(message)]
        if self.view is not None:
            self.view.receive(messages)

    def layout(self, client: Any, given: Request) -> Layout | None:
        """The selector's question behind the shared transcript; None where the prompt is not AutoGen's.

        None also where it holds another conversation than the team's: a context of the application's has bounded it,
        or knows more.
        """
        session = self.session
        found = None if self.bounded else self._question(given.messages)
        if found is None or self.view is None or not self.view.entries:
            return None
        model = model_of(client)
        shared = self.view.forms()

        def tokens() -> int:
            return sum(session.count(str(form.content), model) for form in shared)

        if self.joins is None:
            self.joins = model in self._models and self._worth(model, tokens())
        messages: list[LLMMessage] = [*shared, UserMessage(content=found, source=SENDER), *given.messages[1:]]
        if not self.joins:
            # Another model reads nothing of the agents' cache, and a large system text costs more than it saves.
            layout = Layout(messages, given.tools, given.tool_choice, len(shared))
        else:
            restriction = restrict(session, session.profile(model), given, (), self.name)
            if session.prefix.text:
                messages.insert(0, SystemMessage(content=session.prefix.text))
            layout = Layout(messages, restriction.tools, restriction.tool_choice, len(shared), restriction.allowed, ())
        return layout if session.shares(self.conversation, model, tokens) else None

    def _holds(self, history: str | None) -> bool:
        """Whether AutoGen's own prompt holds the team's messages and nothing else."""
        if history is None or history == "\n".join(self._said):
            return history is not None
        # AutoGen appends the thread once more where it loads into a team that has run.
        rest = history
        for line in sorted(set(self._said), key=len, reverse=True):
            if line not in history:
                return False
            rest = rest.replace(line, "")
        return not rest.strip()

    def _question(self, messages: Sequence[LLMMessage]) -> str | None:
        first = messages[0].content if messages else None
        match = self._pattern.fullmatch(first) if isinstance(first, str) else None
        if match is None:
            return None
        found = match.groupdict()
        if not self._holds(found.get("history")):
            return None
        fields: dict[str, str] = {name: found[name] for name in ("roles", "participants") if name in found}
        return self._template.format_map(_Fields(fields))


def _lines(message: BaseChatMessage) -> list[str]:
    """A message in the selector's prompt, behind what a hand-off carries with it."""
    context = message.context if isinstance(message, HandoffMessage) else []
    given = [one for one in (*context, message.to_model_message()) if isinstance(one, (UserMessage, AssistantMessage))]
    return [f"{one.source}: {one.content}".rstrip() + "\n\n" for one in given]


class _Fields(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return ABOVE


def pattern_of(template: str) -> re.Pattern[str]:
    """Reads the fields back out of a prompt that was made from ``template``."""
    parts: list[str] = []
    seen: set[str] = set()
    for literal, name, _, _ in Formatter().parse(template):
        parts.append(re.escape(literal))
        if name is not None:
            parts.append(f"(?P={name})" if name in seen else f"(?P<{name}>.*)")
            seen.add(name)
    return re.compile("".join(parts), re.DOTALL)
