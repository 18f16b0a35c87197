"""What a session remembers of each model request, in bounded memory, and the report made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cacheprefix.bounded import Bounded
from cacheprefix.cache.verdict import ASKED_FOR, FIXES
from cacheprefix.call import Call
from cacheprefix.errors import plain
from cacheprefix.locks import Guarded, Lock
from cacheprefix.profiles import Profile, Usage, cost_units
from cacheprefix.prompt import Layout, Reason
from cacheprefix.prompt.reasons import Unsure, sentence

if TYPE_CHECKING:
    from cacheprefix.layout.gate import Pass
    from cacheprefix.toolcache import CacheStats

_NOTICED = 0.001
"""Seconds at the gate from which on they are told."""
_UNSURE = 0.02
"""Share of the unmodified cost that may be unsure; beyond it the cost is unknown."""
_FEW = 5
"""Fan-outs, and dearer agents, that the text of a report tells one by one."""
_REASONS = 3
"""Reasons of forks that it tells: those of the dearest requests."""
_WHEN_NOT = "docs/how-to/when-not-to.md"


class Known(NamedTuple):
    """Calls whose unmodified cost is known: how many, what they cost, and what they had cost unmodified."""

    calls: int = 0
    units: float = 0.0
    unmodified: float = 0.0

    def and_those(self, other: Known) -> Known:
        """Both together."""
        return Known(self.calls + other.calls, self.units + other.units, self.unmodified + other.unmodified)


@dataclass(frozen=True, slots=True)
class ReportLine:
    """One line of a report: an agent, or all of them. Tokens; cost in cost units and USD."""

    agent: str
    calls: int
    input_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    uncached_tokens: int
    cost_units: float
    unmodified_units: float | None
    money: float | None
    unreported: int
    """Calls whose provider reported no cached tokens; they count by expectation."""
    unsure: Mapping[Unsure, float] = field(default_factory=dict)
    """Cost units of the unmodified cost that nobody knows, and why: see ``Call.unsure``."""
    cut: int = 0
    """Of the ``unreported``, those whose answers were broken off before their end."""
    known: Known = field(default_factory=Known)
    """The calls whose unmodified cost is known each by itself."""

    @property
    def unsure_units(self) -> float:
        """Cost units of the unmodified cost that nobody knows, in all."""
        return sum(self.unsure.values())

    @property
    def cached_share(self) -> float:
        """Read tokens of all input tokens, 0 to 1."""
        return self.cache_read_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def ratio(self) -> float | None:
        """Cost against the unmodified layout; None when that is unknown."""
        return self.cost_units / self.unmodified_units if self.unmodified_units else None


@dataclass(frozen=True, slots=True)
class Break:
    """Verdicts of one cause at one place, summed."""

    cause: str
    path: str | None
    count: int
    lost_tokens: int
    lost_usd: float | None
    agents: tuple[str, ...]
    fix: str


@dataclass(frozen=True, slots=True)
class WentOut:
    """How many requests of an agent went out in one layout for one reason."""

    agent: str
    layout: Layout
    reason: Reason
    """The one with the largest numbers of its kind, so that a report does not go by which request ended last."""
    count: int
    units: float = 0.0
    """What they cost, in cost units."""
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """The smallest and the largest of each number, by its name; empty where all are the reason's own."""

    @property
    def said(self) -> str:
        """Why, in a sentence, with numbers from the smallest to the largest."""
        return plain(sentence(self.reason, self.spans))

    @property
    def told(self) -> bool:
        """Whether a report says it in words: what kept the application's own layout or tools, what can be removed.

        Also a schema, since forks that look alike then share less than one would think.
        """
        return self.layout == "own" or self.reason.removable or self.reason.why in ("own_tools", "response_schema")

    def __str__(self) -> str:
        own = " in the application's own layout" if self.layout == "own" else ""
        fix = f"; {self.reason.fix}" if self.reason.fix else ""
        return f"{self.count} x {plain(self.agent) or 'unnamed'}{own}: {self.said}{fix}"


