"""From what was expected, found and reported to one verdict."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cacheprefix.cache.verdict import FIXES, QUIET, STRUCTURAL, Cause, Diagnosis, Verdict, VerdictKind
from cacheprefix.errors import named
from cacheprefix.profiles import Amount, Profile, Usage, lost_money

if TYPE_CHECKING:
    from cacheprefix.cache.calibration import Calibration
    from cacheprefix.cache.differences import Finding
    from cacheprefix.cache.expectation import Expected
    from cacheprefix.cache.tree import AgentHistory, Node, SentRequest

_ENVELOPE = 2
"""Tokens by which a prompt's total may differ from ours where the counter is exact: how a template opens answers."""

_NOISE_KNOWN = 0.02
_NOISE_SCALED = 0.25
"""How far a count in our tokens can be off for one part of a prompt, once the whole is known to agree."""
_NOISE_GUESSED = 0.35
_NEAR = 0.15
"""A last breakpoint that leaves less than this share of what is common uncovered stands well enough."""
_SLIGHT = 0.05
"""So little of what is common that it does not matter when it was too old or too young to be read."""
_LOUD = 0.01
"""Share of a prompt that has to be lost before people are told."""
_FAN_OUT_SECONDS = 0.02
"""Requests of one fan-out go out so close to each other; what other conversations do meanwhile is chance."""
_FIRST_CALLS: frozenset[Cause] = frozenset({"breakpoint_after_change", "breakpoint_missing"})
"""Causes that an agent's first call may have without an alarm: it never had more to read."""


class VerdictInput(NamedTuple):
    """What was to be seen when a request went out."""

    outlook: Expected
    finding: Finding | None
    available: int
    """Tokens that the prompt of the finding could still have read."""
    compacted: bool
    line: AgentHistory
    first: bool
    """Whether the agent had no request before."""
    shared_tokens: int
    ancestor: int | None
    opening: bool
    """Whether it looks like the first request of somebody: no answer stands behind what it shares."""
    mine: int = 0
    """Tokens that it begins with as an earlier request of its own line did."""
    ancestor_record: SentRequest | None = None
    """The call whose number is ``ancestor``."""
    answer: int = 0
    """Tokens that the model's template puts behind the last message, which the provider counts too."""


class _Reason(NamedTuple):
    cause: Cause
    reusable: int
    """Tokens, by our counter, that could be read without it."""
    sure: bool = False
    exact: int = 0
    """The same before it was rounded down to blocks of ours: the provider's blocks are cut by its own count."""


def judge(
    record: SentRequest,
    profile: Profile,
    sight: VerdictInput,
    path: Sequence[Node],
    usage: Usage | None,
    told: Diagnosis,
    calibration: Calibration,
) -> Verdict:
    """The verdict on one finished call."""
    seen = sight.outlook
    total = record.totals[-1] if record.totals else 0
    scale = _scale(usage, total, sight.answer)
    counts = _Counts(record, path, scale, calibration)
    expected, doubt = _in_their_tokens(record, sight, path, counts, profile, known=_counted(usage))
    reported = None if usage is None else usage.cache_read_tokens
    read = expected if reported is None else reported
    reason = _reason(sight, record, profile)
    reusable = (
        max(expected, _reusable(reason, sight, counts, usage, profile)) if reason.reusable > seen.read else expected
    )
    noise = max(profile.block_tokens, 0 if _counted_up_to(reason, seen, path) else doubt)
    if reason.reusable <= seen.read and not read and expected - doubt < profile.min_tokens:
        # By their count it may be too short to be cached at all.
        expected = reusable = 0
    lost = max(0, reusable - read)
    if lost <= noise and reason.reusable <= seen.read:
        lost = 0  # nothing was to be had beyond what was expected, and that is only as good as our counting
    cause, lost = _settle(reason, told, lost, noise, reported=reported, read=read)
    if sight.compacted and cause.startswith("history"):
        cause = "compacted"
    finding = sight.finding if sight.finding is not None and cause in STRUCTURAL else None
    loud = (
        lost > max(noise if cause == "provider_miss" else profile.block_tokens, _LOUD * total * scale)
        and cause not in QUIET
        and sight.line.alarmed != cause
        and not (sight.opening and cause in _FIRST_CALLS)
    )
    written = bool(seen.billed)
    paid = profile.default_ttl.write if written else 1.0
    return Verdict(
        kind=_kind(reported, read, lost),
        cause=cause,
        alarm=loud,
        path=finding.path if finding else _path(cause, record, seen, told),
        offset=finding.divergence.offset if finding else 0,
        before=finding.divergence.before if finding else "",
        after=finding.divergence.after if finding else "",
        size=finding.divergence.size if finding else 0,
        expected_tokens=expected,
        reusable_tokens=reusable,
        reported_tokens=reported,
        lost_tokens=lost,
        lost_units=lost * max(0.0, paid - profile.read),
        loss=Amount(partial(lost_money, lost, record.prompt.model, profile, written=written, at=record.at)),
        ancestor_index=sight.finding.record.index if sight.finding is not None else sight.ancestor,
        agent=record.agent,
        session=record.session,
        model=named(record.prompt.model),
        fix=FIXES[cause],
        previous_read=sight.line.previous_read,
        current_read=reported,
        provider_reason=told.reason,
        index=record.index,
        at=record.at,
    )


