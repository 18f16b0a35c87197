"""``ForkAgent``: an agent around another one, for teams built by configuration."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from autogen_agentchat.agents import BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import BaseChatMessage
from autogen_core import CancellationToken, Component, ComponentModel
from pydantic import BaseModel
from typing_extensions import Self

from cacheprefix import Session
from cacheprefix.adapter import given_or_configured, users_session
from cacheprefix_autogen.agent import StandIn
from cacheprefix_autogen.front_door import wrap
from cacheprefix_autogen.sending import ending
from cacheprefix_autogen.settings import PrefixSettings, session_of_settings, settings_of


class ForkAgentConfig(BaseModel):
    """What a ``ForkAgent`` is built from; agents with the same ``prefix`` settings share a session."""

    agent: ComponentModel
    prefix: PrefixSettings = PrefixSettings()


class ForkAgent(StandIn, Component[ForkAgentConfig]):
    """Answers as the agent it was given does, with that agent's requests as forks of the session's prefix.

    The given agent is copied and stays as it is. Agents in different teams or processes share what they
    have read as soon as their sessions have the same system text and tools: the layout is a pure function
    of the messages. ``wrap`` on the whole team does the same and also sees the order of parallel branches.
    """

    component_config_schema = ForkAgentConfig
    component_provider_override = "cacheprefix_autogen.ForkAgent"

    def __init__(self, agent: BaseChatAgent, session: Session | None = None) -> None:
        super().__init__(agent.name, agent.description)
        self._bound = given_or_configured(session)
        self._given = agent
        self.inner = wrap(agent, users_session(self._bound), copy=True)

    @property
    def session(self) -> Session:
        """The session whose prefix the requests extend."""
        return users_session(self._bound)

    @property
    def produced_message_types(self) -> Sequence[type[BaseChatMessage]]:
        """The wrapped agent's."""
        return self.inner.produced_message_types

    async def on_messages(self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken) -> Response:
        """The wrapped agent's answer."""
        return await self.inner.on_messages(messages, cancellation_token)

    async def on_messages_stream(
        self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken
    ) -> AsyncGenerator[Any, None]:
        """The wrapped agent's events and answer."""
        async with ending(self.inner.on_messages_stream(messages, cancellation_token)) as items:
            async for item in items:
                yield item

    async def on_reset(self, cancellation_token: CancellationToken) -> None:
        """Reset the wrapped agent."""
        await self.inner.on_reset(cancellation_token)

    async def on_pause(self, cancellation_token: CancellationToken) -> None:
        """Pause the wrapped agent."""
        await self.inner.on_pause(cancellation_token)

    async def on_resume(self, cancellation_token: CancellationToken) -> None:
        """Resume the wrapped agent."""
        await self.inner.on_resume(cancellation_token)

    async def save_state(self) -> Mapping[str, Any]:
        """The wrapped agent's state, with ours in it."""
        return await self.inner.save_state()

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Load a state of this class, or of the wrapped agent's."""
        await self.inner.load_state(state)

    async def close(self) -> None:
        """Close the wrapped agent."""
        await self.inner.close()

    def _to_config(self) -> ForkAgentConfig:
        return ForkAgentConfig(agent=self._given.dump_component(), prefix=settings_of(self._bound))

    @classmethod
    def _from_config(cls, config: ForkAgentConfig) -> Self:
        return cls(BaseChatAgent.load_component(config.agent), users_session(session_of_settings(config.prefix)))
