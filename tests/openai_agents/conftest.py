"""Agents of the OpenAI Agents SDK against simulated providers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("cacheprefix_openai_agents", reason="these tests run in an environment of their own")
pytest.importorskip("agents", reason="these tests run in an environment of their own")

sys.path.insert(0, str(Path(__file__).parent))

import agents

from cacheprefix.server import Reply, Rule, Rules, SimulatedProvider, ToolCall, fill

agents.set_tracing_disabled(True)  # its exporter asks the internet; one test turns it on


def _script():
    """The model hands off and calls tools where it is told to, once."""

    def called(request):
        name = request.tail.rpartition("Call ")[2].split(".")[0]
        return Reply(tool_calls=(ToolCall(name, {"input": "Look."} if name.startswith("ask_") else {}),))

    rules = [Rule("Call ", called, round=0), Rule("Judge", Reply('{"good": true}'))]
    return Rules(rules, lambda request: Reply(fill(f"Answer {request.index}:", 40)))


@pytest.fixture(scope="session")
def server():
    """One provider for both APIs."""
    with SimulatedProvider("openai-5.6", _script()) as openai:
        yield openai


@pytest.fixture
def provider(server):
    """The provider with an empty cache."""
    server.reset()
    return server


def pytest_collection_modifyitems(items):
    """A test's client goes with its event loop; what it left open is closed by the garbage collector, anywhere."""
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))
