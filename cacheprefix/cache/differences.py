"""With which earlier prompt a request is compared, and what became of it: replaced, removed, moved, where first."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import takewhile
from typing import TYPE_CHECKING

from cacheprefix.cache.verdict import Cause
from cacheprefix.errors import named
from cacheprefix.prompt import TIERS, Divergence, Section, difference, shared_characters, shared_sections
from cacheprefix.prompt.compare import shared_ending

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from cacheprefix.cache.tree import SentRequest
    from cacheprefix.profiles import Profile
    from cacheprefix.prompt import Tier


_ALIKE = 0.5
_ROLES = ("<role name=", 'You now speak as "')
"""How the tails begin that ``cacheprefix.layout.tail_text`` writes: one role's gives way to another's."""
_OWN = ("<earlier_call tool=", "<memory>")
"""How adapters begin what one role alone has seen, where it stands in front of its tail."""
_LONGEST = 3_000


@dataclass(frozen=True, slots=True)
class Change:
    """The first change from an earlier prompt to this one."""

    cause: Cause
    path: str
    divergence: Divergence
    behind: int
    """Tokens that stand in both prompts, in the same order, behind the change: these were lost by it."""
    touched: int = 0
    """Tokens of the changed section itself, where it is one text changed into another."""
    sure: bool = True
    """Whether it was a change; False when it may as well be another branch of the conversation."""
    still: int | None = None
    """Sections of the new prompt behind the equal ones up to the last that both have; None where that is not known."""


def kept(before: Sequence[Section], after: Sequence[Section], shared: int) -> int:
    """Tokens of ``after`` that also stand in ``before``, from section ``shared`` on; order is left out."""
    if shared >= len(before) or shared >= len(after):
        return 0
    stock = Counter([section.digest for section in before[shared:]])
    tokens = 0
    for section in after[shared:]:
        if stock[section.digest] > 0:
            stock[section.digest] -= 1
            tokens += section.tokens
    return tokens


def change(before: Sequence[Section], after: Sequence[Section], shared: int, *, tails: bool = True) -> Change | None:
    """What happened behind the ``shared`` equal sections; None when nothing earlier was touched.

    Nothing was touched when one prompt continues the other, also within its last text, and when only the
    tail moved on: messages that stood at the end of a request and now stand at the end of this one (a role's
    instruction, volatile context). Without ``tails`` the latter counts as a change too.
    """
    old, new = before[shared:], after[shared:]
    if not old or not new or _continues(old, new):
        return None
    own = _moved_role(old, new) if tails else None
    if own is not None:
        return _without_tails(*own)
    role = next((section.head for section in reversed(before[:shared]) if section.head != "+"), "")
    tail = _moved_tail(old, new, role) if tails else 0
    if tail:
        return _without_tails(old[tail:], new[: len(new) - tail])
    tier = min(TIERS.index(old[0].tier), TIERS.index(new[0].tier))
    if tier < TIERS.index("messages"):
        return _in_front(old, new, tier)
    return _in_history(old, new, role)


def _without_tails(rest: Sequence[Section], comes: Sequence[Section]) -> Change | None:
    """What happened to the rest of two prompts, once what had moved on was taken out of both."""
    if not rest or not comes:
        return None
    found = change(rest, comes, shared_sections(rest, comes), tails=False)
    return None if found is None else replace(found, still=None)


def _continues(old: Sequence[Section], new: Sequence[Section]) -> bool:
    """Whether a last text goes on with more text in its place."""
    first, then = old[0], new[0]
    same = first.kind == then.kind and first.head == then.head
    return len(old) == 1 and same and first.kind == "text" and then.data.startswith(first.data)


def _moved_role(old: Sequence[Section], new: Sequence[Section]) -> tuple[Sequence[Section], Sequence[Section]] | None:
    """What is left of both without a role's text that moved on with what that role alone has seen; None for no such.

    Such a text of ours follows what is shared at once, but for the role's own calls and results, and stands in both.
    """
    at = next((index for index, section in enumerate(old) if not _alone(section)), len(old))
    if at == len(old) or not old[at].text.startswith(_ROLES):
        return None
    text = old[at].digest
    there = next((index for index, section in enumerate(new) if section.digest == text), 0)
    # At the very front it has not moved.
    if not there:
        return None
    gone = {section.digest for section in (*old, *new) if _alone(section)} | {text}
    rest, comes = ([section for section in side if section.digest not in gone] for side in (old, new))
    return rest, comes


def _moved_tail(old: Sequence[Section], new: Sequence[Section], role: str) -> int:
    """How many sections at the front of ``old`` are a tail that now ends ``new``; 0 for none.

    Volatile text is another each time; what stays is its envelope and most of its wording. A text behind another one of
    the same speaker's may be a block of that message, and later a message: ``role`` is the envelope of the message that
    both go on with.
    """
    if old[0].tier != "messages" or new[0].tier != "messages":
        return 0
    length = next((index for index, section in enumerate(old) if answers(section)), len(old))
    if not 0 < length < len(new):
        return 0
    tail, end = old[:length], new[len(new) - length :]
    if any(left.kind != right.kind for left, right in zip(tail, end, strict=True)):
        return 0
    if _speakers(tail, role) != _speakers(new, role)[-length:]:
        return 0
    equal = all(left.data == right.data for left, right in zip(tail, end, strict=True))
    if equal or (tail[0].text.startswith(_ROLES) and end[0].text.startswith(_ROLES)):
        return length
    stays = new[0].head == tail[0].head and alike(new[0], tail[0])
    stands = any(tail[0].digest == section.digest for section in new[: len(new) - length])
    return 0 if stays or stands or not all(map(alike, tail, end)) else length


def _speakers(sections: Sequence[Section], role: str) -> list[str]:
    """The envelope of the message that each section is part of; ``role`` is that of the message before them."""
    found: list[str] = []
    for section in sections:
        role = role if section.head == "+" else section.head
        found.append(role)
    return found


def _alone(section: Section) -> bool:
    """Whether a section may be what one role alone has seen."""
    return answers(section) or section.text.startswith(_OWN)


def answers(section: Section) -> bool:
    """Whether a section is part of an answer or a tool's result, which no tail holds."""
    head = section.head
    by_model = "assistant" in head or "model" in head or "tool" in head
    return by_model or section.kind in ("tool_use", "tool_result", "thinking")


