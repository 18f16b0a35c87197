"""Where to set cache breakpoints, so that what is shared is read and nothing is written in vain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from cacheprefix.cache.breakpoints.read import back, implicit, markable
from cacheprefix.prompt import Prompt, Section
from cacheprefix.wire.apis import SHAPES

if TYPE_CHECKING:
    from cacheprefix.profiles import Profile, Ttl

ANCHOR_EVERY = 15
"""Positions between anchors: Anthropic looks back 20, and a turn may add some before the next mark."""


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """A cache breakpoint to set: behind section number ``section`` of the prompt."""

    section: int
    """-1 sets no mark at all, for what ``alone`` does."""
    ttl: str | None = None
    """Lifetime as the provider spells it; None for its default."""

    alone: bool = False
    """OpenAI from 5.6 on: switch the implicit breakpoint of the newest message off, because what it would
    write (1.25 times the price) is a tail that no later request begins with."""


def plan_breakpoints(
    prompt: Prompt,
    profile: Profile,
    *,
    boundary: int | None = None,
    skip_tail: bool = False,
    continues: bool = False,
    trailing: bool = False,
    lifetime: Ttl | None = None,
) -> tuple[Breakpoint, ...]:
    """Breakpoints to add to a request, in order; empty where none would pay.

    ``boundary`` is how many leading sections siblings share; ``skip_tail`` says that nothing will continue the
    request behind them. ``continues`` says that a request that begins like this one is expected, also where no
    loop is under way yet; ``trailing`` that a text for this request alone will be put behind it. ``lifetime``
    is that of what the marks write, the provider's default if None.

    The order of importance, as far as the provider's limit less the user's own and its automatic breakpoint
    allows: the end of the shared part; the last message of a loop; anchors of at most 15 positions from there
    back to the shared part; the end of the system prompt; the end of the tools. Never on thinking or empty
    text, never below the minimum. The longest lifetime comes first, whatever the user's own marks say.
    Where a provider marks the newest message itself, a one-shot call gets a breakpoint that only switches this off.
    """
    if profile.markers not in ("anthropic", "bedrock", "openai") or not prompt.sections:
        return ()
    totals = prompt.totals
    if totals[-1] < profile.min_tokens:
        return ()
    own = set(prompt.marked)
    shared = len(prompt.sections) if boundary is None else max(0, min(boundary, len(prompt.sections)))
    loop = not skip_tail and (continues or _goes_on(prompt.sections, shared, boundary))
    silent = _silences(prompt, profile, own, shared, loop=loop, trailing=trailing)
    if implicit(prompt, profile) and not silent:
        own.add(len(prompt.sections) - 1)
    if profile.automatic_breakpoint and prompt.top_marker is not None:
        # A provider's rule: its automatic breakpoint stands at the last section that can carry one.
        own |= set(islice((at for at in reversed(range(len(prompt.sections))) if markable(prompt.sections[at])), 1))
    wanted: list[int] = []
    for index in _wishes(prompt, profile, shared, tail=loop, once=skip_tail):
        if len(wanted) >= profile.max_breakpoints - len(own):
            break
        at = _settle(prompt, index, totals, profile)
        if at is not None and at not in own and at not in wanted:
            wanted.append(at)
    chosen = sorted(wanted)
    if silent and not chosen and not own:
        # With a shared part too short to be cached, nothing is read that a mark would have to be there for.
        short = not shared or totals[shared - 1] < profile.min_tokens
        return (Breakpoint(-1, alone=True),) if trailing or (short and skip_tail) else ()
    return _with_lifetimes(prompt, profile, chosen, lifetime or profile.default_ttl, alone=silent)


def _goes_on(sections: Sequence[Section], shared: int, boundary: int | None) -> bool:
    """Whether a loop is under way behind the shared part, so that its last message will be read again."""
    if boundary is None:
        return True
    return any(
        section.kind in ("tool_use", "tool_result") or "assistant" in section.head or "tool" in section.head
        for section in sections[shared:]
    )


def _silences(prompt: Prompt, profile: Profile, own: set[int], shared: int, *, loop: bool, trailing: bool) -> bool:
    """Whether to switch the implicit breakpoint off: only what it alone would write is ever saved."""
    if trailing:
        return implicit(prompt, profile) and "prompt_cache_options" not in prompt.settings
    return (
        implicit(prompt, profile)
        and not loop
        and shared < len(prompt.sections)
        and "prompt_cache_options" not in prompt.settings
        and not any(index >= shared for index in own)
    )


def _wishes(prompt: Prompt, profile: Profile, shared: int, *, tail: bool, once: bool) -> Iterator[int]:
    """Sections to mark, the most important first."""
    sections = prompt.sections
    last = len(sections) - 1
    head = sections[: prompt.head]
    system = _end_of(head, "system")
    if shared:
        yield shared - 1
    if tail:
        yield last
    if profile.lookback is not None:
        # Behind the tail the provider looks back a limited way: an anchor keeps the older entries in reach.
        floor = shared - 1 if shared <= last and tail else system
        anchor = last if tail else shared - 1
        while anchor > floor:
            step = back(sections, anchor, ANCHOR_EVERY + 1, collapse=profile.collapse_runs)
            if step <= floor or step == anchor:
                break
            anchor = step
            yield anchor
    # Of a role that is asked once, what no sibling begins with would be written in vain.
    end = shared if once and shared else len(sections)
    yield from (index for index in (system, _end_of(head, "tools")) if 0 <= index < end)


def _end_of(sections: Sequence[Section], tier: str) -> int:
    for index in range(len(sections) - 1, -1, -1):
        if sections[index].tier == tier:
            return index
    return -1


def _settle(prompt: Prompt, index: int, totals: Sequence[int], profile: Profile) -> int | None:
    """The last section up to ``index`` that can carry a breakpoint; None when none of enough tokens can."""
    for at in range(index, -1, -1):
        if totals[at] < profile.min_tokens:
            return None
        if carries(prompt, at):
            return at
    return None


def carries(prompt: Prompt, index: int) -> bool:
    """Whether a breakpoint can stand on a section on the wire, by the rules of its API."""
    section = prompt.sections[index]
    return markable(section) and SHAPES[prompt.api].carries(prompt, section)


def _with_lifetimes(
    prompt: Prompt, profile: Profile, chosen: Sequence[int], lifetime: Ttl, *, alone: bool
) -> tuple[Breakpoint, ...]:
    """The chosen breakpoints, each with a lifetime as near to the wanted one as the application's own marks allow.

    A provider's rule: lifetimes never rise from one breakpoint to the next.
    """
    seconds = {ttl.name: ttl.seconds or 0.0 for ttl in profile.ttls}
    default = profile.default_ttl
    own = {
        index: seconds.get(marker.ttl or default.name, 0.0)
        for index in prompt.marked
        if (marker := prompt.sections[index].marker) is not None
    }
    if profile.automatic_breakpoint and prompt.top_marker is not None:
        own[len(prompt.sections)] = seconds.get(prompt.top_marker.ttl or default.name, 0.0)
    planned: list[Breakpoint] = []
    wanted = seconds.get(lifetime.name, 0.0)
    for index in chosen:
        ceiling = min((value for at, value in own.items() if at < index), default=float("inf"))
        floor = max((value for at, value in own.items() if at > index), default=0.0)
        allowed = max(min(wanted, ceiling), floor)
        name = next((ttl for ttl in seconds if seconds[ttl] == allowed), default.name)
        planned.append(Breakpoint(index, None if name == default.name else name, alone))
    return tuple(planned)
