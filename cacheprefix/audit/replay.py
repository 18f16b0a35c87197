"""One pass over a log: every request is judged by the same model that a running session uses."""

from __future__ import annotations

import gc
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from typing_extensions import Self

from cacheprefix.audit.conversations import Conversations, Placed, held_bytes
from cacheprefix.audit.counts_only import CountsOnly
from cacheprefix.audit.duplicates import Duplicates
from cacheprefix.audit.lint_warnings import Warnings
from cacheprefix.audit.log_records import Broken
from cacheprefix.audit.order import Answers, Ready
from cacheprefix.audit.previous_request import PreviousRequestRule
from cacheprefix.audit.prices import Prices
from cacheprefix.audit.readers import BUILTIN, Reader
from cacheprefix.audit.reading import Overrides, Reading
from cacheprefix.audit.rows import CallRow, Rows, public, public_counts, view, view_counts, wide_diff
from cacheprefix.audit.totals import BreakGroup, Totals
from cacheprefix.audit.what_if import SECTIONS, PlayedCall, Saving, WhatIf
from cacheprefix.bounded import Bounded
from cacheprefix.cache import FIXES, Breakpoint, CacheModel, Observation, SentBy, Verdict, plan_breakpoints
from cacheprefix.errors import SetupError, named
from cacheprefix.profiles import Registry, Usage, cost_units, default_registry
from cacheprefix.prompt import CountTokens, Marker, Prompt
from cacheprefix.prompt.sections import with_markers

_RECENT = 4_096
_COLLECTING = 200_000
"""New objects after which circles are looked for; Python's own 700 to 2,000 are for programs that make some."""
_LOST_SHARE = 0.01
_MOST_TOKENS = 20_000_000
"""No model takes more in one call; a report of more is an error."""
_FEWEST = 8
"""No tokenizer needs an eighth of the tokens of ours."""
_DIGITS = re.compile(r"\d[\d.,e+]*")


@dataclass(slots=True)
class Audit:
    """What a log says about the cache. Use it as a context manager, or close it: rows may be in a file."""

    rows: Rows
    totals: Totals
    previous: PreviousRequestRule
    lint: tuple[dict[str, Any], ...] = ()
    what_if: tuple[Saving, ...] = ()
    what_if_calls: int = 0
    """Calls that were played again for ``what_if``: all, or the first of a long log."""
    notes: tuple[str, ...] = ()
    counters: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    include_text: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.rows.close()

    @property
    def calls(self) -> int:
        """Calls judged."""
        return self.totals.all.calls


def audit(
    files: Sequence[str],
    *,
    provider: str | None = None,
    rules: str | None = None,
    model: str | None = None,
    registry: Registry | None = None,
    readers: Iterable[Reader] = (),
    count: CountTokens | None = None,
    include_text: bool = False,
    what_if: bool = True,
    on_bytes: Callable[[int], None] | None = None,
) -> Audit:
    """Read request logs and say what the cache did on every call, what broke it and what that cost.

    Args:
        files: paths; ``-`` is standard input. Gzip and the format are recognised by content.
        provider: who served the calls, where the log does not say.
        rules: name of a profile row to judge by, such as ``exact``.
        model: the model of all calls, where the log does not say.
        registry: cache rules; by default those that ship with cacheprefix.
        readers: further log formats, tried before the built-in ones.
        count: a token counter; by default the best one on this machine for each model.
        include_text: keep a few characters around each difference. Without it no prompt text is kept.
        what_if: play the calls again under other layouts, to see what they would have cost.
        on_bytes: told the bytes of the files read since the last call.

    Raises SetupError for a file that cannot be opened and ProfileError for unknown rules. Lines that cannot be
    read are skipped and counted.
    """
    if not files:
        raise SetupError("no log to read; name at least one file, or - for standard input")
    table = registry or default_registry()
    if rules is not None:
        table.get(rules)
    every, known = (*readers, *BUILTIN), Overrides(provider, model, rules, count)
    with _rarely_collecting():
        # What the pass held is gone when circles are looked for again.
        return _pass(Reading(table, every, known), tuple(files), on_bytes, include_text=include_text, what_if=what_if)


