"""Where a role's text stands in its requests: behind the conversation, or still where the role last had it.

Behind the conversation it lets everybody share what stands before it, and is itself paid anew each time. Where it
stood before, it is read from the cache with what follows it there, and only what was said since is paid, as in the
application's own layout. A long text before short messages would cost more behind them than sharing saves: of the two
places the cheaper one is taken for each request. Dearer than without us is only what is paid beforehand for others to
read (``_STAKE``), a short text that goes to the end each time, and a start of sharing that nobody makes use of.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from typing_extensions import TypedDict

from cacheprefix.bounded import Bounded
from cacheprefix.layout.team import Decided, Team
from cacheprefix.layout.worth_sharing import rules_in
from cacheprefix.locks import Lock
from cacheprefix.profiles import Profile
from cacheprefix.prompt import digest_of
from cacheprefix.services import Services

M = TypeVar("M")

LONG = 128
"""Tokens from which on a text may keep its place, and its places are recorded; shorter ones go to the end, unless that
costs too much (``_SPARE``)."""
_PART = "\0"
"""Between a model and the name of a tool set."""
_TALKS = 10_000
_SEATS = 1_000
_SIZES = 10_000
_STAKE = 4
"""What is paid beforehand for others to read is a quarter of that at most, as much as a cache write costs more."""
_SPARE = 32
"""What short texts at the end may cost while nobody else asks: this part of what the application's own requests paid in
full. With 32 and with 100 the generated plans of ``make bench-plans`` cost the same in sum."""


class RolePosition(NamedTuple):
    """Where a role's text goes in one request."""

    at: int | None
    """Messages that stand before it; None where the application's own layout costs less."""
    continues: bool = False
    """Whether the request is to be marked at its end, since the next one of this role may begin with it."""


class Outrun(NamedTuple):
    """How far a role's own requests are behind those with the tools of all; nothing where there were no such ones."""

    end: int = 0
    """Messages that its last one held."""
    line: int = 0
    """Messages that can be read of those with the tools of all."""
    kept: bool = False
    """Whether the provider keeps its last one to its end."""


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


_START = _Point(0, "")


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


@dataclass(slots=True)
class _Talk:
    line: _Point = _START
    """The longest beginning of the conversation that was sent in front of a role's text."""
    before: _Point = _START
    """The one before that was sent so."""
    last: _Point = _START
    """Where the conversation ended when somebody last asked."""
    spoken: int = 0
    """Tokens up to there."""
    missed: int = 0
    """Tokens that sharing would have saved by now, had it begun before; less than 0 where it would have cost more."""
    saved: int = 0
    """Tokens that it has saved by now; less than 0 where texts were paid for what others may yet read."""
    fresh: int = 0
    """Tokens that the application's own requests would have paid in full by now."""
    asked: int = 0
    """Requests so far."""
    seats: Bounded[str, _LastRequest] = field(default_factory=lambda: Bounded(_SEATS))


@dataclass(frozen=True, slots=True)
class CountedHistory(Generic[M]):
    """The messages of a request, and what is to be known of each."""

    messages: Sequence[M]
    digest: Callable[[M], str]
    tokens: Callable[[M], int]
    behind: Sequence[M] = ()
    """Those that follow them, among which no role's text may stand."""

    def point(self, index: int) -> _Point:
        """Behind so many messages."""
        return _Point(index, self.digest(self.messages[index - 1])) if index else _START

    def holds(self, point: _Point) -> bool:
        """Whether the point is still where it was. Goes by one message: what stands before it only ever grows."""
        return point.index <= len(self.messages) and self.point(point.index) == point

    def since(self, point: _Point) -> int:
        """Tokens behind a point."""
        return sum(map(self.tokens, self.messages[point.index :]))


class Told(TypedDict, total=False):
    """How a role's request is sent."""

    shared: bool
    """False where the application's own layout is to be kept, which is remembered too; True by default."""
    joint: bool
    """False where the conversation is this role's alone, as far as is known; True by default."""
    cached: bool
    """Whether the framework itself marks requests in its own layout, so that a provider keeps them."""
    lane: str
    """Name of the role's tool set."""


