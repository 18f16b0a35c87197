"""The experiments, one a rule: what the row says would be read, and what was."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from cacheprefix.verify.lab import STREAMED_TOKENS, Answer, Asked, Lab, LimitReachedError

Outcome = Literal["holds", "differs", "unclear", "not tried"]
"""``unclear``: the provider refused the request, or reports nothing that would tell."""

NOT_TRIED: Mapping[str, str] = {
    "collapse_runs": "would need a run of the model's own tool calls",
    "read_candidates": "would need more than eighty marked prompts",
    "scope": "would need a second key of the same workspace, and one of another",
    "rate_per_key": "would need more requests a minute than is polite",
    "read": "a price: the bill says it, and no answer does",
    "thinking_bound": "would need thinking blocks of the model's own",
}
"""Rules that no request of this protocol can show, and why."""

_LADDER = (64, 128, 256, 512, 1024, 2048, 4096, 6144, 8192, 16384)
_QUEUED = "one was answered after the other: too fast for two to overlap, or a server that takes one at a time"

_GOLDEN = 0.6180339887
_FORKS = 8
"""Forks whose common lengths tell the block."""

_MISSES = 2
"""How often a read that was expected and did not come is tried again with new text: real caches miss by chance."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule of the row against what was seen."""

    rule: str
    """The field of the profile, or ``settings.NAME``."""
    expected: str
    seen: str
    outcome: Outcome


def run(lab: Lab, *, slow: bool = False, progress: Callable[[str], None] = lambda _: None) -> Iterator[Finding]:
    """All experiments that fit the row, in the order of what they are worth.

    Args:
        lab: whom to ask, and how.
        slow: wait for lifetimes as well: one and a quarter of the row's default lifetime.
        progress: is told the name of each experiment when it begins.

    Ends early, with what was found so far and a last finding ``limit``, where the next request could cost more
    than may be spent.
    """
    steps: list[tuple[str, Callable[[Lab], Iterator[Finding]]]] = [
        ("what is read at all", _control),
        ("the minimum", _minimum),
        ("where a read ends", _granularity),
        ("settings and order", _settings),
        ("cache marks", _marks),
        ("how far back a mark looks", _lookback),
        ("when an entry can be read", _readable),
    ]
    if slow:
        steps.append(("lifetimes", _lifetime))
    try:
        progress("how long a line is")
        lab.calibrate()
        for name, step in steps:
            progress(name)
            yield from step(lab)
    except LimitReachedError as reached:
        yield Finding("limit", "all experiments", str(reached), "not tried")


def _enough(lab: Lab) -> float:
    """Tokens that are certainly above the row's minimum, and hold several blocks."""
    return max(lab.profile.min_tokens * 1.25, lab.profile.min_tokens + 4 * lab.profile.block_tokens, 300.0)


def _marked(lab: Lab, *names: str) -> frozenset[str]:
    """Marks where the row says that marks are what makes a read, none elsewhere."""
    return frozenset(names) if lab.profile.control == "explicit" else frozenset()


def _tried(read: Callable[[], int | None], *, expected: bool) -> int | None:
    """What an experiment read; again with new text while a read was expected and did not come."""
    found = read()
    for _ in range(_MISSES if expected else 0):
        if found is None or found > 0:
            break
        found = read()
    return found


def _again(lab: Lab, make: Callable[[], Asked]) -> int | None:
    """Tokens that a request read when it was sent a second time; None where it was refused."""
    asked = make()
    first, second = lab.send(asked), lab.send(asked)
    return None if first.refused or second.refused else second.read