@dataclass(frozen=True, slots=True)
class FanOut:
    """What one leader and the siblings that came behind it did at the gate."""

    leader: str = ""
    """The agent that went ahead; empty for one in another process."""
    followed: int = 0
    gave_up: int = 0
    at_once: int = 0
    seconds: float = 0.0
    """Time that the siblings spent waiting, in all."""
    saved_units: float = 0.0
    """Cost units that they read instead of writing, by the reported usage."""

    def __str__(self) -> str:
        return (
            f"  behind {self.leader or 'another process'}: {self.followed} followed, {self.gave_up} in vain, "
            f"{self.at_once} at once; {self.seconds:.1f} s for {self.saved_units:,.0f} cost units"
        )


@dataclass(frozen=True, slots=True)
class GateUse:
    """What requests did at the gate on a cold prefix, what that cost in seconds and what it saved."""

    led: int = 0
    """Requests that went ahead of possible siblings."""
    followed: int = 0
    """Those that waited for one and went when it had written what they share."""
    gave_up: int = 0
    """Those that waited in vain: as long as that could pay, or as the gate allows."""
    at_once: int = 0
    """Those that did not wait, since the leader was expected to take longer than it would save."""
    seconds: float = 0.0
    """Time spent waiting, in all."""
    saved_units: float = 0.0
    """Cost units that followers read instead of writing, by the reported usage."""
    fan_outs: tuple[FanOut, ...] = ()
    """The newest ones with siblings, oldest first: what each cost and saved."""

    def and_pass(self, leave: Pass) -> GateUse:
        """With one more request that came through."""
        alone = not leave.ahead and not leave.followed
        gave_up = alone and leave.stood
        return replace(
            self,
            led=self.led + leave.leader,
            followed=self.followed + leave.followed,
            gave_up=self.gave_up + gave_up,
            at_once=self.at_once + (alone and not gave_up),
            seconds=self.seconds + leave.waited,
        )

    def and_saved(self, units: float) -> GateUse:
        """With what one more follower saved."""
        return replace(self, saved_units=self.saved_units + units)

    def __str__(self) -> str:
        said = (
            f"gate: {self.followed} requests followed a sibling that wrote what they share and saved "
            f"{self.saved_units:,.0f} cost units by it; all waited {self.seconds:.1f} s, {self.gave_up} in vain; "
            f"{self.at_once} went at once, as waiting would not have paid"
        )
        waited = [one for one in self.fan_outs if one.seconds > _NOTICED]
        few = f"  the newest {_FEW} of {len(waited)} fan-outs that waited:"
        return "\n".join([said, *([few] if len(waited) > _FEW else []), *map(str, waited[-_FEW:])])


Arm = Literal["fork", "own"]
"""Whether a conversation is one of those that are forked (``Caching.fork_share``), or left as it is."""


@dataclass(frozen=True, slots=True)
class ArmLine:
    """One arm's calls, by the provider's own counts. Tokens; cost in cost units."""

    arm: Arm
    conversations: int = 0
    calls: int = 0
    input_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_units: float = 0.0

    @property
    def per_call(self) -> float | None:
        """Cost units a call; None without one."""
        return self.cost_units / self.calls if self.calls else None

    @property
    def per_conversation(self) -> float | None:
        """Cost units a conversation; None without one."""
        return self.cost_units / self.conversations if self.conversations else None

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        counts = {name: value for name, value in asdict(self).items() if name != "arm"}
        return {**counts, "cost_units": round(self.cost_units, 2)}

    def __str__(self) -> str:
        read = self.cache_read_tokens / self.input_tokens if self.input_tokens else 0.0
        each = "" if self.per_call is None else f", {self.per_call:,.0f} a call, {self.per_conversation:,.0f} each"
        what = "forked" if self.arm == "fork" else "in their own layout"
        return (
            f"{self.conversations:,} conversations {what}: {self.calls:,} calls, {self.input_tokens:,} tokens, "
            f"{read:.1%} read, {self.cost_units:,.0f} cost units{each}"
        )