class RolePositions:
    """The places in force, by conversation and role. Thread-safe, bounded."""

    def __init__(self) -> None:
        self._talks: Bounded[tuple[str, str], dict[str, _Talk]] = Bounded(_TALKS)
        self._sizes: dict[tuple[str, str], int] = {}
        self._lock = Lock()

    def size(self, name: str, text: str, model: str, count: Callable[[str, str], int]) -> int:
        """Tokens of a text that is asked for with every request, under a name that no other text has."""
        found = self._sizes.get((name, model))
        if found is None:
            found = count(text, model) if text else 0
            with self._lock:
                if len(self._sizes) >= _SIZES:
                    self._sizes.clear()
                self._sizes[name, model] = found
        return found

    def choose(
        self,
        key: tuple[str, str, str],
        role: str,
        text: str,
        history: CountedHistory[M],
        *,
        size: int,
        rules: CacheRules,
        shared: bool,
        joint: bool,
        private: bool = False,
        opening: int,
        recorded: Callable[[], int | None],
        holds: bool = False,
        resumed: bool = False,
        written: bool = False,
    ) -> RolePosition:
        """The place of ``role``'s text, of ``size`` tokens with all that moves with it, among this ``history``.

        ``shared`` says whether what stands before the text is worth sharing at all, ``joint`` whether others are
        expected to read the conversation; ``private`` says that it is known that nobody will: then a short text keeps
        its place too. ``opening`` is the size of the shared system text, ``recorded`` the place
        that an earlier process has recorded. ``holds`` says that the place of the role's last request stays for as long
        as nothing is said, ``resumed`` that the role goes on in the application's own layout, ``written`` that the
        request's end is marked in any case.
        """
        talk, worth = self._talk(key), shared
        seat = talk.seats.get(role)
        line, last = (point if history.holds(point) else _START for point in (talk.line, talk.last))
        readable = line
        if rules.units:
            readable = talk.before if history.holds(talk.before) else _START
        if seat is not None and not (seat.text == text and all(map(history.holds, (seat.end, seat.at or _START)))):
            seat = None
        end, long = history.point(len(history.messages)), size >= LONG or rules.units or private
        if holds and seat is not None and seat.end == end and seat.shared == worth:
            return RolePosition(None if seat.at is None else seat.at.index, seat.continues)
        shared = shared and not resumed
        spoken = history.since(last) + (talk.spoken if last.index else 0)
        stake = (opening + spoken) // _STAKE
        # Where the application's own requests would be kept whole, and paid for as such, ours may be too.
        at: _Point | None = end
        continues, gain, missed = rules.marked and rules.alone and long and size > stake, 0, 0
        kept = continues or written or not rules.marked
        if seat is None:
            found = recorded() if shared and long else None
            if found is not None:
                at, continues, kept = history.point(found), rules.marked, True
            elif shared and readable.index:
                gain = opening + spoken - history.since(readable)
        elif seat.at is None:
            own = history.since(seat.end)
            if not line.index:
                missed = own - size - history.since(last)
            if shared and seat.kept:
                shared = _joins(history, own - size, readable, last, talk.missed + missed, spoken, talk.saved + stake)
                gain = min(0, own - size - history.since(readable)) if readable.index else 0
        elif shared:
            own = history.since(seat.end)
            gain = own - size - history.since(readable)
            if line == seat.end and not rules.units:
                # Who asks again before anyone else did pays what was said since in either place. Behind it the text
                # is paid for what others then need not pay: out of what sharing has saved, and a little beforehand.
                stays, gain = size > min(own, talk.saved + stake * joint * long), -size
            else:
                stays = gain < 0
            if stays and (long or talk.saved + gain < -(talk.fresh // _SPARE)):
                at, continues, kept, gain = seat.at if seat.kept else end, rules.marked, True, 0
        if not shared:
            at, gain, kept = None, 0, rules.alone or _marked_own(seat, opening + size + spoken, rules)
        with self._lock:
            talk.fresh += history.since(seat.end) if seat is not None and rules.alone else opening + size + spoken
            talk.last, talk.spoken, talk.asked = end, spoken, talk.asked + 1
            talk.missed, talk.saved = talk.missed + missed, talk.saved + gain
            if at is not None and at.index >= line.index and not (seat is not None and seat.at == at):
                # A second one with the same beginning; the same role's next request begins with its own text, too.
                talk.line, talk.before = at, line
            continues = continues and at is not None
            talk.seats[role] = _LastRequest(text, at, end, kept, worth, continues, long, size)
        return RolePosition(None if at is None else at.index, continues)

    def settle(
        self,
        team: Team,
        services: Services,
        conversation: Decided,
        role: str,
        text: str,
        history: CountedHistory[M],
        model: str,
        position: RolePosition,
        *,
        cached: bool = False,
        lane: str = "",
        last_call: bool = False,
    ) -> None:
        """Note a place that was decided elsewhere: later requests, of which less is known, go by it.

        ``last_call`` says that it is known that no request of the role comes behind it, for which nothing is written.
        """
        talk, own = self._talk((conversation.scope, conversation.id, f"{model}{_PART}{lane}")), digest_of(role, text)
        rules = CacheRules.of(rules_in(conversation, services, model), cached=cached)
        size = self.size(own, text, model, services.count)
        seat, end = talk.seats.get(team.role(role)), history.point(len(history.messages))
        last = talk.last if history.holds(talk.last) else _START
        spoken = history.since(last) + (talk.spoken if last.index else 0)
        at = None if position.at is None else history.point(position.at)
        whole = self.size(team.prefix.key, team.prefix.text, model, services.count) + size + spoken
        kept = position.continues or not rules.marked
        if at is None:
            kept = rules.alone or (not last_call and _marked_own(seat, whole, rules))
        goes_on = seat is not None and rules.alone and history.holds(seat.end)
        with self._lock:
            talk.fresh += history.since(seat.end) if seat is not None and goes_on else whole
            talk.last, talk.spoken, talk.asked = end, spoken, talk.asked + 1
            if at is not None and at.index >= talk.line.index and not (seat is not None and seat.at == at):
                talk.line, talk.before = at, talk.line
            talk.seats[team.role(role)] = _LastRequest(
                own, at, end, kept, continues=position.continues, long=size >= LONG or rules.units, size=size
            )

    def place(
        self,
        team: Team,
        services: Services,
        conversation: Decided,
        role: str,
        text: str,
        history: CountedHistory[M],
        model: str = "",
        *,
        shared: bool = True,
        joint: bool = True,
        cached: bool = False,
        lane: str = "",
        holds: bool = False,
        resumed: bool = False,
        moves: int = 0,
        written: bool = False,
    ) -> RolePosition:
        """Where a role's text goes among the messages of ``history``; the rest is as ``Told`` and ``choose`` say.

        ``moves`` are the tokens that stand behind the text wherever it stands, and move with it. A place that is not
        the end is recorded in the conversation, so that another process takes it up.
        """
        own, key = digest_of(role, text), team.role(role)
        size = self.size(own, text, model, services.count) + moves
        private = not joint
        # A process that took the conversation up may not have met its other roles yet.
        joint = joint and not (team.alone and self._asked_by(conversation) <= {key})
        found = self.choose(
            (conversation.scope, conversation.id, f"{model}{_PART}{lane}"),
            key,
            own,
            history,
            size=size,
            rules=CacheRules.of(rules_in(conversation, services, model), cached=cached),
            shared=shared,
            joint=joint,
            private=private,
            opening=self.size(team.prefix.key, team.prefix.text, model, services.count),
            recorded=lambda: _recorded(conversation, own, history),
            holds=holds,
            resumed=resumed,
            written=written,
        )
        at = len(history.messages)
        if found.at == at and found.at and size >= LONG:
            conversation.decide("places", f"{own}@{at}@{history.digest(history.messages[-1])}")
        return found

    def outrun(self, conversation: Decided, lane: str, role: str, *, units: bool) -> Outrun:
        """How far a role's last request in a lane is behind those with all tools.

        ``lane`` is the model and the name of the role's own tool set; ``units`` as in ``CacheRules``.
        """
        with self._lock:
            talks = self._talks.get((conversation.scope, conversation.id), {})
            own, all_tools = talks.get(lane), talks.get(f"{lane.partition(_PART)[0]}{_PART}")
            seat = own.seats.get(role) if own is not None else None
            if seat is None or all_tools is None:
                return Outrun()
            return Outrun(seat.end.index, (all_tools.before if units else all_tools.line).index, seat.kept)

    def paid(self, conversation: Decided, model: str) -> int:
        """Tokens that the application's own requests of a conversation would have paid in full by now."""
        with self._lock:
            talks = self._talks.get((conversation.scope, conversation.id), {})
            return sum(talk.fresh for name, talk in talks.items() if name.partition(_PART)[0] == model)

    def saved(self, scope: str, conversation: str, *, sparing: bool = False) -> dict[str, Any]:
        """All places in force in a conversation as plain data, for a framework's own state; ``load`` takes it.

        ``sparing`` gives none where no role's next request goes by where its last one stood; it is for states that an
        application looks at. What short texts have cost so far is then reckoned anew, so that one of a resumed process
        may stand elsewhere at a later request.
        """
        with self._lock:
            talks = self._talks.get((scope, conversation), {})
            if sparing and not any(_matters(talk, seat) for talk in talks.values() for seat in talk.seats.values()):
                return {}
            return {name: _plain(talk) for name, talk in talks.items()}

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

    def forget(self, scope: str, conversation: str) -> None:
        """Let a conversation go, with all models."""
        with self._lock:
            self._talks.pop((scope, conversation), None)

    def _asked_by(self, conversation: Decided) -> set[str]:
        """The roles that asked in a conversation."""
        with self._lock:
            talks = self._talks.get((conversation.scope, conversation.id), {})
            return {role for talk in talks.values() for role in talk.seats}

    def _talk(self, key: tuple[str, str, str]) -> _Talk:
        with self._lock:
            known: dict[str, _Talk] = self._talks.of(key[:2], dict)
            return known.setdefault(key[2], _Talk())


def _marked_own(seat: _LastRequest | None, tokens: int, rules: CacheRules) -> bool:
    """Whether the application's own layout is marked where the application marks nothing (``Request.repeated``).

    It is from the role's second one on, where it begins with what the provider would keep.
    """
    return seat is not None and seat.at is None and tokens >= rules.least


def _matters(talk: _Talk, seat: _LastRequest) -> bool:
    """Whether a role's next request may be laid out otherwise by who knows nothing of its last one (``choose``)."""
    # At worst a short text is paid for once more and nothing is read for it; where others have asked since, and the
    # history goes back to before that, all that was said may be.
    dear = talk.saved - seat.size < -(talk.fresh // _SPARE) or talk.line != seat.end
    return seat.long or seat.at is None or dear


def _plain(talk: _Talk) -> dict[str, Any]:
    """The places of one model's requests as plain data."""
    return {
        **{name: asdict(getattr(talk, name)) for name in ("line", "before", "last")},
        **{name: getattr(talk, name) for name in ("spoken", "missed", "saved", "asked", "fresh")},
        "seats": {role: asdict(seat) for role, seat in talk.seats.items()},
    }


def _talk_of(saved: Mapping[str, Any]) -> _Talk:
    """The places of one model's requests, from plain data."""
    line, before, last = (_Point(**saved[name]) for name in ("line", "before", "last"))
    counts = {name: saved.get(name, 0) for name in ("spoken", "missed", "saved", "asked", "fresh")}
    talk = _Talk(line, before, last, **counts)
    for role, seat in saved["seats"].items():
        at = None if seat["at"] is None else _Point(**seat["at"])
        talk.seats[role] = _LastRequest(**{**seat, "at": at, "end": _Point(**seat["end"])})
    return talk


def merged_places(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Of two that were saved of one conversation, by models, those of which more requests had been made.

    Associative, commutative, idempotent.
    """

    def later(name: str) -> Any:
        held = (each[name] for each in (one, other) if name in each)
        return max(held, key=lambda talk: (talk.get("asked", 0), json.dumps(talk, sort_keys=True)))

    return {name: later(name) for name in sorted({*one, *other})}


def _joins(
    history: CountedHistory[M], room: int, readable: _Point, last: _Point, missed: int, spoken: int, stake: int
) -> bool:
    """Whether a role leaves the application's own layout, where ``room`` is what it pays there, less its text.

    The first to leave it pays for the whole conversation. Nobody knows how long that will be made use of: it is done
    once sharing would have saved half of that already. Who follows pays ``stake`` at most, for the first to read: two
    that are asked at once would else never share.
    """
    if readable.index:
        return history.since(readable) - room <= stake
    return history.since(last) < room and 2 * missed >= spoken - room


def _recorded(conversation: Decided, own: str, history: CountedHistory[M]) -> int | None:
    """The last place that was recorded for this text among these messages."""
    known = (key.split("@") for key in conversation.decided_keys("places") if key.startswith(f"{own}@"))
    points = sorted(((int(index), value) for _, index, value in known), reverse=True)
    return next((index for index, value in points if history.holds(_Point(index, value))), None)