def _control(lab: Lab) -> Iterator[Finding]:
    """A request that is sent twice is read the second time, where the row says that it is cached at all."""
    size = _enough(lab)
    reads = lab.profile.control not in ("none", "named")

    def repeated() -> Asked:
        return Asked(system=lab.text(size), marks=_marked(lab, "system"))

    found = _tried(lambda: _again(lab, repeated), expected=reads)
    said = "a repeated request is read" if reads else "nothing is read"
    yield _finding("control", said, found, reads)
    if lab.profile.control == "explicit":
        without = _again(lab, lambda: Asked(system=lab.text(size)))
        yield _finding("control", "nothing is read without a mark", without, expected=False)
    if lab.profile.automatic_breakpoint and lab.api == "anthropic":

        def automatic() -> Asked:
            return Asked(system=lab.text(size), settings={"cache_control": {"type": "ephemeral"}})

        found = _tried(lambda: _again(lab, automatic), expected=True)
        yield _finding("automatic_breakpoint", "a mark at the top of the body caches", found, expected=True)
    if reads:
        asked = repeated()
        once, twice = lab.send(asked), lab.send(asked)
        same = abs(once.total - twice.total) <= max(8, once.total // 50)
        counted = "contains" if lab.profile.input_includes_cached else "leaves out"
        seen = f"{once.total:,} and {twice.total:,} tokens in all for the same request, {twice.read:,} of them read"
        outcome: Outcome = "unclear" if not twice.read else "holds" if same else "differs"
        yield Finding("input_includes_cached", f"the input count {counted} what was read", seen, outcome)


def _minimum(lab: Lab) -> Iterator[Finding]:
    """Just below the minimum nothing is read, just above it is. Where not, a ladder of sizes says where it lies."""
    profile = lab.profile
    if profile.control in ("none", "named"):
        return

    def read_at(size: float, *, expected: bool) -> int | None:
        return _tried(
            lambda: _again(lab, lambda: Asked(system=lab.text(size), marks=_marked(lab, "system"))), expected=expected
        )

    least = profile.min_tokens
    above = max(least * 1.15 + profile.block_tokens, 4.0 * profile.block_tokens, 120.0)
    expected = f"read from {least:,} tokens on"
    high = read_at(above, expected=True)
    low = read_at(least * 0.85, expected=False) if least >= 100 else 0
    if high is None or low is None:
        yield Finding("min_tokens", expected, "refused", "unclear")
    elif high and not low:
        below = f", not at {least * 0.85:,.0f}" if least >= 100 else ""
        yield Finding("min_tokens", expected, f"read at {above:,.0f}{below}", "holds")
    elif low:
        smaller = [size for size in _LADDER if size < least * 0.85]
        found = next((size for size in reversed(smaller) if not read_at(size * 0.9, expected=False)), 0)
        yield Finding("min_tokens", expected, f"read above about {found:,}", "differs")
    else:
        larger = [size for size in _LADDER if size > above / 1.2]
        found = next((size for size in larger if read_at(size * 1.2, expected=False)), 0)
        seen = f"read only above about {found:,}" if found else f"nothing read up to {_LADDER[-1]:,}"
        yield Finding("min_tokens", expected, seen, "differs")


def _granularity(lab: Lab) -> Iterator[Finding]:
    """Prompts that part in the middle: read in blocks, up to a mark, or up to a unit the provider chose."""
    profile = lab.profile
    if profile.control in ("none", "named"):
        return
    if profile.match == "block":
        yield from _blocks(lab)
        return
    size = _enough(lab)
    end = "1"
    shared, implicit = profile.implicit_breakpoint, profile.implicit_reads == "prefix"
    expected = shared and implicit

    def parted() -> int | None:
        # The first is marked at its end only (by us, or by the provider itself), so no mark stands where they part.
        one = Asked(system=lab.text(size), messages=("Go on.", lab.text(60)), marks=_marked(lab, end))
        other = replace(one, messages=("Go on.", lab.text(60)))
        first, second = lab.send(one), lab.send(other)
        return None if first.refused or second.refused else second.read

    found = _tried(parted, expected=expected)
    rule = "implicit_reads" if shared else "match"
    said = "a common beginning is read without a mark" if expected else "nothing is read before a mark or unit"
    yield _finding(rule, said, found, expected)
    if not profile.markers:
        return

    def marked() -> int | None:
        one = Asked(system=lab.text(size), messages=(lab.text(60),), marks=frozenset({"system"}))
        first, second = lab.send(one), lab.send(replace(one, messages=(lab.text(60),)))
        return None if first.refused or second.refused else second.read

    found = _tried(marked, expected=True)
    yield _finding("match", "a common beginning is read up to a mark", found, expected=True)


def _blocks(lab: Lab) -> Iterator[Finding]:
    """Forks that part from one prompt at places of all kinds: what they read has the block as a common divisor."""
    block = lab.profile.block_tokens

    def parted() -> int | None:
        # Only the first fork tells: a provider that goes by units may find the common part by itself later.
        shared = lab.text(_enough(lab) + 2 * block)
        first, second = (lab.send(Asked(system=shared + lab.text(40))) for _ in range(2))
        return None if first.refused or second.refused else second.read

    found = _tried(parted, expected=True)
    yield _finding("match", "a common beginning is read without a mark", found, expected=True)
    if not found:
        return
    span = 6 * block + lab.size(12)
    whole = lab.text(_enough(lab) + span + lab.size(2))
    lab.send(Asked(system=whole))
    letters = span * len(whole) / lab.size(len(whole.splitlines()))
    reads: list[int] = []
    seen = 0
    number = -1
    # Eight lengths may be multiples of twice the block by chance: then more of them are asked for.
    while (number := number + 1) < _FORKS or (number < 3 * _FORKS and seen > block and not seen % block):
        # The golden section spreads the places evenly, and in step with no length of line or block.
        place = len(whole) - round(letters * (number * _GOLDEN % 1))
        answer = lab.send(Asked(system=whole[:place] + lab.text(40)))
        if answer.refused:
            yield Finding("block_tokens", f"in blocks of {block:,}", "refused", "unclear")
            return
        if answer.read:
            reads.append(answer.read)
            seen = math.gcd(*reads)
    expected = "to the token" if block == 1 else f"in blocks of {block:,}"
    listed = ", ".join(f"{read:,}" for read in sorted(set(reads)))
    # Of one or two lengths, the divisor says little.
    outcome: Outcome = "holds" if seen == block else "unclear" if len(set(reads)) < 3 else "differs"
    yield Finding("block_tokens", expected, f"a common divisor of {seen:,} ({listed})", outcome)


_TRIED_SETTINGS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "anthropic": {
        "temperature": {"temperature": 0.5},
        "stop_sequences": {"stop_sequences": ["stop here"]},
        "tool_choice": {"tool_choice": {"type": "none"}},
    },
    "openai-chat": {
        "user": {"user": "somebody"},
        "seed": {"seed": 7},
        "tool_choice": {"tool_choice": "none"},
        "parallel_tool_calls": {"parallel_tool_calls": False},
        "response_format": {"response_format": {"type": "json_object"}},
        "prompt_cache_key": {"prompt_cache_key": "another"},
    },
}
"""Settings that are changed between two requests, by API, and to what."""


