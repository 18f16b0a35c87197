"""The role in force for the code that runs now, carried by a context variable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Role:
    """Whose calls these are, and of which conversation."""

    name: str
    instruction: str = ""
    conversation: str = ""
    volatile: Mapping[str, str] = field(default_factory=dict)
    """Text for this call alone (time, retrieval), by key; it stands at the very end."""


ROLE: ContextVar[Role | None] = ContextVar("cacheprefix_sdk_role", default=None)


@contextmanager
def role(
    name: str, *, instruction: str = "", conversation: str = "", volatile: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Calls of wrapped clients inside the block, and in tasks started there, are forks of this role."""
    token = ROLE.set(Role(name, instruction, conversation, volatile or {}))
    try:
        yield
    finally:
        ROLE.reset(token)