def alike(a: Section, b: Section) -> bool:
    """Whether two texts are one text changed: half of the longer is common beginning and end."""
    return _share_in_common(a, b) >= _ALIKE


def _share_in_common(a: Section, b: Section) -> float:
    """How much of the longer of two texts is common beginning and end, 0 to 1."""
    left, right = a.text, b.text
    longer = max(len(left), len(right))
    if not longer:
        return 1.0
    front = shared_characters(left, right)
    back = shared_ending(left, right, front)
    return (front + back) / longer


def _in_front(old: Sequence[Section], new: Sequence[Section], tier: int) -> Change:
    """A change of tools or system: the tier's sections alone decide what it is, the rest what it cost."""
    name = TIERS[tier]
    mine = [section for section in old if section.tier == name]
    theirs = [section for section in new if section.tier == name]
    cause: Cause = "tools_changed" if name == "tools" else "system_changed"
    if name == "tools" and Counter(_contents(mine)) == Counter(_contents(theirs)):
        cause = "tools_reordered"
    path, divergence = _place(mine, theirs, old[0], new[0], moved=cause == "tools_reordered")
    touched = min(mine[0].tokens, theirs[0].tokens) if mine and theirs and alike(mine[0], theirs[0]) else 0
    if name == "tools":
        # The system prompt may have been edited as well.
        prompts = [[one for one in row if one.tier == "system"] for row in (old, new)]
        pairs = [(a, b) for a, b in zip(*prompts, strict=False) if a.digest != b.digest and alike(a, b)]
        touched += sum(min(a.tokens, b.tokens) for a, b in pairs)
    behind, still = _behind(old, new, _contents(old), _contents(new))
    return Change(cause, path, divergence, behind, touched, still=still)


def _contents(sections: Sequence[Section], role: str = "") -> list[Hashable]:
    """What each section says and who says it, wherever in its message it stands.

    ``role`` is that of a message that begins before them. Of several blocks only the first carries it.
    """
    made: list[Hashable] = []
    for section in sections:
        role = role if section.head == "+" else section.head
        made.append((section.kind, "" if section.tier == "tools" else role, section.data))
    return made


