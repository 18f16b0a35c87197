"""What may never break, looked for in what was recorded of an application: unmodified, observed and forked."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from cacheprefix.layout import find_text
from cacheprefix.layout.framing import unframed
from cacheprefix.prompt import Prompt, Section
from cacheprefix.server import Record
from cacheprefix.server.script import is_tool_result, role
from cacheprefix.testing import information
from tests.transparent.compare import Allowed, differences
from tests.transparent.harness import Seen
from tests.transparent.plain import normalised
from tests.trial.applications import RETRIEVED, Application, Turn, again

Key = tuple[str, str, int]
"""A request's person, turn and attempt, its agent, and which one of these it is."""
AS_THEY_ARE = ("unmodified", "observed")
"""The modes in which requests are the application's own."""


@dataclass(frozen=True, slots=True)
class Broken:
    """An invariant that does not hold; 0 for a driver's own fault: the application does not even run without us."""

    invariant: int
    what: str

    def __str__(self) -> str:
        return f"{f'invariant {self.invariant}' if self.invariant else 'the driver'}: {self.what}"


@dataclass(frozen=True, slots=True)
class Framing:
    """What an adapter's forks say in words of its own, beside the core's."""

    words: Callable[[str], str] = str
    """What a section's text says without them."""
    own: Callable[[str], bool] = lambda _: False
    """Whether a message is of those that a role alone has."""
    last: bool = True
    """Whether what was asked last stands in a fork as the application words it, not taken apart."""
    passed: tuple[str, ...] = ()
    """How messages begin that an agent passes on in a user's name, such as a hand-off: nobody asked them."""
    asks: Mapping[str, Callable[[str], str]] = field(default_factory=dict)
    """What the requests of agents say that are worded otherwise in a fork, such as a selector's, by agent."""
    once: bool = False
    """Whether a fork says once what the application says more often."""
    by_roles: bool = False
    """Whether a turn's roles are a team of their own, so that what is shared goes by who they are."""
    apart: bool = False
    """Whether what is asked of roles together comes into no conversation: no later request goes on from it."""
    from_start: bool = True
    """Whether a rewind may go back to before anything was said, where the conversation begins anew."""
    goes_on: bool = True
    """Whether a turn goes on from those before it, and is no conversation of its own."""

    raises: bool = False
    """Whether what several requests hold of a user's stands in the shared system text, as the adapter's page says."""
    named: bool = True
    """Whether conversations have the names that the application gives them, where it gives any."""
    filler: str = ""
    """The name of a tool that the framework puts in where a request has none, and was said to have called some."""

    def said(self, prompt: Prompt) -> Prompt:
        """The prompt's words alone."""
        texts = ((one, self.words(one.text)) for one in prompt.sections)
        return replace(prompt, sections=tuple(replace(one, data=text.encode()) for one, text in texts))


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an application."""

    mode: str
    records: tuple[Record, ...]
    seen: Seen = field(default_factory=lambda: Seen({}, ()))
    left: tuple[str, ...] = ()
    """What is still there at the end: leaders, tasks, sessions."""
    told: str = ""
    """Reports and calls of the sessions, which hold nobody's words."""
    broke: bool = False
    """Whether a step of ours was made to fail, and did."""
    framing: Framing = field(default_factory=Framing)

    @property
    def by_key(self) -> dict[Key, Record]:
        """Requests by whose they are; of a leader's that were one question the last, as an answer came to it."""
        found: dict[tuple[str, str], list[Record]] = {}
        for record in self.records:
            known = found.setdefault((record.session or "", record.agent or ""), [])
            if known and again(known[-1], record):
                known.pop()
            known.append(record)
        return {(*who, at): record for who, records in found.items() for at, record in enumerate(records)}


Runs = Mapping[str, Run]
"""By mode; a mode that was played again has a number behind its name."""
_REPLAYED = ("continued", "forked")
Check = Callable[[Application, Runs, Sequence[Allowed]], Iterable[Broken]]


