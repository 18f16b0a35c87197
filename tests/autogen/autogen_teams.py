"""Teams for the tests: roles that share a handbook, and a model that answers as the role it is told to be."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autogen_agentchat.agents import AssistantAgent

from cacheprefix import Caching, Session
from cacheprefix.prompt import Prompt, shared_sections
from cacheprefix.server import Record, Reply, Request, ToolCall

ROLES = ("planner", "critic", "writer")
HANDBOOK = "The handbook. " + "Everyone keeps to these rules of the house and cites them by number. " * 80
TASK = "The task. " + "Compare the two proposals and say which one should be built first. " * 60
LONG = "A found passage of text that goes on for a while. " * 60


class Says:
    """Answers as the last role the prompt names; ``steps`` maps a role to its answers in turn.

    A step is a text, or a tool call. A role without steps says its name and how often it has spoken.
    """

    def __init__(self, steps: Mapping[str, Sequence[str | ToolCall]] | None = None) -> None:
        self._steps = dict(steps or {})
        self._said: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Reply:
        named = re.findall(r"You are the (\w+)\.", request.text)
        role = named[-1] if named else "nobody"
        with self._lock:
            number = self._said[role]
            self._said[role] += 1
        steps = self._steps.get(role)
        if not steps:
            return Reply(f"{role} speaks for the time {number}. " + f"Reason {number} of {role}. " * 20)
        step = steps[number % len(steps)]
        return Reply(tool_calls=(step,)) if isinstance(step, ToolCall) else Reply(step)


def search(name: str = "search", result: str = LONG) -> Callable[[str], str]:
    """A tool with a long result."""

    def run(query: str) -> str:
        return f"{name} for {query}: {result}"

    run.__name__ = name
    run.__doc__ = f"Looks things up as {name}."
    return run


def role(name: str, client: Any, **options: Any) -> AssistantAgent:
    """One agent whose system message begins with its role and ends with the common handbook."""
    text = options.pop("system_message", f"You are the {name}. Mind the duty of a {name}.\n\n{HANDBOOK}")
    return AssistantAgent(name, client, system_message=text, description=f"The {name}.", **options)


def after_a_pause(**options: Any) -> Session:
    """A session an hour later: the provider has forgotten what was sent before."""
    return Session(caching=Caching(clock=lambda: time.time() + 3_600), **options)


def prompts(records: Sequence[Record]) -> list[Prompt]:
    """The requests as the provider read them."""
    return [record.prompt for record in records if record.prompt is not None]


def common(a: Prompt, b: Prompt) -> int:
    """Leading sections two prompts share, in cache order."""
    return shared_sections(a.sections, b.sections)


def tail_index(prompt: Prompt) -> int:
    """Where a fork's own part begins: the section with its role, or what the role alone has seen in front of it."""
    at = max(i for i, section in enumerate(prompt.sections) if section.text.startswith("<role name="))
    while prompt.sections[at - 1].text.startswith(("<memory>", "<earlier_call ")):
        at -= 1
    return at
