"""Ways to shorten one tool result: pure functions of the text and of a length in characters.

The length is in characters and not in tokens, as token counts depend on the counter that a process has, and a recorded
decision must give the same bytes everywhere.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cacheprefix.errors import SetupError

MIN_CHARS = 256
"""Texts up to this length are never cut: the note of what was cut would be as long."""
_ERROR_LINE = re.compile(r"error|exception|traceback|fatal|panic|failed|failure", re.IGNORECASE)
_HEAD_SHARE = 0.65
"""Part of the allowed length that the beginning of a text gets, where its end is kept too."""
_ERROR_SHARE = 4
"""Error lines get at most one part in so many of the allowed length."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The limits of one cut: at most ``max_chars`` characters, and the full text's reference (empty: not kept)."""

    max_chars: int
    ref: str = ""

    def note(self, omitted: int, offset: int) -> str:
        """The note in place of ``omitted`` characters that were cut out from ``offset`` on."""
        where = f"; read_full_result(ref={self.ref!r}, offset={offset}) returns them" if self.ref else ""
        return f"[{omitted} characters cut here{where}]"


Run = Callable[[str, Cut], str]


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to shorten, with what the ledger records of it: name, version and parameters."""

    name: str
    run: Run
    version: int = 1
    params: tuple[tuple[str, Any], ...] = ()

    def __call__(self, text: str, cut: Cut) -> str:
        """The shortened text, or ``text`` itself where it is short enough or would not get shorter."""
        if len(text) <= max(cut.max_chars, MIN_CHARS):
            return text
        shorter = self.run(text, cut)
        return shorter if len(shorter) < len(text) else text

    def rule(self) -> str:
        """The recorded form, as JSON text."""
        return json.dumps([self.name, self.version, dict(self.params)], sort_keys=True, separators=(",", ":"))


def _head_tail(text: str, cut: Cut) -> str:
    """Keep the beginning, the end, and error lines of what lies between."""
    room = cut.max_chars - len(cut.note(len(text), len(text))) - 2
    if room < 2:
        return cut.note(len(text), 0)
    head = _line_end(text, int(room * _HEAD_SHARE))
    tail = _line_start(text, len(text) - (room - head))
    middle = text[head:tail]
    kept = _error_lines(middle, room // _ERROR_SHARE)
    if kept:
        # Error lines are kept too: beginning and end are made shorter by their length.
        room -= len(kept) + 1
        head = _line_end(text, int(room * _HEAD_SHARE))
        tail = _line_start(text, len(text) - (room - head))
        kept = _error_lines(text[head:tail], len(kept) + 1)
    note = cut.note(tail - head - len(kept), head)
    return "\n".join(part for part in (text[:head].rstrip("\n"), note, kept, text[tail:]) if part)


def _head(text: str, cut: Cut) -> str:
    room = max(0, cut.max_chars - len(cut.note(len(text), len(text))) - 1)
    end = _line_end(text, room)
    return "\n".join(part for part in (text[:end].rstrip("\n"), cut.note(len(text) - end, end)) if part)


def _tail(text: str, cut: Cut) -> str:
    room = max(0, cut.max_chars - len(cut.note(len(text), 0)) - 1)
    start = _line_start(text, len(text) - room)
    return f"{cut.note(start, 0)}\n{text[start:]}"


def _json(text: str, cut: Cut) -> str:
    """Shorten lists, texts and objects inside JSON to the largest of 25 levels that fits (binary search)."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return _head_tail(text, cut)
    if not isinstance(value, (dict, list)):
        return _head_tail(text, cut)
    note = cut.note(max(0, len(text) - cut.max_chars), 0)
    low, high, best = 0, 24, ""
    while low <= high:
        level = (low + high) // 2
        shrunk = _shrink(value, items=1 + level * level, chars=24 + 2 ** (level // 2 + 4))
        written = _write(_noted(shrunk, note))
        if len(written) <= cut.max_chars:
            best, low = written, level + 1
        else:
            high = level - 1
    return best or _head_tail(text, cut)


def _shrink(value: Any, items: int, chars: int) -> Any:
    """The value with lists of at most ``items`` items, texts of ``chars`` characters, objects of thrice the items."""
    if isinstance(value, str):
        if len(value) <= chars + 24:
            return value
        end = between_characters(value, chars)
        return f"{value[:end]}... ({len(value) - end} more characters)"
    if isinstance(value, list):
        if len(value) <= items + 1:
            return [_shrink(item, items, chars) for item in value]
        front = items - items // 4
        kept = [_shrink(item, items, chars) for item in value[:front]]
        kept.append(f"... ({len(value) - items} more items)")
        return kept + [_shrink(item, items, chars) for item in value[len(value) - items // 4 :]]
    if isinstance(value, dict):
        # Fields of an object differ more than items of a list: three times as many are kept.
        names = list(value)
        kept_names = names if len(names) <= 3 * items + 1 else names[: 3 * items]
        out = {name: _shrink(value[name], items, chars) for name in kept_names}
        if len(kept_names) < len(names):
            more = ", ".join(names[len(kept_names) :])
            out["..."] = f"{len(names) - len(kept_names)} more fields: {more[: between_characters(more, chars)]}"
        return out
    return value


def _noted(value: Any, note: str) -> Any:
    """The value with the note of the cut added, as a field or as a last item."""
    return {**value, "_cut": note} if isinstance(value, dict) else [*value, note]


def _write(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


def _grep(text: str, cut: Cut, pattern: str, context: int) -> str:
    """Keep matching lines with ``context`` lines around each, from the top, as many as fit."""
    wanted = re.compile(pattern)
    lines = text.splitlines()
    keep: set[int] = set()
    room = cut.max_chars - len(cut.note(len(text), 0)) - 1
    used = 0
    for number, line in enumerate(lines):
        if not wanted.search(line):
            continue
        near = [n for n in range(max(0, number - context), min(len(lines), number + context + 1)) if n not in keep]
        cost = sum(len(lines[n]) + 8 for n in near)
        if used + cost > room:
            break
        keep.update(near)
        used += cost
    if not keep:
        return _head_tail(text, cut)
    out: list[str] = []
    previous = -1
    for number in sorted(keep):
        if number != previous + 1:
            out.append("...")
        out.append(lines[number])
        previous = number
    body = "\n".join(out)
    return f"{cut.note(len(text) - len(body), 0)}\n{body}"


def _none(text: str, cut: Cut) -> str:  # noqa: ARG001 - one signature for all strategies
    return text


def _line_end(text: str, at: int) -> int:
    """Where to cut at or before ``at``: a line's end where one is near (an eighth of ``at``), else ``at``."""
    found = text.rfind("\n", at - at // 8, at)
    return between_characters(text, max(0, at)) if found < 0 else found + 1


def _line_start(text: str, at: int) -> int:
    """Where to begin from ``at`` on: a line's start where one is near (an eighth of the rest), else ``at``."""
    room = len(text) - at
    found = text.find("\n", at, at + room // 8)
    return between_characters(text, at) if found < 0 else found + 1


def between_characters(text: str, at: int) -> int:
    """The nearest place at or before ``at`` that is between two characters as a reader sees them.

    Accents, joiners, skin tones, variation selectors and flags (pairs of regional letters) are not separated from what
    they belong to: the rules of Unicode's UAX 29 that tool results need, by the standard library's tables.
    """
    if not 0 < at < len(text):
        return at
    first = at
    while first > max(0, at - 64) and _joined(text, first):
        first -= 1
    return first if first > max(0, at - 64) or first == 0 else at


def _joined(text: str, at: int) -> bool:
    """Whether the characters before and from ``at`` on are parts of one visible character."""
    before, after = text[at - 1], text[at]
    if unicodedata.category(after) in ("Mn", "Mc", "Me") or after in "\u200d\ufe0f" or before == "\u200d":
        return True
    if "\U0001f3fb" <= after <= "\U0001f3ff" or (before == "\r" and after == "\n"):
        return True
    if not _regional(after):
        return False
    # Flags are pairs of letters: an odd number of them before the cut leaves half of one.
    start = at
    while start and _regional(text[start - 1]):
        start -= 1
    return bool((at - start) % 2)


def _regional(one: str) -> bool:
    """Whether a character is a regional letter, two of which make a flag."""
    return "\U0001f1e6" <= one <= "\U0001f1ff"


def _error_lines(text: str, room: int) -> str:
    """Lines that tell of an error, each of at most 300 characters, as many as fit into ``room`` characters."""
    kept: list[str] = []
    used = 0
    for line in text.splitlines():
        if _ERROR_LINE.search(line):
            shown = line[: between_characters(line, 300)]
            used += len(shown) + 1
            if used > room:
                break
            kept.append(shown)
    return "\n".join(kept)


head_tail = Strategy("head_tail", _head_tail)
"""Beginning and end, with the error lines of what lies between; the default."""
head = Strategy("head", _head)
"""The beginning only: listings and searches, ordered by relevance."""
tail = Strategy("tail", _tail)
"""The end only: logs and shell output, whose last lines say how it went."""
json_aware = Strategy("json", _json)
"""Valid JSON with long lists, texts and objects shortened; other text as ``head_tail``."""
none = Strategy("none", _none)
"""Never cut."""


def grep(pattern: str, context: int = 1) -> Strategy:
    """Only lines that match a regular expression, with ``context`` lines around each."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise SetupError(f"grep({pattern!r}): not a regular expression ({error})") from None
    return Strategy(
        "grep",
        lambda text, cut: _grep(text, cut, pattern, context),
        params=(("context", context), ("pattern", pattern)),
    )


BUILT_IN: Mapping[str, Strategy] = {strategy.name: strategy for strategy in (head_tail, head, tail, json_aware, none)}


def strategy_of(given: str | Strategy | Run) -> Strategy:
    """The ``Strategy`` for a name, a strategy, or any function ``(text, cut) -> text``.

    A function is recorded under its module and name; give it an attribute ``version`` and raise it
    when its output changes.
    """
    if isinstance(given, Strategy):
        return given
    if isinstance(given, str):
        if given not in BUILT_IN:
            raise SetupError(f"strategy {given!r} is unknown; use one of {', '.join(BUILT_IN)}, grep(...), a function")
        return BUILT_IN[given]
    if callable(given):
        name = f"{getattr(given, '__module__', '')}.{getattr(given, '__qualname__', type(given).__qualname__)}"
        return Strategy(name, given, int(getattr(given, "version", 1)))
    raise SetupError(f"a strategy is a name or a function (text, cut) -> text, found {type(given).__name__}")


def recorded(rule: str, known: Mapping[str, Strategy]) -> Strategy | None:
    """The strategy that a recorded rule names; None where ``known`` has no such function of that version."""
    name, version, params = json.loads(rule)
    if name == "grep":
        return grep(params["pattern"], params["context"])
    found = BUILT_IN.get(name) or known.get(name)
    return found if found is not None and found.version == version else None