def nobody_elses_words(app: Application, runs: Runs, allowed: Sequence[Allowed]) -> Iterator[Broken]:
    """8: a request holds no word of another person or tenant; a report holds nobody's."""
    del allowed
    for run in runs.values():
        for key, record in run.by_key.items():
            person = next((one for one in app.people if one.name == key[0].partition("/")[0]), None)
            if person is None:
                yield Broken(0, f"{run.mode}, a request of nobody: {record.body[:300]!r}")
                continue
            text = record.body.decode("utf-8", "replace")
            others = {one.name for one in app.people if one != person} | ({*app.tenants} - {person.tenant})
            for other in sorted(others):
                if other in text:
                    at = text.index(other)
                    number = 0 if run.mode == "unmodified" else 8
                    yield Broken(number, f"{run.mode}, {key}: {other}'s words: ...{text[max(0, at - 200) : at + 100]}")
        for person in app.people:
            if person.name in run.told:
                at = run.told.index(person.name)
                yield Broken(8, f"{run.mode}: a report holds {run.told[max(0, at - 200) : at + 100]!r}")


def valid(app: Application, runs: Runs, allowed: Sequence[Allowed]) -> Iterator[Broken]:
    """3: the provider takes every request."""
    del app, allowed
    for run in runs.values():
        for key, record in run.by_key.items():
            wrong = [str(error) for error in record.invalid]
            if not wrong and record.status == 400 and record.error and "on purpose" not in record.error:
                wrong = [record.error]
            for error in wrong[:1]:
                number = 0 if run.mode == "unmodified" else 3
                yield Broken(number, f"{run.mode}, {key}: {error}; {record.body[-700:]!r}")


def inert(app: Application, runs: Runs, allowed: Sequence[Allowed]) -> Iterator[Broken]:
    """4: observed requests are byte for byte the unmodified ones."""
    del app, allowed
    before, after = runs["unmodified"].by_key, runs["observed"].by_key
    for key in sorted(before.keys() | after.keys()):
        if _undecided(runs, key):
            continue
        if key not in after or key not in before:
            yield Broken(4, f"{key}: {'no such request observed' if key in before else 'a request more observed'}")
        elif found := change(before[key], after[key]):
            yield Broken(4, f"{key}: {found}")


def change(before: Record, after: Record, *, prompts: bool = False) -> str:
    """Where two bodies differ, the provider's ids apart: of two equal prompts either may have been the first one.

    With ``prompts`` it counts what a cache is read by: neither marks, which go by what a process has seen written, nor
    whether the answer is streamed, as a leader's is where siblings wait.
    """
    if prompts and before.prompt is not None and after.prompt is not None:
        bodies = [b"\n".join(one.data for one in record.prompt.sections) for record in (before, after) if record.prompt]
    else:
        bodies = [before.body, after.body]
    one, other = (str(normalised(body.decode("utf-8", "replace"))) for body in bodies)
    if one == other:
        return ""
    pairs = enumerate(zip(one, other, strict=False))
    at = max(0, next((at for at, (a, b) in pairs if a != b), min(len(one), len(other))) - 80)
    return f"{one[at : at + 200]} became {other[at : at + 200]}"


def same_information(app: Application, runs: Runs, allowed: Sequence[Allowed]) -> Iterator[Broken]:
    """2, 5: each unmodified request has its fork, which says the same, once; shortened, no question is missing."""
    del allowed
    before, after = runs["unmodified"].by_key, runs["forked"].by_key
    for key in sorted(before.keys() | after.keys()):
        if _undecided(runs, key):
            continue
        framing = runs["forked"].framing
        if key[1] in framing.asks and key in before and key in after:
            if app.bounded:
                continue
            framing = replace(framing, words=framing.asks[key[1]], once=True)
        if key not in after:
            turn = app.turns[int(key[0].split("/")[1])]
            # Who fails first cancels its siblings: one that waits for it at the gate has not asked by then.
            if not (turn.fault and turn.together):
                yield Broken(5, f"{key}: it was never asked in the fork")
        elif key not in before:
            # A leader's stream that broke, or that a gateway may have refused as such, is asked for again as a whole.
            if not (app.turns[int(key[0].split("/")[1])].fault and key[2]):
                yield Broken(5, f"{key}: asked in the fork alone: {after[key].body[-300:]!r}")
        elif (one := before[key].prompt) is not None and (other := after[key].prompt) is not None:
            yield from _same(app, key, one, other, framing)


