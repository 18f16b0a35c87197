"""What a request does to the provider's cache: which entries it reads, writes, and takes back when it fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

from cacheprefix.bounded import Bounded
from cacheprefix.cache.breakpoints.read import request_ttl
from cacheprefix.cache.calibration import Calibration
from cacheprefix.cache.differences import Finding, answers, difference_from, gone_back, of_the_application
from cacheprefix.cache.expectation import Expectation, Expected, Request, outlook, readable_sections
from cacheprefix.cache.judge import VerdictInput, judge
from cacheprefix.cache.slots import Servers, Taken
from cacheprefix.cache.tree import (
    Addresses,
    AgentHistory,
    CacheEntry,
    Common,
    Node,
    PromptTrees,
    SentRequest,
    equal_digests,
    keep_alive,
    keys_of,
)
from cacheprefix.cache.verdict import Verdict, Way, read_diagnostics
from cacheprefix.locks import Guarded, RLock, reset_in_child
from cacheprefix.profiles import Profile, Usage
from cacheprefix.prompt import ABOUT, CountTokens, Envelope, Prompt, Section, estimate_tokens

_KEEP_COMMONS = 64


def enter(
    seen: Expected, profile: Profile, path: Sequence[Node], sections: Sequence[Section], now: float
) -> tuple[list[CacheEntry], list[CacheEntry]]:
    """Read and write as expected: entries that are read live on, those that are written begin.

    Gives the entries that become readable with the answer, and all that the request writes or confirms.
    """
    fresh: list[CacheEntry] = []
    used: list[CacheEntry] = []
    # A provider's rule: a read begins the lifetime of what it reads anew.
    keep_alive([node.entry for node in path[: seen.alive]], now)
    at_once = profile.readable == "start" or profile.cold_parallel_shares
    for index, ttl in seen.ends.items():
        node = path[index]
        known = node.entry
        if known is None or now > known.expires:
            entry = node.entry = CacheEntry(ttl, now)
        else:
            entry = known
            # Behind what is read the request writes the same once more.
            if index >= seen.sections:
                entry.write(ttl, now)
        # A provider's rule: what is written can be read at once, or with the answer.
        if at_once:
            entry.readable_at = min(entry.readable_at, now)
        elif entry.readable_at > now:
            entry.writers += 1
            fresh.append(entry)
        used.append(entry)
    if seen.common is not None:
        fresh.append(_keep_common(seen.common, profile, path, sections, now))
    for index in () if seen.marks.refused else seen.marks.dropped:
        path[index].dropped = True
    return fresh, used


def _keep_common(
    found: tuple[int, int, int], profile: Profile, path: Sequence[Node], sections: Sequence[Section], now: float
) -> CacheEntry:
    """A beginning found to be common becomes a unit that later requests can read."""
    at, size, tokens = found
    section, holder = sections[at], path[at].parent
    assert holder is not None
    kept = [one for one in holder.commons or () if now <= one.life.expires]
    same = next((one for one in kept if one.size == size and one.begins(section)), None)
    if same is None:
        same = Common(section, size, tokens, CacheEntry(profile.default_ttl, now))
        kept.append(same)
    same.life.writers += 1
    holder.commons = kept[-_KEEP_COMMONS:]
    return same.life


def open_entries(fresh: Iterable[CacheEntry], at: float) -> None:
    """What a request wrote can be read from now on."""
    for life in fresh:
        life.readable_at = min(life.readable_at, at)


def enter_counted(observation: Observation, usage: Usage | None, now: float) -> None:
    """Enter what the provider keeps although it is too short by our count: the provider's own count decides."""
    seen, profile, totals = observation.outlook, observation.profile, observation.record.totals
    if usage is None or usage.summed or usage.calls != 1 or not usage.input_tokens or not totals:
        return
    if profile.control in ("none", "named") or profile.slots is not None or seen.marks.refused:
        return
    ends: Iterable[int] = ()
    if profile.match == "block" and not seen.ends and usage.input_tokens >= profile.min_tokens:
        ends = range(len(totals))
    elif profile.match == "breakpoint" and seen.marks.short:
        cached = (usage.cache_read_tokens or 0) + (usage.cache_write_tokens or 0)
        scale = usage.input_tokens / totals[-1] if totals[-1] else 0.0
        if cached >= profile.min_tokens:
            ends = [at for at in seen.marks.short if totals[at] * scale >= profile.min_tokens]
    ttl = request_ttl(observation.record.prompt, profile)
    for index in ends:
        node = observation.path[index]
        if node.entry is None or now > node.entry.expires:
            node.entry = CacheEntry(ttl, now)
        node.entry.readable_at = min(node.entry.readable_at, now)


