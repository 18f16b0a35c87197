"""Where a request's own breakpoints stand, and which positions each of them looks back on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cacheprefix.errors import BodyError
from cacheprefix.profiles import Profile, Ttl
from cacheprefix.prompt import Prompt, Section, loads


class Marks(NamedTuple):
    """The breakpoints of one request, by section index."""

    written: Mapping[int, Ttl]
    """Those the provider writes, with their lifetimes, in order."""
    dropped: tuple[int, ...] = ()
    """Those over the limit: matched against, not written."""
    short: tuple[int, ...] = ()
    """Those before which there are too few tokens."""
    refused: bool = False
    """Whether the provider refuses the request for having too many."""
    all: tuple[int, ...] = ()
    """Every breakpoint that stands in the request."""
    reading: tuple[int, ...] = ()
    """Those from which earlier entries are looked for, in order."""


_RUNS = frozenset({"tool_use", "tool_result"})
_NONE = Marks({})
"""Most requests have none: their providers take no marks."""


def request_ttl(prompt: Prompt, profile: Profile) -> Ttl:
    """The lifetime of what is written without one of its own."""
    asked = cache_options(prompt).get("ttl") if profile.markers is not None else None
    if asked is None:
        asked = _setting(prompt, "prompt_cache_retention")
    return profile.ttl(asked if isinstance(asked, str) else None)


def cache_options(prompt: Prompt) -> Mapping[str, Any]:
    """OpenAI's ``prompt_cache_options`` of the request; empty when there are none."""
    found = _setting(prompt, "prompt_cache_options")
    return found if found is not None and isinstance(found, Mapping) else {}


def implicit(prompt: Prompt, profile: Profile) -> bool:
    """Whether the provider marks the newest message itself."""
    return profile.implicit_breakpoint and cache_options(prompt).get("mode") != "explicit"


def marks(
    prompt: Prompt, profile: Profile, totals: Sequence[int], planned: Mapping[int, str | None] | None = None
) -> Marks:
    """The breakpoints of a request: explicit ones, the automatic one, the implicit one.

    ``planned`` are lifetimes by section index, as the provider spells them (None for its default), of marks that are
    taken to stand there beside the request's own.
    """
    by_itself = profile.automatic_breakpoint and prompt.top_marker is not None
    own = prompt.marked
    if not own and not planned and not by_itself and not implicit(prompt, profile):
        return _NONE
    default = request_ttl(prompt, profile)
    named = {index: marker.ttl for index in own if (marker := prompt.sections[index].marker) is not None}
    standing = {
        index: default if ttl is None else profile.ttl(ttl) for index, ttl in {**named, **(planned or {})}.items()
    }
    if by_itself and prompt.top_marker is not None:
        last = next((i for i in range(len(prompt.sections) - 1, -1, -1) if markable(prompt.sections[i])), None)
        if last is not None:
            ttl = prompt.top_marker.ttl
            standing.setdefault(last, default if ttl is None else profile.ttl(ttl))
    if implicit(prompt, profile) and prompt.sections:
        standing.setdefault(len(prompt.sections) - 1, default)
    every = tuple(sorted(standing))
    short = tuple([index for index in every if totals[index] < profile.min_tokens])
    reading = tuple([index for index in every if totals[index] >= profile.min_tokens]) if short else every
    # A provider's rule: with more marks than it takes it refuses the request (Anthropic), or does not write at the
    # first ones (OpenAI).
    over = max(0, len(standing) - profile.max_breakpoints)
    if over and profile.read_candidates is None:
        return Marks({}, reading, short, refused=True, all=every, reading=reading)
    dropped = tuple([index for index in every[:over] if index not in short]) if over else ()
    written = {index: standing[index] for index in reading if index not in dropped}
    return Marks(written, dropped, short, all=every, reading=reading)


def markable(section: Section) -> bool:
    """Whether a breakpoint may stand on a section; providers refuse thinking and empty text."""
    if section.kind == "thinking" or (section.kind == "block" and section.data in (b"{}", b"null")):
        return False
    return bool(section.data) or section.kind != "text"


def reach(sections: Sequence[Section], mark: int, profile: Profile) -> int:
    """The first section that a breakpoint at ``mark`` still looks at; 0 without a limit.

    Anthropic: the breakpoint itself is the first of 20 positions, and a run of tool_use blocks, or of
    tool_result blocks, is one position (prompt caching page, read 2026-11-21).
    """
    return back(sections, mark, profile.lookback, collapse=profile.collapse_runs)


def back(sections: Sequence[Section], start: int, positions: int | None, *, collapse: bool) -> int:
    """The first section of a window of ``positions`` that ends at ``start``."""
    if positions is None:
        return 0
    index = max(0, start - positions + 1)
    if not collapse or _RUNS.isdisjoint([one.kind for one in sections[index : start + 1]]):
        return index
    left, index = positions - 1, start
    while index > 0:
        kind = sections[index - 1].kind
        if not (kind in _RUNS and kind == sections[index].kind):
            if not left:
                break
            left -= 1
        index -= 1
    return index


def message_ends(sections: Sequence[Section]) -> list[int]:
    """Indexes of sections that end a message."""
    count = len(sections)
    return [index for index in range(count) if index + 1 == count or sections[index + 1].head != "+"]


def _setting(prompt: Prompt, name: str) -> Any:
    written = prompt.settings.get(name)
    if written is None:
        return None
    try:
        return loads(written, name)
    except BodyError:
        return None
