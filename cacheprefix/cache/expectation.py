"""What the provider should read and write for one request: from the tree, its rules and the clock."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from cacheprefix.cache.breakpoints.read import Marks, marks, message_ends, reach, request_ttl
from cacheprefix.cache.verdict import Cause
from cacheprefix.profiles import Profile, Ttl, Usage
from cacheprefix.prompt import (
    ABOUT,
    CountTokens,
    Envelope,
    Prompt,
    Section,
    shared_characters,
    shared_tokens,
)

if TYPE_CHECKING:
    from cacheprefix.cache.slots import Taken
    from cacheprefix.cache.tree import CacheEntry, Node

_NEIGHBOURS = 500
"""Of so many prompts that differ from one at the same section the nearest is looked for, at most."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the cache should do for one request. Tokens are counted as the prompt was decoded."""

    tokens: int
    """Input tokens read from the cache."""
    shared_tokens: int
    """Tokens in common with the best earlier prompt of the lane, readable or not."""
    ancestor: int | None
    """Index of that prompt's call; None for the first of its lane."""
    reason: Cause
    """Why fewer tokens are read than shared; ``hit`` when nothing stands in the way, ``cold_start`` when
    nothing is shared."""
    usage: Usage
    """The whole usage expected: input, read, written by lifetime."""


class Near(NamedTuple):
    """What shares a beginning with the first section that no earlier prompt has in its place."""

    part: int = 0
    """Tokens of that beginning."""
    sibling: Node | None = None
    """One that stood in its place, the nearest; None where nothing is shared."""


class Expected(NamedTuple):
    """An expectation with what the model needs to act on it."""

    reason: Cause
    place: int | None
    """The section that ``reason`` is about."""
    marks: Marks
    near: Near
    read: int = 0
    """Tokens."""
    sections: int = 0
    """Whole sections read."""
    billed: Mapping[str, int] = MappingProxyType({})
    """Tokens written, by lifetime, where the provider bills them."""
    ends: Mapping[int, Ttl] = MappingProxyType({})
    """Where entries end that this request writes or confirms."""
    alive: int = 0
    """Sections from the start whose entries this read keeps alive."""
    common: tuple[int, int, int] | None = None
    """A beginning found to be common: which section's, and how many bytes and tokens of it."""
    unmarked: bool = False
    """Whether an earlier request's entry stands behind the last mark of this one: a mark is no longer set."""


class Request(NamedTuple):
    """What the rules look at."""

    prompt: Prompt
    profile: Profile
    totals: Sequence[int]
    """Tokens up to and with each section."""
    root: Node | None
    path: Sequence[Node]
    """The sections, from the first, that earlier prompts of the lane begin with too."""
    now: float
    count_tokens: CountTokens
    earlier: tuple[int, ...] = ()
    """Breakpoints of the best earlier prompt, by section index."""
    taken: Taken | None = None
    """What its slot holds, for engines that keep lines."""
    envelope: Envelope = ABOUT
    """What stands around each message."""
    planned: Mapping[int, str | None] | None = None
    """Marks that are taken to stand in it beside its own; see ``marks``."""

    @property
    def sections(self) -> tuple[Section, ...]:
        """The prompt's sections."""
        return self.prompt.sections


def outlook(request: Request, *, why: bool = True) -> Expected:
    """What the rules say about a request; without ``why``, no reason where marks decide what is read: it takes time."""
    profile = request.profile
    found = marks(request.prompt, profile, request.totals, request.planned)
    marked = profile.match == "breakpoint" and request.taken is None
    near = _near(request, readable=False) if why or not marked else Near()
    if profile.control in ("none", "named") or not request.sections:
        return Expected("cold_start", None, found, near)
    if request.taken is not None:
        return _in_line(request, request.taken, found, near)
    if profile.match == "breakpoint":
        return _breakpoints(request, found, near, why=why)
    if profile.match == "unit":
        return _units(request, found, near)
    return _blocks(request, found, near)


