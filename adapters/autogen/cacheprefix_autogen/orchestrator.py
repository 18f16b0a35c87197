"""Magentic-One's orchestrator: its own messages, marked for the cache where they will be read again."""

from __future__ import annotations

from typing import Any

from cacheprefix import Session
from cacheprefix_autogen.layout import Layout, Request
from cacheprefix_autogen.member import Member, Options
from cacheprefix_autogen.public_messages import lead
from cacheprefix_autogen.transcript import Transcript, View


class OrchestratorMember(Member):
    """Leaves the orchestrator's messages as they are.

    Its ledger calls carry a response schema and so share among themselves and with nobody else; the facts
    and the plan come before any agent has spoken. As forks of the agents' prefix they cost more at half price
    reads. Every call ends with a question that stands there once, so what is kept ends before it.
    """

    def __init__(self, session: Session, transcript: Transcript, options: Options) -> None:
        super().__init__(session, "orchestrator", View(transcript), alone=True, options=options)

    def layout(self, client: Any, given: Request) -> Layout | None:  # noqa: ARG002 - the base class's signature
        """The application's own messages, all but the last kept in the cache."""
        rest = lead(given.messages)[1]
        if len(rest) < 2:
            return None
        return Layout(list(given.messages), given.tools, given.tool_choice, len(rest) - 1, permitted=())
