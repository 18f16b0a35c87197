"""One request laid out as a fork: shared text, tools, transcript; the role's text where it belongs; this turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autogen_core.models import LLMMessage, SystemMessage, UserMessage

from cacheprefix import Conversation
from cacheprefix.adapter import AdapterSession, instruction_of
from cacheprefix_autogen.history import Views
from cacheprefix_autogen.messages import SENDER
from cacheprefix_autogen.provider_clients import name_of
from cacheprefix_autogen.tool_restriction import Restriction

FEW = 128
"""Tokens of conversation below which sharing it is worth less than changing requests that share the rest anyway.

As many as a role's text must have to keep its place (``cacheprefix.bodies.LONG_ROLE``).
"""

Found = tuple[int | None, bool]
"""Messages before the role's text (None for the application's own layout), and whether a next turn continues them."""


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


class RolePosition:
    """Where one agent's role text stands among the team's messages: asked once a turn, and kept during it."""

    def __init__(self) -> None:
        self.own = False
        """Whether the agent keeps its own layout although its team shares enough; goes into its saved state."""
        self._turn: tuple[tuple[object, ...], Found] | None = None

    def reset(self) -> None:
        """Forget what was decided."""
        self.own, self._turn = False, None

    def find(
        self,
        views: Views,
        conversation: Conversation,
        role: str,
        text: str,
        shared: Sequence[UserMessage],
        *,
        enough: bool,
        late: bool,
    ) -> Found:
        """The place of ``text``: the same one as long as nothing is said in the team.

        ``enough`` says that what the team shares is long enough to be cached, ``late`` that its requests begin alike
        without us, so that a fork gains only by the conversation: it is not made before there is something of it.
        """
        end = views.of(shared[-1]).digest if shared else ""
        turn = (conversation.id, role, text, views.model, len(shared), end, enough)
        if self._turn is not None and self._turn[0] == turn:
            return self._turn[1]
        # An agent that was loaded in its own layout goes on in it: what came before is in the cache like that.
        stays = self.own and self._turn is None
        few = late and sum(views.of(message).tokens for message in shared) < FEW
        found = views.session.place(
            conversation,
            role,
            text,
            shared,
            views.model,
            digest=lambda message: views.of(message).digest,
            tokens=lambda message: views.of(message).tokens,
            shared=enough and not (few or stays),
        )
        self.own = enough and found.at is None
        self._turn = turn, found
        return found


def compose(
    session: AdapterSession,
    role: str,
    texts: Sequence[str],
    shared: Sequence[UserMessage],
    local: Sequence[LLMMessage],
    restriction: Restriction,
    place: Callable[[str], Found],
) -> Layout | None:
    """The fork's messages; None for the application's own layout.

    ``texts`` are the agent's own system messages, ``shared`` the team's messages, ``local`` those of the turn under
    way, which stay the same objects. AutoGen asks an agent's memory once a turn, so its text moves out of ``local``
    into the role's text. ``place`` says where that stands.
    """
    remembered = [str(message.content) for message in local if isinstance(message, SystemMessage)]
    memory = {"memory": "\n\n".join(dict.fromkeys(remembered))} if remembered else {}
    text = session.tail_for(role, instruction_of(texts, session.prefix.system), tools=restriction.said, volatile=memory)
    at, continues = place(text)
    if at is None:
        return None
    opening, closing = session.prefix.text, restriction.closing
    messages: list[LLMMessage] = [SystemMessage(content=opening)] if opening else []
    messages += shared[:at]
    messages += [UserMessage(content=text, source=SENDER)] if text else []
    messages += shared[at:]
    messages += [message for message in local if not isinstance(message, SystemMessage)]
    messages += [UserMessage(content=closing, source=SENDER)] if closing else []
    return Layout(messages, restriction, at, continues)


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


def shared_tokens(views: Views, restriction: Restriction, shared: Sequence[UserMessage]) -> int:
    """Tokens that a request shares with its siblings' beside the prefix's own text."""
    carried = {name_of(tool) for tool in restriction.tools}
    tools = [tool for tool in views.session.prefix.tools if tool.name in carried]
    return sum(views.count(_text(one)) for one in shared) + sum(views.count(tool.schema.decode()) for tool in tools)


def _text(message: UserMessage) -> str:
    content = message.content
    return content if isinstance(content, str) else " ".join(part for part in content if isinstance(part, str))
