"""Where a role's text stands in its requests: behind the conversation, or still where the role last had it.

Behind the conversation it lets everybody share what stands before it, and is itself paid anew each time. Where it
stood before, it is read from the cache with what follows it there, and only what was said since is paid, as in the
application's own layout. A long text before short messages would cost more behind them than sharing saves: of the two
places the cheaper one is taken for each request, so that a request costs no more than it does without us.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from cacheprefix.context import digest_of

if TYPE_CHECKING:
    from cacheprefix._conversation import Conversation
    from cacheprefix.context import Ledger
    from cacheprefix.session import Session

M = TypeVar("M")

LONG = 128
"""Tokens from which on a text may keep its place, and its places are recorded; shorter ones always go to the end."""
_TALKS = 10_000
_SEATS = 1_000


class Place(NamedTuple):
    """Where a role's text goes in one request."""

    at: int | None
    """Messages that stand before it; None where the application's own layout costs less."""
    continues: bool = False
    """Whether the request is to be marked at its end, since the next one of this role may begin with it."""


@dataclass(frozen=True, slots=True)
class _Point:
    """So many messages, and the digest of the last of them."""

    index: int
    digest: str


_START = _Point(0, "")


@dataclass(slots=True)
class _Seat:
    """What a role's last request of a conversation was."""

    text: str
    at: _Point | None
    """None for the application's own layout."""
    end: _Point
    kept: bool
    """Whether the provider keeps that request to its end, and not only what stands before the text."""


@dataclass(slots=True)
class _Talk:
    line: _Point = _START
    """The longest beginning of the conversation that was sent in front of a role's text."""
    last: _Point = _START
    """Where the conversation ended when somebody last asked."""
    seats: OrderedDict[str, _Seat] = field(default_factory=OrderedDict)


class Places:
    """The places in force, by conversation and role. Thread-safe, bounded."""

    def __init__(self) -> None:
        self._talks: OrderedDict[tuple[str, str, str], _Talk] = OrderedDict()
        self._lock = threading.Lock()

    def choose(
        self,
        key: tuple[str, str, str],
        role: str,
        text: str,
        history: Sequence[M],
        *,
        size: int,
        digest: Callable[[M], str],
        tokens: Callable[[M], int],
        shared: bool,
        marked: bool,
        alone: bool,
        recorded: Callable[[], int | None],
    ) -> Place:
        """The place of ``role``'s text, of ``size`` tokens, in a request with this ``history``.

        ``shared`` says whether what stands before the text is worth sharing at all; ``marked`` that the provider
        keeps what is marked and nothing else, ``alone`` that it keeps requests in the application's own layout.
        ``recorded`` is the place that an earlier process has recorded.
        """
        end = _Point(len(history), digest(history[-1]) if history else "")

        def stands(point: _Point | None) -> bool:
            return (
                point is not None
                and point.index <= end.index
                and (not point.index or digest(history[point.index - 1]) == point.digest)
            )

        def since(point: _Point) -> int:
            return sum(tokens(message) for message in history[point.index :])

        with self._lock:
            talk = self._talks.setdefault(key, _Talk())
            self._talks.move_to_end(key)
            while len(self._talks) > _TALKS:
                self._talks.popitem(last=False)
            line = talk.line if stands(talk.line) else _START
            seat = talk.seats.get(role)
            if seat is not None and not (seat.text == text and stands(seat.end) and (not seat.at or stands(seat.at))):
                seat = None
            last = talk.last if stands(talk.last) else _START
        at, continues, kept = end, False, not marked
        if seat is None:
            found = recorded() if shared and size >= LONG else None
            if found is not None:
                at, continues, kept = _Point(found, digest(history[found - 1]) if found else ""), marked, True
        elif shared and seat.at is None:
            # Out of the own layout: with nobody's beginning to read yet, what counts is what it would be from now on.
            behind = last if not line.index else line
            if alone and size + since(behind) >= since(seat.end):
                shared = False
        elif shared and size >= LONG:
            # Someone who asks again before anyone else did pays what was said since either way; moved behind it, the
            # text is paid for what others then need not pay.
            others = 0 if line == seat.end else since(line)
            if size + others > since(seat.end):
                at, continues = (seat.at or end, marked) if seat.kept else (end, marked)
                kept = True
        if not shared:
            place, point = Place(None), None
        else:
            place, point = Place(at.index, continues), at
        with self._lock:
            talk.last = end
            if point is not None and point.index >= line.index:
                talk.line = point
            talk.seats[role] = _Seat(text, point, end, kept)
            talk.seats.move_to_end(role)
            while len(talk.seats) > _SEATS:
                talk.seats.popitem(last=False)
        return place


def place(
    session: Session,
    conversation: Conversation,
    role: str,
    text: str,
    history: Sequence[M],
    model: str = "",
    *,
    digest: Callable[[M], str],
    tokens: Callable[[M], int],
    shared: bool = True,
    cached: bool = False,
) -> Place:
    """Where a role's text goes among the messages of ``history``, as they are sent; for adapters, once a request.

    ``text`` is what the role is told and stays the same from request to request; ``digest`` and ``tokens`` are of one
    message. ``shared`` is False where the application's own layout is to be kept, which is remembered too. ``cached``
    says that the framework itself marks requests in that layout, so that a provider keeps them. A place that is not the
    end is recorded in the conversation's ledger, so that another process takes it up. Never raises.
    """

    def work() -> Place:
        profile = session.profile(model)
        own = digest_of(role, text)
        found = session.shared.places.choose(
            (conversation.scope, conversation.id, model),
            f"{session.name}/{role}",
            own,
            history,
            size=session.count(text, model) if text else 0,
            digest=digest,
            tokens=tokens,
            shared=shared,
            marked=profile.markers is not None,
            alone=cached or profile.markers is None or profile.implicit_breakpoint,
            recorded=lambda: _recorded(conversation.ledger, own, history, digest),
        )
        at = found.at
        if at == len(history) and at and text and session.count(text, model) >= LONG:
            entry = ("places", f"{own}@{at}@{digest(history[-1])}", "")
            conversation.merge(conversation.ledger.record([entry]))
        return found

    return session.attempt("place", work, Place(len(history) if shared else None))


def _recorded(ledger: Ledger, own: str, history: Sequence[M], digest: Callable[[M], str]) -> int | None:
    """The last place that was recorded for this text among these messages."""
    known = (key.split("@") for key in ledger.keys("places") if key.startswith(f"{own}@"))
    for at, value in sorted(((int(index), last) for _, index, last in known), reverse=True):
        if 0 < at <= len(history) and digest(history[at - 1]) == value:
            return at
    return None
