"""One model request on its way: what to send, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from cacheprefix.layout import FOLLOW, Pass

if TYPE_CHECKING:
    from cacheprefix.cache import Observation, Verdict
    from cacheprefix.call import Call
    from cacheprefix.conversation import Conversation
    from cacheprefix.layout.baseline import Own
    from cacheprefix.profiles import Profile
    from cacheprefix.prompt import Layout, Prompt, Reason

    Finish = Callable[["PendingCall", Any, float | None, Any], Call | None]
    """Called when the answer is complete: with the call, the usage, when, and what the provider says of its cache."""
    Fail = Callable[["PendingCall"], None]
    """Called when there will be no answer."""
    First = Callable[["PendingCall", float | None], None]
    """Called with its first token: with the call, and when."""


class Unsent(BaseException):
    """Ends a request of a dry run where it would have been sent; no handler of an application's may take it."""


@dataclass(frozen=True, slots=True)
class Started:
    """What was known and expected of a request when it went out."""

    prompt: Prompt
    profile: Profile
    observation: Observation
    agent: str
    conversation: str
    purpose: str
    started_at: float
    own: Own | None
    """The request as the application made it; None where that is not known, or where there is none beside this one."""
    known: bool = True
    """Whether its cost can be known."""
    held: Conversation | None = None
    decided: Conversation | None = None
    """Where its layout is decided, if that is not ``held``."""
    epoch: int = 0
    """Epoch of the conversation's ledger when the request went out."""
    layout: Layout = "observed"
    reasons: tuple[Reason, ...] = ()
    """Why it went out as it did."""
    tail: str = ""
    """The role's text, where it stands in the prompt by itself."""
    noted: bool = False
    """Whether the places of later requests go by it, unless nothing comes of it."""

    @property
    def placed(self) -> tuple[str, str]:
        """The tenant and the conversation in which the places of roles' texts are decided."""
        if self.decided is not None:
            return self.decided.scope, self.decided.id
        return self.observation.record.scope, self.conversation


@dataclass(slots=True)
class PendingCall:
    """Between ``AdapterSession.begin`` and its ``finish`` or ``fail``; both are safe to call more than once.

    ``body`` is what to send: the very object that was passed in wherever nothing had to change. As a context manager
    it fails when its block raises (a dry run's request counts); the end of the block is not the end of the turn, since
    a stream outlasts it.
    """

    body: Mapping[str, Any]
    seen: Started | None = None
    _finish: Finish | None = None
    _fail: Fail | None = None
    _first: First | None = None
    first_token_at: float | None = None
    cut: bool = False
    """Whether the answer was broken off before its end, where providers say what was read."""
    call: Call | None = None
    leave: Pass = FOLLOW
    """Leave to go on, which siblings may wait for."""
    unmarked: Mapping[str, Any] | None = None
    """``body`` before it was marked; None where nothing was done to it."""
    sent: bool = True
    """Whether a provider was asked at all."""
    _open: list[Context] = field(default_factory=lambda: [copy_context()])
    """Holds the context that the request was made in until the answer has ended: of several threads that take it, one
    gets it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is Unsent:
            self.finish(None)
        elif kind is not None:
            self.fail()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Around each pull of a stream. Between two of them nobody waits for it for longer than 50 ms."""
        self.leave.reads()
        try:
            yield
        finally:
            self.leave.rests()

    def first_token(self, at: float | None = None) -> None:
        """The answer has begun (``at`` in seconds of the session's clock, now by default)."""
        if self._first is not None and self.first_token_at is None and self._open:
            self._first(self, at)

    def finish(
        self,
        usage: Any = None,
        *,
        at: float | None = None,
        diagnostics: Any = None,
        cut: bool = False,
    ) -> Verdict | None:
        """The answer is complete, or was ``cut``. ``usage`` is the provider's, in any form; None if unreported.

        So are ``diagnostics``, what it says of its cache itself. Returns the verdict, or None when this request was not
        observed.
        """
        context = self._take()
        if context is not None and self._finish is not None:
            self.cut = cut
            # Privacy: where a stream is read, or collected as garbage, another user's work may be under way. Plugins
            # and log handlers are told in the context of the request: it stands in no other user's trace or log.
            self.call = context.run(self._finish, self, usage, at, diagnostics)
        return None if self.call is None else self.call.verdict

    def fail(self, *, sent: bool = True) -> None:
        """The request failed, or its answer was broken off; or it was never ``sent``: a store of answers had one.

        Whose answer had begun was paid for, and is a call without usage; any other leaves no trace in expectations or
        sums, and is counted as unanswered where it was sent.
        """
        context = self._take()
        if context is None:
            return
        self.sent = sent
        if sent and self.first_token_at is not None and self._finish is not None:
            self.cut = True
            self.call = context.run(self._finish, self, None, None, None)
        elif self._fail is not None:
            context.run(self._fail, self)

    def _take(self) -> Context | None:
        try:
            return self._open.pop()
        except IndexError:
            return None