def _blocks(request: Request, found: Marks, near: Near) -> Expected:
    """What is read where no marks are needed: the longest beginning that the provider still has, in whole blocks."""
    profile, totals, path = request.profile, request.totals, request.path
    total = totals[-1]
    related = bool(path or near.part)
    # A provider's rule: prompts below a minimum are neither read nor kept.
    if total < profile.min_tokens:
        return Expected("below_minimum" if related else "cold_start", None, found, near)
    whole = readable_sections(path, request.now)
    reason, place, part = _where_it_ends(request, near, whole)
    shared = (totals[whole - 1] if whole else 0) + part + _markers(request, whole)
    # A provider's rule: some engines compute the last token again even where they have it, since they need what
    # follows from it.
    if profile.recomputes_last:
        shared = min(shared, total + request.envelope.answer - 1)
    # A provider's rule: whole blocks are read, and nothing below the minimum.
    read = shared - shared % profile.block_tokens
    if read < max(profile.min_tokens, 1):
        read = 0
        if reason == "hit":
            reason = "below_minimum" if related else "cold_start"
    # Money: what was not read is written, which some providers bill.
    ttl = request_ttl(request.prompt, profile)
    bills = total > read and ("write" in profile.usage_fields or ttl.write != 1)
    alive = whole if read else 0
    return Expected(
        reason,
        place,
        found,
        near,
        read=read,
        sections=bisect_right(totals, read, hi=whole) if read else 0,
        billed={ttl.name: total - read} if bills else {},
        ends=dict.fromkeys(range(alive, len(totals)), ttl),
        alive=alive,
    )


def _where_it_ends(request: Request, near: Near, whole: int) -> tuple[Cause, int | None, int]:
    """Why no more can be read than ``whole`` sections, which section that is about, and what is read of the next one.

    Of the sections that earlier prompts begin with too, the first one that cannot be read (any more, or not yet) is
    what the expectation names. Behind all of them it is a sibling of the next one that cannot be read.
    """
    path, now = request.path, request.now
    if whole < len(path):
        return _state(path[whole].entry, now), whole, _near(request, readable=True, index=whole).part
    part, sibling = near
    if sibling is None or sibling.readable(now):
        return "hit", None, part
    # The nearest of all cannot be read: the nearest of those that can counts.
    readable = _near(request, readable=True, index=whole).part
    return (_state(sibling.entry, now), whole, readable) if readable < part else ("hit", None, readable)


def readable_sections(path: Sequence[Node], now: float) -> int:
    """How many sections from the start end in entries that can be read. A plain loop: it is run for every section."""
    for at, node in enumerate(path):
        entry = node.entry
        if entry is None or not entry.readable_at <= now <= entry.expires:
            return at
    return len(path)


def _in_line(request: Request, taken: Taken, found: Marks, near: Near) -> Expected:
    """What the slot holds; where another request took it since, its earlier content has had its time."""
    path = request.path
    shared = (request.totals[len(path) - 1] if path else 0) + near.part
    reason: Cause = "hit" if shared else "cold_start"
    if shared > taken.read + 1:
        reason = "concurrent_cold_start" if taken.busy > taken.read else "ttl_expired"
    return Expected(
        reason, min(taken.whole, len(path)), found, near, read=taken.read, sections=taken.whole
    )  # fmt: skip


def _state(life: CacheEntry | None, now: float) -> Cause:
    """Why an entry cannot be read."""
    if life is None:
        return "below_minimum"
    if now > life.expires:
        return "ttl_expired"
    return "concurrent_cold_start" if life.readable_at > now else "hit"


def _near(request: Request, *, readable: bool, index: int | None = None) -> Near:
    """What the first unknown section shares with one that stood in its place; ``readable`` looks at such ones only."""
    at = len(request.path) if index is None else index
    parent = request.path[at - 1] if at else request.root
    if parent is None or at >= len(request.sections):
        return Near()
    own, best = request.sections[at], Near()
    for side in parent.neighbours(own):
        # Of thousands of first requests that nobody can read any more only the nearest are looked at.
        near = islice(side, _NEIGHBOURS)
        node = next((one for one in near if not readable or one.readable(request.now)), None)
        if node is None or node.section is None:
            continue
        tokens = shared_tokens(node.section, own, request.count_tokens, request.prompt.model)
        if tokens > best.part:
            best = Near(tokens, node)
    return best


def _markers(request: Request, at: int) -> int:
    """Tokens of a message's markers that a request shares with earlier ones behind its equal sections; ``at`` is next.

    A model's template puts markers around each message, its envelope: what opens it, its role last, and what closes it.
    They count with its first section. Less than 0 where one request's message ends there and the other's goes on: what
    closes it was counted, and is not in common.
    """
    parent = request.path[at - 1] if at else request.root
    envelope = request.envelope
    # A provider's rule: where none is known of its template (``Envelope``), nothing but the sections is counted.
    if not envelope.opening or parent is None:
        return 0
    if at >= len(request.sections):
        # The same prompt was asked before: where its answer was to begin, this one's begins too.
        return envelope.answer
    own, heads = request.sections[at].head, parent.heads()
    # "+" is the head of a further block of the same message (``Section.head``).
    if own == "+" or heads == {"+"}:
        return -envelope.closing
    return max((envelope.shared(own, head) for head in (*heads, None)), default=0)