@dataclass(frozen=True, slots=True)
class Arms:
    """Both arms side by side."""

    share: float
    """Of the conversations, that are forked."""
    fork: ArmLine
    own: ArmLine
    unreported: int
    """Calls whose provider reported no cached tokens; they are in neither arm."""
    returned: tuple[str, ...] = ()
    """What the guard returned to its own layout, in words."""

    @property
    def ratio(self) -> float | None:
        """What a forked conversation costs against one that is not; None while either is missing."""
        forked, own = self.fork.per_conversation, self.own.per_conversation
        return forked / own if forked is not None and own else None

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "share": self.share,
            "fork": self.fork.as_dict(),
            "own": self.own.as_dict(),
            "unreported": self.unreported,
            "ratio": None if self.ratio is None else round(self.ratio, 4),
            "returned": list(self.returned),
        }

    def __str__(self) -> str:
        lines = [f"{self.share:.1%} of the conversations are forked; by what the provider reported:"]
        lines += [f"  {self.fork}", f"  {self.own}"]
        if self.ratio is not None:
            lines.append(f"  a forked conversation cost {self.ratio:.2f} of one in its own layout")
        if self.unreported:
            lines.append(f"  {self.unreported} calls were answered without the tokens read, and are in neither")
        return "\n".join([*lines, *(f"  {plain(one)}" for one in self.returned)])


@dataclass(frozen=True, slots=True)
class Report:
    """What a session's calls cost, per agent and in all, and what broke the cache."""

    lines: tuple[ReportLine, ...]
    total: ReportLine
    breaks: tuple[Break, ...]
    counter: str
    """Name of the token counter the estimates come from."""
    notes: tuple[str, ...] = ()
    failures: Mapping[str, int] = field(default_factory=dict)
    """Steps at which cacheprefix failed and sent the original request, with counts."""
    tool_cache: CacheStats | None = None
    """What the tool-result cache did; None without one."""
    gate: GateUse | None = None
    """What waiting for siblings cost and saved; None where nobody came to the gate."""
    layouts: tuple[WentOut, ...] = ()
    """How the requests went out and why, by agent."""
    arms: Arms | None = None
    """Forked conversations and those left as they are, side by side; None where all are forked."""
    unanswered: int = 0
    """Requests that failed or were cancelled before an answer began: what they cost, if anything, is in no sum."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON. Holds no prompt text.

        Of each line ``unsure`` says on what its unmodified cost hangs that nobody knows, as ``Call.unsure`` does; where
        that is more than 2 % of it in all, ``unmodified_cost_units_estimated`` is null.
        """
        return {
            "version": 1,
            "agents": [_plain(line) for line in self.lines],
            "total": _plain(self.total),
            "breaks": [{**asdict(item), "agents": list(item.agents)} for item in self.breaks],
            "counter": self.counter,
            "notes": list(self.notes),
            "failures": dict(self.failures),
            "tool_cache": None if self.tool_cache is None else self.tool_cache.as_dict(),
            "gate": None if self.gate is None else asdict(self.gate),
            "layouts": [
                {"agent": one.agent, "layout": one.layout, "count": one.count, **one.reason.as_dict()}
                for one in self.layouts
            ],
            # There only where the user forks a share of the conversations.
            **({} if self.arms is None else {"arms": self.arms.as_dict()}),
            **({"unanswered": self.unanswered} if self.unanswered else {}),
        }

    def __str__(self) -> str:
        return "\n".join(_text(self))


def tally(agent: str, calls: Iterable[Call]) -> ReportLine:
    """Sum calls into one line."""
    return _told(_sum(agent, map(_line, calls)))


def _line(call: Call) -> ReportLine:
    """One call as a line: as reported, and by what was expected where the provider reported nothing."""
    usage = call.usage
    total = call.input_tokens if usage.input_tokens is None else usage.input_tokens
    read = call.verdict.expected_tokens if usage.cache_read_tokens is None else usage.cache_read_tokens
    written = usage.cache_write_tokens or 0
    own = call.unmodified_units
    sure = own is not None and call.unsure_units <= _UNSURE * own
    return ReportLine(
        call.agent,
        calls=1,
        input_tokens=total,
        cache_read_tokens=read,
        cache_write_tokens=written,
        uncached_tokens=total - read - written,
        cost_units=call.units,
        unmodified_units=call.unmodified_units,
        money=call.money,
        unreported=int(usage.cache_read_tokens is None),
        unsure=call.unsure,
        cut=int(call.cut and usage.cache_read_tokens is None),
        known=Known(1, call.units, own) if own is not None and sure else Known(),
    )


