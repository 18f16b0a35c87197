"""The rows of an audit: kept outside memory, a log may hold millions of calls, and shown on the pages."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

from cacheprefix.audit.counts_only import Judged
from cacheprefix.audit.order import Ready
from cacheprefix.cache import Verdict
from cacheprefix.errors import named, plain
from cacheprefix.profiles import Usage
from cacheprefix.prompt import Prompt, common_prefix, dumps, loads, shared_characters
from cacheprefix.prompt.compare import shared_ending

_IN_MEMORY = 16_000_000


class CallRow(NamedTuple):
    """One judged call: ``public`` is its entry in the JSON output, ``view`` what only the pages show."""

    public: dict[str, Any]
    view: dict[str, Any]


class Rows:
    """Rows written once and read in order of their index. Beyond 16 MB they are in a temporary file."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - lives as long as the audit
        self._starts = array("q")
        self._end = 0

    def __len__(self) -> int:
        """Rows written."""
        return sum(start >= 0 for start in self._starts)

    def add(self, row: CallRow) -> None:
        """Write a row; its index is that of the call."""
        index = row.public["index"]
        while len(self._starts) <= index:
            self._starts.append(-1)
        line = dumps([row.public, row.view], "row")
        self._starts[index] = self._end
        self._file.write(len(line).to_bytes(8, "big") + line)
        self._end += 8 + len(line)

    def __iter__(self) -> Iterator[CallRow]:
        for start in self._starts:
            if start >= 0:
                yield self._read(start)

    def __getitem__(self, index: int) -> CallRow:
        """The row of one call."""
        return self._read(self._starts[index])

    def close(self) -> None:
        """Give the temporary file back."""
        self._file.close()

    def _read(self, start: int) -> CallRow:
        self._file.seek(start)
        length = int.from_bytes(self._file.read(8), "big")
        public, view = loads(self._file.read(length))
        self._file.seek(self._end)
        return CallRow(public, view)


_CONTEXT = 320
"""Characters shown on either side of a difference, where text is wanted at all."""


def public(
    ready: Ready, verdict: Verdict, ancestor: int | None, cached: int, source: str, *, text: bool
) -> dict[str, Any]:
    """The call's entry under ``calls``; the excerpt only where prompt text is wanted."""
    excerpt = None
    if text and (verdict.before or verdict.after):
        excerpt = {"before": plain(verdict.before or "", "\n\t"), "after": plain(verdict.after or "", "\n\t")}
    judged = Judged(verdict.kind, verdict.cause, verdict.expected_tokens, ancestor)
    told = {"path": verdict.path, "lost_tokens": verdict.lost_tokens, "lost_usd": verdict.lost_usd, "excerpt": excerpt}
    return {**public_counts(ready, judged, cached, source), **told}


def public_counts(ready: Ready, judged: Judged, cached: int, source: str = "reported") -> dict[str, Any]:
    """The entry of a call whose log has no text."""
    return {
        "index": ready.number,
        "session": ready.record.session,
        "agent": ready.record.agent,
        "provider": ready.record.provider or ready.profile.provider,
        "model": named(ready.record.model),
        "verdict": judged.kind,
        "cause": judged.cause,
        "path": None,
        "ancestor_index": judged.ancestor,
        "expected_cached_tokens": judged.expected,
        "cached_tokens": cached,
        "cached_source": source,
        "lost_tokens": 0,
        "lost_usd": None,
        "excerpt": None,
    }


def view(
    ready: Ready, prompt: Prompt, verdict: Verdict, usage: Usage, shared: int, *, broke: bool, rule: bool
) -> dict[str, Any]:
    """What the pages show beside the entry. Tokens are the provider's where it reported them.

    ``tiers`` are counted tokens of tools, system and messages; ``shared`` is what the call has in common with
    its ancestor; ``break_at`` is where in the prompt the cache broke. All three by our own counter. ``rule`` is what a
    rule that looks at the previous request alone would have said: whether the cache broke.
    """
    return {
        "at": ready.at,
        "place": ready.place,
        "input": usage.input_tokens or prompt.tokens,
        "read": usage.cache_read_tokens or 0,
        "written": usage.cache_write_tokens or 0,
        "counted": prompt.tokens,
        "tiers": _tiers(prompt),
        "sections": len(prompt.sections),
        "shared": shared,
        "broke": broke,
        "break_at": break_at(prompt, verdict, usage) if broke else None,
        "offset": verdict.offset if verdict.before or verdict.after else None,
        "size": verdict.size,
        "fix": verdict.fix,
        "reason": verdict.provider_reason,
        "rule": rule,
    }


