"""A server that keeps lines instead of a tree, interpreted from a profile's ``slots``.

The rule is llama.cpp's (tools/server of build 11434, read 2026-11-21). A line is a prompt's sections with a running
digest for each, so two lines are compared by halving; what a slot generated only makes its line longer.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from hashlib import blake2b

from cacheprefix.profiles import Profile, Slots
from cacheprefix.prompt import MESSAGE_TOKENS, CountTokens, Prompt, Section, shared_whole_tokens
from cacheprefix.server.breakpoints import running_totals
from cacheprefix.server.outcome import CacheOutcome


class Line:
    """A prompt as a slot holds it, and how many tokens of an answer stand behind it."""

    def __init__(self, sections: Sequence[Section] = ()) -> None:
        self.sections = tuple(sections)
        self.totals = running_totals(self.sections) if self.sections else []
        self.answer = 0
        self.running: list[bytes] = []
        state = b""
        for one in self.sections:
            state = blake2b(state + one.digest, digest_size=16).digest()
            self.running.append(state)

    @property
    def tokens(self) -> int:
        """Its whole length."""
        return (self.totals[-1] if self.totals else 0) + self.answer

    def inside(self, other: Line) -> bool:
        """Whether all of it is known to stand at the start of ``other``."""
        size = len(self.running)
        return self is other or (not self.answer and size > 0 and other.running[size - 1 : size] == self.running[-1:])


class Slot:
    """One place at which a request is served."""

    def __init__(self) -> None:
        self.line = Line()
        self.released = -1
        self.taken = -1
        self.requests = 0


class Stay:
    """One request's time in its slot."""

    def __init__(self, engine: SlotEngine, slot: Slot, line: Line, before: Line) -> None:
        self._engine, self._slot, self._line, self._before = engine, slot, line, before
        self._open = True

    def end(self, output_tokens: int) -> None:
        """The answer is out; the last token of it was never computed on."""
        if self._leave():
            self._line.answer = max(0, output_tokens - 1)
            self._slot.released = self._engine.tick()

    def fail(self) -> None:
        """Nothing was computed."""
        if self._leave() and self._slot.line is self._line:
            self._slot.line = self._before

    def _leave(self) -> bool:
        was, self._open = self._open, False
        self._slot.requests -= was
        return was


class SlotEngine:
    """The slots of one server. Not thread-safe by itself."""

    def __init__(self, profile: Profile, rules: Slots, count: CountTokens, opening: int) -> None:
        self._profile, self._rules, self._count, self._opening = profile, rules, count, opening
        self._closing = MESSAGE_TOKENS - opening if opening else 0
        self._slots = tuple(Slot() for _ in range(rules.count))
        self._store: list[Line] = []
        self._ticks = 0

    def tick(self) -> int:
        """The next moment."""
        self._ticks += 1
        return self._ticks

    def begin(self, prompt: Prompt) -> tuple[CacheOutcome, Stay]:
        """A request takes a slot: what it reads there."""
        new, settings = Line(prompt.sections), prompt.settings
        slot = self._slot(new, settings.get("id_slot", ""), prompt.model)
        before, total = slot.line, new.tokens
        read, whole = self._common(slot.line, new, prompt.model)
        if self._profile.recomputes_last and read == total:
            read, whole = read - 1, whole - 1
        if settings.get("cache_prompt") == "false":
            read = whole = 0
        slot.line, slot.taken = new, self.tick()
        slot.requests += 1
        self._idle(slot)
        return CacheOutcome(total, read, {}, whole), Stay(self, slot, new, before)

    def _slot(self, new: Line, asked: str, model: str) -> Slot:
        """The slot that llama.cpp takes: the one asked for, else the likest idle one, else the one longest idle."""
        idle = [slot for slot in self._slots if not slot.requests]
        slots = idle or [min(self._slots, key=lambda slot: slot.taken)]
        number = json.loads(asked) if asked.isdigit() else None
        if number is not None:
            slots = [self._slots[number % len(self._slots)]]
        alike = [(self._common(slot.line, new, model)[0], slot) for slot in slots]
        tokens, found = max(alike, key=lambda pair: pair[0])
        if tokens <= self._rules.similarity * new.tokens or not tokens:
            tokens, found = 0, min(reversed(slots), key=lambda slot: slot.released)
        if tokens < 0.5 * found.line.tokens or (number is None and not tokens):
            self._swap(found, new, model)
        return found

    def _swap(self, slot: Slot, new: Line, model: str) -> None:
        """Store what the slot holds, and load the stored line that serves the request better, if there is one."""
        if self._rules.stored_tokens == 0:
            return
        self._save(slot.line)
        shared = self._common(slot.line, new, model)[0]
        kept, best = shared / slot.line.tokens if slot.line.tokens else -1.0, shared
        chosen = None
        for line in self._store:
            shared = self._common(line, new, model)[0]
            share = shared / line.tokens
            if share >= 0.25 and share > kept and shared > best:
                chosen, kept, best = line, share, shared
        if chosen is not None:
            self._store.remove(chosen)
            slot.line = chosen

    def _save(self, line: Line) -> None:
        """Store a line beside the slots, unless a stored one holds it; the oldest go where it is too much."""
        limit = self._rules.stored_tokens
        if not line.sections or (limit is not None and line.tokens > limit):
            return
        if any(line.inside(stored) for stored in self._store):
            return
        self._store = [stored for stored in self._store if not stored.inside(line)]
        self._store.append(line)
        while limit is not None and sum(stored.tokens for stored in self._store) > limit:
            self._store.pop(0)

    def _idle(self, busy: Slot) -> None:
        if self._rules.stored_tokens == 0:
            return
        for slot in self._slots:
            if slot is not busy and not slot.requests:
                self._save(slot.line)
                if self._rules.unified:
                    slot.line = Line()

    def _common(self, line: Line, new: Line, model: str) -> tuple[int, int]:
        """Tokens and whole sections at the start of both."""
        size = min(len(line.running), len(new.running))
        whole = bisect_left(range(size), 1, key=lambda at: line.running[at] != new.running[at])
        tokens = new.totals[whole - 1] if whole else 0
        heads = [row[whole].head if whole < len(row) else "" for row in (line.sections, new.sections)]
        if whole and "+" in heads:
            # One of them goes on with a message whose closing marker was counted at its beginning.
            tokens -= self._closing
        if whole < size:
            part = shared_whole_tokens(line.sections[whole], new.sections[whole], self._count, model)
            if "+" not in heads:
                part = min(new.sections[whole].tokens, part + max(0, self._opening - (heads[0] != heads[1])))
            tokens += part
        return tokens, whole


class SlotEngines:
    """The servers behind one cache: one a model and scope."""

    def __init__(self, profile: Profile, count: CountTokens, opening: int) -> None:
        self._profile, self._count, self._opening = profile, count, opening
        self._known: dict[tuple[str, str], SlotEngine] = {}

    def of(self, model: str, scope: str) -> SlotEngine:
        """The server that serves a model to somebody."""
        found = self._known.get((model, scope))
        if found is None:
            rules = self._profile.slots or Slots()
            found = self._known[model, scope] = SlotEngine(self._profile, rules, self._count, self._opening)
        return found
