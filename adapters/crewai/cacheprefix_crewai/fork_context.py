"""One task in one agent's hands: what its requests are made of, settled at the first of them and kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from cacheprefix_crewai.shared_text import Piece, referred
from cacheprefix_crewai.tools import Offer, canonical_ids, coworkers_note

if TYPE_CHECKING:
    from cacheprefix import Session
    from cacheprefix.prompt import Prompt


Volatile = Callable[[], Mapping[str, str]]
"""Gives texts by name when a request is about to be sent."""


def volatile_text(session: Session, given: Volatile | None) -> str:
    """The texts as they go out; empty without any. What the callable raises is the application's."""
    if given is None:
        return ""
    said = dict(given())
    return session.attempt("volatile context", lambda: session.tail_for("", "", volatile=said), "")


SYSTEM = (
    "You are one of several specialists who work on the same material. "
    "The message with your role and task comes last; act in that role."
)
"""The shared system text where the session has none."""
BREAKPOINT = "cache_breakpoint"
"""CrewAI's own mark on a message; the session sets the marks of a fork, and LiteLLM would send this key."""


@dataclass(frozen=True, slots=True)
class Opening:
    """How an executor's requests begin: its system text, the user text with the task, and what follows."""

    system: str
    task: str
    rest: int
    """Index of the first message behind both."""

    @property
    def digest(self) -> bytes:
        """The same for all requests of one execution."""
        state = blake2b(self.system.encode("utf-8", "surrogatepass"), digest_size=16)
        state.update(b"\0" + self.task.encode("utf-8", "surrogatepass"))
        return state.digest()


@dataclass(frozen=True, slots=True)
class Frame:
    """A settled layout. ``forked`` is False where sharing would not pay and the request stays the application's."""

    role: str
    task: str
    """The task's name, or the beginning of its description."""
    opening: Opening
    tools: Sequence[Any] | None
    """As the application passes them."""
    forked: bool = False
    offer: Offer = field(default_factory=lambda: Offer(None))
    system: str = ""
    log: tuple[Piece, ...] = ()
    tail: str = ""
    front: str = ""
    """The agent's text, where it stands in front of the log and not in the tail."""
    text_mode: bool = False
    missing: str = ""
    """What an unforked request, too short to share, leaves to the session to say."""

    @property
    def head(self) -> int:
        """Messages before the tool loop: the system text, the log, the role with its task."""
        return 2 + bool(self.front) + len(self.log)

    @property
    def own_head(self) -> int:
        """``head`` of the application's own layout."""
        return self.opening.rest

    def own(self, given: Sequence[Mapping[str, Any]]) -> Sequence[Any]:
        """The messages in the application's own layout, with what is missing in front of their first text.

        The very same messages where nothing is.
        """
        if not self.missing:
            return given
        # Without a system message there is none to be: the model may not take one.
        text = "\n\n".join(part for part in (self.missing, str(given[0].get("content") or "")) if part)
        return [{**given[0], "content": text}, *given[1:]]

    @property
    def key(self) -> bytes:
        """The same for all frames that share their whole cached part."""
        state = blake2b(self.system.encode("utf-8", "surrogatepass"), digest_size=16)
        for piece in self.log:
            state.update(b"\0" + piece.block.encode("utf-8", "surrogatepass"))
        return state.digest()

    def messages(self, given: Sequence[Mapping[str, Any]]) -> list[Any]:
        """The request's messages in this layout; those of the tool loop as they are but for canonical ids."""
        head: list[Any] = [{"role": "system", "content": self.system}]
        head += [{"role": "user", "content": self.front}] * bool(self.front)
        head += [{"role": "user", "content": piece.block} for piece in self.log]
        head.append({"role": "user", "content": self.tail})
        return [*head, *canonical_ids(unmarked(given[self.opening.rest :]))]

    def boundary(self, prompt: Prompt) -> int | None:
        """The number of leading sections shared with the other roles, or with the agent's own next task."""
        data = self.tail.encode("utf-8", "surrogatepass")
        return next((i for i, section in enumerate(prompt.sections) if section.data == data), None)


def opening_of(messages: Sequence[Mapping[str, Any]]) -> Opening | None:
    """The opening of an executor's request; None for requests of another shape (files, images, templates)."""
    if not messages:
        return None
    system, at = "", 0
    if messages[0].get("role") == "system":
        content = messages[0].get("content")
        if not isinstance(content, str):
            return None
        system, at = content, 1
    if len(messages) <= at or messages[at].get("role") != "user":
        return None
    task = messages[at].get("content")
    if not isinstance(task, str) or not task or messages[at].get("files"):
        return None
    return Opening(system, task, at + 1)


def unmarked(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The messages without CrewAI's marks; those that carry none are the same objects."""
    return [
        {key: value for key, value in message.items() if key != BREAKPOINT} if BREAKPOINT in message else message
        for message in messages
    ]


def instruction_of(session: Session, role: str, opening: Opening, moved: str) -> str:
    """Role, goal and backstory. ``moved`` is the part of the system text that stands in the shared one already."""
    instruction = opening.system.replace(moved, "", 1).rstrip() if moved else opening.system
    if session.tail == "cards" and session.prefix.roles.get(role) == instruction:
        instruction = session.tail_for(role, instruction)
    return instruction


def tail_of(
    session: Session, instruction: str, opening: Opening, pieces: Sequence[Piece], offer: Offer, tools: Any
) -> str:
    """The agent's text and its task, with references in place of what is shared, and the limits of its tools."""
    limits = session.tail_for("", "", tools=offer.said) if offer.said is not None else ""
    roster = "" if offer.tools == list(tools or ()) else coworkers_note(tools)
    parts = [instruction, opening.task.lstrip("\n"), roster, limits]
    return referred("\n\n".join(part for part in parts if part), pieces)