def same_authority(app: Application, runs: Runs, allowed: Sequence[Allowed]) -> Iterator[Broken]:
    """9: in a fork no words have more authority than in the unmodified request, and the application's have a frame.

    What people, tools and the model said is never the application's there, nor the model's what it did not say. The
    shared text is the application's, and so is a role's, or it stands in a user's message as what it is.
    """
    del allowed
    before, after = runs["unmodified"].by_key, runs["forked"].by_key
    for key in sorted(before.keys() & after.keys()):
        was, now = before[key].prompt, after[key].prompt
        if was is None or now is None:
            continue
        person, held = key[0].partition("/")[0], dict[str, int]()
        for speaker, section in spoken(was):
            for word in _own_words(person, section):
                held[word] = max(held.get(word, 0), _AUTHORITY[speaker])
        for speaker, section in spoken(now):
            more = [word for word in _own_words(person, section) if _AUTHORITY[speaker] > held.get(word, 0)]
            if more and not (speaker == "application" and runs["forked"].framing.raises):
                yield Broken(9, f"{key}: {more[:3]} as the {speaker}'s, in {section.text[:200]!r}")
            for text in (app.handbook, *(each.duty for each in app.roles)):
                if find_text(text, section.text) is None or speaker == "application":
                    continue
                own = unframed(section.text) != section.text or runs["forked"].framing.own(section.text)
                if speaker != "user" or not own:
                    yield Broken(9, f"{key}: the application's text as the {speaker}'s, in {section.text[:200]!r}")


_AUTHORITY = {"tool": 0, "user": 0, "assistant": 1, "application": 2}


def spoken(prompt: Prompt) -> Iterator[tuple[str, Section]]:
    """Each text of a prompt, and who says it: the application, a user, the assistant or a tool."""
    last = "user"
    for one in prompt.sections:
        if one.tier == "tools":
            continue
        said = role(one) or last
        last = last if said == "+" else said
        if one.tier == "system" or last in ("system", "developer"):
            yield "application", one
        elif is_tool_result(one):
            yield "tool", one
        else:
            yield ("assistant" if last == "assistant" else "user"), one


def _own_words(person: str, section: Section) -> list[str]:
    return re.findall(rf"\b{person}-[\w-]+", section.text)


def _same(app: Application, key: Key, before: Prompt, after: Prompt, framing: Framing) -> Iterator[Broken]:
    before, after = framing.said(before), framing.said(after)
    if not app.bounded:
        # What the user gave reaches whoever shares; who does not, is told no less than without us.
        shared = framing.words(app.handbook)
        given = find_text(unframed(shared), "\n".join(unframed(one.text) for one in after.sections)) is not None
        found = information(before, after, shared if given else "")
        added = {word: count for word, count in found.added.items() if word.strip("</>") != RETRIEVED}
        said = set(" ".join(one.text for one in after.sections).split()) if framing.once else set[str]()
        missing = {word: count for word, count in found.missing.items() if word not in said}
        if missing or added:
            yield Broken(9, f"{key}: missing {_few(missing)}, added {_few(added)}")
        return
    # Each question by its own text; what was asked last stands whatever was removed.
    person = next(one for one in app.people if one.name == key[0].partition("/")[0])
    said = {framing.words(app.question(turn, person)).strip() for turn in app.turns if person in turn.people}
    texts = [[unframed(section.text).strip() for section in prompt.tier("messages")] for prompt in (before, after)]
    texts_of = [one for one in before.tier("messages") if one.kind == "text" and role(one) in ("user", "+")]
    last = texts_of[-1].text.strip() if texts_of and framing.last else ""
    results = (f"{tool.name} " for one in app.roles for tool in one.tools)
    if last.startswith(framing.passed) or ("budget" in app.options and last.startswith(tuple(results))):
        last = ""  # results of tools in an agent's own words, which are cut like any other
    counts = [Counter(each) for each in texts]
    for text in filter(None, said | {last}):
        was, now = counts[0][text], counts[1][text]
        lost = now < was and (text == last or "compaction" not in app.options)
        # Questions that follow one another may be one message in the fork.
        if now > was or (lost and find_text(text, "\n".join(texts[1])) is None):
            yield Broken(9, f"{key}: {text[:80]!r} stood {was} times and stands {now} times")


