"""Tools and a script that the supervisor, swarm and middleware examples share."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence

from langchain_core.tools import tool

from cacheprefix.server import Reply, Request, ToolCall


@tool
def search_notes(query: str) -> str:
    """Search the notes of earlier moves, the newest first."""
    return f"On {query}: " + "the notes of 2019 say that the lift was the bottleneck; " * 12


@tool
def read_offer(number: int) -> str:
    """Read one of the three offers for the transport."""
    return f"Offer {number}: " + "a lorry and four people for two days, without insurance; " * 12


TOOLS = [search_notes, read_offer]
DUTIES = {
    "analyst": "Work out what the move costs.",
    "planner": "Work out when it can be done.",
    "critic": "Say what could go wrong.",
}


class Steps:
    """A scripted model: each role goes through its steps, whatever the layout of its requests."""

    def __init__(self, steps: Mapping[str, Sequence[str | ToolCall]]) -> None:
        self._steps = steps
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Reply:
        """The next step of the role that is named last."""
        named = re.findall(r"You are the (\w+)\.", request.text)
        name = named[-1] if named else ""
        with self._lock:
            turn = self._asked[name]
            self._asked[name] += 1
        steps = self._steps.get(name) or ("Noted.",)
        step = steps[min(turn, len(steps) - 1)]
        if isinstance(step, str):
            return Reply(f"The {name} says: {step} " + "This follows from what was said above. " * 20)
        return Reply(tool_calls=(ToolCall(step.name, step.arguments, id=f"call_{name}_{turn}"),))
