"""One request laid out as a fork: shared text, tools, transcript; the role's text where it belongs; this turn."""

from __future__ import annotations

from dataclasses import dataclass

from autogen_core.models import LLMMessage, SystemMessage, UserMessage

from cacheprefix.adapter import AdapterSession, RequestPlan
from cacheprefix_autogen.messages import SENDER
from cacheprefix_autogen.tool_restriction import Restriction


@dataclass(frozen=True, slots=True)
class Layout:
    """The request as it is to be sent."""

    messages: list[LLMMessage]
    restriction: Restriction
    """The tools it carries, and how the role is kept to its own."""
    shared: int | None
    """Messages behind the system text that siblings share; None where the messages are the application's own."""
    continues: bool = False
    """Whether the role's next turn may begin with this request."""


def compose(session: AdapterSession, plan: RequestPlan[LLMMessage], restriction: Restriction) -> Layout:
    """The fork's messages as planned, the role's text where it belongs; those of the turn stay the same objects."""
    at, said = plan.at or 0, plan.history
    opening, closing = session.prefix.text, restriction.closing
    messages: list[LLMMessage] = [SystemMessage(content=opening)] if opening else []
    messages += said[:at]
    messages += [UserMessage(content=plan.text, source=SENDER)] if plan.text else []
    messages += said[at:]
    messages += [UserMessage(content=closing, source=SENDER)] if closing else []
    return Layout(messages, restriction, at, plan.continues)


def introduced(messages: list[LLMMessage], text: str) -> list[LLMMessage]:
    """The messages with ``text`` in front of their own system text; the very same list where there is none to add."""
    if not text:
        return messages
    # Wherever the first one stands, a memory's too: clients refuse system messages that do not follow each other.
    for at, message in enumerate(messages):
        if isinstance(message, SystemMessage):
            joined = f"{text}\n\n{message.content}" if message.content else text
            return [*messages[:at], message.model_copy(update={"content": joined}), *messages[at + 1 :]]
    return [SystemMessage(content=text), *messages]