def _breakpoints(request: Request, found: Marks, near: Near, *, why: bool) -> Expected:
    """Only where an earlier request set a breakpoint, and only from this request's own ones."""
    # A provider's rule: a request with too many marks is refused as a whole.
    if found.refused:
        return Expected("breakpoints_over_limit", found.all[0], found, near)
    read = _deepest(request, found.reading)
    reason, place = _shortfall(request, found, read) if why else ("hit", None)
    if not found.reading:
        return Expected(reason, place, found, near)
    read_tokens = request.totals[read] if read >= 0 else 0
    return Expected(
        reason,
        place,
        found,
        near,
        read=read_tokens,
        sections=read + 1,
        billed=_billed(request, found, read_tokens),
        ends=_ends(request, found),
        alive=read + 1,
        unmarked=why and any(node.entry is not None for node in request.path[found.reading[-1] + 1 :]),
    )


def _billed(request: Request, found: Marks, read_tokens: int) -> dict[str, int]:
    """Tokens that are paid as written, by lifetime: behind what is read, up to the last mark of each lifetime.

    Longer lifetimes stand in front of shorter ones, as Anthropic asks for.
    """
    billed: dict[str, int] = {}
    done = read_tokens
    lasts = {ttl.name: (index, ttl.seconds or 0) for index, ttl in found.written.items()}
    for name, (last, _) in sorted(lasts.items(), key=lambda one: -one[1][1]):
        if request.totals[last] > done:
            billed[name] = request.totals[last] - done
            done = request.totals[last]
    return billed


def _ends(request: Request, found: Marks) -> dict[int, Ttl]:
    """Where entries end that a request with marks writes or confirms."""
    profile, ends = request.profile, dict(found.written)
    # A provider's rule: some let later requests read up to any message before the last mark, too.
    if profile.implicit_reads == "prefix":
        default = request_ttl(request.prompt, profile)
        for index in message_ends(request.sections[: found.reading[-1] + 1]):
            if request.totals[index] >= profile.min_tokens:
                ends.setdefault(index, default)
    return ends


def _deepest(request: Request, reading: Sequence[int]) -> int:
    """The last section of the longest entry that can be read; -1 for none."""
    path = request.path
    return next((at for at in _looked_at(request, reading) if at < len(path) and path[at].readable(request.now)), -1)


def _looked_at(request: Request, reading: Sequence[int]) -> Iterator[int]:
    """The sections at whose ends the provider looks for an entry, in its order; some are in no earlier prompt."""
    profile = request.profile
    # A provider's rule: from each mark, the last one first, it looks back over so many blocks.
    if profile.lookback is not None:
        for mark in reversed(reading):
            yield from range(min(mark, len(request.path) - 1), reach(request.sections, mark, profile) - 1, -1)
    # A provider's rule: others look at the last ends before the last mark, the request's own and those written earlier.
    elif reading:
        standing = _standing(request, reading[-1] + 1, profile.read_candidates)
        yield from sorted({*standing, *reading}, reverse=True)[: profile.read_candidates]


def _standing(request: Request, end: int, most: int | None) -> list[int]:
    """The last sections before ``end`` at which an entry was written."""
    path = request.path
    written = (at for at in range(min(end, len(path)) - 1, -1, -1) if path[at].entry is not None)
    return list(islice(written, most))


def _shortfall(request: Request, found: Marks, read: int) -> tuple[Cause, int | None]:
    """Why less is read than is shared, and at which section; ``read`` is the last section that is read, or -1.

    The deepest position that could hold an entry decides: one that stands but is out of reach, has expired or
    is not readable yet; else none was written there, and the question is where the marks were.
    """
    path = request.path
    shared = len(path)
    if not shared:
        return "cold_start", None
    if _too_short(request, found):
        return "below_minimum", None
    for index in range(shared - 1, read, -1):
        entry = path[index].entry
        if entry is not None:
            return _why_unread(request, found, index, entry)
        if path[index].dropped:
            # An earlier request had a mark here, beyond what the provider takes: nothing was written.
            return "breakpoints_over_limit", index
    if read == shared - 1:
        return "hit", None
    marked_behind = any(mark >= shared for mark in request.earlier)
    return "breakpoint_after_change" if marked_behind else "breakpoint_missing", shared - 1