def _in_history(old: Sequence[Section], new: Sequence[Section], role: str) -> Change:
    """What was changed in the messages, where ``old`` and ``new`` begin with the first sections that differ.

    ``role`` is that of the message in which these stand.
    """
    before, after = _contents(old, role), _contents(new, role)
    behind, still = _behind(old, new, before, after)
    first, then = old[0], new[0]
    later_old, later_new = set(before[1:]), set(after[1:])
    moved_back, moved_up = before[0] in later_new, after[0] in later_old
    if moved_back and moved_up and not _slid(old, new):
        return Change("history_reordered", then.path, _whole(first, then), behind, still=still)
    if moved_up:
        # What stood further behind follows now: what stood between is gone.
        return Change("history_truncated", first.path, _whole(first, then), behind, still=still)
    if moved_back:
        # What stood here stands further behind: something was put in front of it.
        return Change("history_edited", then.path, _whole(first, then), behind, still=still)
    touched = min(first.tokens, then.tokens)
    # An answer behind a text that was never asked shows that the text was changed afterwards; without one it may be
    # a sibling's task, worded alike.
    sure = any(answers(section) for section in new[1:])
    if later_old & later_new:
        # One text gave way to another, and some of what stood behind it is still there.
        if not sure:
            touched, behind = _still_asked(old, new, touched, behind)
        divergence = difference(first, then)
        return Change("history_edited", divergence.path or then.path, divergence, behind, touched, sure, still)
    # Nothing of the old rest is left: its last message was edited, or all of it was taken away.
    messages = sum(1 for section in old if section.head != "+")
    same = first.head == then.head and first.kind == then.kind
    likeness = same and _same_text(first, then)
    if same and (messages <= 1 or likeness):
        divergence = difference(first, then)
        still = max(1, _reworded(old, new))
        return Change("history_edited", divergence.path or then.path, divergence, behind, touched, sure, still)
    return Change("history_truncated", first.path, _whole(first, then), behind, 0, answers(then), 0)


def _still_asked(old: Sequence[Section], new: Sequence[Section], touched: int, behind: int) -> tuple[int, int]:
    """Tokens of the changed section, and of what stands behind it, that two questions without an answer have in common.

    Another question may end in the same words, as with a role's text of ours: where less than half of the earlier one
    is still asked, nothing of it was changed.
    """
    touched = int(touched * _share_in_common(old[0], new[0]))
    behind -= sum(section.tokens for section in new if section.text.startswith(_ROLES))
    asked = sum(section.tokens for section in old if not section.text.startswith(_ROLES))
    return (touched, behind) if behind > 0 and touched + behind >= _ALIKE * asked else (0, 0)


def _slid(old: Sequence[Section], new: Sequence[Section]) -> bool:
    """Whether a window moved on: what comes begins as what was there ended, and not with what went behind that.

    One section alone says nothing: people ask to go on in the same words again and again. Whose each is does not count:
    to each agent of a team the others' answers are questions.
    """
    before, after = [one.data for one in old], [one.data for one in new]
    ends = ((at, len(before) - at) for at in range(1, len(before) - 1) if before[at] == after[0])
    return any(before[at:] == after[:size] and before[:at] != after[size : size + at] for at, size in ends)


def _place(
    mine: Sequence[Section], theirs: Sequence[Section], first: Section, then: Section, *, moved: bool
) -> tuple[str, Divergence]:
    """Path and difference of a changed tier; a whole section that came or went is named as such."""
    if not mine or not theirs:
        one = (theirs or mine)[0]
        return one.path, _whole(first, then)
    ours, others = _contents(mine), _contents(theirs)
    comes, goes_on = others[0] in ours[1:], ours[0] in others[1:]
    if moved or comes or goes_on:
        return (mine[0].path if comes and not goes_on else theirs[0].path), _whole(mine[0], theirs[0])
    divergence = difference(mine[0], theirs[0])
    return divergence.path or theirs[0].path, divergence


def _behind(
    old: Sequence[Section], new: Sequence[Section], left: Sequence[Hashable], right: Sequence[Hashable]
) -> tuple[int, int | None]:
    """Tokens of the longest row of sections that both have, in order; and how many of ``new`` the earlier had too.

    The latter up to the last of them, with what is only another wording.
    """
    if len(old) + len(new) > _LONGEST:
        return kept(old, new, 0), None
    if set(left).isdisjoint(right):
        return 0, _reworded(old, new)
    *blocks, _ = SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks()
    tokens = sum(new[block.b + step].tokens for block in blocks for step in range(block.size))
    was, still = blocks[-1].a + blocks[-1].size, blocks[-1].b + blocks[-1].size
    # What was changed where it stands, such as all ids of calls, has no equal behind the last that has one.
    return tokens, still + _reworded(old[was:], new[still:])


