"""``ForkContext``: a model context whose saved state carries the decisions taken for its agent's prompts."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from autogen_core import Component, ComponentModel
from autogen_core.model_context import ChatCompletionContext, UnboundedChatCompletionContext
from autogen_core.models import LLMMessage
from pydantic import BaseModel
from typing_extensions import Self

STATE = "cacheprefix"
"""Our key inside the states that AutoGen saves; an agent without cacheprefix loads the state and ignores it."""


class ForkContextConfig(BaseModel):
    """What a ``ForkContext`` is built from."""

    inner: ComponentModel | None = None


class ForkContext(ChatCompletionContext, Component[ForkContextConfig]):
    """For agents built by configuration, beside a ``PrefixClient``: keeps the decisions taken on tool results.

    The messages are those of the context it wraps, untouched; the client decides on their layout. With it,
    an agent that is saved and loaded elsewhere sends the same bytes, whatever budget is set there.
    """

    component_config_schema = ForkContextConfig
    component_provider_override = "cacheprefix_autogen.ForkContext"

    def __init__(self, inner: ChatCompletionContext | None = None) -> None:
        super().__init__(None)
        self.inner = UnboundedChatCompletionContext() if inner is None else inner
        self.saved: dict[str, Any] = {}
        """Decisions as the core wrote them, until a client takes them over."""
        self.conversation: Any = None
        """The core's conversation, once a client has made one for this context."""

    async def add_message(self, message: LLMMessage) -> None:
        """Append to the wrapped context."""
        await self.inner.add_message(message)

    async def get_messages(self) -> list[LLMMessage]:
        """The wrapped context's messages; the client that is called next knows where they came from."""
        _CURRENT.set(weakref.ref(self))
        return await self.inner.get_messages()

    async def clear(self) -> None:
        """Clear the wrapped context, and what was decided on its messages."""
        self.saved, self.conversation = {}, None
        await self.inner.clear()

    async def save_state(self) -> Mapping[str, Any]:
        """The wrapped context's state, and the decisions under a key of our own."""
        state = dict(await self.inner.save_state())
        saved = self.saved if self.conversation is None else {"conversation": self.conversation.dumps()}
        return {**state, STATE: saved} if saved else state

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Load a state that this class or the wrapped one saved."""
        self.saved = dict(state.get(STATE) or {})
        self.conversation = None
        await self.inner.load_state({name: value for name, value in state.items() if name != STATE})

    def _to_config(self) -> ForkContextConfig:
        return ForkContextConfig(inner=self.inner.dump_component())

    @classmethod
    def _from_config(cls, config: ForkContextConfig) -> Self:
        return cls(None if config.inner is None else ChatCompletionContext.load_component(config.inner))


# Weakly: the contexts that connections were opened in live as long as those.
_CURRENT: ContextVar[weakref.ref[ForkContext] | None] = ContextVar("cacheprefix_autogen_context", default=None)


def take_context() -> ForkContext | None:
    """The context whose messages were just asked for, here; whoever asks a model next without one has none."""
    found = _CURRENT.get()
    if found is not None:
        _CURRENT.set(None)
    return None if found is None else found()


def application_context(context: ChatCompletionContext | None) -> ChatCompletionContext | None:
    """The application's own context, under a ``ForkContext`` too."""
    return context.inner if isinstance(context, ForkContext) else context
