"""Where an agent's role text stands among the messages of the team: asked once a turn, and kept during it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from autogen_core.models import LLMMessage, UserMessage

from cacheprefix import Conversation, Session
from cacheprefix.prompt import MessageView
from cacheprefix_autogen.history import view_of
from cacheprefix_autogen.memory_of_messages import Seen

FEW = 128
"""Tokens of conversation below which sharing it is worth less than changing requests that share the rest anyway."""

Found = tuple[int | None, bool]
"""Messages before the role's text (None for the application's own layout), and whether a next turn continues them."""


class Placing:
    """The place of one agent's role text; ``own`` goes into its saved state."""

    def __init__(self) -> None:
        self.own = False
        """Whether the agent keeps its own layout although its team shares enough."""
        self._turn: tuple[tuple[object, ...], Found] | None = None

    def reset(self) -> None:
        """Forget what was decided."""
        self.own, self._turn = False, None

    def place(
        self,
        session: Session,
        conversation: Conversation,
        role: str,
        text: str,
        shared: Sequence[UserMessage],
        model: str,
        seen: Seen[MessageView],
        *,
        enough: bool,
        late: bool,
    ) -> Found:
        """The place of ``text``: the same one as long as nothing is said in the team.

        ``enough`` says that what the team shares is long enough to be cached, ``late`` that its requests begin alike
        without us, so that a fork gains only by the conversation: it is not made before there is something of it.
        """

        def view(message: LLMMessage) -> MessageView:
            return seen.of(message, partial(view_of, count=lambda text: session.count(text, model)))

        end = view(shared[-1]).digest if shared else ""
        turn = (conversation.id, role, text, model, len(shared), end, enough)
        if self._turn is not None and self._turn[0] == turn:
            return self._turn[1]
        # An agent that was loaded in its own layout goes on in it: what came before is in the cache like that.
        stays = self.own and self._turn is None
        few = late and sum(view(message).tokens for message in shared) < FEW
        found = session.place(
            conversation,
            role,
            text,
            shared,
            model,
            digest=lambda message: view(message).digest,
            tokens=lambda message: view(message).tokens,
            shared=enough and not (few or stays),
        )
        self.own = enough and found.at is None
        self._turn = turn, found
        return found
