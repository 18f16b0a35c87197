"""Which conversation a request belongs to, told by what it says.

Many loggers give every call an id of its own, or none at all. So an id only joins calls that carry the same one; a
call whose id is new is placed by its messages, and an id that never comes again changes nothing.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import filterfalse, islice
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from cacheprefix.audit.log_records import Broken
from cacheprefix.bounded import Bounded
from cacheprefix.cache import answers, equal_digests
from cacheprefix.cache.differences import alike
from cacheprefix.prompt import Prompt, Section

if TYPE_CHECKING:
    from cacheprefix.audit.order import Ready

AHEAD_CALLS = 1_000
"""Requests that are read ahead, so that it is known who speaks again."""

AHEAD_BYTES = 16_000_000
"""Bytes of prompts that are read ahead at most; prompts of one conversation share theirs, so this is an upper bound."""

_MOSTLY_IMAGES = 8
"""Bytes of a log entry for one of its text, from which on it holds images."""

_THREADS = 20_000
_DIGESTS = 250_000
_IDS = 100_000
_FRONTS = 100_000
_LOOKED = 32
"""Known messages that are looked at, from the end of a prompt: the latest say most about whose they are."""
_HOLDERS = 4
"""Conversations remembered for one message; what more of them hold tells nothing apart."""
_OPENINGS = 4
_ROWS = 8
"""Agents of one conversation whose latest messages are known; those of further ones are looked up one by one."""
_SAID = 8
"""Latest requests of one system prompt: an agent without a name may lead several conversations under one id."""
_LONGEST_ASKED = 20_000
"""Bytes of a question that is remembered word for word; images are not."""
_LOOKED_AT = 1_000
"""Characters of a first message by which it is known again."""
_EDGE = 32
"""Bytes at either end of a message by which it is known again when it was changed."""
_AGAIN = 3_600.0
"""Seconds after which the same messages are asked anew, and not again."""
_SILENT = 300.0
"""Seconds of silence after which a question alone makes no conversation go on: another run asks the same. Most entries
are gone by then."""

_HALF, _MUCH, _NEARLY = 0.5, 0.9, 0.98
"""Shares of its words that a system prompt keeps where it was edited, where that is likely, and all but certain."""
_MOSTLY = 0.5
"""The same for its tools."""
_FIRST = 2
"""Messages in which a system prompt is looked for that is none any more."""

_ANEW = -1
"""Stands for no row of messages."""

_Value = TypeVar("_Value")

VOLATILE_IDS = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|\b[0-9a-f]{16,}\b"
    r"|\d{4}-\d{2}-\d{2}(?:[T ]\d{1,2}:\d{1,2}(?::\d{2}(?:[.,]\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?"
    r"|\b\d{1,2}:\d{2}(?::\d{2})?(?: ?[AP]M)?\b"
    r"|\b\d{6,}(?:\.\d+)?\b",
    re.IGNORECASE,
)
"""What one text has where the next call's has something else: ids, dates, times, long numbers."""
_NUMBER = re.compile(r"\d")


class Placed(NamedTuple):
    """A request and whose it is."""

    ready: Ready
    line: str
    """Names the requests it is held against, together with its speaker's name."""
    agent: str = ""
    """Who speaks: the agent's name, or what its system prompt tells of an agent without one."""
    related: tuple[int, ...] = ()
    """Calls of other lines it is held against as well: the one it branches from, or first requests that differ from
    it in ids and times alone."""
    end: int = 0
    """Stands for the row of its messages."""
    system: bytes = b""
    """Its system prompt by its digests."""

    @property
    def conversation(self) -> str:
        """Names the conversation, whoever speaks."""
        return self.line.partition(".")[0]


