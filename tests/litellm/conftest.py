"""LiteLLM's own functions and routers against simulated providers."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from pathlib import Path

import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else its import asks the internet for prices
pytest.importorskip("cacheprefix_litellm", reason="LiteLLM's tests run in an environment of their own")

sys.path.insert(0, str(Path(__file__).parent))

import litellm

from cacheprefix.server import Reply, Rule, Rules, SimulatedProvider, ToolCall, fill
from tests.collecting import by_hand, collected  # noqa: F401 - fixtures

litellm.suppress_debug_info = True
# Reading certificates takes longer than all the calls of a test, and nothing here speaks TLS.
litellm.ssl_verify = False


def _script():
    look = Reply(tool_calls=(ToolCall("read_log", {"lines": 400}),))
    return Rules([Rule("Look it up", look, round=0)], lambda request: Reply(fill(f"Answer {request.index}:", 40)))


@pytest.fixture(scope="session", autouse=True)
def left_behind():
    """Event loops that LiteLLM leaves open end before pytest looks for them."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session")
def servers():
    """One provider for each vendor's rules."""
    with SimulatedProvider("openai-5.6", _script()) as openai, SimulatedProvider("anthropic", _script()) as claude:
        yield {"openai": openai, "anthropic": claude}


@pytest.fixture
def fresh(servers):
    """``fresh(vendor)`` gives the vendor's provider with an empty cache."""

    def get(vendor):
        servers[vendor].reset()
        return servers[vendor]

    return get


OF_LITELLM = (
    "ignore:Items? .* (is|are) using the `ReadOnly` qualifier:UserWarning",
    # Event loops and connections that it leaves to the garbage collector.
    "ignore:Exception ignored in. <function BaseEventLoop.__del__:pytest.PytestUnraisableExceptionWarning",
    "ignore:unclosed:ResourceWarning",
)


def pytest_unconfigure():
    """LiteLLM keeps its asynchronous clients open to the end, which is found out when the last test is over."""
    warnings.filterwarnings("ignore", "unclosed", ResourceWarning)


def pytest_collection_modifyitems(items):
    """What LiteLLM itself warns of, with cacheprefix and without."""
    for item in items:
        for one in OF_LITELLM:
            item.add_marker(pytest.mark.filterwarnings(one))