def _settings(lab: Lab) -> Iterator[Finding]:
    """One thing changed between two requests: what is still read says which tier it belongs to."""
    profile = lab.profile
    if profile.control in ("none", "named"):
        return
    size = _enough(lab)
    marks = _marked(lab, "tools", "system", "0")

    def first() -> Asked:
        # Two tools of half the size each, so that the tools alone are above the minimum.
        tools = (lab.text(size / 2 + 40), lab.text(size / 2 + 40))
        return Asked(tools=tools, system=lab.text(size), messages=(lab.text(size),), marks=marks)

    levels = ("nothing", "the tools", "tools and system", "everything")
    # Where each of them ends, in the provider's tokens: a template may write more around a tool than around a text,
    # and one that knows no tools shows the model none.
    whole, toolless, bare = (lab.send(one) for one in _without(first()))
    if whole.refused:
        yield Finding("settings and order", "tools stand in the prompt", f"refused: {whole.refused[:120]}", "unclear")
        return
    ends = (0, whole.total - toolless.total, whole.total - bare.total, whole.total)
    if ends[1] * 10 < ends[3]:
        yield Finding("settings and order", "tools stand in the prompt", "the model is shown no tools", "unclear")
        return

    def level(change: Callable[[Asked], Asked]) -> int | None:
        """How far the second request was read, as an index of ``levels``; None where it was refused."""
        asked = first()
        before = lab.send(asked)
        after = lab.send(change(asked))
        if before.refused or after.refused:
            return None
        return min(range(4), key=lambda at: abs(ends[at] - after.read))

    def told(name: str, expected: int, change: Callable[[Asked], Asked]) -> Finding:
        found = level(change)
        for _ in range(_MISSES):
            if found is None or found >= expected:
                break
            found = level(change)
        if found is None:
            return Finding(name, f"{levels[expected]} still read", "refused", "unclear")
        outcome: Outcome = "holds" if found == expected else "differs"
        return Finding(name, f"{levels[expected]} still read", f"{levels[found]} read", outcome)

    # A breakpoint's row reads up to the last mark before the change; without marks of its own, the provider's mark
    # at the newest message is the only one, and a change anywhere leaves nothing.
    tiers = profile.match == "block" or profile.control == "explicit" or profile.implicit_reads == "prefix"
    reaches = {"none": 3, "messages": 2, "system": 1, "tools": 0, "lane": 0}
    for name, changed in _TRIED_SETTINGS.get(lab.api, {}).items():
        where = profile.placement(name)
        expected = reaches[where] if tiers or where == "none" else 0
        yield told(f"settings.{name}", expected, partial(_with, settings=changed))
    yield told("order of tools", 0, lambda asked: replace(asked, tools=tuple(reversed(asked.tools))))
    yield told("a changed system", 1 if tiers else 0, lambda asked: replace(asked, system=lab.text(size)))


def _without(asked: Asked) -> tuple[Asked, Asked, Asked]:
    """The request, the same without tools, and with neither tools nor system text: tools and marks go together."""
    left = asked.marks - {"tools"}
    return asked, replace(asked, tools=(), marks=left), replace(asked, tools=(), system="", marks=left - {"system"})


def _with(asked: Asked, settings: Mapping[str, Any]) -> Asked:
    return replace(asked, settings=settings)