def _too_short(request: Request, found: Marks) -> bool:
    """Whether the provider's minimum explains it: for the prompt, what is shared, or what stands before each mark."""
    least, path = request.profile.min_tokens, request.path
    if request.totals[-1] < least or request.totals[len(path) - 1] < least:
        return True
    if found.reading or not found.all:
        return False
    # Where marks stood behind these, they are no longer set, and that is what explains it.
    return not any(node.entry is not None for node in path[found.all[-1] + 1 :])


def _why_unread(request: Request, found: Marks, index: int, entry: CacheEntry) -> tuple[Cause, int | None]:
    """Why an entry that an earlier request wrote at a section is not read, and which section that is about."""
    path, reading = request.path, found.reading
    state = _state(entry, request.now)
    if reading and reading[-1] >= index:
        # It stands before a mark: where it could be read, it is too far from that.
        return "lookback_exceeded" if state == "hit" else state, index
    # The last mark stands before it: marks are no longer set where they were. Where not even what these cover lives,
    # it is too old all the same.
    covered = next((at for at in reversed(reading) if at < len(path) and path[at].entry is not None), None)
    if covered is not None and _state(path[covered].entry, request.now) == "ttl_expired":
        return "ttl_expired", covered
    return "breakpoint_missing", len(path) - 1


def _units(request: Request, found: Marks, near: Near) -> Expected:
    """Whole units only: ends of earlier requests, and beginnings found to be common to two of them.

    DeepSeek's guide to context caching (api-docs.deepseek.com/guides/kv_cache, read 2026-11-21): after A+B and
    A+C a request A+D reads A, and only then.
    """
    totals, path, now = request.totals, request.path, request.now
    known = len(path)
    whole = next((index for index in range(known, 0, -1) if path[index - 1].readable(now)), 0)
    read = totals[whole - 1] if whole else 0
    ttl = request_ttl(request.prompt, request.profile)
    ends = {len(totals) - 1: ttl}
    kept, common = _common(request)
    if kept:
        whole, read = known, (totals[known - 1] if known else 0) + kept
    elif whole < known < len(totals):
        ends[known - 1] = ttl
    reason: Cause = "hit" if known or near.part else "cold_start"
    place = None
    if whole < known:
        reason, place = _why_no_unit(path, now)
    # A provider's rule: nothing below the minimum is read.
    if read < max(request.profile.min_tokens, 1):
        read = whole = 0
    return Expected(
        reason, place, found, near, read=read, sections=whole, ends=ends, alive=whole, common=common
    )  # fmt: skip


def _why_no_unit(path: Sequence[Node], now: float) -> tuple[Cause, int | None]:
    """Why no unit ends where what is shared ends, and which section that is about."""
    life = path[-1].entry
    state = "hit" if life is None else _state(life, now)
    # A provider's rule: a beginning becomes a unit only when a second request has it. Until then it is cold for all.
    return ("cold_start", None) if state == "hit" else (state, len(path) - 1)


def _common(request: Request) -> tuple[int, tuple[int, int, int] | None]:
    """Tokens read from a kept common beginning of the first unknown section, and a longer one found just now.

    DeepSeek's rule, which keeps what prompts begin with alike: two sections that differ only at their end
    share the text before. The longer beginning is (section, bytes, tokens), or None.
    """
    at = len(request.path)
    parent = request.path[-1] if at else request.root
    if parent is None or at >= len(request.sections):
        return 0, None
    own, model = request.sections[at], request.prompt.model
    live = (one for one in parent.commons or () if one.life.readable_at <= request.now <= one.life.expires)
    kept = max((one.tokens for one in live if one.begins(own)), default=0)
    nearest = [node.section for side in parent.neighbours(own) if (node := next(side, None)) is not None]
    size = max((shared_characters(one.text, own.text) for one in nearest if one is not None), default=0)
    text = own.text[:size]
    tokens = request.count_tokens(text, model) if size else 0
    # The envelope of a message counts into what a unit of it would hold.
    if size and tokens + (0 if own.head == "+" else 1) > kept:
        return kept, (at, len(text.encode("utf-8", "surrogatepass")), tokens)
    return kept, None
