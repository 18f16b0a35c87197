"""From what was expected, found and reported to one verdict."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cacheprefix.cache.differences import answers
from cacheprefix.cache.verdict import QUIET, STRUCTURAL, Cause, Diagnosis, Verdict, VerdictKind, Way, fix_for
from cacheprefix.errors import named
from cacheprefix.profiles import Amount, Profile, Usage, lost_money

if TYPE_CHECKING:
    from cacheprefix.cache.calibration import Calibration
    from cacheprefix.cache.differences import Finding
    from cacheprefix.cache.expectation import Expected
    from cacheprefix.cache.tree import AgentHistory, CacheEntry, Node, SentRequest

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
_PROMISED_SECONDS = 300.0
"""As long as the shortest lifetime that a provider promises: one that promises none keeps entries for less, perhaps."""
_ANSWER_SECONDS = 10.0
"""So long may the first token of an answer take of which it is not known when it came."""
_FIRST_CALLS: frozenset[Cause] = frozenset({"breakpoint_after_change", "breakpoint_missing"})
"""Causes that an agent's first call may have without an alarm: it never had more to read."""
_OUR_MARKS: frozenset[Cause] = _FIRST_CALLS | {"lookback_exceeded"}
"""Causes that are nobody's where we chose the marks."""

_TIMES: frozenset[Cause] = frozenset({"ttl_expired", "concurrent_cold_start"})
"""Causes that lie in when requests were made."""


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
    spared: bool = False
    beside: bool = False
    """Both as in ``SentBy``, and so is ``way``."""
    way: Way = "by hand"
    answer: int = 0
    """Tokens that the model's template puts behind the last message, which the provider counts too."""


class _Reason(NamedTuple):
    """Why less was read than could have been, before the provider's own word on it."""

    cause: Cause
    reusable: int
    """Tokens, by our counter, that could be read without it."""
    sure: bool = False
    """Whether it holds whatever was read."""
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
    """The verdict on one finished call.

    What was expected is brought into the provider's tokens, and so is what could have been read without the cause that
    was found. What is missing of that is lost, as far as it is more than our counting may be off. ``told`` is the
    provider's own word on it.
    """
    seen = sight.outlook
    total = record.totals[-1] if record.totals else 0
    counts = _Counts(record, path, _scale(usage, total, sight.answer), calibration)
    reason = _reason(sight, record, profile)
    reported = None if usage is None else usage.cache_read_tokens
    found = _found(reason, sight, counts, profile, usage)
    cause, lost = _settle(reason, told, found, reported=reported is not None)
    # A missing mark says nothing of what an earlier one should have let read. Counting is off by less than half.
    unread = found.expected - found.read
    beyond = 0 if sight.opening else found.reusable - found.expected
    if cause in _FIRST_CALLS and 2 * found.read < found.expected and unread > beyond:
        cause, lost = "provider_miss", unread
    if cause == "provider_miss":
        own = int(counts.theirs(sight.mine)) - found.read
        entry = _left_unread(sight, record, counts, found.read)
        cause, lost = _untold(sight, record, profile, entry, lost, own, found.noise)
    # By the provider's count what is too old or too young may be less than by ours.
    if cause in _TIMES and reported is not None and lost < _SLIGHT * found.reusable:
        cause, lost = ("hit" if found.read else "cold_start"), 0
    if sight.compacted and cause.startswith("history"):
        cause = "compacted"
    difference = sight.finding.divergence if sight.finding is not None and cause in STRUCTURAL else None
    # Money: as much is lost as would have been read, and was paid as written where the provider bills that.
    written = bool(seen.billed)
    paid = profile.default_ttl.write if written else 1.0
    return Verdict(
        kind=_kind(reported, found.read, lost),
        cause=cause,
        alarm=_alarms(cause, lost, found.noise, profile, sight, total * counts.scale),
        path=sight.finding.path if sight.finding and difference else _path(cause, record, seen, told),
        offset=difference.offset if difference else 0,
        before=difference.before if difference else "",
        after=difference.after if difference else "",
        size=difference.size if difference else 0,
        expected_tokens=found.expected,
        reusable_tokens=found.reusable,
        reported_tokens=reported,
        lost_tokens=lost,
        lost_units=lost * max(0.0, paid - profile.read),
        loss=Amount(partial(lost_money, lost, record.prompt.model, profile, written=written, at=record.at)),
        ancestor_index=sight.finding.record.index if sight.finding is not None else sight.ancestor,
        agent=record.agent,
        session=record.session,
        model=named(record.prompt.model),
        fix=fix_for(cause, record.prompt.api, sight.way),
        previous_read=sight.line.previous_read,
        provider_reason=told.reason,
        index=record.index,
        at=record.at,
    )


