"""What a request costs after those that were sent before it: a provider's cache, reckoned in token counts alone.

A request is a head (tools and system text), so much of a conversation, a role's text, and the rest of the conversation:

    size | at | text | end - at         in tokens; at = end and text = 0 in the application's own layout

What an earlier request of the same head has in common with it is the head, or the conversation up to where the nearer
of both texts stands, or all of it where the same text stands at the same place. Of these a provider reads

    block       all of it, in whole blocks
    breakpoint  what a mark stood behind: the head, the conversation before a text, the end of one that goes on
    unit        whole requests, and what two of them had in common from the third on

and nothing of requests below its minimum. With r and w the prices of a read and a written token, and m tokens read:

    r*m + w*(written) + (what no mark stands behind)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from cacheprefix.profiles import Profile


@dataclass(frozen=True, slots=True)
class CachePrices:
    """What a provider charges for a token, one uncached token being 1, and what it keeps."""

    read: float
    write: float = 1.0
    least: int = 0
    """Tokens of the shortest request, or of the shortest part with a mark behind it, that is kept."""
    block: int = 1
    match: Literal["block", "breakpoint", "unit"] = "block"
    keeps_own: bool = True
    """Whether requests in the application's own layout are kept too: by themselves, or by the application's marks."""
    implicit: bool = False
    """Whether the provider marks the newest message itself."""
    short: int = 0
    """Tokens that it computes again of a request that it knows whole."""

    @classmethod
    def of(cls, profile: Profile, *, cached: bool) -> CachePrices:
        """Those of a profile; ``cached`` where the application's own layout is marked without us."""
        keeps_own = cached or profile.markers is None or profile.implicit_breakpoint
        match: Literal["block", "breakpoint", "unit"] = "block"
        if profile.match == "unit":
            match = "unit"
        elif profile.match == "breakpoint":
            match = "breakpoint"
        return cls(
            profile.read, profile.default_ttl.write, profile.min_tokens, max(1, profile.block_tokens), match,
            keeps_own, profile.implicit_breakpoint, int(profile.recomputes_last),
        )  # fmt: skip


class Asked(NamedTuple):
    """One request in one layout. Token counts."""

    head: str
    """Which tools and system text it begins with; the same name for the very same ones."""
    size: int
    """Of these."""
    talk: str
    end: int
    """Of the conversation so far."""
    at: int
    """Of it, before the role's text."""
    role: str = ""
    text: int = 0
    """Of the role's text where it stands."""
    kin: str = ""
    """Heads of the same name begin alike; empty for none."""
    alike: int = 0
    """With so many tokens."""
    own: bool = False
    """Whether it is in the application's own layout."""
    continues: bool = False
    """Whether its end is marked where only what is marked is kept."""

    @property
    def total(self) -> int:
        """All of its tokens."""
        return self.size + self.end + self.text


SURE = 0.03
"""Part of the provider's minimum by which a fork must pass it to be counted on, and the application's own request may
miss it: how far a count of tokens may be off."""
EDGE = 32
"""Tokens by which the end of what is read may be off, as messages and tools are wrapped by the provider."""


