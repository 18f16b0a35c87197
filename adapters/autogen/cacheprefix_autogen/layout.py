"""One request laid out as a fork: shared text, tools, transcript; the role's text where it belongs; this turn."""

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
    """Messages behind the system text that siblings share; None where the messages are the application's own."""
    continues: bool = False
    """Whether the role's next turn may begin with this request."""

    def continued(self) -> Layout:
        """The same, of which the role's next turn may repeat all but what asks for this answer."""
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
    """The fork's messages as planned, the role's text where it belongs; those of the turn stay the same objects.

    What the agent alone has seen stands in front of its text where the text was put behind it, and else where it came
    to be among the public messages, so that the request only grows for as long as the text stays.
    """
    at, opening, closing = plan.at or 0, session.prefix.text, restriction.closing
    messages: list[LLMMessage] = [SystemMessage(content=opening)] if opening else []
    messages += heard.public[:at]
    messages += in_words([one for one in heard.own if one.at < at], known)
    messages += [UserMessage(content=plan.text, source=SENDER)] if plan.text else []
    for index in range(at, len(heard.public) + 1):
        # In the turn in which the text was put there, what came of that turn stood behind it.
        messages += [one.message for one in heard.own if one.at == index]
        messages += heard.public[index : index + 1]
    messages += heard.now
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
