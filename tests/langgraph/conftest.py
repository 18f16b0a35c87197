"""Real chat models against the simulated provider over HTTP."""

import pytest

pytest.importorskip("langgraph", reason="the LangGraph adapter is tested in its own environment (make test)")

from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from cacheprefix import Session, SharedPrefix
from cacheprefix.prompt import ESTIMATE, decode
from cacheprefix.server import SimulatedProvider


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


class Bench:
    """One simulated provider and a model that talks to it."""

    tools = TOOLS

    def __init__(self, kind, provider):
        self.kind = kind
        self.provider = provider
        self.rules = RULES[kind]

    def model(self, **options):
        if self.kind == "anthropic":
            return ChatAnthropic(
                model="claude-sonnet-4-6",
                base_url=self.provider.anthropic_base_url,
                api_key="k",
                max_retries=0,
                **options,
            )
        return ChatOpenAI(
            model="gpt-5.6",
            base_url=self.provider.openai_base_url,
            api_key="k",
            max_retries=0,
            use_responses_api=self.kind == "openai-responses",
            **options,
        )

    def session(self, handbook, **options):
        prefix = SharedPrefix(system=handbook, tools=self.tools)
        return Session(prefix, provider=self.rules, counter=ESTIMATE, **options)

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


@pytest.fixture(params=KINDS)
def bench(request):
    """A real model of each kind and the provider it talks to."""
    with SimulatedProvider(rules=RULES[request.param]) as provider:
        yield Bench(request.param, provider)
