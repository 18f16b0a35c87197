"""Text for one request alone (time, retrieval, state of a user interface), behind everything that is cached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from cacheprefix import Session
    from cacheprefix.prompt import Api

Volatile = Callable[[], Mapping[str, str]]
"""Gives texts by name when a request is about to be sent."""
VolatileRole = Literal["user", "system", "developer"]


def volatile_text(session: Session, given: Volatile | None) -> str:
    """The texts as they go out; empty without any, and when the callable fails."""
    if given is None:
        return ""
    return session.attempt("volatile context", lambda: session.tail_for("", "", volatile=dict(given())), "")


def with_volatile(body: dict[str, Any], api: Api, text: str, role: VolatileRole) -> dict[str, Any]:
    """A finished body with ``text`` at its very end; what stands before it is what it was.

    It is added when breakpoints are set, so none stands behind it and nothing is written that no request repeats.
    Anthropic knows no system message there, and takes it as a block of the user's.
    """
    name = "input" if api == "openai-responses" else "messages"
    history = body.get(name)
    if not text or not isinstance(history, list):
        return body
    if api != "anthropic":
        return {**body, name: [*history, {"role": role, "content": text}]}
    block = {"type": "text", "text": text}
    last = history[-1] if history else {}
    if last.get("role") != "user":
        return {**body, name: [*history, {"role": "user", "content": [block]}]}
    content = last.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
    return {**body, name: [*history[:-1], {**last, "content": [*blocks, block]}]}
