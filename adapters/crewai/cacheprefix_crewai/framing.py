"""The words of ours in requests: all that stands there beside the application's, and the user's shared prefix."""

from __future__ import annotations

SYSTEM = (
    "You are one of several specialists who work on the same material. "
    "The message with your role and task comes last; act in that role."
)
"""The shared system text where the session has none."""
CONTEXT_LABEL = "the shared context"
IN_FRONT = "(see the beginning)"
"""What stands in a task in place of the session's own system text."""


def input_label(name: str) -> str:
    """What an input is called."""
    return f"shared input {name!r}"


def block_label(number: int) -> str:
    """What a text is called that several tasks or backgrounds have in common."""
    return f"shared text {number}"


def result_label(number: int) -> str:
    """What the result of an earlier task is called; not by whose it is, which the task does not say."""
    return f"result of task {number}"


def headed(label: str, text: str) -> str:
    """How a text stands in the shared part."""
    return f"[{label}]\n{text}"


def reference(label: str) -> str:
    """What stands in a task in place of a text."""
    return f"(see {label} above)"


def role_again(role: str) -> str:
    """Behind the results, for an agent whose text stands in front of them."""
    return f"Your role is {role}."


def coworkers(names: str) -> str:
    """Whom an agent can delegate to, since the shared tools name the whole crew."""
    return f"Coworkers you can turn to: {names}."
