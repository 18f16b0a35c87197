"""Engines that keep lines: a slot holds what it served last, and a request reads what it has in common with that.

As llama.cpp's server does it (build 11434, tools/server: server-context.cpp and server-task.cpp, read 2026-11-21).
What a slot generated stands in its line too; its text is not known here, so it counts for the line's length only.
"""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from cacheprefix.bounded import Bounded
from cacheprefix.profiles import Profile, Usage
from cacheprefix.profiles import Slots as Rules
from cacheprefix.prompt import CountTokens, Envelope, Prompt, Section, shared_whole_tokens

_WORTH_SAVING = 0.5
"""A slot's line is stored when less than this share of it would stay."""
_WORTH_LOADING = 0.25
"""A stored line moves into a slot only when at least this share of it is used."""
_KEEP_STORED = 256
_KEEP_SERVERS = 1024


@dataclass(slots=True, eq=False)
class SlotLine:
    """The prompt that a slot holds or that is stored, and its length with what was generated behind it."""

    sections: tuple[Section, ...] = ()
    tokens: int = 0

    def holds(self, texts: Container[bytes]) -> bool:
        """Whether one of these sections' data stands in it."""
        return any(one.data in texts for one in self.sections)


@dataclass(slots=True, eq=False)
class Slot:
    """One slot; ``used`` orders releases, ``started`` orders the requests that it serves."""

    line: SlotLine = field(default_factory=SlotLine)
    used: int = -1
    started: int = -1
    serving: int = 0


@dataclass(slots=True, eq=False)
class Taken:
    """What a request reads, and the slot that it took; ``slot`` is None where it was only looked at."""

    read: int
    whole: int
    """Whole sections read."""
    busy: int
    """Most that a slot which serves another request just now has in common with it. Tokens."""
    server: Server
    slot: Slot | None = None
    line: SlotLine | None = None
    before: SlotLine | None = None
    released: bool = False


class Server:
    """The slots of one server, and the prompts stored beside them. Not thread-safe by itself."""

    def __init__(self, rules: Rules, count: CountTokens, envelope: Envelope) -> None:
        self._rules = rules
        self._count = count
        self._envelope = envelope
        self._slots = [Slot() for _ in range(rules.count)]
        self._stored: list[SlotLine] = []
        self.clock = 0

    def forget(self, texts: Container[bytes]) -> None:
        """Know of no line any more in which one of these sections' data stands."""
        self._stored = [line for line in self._stored if not line.holds(texts)]
        for slot in self._slots:
            if slot.line.holds(texts) and not slot.serving:
                slot.line = SlotLine()

    def look(self, prompt: Prompt, profile: Profile) -> Taken:
        """What a request would read now; changes nothing."""
        totals = prompt.totals
        slot, line, _ = self._choose(prompt, totals)
        return self._read(prompt, profile, totals, slot, line)

    def take(self, prompt: Prompt, profile: Profile) -> Taken:
        """A request goes out and takes a slot."""
        totals = prompt.totals
        slot, line, stored = self._choose(prompt, totals)
        taken = self._read(prompt, profile, totals, slot, line)
        # A stored line that moves into a slot is stored no more.
        self._stored = stored if line is slot.line else [one for one in stored if one is not line]
        self.clock += 1
        taken.slot, taken.before = slot, line
        slot.line = taken.line = SlotLine(prompt.sections, totals[-1] if totals else 0)
        slot.serving += 1
        slot.started = self.clock
        for other in self._slots:
            if other is not slot and not other.serving:
                self._stored = self._storing(other.line)
                if self._rules.unified:
                    other.line = SlotLine()
        return taken

    def common(self, line: SlotLine, sections: Sequence[Section], totals: Sequence[int], model: str) -> tuple[int, int]:
        """Whole sections and tokens that a line begins with as ``sections`` do."""
        pairs = zip(sections, line.sections, strict=False)
        whole = next((at for at, (a, b) in enumerate(pairs) if a is not b and a.digest != b.digest), None)
        if whole is None:
            whole = min(len(sections), len(line.sections))
        tokens = totals[whole - 1] if whole else 0
        own, held = (row[whole] if whole < len(row) else None for row in (sections, line.sections))
        within = [one is not None and one.head == "+" for one in (own, held)]
        if any(within) and self._envelope.opening and whole:
            # What closes a message counts with its first section, and stands behind its last.
            tokens -= self._envelope.closing
        if own is not None and held is not None:
            tokens += shared_whole_tokens(held, own, self._count, model)
        if line.sections and not any(within):
            # The markers in front of a message are read whatever follows them.
            tokens += self._envelope.shared(own.head if own else None, held.head if held else None)
        return whole, tokens

    def _read(self, prompt: Prompt, profile: Profile, totals: Sequence[int], slot: Slot, line: SlotLine) -> Taken:
        """What a request reads of the line in its slot, and the most that a slot which is serving holds of it."""
        whole, tokens = self.common(line, prompt.sections, totals, prompt.model)
        others = [
            self.common(other.line, prompt.sections, totals, prompt.model)[1]
            for other in self._slots
            if other.serving and other is not slot
        ]
        if profile.recomputes_last and totals and tokens >= totals[-1] + self._envelope.answer:
            whole, tokens = whole - 1, totals[-1] + self._envelope.answer - 1
        if prompt.settings.get("cache_prompt") == "false":
            whole = tokens = 0
        return Taken(tokens, whole, max(others, default=0), self)

    def _choose(self, prompt: Prompt, totals: Sequence[int]) -> tuple[Slot, SlotLine, list[SlotLine]]:
        """The slot, the line that it will hold when the request is read, and what is stored by then."""
        free = [slot for slot in self._slots if not slot.serving]
        # When all are busy the request waits for the first that is free: most likely the one busy for longest.
        slots = free or [min(self._slots, key=lambda one: one.started)]
        total = max(1, totals[-1] if totals else 0)
        asked = _slot_asked(prompt)
        if asked is not None:
            slots = [self._slots[asked % len(self._slots)]]
        best, chosen = 0, slots[0] if asked is not None else None
        for slot in slots:
            shared = self.common(slot.line, prompt.sections, totals, prompt.model)[1]
            if shared > best and shared / total > self._rules.similarity:
                best, chosen = shared, slot
        if chosen is not None:
            changed = best < _WORTH_SAVING * chosen.line.tokens
        else:
            # Of those that are equally old the last one is taken.
            chosen, changed = min(reversed(slots), key=lambda one: one.used), True
        if not changed or self._rules.stored_tokens == 0:
            return chosen, chosen.line, self._stored
        stored = self._storing(chosen.line)
        return chosen, self._better(chosen.line, stored, prompt, totals), stored

    def _better(self, line: SlotLine, kept: Sequence[SlotLine], prompt: Prompt, totals: Sequence[int]) -> SlotLine:
        """The stored line that keeps more of itself and serves more of the request; else the slot's own."""
        total = max(1, totals[-1] if totals else 0)
        shared = self.common(line, prompt.sections, totals, prompt.model)[1]
        keep, serves = shared / line.tokens if line.tokens else -1.0, shared / total
        for stored in kept:
            shared = self.common(stored, prompt.sections, totals, prompt.model)[1]
            stays = shared / max(1, stored.tokens)
            if stays >= _WORTH_LOADING and stays > keep and shared / total > serves:
                line, keep, serves = stored, stays, shared / total
        return line

    def _storing(self, line: SlotLine) -> list[SlotLine]:
        """What is stored once a line was, unless one there holds all of it; those that it holds all of go."""
        limit = self._rules.stored_tokens
        if not line.sections or limit == 0 or (limit is not None and line.tokens > limit):
            return self._stored
        if any(_holds(stored, line) for stored in self._stored):
            return self._stored
        kept = [*(stored for stored in self._stored if not _holds(line, stored)), line][-_KEEP_STORED:]
        while limit is not None and sum(stored.tokens for stored in kept) > limit:
            del kept[0]
        return kept