def _tiers(prompt: Prompt) -> list[int]:
    """Tokens of tools, system and messages."""
    head = prompt.head
    front = prompt.totals[head - 1] if head else 0
    tools = sum([one.tokens for one in prompt.sections[:head] if one.tier == "tools"])
    return [tools, front - tools, prompt.tokens - front]


def view_counts(ready: Ready, usage: Usage) -> dict[str, Any]:
    """The same for a call without text."""
    total = usage.input_tokens or 0
    return {
        "at": ready.at,
        "place": ready.place,
        "input": total,
        "read": usage.cache_read_tokens or 0,
        "written": usage.cache_write_tokens or 0,
        "counted": total,
        "tiers": [0, 0, total],
        "sections": 0,
        "shared": 0,
        "broke": False,
        "break_at": None,
        "offset": None,
        "size": None,
        "fix": "",
        "reason": None,
        "rule": False,
    }


def break_at(prompt: Prompt, verdict: Verdict, usage: Usage) -> int:
    """Tokens before the place the verdict names; where it names none, those before reading stopped."""
    before = 0
    best: tuple[int, int] | None = None
    for one in prompt.sections if verdict.path else ():
        if (verdict.path or "").startswith(one.path) and (best is None or len(one.path) > best[0]):
            best = (len(one.path), before)
        before += one.tokens
    if best is not None:
        return best[1]
    if verdict.path or not usage.input_tokens:
        return 0  # A setting: nothing behind it could be read.
    return prompt.tokens * min(usage.cache_read_tokens or 0, usage.input_tokens) // usage.input_tokens


def wide_diff(before: Prompt, after: Prompt) -> dict[str, str] | None:
    """Both sides of the first difference, with more around it than the excerpt; None where one continues the other."""
    found = common_prefix(before, after)
    if found.path is None and found.sections == min(len(before.sections), len(after.sections)):
        return None
    a, b = before.sections[found.sections], after.sections[found.sections]
    left, right = _readable(a.kind, a.text), _readable(b.kind, b.text)
    at = shared_characters(left, right)
    # What is equal again at the end is no difference.
    alike = shared_ending(left, right, at)
    return {
        "path": b.path,
        "lead": _last(left[:at]),
        "before": _first(left[at : len(left) - alike]),
        "after": _first(right[at : len(right) - alike]),
        "tail": _first(right[len(right) - alike :]),
    }


def _first(text: str) -> str:
    text = plain(text, "\n\t")
    return text if len(text) <= _CONTEXT else text[:_CONTEXT] + " …"


def _last(text: str) -> str:
    text = plain(text, "\n\t")
    return text if len(text) <= _CONTEXT else "… " + text[-_CONTEXT:]


def _readable(kind: str, text: str) -> str:
    if kind == "text":
        return text
    try:
        value = loads(text)
    except ValueError:
        return text
    return _indented(value)


def _indented(value: Any, depth: int = 0) -> str:
    pad = "  " * depth
    if isinstance(value, dict):
        rows = [f"{pad}  {name}: {_indented(inner, depth + 1).lstrip()}" for name, inner in value.items()]
        return "{\n" + "\n".join(rows) + f"\n{pad}}}"
    if isinstance(value, list):
        rows = [_indented(inner, depth + 1) for inner in value]
        return "[\n" + "\n".join(f"{pad}  {row.lstrip()}" for row in rows) + f"\n{pad}]"
    return f"{pad}{value!r}" if not isinstance(value, str) else f"{pad}{value}"