def _reworded(old: Sequence[Section], new: Sequence[Section]) -> int:
    """How many of ``new`` stand up to the last one that is only another wording of what stood in its place."""
    pairs = enumerate(zip(old, new, strict=False), 1)
    return max((at for at, (one, other) in pairs if one.kind == other.kind and _same_text(one, other)), default=0)


def _same_text(a: Section, b: Section) -> bool:
    """Whether two texts are one text changed, at one place or in the space between all words."""
    return alike(a, b) or a.text.split() == b.text.split()


def _whole(a: Section, b: Section) -> Divergence:
    """The difference of two whole sections, one of which came, went or moved: neither grew out of the other."""
    around = 48
    return Divergence(0, 0, b.path, 0, a.text[:around], b.text[:around], 0)


_RELATED = 0.3
_AROUND = 24


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference from an earlier prompt that keeps this one from reading what that one had."""

    cause: Cause
    path: str
    divergence: Divergence
    record: SentRequest
    tokens: int
    """What could be read without the difference. Tokens."""
    sure: bool
    whole: int = 0
    """Tokens of the earlier prompt."""
    placed: bool = False
    """Whether ``tokens`` is a place in the new prompt: so much of it could have been read."""


def difference_from(
    own: SentRequest,
    shared: int,
    earlier: Iterable[tuple[SentRequest, int]],
    profile: Profile,
    *,
    rewritten: bool = False,
) -> Finding | None:
    """What keeps ``own`` from reading what an earlier request of its agent left; None where it continues one.

    ``earlier`` are those requests, the newest first, each with how many sections are equal from the start. ``shared``
    is how many ``own`` has in common with any prompt of its lane, which can be read anyway. It is held against the
    request with most content in common, wherever that stands. ``rewritten`` says that the history is known to have
    been rewritten, so that any difference in it is one.
    """
    candidates = [row for row in earlier if not row[0].failed]
    closest: SentRequest | None = None
    equal, in_common = 0, 0
    own_digests = set(own.digests)
    for record, begins_equal in candidates:
        common = own.totals[begins_equal - 1] if begins_equal else 0
        # What stands behind the first difference can only be compared where the rest is not all new.
        if begins_equal < len(record.digests) and not own_digests.isdisjoint(record.digests[begins_equal:]):
            common += kept(record.sections, own.sections, begins_equal)
        if common > in_common:
            closest, equal, in_common = record, begins_equal, common
    if closest is None:
        if not candidates:
            return None
        # No text is the very same: an id in a system prompt makes another one of it, and each asks something else.
        closest, equal = candidates[0]
    in_content = _in_content(own, closest, equal, shared, in_common, profile, rewritten=rewritten)
    if in_content is not None and closest.prompt.api != own.prompt.api:
        # Each API writes the same texts and tools in a form of its own: that is no change of theirs.
        return _settings(own, closest, in_content.tokens, profile) if own.agent else None
    if closest.lane == own.lane and (closest.salts == own.salts or closest.keys[:equal] == own.keys[:equal]):
        return in_content
    if not own.agent and not any(map(answers, own.sections[equal:])):
        return in_content  # the first request of somebody: another agent may well have another model
    reachable = own.totals[shared - 1] if shared else 0
    # Content elsewhere than at the start only tells that it is the same agent where that has a name, or where
    # the difference in content would count as a break itself.
    anywhere = bool(own.agent) or in_content is not None
    same_agent = in_common if anywhere else (own.totals[equal - 1] if equal else 0)
    newest = candidates[0][0]
    if same_agent > reachable and (closest is newest or not any(_extends(own, one) for one, _ in candidates)):
        tokens = in_common
        if in_content is not None and in_common >= _RELATED * min(own.totals[-1], closest.totals[-1]):
            # What was changed beside it would have been read as well, had nothing been changed.
            tokens = max(in_common, in_content.tokens)
        return _settings(own, closest, tokens, profile) or in_content
    return in_content


def gone_back(own: SentRequest, shared: int, newest: tuple[SentRequest, int], profile: Profile) -> Finding | None:
    """What a request changed that went back to the tools, the model or a setting of an earlier one.

    It reads what that one left, which is less than the newest request had. None for any other difference: going
    back in the history is no break.
    """
    before, equal = newest
    if before.failed or before.slim:
        return None
    reachable = own.totals[shared - 1] if shared else 0
    common = (own.totals[equal - 1] if equal else 0) + kept(before.sections, own.sections, equal)
    # Behind what it reads stands what the newest request said under its own tools, model or setting.
    said = set(before.digests[equal:])
    more = sum(one.tokens for one in takewhile(lambda one: one.digest in said, own.sections[shared:]))
    if max(common, reachable + more) <= reachable or _system(before) != _system(own):
        return None
    found = difference_from(own, 0, (newest,), profile)
    if found is None or found.cause not in ("tools_changed", "tools_reordered", "model_changed", "settings_changed"):
        return None
    if reachable + more > found.tokens:
        found = replace(found, tokens=reachable + more, placed=True)
    return found if found.tokens > reachable else None


def _system(record: SentRequest) -> list[bytes]:
    """The digests of a prompt's system text."""
    return [one.digest for one in record.sections[: record.prompt.head] if one.tier == "system"]


