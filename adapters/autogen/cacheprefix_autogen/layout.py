"""Puts a fork's messages in order: shared text, transcript, the role's text at its place, the current turn."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autogen_core.models import LLMMessage, SystemMessage, UserMessage

from cacheprefix.adapter import AdapterSession, RequestPlan
from cacheprefix_autogen.messages import SENDER, Seen
from cacheprefix_autogen.own_rounds import Heard, in_words
from cacheprefix_autogen.tool_restriction import Restriction


@dataclass(frozen=True, slots=True)
class Layout:
    """The request as it is to be sent."""

    messages: list[LLMMessage]
    restriction: Restriction
    """The tools it carries, and how the role is kept to its own."""
    shared: int | None
    """How many messages behind the system text are shared with others; None in the application's own layout."""
    continues: bool = False
    """Whether the role's next turn may begin with this request."""

    def continued(self) -> Layout:
        """The same layout, marked as one that the role's next turn may begin with, all but ``closing``."""
        leading = sum(isinstance(one, SystemMessage) for one in self.messages[:1])
        behind = len(self.messages) - leading - bool(self.restriction.closing)
        return replace(self, shared=behind, continues=True)


def compose(
    session: AdapterSession,
    plan: RequestPlan[LLMMessage],
    heard: Heard,
    restriction: Restriction,
    known: Seen[UserMessage],
) -> Layout:
    """The fork's messages as planned, with the role's text at its place; those of the turn stay the same objects.

    Messages that only the agent has seen stand in front of its text where they are older than the text's place, else
    where they arose among the public messages: so the request only grows at its end as long as the text stays.
    """
    at, opening, closing = plan.at or 0, session.prefix.text, restriction.closing
    messages: list[LLMMessage] = [SystemMessage(content=opening)] if opening else []
    messages += heard.public[:at]
    messages += in_words([one for one in heard.own if one.at < at], known)
    messages += [UserMessage(content=plan.text, source=SENDER)] if plan.text else []
    for index in range(at, len(heard.public) + 1):
        # A turn's own messages were behind the text in the turn in which it got this place, so they stay there.
        messages += [one.message for one in heard.own if one.at == index]
        messages += heard.public[index : index + 1]
    messages += heard.now
    messages += [UserMessage(content=closing, source=SENDER)] if closing else []
    return Layout(messages, restriction, at, plan.continues)


def introduced(messages: list[LLMMessage], text: str) -> list[LLMMessage]:
    """The messages with ``text`` in front of their own system text; the very same list where there is none to add."""
    if not text:
        return messages
    # Joined to the first system message, wherever it stands, even a memory's: clients refuse system messages that are
    # not next to each other.
    for at, message in enumerate(messages):
        if isinstance(message, SystemMessage):
            joined = f"{text}\n\n{message.content}" if message.content else text
            return [*messages[:at], message.model_copy(update={"content": joined}), *messages[at + 1 :]]
    return [SystemMessage(content=text), *messages]
