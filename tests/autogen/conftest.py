"""AutoGen's own clients against the simulated provider, and small teams to run on them."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from autogen_core.models import ChatCompletionClient, ModelFamily, ModelInfo

from cacheprefix.server import SimulatedProvider
from cacheprefix_autogen.settings import forget_sessions

sys.path.insert(0, str(Path(__file__).parent))

OPENAI_MODEL = "gpt-4o-2024-08-06"
ANTHROPIC_MODEL = "claude-sonnet-4-5-20250929"

Provide = Callable[..., SimulatedProvider]
NewClient = Callable[..., ChatCompletionClient]


@pytest.fixture
def provide() -> Iterator[Provide]:
    """``provide(rules, script)`` starts a simulated provider that ends with the test."""
    started: list[SimulatedProvider] = []

    def start(rules: str = "openai", script: Any = None, **options: Any) -> SimulatedProvider:
        started.append(SimulatedProvider(rules, script, **options).start())
        return started[-1]

    yield start
    for provider in started:
        provider.stop()


@pytest.fixture
async def new_client() -> AsyncIterator[NewClient]:
    """``new_client(provider)`` gives AutoGen's own client for it: one a provider, as applications share theirs.

    ``fresh=True`` makes another one. All are closed after the test.
    """
    made: list[ChatCompletionClient] = []
    shared: dict[tuple[str, str], ChatCompletionClient] = {}

    def get(
        provider: SimulatedProvider, *, api: str = "openai", fresh: bool = False, **options: Any
    ) -> ChatCompletionClient:
        if fresh or options:
            return make(provider, api=api, **options)
        key = (provider.url, api)
        if key not in shared:
            shared[key] = make(provider, api=api)
        return shared[key]

    def make(provider: SimulatedProvider, *, api: str = "openai", **options: Any) -> ChatCompletionClient:
        openai = api == "openai"
        model = options.pop("model", OPENAI_MODEL if openai else ANTHROPIC_MODEL)
        info = ModelInfo(
            vision=True,
            function_calling=True,
            json_output=True,
            family=ModelFamily.GPT_4O if openai else ModelFamily.CLAUDE_4_SONNET,
            structured_output=openai,
            multiple_system_messages=openai,
        )
        if openai:
            from autogen_ext.models.openai import OpenAIChatCompletionClient

            made.append(
                OpenAIChatCompletionClient(
                    model=model, base_url=provider.openai_base_url, api_key="any", model_info=info, **options
                )
            )
        else:
            from autogen_ext.models.anthropic import AnthropicChatCompletionClient

            made.append(
                AnthropicChatCompletionClient(
                    model=model,
                    base_url=provider.anthropic_base_url,
                    api_key="any",
                    model_info=info,
                    **options,
                )
            )
        return made[-1]

    yield get
    for client in made:
        await client.close()


@pytest.fixture(autouse=True)
def fresh_sessions() -> Iterator[None]:
    """Sessions of loaded components do not reach from one test into another."""
    yield
    forget_sessions()
