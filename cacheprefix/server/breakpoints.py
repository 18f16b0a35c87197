"""Where a request's own breakpoints stand, and which earlier positions each of them may read from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from cacheprefix.profiles import Profile, Ttl
from cacheprefix.prompt import Prompt, Section, loads
from cacheprefix.server.outcome import RefusedError

_RUNS = frozenset({"tool_use", "tool_result"})


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """A position at which this request may read and write an entry."""

    section: int
    ttl: Ttl
    writes: bool = True
    """False for marks over the limit that the provider still matches against."""


def options(prompt: Prompt) -> Mapping[str, Any]:
    """The request's cache options (mode, lifetime), as OpenAI's wire form carries them."""
    found: Any = loads(prompt.settings.get("prompt_cache_options", "{}"))
    return found if isinstance(found, Mapping) else {}


def lifetime(prompt: Prompt, profile: Profile) -> Ttl:
    """The lifetime of entries that name none themselves."""
    if "prompt_cache_retention" not in prompt.settings and "prompt_cache_options" not in prompt.settings:
        return profile.ttl(None)
    retention = loads(prompt.settings.get("prompt_cache_retention", "null"))
    asked = options(prompt).get("ttl")
    if asked is not None and profile.markers is not None:
        return _named(profile, asked, "prompt_cache_options.ttl")
    return profile.ttl(retention if isinstance(retention, str) else None)


def breakpoints(prompt: Prompt, profile: Profile) -> tuple[Breakpoint, ...]:
    """The breakpoints of a request, in order. Raises ``RefusedError`` where the provider answers 400.

    Sources: Anthropic's prompt caching page (block-level and automatic breakpoints, "edge cases", "mixing
    different TTLs") and the openai SDK's description of ``prompt_cache_options``.
    """
    default = lifetime(prompt, profile)
    marked = {
        index: default if marker.ttl is None else _named(profile, marker.ttl, prompt.sections[index].path)
        for index in prompt.marked
        if (marker := prompt.sections[index].marker) is not None
    }
    for index in marked:
        if not _markable(prompt.sections[index]):
            raise RefusedError(
                f"{prompt.sections[index].path}: cache_control cannot be set on thinking or empty text blocks"
            )
    own = 0
    if profile.automatic_breakpoint and prompt.top_marker is not None:
        own = _add_automatic(prompt, profile, default, marked)
    last = len(prompt.sections) - 1
    if profile.implicit_breakpoint and options(prompt).get("mode") != "explicit" and last >= 0:
        own += last not in marked
        marked.setdefault(last, default)
    ordered = sorted(marked.items())
    if profile.read_candidates is not None:
        written = _latest(ordered, profile.max_breakpoints)
        return tuple(Breakpoint(index, ttl, index in written) for index, ttl in ordered)
    if len(ordered) > profile.max_breakpoints:
        taken = " (one of them automatic)" if own else ""
        raise RefusedError(
            f"A maximum of {profile.max_breakpoints} blocks with cache_control may be provided. "
            f"Found {len(ordered)}{taken}."
        )
    _refuse_rising(ordered, prompt)
    return tuple(Breakpoint(index, ttl) for index, ttl in ordered)


def window(sections: Sequence[Section], start: int, profile: Profile) -> Iterator[int]:
    """Sections from ``start`` backwards that the provider checks for an earlier write.

    Anthropic's prompt caching page: "at most 20 positions per breakpoint, counting the breakpoint itself
    as the first"; a run of tool_use blocks counts as one position, and so does a run of tool_result blocks.
    """
    positions = 1
    yield start
    for index in range(start - 1, -1, -1):
        here, after = sections[index], sections[index + 1]
        joined = profile.collapse_runs and here.kind in _RUNS and here.kind == after.kind
        positions += not joined
        if profile.lookback is not None and positions > profile.lookback:
            return
        yield index


def billed(marks: Sequence[Breakpoint], totals: Sequence[int], read: int) -> dict[str, int]:
    """Written tokens by lifetime: from what was read to the last mark of each lifetime, the longest first.

    Anthropic's "mixing different TTLs": A is the highest hit, B the highest 1-hour mark after it, C the last
    mark; B - A is written for an hour and C - B for five minutes.
    """
    written: dict[str, int] = {}
    done = read
    for mark in sorted(marks, key=lambda mark: -(mark.ttl.seconds or 0)):
        until = totals[mark.section]
        if until > done:
            written[mark.ttl.name] = written.get(mark.ttl.name, 0) + until - done
            done = until
    return written


def running_totals(sections: Sequence[Section]) -> list[int]:
    """Tokens up to and including each section."""
    return list(accumulate(section.tokens for section in sections))


def _named(profile: Profile, name: Any, path: str) -> Ttl:
    if name not in (ttl.name for ttl in profile.ttls):
        known = ", ".join(repr(ttl.name) for ttl in profile.ttls)
        raise RefusedError(f"{path}: unsupported cache lifetime {name!r}; expected one of {known}")
    return profile.ttl(name)


def _markable(section: Section) -> bool:
    return section.kind != "thinking" and bool(section.data or section.kind != "text")


def _add_automatic(prompt: Prompt, profile: Profile, default: Ttl, marked: dict[int, Ttl]) -> int:
    """Add the mark that Anthropic moves to the last block; how many of the request's marks it takes, 0 or 1."""
    asked = prompt.top_marker.ttl if prompt.top_marker is not None else None
    ttl = default if asked is None else _named(profile, asked, "cache_control.ttl")
    for index in range(len(prompt.sections) - 1, -1, -1):
        if not _markable(prompt.sections[index]):
            continue
        if index in marked and marked[index].name != ttl.name:
            raise RefusedError(
                f"{prompt.sections[index].path}: the last block has a cache_control with another ttl than "
                "the top-level cache_control"
            )
        added = index not in marked
        marked[index] = ttl
        return int(added)
    return 0


def _latest(ordered: Sequence[tuple[int, Ttl]], limit: int) -> frozenset[int]:
    return frozenset(index for index, _ in ordered[-limit:]) if limit else frozenset()


def _refuse_rising(ordered: Sequence[tuple[int, Ttl]], prompt: Prompt) -> None:
    for (_, before), (index, ttl) in pairwise(ordered):
        if (ttl.seconds or 0) > (before.seconds or 0):
            raise RefusedError(
                f"{prompt.sections[index].path}: a ttl={ttl.name!r} cache_control block must not come after "
                f"a ttl={before.name!r} one; blocks are processed in the order tools, system, messages"
            )


def message_ends(sections: Sequence[Section]) -> list[int]:
    """Indexes of the sections that end a message."""
    last = len(sections) - 1
    return [index for index in range(len(sections)) if index == last or sections[index + 1].head != "+"]