class _Found(NamedTuple):
    """What was to be read of a request and what was. All are tokens as the provider counts."""

    expected: int
    reusable: int
    """What could have been read without the cause."""
    read: int
    """As reported; as expected where nothing was."""
    lost: int
    noise: int
    """By how many all that may be off."""


def _found(reason: _Reason, sight: VerdictInput, counts: _Counts, profile: Profile, usage: Usage | None) -> _Found:
    """What was expected, what could have been read without the cause, and what of that is missing.

    Where a cause kept something from being read: ``lost = reusable - read``, at least 0. Where none did:
    ``lost = expected - read``, and only where that is more than the noise.
    """
    seen, counted = sight.outlook, _counted(usage)
    expected, doubt = _in_their_tokens(sight, counts, profile, known=counted)
    reported = None if usage is None else usage.cache_read_tokens
    read = expected if reported is None else reported
    noise = max(profile.block_tokens, 0 if _counted_up_to(reason, seen, counts.path) else doubt)
    if reason.reusable > seen.read:
        reusable = max(expected, _reusable(reason, sight, counts, usage, profile))
        # Read as was expected: our count up to there is right, and only what stands behind may be off.
        off = abs(expected - read)
        if reported is not None and off <= max(profile.block_tokens, _NOISE_KNOWN * expected):
            noise = max(profile.block_tokens, min(noise, off + int(_NOISE_SCALED * (reusable - expected))))
        return _Found(expected, reusable, read, max(0, reusable - read), noise)
    # A provider's rule: what is too short is not cached. By their count it may be that.
    if not read and expected - doubt < profile.min_tokens:
        return _Found(0, 0, read, 0, noise)
    # Nothing was to be had beyond what was expected, and that is only as good as our counting.
    lost = max(0, expected - read)
    return _Found(expected, expected, read, lost if lost > noise else 0, noise)


def _alarms(cause: Cause, lost: int, noise: int, profile: Profile, sight: VerdictInput, sent: float) -> bool:
    """Whether people are told of a break; ``sent`` are the tokens of the whole prompt."""
    if cause in QUIET or sight.line.alarmed == cause:
        return False
    if sight.opening and cause in _FIRST_CALLS:
        return False
    least = noise if cause == "provider_miss" else profile.block_tokens
    return lost > max(least, _LOUD * sent)


def _settle(reason: _Reason, told: Diagnosis, found: _Found, *, reported: bool) -> tuple[Cause, int]:
    """The cause of the verdict and the tokens lost by it: what we found, held against what the provider says.

    ``reported`` says whether it told how much was read; ``told`` is what it said of the cause.
    """
    if reason.cause in ("hit", "cold_start", "below_minimum"):
        return _with_nothing_found(reason.cause, told, found, reported=reported)
    # A cause was found: the provider's word that all was read outweighs it, and so does that nothing is missing.
    if not reported:
        return ("hit", 0) if told.hit else (reason.cause, found.lost)
    if not found.lost and not reason.sure:
        return ("hit" if found.read else "cold_start"), 0
    # Only a difference that was seen is believed when the loss is within what counting may be off.
    if reason.cause not in STRUCTURAL and not reason.sure and found.lost <= found.noise:
        return "hit", 0
    return reason.cause, found.lost


def _with_nothing_found(cause: Cause, told: Diagnosis, found: _Found, *, reported: bool) -> tuple[Cause, int]:
    """``_settle`` where nothing of ours stands in the way: what is missing all the same is the provider's."""
    if not reported:
        # Without a count there is only what it diagnosed, if it did.
        if told.cause is not None:
            return told.cause, told.missed_tokens or 0
        return ("unreported" if cause == "hit" and not told.hit else cause), 0
    if found.lost > found.noise and not told.hit:
        return told.cause or "provider_miss", found.lost
    return ("hit" if found.read else cause), 0