class _Recent(Generic[_Value]):
    """A map that forgets what was put in long ago: when the young half is full, the old one is dropped."""

    def __init__(self) -> None:
        self._young: dict[int, _Value] = {}
        self._old: dict[int, _Value] = {}

    def get(self, key: int) -> _Value | None:
        """The value; None when it was never put in, or is forgotten."""
        found = self._young.get(key)
        return self._old.get(key) if found is None else found

    def put(self, key: int, value: _Value) -> None:
        """Put a value in."""
        self._young[key] = value
        if len(self._young) > _DIGESTS // 2:
            self._old, self._young = self._young, {}


class _Call(NamedTuple):
    """A request that others may branch from."""

    number: int
    """The model's."""
    agent: str
    system: bytes
    mask: str
    """What its system prompt says beside ids and times."""
    front: frozenset[bytes]
    """Its tools and system prompt."""


class _Opening(NamedTuple):
    """A first request, as later ones look back on it."""

    number: int
    front: bytes
    parts: tuple[bytes, ...]
    """Its tools and system, in no order."""


class _Entered(NamedTuple):
    """What is known of a request when it is read ahead."""

    ready: Ready
    thread: _Thread | None
    system: bytes = b""
    ends: Sequence[int] = ()
    branch: int | None = None
    """The row of messages of another line's request that it goes on from."""
    opens: bool = False


class _Said(NamedTuple):
    """The messages of a request, as far as they tell whether a later one is the same agent's."""

    messages: Sequence[bytes]
    settled: int
    """How many stand up to the last answer; what it asked behind that may have moved on."""
    asked: Sequence[Section]
    """Those behind it."""


class _Turn(NamedTuple):
    """A request whose speaker is looked for."""

    system: tuple[Section, ...]
    tools: frozenset[bytes]
    messages: Sequence[bytes]
    sections: Sequence[Section]
    """Those of its messages."""
    chained: bool
    """Whether it names the answer that it goes on from."""


@dataclass(slots=True)
class _Thread:
    number: int
    digests: list[bytes] = field(default_factory=list)
    latest: Sequence[bytes] = ()
    """The messages of its last request."""
    rows: Bounded[bytes, tuple[Sequence[bytes], Sequence[int]]] = field(default_factory=lambda: Bounded(_ROWS))
    """By their first message the messages of the latest requests, and what stands for each beginning of them: agents
    that take turns have rows of their own."""
    end: int = 0
    """What stands for all messages of its last request."""
    at: float = 0.0
    coming: Counter[bytes] = field(default_factory=Counter)
    """How often each system prompt comes among the requests that were read ahead."""
    seats: dict[bytes, int] = field(default_factory=dict)
    """Whose system prompt each is: agents without names are told apart by theirs."""
    last: dict[int, tuple[bytes, str]] = field(default_factory=dict)
    """The latest system prompt of each seat, and what it says beside ids and times."""
    systems: dict[int, tuple[Section, ...]] = field(default_factory=dict)
    """That system prompt."""
    told: set[int] = field(default_factory=set)
    """The seats that had a system prompt once."""
    tools: dict[int, frozenset[bytes]] = field(default_factory=dict)
    """The tools beside it."""
    said: dict[int, deque[_Said]] = field(default_factory=dict)
    """What each seat's latest requests said."""