class CacheModel:
    """What a provider's cache has read of the requests so far. Not thread-safe; ``copy`` is cheap."""

    __slots__ = ("_heads", "_lines", "_seats", "_units", "prices")

    def __init__(self, prices: CachePrices) -> None:
        self.prices = prices
        # How often a head was sent, or one of a name of kin.
        self._heads: dict[str, int] = {}
        # How far conversations were sent behind a head, by head and talk.
        self._lines: dict[tuple[str, str], int] = {}
        # The end that a role's requests reached with its text at a place.
        self._seats: dict[tuple[str, str, str, int], int] = {}
        # The end of the longest unit in front of a text, by head and talk; by head alone, once that is one.
        self._units: dict[tuple[str, str | None], int] = {}

    def copy(self) -> CacheModel:
        """Another one that has seen the same."""
        made = CacheModel(self.prices)
        made._heads, made._lines = self._heads.copy(), self._lines.copy()
        made._seats, made._units = self._seats.copy(), self._units.copy()
        return made

    def meet(self, other: CacheModel) -> None:
        """Know of the heads that the other has seen sent, and of no conversation."""
        self._heads.update(other._heads)
        self._units.update({(head, talk): unit for (head, talk), unit in other._units.items() if talk is None})

    def cost(self, one: Asked) -> float:
        """What a request would cost now, in cost units."""
        return self._doubtful(one, self._reckoned(one)[0])

    def _doubtful(self, one: Asked, units: float) -> float:
        """What a request costs whose size is about the provider's minimum: written or not, as is worse for a fork."""
        prices, total = self.prices, one.total
        if abs(total - prices.least) > SURE * prices.least or (one.own and not prices.keeps_own):
            return units
        return min(units, total) if one.own else max(units, prices.write * total)

    def send(self, one: Asked) -> float:
        """What a request costs, which is remembered from now on."""
        units, common, unit = self._reckoned(one)
        units = self._doubtful(one, units)
        prices, at = self.prices, (one.head, one.talk)
        if one.own and not prices.keeps_own:
            return units
        least = self._least(one)
        if prices.match == "breakpoint" and one.size + one.at < least:
            # No mark stands behind what is too short; the provider's own one may stand at the end.
            if one.total >= least and (one.own or one.continues or prices.implicit):
                self._seat(one)
            return units
        self._lines[at] = max(self._lines.get(at, 0), one.at)
        for name in filter(None, (one.head, one.kin)):
            self._heads[name] = self._heads.get(name, 0) + 1
        if prices.match == "unit":
            if common > unit:
                # What two requests have in common is a unit from now on.
                self._units[at] = max(self._units.get(at, 0), common - one.size)
                self._units[one.head, None] = 0
            if one.own:
                self._units[at] = max(self._units.get(at, 0), one.end)
        if prices.match != "breakpoint" or one.continues:
            self._seat(one)
        return units

    def _least(self, one: Asked) -> float:
        return self.prices.least * (1.0 - SURE if one.own else 1.0 + SURE)

    def _seat(self, one: Asked) -> None:
        if one.own:
            self._lines[one.head, one.talk] = max(self._lines.get((one.head, one.talk), 0), one.end)
        else:
            self._seats[one.head, one.talk, one.role, one.at] = one.end

    def _reckoned(self, one: Asked) -> tuple[float, int, int]:
        """What it costs, what it has in common with earlier ones, and how much of that is read."""
        prices, total, least = self.prices, one.total, self._least(one)
        if total < least or (one.own and not prices.keeps_own):
            return float(total), 0, 0
        line = self._lines.get((one.head, one.talk))
        common = 0
        if line is not None:
            common = one.size + min(line, one.at)
        elif one.head in self._heads:
            common = one.size
        elif one.kin and one.kin in self._heads:
            common = one.alike
        seat = None if one.own else self._seats.get((one.head, one.talk, one.role, one.at))
        if seat is not None:
            common = max(common, one.size + one.text + min(seat, one.end))
        if prices.match == "unit":
            known = self._unit(one, seat)
        elif prices.match == "block":
            known = min(common, total - prices.short)
            # Near a block's edge a few tokens decide: for the own request, and against the fork.
            edge = min(EDGE, prices.block // 4)
            known += edge if one.own else -edge
            known = max(0, min(known - known % prices.block, total - prices.short))
        elif prices.implicit and one.own and line is None:
            known = 0  # nothing but ends of whole requests was marked
        else:
            known = common
        if known < least:
            known = 0
        rest, written = total - known, prices.write
        if prices.match != "breakpoint" or one.own or one.continues:
            return prices.read * known + written * rest, common, known
        if one.size + one.at < least:
            return (written if prices.implicit else 1.0) * total, common, 0
        return prices.read * known + written * max(0, rest - one.text) + min(rest, one.text), common, known

    def _unit(self, one: Asked, seat: int | None) -> int:
        """The longest unit that a request begins with."""
        if seat is not None:
            return one.size + one.text + min(seat, one.end)
        unit = self._units.get((one.head, one.talk))
        if unit is not None and unit <= one.at:
            return one.size + unit
        if (one.head, None) in self._units:
            return one.size
        return one.alike if one.kin and self._heads.get(one.kin, 0) > 1 else 0