def prefix_stands(app: Application, runs: Runs, allowed: Sequence[Allowed]) -> Iterator[Broken]:
    """1, 7: where an application only adds at the end, its fork begins with all that the one before it shared."""
    del allowed
    before, after = runs["unmodified"].by_key, runs["forked"].by_key
    if "compaction" in app.options or runs["forked"].broke:
        return
    framing, by_agent = runs["forked"].framing, dict[tuple[str, str, frozenset[str], bool], list[Key]]()
    own = framing.own
    for key in sorted(after, key=lambda key: (int(key[0].split("/")[1]), key[0], key[2])):
        if key in before and is_fork(after[key].prompt, own):
            person, turn, _ = key[0].split("/")
            roles = frozenset(one.name for one in app.turns[int(turn)].roles if framing.by_roles)
            # To a provider an answer's schema makes it another prompt: nobody's tools are read with it.
            schema = after[key].asked.schema is not None
            by_agent.setdefault((person, key[1], roles, schema), []).append(key)
    for keys in by_agent.values():
        for first, second in pairwise(keys):
            if framing.apart and any(turn.together for turn in _between(app, first, second)):
                continue
            if _asked_inside(runs["forked"], first, second):
                continue
            olds, news = (before[first].prompt, before[second].prompt), (after[first].prompt, after[second].prompt)
            paths = [[one.path for one in old.sections[: len(olds[0].sections)]] for old in olds if old]
            if None in (*olds, *news) or not _begins(olds[1].sections, olds[0].sections) or paths[0] != paths[1]:
                continue
            shared, now = shared_part(news[0], own), news[1].sections
            was, brought = ({one.data for one in new.tier("tools") if not _fills(one, framing)} for new in news)
            if was < brought or (was != brought and _may_be_another(app, first, second)):
                # Another agent brought tools, and to begin anew with all of them costs less: another epoch. In another
                # conversation they are not shown, as they may be made for whose that was.
                shared, now = _untooled(shared), _untooled(now)
            back = any(turn.act == "rewind" for turn in _between(app, first, second)[1:])
            if _whose_is_open(app, second) or _begun_anew(app, first, second) or back:
                # A role's text may stand elsewhere in another conversation, and in what one was before.
                shared = tuple(one for one in shared if one.tier != "messages")
            if not _begins(now, shared):
                at = _parted(shared, now)
                old, found = ("".join(one.text[:120] for one in sections[at : at + 1]) for sections in (shared, now))
                number = 7 if shared[at].tier == "messages" else 1
                yield Broken(number, f"{second} after {first}: {shared[at].path} was {old!r}, is {found!r}")


def _fills(tool: Section, framing: Framing) -> bool:
    return bool(framing.filler) and f'"name":"{framing.filler}"' in tool.text


def _may_be_another(app: Application, first: Key, second: Key) -> bool:
    """Whether two requests of a person may be of two conversations: nobody named them, or one was begun anew."""
    return first[0] != second[0] and (not app.named or _begun_anew(app, first, second))


def _begun_anew(app: Application, first: Key, second: Key) -> bool:
    """Whether the application began a person's conversation anew between two requests."""
    return any(turn.act == "reset" for turn in _between(app, first, second)[1:])


def _between(app: Application, first: Key, second: Key) -> Sequence[Turn]:
    """The turns of two requests, and those between them; none where that is one turn."""
    turns = [int(key[0].split("/")[1]) for key in (first, second)]
    return app.turns[turns[0] : turns[1] + 1] if turns[0] < turns[1] else ()


def _whose_is_open(app: Application, key: Key) -> bool:
    """Whether nobody can tell which conversation a request goes on from: it has no name, and others said the same.

    Those are roles that were asked side by side, and people who asked in the same words; and what was asked last does
    not stand in the history where its answer was left, or where it had a text for itself. The request begins a
    conversation of its own then, in which a role's text may stand elsewhere.
    """
    name, number = key[0].split("/")[:2]
    turns = [one for one in app.turns[: int(number) + 1] if name in {person.name for person in one.people}]
    alike = any(len(one.people) > 1 and "{mine}" not in one.said for one in turns)
    left = any(one.way in ("left", "cancelled") for one in turns[:-1])
    return not app.named and (alike or left or any(one.together or one.volatile for one in turns))


def is_fork(prompt: Prompt | None, own: Callable[[str], bool]) -> bool:
    """Whether our framing stands in it."""
    return prompt is not None and shared_part(prompt, own) != prompt.sections