def leave(observation: Observation) -> None:
    """Take back what the request entered, as if it had never been sent."""
    record = observation.record
    for life in observation.fresh:
        life.writers -= 1
    for node in observation.path:
        entry = node.entry
        if entry is not None and entry.writers <= 0 and entry.readable_at == inf:
            node.entry = None
    for node, before in zip(observation.path, observation.before, strict=True):
        if node.last == record.index:
            node.last = before


_COMPACTIONS = frozenset({"compaction", "compacted", "compact", "history_compaction", "summarization"})
_KEEP_LINES = 50_000
_KEEP_NAMED = 8
_KEEP_UNNAMED = 32
_NEAREST = 4
_CLOSE = 0.75


@dataclass(frozen=True, slots=True)
class SentBy:
    """Who sends a request, and what is known of it beside its prompt."""

    scope: str = ""
    """The tenant, whose cache it is."""
    agent: str = ""
    """Empty for several that are not told apart."""
    session: str = ""
    """The conversation that it belongs to; an agent's requests in it are one line, held against one another."""
    kin: str | None = None
    """For a session that was told by its beginning and not by a name: the session that it may be an altered history of
    (empty for none). Its first request is held against that, or else against the agent's last one as far as tools,
    system text and settings go. None for a session with a name."""
    related: Iterable[int] = ()
    """Numbers of requests of other lines that it is known to go on from or to repeat: held against it as well."""
    events: Iterable[Any] = ()
    """Those recorded since the agent's last request: strings, or mappings with a ``type``. A compaction among them
    explains a rewritten history."""
    timed: bool = True
    """Whether it will be known when its answer begins: few logs tell it."""
    spared: bool = False
    """Whether we chose where its marks stand, and left others out on purpose, so that none of them is missed."""
    made: Prompt | None = None
    """The request as the application made it, where another is sent in its place: what our own layout moved is no break
    of the application's."""
    beside: bool = False
    """Whether it was us who let it go before a sibling's entry could be read, so that none of that is missed."""
    way: Way = "by hand"
    """Who lays it out, by which what to do about a break is said."""


NOBODY = SentBy()
"""A request of which nothing is known but its prompt."""


class _Address(NamedTuple):
    """Where a prompt stands in the trees."""

    prompt: Prompt
    lane: bytes
    salts: Sequence[bytes]
    keys: Sequence[bytes]
    """Per section, under the one before."""


class _Against(NamedTuple):
    """What a request is held against."""

    rows: list[tuple[SentRequest, int]]
    """Earlier requests, each with how many sections it begins with as the new one does."""
    root: Node | None
    """Of its lane; None before the first request there."""
    path: list[Node]
    """The nodes that it begins with."""
    begins: bool = False
    """Whether nobody said before what it says: then only tools, system text and settings can have changed."""


@dataclass(slots=True, eq=False)
class Observation:
    """One request under way; hand it back to the model that made it."""

    expectation: Expectation
    record: SentRequest
    profile: Profile
    sight: VerdictInput
    path: Sequence[Node]
    outlook: Expected
    fresh: list[CacheEntry] = field(default_factory=list)
    used: list[CacheEntry] = field(default_factory=list)
    before: Sequence[int] = ()
    """For each of its nodes the latest request that went through before it; -1 for none."""
    taken: Taken | None = None
    done: bool = False
    verdict: Verdict | None = None

    @property
    def expected(self) -> int:
        """Read tokens expected, as the provider counts; as we do until the answer is complete."""
        return self.expectation.tokens if self.verdict is None else self.verdict.expected_tokens

    @property
    def index(self) -> int:
        """Number of the call in its model, from 0."""
        return self.record.index