class Servers:
    """The servers that requests went to: one a profile, model and scope."""

    def __init__(self, count: CountTokens, envelope: Envelope) -> None:
        self._count = count
        self._envelope = envelope
        self._known: Bounded[tuple[str, str, str], Server] = Bounded(_KEEP_SERVERS)

    def look(self, prompt: Prompt, profile: Profile, scope: str) -> Taken | None:
        """What a request would read from its slot now; None where the provider keeps no slots."""
        return None if profile.slots is None else self._of(prompt, profile, profile.slots, scope).look(prompt, profile)

    def take(self, prompt: Prompt, profile: Profile, scope: str) -> Taken | None:
        """A request goes out; None where the provider keeps no slots."""
        return None if profile.slots is None else self._of(prompt, profile, profile.slots, scope).take(prompt, profile)

    def forget(self, texts: Container[bytes]) -> None:
        """Know of no slot any more in which one of these sections' data stands."""
        for server in self._known.values():
            server.forget(texts)

    @staticmethod
    def release(taken: Taken | None, usage: Usage | None) -> None:
        """The answer is complete: the slot waits, with all but the last token that it generated in its line."""
        if taken is None or taken.slot is None or taken.line is None or taken.released:
            return
        taken.released = True
        taken.slot.serving -= 1
        taken.server.clock += 1
        taken.slot.used = taken.server.clock
        taken.line.tokens += max(0, ((usage.output_tokens if usage else None) or 0) - 1)

    @staticmethod
    def give_back(taken: Taken | None) -> None:
        """It failed before anything was computed: the slot holds what it held."""
        if taken is None or taken.slot is None or taken.before is None:
            return
        if not taken.released:
            taken.slot.serving -= 1
        taken.released = True
        if taken.slot.line is taken.line:
            taken.slot.line = taken.before

    def _of(self, prompt: Prompt, profile: Profile, rules: Rules, scope: str) -> Server:
        key = (profile.name, prompt.model, scope)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Server(rules, self._count, self._envelope)
        return found


def _holds(longer: SlotLine, shorter: SlotLine) -> bool:
    """Whether all of ``shorter``, its answer too, stands at the start of ``longer``."""
    if longer is shorter:
        return True
    size = len(shorter.sections)
    if longer.sections[:size] != shorter.sections:
        return False
    # Two answers to one prompt differ, as far as is known here; a prompt that goes on holds no foreign answer.
    return shorter.tokens <= sum(section.tokens for section in shorter.sections)


def _slot_asked(prompt: Prompt) -> int | None:
    try:
        asked = json.loads(prompt.settings.get("id_slot", "-1"))
    except ValueError:
        return None
    return asked if isinstance(asked, int) and asked >= 0 else None
