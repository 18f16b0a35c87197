"""Roles that share a handbook, and a model that answers as the role it is told to be."""

from __future__ import annotations

import contextlib
import re
from collections import Counter

from agent_framework import Agent, FunctionTool
from maf_driver import close, make_client

from cacheprefix.server import Reply, ToolCall
from cacheprefix.wire import decode

NAMES = ("planner", "critic", "writer")
HANDBOOK = "The handbook. " + "Everyone keeps to these rules of the house and cites them by number. " * 80
TASK = "The task: compare the two proposals and say which one should be built first."
LONG = "A found passage of text that goes on for a while. " * 60


class Says:
    """Answers as the last role the prompt names; ``steps`` maps a role to its answers in turn.

    A step is a text, or a tool call. A role without steps says its name and how often it has spoken.
    """

    def __init__(self, **steps):
        self.steps = steps
        self.said = Counter()

    def __call__(self, request):
        named = re.findall(r"You are the (\w+)\.", request.text)
        role = named[-1] if named else "nobody"
        number = self.said[role]
        self.said[role] += 1
        steps = self.steps.get(role, [f"{role} speaks for the time {number}."])
        step = steps[min(number, len(steps) - 1)]
        return Reply(tool_calls=(step,)) if isinstance(step, ToolCall) else Reply(step)


def call(name, **arguments):
    """A tool call of the model."""
    return ToolCall(name, arguments)


def look(name="look", result=LONG, ran=None):
    """A tool with a long result that notes its runs in ``ran``."""

    def run(query: str = "") -> str:
        if ran is not None:
            ran.append(query)
        return f"{name} for {query}: {result}"

    schema = {"type": "object", "properties": {"query": {"type": "string"}}}
    return FunctionTool(name=name, description=f"Looks things up as {name}.", func=run, input_model=schema)


def role(client, name, **options):
    """One agent whose instructions begin with its role and end with the common handbook."""
    text = options.pop("instructions", f"You are the {name}.\n\n{HANDBOOK}")
    return Agent(client, text, name=name, description=f"The {name}.", **options)


@contextlib.asynccontextmanager
async def served(servers, api, **steps):
    """A client of an API, and its provider with an empty cache and a new script."""
    provider = servers[api]
    provider.reset()
    provider.simulator.script = Says(**steps)
    client = make_client(api, provider)
    try:
        yield client, provider
    finally:
        await close(client)


def prompts(provider):
    """The requests as the provider read them."""
    return [decode(record.body, record.api) for record in provider.requests]


def texts(prompt):
    """What the sections behind tools say."""
    return [section.text for section in prompt.sections if section.tier != "tools"]


def tail_at(prompt):
    """Where a fork's own part begins: the section with its role."""
    return max(i for i, section in enumerate(prompt.sections) if section.text.startswith("<role name="))


def grows(found):
    """Whether every later request begins with what each one shares with all roles."""
    for index, prompt in enumerate(found):
        shared = [(one.tier, one.data) for one in prompt.sections[: tail_at(prompt)]]
        for later in found[index + 1 :]:
            if [(one.tier, one.data) for one in later.sections[: len(shared)]] != shared:
                return False
    return True