def _settle(
    reason: _Reason, told: Diagnosis, lost: int, noise: int, *, reported: int | None, read: int
) -> tuple[Cause, int]:
    """The cause and the tokens lost by it, once the provider has reported or kept silent."""
    cause = reason.cause
    if cause in ("hit", "cold_start", "below_minimum"):
        if reported is None:
            if told.cause is not None:
                return told.cause, told.missed_tokens or 0
            return ("unreported" if cause == "hit" and not told.hit else cause), 0
        if lost > noise and not told.hit:
            return told.cause or "provider_miss", lost
        return ("hit" if read else cause), 0
    if reported is None:
        return ("hit", 0) if told.hit else (cause, lost)
    if not lost and not reason.sure:
        return ("hit" if read else "cold_start"), 0
    # Only a difference that was seen is believed when the loss is within what counting may be off.
    if cause not in STRUCTURAL and not reason.sure and lost <= noise:
        return "hit", 0
    return cause, lost


def _reason(sight: VerdictInput, record: SentRequest, profile: Profile) -> _Reason:
    """The one cause that precedence leaves, and what could be read without it."""
    seen, finding = sight.outlook, sight.finding
    if finding is not None:
        could = min(finding.tokens, max(sight.available, seen.read))
        whole = could - could % profile.block_tokens
        counted = finding.record.leaf.known
        theirs = could * counted / finding.whole if counted and finding.whole else whole
        if theirs < profile.min_tokens and finding.cause != "model_changed":
            whole = 0  # Too short for this model; another model's minimum is another.
        if finding.sure or whole > seen.read:
            return _Reason(finding.cause, max(whole, seen.read), finding.sure, could)
    if seen.reason in ("hit", "cold_start", "below_minimum"):
        related = sight.finding is not None or not sight.first
        cause: Cause = seen.reason
        if cause == "below_minimum" and not related:
            cause = "cold_start"
        return _Reason(cause, seen.read)
    if seen.place is None or seen.marks.refused:
        return _Reason(seen.reason, max(seen.read, sight.shared_tokens), sure=True)
    place = seen.place
    tokens = record.totals[place]
    if profile.match == "block":
        known = sight.shared_tokens
        tokens = known - known % profile.block_tokens
    if seen.reason == "ttl_expired":
        # What others left, hours ago perhaps, was never this line's to read: its own earlier requests count.
        tokens = min(tokens, sight.mine)
    if seen.reason == "concurrent_cold_start" and _met_by_chance(sight, record):
        return _Reason("hit", seen.read)
    if tokens - seen.read < (_NEAR if seen.reason in _FIRST_CALLS and not seen.unmarked else _SLIGHT) * tokens:
        return _Reason("hit", seen.read)
    if tokens < profile.min_tokens:
        return _Reason("cold_start" if sight.first else "below_minimum", seen.read)
    return _Reason(seen.reason, max(tokens, seen.read), sure=seen.reason == "breakpoints_over_limit")


def _met_by_chance(sight: VerdictInput, record: SentRequest) -> bool:
    """Whether a first request came while another conversation's was under way, and not as one of a fan-out."""
    other = sight.ancestor_record
    return (
        sight.first
        and other is not None
        and other.session != record.session
        and record.at - other.at > _FAN_OUT_SECONDS
    )


def _counted(usage: Usage | None) -> bool:
    """Whether the provider counted this prompt; a sum over several passes counts none."""
    return usage is not None and not usage.summed and bool(usage.input_tokens)


def _counted_up_to(reason: _Reason, seen: Expected, path: Sequence[Node]) -> bool:
    """Whether the provider itself counted what a mark that is no longer set would let read: no guess is in the loss."""
    place = seen.place
    return reason.cause == "breakpoint_missing" and seen.unmarked and place is not None and path[place].known > 0


def _scale(usage: Usage | None, total: int, answer: int) -> float:
    """The provider's tokens for one of ours."""
    if usage is None or usage.summed or not usage.input_tokens or not total:
        return 1.0
    return (usage.input_tokens - answer) / total


