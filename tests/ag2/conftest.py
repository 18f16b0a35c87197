"""Teams of ag2's own agents and clients against simulated providers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("ag2", reason="ag2's tests run in an environment of their own (make test-ag2)")

sys.path.insert(0, str(Path(__file__).parent))

from cacheprefix.server import Reply, Rule, Rules, SimulatedProvider, ToolCall, fill


def _script():
    """The model calls a tool where it is told to, once, and else never says the same twice."""

    def called(request):
        return Reply(tool_calls=(ToolCall(request.tail.rpartition("Call ")[2].split(".")[0], {}),))

    judged = Rule("Judge", Reply('{"good": true}'))
    return Rules([Rule("Call ", called, round=0), judged], lambda request: Reply(fill(f"Answer {request.index}:", 40)))


@pytest.fixture(scope="session")
def servers():
    """One provider for each API's rules."""
    with SimulatedProvider("openai-5.6", _script()) as openai, SimulatedProvider("anthropic", _script()) as claude:
        yield {"openai-chat": openai, "openai-responses": openai, "anthropic": claude}


@pytest.fixture
def fresh(servers):
    """``fresh(api)`` gives the API's provider with an empty cache."""

    def get(api):
        servers[api].reset()
        return servers[api]

    return get