def _reason(sight: VerdictInput, record: SentRequest, profile: Profile) -> _Reason:
    """The one cause that precedence leaves, and what could be read without it.

    A difference from an earlier prompt comes first, where without it more could be read; then what the rules expected,
    such as a lifetime that is over.
    """
    return _from_difference(sight, profile) or _from_rules(sight, record, profile)


def _from_difference(sight: VerdictInput, profile: Profile) -> _Reason | None:
    """The difference from an earlier prompt as the reason of what is not read; None where it does not explain that."""
    seen, finding = sight.outlook, sight.finding
    if finding is None:
        return None
    could = min(finding.tokens, max(sight.available, seen.read))
    # A provider's rule: whole blocks are read.
    whole = could - could % profile.block_tokens
    counted = finding.record.leaf.known
    theirs = could * counted / finding.whole if counted and finding.whole else whole
    # A provider's rule: what is too short for a model is not read. Another model's minimum is another.
    if theirs < profile.min_tokens and finding.cause != "model_changed":
        whole = 0
    if finding.sure or whole > seen.read:
        return _Reason(finding.cause, max(whole, seen.read), finding.sure, could)
    return None


def _from_rules(sight: VerdictInput, record: SentRequest, profile: Profile) -> _Reason:
    """Why the rules expected no more to be read, where what is missing by that is worth a word; else a hit."""
    seen = sight.outlook
    # Nothing is held back. A first request that is too short has nothing to do with an earlier one.
    if seen.reason in ("hit", "cold_start", "below_minimum"):
        related = sight.finding is not None or not sight.first
        cold = seen.reason == "below_minimum" and not related
        return _Reason("cold_start" if cold else seen.reason, seen.read)
    # Money: a place that we left without a mark would have cost more to write than to read again was thought to save.
    if sight.spared and seen.reason in _OUR_MARKS:
        return _Reason("hit", seen.read)
    # All that is shared is held back: there is no place to read up to, or the provider refuses the marks.
    if seen.place is None or seen.marks.refused:
        return _Reason(seen.reason, max(seen.read, sight.shared_tokens), sure=True)
    if seen.reason == "concurrent_cold_start" and _met(sight, record):
        return _Reason("hit", seen.read)
    tokens = _held_back(sight, record, profile, seen.place)
    # So little is missing that nobody would change a program for it.
    enough = _NEAR if seen.reason in _FIRST_CALLS and not seen.unmarked else _SLIGHT
    if tokens - seen.read < enough * tokens:
        return _Reason("hit", seen.read)
    # A provider's rule: what is too short is not read, whatever else stood in its way.
    if tokens < profile.min_tokens:
        return _Reason("cold_start" if sight.first else "below_minimum", seen.read)
    return _Reason(seen.reason, max(tokens, seen.read), sure=seen.reason == "breakpoints_over_limit")


def _held_back(sight: VerdictInput, record: SentRequest, profile: Profile, place: int) -> int:
    """Tokens that could have been read but for what the rules name, which stands at the section ``place``."""
    tokens = record.totals[place]
    # A provider's rule: where no marks are needed, all that is shared is read, in whole blocks.
    if profile.match == "block":
        tokens = sight.shared_tokens - sight.shared_tokens % profile.block_tokens
    if sight.outlook.reason == "ttl_expired":
        # What others left, hours ago perhaps, was never this line's to read: its own earlier requests count.
        return min(tokens, sight.mine)
    return tokens


def _met(sight: VerdictInput, record: SentRequest) -> bool:
    """Whether nobody is to be told that a request came while another one was under way.

    We let it go on purpose, or it is a first request, met another conversation's, and is not one of a fan-out.
    """
    other = sight.ancestor_record
    return sight.beside or (
        sight.first
        and other is not None
        and other.session != record.session
        and record.at - other.at > _FAN_OUT_SECONDS
    )


