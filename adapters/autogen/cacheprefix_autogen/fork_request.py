"""``ForkRequest``: a fork as a message, to be answered in another process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autogen_agentchat.agents import BaseChatAgent
from autogen_core import CancellationToken
from autogen_core.models import ChatCompletionClient, CreateResult, LLMMessage, SystemMessage, UserMessage
from autogen_core.tools import Tool, ToolSchema
from pydantic import BaseModel, Field

from cacheprefix import Conversation
from cacheprefix.adapter import AdapterSession, users_session
from cacheprefix.errors import SetupError
from cacheprefix_autogen.binding import binding_of
from cacheprefix_autogen.client import PrefixClient
from cacheprefix_autogen.member import Asked, Member
from cacheprefix_autogen.own_rounds import Heard
from cacheprefix_autogen.settings import PrefixSettings, session_of_settings


class ForkRequest(BaseModel):
    """All that another process needs to answer as a role on the same cached prefix.

    Crosses AutoGen's gRPC runtime as it is (AgentChat teams do not; core agents do). ``log`` holds the public
    messages in canonical form; whoever answers sends the same bytes before the role's text.
    """

    prefix: PrefixSettings
    role: str
    instruction: str = ""
    log: list[UserMessage] = Field(default_factory=list)
    conversation: dict[str, Any] = Field(default_factory=dict)
    """The decisions taken on tool results so far."""

    @classmethod
    def of(cls, agent: BaseChatAgent, *, role: str = "", instruction: str = "") -> ForkRequest:
        """A request that continues what a wrapped agent has read. Raises ``SetupError`` for other agents."""
        binding = binding_of(agent)
        member = None if binding is None else binding.member
        if member is None or member.view is None:
            raise SetupError(f"ForkRequest.of takes a wrapped agent, {agent.name!r} is not one; wrap it first")
        view = member.view
        return cls(
            prefix=member.settings(),
            role=role or agent.name,
            instruction=instruction,
            log=[form for entry in view.everything() for form in entry.forms],
            conversation=member.talk(()).to_json(),
        )

    async def answer(
        self,
        client: ChatCompletionClient,
        *,
        tools: Sequence[Tool | ToolSchema] = (),
        own: Sequence[LLMMessage] = (),
        cancellation_token: CancellationToken | None = None,
    ) -> CreateResult:
        """One answer of the role. ``own`` are the messages of its own tool loop so far."""
        session = session_of_settings(self.prefix)
        member = _LogMember(session, self.role, self.log)
        if self.conversation:
            member.own.restore(self.conversation, rebase=True)
        forked = PrefixClient(client, users_session(session), role=self.role, member=member)
        return await forked.create(
            [SystemMessage(content=self.instruction), *own], tools=tools, cancellation_token=cancellation_token
        )


class _LogMember(Member):
    """Lays out a request whose shared part came with it."""

    def __init__(self, session: AdapterSession, name: str, log: Sequence[UserMessage]) -> None:
        super().__init__(session, name)
        self._log = list(log)
        self.own = session.conversation()

    def talk(self, messages: Sequence[LLMMessage]) -> Conversation:  # noqa: ARG002 - it came with the request
        """The conversation of this one fork."""
        return self.own

    def heard(self, asked: Asked) -> Heard | None:
        """The log as the public messages, and the question as the agent's own."""
        began = UserMessage(content="", source="user")
        found = super().heard(replace(asked, rest=[began, *asked.rest]))
        return None if found is None else Heard(self._log, (), found.now)