def shared_part(prompt: Prompt, own: Callable[[str], bool]) -> tuple[Section, ...]:
    """The sections in front of the first one that is a role's own."""
    messages = ((at, one.text) for at, one in enumerate(prompt.sections) if one.tier == "messages")
    first = (at for at, text in messages if own(text) or unframed(text) != text)
    return prompt.sections[: next(first, len(prompt.sections))]


def _untooled(sections: Sequence[Section]) -> tuple[Section, ...]:
    return tuple(one for one in sections if one.tier != "tools")


def _begins(sections: Sequence[Section], start: Sequence[Section]) -> bool:
    return [one.data for one in sections[: len(start)]] == [one.data for one in start]


def _parted(one: Sequence[Section], other: Sequence[Section]) -> int:
    """Where two prompts part."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a.data != b.data), min(len(one), len(other)))


def replayed(app: Application, runs: Runs, allowed: Sequence[Allowed]) -> Iterator[Broken]:
    """2: state saved and loaded in another session gives the bytes that one session gives.

    Of siblings with several requests each the clock decides who asks first, and by that where roles' texts stand: of
    requests at the same time it is broken where none of several plays of one session sent what one resumed did. A
    conversation that begins behind a resume was not resumed, nor was what a role begins in it: which roles, tools and
    schemas there are, and what they were told elsewhere, a process knows once it has met them.
    """
    del allowed
    before, after = ([run.by_key for name, run in runs.items() if name.startswith(mode)] for mode in _REPLAYED)
    framing = runs["forked"].framing
    for key in sorted({*before[0], *after[0]}) if before and after else ():
        olds, news = ([play[key] for play in plays if key in play] for plays in (before, after))
        if key[1] in framing.asks and _went_back(app, key):
            # AutoGen puts what a team loads behind what its selector was asked before: without us it is another prompt.
            continue
        if framing.apart and _asked_together(app, key):
            # What was decided in the copies of a conversation that are asked side by side went with them, and what was
            # asked last stands in no later request.
            continue
        inner = any(_asks_another(play, key[0]) for play in (*olds, *news))
        plays = [*before, *after]
        if not (inner or _undecided(runs, key) or _begins_behind_a_resume(app, key, framing, plays)) and olds and news:
            changes = [change(old, new, prompts=True) for old in olds for new in news]
            if all(changes):
                yield Broken(2, f"{key}: in one session {changes[0]}, resumed")


def _asks_another(record: Record, turn: str) -> bool:
    """Whether a request is of the conversation in which one agent asks another, which begins with what that is told."""
    told = f"{turn.split('/', maxsplit=1)[0]}-inner-"
    return record.prompt is not None and any(told in one.text for one in record.prompt.tier("messages")[:2])


def _asked_inside(run: Run, first: Key, second: Key) -> bool:
    """Whether another agent asked a role, as its tool, while it was asked itself under the same conversation's name.

    Each time it begins what it was not told before, and has its text where that costs least.
    """
    turns, asked = {first[0], second[0]}, first[1].partition("#")[0]
    inner = (key for key, record in run.by_key.items() if key[0] in turns and _asks_another(record, key[0]))
    return any(key[1].partition("#")[0] == asked for key in inner)


def _asked_together(app: Application, key: Key) -> bool:
    """Whether roles were asked together before in a request's conversation."""
    name, number = key[0].split("/")[:2]
    return any(turn.together for turn in app.turns[: int(number) + 1] if name in {p.name for p in turn.people})


def _went_back(app: Application, key: Key) -> bool:
    """Whether a request's conversation went back to an earlier state before."""
    name, number = key[0].split("/")[:2]
    return any(turn.act == "rewind" for turn in app.turns[: int(number) + 1] if name in {p.name for p in turn.people})


