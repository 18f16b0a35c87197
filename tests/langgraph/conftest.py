"""Real chat models against the simulated provider over HTTP."""

import pytest

pytest.importorskip("langgraph", reason="the LangGraph adapter is tested in its own environment (make test)")

from langchain_anthropic import ChatAnthropic
from langchain_anthropic._client_utils import _get_default_async_httpx_client
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langchain_openai.chat_models._client_utils import _cached_async_httpx_client

from cacheprefix import Caching, Gate, Session, SharedPrefix
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Echo, Latency, Queue, SimulatedProvider
from cacheprefix.wire import decode


@tool
def read_file(path: str) -> str:
    """Read a file."""
    return f"contents of {path}"


@tool
def run_tests(selection: str = "all") -> str:
    """Run the tests."""
    return f"{selection}: 12 passed"


TOOLS = [read_file, run_tests]

KINDS = ["openai-chat", "openai-responses", "anthropic"]
RULES = {"openai-chat": "openai-5.6", "openai-responses": "openai-5.6", "anthropic": "anthropic"}

_USED = []
"""Models whose clients were used in an event loop: kept, or their sockets are found open when they are collected."""


class Bench:
    """One simulated provider and a model that talks to it."""

    tools = TOOLS

    def __init__(self, kind, provider):
        self.kind = kind
        self.provider = provider
        self.rules = RULES[kind]
        self.made = []

    def model(self, **options):
        if self.kind == "anthropic":
            options = {"model": "claude-opus-4-1", "base_url": self.provider.anthropic_base_url, **options}
            made = ChatAnthropic(api_key="k", max_retries=0, **options)
            made._async_client  # noqa: B018 - made now, so that copies share it and release() sees it
        else:
            options = {"model": "gpt-5.6", "base_url": self.provider.openai_base_url, **options}
            options.setdefault("use_responses_api", self.kind == "openai-responses")
            # As LangChain has it at OpenAI's own address.
            options.setdefault("stream_usage", True)
            made = ChatOpenAI(api_key="k", max_retries=0, **options)
        self.made.append(made)
        return made

    def script(self, script):
        """Let ``script`` answer from now on; a list of replies is given one after the other."""
        self.provider.simulator.script = Queue(script) if isinstance(script, list) else script

    def slow(self, seconds):
        """Let every first token take this long, so that siblings really overlap."""
        self.provider.simulator.latency = Latency(base=seconds, uncached=0, cached=0, output=0, scale=1)

    def release(self):
        """Drop clients that were used in an event loop: their connections cannot be used in another."""
        used = [model for model in self.made if _connected(model)]
        if used:
            _USED.extend(used)
            _cached_async_httpx_client.cache_clear()
            _get_default_async_httpx_client.cache_clear()

    def session(self, handbook, **options):
        prefix = SharedPrefix(system=handbook, tools=self.tools, context=options.pop("context", {}))
        # Waits however slow this machine is; what a second is worth has tests of its own.
        usual = {"caching": Caching(provider=self.rules, counter=ESTIMATE), "gate": Gate(price=0.0)}
        return Session(prefix, **{**usual, **options})

    @property
    def api(self):
        return self.kind

    @property
    def bodies(self):
        """Raw request bodies in the order they came."""
        return [record.body for record in self.provider.requests]

    def prompts(self):
        return [decode(body, self.api) for body in self.bodies]


def pytest_collection_modifyitems(items):
    """LangChain's models never close their SDK client, and its sockets are found open when it is collected."""
    for item in items:
        if "tests/langgraph" in str(item.path):
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


def _connected(model):
    client = getattr(model, "root_async_client", None) or getattr(model, "_async_client", None)
    transport = getattr(getattr(client, "_client", None), "_transport", None)
    return bool(getattr(getattr(transport, "_pool", None), "connections", ()))


@pytest.fixture(scope="module")
def servers():
    """One server a rule set for the whole module: ``servers(rules)`` is empty and answers at once."""
    made = {}

    def fresh(rules):
        if rules not in made:
            made[rules] = SimulatedProvider(rules=rules).start()
        provider = made[rules]
        provider.simulator.script, provider.simulator.latency = Echo(), Latency()
        provider.reset()
        return provider

    yield fresh
    for provider in made.values():
        provider.stop()


@pytest.fixture(params=KINDS)
def bench(request, servers):
    """A real model of each kind and the provider it talks to."""
    bench = Bench(request.param, servers(RULES[request.param]))
    yield bench
    bench.release()


@pytest.fixture
def chat(servers):
    """One kind of model, for what does not differ between kinds."""
    bench = Bench("openai-chat", servers(RULES["openai-chat"]))
    yield bench
    bench.release()


@pytest.fixture
def messages(servers):
    """Anthropic's kind alone, for what LangChain does to no other."""
    bench = Bench("anthropic", servers(RULES["anthropic"]))
    yield bench
    bench.release()