class Conversations:
    """Places requests that come in order of time. Bounded; what was not heard of for long is forgotten."""

    def __init__(self) -> None:
        self._threads: OrderedDict[int, _Thread] = OrderedDict()
        self._of_id: Bounded[tuple[str, str], int] = Bounded(_IDS)
        self._holders: dict[bytes, tuple[int, ...]] = {}
        self._next = 0
        self._fronts: Counter[bytes] = Counter()
        self._masks: Bounded[bytes, str] = Bounded(_FRONTS)
        self._openings: Bounded[tuple[str, str], deque[_Opening]] = Bounded(_THREADS)
        self._ends: _Recent[int] = _Recent()
        """Which conversation a request with these messages belonged to."""
        self._firsts: _Recent[int] = _Recent()
        """Which conversation a first message opened, by what it says beside ids, times and numbers."""
        self._calls: _Recent[_Call] = _Recent()
        """The latest request with these messages, and the latest with these and this system prompt."""
        self.calls = 0
        self.repeated_ids = 0
        """Calls whose session had been heard of before."""
        self.named = 0
        """Calls that name a session."""

    def place(self, items: Iterable[Ready | Broken]) -> Iterator[Placed | Broken]:
        """Each request with its line; entries that could not be read pass at once."""
        held: deque[_Entered] = deque()
        size = 0
        for item in items:
            if isinstance(item, Broken):
                yield item
                continue
            held.append(self._enter(item))
            size += held_bytes(item)
            while len(held) > AHEAD_CALLS or (size > AHEAD_BYTES and len(held) > 1):
                first = held.popleft()
                size -= held_bytes(first.ready)
                yield self._leave(first)
        while held:
            yield self._leave(held.popleft())
        for known in (self._threads, self._holders, self._of_id):
            known.clear()

    def began(self, placed: Placed, number: int) -> None:
        """The model's number of a request, so that later ones of other lines can be held against it."""
        prompt = placed.ready.prompt
        if prompt is None:
            return
        mask, tools = self._mask(prompt, placed.system), prompt.digests[: prompt.head]
        call = _Call(number, placed.ready.record.agent, placed.system, mask, frozenset(tools))
        self._calls.put(placed.end, call)
        self._calls.put(hash((placed.end, placed.system)), call)
        if _has_answers(prompt):
            return
        key = (placed.ready.record.agent, mask)
        line = self._openings.of(key, lambda: deque(maxlen=_OPENINGS))
        line.append(_Opening(number, _front(prompt), _parts(prompt)))

    # ------------------------------------------------------------------ inside

    def _enter(self, ready: Ready) -> _Entered:
        """Which conversation a request that is read ahead belongs to."""
        prompt, record = ready.prompt, ready.record
        self.calls += 1
        identity = (record.scope, record.session) if record.session else None
        known = self._of_id.get(identity) if identity is not None else None
        if identity is not None:
            self.named += 1
            self.repeated_ids += known is not None
        if prompt is None:
            if identity is not None:
                self._name(identity, -1)
            return _Entered(ready, None)
        head = prompt.head
        messages, sections = prompt.digests[head:], prompt.sections[head:]
        thread = self._threads.get(known) if known is not None else None
        shared, ends = _begun(thread, messages)
        branch, opens = None, False
        if thread is None:
            thread, branch = self._continued(ready, messages, ends)
            if thread is None and branch is None:
                thread = self._by_content(prompt, messages, ready.at)
                opens = thread is None
            if thread is None:
                thread = self._open()
                begun = None if branch is None else self._ends.get(branch)
                origin = None if begun is None else self._threads.get(begun)
                if origin is not None:
                    # Agents of one team go separate ways from one question: none of them gave way to another.
                    thread.coming = origin.coming
                self._firsts.put(_first_mask(sections), thread.number)
            shared, ends = _begun(thread, messages)
        self._threads.move_to_end(thread.number)
        if identity is not None:
            self._name(identity, thread.number)
        self._learn(thread, messages, sections, shared)
        if messages:
            thread.rows[messages[0]] = messages, ends
        thread.end, thread.at = ends[-1], ready.at
        self._ends.put(ends[-1], thread.number)
        system = _system(prompt)
        thread.coming[system] += 1
        self._fronts[_front(prompt)] += 1
        if len(self._fronts) > _FRONTS:
            # What came but once tells least; it goes first.
            self._fronts = Counter({one: count for one, count in self._fronts.items() if count > 1})
        return _Entered(ready, thread, system, ends, branch, opens)

    def _leave(self, entered: _Entered) -> Placed:
        """Say whose a request is, now that those behind it were read ahead."""
        ready, thread, system = entered.ready, entered.thread, entered.system
        prompt, agent = ready.prompt, ready.record.agent
        if prompt is None or thread is None:
            return Placed(ready, f"id {ready.record.session}")
        thread.coming[system] -= 1
        if not thread.coming[system]:
            del thread.coming[system]
        seat = 0 if agent else self._seat(thread, system, prompt, chained=ready.chained)
        related: tuple[int, ...] = ()
        if entered.branch is not None:
            related = self._branched(entered, prompt, system, agent)
        elif entered.opens:
            related = self._related(prompt, agent, system)
        # Where no request of a seat had a system prompt nothing tells who speaks: it may be any of several.
        speaker = agent or (f"speaker {seat}" if system or seat in thread.told else "")
        return Placed(ready, f"{thread.number}.{seat}", speaker, related, entered.ends[-1], system)

    def _name(self, identity: tuple[str, str], number: int) -> None:
        self._of_id[identity] = number

    def _continued(
        self, ready: Ready, messages: Sequence[bytes], ends: Sequence[int]
    ) -> tuple[_Thread | None, int | None]:
        """The conversation whose latest messages a request begins with, or an earlier request it branches from."""
        stale: _Thread | None = None
        for at in range(len(ends) - 1, 0, -1):
            number = self._ends.get(ends[at])
            thread = None if number is None else self._threads.get(number)
            if thread is None:
                continue
            if stale is not None:
                # Another run that says the same word for word goes on with what it said last, and not with the earlier.
                if thread.end == ends[at] and thread.at > stale.at:
                    return thread, None
                continue
            if at == len(ends) - 1 and ready.at - thread.at > _SILENT:
                stale = thread
                continue
            if thread.end == ends[at]:
                return thread, None
            # An earlier request of that conversation: it was gone back to, unless what came behind is here as well, be
            # it under new ids of its calls.
            known = any(number in self._holders.get(digest, ()) for digest in messages[at:])
            if not known and ready.prompt is not None and len(messages) > len(thread.latest):
                behind = ready.prompt.sections[ready.prompt.head + at :]
                known = any(number in self._by_edges(section) for section in behind)
            if not known:
                thread = self._edited(ready, messages, at)
            return (None, ends[at]) if thread is None else (thread, None)
        if stale is None:
            return None, None
        if ready.at - stale.at > _until_anew(ready):
            return None, _ANEW  # The same, much later: somebody asks anew.
        return (stale, None) if stale.end == ends[-1] else (None, ends[-1])

    def _edited(self, ready: Ready, messages: Sequence[bytes], at: int) -> _Thread | None:
        """The conversation whose answers stand behind the first ``at`` messages, which another one begins with too.

        Agents of one team begin with the same question, and each may have its early messages edited.
        """
        prompt = ready.prompt
        if prompt is None or at == len(messages):
            return None
        behind, row = prompt.sections[prompt.head + at :], messages[at:]
        found, _, said = self._most_alike(behind, lambda one: self._holders.get(row[one], ()))
        if not said:
            # A name put before each answer leaves its end as it was.
            found, _, said = self._most_alike(behind, lambda one: self._by_edges(behind[one]), least=2)
        thread = self._threads.get(found) if said and found is not None else None
        if thread is None or 2 * len({*thread.latest} & {*messages}) < len(thread.latest):
            return None
        return thread

    def _open(self) -> _Thread:
        """Begin a conversation; those used least recently go where there are too many, or too many digests."""
        thread = self._threads[self._next] = _Thread(self._next)
        self._next += 1
        while len(self._threads) > _THREADS or (len(self._holders) > _DIGESTS and len(self._threads) > 1):
            number, gone = self._threads.popitem(last=False)
            for digest in gone.digests:
                left = tuple(one for one in self._holders.get(digest, ()) if one != number)
                if left:
                    self._holders[digest] = left
                else:
                    self._holders.pop(digest, None)
        return thread

    def _learn(self, thread: _Thread, messages: Sequence[bytes], sections: Sequence[Section], shared: int) -> None:
        """Note which messages the conversation holds; the first ``shared`` stood in an earlier request of it too."""
        thread.latest = messages
        number, known = thread.number, self._holders
        for one in range(shared, len(messages)):
            for digest in (messages[one], *_edges(sections[one])):
                holders = known.get(digest, ())
                if number in holders:
                    continue
                if len(holders) >= _HOLDERS:
                    holders = holders[1:]
                known[digest] = (*holders, number)
                thread.digests.append(digest)

    def _by_content(self, prompt: Prompt, messages: Sequence[bytes], now: float) -> _Thread | None:
        """The conversation that a request goes on with; None for one that opens its own.

        It goes on where an answer stands behind what an earlier request had, or where it has all of that one's
        messages. Another last message without an answer is a first request that begins alike.
        """
        sections = prompt.sections[prompt.head :]
        found, answered, said = self._most_alike(sections, lambda at: self._holders.get(messages[at], ()))
        if found is None:
            # A time or a number put before or behind each message leaves its other end as it was.
            found, answered, said = self._most_alike(sections, lambda at: self._by_edges(sections[at]), least=2)
            if found is None:
                # One message alone says little: it is the same only when ids, times and numbers are all that differs.
                found = self._firsts.get(_first_mask(sections))
                answered = any(map(answers, sections))
        thread = self._threads.get(found) if found is not None else None
        if thread is None or (now - thread.at > _SILENT and not said):
            return None
        return thread if answered or set(thread.latest) <= set(messages) else None

    def _most_alike(
        self, sections: Sequence[Section], holders_of: Callable[[int], tuple[int, ...]], *, least: int = 1
    ) -> tuple[int | None, bool, bool]:
        """The conversation that holds most of these messages; and whether an answer stands behind what any holds.

        The last says whether an answer is among those that the conversation holds.
        """
        scores: dict[int, float] = {}
        said: set[int] = set()
        times: Counter[int] = Counter()
        looked, answered = 0, False
        for at in range(len(sections) - 1, -1, -1):
            holders = holders_of(at)
            if not holders:
                answered = answered or answers(sections[at])
                continue
            looked += 1
            times.update(holders)
            if answers(sections[at]):
                said.update(holders)
            for number in holders:
                scores[number] = scores.get(number, 0.0) + (sections[at].tokens + 1) / len(holders)
            if looked == _LOOKED:
                break
        met = (number for number in scores if times[number] >= least)
        # What many are asked, be it long, tells less than what one of them answered.
        found = max(met, key=lambda number: (number in said, scores[number], number), default=None)
        return found, answered, found in said

    def _by_edges(self, section: Section) -> tuple[int, ...]:
        found = (self._holders.get(edge, ()) for edge in _edges(section))
        return next((holders for holders in found if holders), ())

    def _seat(self, thread: _Thread, system: bytes, prompt: Prompt, *, chained: bool) -> int:
        """Whose turn it is where agents have no names.

        Each system prompt is an agent's, unless an earlier one gave way to it: one that differs in ids and times
        alone, or one that never comes again beside the same tools. What has another role and other tools is another; a
        few words of a long text are no role.
        """
        seat = thread.seats.get(system)
        messages, sections = prompt.digests[prompt.head :], prompt.sections[prompt.head :]
        if seat is not None and thread.last[seat][0] == system:
            thread.said[seat].append(_said(messages, sections))
            return seat
        mask = self._mask(prompt, system)
        spoken = tuple(one for one in prompt.sections[: prompt.head] if one.tier == "system")
        tools = frozenset(one.digest for one in prompt.sections[: prompt.head] if one.tier == "tools")
        if seat is None:
            turn = _Turn(spoken, tools, messages, sections, chained)
            like = [one for one, (_, text) in thread.last.items() if text == mask]
            gone = [
                one
                for one, (was, _) in thread.last.items()
                if was not in thread.coming and _gave_way(thread, one, turn)
            ]
            seat = like[-1] if like else gone[-1] if gone else len(thread.last)
            thread.seats[system] = seat
        thread.last[seat], thread.systems[seat], thread.tools[seat] = (system, mask), spoken, tools
        if system:
            thread.told.add(seat)
        thread.said.setdefault(seat, deque(maxlen=_SAID)).append(_said(messages, sections))
        return seat

    def _branched(self, entered: _Entered, prompt: Prompt, system: bytes, agent: str) -> tuple[int, ...]:
        """The request that this one goes on from; none where that was another agent's.

        Agents are told apart by their names, else by whose answer stands behind what both requests have. A question
        that nothing answers yet is asked by many: whoever asks it again has some of the same system prompt or tools.
        """
        branch = entered.branch
        call = None if branch is None else self._calls.get(hash((branch, system))) or self._calls.get(branch)
        if call is None or call.agent != agent:
            return ()
        sections = prompt.sections[prompt.head :]
        alone = system != call.system and not _has_answers(prompt)
        if alone and call.front.isdisjoint(prompt.digests[: prompt.head]) and call.mask != self._mask(prompt, system):
            return ()
        if agent:
            return (call.number,)
        behind = entered.ends.index(entered.branch) if entered.branch in entered.ends else len(sections)
        its_own = system == call.system or behind == len(sections) or answers(sections[behind])
        return (call.number,) if its_own else ()

    def _related(self, prompt: Prompt, agent: str, system: bytes) -> tuple[int, ...]:
        """First requests that said the same but for ids and times; none where such a front stands for long."""
        if _has_answers(prompt):
            return ()
        front = _front(prompt)
        earlier = self._openings.get((agent, self._mask(prompt, system)), ())
        if not earlier or any(one.front == front for one in earlier):
            return ()
        parts = _parts(prompt)
        moved = [one for one in earlier if one.parts == parts]
        if moved:
            return (moved[-1].number,)  # The same tools in another order, for which there is no reason.
        if self._fronts[front] > 1:
            return ()
        return tuple(one.number for one in earlier if self._fronts[one.front] <= 1)

    def _mask(self, prompt: Prompt, system: bytes) -> str:
        """What the system prompt says beside ids and times; ``system`` are its digests."""
        found = self._masks.get(system)
        if found is None:
            found = self._masks[system] = str(hash(_without(VOLATILE_IDS, _system_text(prompt))))
        return found