class CacheModel(Guarded):
    """What the provider's cache holds, as far as requests and answers tell. Thread-safe, bounded by bytes.

    ``count(text, model)`` must be the counter the prompts were decoded with: it is asked where two sections
    share only a beginning; ``envelope`` is what stands around each message. ``clock`` gives seconds where a call is
    not told the time.
    """

    def __init__(
        self,
        *,
        count: CountTokens = estimate_tokens,
        envelope: Envelope = ABOUT,
        max_bytes: int = 128_000_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._count = count
        self._envelope = envelope
        self._clock = clock
        self._lock = RLock()
        self._max_bytes = max_bytes
        self._strangers: dict[str, str] = {}
        """The last session of an agent that was told by its beginning."""
        self._agents: dict[str, set[str]] = {}
        self._next = 0
        self._forget()
        reset_in_child(self)

    # ------------------------------------------------------------------ one request

    def expect(self, prompt: Prompt, profile: Profile, *, scope: str = "", at: float | None = None) -> Expectation:
        """What a request would read if it were sent at ``at``; changes nothing."""
        with self._lock:
            now = self._clock() if at is None else at
            root, path = self._look(self._address(prompt, profile, scope))
            taken = self._servers.look(prompt, profile, scope)
            request = Request(
                prompt, profile, prompt.totals, root, path, now, self._count, self._earlier(path),
                taken, self._envelope,
            )  # fmt: skip
            return self._expectation(request, outlook(request))

    def standing(self, prompt: Prompt, profile: Profile, *, scope: str, at: float) -> tuple[int, ...]:
        """The sections of a prompt at whose end something of an earlier one can be read, in order."""
        with self._lock:
            _, path = self._look(self._address(prompt, profile, scope))
            return tuple(index for index, node in enumerate(path) if node.readable(at))

    def begin(self, prompt: Prompt, profile: Profile, by: SentBy = NOBODY, *, at: float | None = None) -> Observation:
        """A request goes out at ``at``: what it should read, and then what it writes is entered.

        In this order, since it cannot read what it writes itself.
        """
        with self._lock:
            now = self._clock() if at is None else at
            where, line = self._address(prompt, profile, by.scope), self._line(by.session, by.agent)
            against = self._against(where, by, line)
            path = against.path
            request = Request(
                prompt,
                profile,
                prompt.totals,
                against.root,
                path,
                now,
                self._count,
                self._earlier(path),
                self._servers.take(prompt, profile, by.scope),
                self._envelope,
            )
            seen = outlook(request)
            expectation = self._expectation(request, seen)
            record = SentRequest(
                index=self._next,
                agent=by.agent,
                session=by.session,
                scope=by.scope,
                provider=profile.name,
                prompt=prompt,
                lane=where.lane,
                digests=prompt.digests,
                keys=where.keys,
                totals=prompt.totals,
                leaf=path[-1] if path else self._forest.root(where.lane),
                at=now,
                marks=seen.marks.all,
                line=line,
                salts=where.salts,
                timed=by.timed,
                made=by.made,
            )
            self._next += 1
            sight = self._verdict_input(record, profile, by, against, seen, expectation)
            record.alike = against.rows[0][1] if line.records else None
            observation = Observation(expectation, record, profile, sight, path, seen, taken=request.taken)
            observation.before = self._grow(record, path)
            observation.fresh, observation.used = enter(seen, profile, path, prompt.sections, now)
            self._remember(record, unnamed=by.kin is not None)
            return observation

    def _against(self, where: _Address, by: SentBy, line: AgentHistory) -> _Against:
        """What a request is held against: its own line, or where that is empty and nobody named it, another's."""
        prompt = where.prompt
        held = line if by.kin is None or line.records else self._lines.get((by.kin, by.agent), line)
        rows = held.shared(prompt.digests)
        if by.related != ():
            rows += self._related(by.related, prompt, rows)
        root, path = self._look(where, rows)
        if by.kin is None or held.records:
            return _Against(rows, root, path)
        held, begins = self._stranger(by.agent, prompt, path, line)
        return _Against(held.shared(prompt.digests), root, path, begins)

    def _verdict_input(
        self,
        record: SentRequest,
        profile: Profile,
        by: SentBy,
        against: _Against,
        seen: Expected,
        expectation: Expectation,
    ) -> VerdictInput:
        """What the verdict on a request will go by; taken before the request is entered, which changes all of it."""
        line, path, rows = record.line, against.path, against.rows
        compacted = by.events != () and any(_type(event) in _COMPACTIONS for event in by.events)
        finding = self._finding(record, path, rows, profile, rewritten=compacted)
        if against.begins and finding is not None and finding.cause.startswith("history"):
            finding = None  # It says something new: what another session has said is not its history.
        if finding is not None and not compacted:
            finding = of_the_application(record, finding)
        # Several may ask without a name: one of them starts where no answer stands in what nobody has said before.
        starts = not line.records if record.agent else not any(map(answers, record.sections[len(path) :]))
        # How many sections it has in common with an earlier request of its own line that it could read.
        common = [equal for one, equal in rows if one.lane == record.lane and one.salts == record.salts]
        mine = 0 if against.begins else max(common, default=0)
        ancestor = expectation.ancestor
        return VerdictInput(
            outlook=seen,
            finding=finding,
            available=0 if finding is None else self._available(finding, record, profile),
            compacted=compacted,
            line=line,
            first=not line.records,
            shared_tokens=expectation.shared_tokens,
            ancestor=ancestor,
            opening=by.spared or starts,
            spared=by.spared,
            beside=by.beside,
            way=by.way,
            mine=record.totals[mine - 1] if mine else 0,
            ancestor_record=None if ancestor is None else self._forest.record(ancestor),
            answer=self._envelope.answer,
        )

    def _grow(self, record: SentRequest, path: list[Node]) -> list[int]:
        """Add what a request says to the tree of its lane; for each node which request went through it before."""
        self._forest.grow(record.lane, record.keys, record.sections, path)
        record.leaf = path[-1] if path else self._forest.root(record.lane)
        record.path = path
        before = [node.last for node in path]
        for node in path:
            node.last = record.index
        return before

    def _remember(self, record: SentRequest, *, unnamed: bool) -> None:
        """Keep a request in its line and in the trees, so that later ones are held against it."""
        old = record.line.add(record)
        if unnamed:
            self._strangers[record.agent] = record.session
            self._agents.setdefault(record.session, set()).add(record.agent)
        self._forest.remember(record)
        if old is not None:
            self._forest.slim(old)

    def first_token(self, observation: Observation, at: float | None = None) -> None:
        """The answer has begun: what the request wrote can be read, where the provider makes it so."""
        with self._lock:
            if observation.profile.readable == "first_token":
                open_entries(observation.fresh, self._clock() if at is None else at)

    def finish(
        self,
        observation: Observation,
        usage: Usage | None,
        at: float | None = None,
        *,
        diagnostics: Any = None,
    ) -> Verdict:
        """The answer is complete: what the cache did. ``usage`` is None where the provider did not report.

        A second call for the same request gives the first one's verdict.
        """
        with self._lock:
            if observation.verdict is not None:
                return observation.verdict
            now = self._clock() if at is None else at
            open_entries(observation.fresh, now)
            enter_counted(observation, usage, now)
            if observation.profile.ttl_from == "end":
                for life in observation.used:
                    life.refresh(now)
            observation.done, observation.record.pending = True, False
            self._servers.release(observation.taken, usage)
            verdict = judge(
                observation.record, observation.profile, observation.sight, observation.path,
                usage, read_diagnostics(diagnostics), self._calibration,
            )  # fmt: skip
            observation.verdict = verdict
            self._note(observation, verdict, usage)
            if observation.record not in observation.sight.line.records:
                self._forest.slim(observation.record)
            if observation.outlook.marks.refused and (usage is None or not usage.reported):
                self._undo(observation)
            return verdict

    def fail(self, observation: Observation) -> None:
        """The request failed: it leaves no trace."""
        with self._lock:
            if not observation.done:
                observation.done = True
                self._undo(observation)

    def let_go(self, session: str) -> None:
        """Forget a session that was told by its beginning, and that nobody comes back to."""
        with self._lock:
            for agent in self._agents.pop(session, ()):
                self._lines.pop((session, agent), None)
                if self._strangers.get(agent) == session:
                    del self._strangers[agent]

    def forget(self, session: str) -> set[bytes]:
        """Let go the texts that only requests of this session hold; the sections' data, for whoever holds them beside.

        What the provider keeps of them is still expected to be read; nothing is compared with them any more.
        """
        with self._lock:
            self.let_go(session)
            found, texts = self._forest.let_go(session)
            for record in found:
                record.line.remove(record)
                self._lines.pop((session, record.agent), None)
            self._servers.forget(texts)
            return texts

    def clear(self) -> None:
        """Forget every request and all that is expected of them, and give the memory back at once."""
        with self._lock:
            for line in self._lines.values():
                line.records.clear()
            self._forest.clear()
            self._forget()

    # ------------------------------------------------------------------ inside

    def _forget(self) -> None:
        """Begin with empty trees; what was counted of finished calls stays."""
        self._forest = PromptTrees(self._max_bytes)
        self._servers = Servers(self._count, self._envelope)
        self._calibration = Calibration()
        self._addresses = Addresses()
        self._lines: Bounded[tuple[str, str], AgentHistory] = Bounded(_KEEP_LINES)

    def after_fork(self) -> None:
        """In a forked child: start anew where another thread was changing the trees at that very moment."""
        if self._lock.torn:
            self._forget()

    def _line(self, session: str, agent: str) -> AgentHistory:
        """An agent's requests in a session; of one without a name more are held, since it may be several."""
        return self._lines.of((session, agent), lambda: AgentHistory(_KEEP_NAMED if agent else _KEEP_UNNAMED))

    def _related(
        self, numbers: Iterable[int], prompt: Prompt, rows: Sequence[tuple[SentRequest, int]]
    ) -> list[tuple[SentRequest, int]]:
        """The remembered ones of these requests, each with the sections that it begins with as a new one does."""
        found = [self._forest.record(number) for number in numbers]
        if not found:
            return []
        known = {id(record) for record, _ in rows}
        return [
            (record, equal_digests(prompt.digests, record.digests))
            for record in found
            if record is not None and not record.slim and not record.failed and id(record) not in known
        ]

    def _stranger(
        self, agent: str, prompt: Prompt, path: Sequence[Node], line: AgentHistory
    ) -> tuple[AgentHistory, bool]:
        """What the first request of a session without a name is held against, and whether nobody said it before.

        Where an answer stands in what it shares with an earlier request, it is that one's history, edited.
        """
        said = prompt.sections[prompt.head : len(path)]
        ancestor = self._forest.record(path[-1].last) if any(map(answers, said)) else None
        if ancestor is not None:
            return self._lines.get((ancestor.session, agent), line), False
        return self._lines.get((self._strangers.get(agent, ""), agent), line), True

    def _address(self, prompt: Prompt, profile: Profile, scope: str) -> _Address:
        """Where a tenant's prompt stands in the trees."""
        lane, salts = self._addresses.of(prompt, profile, scope)
        return _Address(prompt, lane, salts, keys_of(prompt, salts))

    def _look(self, where: _Address, earlier: Sequence[tuple[SentRequest, int]] = ()) -> tuple[Node | None, list[Node]]:
        """The root of a prompt's lane, and the nodes that it begins with; changes nothing.

        Where one of ``earlier``, the requests of its line, or else the latest of its lane begins with the same
        sections, their nodes are taken from that: of a long prompt only the new end is looked up.
        """
        record, shared = None, 0
        for one, equal in earlier[:_NEAREST]:
            if (record is None or equal > shared) and one.lane == where.lane and one.salts == where.salts:
                record, shared = one, equal
        if record is None:
            latest = self._forest.latest.get(where.lane)
            if latest is not None and latest.salts == where.salts:
                record, shared = latest, equal_digests(where.prompt.digests, latest.digests)
        known = () if record is None else record.path[:shared]
        return self._forest.look(where.lane, where.keys, known)

    def _earlier(self, path: Sequence[Node]) -> tuple[int, ...]:
        """The marks of the latest request that a prompt has most in common with."""
        record = self._forest.record(path[-1].last) if path else None
        return record.marks if record is not None else ()

    def _expectation(self, request: Request, seen: Expected) -> Expectation:
        """What the rules say, in the form that others are shown."""
        path, totals = request.path, request.totals
        shared = (totals[len(path) - 1] if path else 0) + seen.near.part
        ancestor = path[-1].last if path else -1
        if not path and seen.near.sibling is not None:
            ancestor = seen.near.sibling.last
        written = dict(seen.billed)
        total = (totals[-1] if totals else 0) + request.envelope.answer
        usage = Usage(input_tokens=total, cache_read_tokens=seen.read, cache_write=written)
        reason = "cold_start" if not shared and seen.reason == "hit" else seen.reason
        return Expectation(seen.read, shared, None if ancestor < 0 else ancestor, reason, usage)

    @staticmethod
    def _finding(
        record: SentRequest, path: Sequence[Node], earlier: Sequence[tuple[SentRequest, int]],
        profile: Profile, *, rewritten: bool,
    ) -> Finding | None:  # fmt: skip
        """What a request says differently from the earlier ones of its line (``earlier``); None where nothing is."""
        if not earlier or not record.sections:
            return None
        if path and not path[-1].children and any(one.leaf is path[-1] for one, _ in earlier):
            # It continues a prompt of this line that nobody else continued; the newest one may have had more of it.
            return gone_back(record, len(path), earlier[0], profile)
        return difference_from(record, len(path), earlier, profile, rewritten=rewritten)

    def _available(self, finding: Finding, own: SentRequest, profile: Profile) -> int:
        """What the request that ``finding`` compares ``own`` with could still have read."""
        record, now = finding.record, own.at
        if record.forgotten:
            return 0
        if profile.slots is not None:
            found = None if record.slim else self._servers.look(record.prompt, profile, record.scope)
            return 0 if found is None else found.read
        path = record.path
        if profile.match == "block":
            whole = readable_sections(path, now)
            return _left_by(finding, whole)
        ends = len(path)
        if record.line is not own.line and not any(map(answers, own.sections[own.prompt.head :])):
            # A provider's rule: entries end at marks. One behind the question that another asked is of no use to this.
            asked, said = record.digests[record.prompt.head :], own.digests[own.prompt.head :]
            ends = min(ends, record.prompt.head + equal_digests(asked, said))
        last = next((i for i in range(ends - 1, -1, -1) if path[i].readable(now)), None)
        return 0 if last is None else _left_by(finding, last + 1)

    def _undo(self, observation: Observation) -> None:
        """Take a request back, as if it had never been sent."""
        record = observation.record
        record.failed = True
        self._servers.give_back(observation.taken)
        leave(observation)
        record.line.remove(record)
        self._forest.forget(record)

    def _note(self, observation: Observation, verdict: Verdict, usage: Usage | None) -> None:
        """Learn of a finished call what the provider counted, and whether its line raised an alarm."""
        # Not where no provider counted, and our own count stands in.
        if usage is not None and usage is not observation.expectation.usage:
            _learn(observation, usage, self._calibration)
        line = observation.sight.line
        line.previous_read = verdict.reported_tokens
        if verdict.alarm:
            line.alarmed = verdict.cause
        elif not verdict.broken:
            line.alarmed = None


def _left_by(finding: Finding, whole: int) -> int:
    """What so many sections of an earlier request, from its start, let read; where all do, what the finding names."""
    totals = finding.record.totals
    left = totals[whole - 1] if whole else 0
    return max(left, finding.tokens) if finding.placed and whole == len(totals) else left


def _learn(observation: Observation, usage: Usage, calibration: Calibration) -> None:
    """Keep what the provider counted, so that the next expectation is in its tokens and not in ours.

    A sum over several passes (server-side tools) counts no single prompt and teaches nothing.
    """
    path = observation.path
    if usage.summed or usage.calls != 1 or usage.input_tokens is None or not path:
        return
    counted = usage.input_tokens - observation.sight.answer
    path[-1].known = counted
    before = next((index for index in range(len(path) - 2, -1, -1) if path[index].known), -1)
    counted -= path[before].known if before >= 0 else 0
    calibration.learn(observation.record.sections[before + 1 :], observation.record.prompt.model, counted)
    read = observation.outlook.sections - 1
    if observation.profile.match == "breakpoint" and 0 <= read < len(path) - 1 and not path[read].known:
        reported = usage.cache_read_tokens or 0
        # An entry that was to be read, and was: so much stands before its end.
        if _CLOSE < reported / max(1, observation.expected) < 1 / _CLOSE:
            path[read].known = reported
    written = max(observation.outlook.marks.written, default=None)
    if written is not None and usage.cache_read_tokens is not None and usage.cache_write_tokens:
        path[written].known = usage.cache_read_tokens + usage.cache_write_tokens


def _type(event: Any) -> str:
    """What kind of event one is, a string or a mapping with a ``type``."""
    name = event.get("type", "") if isinstance(event, Mapping) else event
    return str(name).lower()
