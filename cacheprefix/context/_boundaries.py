"""What of a prompt the next request can find in the cache, said before it is sent."""

from __future__ import annotations

from dataclasses import dataclass

from cacheprefix.prompt import Prompt


@dataclass(frozen=True, slots=True)
class Boundary:
    """A place at which a stable part of a prompt ends."""

    index: int
    """Index of the last section of the part."""
    path: str
    kind: str
    """``tools``, ``system``, ``marker`` (a breakpoint in the body) or ``stable`` (the last stable section)."""
    tokens: int
    """Tokens of the prompt up to and including the section."""


@dataclass(frozen=True, slots=True)
class Boundaries:
    """The predicted cacheable prefix of a prompt. ``prefix_tokens`` and ``suffix_tokens`` add up to its tokens."""

    boundaries: tuple[Boundary, ...]
    sections: int
    """Sections of the cacheable prefix; 0 when it is below the provider's minimum."""
    prefix_tokens: int
    suffix_tokens: int


def boundaries_of(prompt: Prompt, *, volatile: int = 0, minimum: int = 0) -> Boundaries:
    """Boundaries of any prompt, counted before breakpoints are set.

    The last ``volatile`` sections change with every call and are no part of the prefix. ``minimum``
    is the provider's smallest cacheable prefix in tokens.
    """
    stable = max(0, len(prompt.sections) - volatile)
    found: list[Boundary] = []
    tokens = 0
    for index, section in enumerate(prompt.sections[:stable]):
        tokens += section.tokens
        last = index + 1 == stable
        ends_tier = last or prompt.sections[index + 1].tier != section.tier
        if section.marker is not None:
            kind = "marker"
        elif ends_tier and section.tier != "messages":
            kind = section.tier
        elif last:
            kind = "stable"
        else:
            continue
        found.append(Boundary(index, section.path, kind, tokens))
    cacheable = bool(found) and tokens >= minimum
    return Boundaries(
        tuple(found),
        stable if cacheable else 0,
        tokens if cacheable else 0,
        prompt.tokens - (tokens if cacheable else 0),
    )
