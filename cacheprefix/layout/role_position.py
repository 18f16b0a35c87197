"""Where a role's text stands in its requests: behind the conversation, or still where the role last had it.

Behind the conversation it lets everybody share what stands before it, and is itself paid anew each time. Where it
stood before, it is read from the cache with what follows it there, and only what was said since is paid, as in the
application's own layout. A long text before short messages would cost more behind them than sharing saves: of the two
places the cheaper one is taken for each request. Dearer than without us is only what is paid beforehand for others to
read (``_STAKE``), a short text that goes to the end each time, and a start of sharing that nobody makes use of.

All weighing here is in tokens that are paid in full. The symbols, the same in every formula below:

    o  the opening: the shared system text
    e  the conversation so far
    s  the role's text, with all that moves with it
    n  what was said since the role's last request
    u  what was said since anybody's last request
    v  what of the conversation nobody has sent in front of a role's text yet, so that it cannot be read there
    S  the stake, (o + e) / 4: what may be paid beforehand for others to read

A role that asks again pays n where its text stood (or in the application's own layout), and s + v behind the
conversation: going there saves ``n - s - v``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from cacheprefix.bounded import Bounded
from cacheprefix.layout.own_text import Beginnings, beginnings_of, in_common
from cacheprefix.layout.said import Beginning, Said, gone_on, length_gone_on, longest_of
from cacheprefix.layout.team import Decided, Team
from cacheprefix.layout.worth_sharing import rules_in
from cacheprefix.locks import Guarded, Lock
from cacheprefix.profiles import Profile
from cacheprefix.prompt import digest_of
from cacheprefix.prompt.reasons import Reason
from cacheprefix.services import Services

M = TypeVar("M")
_K = TypeVar("_K")
_V = TypeVar("_V")

Readers = Literal["expected", "none yet", "never"]
"""Whether other roles will read a conversation. ``expected``: they may; ``none yet``: nobody else has asked, in a team
that has no other role; ``never``: it is known to be this role's alone, so that a short text keeps its place too."""

LONG = 128
"""Tokens from which on a text may keep its place, and its places are recorded; shorter ones go to the end, unless that
costs too much (``_SPARE``)."""
_AGAIN = "again"
"""Under what it is recorded of a conversation, by its first message, whether its first role had begun others before
with its text (1), with other texts alone (-1), or none (0)."""
_PART = "\0"
"""Between a model and the name of a tool set."""
NO_TOOLS = "no tools"
"""The name of the tool set of requests that carry none."""
_SCHEMA = "\1"
"""Between a model and the name of an answer's schema."""
_TALKS = 10_000
_SEATS = 1_000
_SIZES = 10_000
_STAKE = 4
"""What is paid beforehand for others to read is a quarter of that at most, as much as a cache write costs more."""
_FEW = 4
"""What is not read since a text stands in front of what is said on a guess is one part in so many of it at most."""
_MANY = 8
"""The same in a team's first conversation, of which nobody knows whether it is one of many."""
_SPARE = 32
"""What short texts at the end may cost while nobody else asks: this part of what the application's own requests paid in
full. With 32 and with 100 the generated plans of ``make bench-plans`` cost the same in sum."""


class RolePosition(NamedTuple):
    """Where a role's text goes in one request."""

    at: int | None
    """Messages that stand before it; None where the application's own layout costs less."""
    continues: bool = False
    """Whether the request is to be marked at its end, since the next one of this role may begin with it."""
    routed: bool = False
    """Whether it goes where the team's forks go, although it is in the application's own layout."""
    again: bool = False
    """Whether what is said in it may be read by a later request (``_is_read_again``)."""
    noted: bool = False
    """Whether later places go by it, unless nothing comes of its request (``RolePositions.unanswered``)."""


TaskPosition = RolePosition | Reason
"""A place among the results of earlier tasks, or why a task's requests keep the application's own layout."""


class Outrun(NamedTuple):
    """How far a role's own requests are behind those with the tools of all; nothing where there were no such ones."""

    end: int = 0
    """Messages that its last one held."""
    line: int = 0
    """Messages that can be read of those with the tools of all."""
    kept: bool = False
    """Whether the provider keeps its last one to its end."""


class Texts(NamedTuple):
    """By which layout those requests of a conversation go whose own text is new there."""

    own: bool = False
    """By the application's own, and not behind the conversation."""
    more: int = 0
    """Tokens that the other one would have read more since the layout was last changed."""


_AS_FORKS = Texts()


class Anew(NamedTuple):
    """What is paid once more where a conversation's requests come to carry more tools. Token counts."""

    texts: int = 0
    """Of the other roles' texts, which are read where they stand, and of what was said to them alone."""
    before: int = 0
    """What was paid for such guesses before."""


@dataclass(frozen=True, slots=True)
class CacheRules:
    """What of a provider's rules decides on the place."""

    marked: bool
    """It keeps what is marked, and nothing else."""
    alone: bool
    """It keeps requests in the application's own layout too, from the first one on."""
    least: int
    """Tokens of the shortest request that it keeps."""
    units: bool
    """It keeps whole requests, and what two of them have in common only from the second on (DeepSeek)."""

    @classmethod
    def of(cls, profile: Profile, *, cached: bool) -> CacheRules:
        """Those of a profile; ``cached`` where the framework marks the application's own layout."""
        marked = profile.markers is not None
        alone = cached or not marked or profile.implicit_breakpoint
        return cls(marked, alone, profile.min_tokens, profile.match == "unit")


@dataclass(frozen=True, slots=True)
class _Point:
    """So many messages, and the digest of the last of them."""

    index: int
    digest: str
    before: str = field(default="", compare=False)
    """The digest of the one before it; empty where there is none."""
    first: str = field(default="", compare=False)
    """The digest of the first message; empty where an earlier version has saved the point."""


_START = _Point(0, "")


class _Changed(NamedTuple):
    """Where a text stands best that begins like the one before it of the same role."""

    at: _Point
    """Where that one stood."""
    common: int
    """c: tokens with which both begin."""


@dataclass(slots=True)
class _LastRequest:
    """What a role's last request of a conversation was."""

    text: str
    at: _Point | None
    """None for the application's own layout."""
    end: _Point
    kept: bool
    """Whether the provider keeps that request to its end, and not only what stands before the text."""
    shared: bool = True
    """Whether what stood before the text was worth sharing."""
    continues: bool = False
    """Whether it was marked at its end."""
    long: bool = True
    """Whether the text may keep its place; what was saved by an earlier version counts as such."""
    size: int = 0
    """Tokens of the text, with all that moves with it."""
    said: Said = ()
    """How much was said in it that others may have been told too, before anything was shortened."""
    began: Beginnings = ()
    """What is kept of the role's own text, to tell how much of it a later one begins with."""
    changed: bool = False
    """Whether the role's text was another one before."""


