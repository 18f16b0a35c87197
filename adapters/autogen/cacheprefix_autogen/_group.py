"""Agents that share a conversation: a team's participants, or one agent by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autogen_agentchat.messages import BaseChatMessage

from cacheprefix import Session
from cacheprefix_autogen._budget import shortener
from cacheprefix_autogen._member import Member
from cacheprefix_autogen._transcript import Entry, Transcript


class Group:
    """The members of one conversation, its transcript, and what is settled before their first turn."""

    def __init__(self, session: Session, *, adopt: Callable[[Group, Member, Sequence[Any]], None]) -> None:
        self.session = session
        self.transcript = Transcript()
        self.transcript.shorten = shortener(session, self.transcript)
        self.members: list[tuple[Any, Member]] = []
        self.callers: list[Member] = []
        """Members that no agent stands behind: a selector."""
        self.loaded: dict[str, Entry] = {}
        """Entries of a team's saved state, until its members have taken theirs."""
        self.team = False
        """Whether the entries stand in the team's state rather than in each agent's."""
        self._adopt = adopt
        self._prepared = False

    async def enter(self, member: Member, messages: Sequence[BaseChatMessage]) -> None:
        """A member's turn begins; when that fails, its requests stay the application's own until it is reset."""
        try:
            if not self._prepared:
                self._prepared = True
                await self._ask_workbenches()
            await member.enter(messages)
        except Exception as error:
            member.broken = True
            self._report("turn", error)

    def leave(self, member: Member, message: BaseChatMessage | None) -> None:
        """A member's turn is over."""
        try:
            member.leave(message)
        except Exception as error:
            member.broken = True
            self._report("turn", error)

    async def _ask_workbenches(self) -> None:
        """Tools of servers are known only by asking; their union has to stand before the first request."""
        if self.session.mode == "observe":
            return
        for agent, member in self.members:
            listed = []
            for workbench in getattr(agent, "_workbench", None) or []:
                if not hasattr(workbench, "_tools"):
                    listed += await workbench.list_tools()
            if listed and not member.alone:
                self._adopt(self, member, listed)

    def _report(self, step: str, error: Exception) -> None:
        def fail() -> None:
            raise error

        self.session.attempt(step, fail, None)