class _Counts:
    """Our token counts of one prompt as the provider's: exact where it once said, in proportion between."""

    def __init__(self, record: SentRequest, path: Sequence[Node], scale: float, calibration: Calibration) -> None:
        self._record, self._totals, self._path, self.scale = record, record.totals, path, scale
        self._calibration = calibration

    @property
    def exact(self) -> bool:
        """Whether our counter is the provider's, as far as was reported."""
        return self._calibration.exact(self._record.sections, self._record.prompt.model, _NOISE_KNOWN)

    @property
    def sent(self) -> int:
        """Tokens of the whole prompt."""
        return self._totals[-1] if self._totals else 0

    def before(self, tokens: int) -> int:
        """Index of the last section within ``tokens`` up to which the provider's count is known; -1 for none."""
        last = min(bisect_right(self._totals, tokens), len(self._path)) - 1
        return next((index for index in range(last, -1, -1) if self._path[index].known), -1)

    def after(self, tokens: int) -> int:
        """Index of the first section behind ``tokens`` with a known count; -1 for none."""
        first = bisect_left(self._totals, tokens)
        return next((index for index in range(first, len(self._path)) if self._path[index].known), -1)

    def theirs(self, tokens: int) -> float:
        """``tokens`` from the start of the prompt, as the provider counts them."""
        low = self.before(tokens)
        if self.scale == 1 and low < 0 and self.exact:
            return tokens
        high = self.after(tokens)
        start, known = (self._totals[low], self._path[low].known) if low >= 0 else (0, 0)
        if tokens <= start:
            return known
        if high <= low:
            # Behind all that is known stands only this request's own count, if it has one.
            high, end = len(self._totals) - 1, self._totals[-1] * self.scale
        else:
            end = self._path[high].known
        whole = self._weight(low + 1, self._totals[high])
        share = self._weight(low + 1, tokens) / whole if whole else 0.0
        return known + share * max(0.0, end - known)

    def _weight(self, first: int, tokens: int) -> float:
        """What the provider is likely to count from a section on up to ``tokens`` of ours."""
        last = bisect_right(self._totals, tokens)
        sections, model = self._record.sections, self._record.prompt.model
        found = self._calibration.weigh(sections[first:last], model)
        rest = tokens - (self._totals[last - 1] if last else 0)
        if rest > 0 and last < len(sections):
            part = sections[last]
            found += self._calibration.weigh((part,), model) * rest / max(1, part.tokens)
        return found


def _reusable(reason: _Reason, sight: VerdictInput, counts: _Counts, usage: Usage | None, profile: Profile) -> int:
    """What could have been read without the cause, in the provider's tokens and at most what was sent."""
    finding = sight.finding
    ours = max(reason.exact, reason.reusable)
    if finding is not None and reason.cause in STRUCTURAL and finding.whole:
        counted = finding.record.leaf.known
        each = counted / finding.whole if counted else counts.scale
        could = ours * each
    else:
        could = counts.theirs(ours)
    sent = usage.input_tokens if usage is not None and _counted(usage) else None
    could = min(could, counts.sent if sent is None else sent)
    return int(could) - int(could) % profile.block_tokens


def _in_their_tokens(
    record: SentRequest, sight: VerdictInput, path: Sequence[Node], counts: _Counts, profile: Profile, *, known: bool
) -> tuple[int, int]:
    """The expectation as the provider counts, and by how many tokens it may be off.

    Up to the last place at which the provider's own count is known that count holds; the rest is ours, scaled.
    """
    seen = sight.outlook
    at = counts.before(seen.read)
    if counts.scale == 1 and at < 0 and (not known or counts.exact):
        return seen.read, int(seen.read * (_NOISE_KNOWN if known else _NOISE_GUESSED))
    # Where both prompts come out as ours but for an envelope's odd token, our counter is the provider's.
    sure = path[at].known if at >= 0 else 0
    agree = (
        known
        and abs(record.totals[-1] - counts.scale * record.totals[-1]) <= _ENVELOPE
        and abs((record.totals[at] if at >= 0 else 0) - sure) <= _ENVELOPE
    )
    # Of one prompt alone that may be chance: prose above our count and JSON below it.
    if agree and (at >= 0 or counts.exact):
        return seen.read, int(seen.read * _NOISE_KNOWN)
    could = counts.theirs(seen.read)
    expected = int(could)
    # Never more than the provider counted for the earlier prompt as a whole, or for this one.
    ancestor = sight.ancestor_record
    if ancestor is not None and ancestor.leaf.known and seen.sections <= ancestor.leaf.depth + 1:
        expected = min(expected, ancestor.leaf.known)
    if known:
        expected = min(expected, int(counts.scale * record.totals[-1]))
    return expected - expected % profile.block_tokens, int(sure * _NOISE_KNOWN + max(0.0, could - sure) * _NOISE_SCALED)


def _kind(reported: int | None, read: int, lost: int) -> VerdictKind:
    if reported is None:
        return "unknown"
    if not read:
        return "miss"
    return "partial" if lost else "hit"


def _path(cause: Cause, record: SentRequest, seen: Expected, told: Diagnosis) -> str | None:
    """The place that a cause without a difference is about."""
    if cause in STRUCTURAL:
        return told.path
    if cause == seen.reason and seen.place is not None and cause.startswith(("breakpoint", "lookback")):
        place = seen.place
        if cause == "breakpoint_after_change":
            place = min(place + 1, len(record.sections) - 1)
        return record.sections[place].path
    return None