def _extends(own: SentRequest, before: SentRequest) -> bool:
    """Whether one request goes on where another of the same lane ended, as after a setting was changed back."""
    keys = before.keys
    return bool(keys) and before.lane == own.lane and own.keys[: len(keys)] == keys


def _settings(own: SentRequest, before: SentRequest, tokens: int, profile: Profile) -> Finding | None:
    """The first setting that differs and keeps these two from sharing, tenant and model first; None if none does."""
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
    """Where two values of a setting part, with what stands around that place."""
    offset = shared_characters(before, after)
    start = max(0, offset - _AROUND)
    end = offset + _AROUND
    return Divergence(0, 0, path, offset, before[start:end], after[start:end], len(after) - len(before))


def _in_content(
    own: SentRequest,
    before: SentRequest,
    equal: int,
    shared: int,
    common: int,
    profile: Profile,
    *,
    rewritten: bool,
) -> Finding | None:
    """The difference between the sections of two prompts; None where it explains nothing that was not read.

    Args:
        own: The request that is asked about.
        before: The earlier one that it is held against.
        equal: How many sections it begins with as that one does.
        shared: How many it shares with any prompt of its lane.
        common: Tokens that it has in common with ``before``, wherever they stand.
        profile: The provider's rules.
        rewritten: Whether the history is known to have been rewritten, so that any difference in it is one.
    """
    if not own.agent and not rewritten and _told_by_another(before.sections, own.sections, equal):
        return None
    found = change(before.sections, own.sections, equal, tails=not rewritten)
    if found is None:
        return None
    prefix = own.totals[equal - 1] if equal else 0
    # Where nothing stands behind the change it cost nothing that this request still has. A provider's rule: where
    # entries end at marks, one behind what is gone does not let read what stands before it either.
    ended = found.sure and profile.match == "breakpoint"
    tokens = prefix + found.behind + found.touched if ended or found.behind or found.touched else 0
    placed = False
    if found.sure and tokens and _goes_on(own, before, found):
        # The same conversation: had nothing been changed, all that it had before would have been read. Money: what is
        # no longer sent is not paid for.
        had, sent = before.totals[-1], _still_sent(own, equal, found)
        # Of that prompt the provider counted all, and of this one too: it is told from the nearer of both ends.
        placed = tokens <= sent and own.totals[-1] < had
        tokens = max(tokens, min(had, sent))
    reachable = own.totals[shared - 1] if shared else 0
    if shared > equal and reachable >= max(prefix, tokens) and not rewritten:
        return None  # another prompt left at least as much for it to read
    if not found.cause.startswith("history") and not _related(own, before, common, found):
        return None  # other tools or another system text, and little else in common: another agent
    if found.cause == "system_changed" and not own.agent and not found.touched:
        return None  # quite another system prompt, and no name: another agent that hears the same conversation
    in_front = not found.cause.startswith("history")
    if in_front and not (own.agent or own.session) and _another_application(own, before):
        return None  # neither agent nor conversation has a name, and nothing says that this was the same agent
    sure = found.sure or rewritten
    if not sure and not found.behind:
        return None  # as likely another branch of the conversation, and nothing behind it was lost
    return Finding(found.cause, found.path, found.divergence, before, tokens, sure, before.totals[-1], placed)