def _left_unread(sight: VerdictInput, record: SentRequest, counts: _Counts, read: int) -> CacheEntry | None:
    """The first entry behind what was read, of those that earlier prompts left; ``read`` as the provider counts.

    A fan-out whose tools and system are long warm may still be cold behind them. What was read ended where the nearest
    section does, since our count of each may be off.
    """
    shared = bisect_right(record.totals, sight.shared_tokens)
    if not shared:
        sibling = sight.outlook.near.sibling
        return None if sibling is None else sibling.entry
    first = min(bisect_right(record.totals, float(read), hi=shared, key=counts.theirs), shared - 1)
    before = counts.theirs(record.totals[first - 1]) if first else 0.0
    if first < shared - 1 and counts.theirs(record.totals[first]) - read < read - before:
        first += 1
    return next((node.entry for node in counts.path[first:shared] if node.entry is not None), None)


def _untold(
    sight: VerdictInput,
    record: SentRequest,
    profile: Profile,
    entry: CacheEntry | None,
    lost: int,
    own: int,
    noise: int,
) -> tuple[Cause, int]:
    """Why less was read than the rules let expect, and what is lost: time, where neither they nor the log tell of it.

    Where another conversation's entry was too old, or not there yet, nothing was this call's to read. ``own`` are the
    tokens of ``lost`` that its own line had sent, ``entry`` is the first that was not read.
    """
    other = sight.ancestor_record
    if other is None:
        return "provider_miss", lost
    # A provider's rule: some promise no lifetime at all.
    if profile.default_ttl.seconds is None and profile.slots is None and record.at - other.at > _PROMISED_SECONDS:
        return ("ttl_expired", min(own, lost)) if own > noise else ("cold_start", 0)
    # An answer that the other call did not have shows that it had been answered. One that both have does not.
    answered = any(map(answers, record.sections[bisect_right(record.totals, sight.shared_tokens) :]))
    if not (other.timed or answered or entry is None) and record.at - entry.readable_at <= _ANSWER_SECONDS:
        return ("cold_start", 0) if _met(sight, record) else ("concurrent_cold_start", lost)
    return "provider_miss", lost


def _counted(usage: Usage | None) -> bool:
    """Whether the provider counted this prompt; a sum over several passes counts none."""
    return usage is not None and not usage.summed and bool(usage.input_tokens)


def _counted_up_to(reason: _Reason, seen: Expected, path: Sequence[Node]) -> bool:
    """Whether the provider itself counted what a mark that no longer stands, or is too far, would let read.

    No guess is in the loss then: what was read is its own count too.
    """
    place = seen.place
    far = reason.cause == "lookback_exceeded" or (reason.cause == "breakpoint_missing" and seen.unmarked)
    return far and place is not None and path[place].known > 0


def _scale(usage: Usage | None, total: int, answer: int) -> float:
    """The provider's tokens for one of ours."""
    if usage is None or usage.summed or not usage.input_tokens or not total:
        return 1.0
    return (usage.input_tokens - answer) / total


class _Counts:
    """Our token counts of one prompt as the provider's: exact where it once said, in proportion between."""

    def __init__(self, record: SentRequest, path: Sequence[Node], scale: float, calibration: Calibration) -> None:
        self.record, self._totals, self.path, self.scale = record, record.totals, path, scale
        self._calibration = calibration

    @property
    def exact(self) -> bool:
        """Whether our counter is the provider's, as far as was reported."""
        return self._calibration.exact(self.record.sections, self.record.prompt.model, _NOISE_KNOWN)

    @property
    def sent(self) -> int:
        """Tokens of the whole prompt."""
        return self._totals[-1] if self._totals else 0

    def agree(self, at: int) -> bool:
        """Whether our counter is the provider's, by this prompt's total and the known count of the section ``at``.

        So it is where both come out as ours but for an envelope's odd token. Of one prompt alone (``at`` is -1) that
        may be chance: prose above our count and JSON below it.
        """
        whole = self._totals[-1]
        if abs(whole - self.scale * whole) > _ENVELOPE:
            return False
        return abs(self._totals[at] - self.path[at].known) <= _ENVELOPE if at >= 0 else self.exact

    def before(self, tokens: int) -> int:
        """Index of the last section within ``tokens`` up to which the provider's count is known; -1 for none."""
        last = min(bisect_right(self._totals, tokens), len(self.path)) - 1
        return next((index for index in range(last, -1, -1) if self.path[index].known), -1)

    def after(self, tokens: int) -> int:
        """Index of the first section behind ``tokens`` with a known count; -1 for none."""
        first = bisect_left(self._totals, tokens)
        return next((index for index in range(first, len(self.path)) if self.path[index].known), -1)

    def theirs(self, tokens: int) -> float:
        """``tokens`` from the start of the prompt, as the provider counts them."""
        low = self.before(tokens)
        if self.scale == 1 and low < 0 and self.exact:
            return tokens
        high = self.after(tokens)
        start, known = (self._totals[low], self.path[low].known) if low >= 0 else (0, 0)
        if tokens <= start:
            return known
        if high <= low:
            # Behind all that is known stands only this request's own count, if it has one.
            high, end = len(self._totals) - 1, self._totals[-1] * self.scale
        else:
            end = self.path[high].known
        whole = self._weight(low + 1, self._totals[high])
        share = self._weight(low + 1, tokens) / whole if whole else 0.0
        return known + share * max(0.0, end - known)

    def _weight(self, first: int, tokens: int) -> float:
        """What the provider is likely to count from a section on up to ``tokens`` of ours."""
        last = bisect_right(self._totals, tokens)
        sections, model = self.record.sections, self.record.prompt.model
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
    if finding is not None and reason.cause in STRUCTURAL and finding.whole and not finding.placed:
        counted = finding.record.leaf.known
        each = counted / finding.whole if counted else counts.scale
        could = ours * each
    else:
        could = counts.theirs(ours)
    sent = usage.input_tokens if usage is not None and _counted(usage) else None
    could = min(could, counts.sent if sent is None else sent)
    return int(could) - int(could) % profile.block_tokens


