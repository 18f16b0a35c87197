"""Against which earlier prompt a request is held, and what differs between the two."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cacheprefix.cache._causes import Cause
from cacheprefix.cache._content import Change, alike, answers, change, kept
from cacheprefix.errors import named
from cacheprefix.prompt import Divergence, shared_characters

if TYPE_CHECKING:
    from cacheprefix.cache._line import Record
    from cacheprefix.profiles import Profile

_RELATED = 0.3
_AROUND = 24


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference from an earlier prompt that keeps this one from reading what that one had."""

    cause: Cause
    path: str
    divergence: Divergence
    record: Record
    tokens: int
    """What could be read without the difference. Tokens."""
    sure: bool
    whole: int = 0
    """Tokens of the earlier prompt."""


def difference_from(
    own: Record, shared: int, earlier: Iterable[tuple[Record, int]], profile: Profile, *, rewritten: bool = False
) -> Finding | None:
    """What differs from the requests of the same agent; None when ``own`` continues one.

    ``earlier`` are those requests, the newest first, each with the number of sections that it begins with as ``own``
    does. ``shared`` is the number of sections that ``own`` shares with any prompt of its lane. The request it is
    held against is the one with which it has most content in common, wherever that stands. ``rewritten`` says
    that the history is known to have been rewritten, so that any difference in it is one.
    """
    rows = [row for row in earlier if not row[0].failed]
    best: Record | None = None
    best_shared, most = 0, 0
    for record, equal in rows:
        # What stands behind the first difference can only be compared where the rest is not all new.
        common = (own.totals[equal - 1] if equal else 0) + kept(record.sections, own.sections, equal)
        if common > most:
            best, best_shared, most = record, equal, common
    if best is None:
        if not rows:
            return None
        # No text is the very same: an id in a system prompt makes another one of it, and each asks something else.
        best, best_shared = rows[0]
    found = _content(own, best, best_shared, shared, most, rewritten=rewritten)
    if best.lane == own.lane and (best.salts == own.salts or best.keys[:best_shared] == own.keys[:best_shared]):
        return found
    if not own.agent and not any(map(answers, own.sections[best_shared:])):
        return found  # the first request of somebody: another agent may well have another model
    reachable = own.totals[shared - 1] if shared else 0
    # Content elsewhere than at the start only tells that it is the same agent where that has a name, or where
    # the difference in content would count as a break itself.
    wanted = most if own.agent or found is not None else (own.totals[best_shared - 1] if best_shared else 0)
    if wanted > reachable and (best is rows[0][0] or not any(_continues(own, one) for one, _ in rows)):
        return _settings(own, best, most, profile) or found
    return found


def gone_back(own: Record, shared: int, newest: tuple[Record, int], profile: Profile) -> Finding | None:
    """What a request changed that went back to the tools, the model or a setting of an earlier one.

    It reads what that one left, which is less than the newest request had. None for any other difference: going
    back in the history is no break.
    """
    before, equal = newest
    if before.failed or before.slim or _system(before) != _system(own):
        return None
    reachable = own.totals[shared - 1] if shared else 0
    common = (own.totals[equal - 1] if equal else 0) + kept(before.sections, own.sections, equal)
    if common <= reachable:
        return None
    found = difference_from(own, 0, (newest,), profile)
    if found is None or found.cause not in ("tools_changed", "tools_reordered", "model_changed", "settings_changed"):
        return None
    return found if found.tokens > reachable else None


def _system(record: Record) -> list[bytes]:
    return [one.digest for one in record.sections[: record.prompt.head] if one.tier == "system"]


def _continues(own: Record, before: Record) -> bool:
    """Whether one request goes on where another of the same lane ended, as after a setting was changed back."""
    keys = before.keys
    return bool(keys) and before.lane == own.lane and own.keys[: len(keys)] == keys


def _settings(own: Record, before: Record, tokens: int, profile: Profile) -> Finding | None:
    pairs: list[tuple[Cause, str, str, str]] = [
        ("scope_changed", "scope", before.scope, own.scope),
        ("scope_changed", "provider", before.provider, own.provider),
        ("model_changed", "model", before.prompt.model, own.prompt.model),
        ("settings_changed", "api", before.prompt.api, own.prompt.api),
    ]
    ours, theirs = own.prompt.settings, before.prompt.settings
    pairs += [
        ("settings_changed", name, theirs.get(name, ""), ours.get(name, ""))
        for name in sorted({*ours, *theirs})
        if profile.placement(name) != "none"
    ]
    if own.prompt.model == before.prompt.model:
        found = next((pair for pair in pairs if pair[2] != pair[3]), None)
    else:
        # Another model often comes with rules of its own; then they are not a difference of their own.
        found = next((pair for pair in pairs if pair[2] != pair[3] and pair[1] != "provider"), None)
    if found is None:
        return None
    cause, path, old, new = found
    shown = named(path)
    return Finding(cause, shown, _values(shown, old, new), before, tokens, sure=True, whole=before.totals[-1])


def _values(path: str, before: str, after: str) -> Divergence:
    offset = shared_characters(before, after)
    start = max(0, offset - _AROUND)
    end = offset + _AROUND
    return Divergence(0, 0, path, offset, before[start:end], after[start:end], len(after) - len(before))


def _content(own: Record, before: Record, equal: int, shared: int, common: int, *, rewritten: bool) -> Finding | None:
    found = change(before.sections, own.sections, equal, tails=not rewritten)
    if found is None:
        return None
    prefix = own.totals[equal - 1] if equal else 0
    # Where nothing stands behind the change it cost nothing that this request still has.
    tokens = prefix + found.behind + found.touched if found.behind or found.touched else 0
    if found.sure and tokens and _goes_on(own, before, found):
        # The same conversation: had nothing been changed, all that it had before would have been read.
        tokens = max(tokens, before.totals[-1])
    reachable = own.totals[shared - 1] if shared else 0
    if shared > equal and reachable >= max(prefix, tokens) and not rewritten:
        return None
    if not found.cause.startswith("history") and not _related(own, before, common, found):
        return None
    if found.cause == "system_changed" and not own.agent and not found.touched:
        return None  # quite another system prompt, and no name: another agent that hears the same conversation
    sure = found.sure or rewritten
    if not sure and not found.behind:
        return None
    return Finding(found.cause, found.path, found.divergence, before, tokens, sure, before.totals[-1])


def _goes_on(own: Record, before: Record, found: Change) -> bool:
    """Whether a request goes on with the conversation of an earlier one: it has its messages, changed perhaps."""
    if found.cause.startswith("history"):
        return True
    ours, theirs = own.sections[own.prompt.head :], before.sections[before.prompt.head :]
    if not ours or not theirs:
        return not ours and not theirs
    return (
        ours[0].digest == theirs[0].digest
        or alike(ours[0], theirs[0])
        or (2 * kept(theirs, ours, 0) >= sum(one.tokens for one in theirs))
    )


def _related(own: Record, before: Record, common: int, found: Change) -> bool:
    """Whether two prompts whose tools or system differ are one agent's: much of one stands in the other.

    An agent with a name only has to have some of its messages again.
    """
    smaller = min(own.totals[-1], before.totals[-1])
    return common + found.touched >= _RELATED * smaller or (bool(own.agent) and found.behind > 0)
