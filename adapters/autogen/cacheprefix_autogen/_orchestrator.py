"""Magentic-One's orchestrator: its requests are forked only where that is cheaper than leaving them."""

from __future__ import annotations

from typing import Any

from cacheprefix import Session

from cacheprefix_autogen._layout import Layout, Request
from cacheprefix_autogen._member import Member
from cacheprefix_autogen._transcript import Transcript, View


class OrchestratorMember(Member):
    """Leaves the orchestrator's requests as they are.

    Its ledger calls carry a response schema and so share among themselves and with nobody else; the facts
    and the plan come before any agent has spoken.
    """

    def __init__(self, session: Session, transcript: Transcript) -> None:
        super().__init__(session, "orchestrator", View(transcript), alone=True)

    def layout(self, client: Any, given: Request) -> Layout | None:
        """The application's own messages."""
        return super().layout(client, given)