def _in_their_tokens(sight: VerdictInput, counts: _Counts, profile: Profile, *, known: bool) -> tuple[int, int]:
    """The expectation as the provider counts, and by how many tokens it may be off.

    About ``expected = sure + scaled`` and ``noise = sure * _NOISE_KNOWN + scaled * _NOISE_SCALED``: ``sure`` are the
    tokens up to the last place at which the provider's own count is known, ``scaled`` is our count of the rest in its
    tokens. Where little of the prompt stands behind, ``scaled`` is off by no more than that.
    ``known`` says whether the provider counted this prompt.
    """
    seen, path = sight.outlook, counts.path
    at = counts.before(seen.read)
    # No count of the provider's is known, or ours is the same: ours is all there is to go by.
    if counts.scale == 1 and at < 0 and (not known or counts.exact):
        return seen.read, int(seen.read * (_NOISE_KNOWN if known else _NOISE_GUESSED))
    sure = path[at].known if at >= 0 else 0
    # Our counter is the provider's.
    if known and counts.agree(at):
        return seen.read, int(seen.read * _NOISE_KNOWN)
    could = counts.theirs(seen.read)
    expected = int(could)
    # Never more than the provider counted for the earlier prompt as a whole, or for this one.
    ancestor = sight.ancestor_record
    if ancestor is not None and ancestor.leaf.known and seen.sections <= ancestor.leaf.depth + 1:
        expected = min(expected, ancestor.leaf.known)
    if known:
        expected = min(expected, int(counts.scale * counts.sent))
    scaled = max(0.0, could - sure)
    doubt = scaled * _NOISE_SCALED
    rest = counts.record.sections[seen.sections :]
    if known and not any(one.kind in ("image", "block") for one in rest):
        # Of this prompt it counted all: what stands behind may be twice as much or nothing, and no more is open.
        # Pictures and files count by rules of their own.
        doubt = min(doubt, scaled * _NOISE_KNOWN + max(0.0, counts.scale * counts.sent - could))
    return expected - expected % profile.block_tokens, int(sure * _NOISE_KNOWN + doubt)


def _kind(reported: int | None, read: int, lost: int) -> VerdictKind:
    """How it came out in one word."""
    if reported is None:
        return "unknown"
    if not read:
        return "miss"
    return "partial" if lost else "hit"


def _path(cause: Cause, record: SentRequest, seen: Expected, told: Diagnosis) -> str | None:
    """The path of the section that a cause is about; None for causes that are about none, such as time."""
    if cause in STRUCTURAL:
        return told.path
    if cause == seen.reason and seen.place is not None and cause.startswith(("breakpoint", "lookback")):
        place = seen.place
        if cause == "breakpoint_after_change":
            place = min(place + 1, len(record.sections) - 1)
        return record.sections[place].path
    return None
