"""A fork as a value: the parent's sections, then a tail. And the check that it can read the parent's cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from cacheprefix.layout.policy import ForkPolicy
from cacheprefix.prompt import TIERS, Prompt, Section, SettingScope, placed, shared_sections

TailPlacement = Literal["tail", "cards"]
"""Where role texts stand: appended for one call, or all in the shared system text with the tail naming the speaker."""

Level = Literal["safe", "warns", "unsafe"]


@dataclass(frozen=True, slots=True)
class Fork:
    """A request that extends a prefix: exactly the prefix's sections, then the tail."""

    role: str
    prefix: Prompt
    tail: tuple[Section, ...] = ()
    policy: ForkPolicy = field(default_factory=ForkPolicy)

    @property
    def sections(self) -> tuple[Section, ...]:
        """All sections in cache order."""
        return self.prefix.sections + self.tail


@dataclass(frozen=True, slots=True)
class Compatibility:
    """Whether a request can read another's cache entry."""

    level: Level
    reasons: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """True unless unsafe."""
        return self.level != "unsafe"


def compatibility(
    parent: Prompt, fork: Prompt, placement: Mapping[str, SettingScope], *, min_tokens: int = 0
) -> Compatibility:
    """Compare a fork's request with its parent's before it is sent.

    Unsafe: nothing or only part of the parent's prompt can be read (model, lane settings, tools, system or
    messages differ). Warns: the bytes match but a tier is salted differently, the output limit differs
    where it may shrink a thinking budget, or the shared part is below the provider's minimum.
    """
    unsafe: list[str] = []
    warns: list[str] = []
    if parent.api != fork.api:
        unsafe.append(f"another API ({parent.api} and {fork.api})")
    if parent.model != fork.model:
        unsafe.append(f"another model ({parent.model!r} and {fork.model!r})")
    unsafe += [f"setting {name} separates them" for name in _changed(parent, fork, placement, "lane")]
    shared = shared_sections(parent.sections, fork.sections)
    if shared < len(parent.sections):
        path = fork.sections[shared].path if shared < len(fork.sections) else parent.sections[shared].path
        unsafe.append(f"the prompts part at {path}")
    for tier in TIERS:
        names = _changed(parent, fork, placement, tier)
        where = f"invalidates the {tier} tier and those after it"
        (unsafe if tier == "tools" else warns).extend(f"setting {name} {where}" for name in names)
    tokens = sum(section.tokens for section in fork.sections[:shared])
    if tokens < min_tokens:
        warns.append(f"{tokens} shared tokens are below the provider's minimum of {min_tokens}")
    if unsafe:
        return Compatibility("unsafe", tuple(unsafe + warns))
    return Compatibility("warns", tuple(warns)) if warns else Compatibility("safe")


def _changed(a: Prompt, b: Prompt, placement: Mapping[str, SettingScope], where: SettingScope) -> list[str]:
    left, right = placed(a, placement, where), placed(b, placement, where)
    return sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))