def _marks(lab: Lab) -> Iterator[Finding]:
    """As many marks as the row allows are taken, and one more is refused."""
    most = lab.profile.max_breakpoints
    if lab.profile.markers != "anthropic" or lab.api != "anthropic":
        return

    def refused(count: int) -> str:
        texts = tuple(f"Part {number}." for number in range(count))
        return lab.send(Asked(messages=texts, marks=frozenset(map(str, range(count))))).refused

    few, many = refused(most), refused(most + 1)
    seen = f"{most} {'refused' if few else 'taken'}, {most + 1} {'refused' if many else 'taken'}"
    yield Finding("max_breakpoints", f"{most} at most", seen, "holds" if many and not few else "differs")


def _lookback(lab: Lab) -> Iterator[Finding]:
    """An earlier mark is found as many blocks behind the newest one as the row says, and no further."""
    steps = lab.profile.lookback
    if lab.profile.markers != "anthropic" or lab.api != "anthropic" or steps is None:
        return

    def read_behind(blocks: int) -> int | None:
        one = Asked(messages=(lab.text(_enough(lab)),), marks=frozenset({"0"}))
        more = (*one.messages, *(f"Part {number}." for number in range(blocks)))
        first, second = lab.send(one), lab.send(replace(one, messages=more, marks=frozenset({str(blocks)})))
        return None if first.refused or second.refused else second.read

    near = _tried(lambda: read_behind(steps - 1), expected=True)
    far = read_behind(steps)
    if near is None or far is None:
        yield Finding("lookback", f"{steps} positions", "refused", "unclear")
        return
    found = ("lost", "read")
    seen = f"a mark {steps - 1} blocks behind is {found[near > 0]}, {steps} behind {found[far > 0]}"
    yield Finding("lookback", f"{steps} positions", seen, "holds" if near and not far else "differs")


def _readable(lab: Lab) -> Iterator[Finding]:
    """Whether another request reads an entry while its own answer is still coming, and when both start together."""
    profile = lab.profile
    if profile.control in ("none", "named"):
        return

    def pair() -> tuple[Asked, Asked]:
        one = Asked(system=lab.text(_enough(lab)), marks=_marked(lab, "system"), longest=STREAMED_TOKENS)
        return one, replace(one, longest=STREAMED_TOKENS + 1)

    apart = False

    def seen(first: Answer, second: Answer, read: int) -> int | None:
        nonlocal apart
        apart = not first.beside(second)
        return None if first.refused or second.refused else read

    def during() -> int | None:
        first, second = lab.send_during(*pair())
        return seen(first, second, second.read)

    early = profile.readable in ("start", "first_token")
    found = _tried(during, expected=early)
    said = "once the first token is out" if early else "only when the answer is over"
    yield Finding("readable", said, _QUEUED, "unclear") if apart and found else _finding("readable", said, found, early)

    def together() -> int | None:
        first, second = lab.send_together(*pair())
        return seen(first, second, max(first.read, second.read))

    shares = profile.cold_parallel_shares or profile.readable == "start"
    found = _tried(together, expected=shares)
    said = "two that start together share" if shares else "two that start together both pay"
    rule = "cold_parallel_shares"
    yield Finding(rule, said, _QUEUED, "unclear") if apart and found else _finding(rule, said, found, shares)


def _lifetime(lab: Lab) -> Iterator[Finding]:
    """An entry is read after four fifths of its lifetime, and gone after five quarters of it."""
    ttl = lab.profile.default_ttl
    if lab.profile.control in ("none", "named") or ttl.seconds is None or math.isinf(ttl.seconds):
        return
    lives = ttl.seconds

    def after(seconds: float) -> int | None:
        asked = Asked(system=lab.text(_enough(lab)), marks=_marked(lab, "system"))
        first = lab.send(asked)
        lab.sleep(seconds)
        second = lab.send(asked)
        return None if first.refused or second.refused else second.read

    young = _tried(lambda: after(lives * 0.8), expected=True)
    old = after(lives * 1.25)
    expected = f"{lives:,.0f} s ({ttl.name})"
    if young is None or old is None:
        yield Finding("ttls", expected, "refused", "unclear")
        return
    found = ("gone", "read")
    seen = f"{found[young > 0]} after {lives * 0.8:,.0f} s, {found[old > 0]} after {lives * 1.25:,.0f} s"
    # A provider may keep an entry longer than it promises; that costs nobody anything, and the row should still say so.
    yield Finding("ttls", expected, seen, "holds" if young and not old else "differs")


def _finding(rule: str, said: str, read: int | None, expected: bool) -> Finding:  # noqa: FBT001 - what the row says
    if read is None:
        return Finding(rule, said, "refused", "unclear")
    seen = f"{read:,} tokens read" if read else "nothing read"
    return Finding(rule, said, seen, "holds" if bool(read) == expected else "differs")