def _begins_behind_a_resume(
    app: Application, key: Key, framing: Framing, plays: Sequence[Mapping[Key, Record]]
) -> bool:
    """Whether a request's role began its conversation behind a resume, and so in the new session."""
    name, number = key[0].split("/")[:2]
    asks, _, branch = key[1].partition("#")
    role = next((one for one in app.roles if one.name == asks), None)
    if role is not None and (role not in app.turns[int(number)].roles or branch not in ("", "cancelled", asks)):
        # Another agent asks it, in a conversation of their own.
        return any(turn.act == "resume" for turn in app.turns[: int(number) + 1])
    asked = [turn for turn in app.turns[: int(number) + 1] if any(one.name == name for one in turn.people)]
    begun, came = 0, list[bool]()
    for turn in asked:
        if turn.act == "rewind" and came and framing.from_start:
            del came[app.back(turn, len(came)) :]
        elif turn.act == "reset":
            came.clear()
        begun = begun if any(came) else app.turns.index(turn)
        # What was asked of roles together, or cancelled, may have come into no conversation: then none was begun by it.
        kept = not (framing.apart and turn.together) and turn.way not in ("left", "cancelled")
        # An answer's schema makes it another prompt.
        kept = kept and turn.form == app.turns[int(number)].form
        # Where one agent hands on to the next, an error of the first leaves the others unasked; and what was refused
        # may have come into no conversation.
        spoke = any(each[0].startswith(f"{name}/{turn.number}/") and each[1].partition("#")[0] == asks
                    and record.status < 400 for play in plays for each, record in play.items())  # fmt: skip
        came.append(framing.goes_on and kept and (role is None or (role in turn.roles and spoke)))
        if _went_wrong(plays, f"{name}/{turn.number}/"):
            came[-1] = False
    return any(turn.act == "resume" for turn in app.turns[: begun + 1])


def _went_wrong(plays: Sequence[Mapping[Key, Record]], turn: str) -> bool:
    """Whether the last attempt at a turn failed in one of several plays: its team then goes back to where it was."""
    last = max((key[0] for play in plays for key in play if key[0].startswith(turn)), default="")
    return any(key[0] == last and record.status >= 400 for play in plays for key, record in play.items())


def same_seen(app: Application, runs: Runs, allowed: Sequence[Allowed]) -> Iterator[Broken]:
    """5, 10: the application sees the same; observed all of it (4), forked but for the listed differences."""
    before = runs["unmodified"].seen.tree
    if isinstance(before, dict) and before.get("raised"):
        yield Broken(0, f"it does not run unmodified: {str(before['raised'])[:1_500]}")
        return
    for mode in ("observed", "forked"):
        entries = list(allowed) if mode == "forked" else list(_USAGE) if app.parallel else []
        after = runs[mode].seen.tree
        if app.broken is not None:
            # What of ours failed is named in a warning.
            before, after = ({**tree, "warnings": None} for tree in (before, after))
        for found in differences(before, after):
            if not any(entry.covers("agent_trial", found) for entry in entries):
                number = 4 if mode == "observed" else 5 if app.broken or found.path.startswith("raised") else 10
                yield Broken(number, f"{mode}, {found}")


def nothing_left(app: Application, runs: Runs, allowed: Sequence[Allowed]) -> Iterator[Broken]:
    """5: at the end no leader, task or session is left, and nothing of ours failed that was not made to."""
    del allowed
    for run in runs.values():
        for left in run.left:
            yield Broken(0 if run.mode == "unmodified" else 5, f"{run.mode}: {left} is left")
        if app.broken is None and run.seen.failures:
            yield Broken(5, f"{run.mode}: ours failed: {dict(run.seen.failures)}")


_USAGE = tuple(
    Allowed((), "*", path, ("value", "type"), "", "what others wrote a moment before, the clock decides")
    for path in ("*usage*", "*_tokens")
)

CHECKS: tuple[Check, ...] = (
    nobody_elses_words, valid, inert, same_information, same_authority, prefix_stands, replayed, same_seen,
    nothing_left,
)  # fmt: skip


def check(app: Application, runs: Runs, allowed: Sequence[Allowed] = ()) -> list[Broken]:
    """All that is broken; where the application is wrong by itself, that alone."""
    if not runs["forked"].framing.named:
        app = replace(app, named=False)
    found = [one for each in CHECKS for one in each(app, runs, allowed)]
    return [one for one in found if not one.invariant] or found


def _undecided(runs: Runs, key: Key) -> bool:
    """Whether a request may or may not go out: before it is cancelled, or before a sibling's failure ends the run.

    The latter is told by more runs, unmodified and observed, where there are any: one mode makes it once and once not.
    """
    made = ({key in run.by_key for name, run in runs.items() if name.startswith(mode)} for mode in AS_THEY_ARE)
    return key[1].endswith("#cancelled") or any(len(each) > 1 for each in made)


def _few(words: Mapping[str, int]) -> str:
    told = " ".join(f"{word}x{count}" if count > 1 else word for word, count in list(words.items())[:12])
    return f"{sum(words.values())} words ({told})" if words else "none"
