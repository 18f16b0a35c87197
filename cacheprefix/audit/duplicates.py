"""The same call logged twice counts once: a retry's echo, two instrumentations of one client, a file read twice."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cacheprefix.audit.log_records import Broken
from cacheprefix.bounded import Bounded

if TYPE_CHECKING:
    from cacheprefix.audit.order import Ready

HELD_CALLS = 500
"""Calls that wait for a second log of the same call, which may hold what the first one lacks."""

HELD_BYTES = 64_000_000
"""Log bytes that wait at most: requests may hold images."""

_SECONDS = 60.0
"""How far apart two logs of one call may begin: a gateway's clock and a client's."""
_TOUCH = 2.0
"""The same for logs that do not name the answer, of which one has counts only."""
_KNOWN = 100_000


class Duplicates:
    """Lets every call pass once.

    Two logs are of one call when they name the same answer and count the same tokens,
    or have the same body at the same time, or when one has counts only and lies within the other's time. A request
    that was sent again has a time and an answer of its own, so it stays.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._held: deque[int] = deque()
        self._calls: dict[int, Ready] = {}
        self._where: Bounded[tuple[Any, ...], tuple[int, float]] = Bounded(_KNOWN)
        self._next = self._size = 0

    def once(self, items: Iterable[Ready | Broken]) -> Iterator[Ready | Broken]:
        """The calls in their order, without those that were there before."""
        for item in items:
            if isinstance(item, Broken):
                yield item
                continue
            known = self._known(item)
            if known is not None:
                self.dropped += 1
                first = self._calls.get(known)
                if first is not None:
                    self._calls[known] = _fuller(first, item)
                continue
            self._calls[self._next] = item
            self._held.append(self._next)
            self._next += 1
            self._size += item.size
            while len(self._held) > HELD_CALLS or (self._size > HELD_BYTES and len(self._held) > 1):
                ready = self._calls.pop(self._held.popleft())
                self._size -= ready.size
                yield ready
        self._where.clear()
        while self._held:
            yield self._calls.pop(self._held.popleft())

    def _known(self, item: Ready) -> int | None:
        """The number of the call that this is another log of, None for a new one; notes how it is found again."""
        record, at = item.record, item.record.ts
        counts = _counts(item)
        keys: list[tuple[Any, ...]] = []
        # Two logs that name the same answer, with the same counts; without counts, with the same body.
        if record.response_id and (counts != (None, None) or item.prompt is not None):
            what = counts if counts != (None, None) else _body(item)
            keys.append(("answer", record.response_id, what))
        refused = record.failed and item.prompt is None
        if refused or (item.prompt is None) != (record.usage is None):
            # Batch files part a request and its answer, OpenTelemetry its text and its counts, under one name.
            for name in filter(None, (record.response_id, record.span)):
                met = self._where.get(("half", name, item.prompt is not None))
                self._where["half", name, item.prompt is None] = (self._next, item.at)
                if met is not None and met[0] in self._calls:
                    self.dropped -= 1
                    return met[0]
        # The same body at the same time.
        if at is not None and item.prompt is not None:
            keys.append(("body", _body(item), round(at, 3), record.response_ended_ts, record.response_id, counts))
        found = None
        for key in keys:
            met = self._where.get(key)
            near = met is not None and (at is None or abs(at - met[1]) < _SECONDS)
            if met is not None and near and (key[0] != "answer" or self._fits(met[0], item)):
                found = met[0]
        if found is None and at is not None and None not in counts:
            found = self._inside(item, counts)
        number = self._next if found is None else found
        # Found by ``_inside`` alone: the same counts are no proof.
        if at is not None and None not in counts:
            keys.append(("counts", counts, record.model))
        for key in keys:
            self._where[key] = (number, item.at)
        return found

    def _fits(self, number: int, item: Ready) -> bool:
        """Whether two logs of one answer can be of one request: simulated providers name every answer alike."""
        first = self._calls.get(number)
        if first is None or first.prompt is None or item.prompt is None or first.prompt.api != item.prompt.api:
            return True
        return len(first.prompt.sections) == len(item.prompt.sections)

    def _inside(self, item: Ready, counts: tuple[int | None, int | None]) -> int | None:
        """The call with the same counts within whose time this one lies, where one of the two has no text."""
        met = self._where.get(("counts", counts, item.record.model))
        first = self._calls.get(met[0]) if met is not None else None
        if met is None or first is None or (first.prompt is None) == (item.prompt is None):
            return None
        if first.reader == item.reader and first.record.session != item.record.session:
            return None
        return met[0] if abs(item.at - first.at) < _TOUCH else None


def _counts(item: Ready) -> tuple[int | None, int | None]:
    return (None, None) if item.usage is None else (item.usage.input_tokens, item.usage.output_tokens)


def _body(item: Ready) -> int:
    prompt = item.prompt
    return 0 if prompt is None else hash((prompt.model, *prompt.digests, *sorted(prompt.settings.items())))


def _fuller(first: Ready, second: Ready) -> Ready:
    """What two logs of one call say together, at the place of the first."""
    text = first if first.prompt is not None and (first.record.wire or not second.record.wire) else second
    text = text if text.prompt is not None else first
    other = second if text is first else first
    if other.record.model and not text.record.model and text.prompt is not None:
        # A tracer's log of messages leaves it to the span to say whose model it was.
        prompt = replace(text.prompt, model=other.record.model)
        named = replace(text.record, model=other.record.model, provider=text.record.provider or other.record.provider)
        text = text._replace(record=named, prompt=prompt, profile=other.profile)
    record = replace(
        text.record,
        usage=text.record.usage if text.record.usage is not None else other.record.usage,
        session=text.record.session or other.record.session,
        agent=text.record.agent or other.record.agent,
        response_ended_ts=text.record.response_ended_ts or other.record.response_ended_ts,
        # The refusal of a request whose text stands in another line.
        failed=text.record.failed or (other.record.failed and other.prompt is None),
    )
    usage = text.usage if text.usage is not None else other.usage
    return first._replace(record=record, prompt=text.prompt, profile=text.profile, place=text.place, usage=usage)