def _sum(agent: str, lines: Iterable[ReportLine]) -> ReportLine:
    """Lines added up. The unmodified cost of some alone would be no cost of anything, so that all must be known."""
    rows = tuple(lines)
    known = [row.unmodified_units for row in rows if row.unmodified_units is not None]
    usd = [row.money for row in rows if row.money is not None]
    unsure = Counter[Unsure]()
    for row in rows:
        unsure.update(row.unsure)
    return ReportLine(
        agent,
        sum(row.calls for row in rows),
        sum(row.input_tokens for row in rows),
        sum(row.cache_read_tokens for row in rows),
        sum(row.cache_write_tokens for row in rows),
        sum(row.uncached_tokens for row in rows),
        sum(row.cost_units for row in rows),
        sum(known) if rows and len(known) == len(rows) else None,
        sum(usd) if usd else None,
        sum(row.unreported for row in rows),
        dict(unsure),
        sum(row.cut for row in rows),
        reduce(Known.and_those, (row.known for row in rows), Known()),
    )


def _told(line: ReportLine) -> ReportLine:
    """A line without an unmodified cost of which more is unsure than a report may be off."""
    known = line.unmodified_units
    return line if known is None or line.unsure_units <= _UNSURE * known else replace(line, unmodified_units=None)


def breaks_of(calls: Sequence[Call], going_on: Iterable[Break] = ()) -> tuple[Break, ...]:
    """Group what alarmed by cause and place, dearest first: with all calls in which it went on without a new alarm.

    ``going_on`` are breaks of earlier calls.
    """
    places = {(one.cause, one.path) for one in going_on}
    places |= {(call.verdict.cause, call.verdict.path) for call in calls if call.verdict.alarm}
    broken = ((call.agent, call.verdict) for call in calls if call.verdict.broken)
    found = _merged(
        Break(one.cause, one.path, 1, one.lost_tokens, one.lost_usd, (agent,), one.fix)
        for agent, one in broken
        if (one.cause, one.path) in places
    )
    return tuple(sorted(found, key=lambda item: (-item.lost_tokens, item.cause, item.path or "")))


def units_of(usage: Usage, expected: Usage, profile: Profile) -> float:
    """Cost units of what was reported; of what was expected where the provider reported nothing."""
    return cost_units(usage if usage.cache_read_tokens is not None else expected, profile)


def _plain(line: ReportLine) -> dict[str, Any]:
    """A line in plain JSON types."""
    return {
        "agent": line.agent,
        "calls": line.calls,
        "input_tokens": line.input_tokens,
        "cache_read_tokens": line.cache_read_tokens,
        "cache_write_tokens": line.cache_write_tokens,
        "uncached_tokens": line.uncached_tokens,
        "cached_share": round(line.cached_share, 4),
        "cost_units": round(line.cost_units, 2),
        "unmodified_cost_units_estimated": None if line.unmodified_units is None else round(line.unmodified_units, 2),
        # By the names of ``Unsure``: what the unmodified cost hangs on.
        "unsure": {why: round(units, 2) for why, units in line.unsure.items()},
        "usd": line.money,
        "unreported": line.unreported,
    }


_WIDTH = 32
_HEAD = ("agent", "calls", "input", "read", "written", "cached", "cost units", "unmodified", "ratio", "USD")


def _short(name: str) -> str:
    """A name that fits its column. Nested ones differ at their end."""
    return name if len(name) <= _WIDTH else f"{name[: _WIDTH - 14]}..{name[-12:]}"


def _cells(line: ReportLine) -> tuple[str, ...]:
    """A line as the cells of the table."""
    # Of a sum with calls that came without usage, part is not known.
    usd = "?" if line.money is None else f"{'~' if line.unreported else ''}{line.money:.4f}"
    return (
        plain(_short(line.agent)),
        str(line.calls),
        f"{line.input_tokens:,}",
        f"{line.cache_read_tokens:,}",
        f"{line.cache_write_tokens:,}",
        f"{line.cached_share:.1%}",
        f"{line.cost_units:,.0f}",
        "unknown" if line.unmodified_units is None else f"{line.unmodified_units:,.0f}*",
        "?" if line.ratio is None else f"{line.ratio:.2f}",
        usd,
    )