def _still_sent(own: SentRequest, equal: int, found: Change) -> int:
    """Tokens up to the last section that stands in the earlier prompt too; all, where that is not known."""
    if found.still is None:
        return own.totals[-1]
    end = equal + found.still
    return own.totals[end - 1] if end else 0


def _told_by_another(before: Sequence[Section], after: Sequence[Section], equal: int) -> bool:
    """Whether the first difference is who said it: what one agent answered, the others of its team were asked."""
    if equal >= min(len(before), len(after)):
        return False
    old, new = before[equal], after[equal]
    same = old.data == new.data and old.kind == new.kind and "messages" == old.tier == new.tier
    return same and old.head != new.head and answers(old) != answers(new)


def _goes_on(own: SentRequest, before: SentRequest, found: Change) -> bool:
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


def _another_application(own: SentRequest, before: SentRequest) -> bool:
    """Whether two requests without any name, whose system texts differ, are two agents' of one client.

    One agent's are those that go on with the same conversation, those that differ in times, ids and counters alone, and
    those with more in common behind what differs than differs: a name was put into one text.
    """
    asked, said = before.sections[before.prompt.head :], own.sections[own.prompt.head :]
    if any(map(answers, said)) and 2 * kept(asked, said, 0) >= sum(one.tokens for one in asked):
        return False
    ours, theirs = _system_words(own), _system_words(before)
    news, olds = Counter(ours) - Counter(theirs), Counter(theirs) - Counter(ours)
    behind = sum(1 for _ in takewhile(operator.truth, map(operator.eq, reversed(ours), reversed(theirs))))
    if behind > max(news.total(), olds.total()):
        return False
    return not all(map(_mostly_numbers, (news, olds)))


def _system_words(record: SentRequest) -> list[str]:
    """The words of a prompt's system text."""
    sections = record.sections[: record.prompt.head]
    return [word for one in sections if one.tier == "system" for word in one.text.split()]


def _mostly_numbers(words: Counter[str]) -> bool:
    """Whether words are those of a time, an id or a counter: to each with a digit up to two without, as in a date."""
    numbers = sum(times for word, times in words.items() if any(map(str.isdigit, word)))
    return words.total() <= 3 * numbers


def _related(own: SentRequest, before: SentRequest, common: int, found: Change) -> bool:
    """Whether two prompts whose tools or system differ are one agent's: much of one stands in the other.

    An agent with a name only has to have some of its messages again.
    """
    smaller = min(own.totals[-1], before.totals[-1])
    return common + found.touched >= _RELATED * smaller or (bool(own.agent) and found.behind > 0)


def of_the_application(own: SentRequest, found: Finding) -> Finding | None:
    """What of a difference is the application's, by what it made of both requests; None where all is our own layout's.

    That goes by what the difference is about: a role's text that was put elsewhere is no edited history, and a tool
    that all now carry no change of one agent's tools.
    """
    before = found.record
    if (own.made is None and before.made is None) or found.cause in ("scope_changed", "model_changed"):
        return found
    mine, theirs = own.made or own.prompt, before.made or before.prompt
    if not mine.sections or not theirs.sections:
        return None  # it would not have sent one of the two
    if found.cause == "settings_changed":
        return found if mine.settings != theirs.settings or mine.api != theirs.api else None
    if not found.cause.startswith("history"):
        tier: Tier = "system" if found.cause == "system_changed" else "tools"
        return found if [*map(_digest, mine.tier(tier))] != [*map(_digest, theirs.tier(tier))] else None
    old, new = theirs.tier("messages"), mine.tier("messages")
    said = change(old, new, shared_sections(old, new))
    # Another branch of the conversation, such as a sibling's task: what our layout lost behind it is no loss of theirs.
    if said is None:
        # What was said is the same, and the role's text in it is what is left of the application's system text.
        whole = change(theirs.sections, mine.sections, shared_sections(theirs.sections, mine.sections))
        said = whole if whole is not None and whole.cause == "system_changed" else None
    if said is None or not (said.sure or said.behind):
        return None
    return replace(found, cause=said.cause, path=said.path, divergence=said.divergence)


def _digest(section: Section) -> bytes:
    return section.digest
