"""LangChain's standard tests of chat models on real classes, in one of three layers: plain, observed, or forked.

``test_standard_models.py`` runs it in a process of its own, since the package brings pytest plugins that change others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

from cacheprefix import Session, SharedPrefix
from cacheprefix.server import Reply, Request, SimulatedProvider, ToolCall
from cacheprefix_langgraph import wrap_model

LAYER = os.environ.get("CACHEPREFIX_LAYER", "plain")
HANDBOOK = "The handbook of the house, rule by rule, section by section. " * 400


@pytest.fixture
def benchmark() -> None:
    """Of a test that is left out without recordings."""


@pytest.fixture
def vcr() -> None:
    """Of a test that is left out without recordings."""


ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "magic_function": {"input": 3},
    "get_weather": {"location": "San Francisco, CA"},
    "unicode_customer": {"customer_name": "你好啊集团 こんにちは株式会社", "description": "A company."},
}
"""What a model makes of the questions in the tests, by tool."""


def answer(request: Request) -> Reply:
    """The call of a tool that the question is about, once; else a text, or what the request forces."""
    name = next((name for name in request.asked.tools if name in ARGUMENTS), None)
    if name is None or request.rounds or request.asked.choice == "none":
        return Reply("The answer of a model, in a few words.")
    return Reply(tool_calls=(ToolCall(name, ARGUMENTS[name]),))


@pytest.fixture(scope="module")
def providers() -> Iterator[dict[str, SimulatedProvider]]:
    """One provider a rule set, which models that the tests make themselves find too."""
    with (
        SimulatedProvider("openai", script=answer) as openai,
        SimulatedProvider("anthropic", script=answer) as anthropic,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("OPENAI_BASE_URL", openai.openai_base_url)
        patch.setenv("ANTHROPIC_BASE_URL", anthropic.anthropic_base_url)
        yield {"openai": openai, "anthropic": anthropic}


class _Standard(ChatModelIntegrationTests):
    """The model of each test, in its layer."""

    def made(self, providers: dict[str, SimulatedProvider]) -> BaseChatModel:
        raise NotImplementedError

    @pytest.fixture
    def model(self, request: Any, providers: dict[str, SimulatedProvider]) -> BaseChatModel:  # type: ignore[override]
        extra = getattr(request, "param", None) or {}
        made = self.made(providers, **extra)
        if LAYER == "plain":
            return made
        if LAYER == "observed":
            return wrap_model(made, Session(mode="observe"))
        return wrap_model(made, Session(SharedPrefix(system=HANDBOOK)), role="assistant", instruction="You help.")


class TestOpenAI(_Standard):
    """Chat completions."""

    responses = False

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "gpt-4.1", "api_key": "k", "max_retries": 0, "stream_usage": True}

    def made(self, providers: dict[str, SimulatedProvider], **extra: Any) -> BaseChatModel:
        address = providers["openai"].openai_base_url
        options = {**self.chat_model_params, "base_url": address, "use_responses_api": self.responses, **extra}
        return ChatOpenAI(**options)


class TestResponses(TestOpenAI):
    """The Responses API."""

    responses = True


class TestAnthropic(_Standard):
    """Messages."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatAnthropic

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "claude-sonnet-4-5", "api_key": "k", "max_retries": 0}

    def made(self, providers: dict[str, SimulatedProvider], **extra: Any) -> BaseChatModel:
        address = providers["anthropic"].anthropic_base_url
        return ChatAnthropic(**{**self.chat_model_params, "base_url": address, **extra})