def _text(report: Report) -> Iterable[str]:
    """The report's lines for a terminal: the table, then what is to be known of its numbers."""
    rows = [_HEAD, *(_cells(line) for line in (*report.lines, report.total))]
    # As narrow as the numbers allow: most reports then fit a terminal of 80 columns.
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *numbers in rows:
        yield " ".join((name.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(numbers, widths[1:], strict=True))))
    yield f"* estimated from the requests as the application made them; tokens counted by {report.counter}"
    cut, unsaid = report.total.cut, report.total.unreported - report.total.cut
    if cut:
        yield (
            f"{cut} of {report.total.calls} calls' answers were broken off before the provider said what it read: they "
            "count by what was foreseen"
        )
    if unsaid:
        yield (
            f"{unsaid} of {report.total.calls} calls were answered without the tokens read from the "
            f"cache: they count by what was foreseen. {ASKED_FOR} {FIXES['unreported']}"
        )
    yield from _unknown(report)
    if any(line.unmodified_units is None and line.calls and not line.unsure_units for line in report.lines):
        yield (
            "unmodified is unknown where the application's own request could not be made beside the fork, as where its "
            "client refuses that one"
        )
    if report.unanswered:
        said = "got no answer (failed or cancelled); what they cost, if anything, is in no sum"
        yield f"{report.unanswered} requests {said}"
    for item in report.breaks:
        where = f" at {plain(item.path)}" if item.path else ""
        lost = "" if item.lost_usd is None else f" ({item.lost_usd:.4f} USD)"
        yield f"{item.count} x {item.cause}{where}: {item.lost_tokens:,} tokens lost{lost}. {item.fix}"
    yield from _dearer(report)
    yield from _as_forks(report.layouts)
    yield from (str(one) for one in report.layouts if one.told)
    yield from map(plain, report.notes)
    if report.tool_cache is not None:
        yield str(report.tool_cache)
    if report.gate is not None and (report.gate.seconds > _NOTICED or report.gate.at_once):
        yield str(report.gate)
    if report.arms is not None:
        yield str(report.arms)
    for step, count in report.failures.items():
        yield f"{count} x sent the original request because {plain(step)} failed"


_HANGS_ON: Mapping[Unsure, str] = MappingProxyType(
    {
        "minimum": "a beginning about as long as the provider's minimum by its own count, which it may have kept or "
        "not",
        "images": "images whose count is not known yet",
        "siblings": "whether siblings read what another was still writing: a simulated provider that takes no time "
        "lets them (`cacheprefix serve --latency on` takes some)",
        "elsewhere": "what another process had sent before, or a request that got no answer: the provider read what "
        "no answered request of this session held",
        "under_way": "conversations that were under way before this session saw them: unmodified may have read them "
        "from the cache, and the first fork of each writes them anew",
        "rules": "the rules of a model without a profile whose answers do not say what they read (name its provider)",
        "untold": "what the event log of an earlier version does not name",
    }
)
"""What an unmodified cost hangs on that nobody here knows, in words."""


def _unknown(report: Report) -> Iterable[str]:
    """Why an unmodified cost is unknown, for what it is so; and what is known of the other requests."""
    total = report.total
    found = Counter[Unsure]()
    for line in (*report.lines, total):
        if line.unmodified_units is None:
            found |= Counter(line.unsure)
    # What is next to nothing beside the rest is not what made it unknown.
    told = [why for why, units in found.most_common() if units > _UNSURE * max(found.values())]
    for why in told:
        what = f"{_HANGS_ON[why]} ({found[why]:,.0f} cost units)"
        yield f"unmodified is unknown where more than 2 % of it hangs on {what}"
    known = total.known
    if total.unmodified_units is None and 0 < known.calls < total.calls:
        # No ratio: where the others are those that wrote what these read, it would be a false one.
        yield (
            f"unmodified is known of {known.calls} of {total.calls} requests: they cost {known.units:,.0f} cost units, "
            f"and {known.unmodified:,.0f} unmodified; the others cost {total.cost_units - known.units:,.0f}"
        )


_BESIDE = (
    "Its requests were no forks: it read less of what others sent, as those begin otherwise now, or of what was marked "
    "for it"
)