class _Met(NamedTuple):
    """How a role began a conversation. Names and digests alone: it stays when what was said is forgotten."""

    text: str
    """The name of its text."""
    said: str
    """A digest of all that was said then."""
    others: int
    """How many others it had begun before with this text, and with something else."""


class _Before(NamedTuple):
    """What was known of a role and its text before they began a conversation."""

    text: tuple[str, str, str]
    """The tenant, the lane, and the name of the text; ``role`` with that of the role."""
    role: tuple[str, str, str]
    begun: tuple[tuple[str, str, str], int] | None
    told: tuple[str, Beginnings] | None
    owning: bool | None


@dataclass(slots=True)
class _Unbegun:
    """A conversation of which no request has been answered yet."""

    placed: int = 0
    """Requests whose places were noted."""
    failed: int = 0
    """Those of them that came to nothing."""
    before: list[_Before] = field(default_factory=list)
    """What was known before each of its roles began it, in their order."""


class _ToldBefore(NamedTuple):
    """What a role was told last in a conversation of the same name that was forgotten. No word of it is held."""

    text: str
    began: Beginnings
    forked: bool
    """Whether its last request was a fork, or one in such a conversation before that."""


@dataclass(slots=True)
class _Talk:
    """What the requests of one conversation with one model and tool set come to so far."""

    line: _Point = _START
    """The longest beginning of the conversation that was sent in front of a role's text."""
    before: _Point = _START
    """The one before that was sent so."""
    last: _Point = _START
    """Where the conversation ended when somebody last asked."""
    earlier: _Point = _START
    """Where it ended when somebody asked the time before; the start where that decides nothing."""
    spoken: int = 0
    """Tokens up to there."""
    missed: int = 0
    """Tokens that sharing would have saved by now, had it begun before; less than 0 where it would have cost more."""
    saved: int = 0
    """Tokens that it has saved by now; less than 0 where texts were paid for what others may yet read."""
    fresh: int = 0
    """Tokens that the application's own requests would have paid in full by now."""
    anew: int = 0
    """Tokens that were paid by now for carrying the tools of all on a guess, behind a conversation's first request."""
    asked: int = 0
    """Requests so far."""
    texts: Texts = _AS_FORKS
    """By which layout those go whose own text is new."""
    seats: Bounded[str, _LastRequest] = field(default_factory=lambda: Bounded(_SEATS))
    """The last request of each role."""
    met: Bounded[str, _Met] = field(default_factory=lambda: Bounded(_SEATS))
    """How each role began it, or one of this name that was forgotten."""
    told: Bounded[str, _ToldBefore] = field(default_factory=lambda: Bounded(_SEATS))
    """What each role was told in one of this name that was forgotten."""

    def forgotten(self) -> _Talk:
        """What stays of it for a conversation that begins under its name."""
        news = _Talk(texts=self.texts)
        news.met.update(self.met)
        news.told.update(self.told)
        for role, seat in self.seats.items():
            before = self.told.get(role)
            forked = seat.at is not None or (before is not None and before.text == seat.text and before.forked)
            news.told[role] = _ToldBefore(seat.text, seat.began, forked)
        return news

    def overspent(self, saves: int) -> bool:
        """Whether short texts at the end, with one more that saves (or costs) so much, have cost too much in all.

        That is more than a 32nd of what the application's own requests would have paid in full by now.
        """
        return self.saved + saves < -(self.fresh // _SPARE)


@dataclass(frozen=True, slots=True)
class CountedHistory(Generic[M]):
    """The messages of a request, and what is to be known of each."""

    messages: Sequence[M]
    digest: Callable[[M], str]
    tokens: Callable[[M], int]
    behind: Sequence[M] = ()
    """Those that follow them, among which no role's text may stand."""
    joined: Callable[[M, M], bool] = lambda _before, _behind: False
    """Whether a provider refuses a text between two messages, as between a call and its result."""

    def point(self, index: int) -> _Point:
        """Behind so many messages."""
        if not index:
            return _START
        last, first = self.digest(self.messages[index - 1]), self.digest(self.messages[0])
        return _Point(index, last, self.digest(self.messages[index - 2]) if index > 1 else "", first)

    def holds(self, point: _Point) -> bool:
        """Whether the point is still where it was. Goes by one message: what stands before it only ever grows.

        Where many conversations have one name, each begins with another message, and may go on with the very same.
        """
        if not point.index:
            return True
        if point.index > len(self.messages) or point.first not in ("", self.digest(self.messages[0])):
            return False
        return self.digest(self.messages[point.index - 1]) == point.digest and not self.parts(point.index)

    def parts(self, index: int) -> bool:
        """Whether a text behind so many messages would part what providers refuse apart.

        Where the application has rewritten a result, what stood behind it can stand behind its call no more.
        """
        return 0 < index < len(self.messages) and self.joined(*self.messages[index - 1 : index + 1])

    def held(self, point: _Point) -> _Point:
        """The point, or the message before it, where that is still where it was; the start where neither is.

        The last message of a request may be this one's alone (what was looked up for it), or go on in the next one.
        """
        before = _Point(point.index - 1, point.before, first=point.first) if point.before else _START
        return next((one for one in (point, before) if self.holds(one)), _START)

    def since(self, point: _Point) -> int:
        """Tokens behind a point."""
        return sum(map(self.tokens, self.messages[point.index :]))


@dataclass(frozen=True, slots=True)
class RoleRequest(Generic[M]):
    """A role's request among the messages of a conversation, before its text has a place there."""

    conversation: Decided
    role: str
    text: str
    """What the role is told, the same from request to request."""
    history: CountedHistory[M]
    model: str = ""
    shared: bool = True
    """Whether what stands before the text is worth sharing at all."""
    joint: bool = True
    """False where the conversation is this role's alone, as far as is known."""
    cached: bool = False
    """Whether the framework itself marks requests in its own layout, so that a provider keeps them."""
    lane: str = ""
    """Name of the role's tool set."""
    moves: int = 0
    """Tokens that stand behind the text wherever it stands, and move with it."""
    holds: bool = False
    """Whether the place of the role's last request stays for as long as nothing is said."""
    resumed: bool = False
    """Whether the role goes on in the application's own layout."""
    written: bool = False
    """Whether the request's end is marked in any case."""
    schema: str = ""
    """Names the schema that the answer follows, which parts the request from those with another one."""
    said: Callable[[int], Sequence[int]] = lambda _behind: ()
    """Gives the tokens of each message that it shares behind so many, before anything was shortened."""
    instruction: str = ""
    """The role's own text as the application has it; empty for ``text``."""
    shared_at: int | None = None
    """Characters of the role's own text in front of the shared one, in the application's own system text; None where
    that is not there."""
    tools: tuple[str, ...] = ()
    """Names of the role's own tools, which stand in front of its own text."""


@dataclass(frozen=True, slots=True)
class RoleText(Generic[M]):
    """A role's text that is to be placed, and what decides on its place. Sizes are token counts."""

    role: str
    text: str
    """A name that no other text has."""
    size: int
    """s: of the text, with all that moves with it."""
    history: CountedHistory[M]
    opening: int
    """o: of the shared system text."""
    rules: CacheRules
    shared: bool = True
    """Whether what stands before the text is worth sharing at all."""
    readers: Readers = "expected"
    holds: bool = False
    """Whether the place of the role's last request stays for as long as nothing is said."""
    resumed: bool = False
    """Whether the role goes on in the application's own layout."""
    written: bool = False
    """Whether the request's end is marked in any case."""
    recorded: Callable[[], int | None] = lambda: None
    """Gives the place that an earlier process has recorded."""
    said: Callable[[int], Sequence[int]] = lambda _behind: ()
    """As in ``RoleRequest``."""
    began: Beginnings = ()
    """What is kept of the role's own text."""
    common: Callable[[Iterable[Beginnings]], int] = lambda _: 0
    """Counts the tokens of the role's own text that one of the texts began with of which such is kept."""
    reads: Callable[[Iterable[Beginnings]], int] = lambda _: 0
    """Counts the same of the application's own system text, the shared one included."""
    behind: bool = False
    """Whether the shared text stands behind the role's own in the application's own system text."""
    met: Callable[[], int] = lambda: 0
    """Notes that the role begins a conversation, and counts those that it began before with the very same text, and
    with something else said; -1 where it began others with other texts alone."""

    @property
    def keeps(self) -> bool:
        """Whether the text may keep its place at once; others go to the end, unless that costs too much (``_SPARE``).

        Where whole requests are kept a text at another place makes another request, however short it is.
        """
        return self.size >= LONG or self.rules.units or self.readers == "never"


@dataclass(frozen=True, slots=True)
class _Known(Generic[M]):
    """What is known of a conversation when a role asks in it. Token counts, by the symbols of the module."""

    talk: _Talk
    seat: _LastRequest | None
    """The role's last request, where its messages and its text are still what they were."""
    line: _Point
    """The longest beginning that was sent in front of a role's text; the start where that is no beginning any more."""
    readable: _Point
    """Of that, what the provider reads."""
    last: _Point
    would_read: _Point
    """How far this request would be read, had all before it been sent in front of a role's text."""
    end: _Point
    spoken: int
    """e"""
    stake: int
    """S"""
    passes: bool = False
    """Whether the last message of the role's last request was for that one alone."""
    met: int = 0
    """m: where the role begins the conversation, those that it began before with the very same text; -1 where it began
    others with other texts alone."""
    texts: Texts = _AS_FORKS
    """By which layout this request goes if its own text is new."""
    changed: _Changed | None = None
    """Where its text stands best if that only goes on otherwise than the one before."""

    @classmethod
    def of(cls, talk: _Talk, due: RoleText[M]) -> _Known[M]:
        """What holds of a conversation's places among the messages of a request."""
        history, seat = due.history, talk.seats.get(due.role)
        line, before, last, earlier = map(history.held, (talk.line, talk.before, talk.last, talk.earlier))
        sent, seat = seat, None if seat is None else _held(seat, due)
        spoken = history.since(last) + (talk.spoken if last.index else 0)
        return cls(
            talk=talk,
            seat=seat,
            line=line,
            # A provider's rule (DeepSeek): what requests have in common is kept only from the second one on. So is what
            # they would have had in common.
            readable=before if due.rules.units else line,
            last=last,
            would_read=earlier if due.rules.units else last,
            end=history.point(len(history.messages)),
            spoken=spoken,
            stake=(due.opening + spoken) // _STAKE,
            passes=seat is not None and sent is not None and seat.end != sent.end,
            texts=talk.texts,
        )


def _held(seat: _LastRequest, due: RoleText[M]) -> _LastRequest | None:
    """A role's last request as far as the next one begins like it; None where nothing of it can be read.

    That is where the role was told something else, or its history was edited; a text in front of all of that is read.
    """
    at, end = None if seat.at is None else due.history.held(seat.at), due.history.held(seat.end)
    # A provider's rule: where no marks are needed, a request is read as far as it is the same. What stood behind the
    # text was said to a sibling, which asks in the same conversation for the same role and has gone on since.
    if at is not None and not end.index and not due.rules.marked:
        end = at
    points = ((seat.at or _START, at or _START), *(((seat.end, end),) if seat.at != _START else ()))
    lost = seat.text != due.text or any(was.index and not now.index for was, now in points)
    if lost or (at, end) == (seat.at, seat.end):
        return None if lost else seat
    # What stood before the text is no beginning any more, so that the text is not read there.
    return replace(seat, at=at, end=end, kept=seat.kept and at == seat.at)


class _Choice(NamedTuple):
    """Where a role's text goes, and what that comes to. Token counts."""

    at: _Point | None
    """None for the application's own layout."""
    kept: bool
    """Whether the provider keeps the request to its end."""
    continues: bool = False
    """Whether it is to be marked at its end."""
    saves: int = 0
    """What sharing saves by this request; less than 0 where the text is paid for what others may yet read."""
    missed: int = 0
    """What sharing would have saved by it."""

    @property
    def position(self) -> RolePosition:
        """The same for who lays the request out."""
        return RolePosition(None if self.at is None else self.at.index, self.continues)


class RolePositions(Guarded):
    """The places in force, by conversation and role. Thread-safe, bounded."""

    def __init__(self) -> None:
        self._talks: Bounded[tuple[str, str], dict[str, _Talk]] = Bounded(_TALKS)
        # By tenant, lane and text: where a role began last (the conversation, and digests of what was said first and
        # last there), and how many others it had begun before with something else. No words of any are held.
        self._begun: Bounded[tuple[str, str, str], tuple[tuple[str, str, str], int]] = Bounded(_TALKS)
        # Tenants' conversations that went back, or were taken up.
        self._restored: Bounded[tuple[str, str], bool] = Bounded(_TALKS)
        # By tenant and lane: whether new texts last went by the application's own layout; and by role, its last text.
        self._owning: Bounded[tuple[str, str], bool] = Bounded(_TALKS)
        self._told: Bounded[tuple[str, str, str], tuple[str, Beginnings]] = Bounded(_TALKS)
        self._unbegun: Bounded[tuple[str, str], _Unbegun] = Bounded(_TALKS)
        self._sizes: Bounded[tuple[str, str], int] = Bounded(_SIZES)
        self._lock = Lock()

    def size(self, name: str, text: str, model: str, count: Callable[[str, str], int]) -> int:
        """Tokens of a text that is asked for with every request, under a name that no other text has."""
        found = self._sizes.get((name, model))
        if found is None:
            found = count(text, model) if text else 0
            with self._lock:
                self._sizes[name, model] = found
        return found

    def choose(self, key: tuple[str, str, str], due: RoleText[M]) -> RolePosition:
        """The place of a role's text among the messages of its request, which is noted as sent.

        ``key`` names the tenant, the conversation, and the model with the name of the role's tool set.
        """
        known = _Known.of(self._talk(key), due)
        seat, again = known.seat, _is_read_again(due, known)
        if due.holds and seat is not None and seat.end == known.end and seat.shared == due.shared:
            held = _Choice(seat.at, seat.kept, seat.continues).position
            return held._replace(routed=seat.at is None and known.texts.own, again=again)
        if seat is None:
            was = known.talk.seats.get(due.role)
            # A text that stayed is no new one, whatever was removed of the history behind it; and where messages of one
            # that goes on were removed, the role begins no other conversation.
            stayed = was is not None and was.text == due.text
            whole = length_gone_on(was.said, due.said) if stayed and was is not None else 0
            if whole <= len(due.history.messages):
                known = replace(known, met=due.met())
            if not stayed:
                known = replace(known, changed=None if was is None else _changed(due, known, was))
                known = replace(known, texts=self._texts(key, due, known))
        choice = _chosen(due, known)
        self._note(due, known, choice)
        return choice.position._replace(routed=choice.at is None and known.texts.own, again=again)

    def settle(
        self, team: Team, services: Services, asked: RoleRequest[M], position: RolePosition, *, last_call: bool = False
    ) -> None:
        """Note a place that was decided elsewhere: later requests, of which less is known, go by it.

        ``last_call`` says that it is known that no request of the role comes behind it, for which nothing is written.
        """
        due = self._due(team, services, asked)
        self._asks(_key(asked))
        known = _Known.of(self._talk(_key(asked)), due)
        if position.at is None:
            choice = _Choice(None, due.rules.alone or (not last_call and _marked_own(due, known)))
        else:
            kept = position.continues or not due.rules.marked
            choice = _Choice(due.history.point(position.at), kept, position.continues)
        if known.seat is None:
            self._met(_key(asked), due)
        self._note(due, known, choice)

    def place(self, team: Team, services: Services, asked: RoleRequest[M]) -> RolePosition:
        """Where a role's text goes; a place that is not the end is recorded, so that another process takes it up."""
        due, conversation, history = self._due(team, services, asked), asked.conversation, asked.history
        key = _key(asked)
        self._asks(key)

        def met() -> int:
            with self._lock:
                asked_before = (key[0], key[2], due.role) in self._told
            counted, first = self._met(key, due), history.point(min(1, len(history.messages))).digest
            if conversation.decided("places", f"{_AGAIN}@{first}") is None:
                conversation.decide("places", f"{_AGAIN}@{first}", str(min(counted, 1) or -asked_before))
            # Another process that takes the conversation up has met nobody: all roles go by what its first one found.
            return int(conversation.decided("places", f"{_AGAIN}@{first}") or 0)

        found = self.choose(key, replace(due, met=met))
        at = len(history.messages)
        # A text stands in front of all that is said because of other conversations, which another process may not know.
        # Money: one that went on otherwise where it stood is read there again when it comes back.
        if found.at is not None and at and due.size >= LONG and (found.at in (0, at) or due.recorded() is None):
            behind = history.point(found.at)
            name = _place_name(due.text, asked.lane)
            conversation.decide("places", f"{name}@{found.at}@{behind.digest}@{behind.first}")
        return found._replace(noted=True)

    def _asks(self, key: tuple[str, str, str]) -> None:
        """Count a request whose place is noted, for as long as none of its conversation has been answered."""
        with self._lock:
            unbegun = self._unbegun.get(key[:2])
            if unbegun is None:
                talks = self._talks.get(key[:2], {})
                if key[:2] in self._restored or any(one.asked or one.told for one in talks.values()):
                    return
                unbegun = self._unbegun[key[:2]] = _Unbegun()
            unbegun.placed += 1

    def _met(self, key: tuple[str, str, str], due: RoleText[M]) -> int:
        """How many other conversations a role began before with its text in which something else was said.

        That it begins this one is noted. Where the very same was said, the request is to be the same one: all of it is
        read then, and an application may have the answer in a cache of its own. Where many have one name, another first
        message tells them apart, but in one that went back: that is no other one, and goes on as in a process that
        takes it up.
        """
        (scope, conversation, lane), history = key, due.history
        # Money: two may end with the same words, as a router's answer or a handoff's, whatever was asked.
        digests = [history.digest(message) for message in history.messages]
        first, said = digest_of(*digests[:1]), digest_of(*digests)
        begins = conversation, first, said
        text, role = (scope, lane, due.text), (scope, lane, due.role)
        with self._lock:
            unbegun = self._unbegun.get((scope, conversation))
            if unbegun is not None:
                told, owning = self._told.get(role), self._owning.get((scope, lane))
                unbegun.before.append(_Before(text, role, self._begun.get(text), told, owning))
            (name, began, heard), others = self._begun.get((scope, lane, due.text), (begins, 0))
            here = name == conversation and (began == first or (scope, conversation) in self._restored)
            others += not here and heard != said
            self._begun[scope, lane, due.text] = begins, others
            self._new_or_held(key).met[due.role] = _Met(due.text, said, others)
        return others

    def _texts(self, key: tuple[str, str, str], due: RoleText[M], known: _Known[M]) -> Texts:
        """By which layout a request goes whose own text is new in the conversation; what it is told is noted."""
        scope, _, lane = key
        with self._lock:
            text, began = self._told.get((scope, lane, due.role), (due.text, ()))
            self._told[scope, lane, due.role] = due.text, due.began
            # A conversation that begins goes by the role's last text in any other one: a text that stays the same
            # stands in front of what is said then (``_comes_again``).
            others = [] if text == due.text else [began]
            if known.talk.asked:
                others = [seat.began for seat in known.talk.seats.values()]
        found = _texts(due, known, others) if due.shared else known.texts
        with self._lock:
            self._owning[scope, lane] = found.own
        return found

    def _due(self, team: Team, services: Services, asked: RoleRequest[M]) -> RoleText[M]:
        """A request's text as it is to be placed."""
        conversation, model, own, key = asked.conversation, asked.model, *_names(team, asked)
        readers: Readers = "expected" if asked.joint else "never"
        # A process that took the conversation up may not have met its other roles yet.
        heard = self.asked_by(conversation)
        if asked.joint and team.alone and heard <= {key}:
            readers = "none yet"
        if not team.others_with(conversation, asked.role, asked.schema, heard):
            readers = "never"
        opening = self.size(team.prefix.key, team.prefix.text, model, services.count)
        own_text = asked.instruction or asked.text
        began = beginnings_of(own_text, asked.tools)

        def shared(others: Iterable[Beginnings]) -> tuple[int, str]:
            found = in_common(own_text, began, others)
            return services.count(found, model) if found else 0, found

        def reads(others: Iterable[Beginnings]) -> int:
            tokens, found = shared(others)
            # Up to a quarter more may be in common than is seen.
            holds = asked.shared_at is not None and 5 * len(found) >= 4 * asked.shared_at
            return tokens + opening * holds

        return RoleText(
            role=key,
            text=own,
            size=self.size(own, asked.text, model, services.count) + asked.moves,
            history=asked.history,
            opening=opening,
            rules=CacheRules.of(rules_in(conversation, services, model), cached=asked.cached),
            shared=asked.shared,
            readers=readers,
            holds=asked.holds,
            resumed=asked.resumed,
            written=asked.written,
            recorded=lambda: _recorded(conversation, _place_name(own, asked.lane), asked.history),
            said=asked.said,
            began=began,
            common=lambda others: shared(others)[0],
            reads=reads,
            behind=bool(asked.shared_at),
        )

    def _note(self, due: RoleText[M], known: _Known[M], choice: _Choice) -> None:
        """Note a request as sent, for what comes after it."""
        talk, seat, at = known.talk, known.seat, choice.at
        goes_on = seat is not None and due.rules.alone
        fresh = due.history.since(seat.end) if seat is not None and goes_on else due.opening + due.size + known.spoken
        sent = talk.seats.get(due.role)
        said = gone_on(sent.said if sent is not None else (), due.said)
        with self._lock:
            talk.fresh += fresh
            if due.rules.units:
                talk.earlier = known.last
            talk.last = known.end
            talk.spoken, talk.asked = known.spoken, talk.asked + 1
            talk.missed, talk.saved = talk.missed + choice.missed, talk.saved + choice.saves
            talk.texts = known.texts
            if at is not None and at.index >= known.line.index and not (seat is not None and seat.at == at):
                # A second one with the same beginning; the same role's next request begins with its own text, too.
                talk.line, talk.before = at, known.line
            changed = sent is not None and (sent.changed or sent.text != due.text)
            talk.seats[due.role] = _LastRequest(
                due.text, at, known.end, choice.kept, due.shared, choice.continues, due.keeps, due.size, said,
                due.began, changed,
            )  # fmt: skip

    def outrun(self, conversation: Decided, lane: str, role: str, said: Sequence[int], *, units: bool) -> Outrun:
        """How far a role's last request in a lane is behind those with all tools.

        ``lane`` is the model (with an answer's schema) and the name of the role's own tool set, ``said`` the tokens of
        each message that its request shares; ``units`` as in ``CacheRules``.
        """
        with self._lock:
            talks = self._held(conversation)
            own, all_tools = talks.get(lane), talks.get(f"{lane.partition(_PART)[0]}{_PART}")
            seat = own.seats.get(role) if own is not None else None
            if seat is None or all_tools is None:
                return Outrun()
            line = (all_tools.before if units else all_tools.line).index
            # Money: where each role runs tools of its own, others' messages are not this one's, however many they are.
            # What others read of a request stands before its text.
            sent = [
                tuple(each for each in one.said if each.messages <= one.at.index)
                for one in all_tools.seats.values()
                if one.at is not None and one.said
            ]
            if sent:
                line = min(line, max(each.messages for each in longest_of(sent, said)))
            return Outrun(seat.end.index, line, seat.kept)

    def forked(self, conversation: Decided, lane: str, role: str) -> bool:
        """Whether a role's last request in a lane was a fork; ``lane`` as in ``outrun``."""
        with self._lock:
            own = self._held(conversation).get(lane)
            seat = own.seats.get(role) if own is not None else None
            return seat is not None and seat.at is not None

    def anew(self, conversation: Decided, role: str, said: Sequence[int]) -> Anew:
        """What others than a role pay once more if the tools grow that a conversation's requests carry.

        The role writes what was said to it anew itself (``said``, as in ``outrun``). What was not, as where others run
        tools for themselves, they pay, and their own texts.
        """
        with self._lock:
            texts, known = 0, set[Beginning]()
            pairs = (pair for talk in self._carrying(conversation) for pair in talk.seats.items())
            others = [seat for name, seat in pairs if name != role and seat.at is not None]
            for seat, longest in zip(others, longest_of([one.said for one in others], said), strict=True):
                texts += seat.size if seat.kept and seat.long else 0
                # What two of them were told is paid once.
                told = max((longest, *known.intersection(seat.said)))
                texts += seat.said[-1].tokens - told.tokens if seat.said else 0
                known.update(seat.said)
            return Anew(texts, sum(talk.anew for talk in self._held(conversation).values()))

    def paid_anew(self, conversation: Decided, cost: int, *, grows: bool) -> None:
        """Note what a conversation pays on the guess that others will carry the tools of all too.

        With ``grows`` they are more than its requests have carried so far. Tools stand in front of everything else:
        nothing of what was sent behind the fewer ones is read any more.
        """
        with self._lock:
            for talk in list(self._held(conversation).values())[:1]:
                talk.anew += cost
            for talk in self._carrying(conversation) if grows else ():
                talk.line = talk.before = _START
                for seat in talk.seats.values():
                    # One in the application's own layout has the role's own tools, however many the others carry.
                    seat.kept = seat.kept and seat.at is None

    def _carrying(self, conversation: Decided) -> Sequence[_Talk]:
        """What is held of a conversation's requests with the tools of all, by model."""
        return [talk for name, talk in self._held(conversation).items() if not name.partition(_PART)[2]]

    def paid(self, conversation: Decided, model: str) -> int:
        """Tokens that the application's own requests to a model would have paid in full in a conversation by now.

        ``model`` as ``lane_of`` names it.
        """
        with self._lock:
            talks = self._held(conversation)
            return sum(talk.fresh for name, talk in talks.items() if name.partition(_PART)[0] == model)

    def begun(self, conversation: Decided, model: str) -> bool:
        """Whether a request to a model has been sent in a conversation that others can read a beginning of."""
        with self._lock:
            talks = self._held(conversation)
            return any(talk.line.index for name, talk in talks.items() if name.partition(_PART)[0] == model)

    def saved(self, scope: str, conversation: str) -> dict[str, Any]:
        """All places in force in a conversation as plain data, for a framework's own state; ``load`` takes it."""
        with self._lock:
            return {name: _plain(talk) for name, talk in self._talks.get((scope, conversation), {}).items()}

    def load(self, scope: str, conversation: str, saved: Mapping[str, Any], *, merge: bool = False) -> None:
        """Go on with places that were saved, in another process too, in place of those that came about since.

        With ``merge``, beside those, as ``merged_places`` says.
        """
        with self._lock:
            talks = self._talks.of((scope, conversation), dict)
            if merge and talks:
                saved = merged_places({name: _plain(talk) for name, talk in talks.items()}, saved)
            found = {name: _talk_of(one) for name, one in saved.items()}
            talks.clear()
            talks.update(found)
            self._restored[scope, conversation] = True
            for lane, talk in found.items():
                self._meet(scope, conversation, lane, talk)

    def _meet(self, scope: str, conversation: str, lane: str, talk: _Talk) -> None:
        """Know of the roles of a conversation that was saved, or is forgotten, what the process before knew of them."""
        for role, met in talk.met.items():
            # Of one that was forgotten none goes on.
            name = conversation if role in talk.seats else ""
            self._begun[scope, lane, met.text] = (name, "", met.said), met.others
        told = {role: (one.text, one.began) for role, one in talk.told.items()}
        told |= {role: (seat.text, seat.began) for role, seat in talk.seats.items()}
        for role, one in told.items():
            self._told[scope, lane, role] = one

    def answered(self, scope: str, conversation: str) -> None:
        """A request of a conversation was answered: it has begun."""
        with self._lock:
            self._unbegun.pop((scope, conversation), None)

    def unanswered(self, scope: str, conversation: str) -> None:
        """A request whose place was noted came to nothing; where none of its conversation did better, none has begun.

        A provider writes nothing for what it refuses, so that what roles are told elsewhere was told nowhere yet, and
        another process, which has not met them, sends the same.
        """
        with self._lock:
            unbegun = self._unbegun.get((scope, conversation))
            if unbegun is None:
                return
            unbegun.failed += 1
            if unbegun.failed < unbegun.placed:
                return  # another one may yet be answered
            del self._unbegun[scope, conversation]
            self._talks.pop((scope, conversation), None)
            for was in reversed(unbegun.before):
                begun = self._begun.get(was.text)
                if begun is None or begun[0][0] != conversation:
                    continue  # the role has begun another one since
                _put_back(self._begun, was.text, was.begun)
                _put_back(self._told, was.role, was.told)
                _put_back(self._owning, was.role[:2], was.owning)

    def forget(self, scope: str, conversation: str, *, again: bool = False) -> None:
        """Let a conversation go, with all models.

        With ``again`` another one may begin under its name, as a task of the same team. How its roles began this one
        stays, to be saved with that: a process that takes it up lays out the same.
        """
        with self._lock:
            talks = self._talks.pop((scope, conversation), {})
            self._restored.pop((scope, conversation), None)
            self._unbegun.pop((scope, conversation), None)
            if not again:
                return
            for lane, talk in talks.items():
                news = self._talks.of((scope, conversation), dict)[lane] = talk.forgotten()
                # Money: what is said next is another conversation, in front of which texts that come again are read.
                self._meet(scope, conversation, lane, news)

    def told_before(self, conversation: Decided, role: str, instruction: str, tools: Iterable[str]) -> bool:
        """Whether a role was a fork, with the same text, in a conversation of this name that was forgotten.

        In a process before, too. ``tools`` are the names of the role's own ones.
        """
        began = beginnings_of(instruction, tools)
        with self._lock:
            told = [talk.told.get(role) for talk in self._held(conversation).values()]
        return any(one is not None and one.forked and one.began == began for one in told)

    def asked_by(self, conversation: Decided) -> set[str]:
        """The roles that asked in a conversation."""
        with self._lock:
            return {role for talk in self._held(conversation).values() for role in talk.seats}

    def _held(self, conversation: Decided) -> Mapping[str, _Talk]:
        """What is held of a conversation, by model and tool set."""
        return self._talks.get((conversation.scope, conversation.id), {})

    def _talk(self, key: tuple[str, str, str]) -> _Talk:
        """What is held of a conversation with one model and tool set; new where nothing is."""
        with self._lock:
            return self._new_or_held(key)

    def _new_or_held(self, key: tuple[str, str, str]) -> _Talk:
        """``_talk``, under the lock."""
        known: dict[str, _Talk] = self._talks.of(key[:2], dict)
        # Money: one that begins goes by what the team's texts were like in the last one.
        began = _Talk(texts=Texts(own=self._owning.get((key[0], key[2]), False)))
        return known.setdefault(key[2], began)


def _put_back(known: Bounded[_K, _V], key: _K, was: _V | None) -> None:
    """Know of a key what was known of it before, if anything."""
    if was is None:
        known.pop(key, None)
    else:
        known[key] = was


def _is_read_again(due: RoleText[M], known: _Known[M]) -> bool:
    """Whether what is said in a request is taken to be read by a later one of the conversation.

    It is where it begins as an earlier one did, anybody's last one or the role's own. Of a role's first request nobody
    knows: where the application's own is written to its end, ours is, too.
    """
    first = due.role not in known.talk.seats and due.rules.marked and due.rules.alone
    return first or bool(known.last.index or (known.seat is not None and known.seat.end.index))


def _chosen(due: RoleText[M], known: _Known[M]) -> _Choice:
    """Where a role's text goes in a request that is due."""
    rules = due.rules
    # Where the application's own requests would be kept whole, and paid for as such, ours may be too.
    continues = rules.marked and rules.alone and due.keeps and due.size > known.stake
    behind = _Choice(known.end, continues or due.written or not rules.marked, continues)
    shares = due.shared and not due.resumed
    if known.seat is None:
        found = _first(due, known, behind) if shares else None
    elif known.seat.at is None or not known.seat.at.index:
        # In front of all that is said a text stands as in the application's own layout, and is left as that is.
        found = _leaving(due, known, known.seat, behind, shares=shares)
        if found.at is None and shares and known.seat.at is not None:
            found = found._replace(at=known.seat.at, kept=True, continues=rules.marked)
    else:
        found = _again(due, known, known.seat, behind) if shares else None
    if found is None or found.at is None:
        own = rules.alone or _marked_own(due, known)
        return _Choice(None, own, missed=found.missed if found is not None else 0)
    return found


def _first(due: RoleText[M], known: _Known[M], behind: _Choice) -> _Choice:
    """A role's first request: where another process recorded its text, or behind the conversation.

    There it saves what others' requests have sent of it, v tokens being still unread: ``o + e - v``.
    """
    recorded = due.recorded() if due.keeps else None
    if recorded is not None:
        return _Choice(due.history.point(recorded), kept=True, continues=due.rules.marked)
    if _comes_again(due, known):
        # A provider's rule: where marks decide, one behind the text lets later conversations read it (``fronts``).
        return behind._replace(at=_START, kept=True, continues=due.rules.marked)
    if known.texts.own:
        return behind._replace(at=None)
    if _may_come_again(due, known) or _may_be_one_of_many(due, known):
        return behind._replace(at=_START, kept=True, saves=due.opening if known.readable.index else 0)
    if known.changed is not None:
        return behind._replace(at=known.changed.at, kept=True)
    if not known.readable.index:
        return behind
    return behind._replace(saves=due.opening + known.spoken - due.history.since(known.readable))


def _changed(due: RoleText[M], known: _Known[M], was: _LastRequest) -> _Changed | None:
    """Where a text goes that is new and begins like the role's last one, if it costs less there than behind the rest.

    With p tokens said since that place, it is read there up to where the texts part; what was said is not, now and, if
    the text changes again, then: that is taken for granted once it has, and may cost S before.

        p - c < v   and   p <= c, or p <= c + S for the first change

    A provider's rule: where marks decide, or whole requests are kept, nothing is read that ends within a text.
    """
    if was.at is None or due.rules.marked or due.rules.units or not due.history.holds(was.at):
        return None
    common, since = due.common([was.began]), due.history.since(was.at)
    if since - common >= due.history.since(known.readable) or since > common + known.stake * (not was.changed):
        return None
    return _Changed(was.at, common)


def _texts(due: RoleText[M], known: _Known[M], others: Sequence[Beginnings]) -> Texts:
    """By which layout a request goes whose own text is new: a role's first one, and each of one whose text changes.

    The application's own layout reads what its system text and an earlier one begin with, c tokens with the shared text
    (the same documents in front of each role's text, or a role's text in front of other documents each time). Behind
    the conversation the text is paid anew, and what was said by the last request is read; where the role's last text
    stood, what both begin with (``_Changed``), p tokens having been said since:

        own reads  c        a fork reads  o + e - u, or o + e - p + c

    Nobody knows how the next texts begin: this is ski rental. A layout is left once the other one would have read more
    than changing costs, since it was last changed: e - u, which the own layout pays anew for each of the roles that
    have asked (in a conversation that begins e, which others would read), with o where that stands behind the role's
    text, so that nothing of it is read; or s, which a fork does.
    """
    own, more = known.texts
    # A provider's rule: where marks decide, nothing is kept that ends within a system text.
    if due.rules.marked or not others:
        return known.texts
    told = known.spoken - due.history.since(known.last) if known.talk.asked else 0
    reads = due.reads(others)
    if not reads and due.role not in known.talk.seats:
        return known.texts  # Of a role that begins with no other's text nobody knows what its next one begins with.
    place = known.changed
    in_place = 0 if place is None else known.spoken - due.history.since(place.at) + place.common
    ahead = reads - due.opening - max(told, in_place)
    more = max(0, more - ahead if own else more + ahead)
    anew = (told * len(known.talk.seats) or known.spoken) + due.opening * due.behind
    costs = due.size if own else anew
    return Texts(not own) if more > costs else Texts(own, more)


def _comes_again(due: RoleText[M], known: _Known[M]) -> bool:
    """Whether a role's first request in a conversation is to begin as those in other conversations did.

    In front of what is said, its text is read by the first requests of later conversations, and what is said is read by
    nobody else. In m conversations before that would have saved s each; now it costs e:

        m > 0   and   s > e

    A shorter text than ``LONG`` would save next to nothing, and its places are not recorded.
    """
    return known.met > 0 and due.size > max(known.spoken, LONG - 1)


def _may_come_again(due: RoleText[M], known: _Known[M]) -> bool:
    """Whether a text that came in place of another one is to stand in front of what is said, for later conversations.

    Nobody knows in a team's first one whether the next will have the same texts, as where documents are looked up for
    questions that all ask. In front it costs what it costs unmodified, but for c tokens that are read where the last
    text stands among what is said, and lets others read none of that:

        m = 0   and   e + c <= s / FEW

    Where marks decide it would be written for that.
    """
    if due.role not in known.talk.seats or known.met or due.rules.marked:
        return False
    place = known.changed
    # In front of all that is said the last one is read there too.
    beside = known.spoken + (place.common if place is not None and place.at.index else 0)
    return _FEW * beside <= due.size


def _may_be_one_of_many(due: RoleText[M], known: _Known[M]) -> bool:
    """Whether a role's first request in a team's first conversation begins with its text, for those of later ones.

    Nobody knows whether there will be any; in the second one each text is paid once more that stood behind what was
    said. In front a text costs the e - v tokens that are read of others' requests, surely, and e that later ones
    cannot read of this, which they may ask for or not:

        m = 0   and   2 * (e - v) + v <= s / MANY

    Where marks decide it would be written for that, and where whole requests are kept each text in front parts them.
    """
    if due.role in known.talk.seats or known.met or due.rules.marked or due.rules.units:
        return False
    return due.size >= LONG and _MANY * (2 * known.spoken - due.history.since(known.readable)) <= due.size


def _leaving(due: RoleText[M], known: _Known[M], seat: _LastRequest, behind: _Choice, *, shares: bool) -> _Choice:
    """A role's request after one in the application's own layout: behind the conversation, or in that layout again."""
    history = due.history
    gains = history.since(seat.end) - due.size  # n - s: what going behind saves where all of it can be read there
    since_last = history.since(known.would_read)
    # Who would follow others misses nothing that it could have begun itself.
    missed = 0 if known.line.index else gains - since_last
    if not shares:
        leaves, saves = False, 0
    elif not seat.kept:
        # Money: the provider has nothing of its own layout, so that nothing is lost by leaving it.
        leaves, saves = True, 0
    elif seat.at is not None and known.last == seat.end:
        # In front of all that was said, as a fork: nobody has gone on since, and it begins to share as any fork does.
        saves = gains - history.since(known.readable)
        leaves = -saves <= min(history.since(seat.end), known.talk.saved + _beforehand(due, known))
        saves *= leaves
    elif known.readable.index:
        saves = gains - history.since(known.readable)
        # A fork leaves its place where that saves, and what is the role's own layout at a loss too, to be one.
        leaves = saves >= 0 if seat.at is not None else _may_follow(known, saves)
        saves = min(0, saves) * leaves
    else:
        leaves, saves = _may_lead(known, gains, since_last, missed), 0
    return behind._replace(at=behind.at if leaves else None, saves=saves, missed=missed)


def _may_follow(known: _Known[M], saves: int) -> bool:
    """Whether a role leaves its own layout for a beginning that others have sent; ``saves`` is ``n - s - v``.

    It does even at a loss, which the first of those to come reads: two that are asked at once would else never share.
    The loss is paid out of what sharing has saved, and S at most beforehand:

        v + s - n <= saved + S
    """
    return -saves <= known.talk.saved + known.stake


def _may_lead(known: _Known[M], gains: int, since_last: int, missed: int) -> bool:
    """Whether a role is the first to leave its own layout; ``gains`` is ``n - s``.

    ``since_last`` is u; where whole requests are kept, what was said since the request before the last one.

    It pays for the whole conversation, and nobody knows for how long others will make use of that. It does so once
    sharing would have saved half of this already:

        u < n - s   and   2 * missed >= e - (n - s)
    """
    return since_last < gains and 2 * (known.talk.missed + missed) >= known.spoken - gains


def _again(due: RoleText[M], known: _Known[M], seat: _LastRequest, behind: _Choice) -> _Choice:
    """A role's request after one that was a fork: behind the conversation, or where its text stood."""
    stays, saves = _costs_less_in_place(due, known, seat)
    # Money: a short text goes to the end all the same, until such texts have cost too much.
    if stays and (due.keeps or known.talk.overspent(saves)):
        # A provider's rule: what it has not kept to its end is not read. Then the text stands where the next request
        # of the role will find it.
        # What was said for its last request alone comes no second time: the text stands in front of such messages.
        stays_at = seat.end if known.passes else known.end
        return _Choice(seat.at if seat.kept else stays_at, kept=True, continues=due.rules.marked)
    return behind._replace(saves=saves)


def _costs_less_in_place(due: RoleText[M], known: _Known[M], seat: _LastRequest) -> tuple[bool, int]:
    """Whether a text costs less where it stood than behind the conversation, and what going behind it saves."""
    said = due.history.since(seat.end)
    if known.line == known.last == seat.end and not due.rules.units:
        # Money: the role asks again before anyone else did, and pays n in either place. Behind the conversation s is
        # paid for what others then need not pay: out of what sharing has saved, and where others are expected and the
        # text is long enough to have a place, S beforehand. Others that have asked since, each where its text stood,
        # read nothing of that.
        return due.size > min(said, known.talk.saved + _beforehand(due, known)), -due.size
    saves = said - due.size - due.history.since(known.readable)
    return saves < 0, saves


def _beforehand(due: RoleText[M], known: _Known[M]) -> int:
    """What may be paid at a role's request for others to read, beside what sharing has saved: S, or nothing."""
    return known.stake if due.readers == "expected" and due.keeps else 0


def _marked_own(due: RoleText[M], known: _Known[M]) -> bool:
    """Whether the application's own layout is marked where the application marks nothing (``Request.repeated``).

    It is from the role's second one on, where it begins with what the provider would keep.
    """
    whole = due.opening + due.size + known.spoken
    return known.seat is not None and known.seat.at is None and whole >= due.rules.least


def _names(team: Team, asked: RoleRequest[M]) -> tuple[str, str]:
    """A name that no other text has, and the role's in its team."""
    return digest_of(asked.role, asked.text), team.role(asked.role)


def _key(asked: RoleRequest[M]) -> tuple[str, str, str]:
    """Whose places they are: those of a tenant's conversation, with one model and one tool set."""
    lane = lane_of(asked.model, asked.schema)
    return asked.conversation.scope, asked.conversation.id, f"{lane}{_PART}{asked.lane}"


def lane_of(model: str, schema: str) -> str:
    """A name of what no two requests that share anything differ in: the model, and the schema of the answer."""
    return f"{model}{_SCHEMA}{schema}" if schema else model


def has_schema(lane: str) -> bool:
    """Whether a lane is that of an answer schema."""
    return _SCHEMA in lane


def _plain(talk: _Talk) -> dict[str, Any]:
    """The places of one model's requests as plain data."""
    return {
        **{name: _plain_point(getattr(talk, name)) for name in ("line", "before", "last")},
        **({"earlier": _plain_point(talk.earlier)} if talk.earlier.index else {}),
        **{name: getattr(talk, name) for name in ("spoken", "missed", "saved", "asked", "fresh")},
        **({"anew": talk.anew} if talk.anew else {}),
        **({"texts": list(talk.texts)} if any(talk.texts) else {}),
        "seats": {role: _plain_seat(seat) for role, seat in talk.seats.items()},
        **({"met": {role: list(met) for role, met in talk.met.items()}} if talk.met else {}),
        **(
            {"told": {role: [one.text, list(one.began), one.forked] for role, one in talk.told.items()}}
            if talk.told
            else {}
        ),
    }


def _plain_seat(seat: _LastRequest) -> dict[str, Any]:
    """A role's last request as plain data."""
    # By hand: all roles are written at the end of each node, and ``asdict`` took a fifth of a run of 200 of them.
    found = {
        **{name: getattr(seat, name) for name in _OF_SEAT},
        "at": None if seat.at is None else _plain_point(seat.at),
        "end": _plain_point(seat.end),
        "said": list(map(list, seat.said)),
        "began": list(seat.began),
    }
    return {name: value for name, value in found.items() if value or name not in ("began", "changed")}


def _plain_point(point: _Point) -> dict[str, Any]:
    return {"index": point.index, "digest": point.digest, "before": point.before, "first": point.first}


_OF_SEAT = tuple(one.name for one in fields(_LastRequest))


def _talk_of(saved: Mapping[str, Any]) -> _Talk:
    """The places of one model's requests, from plain data."""
    line, before, last = (_Point(**saved[name]) for name in ("line", "before", "last"))
    counts = {name: saved.get(name, 0) for name in ("spoken", "missed", "saved", "asked", "fresh", "anew")}
    # An earlier version did not save where the request before the last one ended.
    earlier = _Point(**saved["earlier"]) if "earlier" in saved else _START
    talk = _Talk(line, before, last, earlier, **counts, texts=Texts(*saved.get("texts", ())))
    for role, seat in saved["seats"].items():
        at = None if seat["at"] is None else _Point(**seat["at"])
        # An earlier version saved nothing of what was said.
        said = tuple(Beginning(*one) for one in seat.get("said", ()))
        began = tuple(seat.get("began", ()))
        talk.seats[role] = _LastRequest(
            **{**seat, "at": at, "end": _Point(**seat["end"]), "said": said, "began": began}
        )
    # An earlier version saved neither of these.
    talk.met.update({role: _Met(*met) for role, met in saved.get("met", {}).items()})
    for role, (text, told, forked) in saved.get("told", {}).items():
        talk.told[role] = _ToldBefore(text, tuple(told), forked)
    return talk


def merged_places(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Of two that were saved of one conversation, by models, those of which more requests had been made.

    Associative, commutative, idempotent.
    """

    def later(name: str) -> Any:
        held = [each[name] for each in (one, other) if name in each]
        asked = max(talk.get("asked", 0) for talk in held)
        newest = [talk for talk in held if talk.get("asked", 0) == asked]
        # Written out only where it decides: a run of many roles saves that many places at each node's end.
        return newest[0] if len(newest) == 1 else max(newest, key=lambda talk: json.dumps(talk, sort_keys=True))

    return {name: later(name) for name in sorted({*one, *other})}


def _place_name(text: str, lane: str) -> str:
    """Under what a text's places are recorded: behind other tools nothing is read where it stood."""
    return digest_of(text, lane) if lane else text


def _recorded(conversation: Decided, own: str, history: CountedHistory[M]) -> int | None:
    """The last place that was recorded for this text among these messages."""
    known = (key.split("@") for key in conversation.decided_keys("places") if key.startswith(f"{own}@"))
    # An earlier version recorded nothing of the first message.
    points = [_Point(int(index), last, first="".join(first)) for _, index, last, *first in known]
    points.sort(key=lambda one: (one.index, one.digest), reverse=True)
    return next((one.index for one in points if history.holds(one)), None)
