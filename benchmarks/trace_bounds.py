"""How little a recorded run can cost: its texts anywhere, and where they stand under a prefix cache.

The first bound asks only for the texts: each is paid once and read afterwards, wherever it stands. A prefix cache reads
only what stands behind nothing that changed, so the second bound asks for the requests as a layout orders them. It is
tightened in steps, each with one more rule of the provider, and the step tells what that rule takes away.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from benchmarks.context_replay import Message
from benchmarks.trace_replay import Run
from cacheprefix.cache.breakpoints.plan import carries
from cacheprefix.profiles import Profile
from cacheprefix.prompt import Prompt, Section, estimate_tokens, shared_characters, shared_sections, shared_tokens

STEPS = ("position", "lifetime", "minimum", "rounding")
"""What a bound gives way to: texts that repeat behind something else; entries that expired or could not be read yet;
common beginnings under the provider's minimum; beginnings that end within a block or, with breakpoints, where the
provider takes none."""


def anywhere(run: Run, profile: Profile) -> float:
    """Cost units below which this content cannot go: each text once at the write price, repetitions at the read price.

    Requests shorter than the provider's minimum count in full. A text that begins like an earlier one repeats that
    beginning. Where it stands in the request plays no part: this is what a perfect layout would reach.
    """
    write = profile.default_ttl.write
    known: list[str] = []
    cost = 0.0
    for ask in run.asks:
        texts = [text for text in (ask.system, *(_text(message) for message in ask.messages)) if text]
        whole = sum(estimate_tokens(text) + 3 for text in texts)
        if whole < profile.min_tokens:
            cost += whole
            continue
        for text in texts:
            at = bisect_left(known, text)
            tokens = estimate_tokens(text) + 3
            if at < len(known) and known[at] == text:
                cost += tokens * profile.read
                continue
            shared = max((shared_characters(near, text) for near in known[max(0, at - 1) : at + 1]), default=0)
            again = min(tokens, estimate_tokens(text[:shared]))
            cost += again * profile.read + (tokens - again) * write
            insort(known, text)
    return cost


def _text(message: Message) -> str:
    calls = message.get("tool_calls")
    return (message.get("content") or "") + (json.dumps(calls) if calls else "")


def in_place(prompts: Sequence[Prompt], times: Sequence[float], profile: Profile, answer: float) -> list[float]:
    """Cost units after each of ``STEPS``, for these requests at these times (seconds, each answered in ``answer``).

    A request reads the longest beginning that it has in common with an earlier one, and pays the write price for
    what a later request reads of it, as one would who knew them all; the rest is plain input.
    """
    common = _common(prompts, profile)
    found = []
    for step in range(len(STEPS)):
        rules = _Rules(profile, step, answer)
        reads = [
            [rules.read(prompts[n], shared, times[n] - times[early]) for n, shared in enumerate(row, early + 1)]
            for early, row in enumerate(common)
        ]
        cost = 0.0
        for number, prompt in enumerate(prompts):
            read = max((reads[early][number - early - 1] for early in range(number)), default=0)
            kept = max(read, max(reads[number], default=0))
            cost += read * profile.read + (kept - read) * profile.default_ttl.write + (prompt.tokens - kept)
        found.append(cost)
    return found


def _common(prompts: Sequence[Prompt], profile: Profile) -> list[list[tuple[int, int]]]:
    """For each prompt and every later one: tokens of their common beginning, and of it up to where an entry can end."""
    parts: dict[tuple[bytes, bytes], int] = {}
    rows = []
    for number, early in enumerate(prompts):
        row = []
        totals = [0, *accumulate(one.tokens for one in early.sections)]
        last = len(early.sections)
        places = [at for at in range(1, last + 1) if at == last or carries(early, at - 1)]
        for late in prompts[number + 1 :]:
            same = shared_sections(early.sections, late.sections)
            shared = totals[same]
            if same < min(last, len(late.sections)):
                shared += _part(early.sections[same], late.sections[same], parts)
            if profile.match == "breakpoint":
                at = bisect_right(places, same)
                row.append((shared, totals[places[at - 1]] if at else 0))
            else:
                row.append((shared, shared - shared % profile.block_tokens))
        rows.append(row)
    return rows


def _part(a: Section, b: Section, known: dict[tuple[bytes, bytes], int]) -> int:
    pair = (a.digest, b.digest)
    if pair not in known:
        known[pair] = shared_tokens(a, b, estimate_tokens)
    return known[pair]


@dataclass(frozen=True)
class _Rules:
    """A provider's rules up to a step."""

    profile: Profile
    step: int
    answer: float

    def read(self, prompt: Prompt, shared: tuple[int, int], gap: float) -> int:
        """What a request reads of one that was sent ``gap`` seconds earlier."""
        profile, (whole, ended) = self.profile, shared
        if prompt.tokens < profile.min_tokens:
            return 0
        if self.step >= STEPS.index("lifetime"):
            early = gap < self.answer and not profile.cold_parallel_shares
            if early or gap - self.answer > (profile.default_ttl.seconds or gap):
                return 0
        read = ended if self.step >= STEPS.index("rounding") else whole
        return 0 if self.step >= STEPS.index("minimum") and read < profile.min_tokens else read
