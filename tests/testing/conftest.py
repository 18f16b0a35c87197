"""Bodies, and a provider for the tests that need one."""

from __future__ import annotations

import pytest

from cacheprefix.server import SimulatedProvider

HANDBOOK = "The handbook says that every statement needs a source. " * 100


def tool(name, description="What it does."):
    """A function in OpenAI's form."""
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


@pytest.fixture
def make_body():
    """``make_body("hello", tools=["a", "b"])`` is a chat body on a shared handbook."""

    def make(text="hello", *, tools=("read", "write"), system=HANDBOOK, model="gpt-5.6", **more):
        messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
        return {"model": model, "messages": messages, "tools": [tool(name) for name in tools], **more}

    return make


@pytest.fixture(scope="module")
def shared_server():
    """One simulated provider a module."""
    with SimulatedProvider("openai-5.6") as provider:
        yield provider


@pytest.fixture
def provider(shared_server):
    """The module's provider, with an empty cache."""
    shared_server.reset()
    return shared_server