def _system(prompt: Prompt) -> bytes:
    """The system prompt by its digests."""
    return b"".join([one.digest for one in prompt.sections[: prompt.head] if one.tier == "system"])


def _first_mask(sections: Sequence[Section]) -> int:
    """The first message without ids, times and numbers."""
    return hash(_without(_NUMBER, sections[0].text[:_LOOKED_AT])) if sections else 0


def _without(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
    """The words of a text, those that hold the pattern left out. Only words with a digit are looked at."""
    words = text.split()
    # Each word that is no plain one is looked at once, however often it comes.
    found = {word for word in {*filterfalse(str.isalpha, words)} if pattern.search(word)}
    return tuple(word for word in words if word not in found) if found else tuple(words)


def _edges(section: Section) -> tuple[bytes, ...]:
    """How a longer message begins and ends, told apart from digests by their length."""
    data = section.data
    if len(data) < 3 * _EDGE:
        return ()
    if section.kind != "text":
        # All calls of tools, and their results, begin with the same names of fields.
        return (section.head.encode("utf-8", "replace") + data[-_EDGE:],)
    return (section.head.encode("utf-8", "replace") + data[-_EDGE:], data[:_EDGE])


def _system_text(prompt: Prompt) -> str:
    return "\n".join(one.text for one in prompt.sections[: prompt.head] if one.tier == "system")


def _gave_way(thread: _Thread, seat: int, turn: _Turn) -> bool:
    """Whether the latest system prompt of a seat may have become that of this turn."""
    tools, said = thread.tools[seat], thread.said[seat]
    same = tools == turn.tools
    if not same and len(tools & turn.tools) < _MOSTLY * max(len(tools), len(turn.tools)):
        return False
    if not turn.system:
        # It has none any more: the earlier one was left out, or stands among the messages now.
        moved = _among(thread.systems[seat], turn.sections)
        return same and (moved or any(_same_speaker(one, turn.messages, turn.sections) for one in said))
    share = _alike(thread.systems[seat], turn.system)
    if share < _HALF or (not same and share < _NEARLY):
        return False
    if any(_same_speaker(one, turn.messages, turn.sections) for one in said):
        return True
    if turn.chained and share >= _NEARLY:
        return True  # It goes on from an answer that the provider keeps and no log has.
    # Its earlier messages may have been changed at the same time.
    return share >= _MUCH and any(_goes_on_changed(one, turn.messages, turn.sections) for one in said)


def _alike(a: Sequence[Section], b: Sequence[Section]) -> float:
    """The share of words that two texts have in common."""
    ours, theirs = (Counter(word for one in row for word in one.text.split()) for row in (a, b))
    return (ours & theirs).total() / max(1, ours.total(), theirs.total())


def _among(system: Sequence[Section], messages: Sequence[Section]) -> bool:
    """Whether a system prompt stands, word for word or nearly so, in one of the first messages."""
    ours = Counter(word for one in system for word in one.text.split())
    begun = 0
    for one in messages:
        # Of a message with pictures or files each is a section of its own.
        begun += one.head != "+"
        if begun > _FIRST:
            break
        if (ours & Counter(one.text.split())).total() > _NEARLY * ours.total():
            return True
    return False


def _same_speaker(said: _Said, messages: Sequence[bytes], sections: Sequence[Section]) -> bool:
    """Whether a request goes on from an earlier one's messages with that one's own answer.

    To another agent of a team that answer is not its own, and what it said itself the other was asked.
    """
    shared = equal_digests(said.messages, messages)
    if shared < said.settled or shared == len(messages):
        return shared >= said.settled
    own = sections[shared]
    # What was asked may come back cut or edited.
    return answers(own) and not any(alike(one, own) for one in said.asked)


def _goes_on_changed(said: _Said, messages: Sequence[bytes], sections: Sequence[Section]) -> bool:
    """The same where some of the earlier messages were changed: half of them stand there, the last answered one too."""
    held = set(said.messages)
    known = [at for at, digest in enumerate(messages) if digest in held]
    if not known or 2 * len(known) < len(said.messages) or said.messages[said.settled - 1] not in messages:
        return False
    behind = known[-1] + 1
    return behind < len(sections) and answers(sections[behind])


def _said(messages: Sequence[bytes], sections: Sequence[Section]) -> _Said:
    settled = next((at + 1 for at in range(len(sections) - 1, -1, -1) if answers(sections[at])), 0)
    return _Said(messages, settled, tuple(one for one in sections[settled:] if len(one.data) < _LONGEST_ASKED))


def _begun(thread: _Thread | None, messages: Sequence[bytes]) -> tuple[int, list[int]]:
    """How many messages a request of a thread began with before, and a number for each beginning of all of them.

    The empty beginning comes first.
    """
    before, known = ((), (0,)) if thread is None or not messages else thread.rows.get(messages[0], ((), (0,)))
    shared = equal_digests(before, messages)
    ends = list(known[: shared + 1])
    for digest in messages[shared:]:
        ends.append(hash((ends[-1], digest)))
    return shared, ends


def _until_anew(ready: Ready) -> float:
    """Seconds after which the same messages are asked anew: a question alone is soon another run's."""
    return _AGAIN if ready.prompt is not None and _has_answers(ready.prompt) else _SILENT


def held_bytes(ready: Ready) -> int:
    """About how many bytes a prompt holds: its text's, or where images make up most of it, those of its log entry."""
    if ready.prompt is None:
        return 0
    text = 4 * ready.prompt.tokens
    return text if ready.size < _MOSTLY_IMAGES * text else ready.size


def _parts(prompt: Prompt) -> tuple[bytes, ...]:
    return tuple(sorted(prompt.digests[: prompt.head]))


def _front(prompt: Prompt) -> bytes:
    """Tools and system by their digests."""
    return b"".join(prompt.digests[: prompt.head])


def _has_answers(prompt: Prompt) -> bool:
    return any(map(answers, islice(prompt.sections, prompt.head, None)))
