"""One request between the rewrite and its answer: what its parts know of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from langchain_core.messages import BaseMessage

from cacheprefix.adapter import AdapterSession, BlockVar, RequestPlan
from cacheprefix_langgraph.fork_context import Frame, Rewritten

if TYPE_CHECKING:
    from cacheprefix import PendingCall

Request = tuple[Sequence[BaseMessage], Mapping[str, Any]]
"""Messages and options."""


@dataclass(slots=True)
class Sending:
    """One request between the rewrite and its answer."""

    session: AdapterSession
    frame: Frame | None
    rewritten: Rewritten | None
    tools: Sequence[Any] | None
    """The tools as the application had bound them."""
    conversation: str
    scope: str | None = None
    """Whose cache it is; None for the session's."""
    step: Mapping[str, Any] | None = None
    """The configuration of the step that makes the call, where that is a fork's."""
    traced: dict[str, Any] | None = None
    """The metadata that callbacks were given for this call."""
    plan: RequestPlan[BaseMessage] | None = None
    """How it is laid out, and why; None for a call outside of any fork."""
    single: bool = False
    """Whether the application wants no more than one tool call, which the provider is no longer told."""
    agent: str = ""
    """Who asks, where no fork says so."""
    made: Any = None
    """What its model's class is called with."""
    streamed: bool = False
    """Whether the class is about to stream the answer, which some of them build another body for."""
    refused: bool = False
    """Whether its whole answer was asked for as a stream, and that was refused."""
    pending: PendingCall | None = None
    """The session's side of it, once it was begun."""
    payload: dict[str, Any] | None = None
    """The finished body, where it was made before the class asks for it."""
    seen: dict[str, Any] | None = None
    """The class's own body that ``payload`` was made of."""
    built: tuple[Any, Any, Mapping[str, Any]] | None = None
    """The messages, the stop words and the options that ``payload`` was made of."""
    body: dict[str, Any] | None = None
    """What is sent, where the class was shown another body to read the answer by."""
    asked: Request | None = None
    """The request as it goes out where the fork cannot be begun: the application's, and what it leaves to us to say."""
    given: Request | None = None
    """The request as the application made it, where another one goes out."""
    undone: Request | None = None
    """The same, once it has taken the rewritten one's place because that could not be begun."""


SENDING: BlockVar[Sending] = BlockVar("cacheprefix_langgraph_sending")


def fail(sending: Sending) -> None:
    """Say that the request came to nothing, so that no sibling waits for it."""
    if sending.pending is not None:
        sending.pending.fail()