def _dearer(report: Report) -> Iterable[str]:
    """A sentence for each agent that cost more than unmodified beside forks, its own or others', beyond what is noise.

    Where all agents together cost less that is as it should be: one pays for what the others read.
    """
    forked = any(one.layout == "fork" for one in report.layouts)
    found = [line for line in report.lines if forked and _beyond(line) > 0]
    total, ratio = report.total, report.total.ratio
    for line in sorted(found, key=lambda line: -_beyond(line))[:_FEW]:
        # That it shares says the least of why it was dear.
        forks = sorted(_forks_of(report, line.agent), key=lambda one: (one.reason.why == "shares", -one.units))
        why = "; ".join(f"{one.count} x {one.said}" for one in forks[:_REASONS])
        name = plain(line.agent) or "unnamed"
        yield f"{name} cost {_more(line)} more than unmodified. {f'Its forks: {why}' if why else _BESIDE}"
    if found and ratio is not None:
        if _beyond(total) > 0:
            yield f"all together cost {_more(total)} more than unmodified; where sharing does not pay: {_WHEN_NOT}"
        elif ratio < 1:
            yield f"all together cost {1 - ratio:.0%} less than unmodified: what one paid for, others read"


def _beyond(line: ReportLine) -> float:
    """Cost units by which a line lies above its unmodified cost; 0 where that is within what a report may be off."""
    known = line.unmodified_units
    if known is None:
        return 0.0
    more = line.cost_units - known
    return more if more > max(_UNSURE * known, line.unsure_units) else 0.0


def _more(line: ReportLine) -> str:
    """By how much a line is dearer."""
    known = line.unmodified_units or 0.0
    share = f" ({_beyond(line) / known:.0%})" if known else ""
    return f"{_beyond(line):,.0f} cost units{share}"


def _forks_of(report: Report, agent: str) -> list[WentOut]:
    """Why an agent's forks went out as they did."""
    return [one for one in report.layouts if one.agent == agent and one.layout == "fork"]


def _as_forks(layouts: Iterable[WentOut]) -> Iterable[str]:
    """Why forks went out as they did, all agents' taken together: the reasons of the dearest requests.

    With the agents' names where those are few.
    """
    found: dict[str, WentOut] = {}
    agents: dict[str, list[str]] = {}
    for one in layouts:
        if one.layout == "fork" and not one.told:
            known = found.get(one.reason.why)
            found[one.reason.why] = one if known is None else _both(known, one)
            agents.setdefault(one.reason.why, []).append(plain(_short(one.agent)) or "unnamed")
    for why, one in sorted(found.items(), key=lambda each: -each[1].units)[:_REASONS]:
        # One agent may have several of a kind, which differ in the name of a provider, say.
        names = dict.fromkeys(agents[why])
        who = f"{', '.join(names)}: " if len(names) <= _FEW else ""
        yield f"{one.count} x {who}{one.said} ({one.units:,.0f} cost units)"


def _both(a: WentOut, b: WentOut) -> WentOut:
    """Two reasons of one kind as one."""
    shown = max(a.reason, b.reason, key=lambda one: one.numbers)
    spans: dict[str, tuple[int, int]] = {}
    for one in (a, b):
        for name, (least, most) in (one.spans or {name: (n, n) for name, n in one.reason.numbers}).items():
            known = spans.get(name, (least, most))
            spans[name] = min(least, known[0]), max(most, known[1])
    return replace(a, reason=shown, count=a.count + b.count, units=a.units + b.units, spans=spans)


KEEP = 20_000
"""Calls kept one by one; beyond that the older half is summed up."""
_LINES = 1_000
"""Agents that are summed up each by itself; an application that names one after each user has any number of them."""
_OTHERS = "other agents"