def _pass(
    reading: Reading,
    files: tuple[str, ...],
    on_bytes: Callable[[int], None] | None,
    *,
    include_text: bool,
    what_if: bool,
) -> Audit:
    run = _Run(reading.count, include_text=include_text, what_if=what_if)
    try:
        requests = run.duplicates.once(reading.requests(files, on_bytes))
        for item in run.conversations.place(requests):
            if isinstance(item, Broken):
                run.totals.damaged(str(item), item.count)
            else:
                run.request(item)
        return run.result(reading, files)
    except BaseException:
        run.close()
        raise


@contextmanager
def _rarely_collecting() -> Iterator[None]:
    """Looks for circles of objects a hundred times less often: a pass makes none, and looking took 8 % of its time."""
    before = gc.get_threshold()
    if not 0 < before[0] < _COLLECTING:
        yield  # The application has seen to it, or another audit in another thread.
        return
    gc.set_threshold(_COLLECTING, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@dataclass(slots=True)
class _Open:
    """A call whose answer has not ended yet."""

    ready: Ready
    line: str
    prompt: Prompt
    observation: Observation
    usage: Usage | None
    """As reported."""
    simulated: Usage | None
    """What stands in where no cached tokens are reported."""
    alarm_of_rule: bool
    played: bool
    """Whether it is played again under other layouts."""


class _Run:
    """State of one pass."""

    def __init__(self, count: CountTokens, *, include_text: bool, what_if: bool) -> None:
        self.totals = Totals()
        self.conversations = Conversations()
        self.duplicates = Duplicates()
        self._model = CacheModel(count=count)
        self._answers = Answers()
        self._rows = Rows()
        self._prices = Prices()
        self._rule = PreviousRequestRule(count)
        self._counts = CountsOnly()
        self._warnings = Warnings(text=include_text)
        self._what_if = WhatIf(count) if what_if else None
        self._text = include_text
        self._begun = array("q")
        self._played_units = 0.0
        self._unknown: Bounded[int, Mapping[str, str]] = Bounded(_RECENT)
        self._harmless: set[tuple[str, str]] = set()
        """Models and fields that were changed in calls that read from the cache."""
        self._values: Bounded[tuple[str, str, int], bool] = Bounded(_RECENT)
        """Models, fields that no rule knows and hashes of the values that these had."""
        self._alarmed: dict[tuple[str, str], str] = {}
        self._now = float("-inf")

    def close(self) -> None:
        """Give up: the rows written so far go away."""
        self._rows.close()

    def request(self, placed: Placed) -> None:
        """Judge one request; its row is written when its answer ends."""
        ready, line, conversation = placed.ready, placed.line, placed.conversation
        # The caches' clocks never go back, even where a log's times do.
        now = self._now = max(self._now, ready.at)
        self._answers.until(now)
        record = ready.record
        if record.failed:
            self.totals.failed += 1
            return
        if ready.prompt is None:
            self._without_text(ready)
            return
        usage = None if ready.usage is None else self._possible(ready.usage, ready.prompt)
        prompt = _as_sent(ready, ready.prompt, usage)
        self.totals.presumed_marks += prompt is not ready.prompt
        known = record.response_started_ts is not None or record.response_ended_ts is not None
        observation = self._model.begin(
            prompt,
            ready.profile,
            SentBy(record.scope, placed.agent, conversation, related=placed.related, events=record.events, timed=known),
            at=now,
        )
        self.conversations.began(placed, observation.index)
        self._begun.append(ready.number)
        if ready.unknown:
            self._unknown[ready.number] = ready.unknown
        started = max(now, _first_given(record.response_started_ts, record.response_ended_ts, now))
        ended = max(started, _first_given(record.response_ended_ts, started))
        expected = observation.expectation.usage
        played = self._what_if is not None and not self._what_if.full
        if self._what_if is not None and played:
            profile, units = ready.profile, cost_units(expected, ready.profile)
            lane = (id(profile), prompt.model, record.scope)
            self._what_if.add(
                PlayedCall(
                    prompt=prompt,
                    profile=profile,
                    scope=record.scope,
                    session=conversation,
                    agent=record.agent,
                    at=now,
                    started=started,
                    ended=ended,
                    known=known,
                    units=units,
                    lane=lane,
                )
            )
        needed = usage is None or usage.cache_read_tokens is None
        # The model's own expectation: what a cache with these rules would have answered.
        simulated = expected if needed else None
        self.totals.refused += observation.outlook.marks.refused
        self._warnings.look(prompt, ready.place, record.agent, conversation)
        rule = self._rule.looks(prompt, conversation, held_bytes(ready))
        call = _Open(ready, line, prompt, observation, usage, simulated, rule, played)

        if started < ended:
            self._answers.at(started, lambda at: self._model.first_token(observation, at), known=known)
        self._answers.at(ended, lambda at: self._finished(call, at), known=known)

    def result(self, reading: Reading, files: tuple[str, ...]) -> Audit:
        """Everything, once the log has ended."""
        self._answers.until(float("inf"))
        self._model.clear()  # All is judged, and what follows takes memory of its own.
        self._rule.ended()
        savings = self._what_if.savings(self._played_units) if self._what_if is not None else ()
        played = self._what_if.calls if self._what_if is not None else None
        notes = _notes(self.totals, reading, self.conversations, played)
        self.totals.aside.update(reading.aside)
        return Audit(
            rows=self._rows,
            totals=self.totals,
            previous=self._rule,
            lint=self._warnings.found,
            what_if=savings,
            what_if_calls=played or 0,
            notes=(*self._dropped(), *notes),
            counters=tuple(sorted(reading.counters)),
            files=files,
            include_text=self._text,
        )

    def _explained(self, verdict: Verdict, ready: Ready) -> Verdict:
        """A miss that nothing explains may be a field's that no rule knows, if it changed since the ancestor.

        A field that was another in a call that read all the same explains nothing. What was read in part may be what
        an earlier call with the same value left.
        """
        model = ready.record.model
        known = {name for name, value in ready.unknown.items() if (model, name, hash(value)) in self._values}
        for name, value in ready.unknown.items():
            self._values[model, name, hash(value)] = True
        miss = verdict.cause == "provider_miss"
        shared = verdict.cause == "hit" and verdict.reported_tokens
        if not (ready.unknown or self._unknown) or not (miss or shared):
            return verdict
        before = self._unknown.get(self._index_of(verdict.ancestor_index) or 0, {})
        changed = sorted(
            name
            for name in {*before, *ready.unknown}
            if before.get(name, "") != ready.unknown.get(name, "") and (model, name) not in self._harmless
        )
        if not changed:
            return verdict
        if not miss:
            # It read although these changed: they are not what parts the cache.
            if len(self._harmless) < _RECENT:
                self._harmless.update((model, name) for name in changed)
            return verdict
        if verdict.reported_tokens:
            # A miss in part: a value that came before may have left what was read.
            changed = [name for name in changed if name in known or name not in ready.unknown]
        if not changed:
            return verdict
        return replace(verdict, cause="settings_changed", path=named(changed[0]), fix=FIXES["settings_changed"])

    def _dropped(self) -> Iterator[str]:
        if self.duplicates.dropped:
            yield f"{self.duplicates.dropped} calls stand in the log twice and are counted once"

    def _possible(self, usage: Usage, prompt: Prompt | None) -> Usage:
        """The counts without those that cannot be; what was wrong with them is named in the notes."""
        problems = list(usage.problems)
        most = max(usage.input_tokens or 0, usage.output_tokens or 0, usage.cache_read_tokens or 0)
        if most > _MOST_TOKENS:
            problems.append(f"{most:.1e} tokens in one call")
            usage = Usage()
        elif prompt is not None and _too_few(usage, prompt):
            problems.append("fewer tokens than the text of the request can have")
            usage = Usage()
        elif problems and usage.input_tokens is None:
            usage = Usage()
        for problem in problems:
            self.totals.usage_problems[_DIGITS.sub("…", problem)] += 1
        return usage

    def _finished(self, call: _Open, at: float) -> None:
        """Judge a request whose answer has ended: its verdict goes into its row, the sums and the alarms."""
        ready = call.ready
        # In a log that has usage elsewhere, a call without is unreported; the simulator only fills in its numbers.
        silent = (call.usage is None or not call.usage.reported) and not self.totals.reported
        usage = call.simulated if silent else call.usage
        verdict = self._model.finish(call.observation, usage, at, diagnostics=ready.record.diagnostics)
        verdict = self._explained(verdict, ready)
        source, counted = "reported", usage
        if call.simulated is not None:
            source, counted = "simulated", call.simulated
        if counted is None or counted.input_tokens is None:
            counted = replace(counted or Usage(), input_tokens=call.prompt.tokens)
        self.totals.reported += source == "reported"
        self.totals.simulated += source == "simulated"
        ancestor = self._index_of(verdict.ancestor_index)
        row = public(ready, verdict, ancestor, counted.cache_read_tokens or 0, source, text=self._text)
        shared = call.observation.expectation.shared_tokens
        broke = self._broke(verdict, counted.input_tokens or 0, call)
        seen = view(ready, call.prompt, verdict, counted, shared, broke=broke, rule=call.alarm_of_rule)
        if broke and self._text:
            sight = call.observation.sight
            before = sight.ancestor_record if sight.finding is None else sight.finding.record
            if before is not None and not before.slim:
                seen["diff"] = wide_diff(before.prompt, call.prompt)
        self._rule.judged(alarm=call.alarm_of_rule, real=broke)
        units = self._summed(ready, verdict, counted, row, seen)
        self._played_units += units if call.played else 0.0

    def _broke(self, verdict: Verdict, total: int, call: _Open) -> bool:
        """Whether the call counts as a break: it raised an alarm, or goes on with what raised the last one.

        A running session is told once of a break that repeats itself; here every one of them costs.
        """
        ready = call.ready
        line = (call.line, ready.record.agent)
        before = self._alarmed.get(line)
        if verdict.alarm:
            self._alarmed[line] = verdict.cause
        elif not verdict.broken:
            self._alarmed.pop(line, None)
        more = verdict.lost_tokens > max(ready.profile.block_tokens, _LOST_SHARE * total)
        return verdict.alarm or (verdict.broken and more and verdict.cause == before)

    def _summed(self, ready: Ready, verdict: Verdict, usage: Usage, row: dict[str, Any], seen: dict[str, Any]) -> float:
        """Add a call to the totals and the rows, and give what it cost in cost units."""
        totals, record = self.totals, ready.record
        units = cost_units(usage, ready.profile)
        usd = self._prices.usd(usage, record.model, ready.profile, record.ts)
        seen["units"], seen["usd"] = round(units, 2), usd
        totals.verdicts[verdict.kind] += 1
        totals.causes[verdict.cause] += 1
        totals.add(record, usage, units, usd, verdict.lost_tokens if seen["broke"] else 0)
        if seen["broke"]:
            totals.lost(verdict.lost_usd)
            self._grouped(ready, verdict, row)
        self._rows.add(CallRow(row, seen))
        return units

    def _grouped(self, ready: Ready, verdict: Verdict, row: Mapping[str, Any]) -> None:
        """Add a break to the group of those with its cause and place."""
        group = self.totals.group(
            BreakGroup(
                verdict.cause,
                _place(verdict, ready),
                verdict.fix,
                ready.place,
                ready.record.agent,
                verdict.offset if verdict.before or verdict.after else None,
                verdict.size,
                row["excerpt"],
            )
        )
        if group is not None:
            group.count += 1
            group.lost_tokens += verdict.lost_tokens
            if verdict.lost_usd is not None:
                group.lost_usd = (group.lost_usd or 0.0) + verdict.lost_usd
            group.calls.append(ready.number)

    def _without_text(self, ready: Ready) -> None:
        """A call of which only the counts are known."""
        record = ready.record
        usage = self._possible(ready.usage or Usage(), None)
        judged = self._counts.judge(ready.number, record.session, usage, ready.profile)
        totals = self.totals
        totals.without_text += 1
        totals.uncounted += usage.input_tokens is None
        totals.textless[ready.reader] += 1
        totals.counted += usage.reported
        totals.reported += 1
        totals.verdicts[judged.kind] += 1
        totals.causes[judged.cause] += 1
        units, usd = cost_units(usage, ready.profile), self._prices.usd(usage, record.model, ready.profile, record.ts)
        totals.add(record, usage, units, usd)
        seen = view_counts(ready, usage)
        seen["units"], seen["usd"] = round(units, 2), usd
        self._rows.add(CallRow(public_counts(ready, judged, usage.cache_read_tokens or 0), seen))

    def _index_of(self, begun: int | None) -> int | None:
        """Our number of the call that the model began as its n-th."""
        return None if begun is None or not 0 <= begun < len(self._begun) else self._begun[begun]


def _as_sent(ready: Ready, prompt: Prompt, usage: Usage | None) -> Prompt:
    """The prompt with its cache marks.

    Tracing formats lose the marks. Where nothing is cached without them and the counts show that something was
    read or written, there were some: taken to stand where they should, as far as what was read and written reaches.
    """
    profile = ready.profile
    if ready.record.wire or profile.control != "explicit" or profile.markers is None or usage is None:
        return prompt
    if prompt.top_marker is not None or any(one.marker is not None for one in prompt.sections):
        return prompt
    if not (usage.cache_read_tokens or usage.cache_write_tokens):
        return prompt
    planned = plan_breakpoints(prompt, profile)
    cached = (usage.cache_read_tokens or 0) + (usage.cache_write_tokens or 0)
    if usage.input_tokens and prompt.sections:
        # The provider's count says how far the last mark stood: one behind it would be missed where none was set.
        reach = cached * prompt.tokens / usage.input_tokens
        last = min(range(len(prompt.sections)), key=lambda at: abs(prompt.totals[at] - reach))
        planned = tuple(one for one in planned if one.section <= last) or (Breakpoint(last),)
    return with_markers(prompt, {point.section: Marker(point.ttl) for point in planned})


_MARKS = {"anthropic": "cache_control", "bedrock": "cachePoint", "openai": "prompt_cache_breakpoint"}


def _place(verdict: Verdict, ready: Ready) -> str | None:
    """Where the break is; for a missing mark, the field it should stand in."""
    if verdict.path is None or verdict.cause != "breakpoint_missing":
        return verdict.path
    return f"{verdict.path}.{_MARKS.get(ready.profile.markers or '', 'cache_control')}"


def _too_few(usage: Usage, prompt: Prompt) -> bool:
    """Whether a count cannot be that of a text: mocked answers say 10 whatever was asked."""
    if usage.input_tokens is None or usage.summed or prompt.tokens <= max(500, usage.input_tokens * _FEWEST):
        return False
    return not any(one.kind in ("image", "block") for one in prompt.sections)


def _first_given(*times: float | None) -> float:
    for time in times:
        if time is not None:
            return time
    return 0.0


def _notes(totals: Totals, reading: Reading, conversations: Conversations, played: int | None) -> Iterator[str]:
    """What the reader of the numbers should know about them."""
    if totals.simulated and totals.reported:
        some = "1 call has" if totals.simulated == 1 else f"{totals.simulated} calls have"
        yield f"{some} no count of cached tokens; a simulated cache stands in for them"
    elif totals.simulated:
        yield "the log has no counts of cached tokens; all that are shown are those of a simulated cache"
    if totals.without_text > totals.uncounted:
        counts = totals.without_text - totals.uncounted
        yield f"{counts} calls have counts and no text, so nothing can be said about causes"
    if totals.uncounted:
        yield f"{totals.uncounted} calls have neither text nor counts, so nothing can be said about them"
    if totals.presumed_marks:
        some = "call was" if totals.presumed_marks == 1 else "calls were"
        yield f"{totals.presumed_marks} {some} logged without cache marks and cached all the same: they are presumed"
    yield from reading.remarks
    if totals.without_text:
        missing = {reader.name: reader.missing for reader in reading.readers if reader.missing}
        yield from (missing[name] for name in sorted(totals.textless) if name in missing)
    told = conversations
    if told.named > 1 and told.repeated_ids < told.named / 20:
        yield "nearly every call has an id of its own; conversations are told by their content"
    elif told.calls > 1 and told.named < told.calls / 2:
        yield "calls name no session; conversations are told by their content"
    if totals.all.calls and not reading.timed:
        yield "the log has no times; lifetimes and concurrent starts are not judged"
    if reading.unknown_models:
        names = ", ".join(sorted(named(name) or "(none)" for name in reading.unknown_models)[:5])
        yield f"no cache rules are known for {names}; name the provider or the rules"
    yield from _unpriced(totals)
    if totals.failed:
        yield f"{totals.failed} failed requests are left out"
    for kind, count in sorted(totals.aside.items()):
        yield f"{count} requests for {kind} are left out: they have no prompt cache"
    for problem, count in totals.usage_problems.most_common(5):
        yield f"counts of {count} calls were left out or mended: {problem}"
    if played is not None and played < totals.all.calls - totals.without_text:
        yield f"the what-if figures are for the first {played} calls (at most {SECTIONS:,} prompt sections)"


def _unpriced(totals: Totals) -> Iterator[str]:
    """The calls that the sum in dollars leaves out."""
    unpriced = totals.unpriced
    nameless = unpriced.pop("", 0)
    if nameless:
        yield f"{nameless} calls name no model, so they have no price in dollars; give it with --model"
    if unpriced and totals.all.priced:
        names = ", ".join(sorted(map(named, unpriced))[:5])
        yield f"{unpriced.total()} calls are not in the sum in dollars: no price is known for {names}"
