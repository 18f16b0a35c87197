"""Requests played one after the other through a cache with known rules, for what each would cost: no verdicts."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from cacheprefix.cache.expectation import Expected, Request, outlook
from cacheprefix.cache.model import enter, open_entries
from cacheprefix.cache.slots import Servers, Taken
from cacheprefix.cache.tree import Addresses, CacheEntry, Node, PromptTrees, equal_digests, keys_of
from cacheprefix.profiles import Profile
from cacheprefix.profiles.prices import units_of
from cacheprefix.prompt import ABOUT, CountTokens, Prompt


class PlayedRequest(NamedTuple):
    """One request under way, and what it reads and writes."""

    total: int
    """Its input tokens."""
    seen: Expected
    profile: Profile
    fresh: Sequence[CacheEntry]
    used: Sequence[CacheEntry]
    taken: Taken | None

    @property
    def units(self) -> float:
        """What it costs, in cost units."""
        return units_of(self.total, self.seen.read, self.seen.billed, self.profile)

    def first_token(self, at: float) -> None:
        """Its answer began."""
        if self.profile.readable == "first_token":
            open_entries(self.fresh, at)

    def ended(self, at: float) -> None:
        """Its answer ended."""
        open_entries(self.fresh, at)
        Servers.release(self.taken, None)
        if self.profile.ttl_from == "end":
            for entry in self.used:
                entry.refresh(at)


class PlayedCache:
    """What the caches of all models hold while requests are played. Unbounded; not thread-safe.

    ``count(text, model)`` must be the counter that the prompts were decoded with.
    """

    def __init__(self, count: CountTokens) -> None:
        self._count = count
        self._trees = PromptTrees(max_bytes=0)
        self._servers = Servers(count, ABOUT)
        self._addresses = Addresses()
        self._latest: dict[tuple[bytes, Hashable], tuple[Sequence[bytes], list[Node]]] = {}

    def begin(
        self,
        prompt: Prompt,
        profile: Profile,
        now: float,
        *,
        scope: str = "",
        line: Hashable = "",
        planned: Mapping[int, str | None] | None = None,
    ) -> PlayedRequest:
        """A request goes out.

        Args:
            prompt: what it asks.
            profile: the rules of its provider.
            now: seconds; they never go back.
            scope: who may share a cache.
            line: whose it is: it is likely to go on from the last one of the same line, which only makes this faster.
            planned: marks beside the prompt's own; see ``marks``.
        """
        lane, salts = self._addresses.of(prompt, profile, scope)
        keys = keys_of(prompt, salts)
        before, nodes = self._latest.get((lane, line), ((), []))
        root, path = self._trees.look(lane, keys, nodes[: equal_digests(before, keys)])
        taken = self._servers.take(prompt, profile, scope)
        request = Request(
            prompt, profile, prompt.totals, root, path, now, self._count, (), taken, ABOUT, planned
        )
        seen = outlook(request, why=False)
        self._trees.grow(lane, keys, prompt.sections, path)
        self._latest[lane, line] = keys, path
        fresh, used = enter(seen, profile, path, prompt.sections, now)
        return PlayedRequest(prompt.tokens + ABOUT.answer, seen, profile, fresh, used, taken)

    def clear(self) -> None:
        """Nothing is asked any more: the memory goes."""
        self._trees.clear()
        self._latest.clear()
