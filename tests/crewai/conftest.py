"""CrewAI's own model classes against the simulated provider, offline and without output.

CrewAI takes many seconds to import: it is imported here once, before warnings become errors.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cacheprefix.server import SimulatedProvider

# Each worker's own, not inherited: CrewAI keeps the outputs of the last kickoff there, and replays look them up.
_STORAGE = tempfile.TemporaryDirectory(prefix="crewai-")
os.environ["CREWAI_STORAGE_DIR"] = _STORAGE.name

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from benchmarks import crewai_workloads

OPENAI_MODEL = "gpt-5-2025-08-07"
ANTHROPIC_MODEL = "anthropic/claude-sonnet-4-5-20250929"
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

Provide = Callable[..., SimulatedProvider]
NewLLM = Callable[..., Any]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings of CrewAI and the libraries under it are theirs; ours stay errors, and those of what our code reads."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:::"), append=False)
            item.add_marker(pytest.mark.filterwarnings("error::cacheprefix.CacheprefixWarning"))
            item.add_marker(pytest.mark.filterwarnings("error:::cacheprefix"))


def pytest_sessionfinish() -> None:
    """CrewAI never closes its asynchronous clients, which is found out when the last test is over."""
    warnings.filterwarnings("ignore", category=pytest.PytestUnraisableExceptionWarning)


@pytest.fixture
def provide() -> Iterator[Provide]:
    """``provide(rules, script)`` starts a simulated provider that ends with the test."""
    started: list[SimulatedProvider] = []

    def start(rules: str = "openai", script: Any = None, **options: Any) -> SimulatedProvider:
        script = script if script is not None else crewai_workloads.CrewModel()
        started.append(SimulatedProvider(rules, script, **options).start())
        return started[-1]

    yield start
    for provider in started:
        provider.stop()


@pytest.fixture(scope="module")
def servers() -> Iterator[Provide]:
    """``servers(rules, script)`` gives a module's one provider of a rule set, emptied and with this script."""
    started: dict[str, SimulatedProvider] = {}

    def give(rules: str = "openai", script: Any = None) -> SimulatedProvider:
        provider = started.get(rules)
        if provider is None:
            provider = started[rules] = SimulatedProvider(rules).start()
        provider.simulator.script = script if script is not None else crewai_workloads.CrewModel()
        provider.reset()
        return provider

    yield give
    for provider in started.values():
        provider.stop()


@pytest.fixture
def new_llm() -> NewLLM:
    """``new_llm(provider)`` gives a CrewAI model of the provider; ``kind`` is openai, responses, anthropic, litellm."""

    def make(provider: SimulatedProvider, kind: str = "openai", **options: Any) -> Any:
        if kind == "anthropic":
            return crewai_workloads.new_llm(ANTHROPIC_MODEL, provider.anthropic_base_url, **options)
        if kind == "litellm":
            return crewai_workloads.new_llm(f"openai/{OPENAI_MODEL}", provider.openai_base_url, litellm=True, **options)
        if kind == "litellm-anthropic":
            return crewai_workloads.new_llm(ANTHROPIC_MODEL, provider.anthropic_base_url, litellm=True, **options)
        if kind == "responses":
            options = {"api": "responses", **options}
        return crewai_workloads.new_llm(OPENAI_MODEL, provider.openai_base_url, **options)

    return make