class Totals(Guarded):
    """What was called so far. Thread-safe."""

    def __init__(self, keep: int = KEEP) -> None:
        self._keep = keep
        self._calls: list[Call] = []
        self._folded: dict[str, ReportLine] = {}
        self._breaks: list[Break] = []
        self._layouts: tuple[WentOut, ...] = ()
        self._agents: Bounded[str, None] = Bounded(KEEP)
        self._lock = Lock()
        self.last: Call | None = None
        self.unanswered = 0
        """Requests without an answer."""
        self.unseen = False
        """Whether other requests go out that are not seen here."""

    def first_of(self, agent: str) -> bool:
        """Whether this is the first call of an agent, or its first for long; asking makes it so."""
        with self._lock:
            new = agent not in self._agents
            self._agents[agent] = None
        return new

    def remember(self, call: Call) -> None:
        """Take in a finished call."""
        with self._lock:
            self.last = call
            self._calls.append(call)
            if len(self._calls) > self._keep:
                self._fold()

    def redact(self, conversation: str) -> None:
        """Show no text of a conversation in what its calls say."""
        with self._lock:
            for at, call in enumerate(self._calls):
                if call.conversation == conversation and (call.verdict.before or call.verdict.after):
                    self._calls[at] = replace(call, verdict=call.verdict.redacted())
            if self.last is not None and self.last.conversation == conversation:
                self.last = replace(self.last, verdict=self.last.verdict.redacted())

    @property
    def calls(self) -> tuple[Call, ...]:
        """The recent calls."""
        with self._lock:
            return tuple(self._calls)

    def report(self, counter: str, notes: tuple[str, ...], failures: Mapping[str, int]) -> Report:
        """Lines by agent and in all, and the breaks, dearest first."""
        with self._lock:
            calls, folded, old = list(self._calls), dict(self._folded), list(self._breaks)
            layouts = _went_out(self._layouts, calls)
        by_agent: dict[str, list[Call]] = {}
        for call in calls:
            by_agent.setdefault(call.agent, []).append(call)
        lines = []
        for agent in sorted(folded.keys() | by_agent.keys()):
            line = _sum(agent, map(_line, by_agent.get(agent, ())))
            lines.append(_sum(agent, (folded[agent], line)) if agent in folded else line)
        breaks = _merged([*old, *breaks_of(calls, old)])
        total = _sum("all", lines)
        if self.unseen:
            # A note says which; the lines of those that are seen stay as they are.
            total = replace(total, unmodified_units=None)
        return Report(
            tuple(map(_told, lines)), _told(total), breaks, counter, notes, dict(failures), layouts=layouts,
            unanswered=self.unanswered,
        )  # fmt: skip

    def _fold(self) -> None:
        """Sum up the older half of the calls kept, so that a long run's report needs no more memory."""
        half = self._keep // 2
        old, self._calls = self._calls[:half], self._calls[half:]
        lines: dict[str, list[ReportLine]] = {name: [line] for name, line in self._folded.items()}
        for at, call in enumerate(old):
            named = call
            if call.agent not in lines and len(lines) >= _LINES:
                named = old[at] = replace(call, agent=_OTHERS)
            lines.setdefault(named.agent, []).append(_line(named))
        self._folded = {name: _sum(name, each) for name, each in lines.items()}
        self._breaks = list(_merged([*self._breaks, *breaks_of(old, self._breaks)]))
        self._layouts = _went_out(self._layouts, old)


def _went_out(earlier: Iterable[WentOut], calls: Iterable[Call]) -> tuple[WentOut, ...]:
    """What was known, and the calls that came since, by agent, layout and reason."""
    known = {(one.agent, one.layout, one.reason.why, one.reason.name): one for one in earlier}
    for call in calls:
        # A call counts once for a reason, however often it was found.
        for each in {(one.why, one.name): one for one in call.reasons}.values():
            key = (call.agent, call.layout, each.why, each.name)
            earlier_one = known.get(key)
            one = WentOut(call.agent, call.layout, each, 1, call.units)
            known[key] = one if earlier_one is None else _both(earlier_one, one)
    return tuple(known[key] for key in sorted(known))


def _merged(breaks: Iterable[Break]) -> tuple[Break, ...]:
    """Breaks of the same cause and place as one, the dearest first."""
    places: dict[tuple[str, str | None], list[Break]] = {}
    for item in breaks:
        places.setdefault((item.cause, item.path), []).append(item)
    return tuple(sorted(map(_joined, places.values()), key=lambda found: -found.lost_tokens))


def _joined(rows: Sequence[Break]) -> Break:
    """Breaks of the same cause and place as one."""
    usd = [row.lost_usd for row in rows if row.lost_usd is not None]
    return replace(
        rows[0],
        count=sum(row.count for row in rows),
        lost_tokens=sum(row.lost_tokens for row in rows),
        lost_usd=sum(usd) if usd else None,
        agents=tuple(sorted({agent for row in rows for agent in row.agents})),
    )
