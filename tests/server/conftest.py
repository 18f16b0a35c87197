"""Clients of the real SDKs, closed after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import anthropic
import openai
import pytest

from cacheprefix.server import SimulatedProvider


@pytest.fixture
def serve() -> Iterator[Callable[..., SimulatedProvider]]:
    """Starts providers and stops them after the test."""
    started: list[SimulatedProvider] = []

    def start(*given, **options) -> SimulatedProvider:
        started.append(SimulatedProvider(*given, **options).start())
        return started[-1]

    yield start
    for provider in started:
        provider.stop()


@pytest.fixture
def openai_client() -> Iterator[Callable[..., openai.OpenAI]]:
    """OpenAI clients of a provider; they do not retry, so that a test sees every answer."""
    made: list[openai.OpenAI] = []

    def make(provider: SimulatedProvider, key: str = "any") -> openai.OpenAI:
        made.append(openai.OpenAI(base_url=provider.openai_base_url, api_key=key, max_retries=0, timeout=20))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def anthropic_client() -> Iterator[Callable[..., anthropic.Anthropic]]:
    """Anthropic clients of a provider; they do not retry."""
    made: list[anthropic.Anthropic] = []

    def make(provider: SimulatedProvider, key: str = "any") -> anthropic.Anthropic:
        made.append(anthropic.Anthropic(base_url=provider.anthropic_base_url, api_key=key, max_retries=0, timeout=20))
        return made[-1]

    yield make
    for client in made:
        client.close()
