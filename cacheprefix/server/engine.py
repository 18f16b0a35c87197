"""The provider's side of a prompt cache, interpreted from the fields of a profile.

Nothing here knows a provider's name. Nothing here is shared with the client's expectation but the
profile and the values of ``cacheprefix.prompt``: the two are tested against each other.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cacheprefix.profiles import Profile, Ttl
from cacheprefix.prompt import (
    MESSAGE_TOKENS,
    CountTokens,
    Prompt,
    Section,
    estimate_tokens,
    lane_key,
    section,
    shared_characters,
    shared_tokens,
)
from cacheprefix.server.breakpoints import (
    Breakpoint,
    billed,
    breakpoints,
    lifetime,
    message_ends,
    window,
)
from cacheprefix.server.outcome import CacheOutcome
from cacheprefix.server.slots import SlotEngines, Stay
from cacheprefix.server.tree import Forest, Life, Node, keys_of

_NEVER = float("inf")


class Serving:
    """One request under way: what its cache outcome is, and which entries wait for its answer."""

    def __init__(
        self,
        cache: ProviderCache,
        outcome: CacheOutcome,
        fresh: Sequence[Life] = (),
        used: Sequence[Life] = (),
        made: Sequence[Node] = (),
        stay: Stay | None = None,
    ) -> None:
        self.outcome = outcome
        self._cache = cache
        self._fresh = fresh
        self._used = used
        self._made = made
        self._stay = stay

    def begun(self, at: float) -> None:
        """The first token went out at ``at``."""
        if self._cache.profile.readable == "first_token":
            self._open(at)

    def ended(self, at: float, output_tokens: int = 0) -> None:
        """The answer ended at ``at``; what was generated stays with the prompt where the profile keeps lines."""
        self._open(at)
        if self._stay is not None:
            with self._cache.lock:
                self._stay.end(output_tokens)
        if self._cache.profile.ttl_from == "end":
            for life in self._used:
                life.extend(at)

    def failed(self) -> None:
        """The request failed: entries that nobody can read yet go away."""
        with self._cache.lock:
            if self._stay is not None:
                self._stay.fail()
            for life in self._fresh:
                life.writers -= 1
                if life.writers <= 0 and life.readable_at == _NEVER:
                    life.end()
            self._cache.forget(self._made)

    def _open(self, at: float) -> None:
        with self._cache.lock:
            for life in self._fresh:
                life.readable_at = min(life.readable_at, at)


@dataclass(slots=True)
class _Request:
    """What the rules need to know of one request. ``path`` grows where entries are written."""

    prompt: Prompt
    now: float
    root: Node
    keys: Sequence[bytes]
    path: list[Node]
    ttl: Ttl
    fresh: list[Life]
    """Entries that become readable with the answer."""

    made: list[Node]
    """Nodes that were not there before."""

    @property
    def sections(self) -> Sequence[Section]:
        """The prompt's sections."""
        return self.prompt.sections

    def parent(self, index: int) -> Node:
        """The known node before section ``index``."""
        return self.path[index - 1] if index else self.root

    def group(self, index: int) -> bytes:
        """The siblings that section ``index`` can share a beginning with: same salts, kind and envelope."""
        one = self.sections[index]
        salts = self.keys[index][: -len(one.digest)]
        return salts + f"{one.kind}\0{one.head}".encode("utf-8", "surrogatepass")


class ProviderCache:
    """A prompt cache that follows ``profile``. Thread-safe.

    ``capacity_tokens`` bounds what is kept; the least recently used leaves go first. With ``crowding`` a key
    used more often than the profile's ``rate_per_key`` is spread over further machines with caches of their
    own. Lifetimes that a provider does not state never end here. ``opening`` is how many tokens a message has
    before its text, which engines read too.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        count: CountTokens = estimate_tokens,
        capacity_tokens: int | None = None,
        crowding: bool = False,
        opening: int = 0,
    ) -> None:
        self.profile = profile
        self.lock = threading.Lock()
        self._count = count
        self._opening = opening
        self._forest = Forest(capacity_tokens)
        self._crowding = crowding
        self._arrivals: dict[bytes, deque[float]] = {}
        self._slots = SlotEngines(profile, count, opening)

    def __len__(self) -> int:
        """Sections held."""
        return len(self._forest)

    def serve(
        self,
        prompt: Prompt,
        now: float,
        *,
        scope: str = "",
        first_token_at: float | None = None,
        ended_at: float | None = None,
    ) -> CacheOutcome:
        """A whole request at once: begun at ``first_token_at``, ended at ``ended_at`` (default: ``now``)."""
        serving = self.begin(prompt, now, scope=scope)
        begun = now if first_token_at is None else first_token_at
        serving.begun(begun)
        serving.ended(begun if ended_at is None else ended_at)
        return serving.outcome

    def begin(self, prompt: Prompt, now: float, *, scope: str = "") -> Serving:
        """Read what can be read and prepare what will be written. Raises ``RefusedError`` for an HTTP 400.

        ``scope`` is who may share: the API key or workspace. ``now`` is in seconds and never goes back.
        """
        with self.lock:
            if self.profile.control in ("none", "named") or not prompt.sections:
                return Serving(self, CacheOutcome(prompt.tokens))
            if self.profile.slots is not None:
                outcome, stay = self._slots.of(prompt.model, scope).begin(prompt)
                return Serving(self, outcome, stay=stay)
            request = self._request(prompt, now, scope)
            self._forest.tidy(now)
            request.path = self._forest.walk(request.root, request.keys)
            if self.profile.match == "breakpoint":
                outcome, ends = self._at_breakpoints(request)
            elif self.profile.match == "block":
                outcome, ends = self._in_blocks(request)
            else:
                outcome, ends = self._in_units(request)
            used = self._write(request, ends, outcome.read_sections)
            self._forest.touch(request.path)
            return Serving(self, outcome, request.fresh, used, request.made)

    def clear(self) -> None:
        """Forget every entry, and give the memory back at once."""
        with self.lock:
            self._forest.clear()

    def forget(self, nodes: Sequence[Node]) -> None:
        """Drop those of ``nodes``, given from the root on, that hold nothing any more."""
        for node in reversed(nodes):
            self._forest.prune(node)

    def _request(self, prompt: Prompt, now: float, scope: str) -> _Request:
        placement = {name: self.profile.placement(name) for name in prompt.settings}
        shard = prompt.settings.get(self.profile.routing_key, "") if self.profile.routing_key else ""
        lane = lane_key(prompt, placement, provider=self.profile.name, scope=f"{scope}\0{shard}")
        if self._crowding and self.profile.rate_per_key:
            lane += self._machine(lane, now, self.profile.rate_per_key)
        keys = keys_of(prompt, placement)
        return _Request(prompt, now, self._forest.root(lane), keys, [], lifetime(prompt, self.profile), [], [])

    def _machine(self, lane: bytes, now: float, rate: int) -> bytes:
        """The machine that serves a lane's next request: another one for every ``rate`` requests of a minute."""
        arrivals = self._arrivals.setdefault(lane, deque())
        while arrivals and arrivals[0] <= now - 60:
            arrivals.popleft()
        machine = len(arrivals) // rate
        arrivals.append(now)
        return machine.to_bytes(4, "big")

    def _at_breakpoints(self, request: _Request) -> tuple[CacheOutcome, dict[int, Ttl]]:
        """What is read and billed where marks say what is kept, and the lifetimes of the entries by their last section.

        Nothing of a mark before which fewer tokens stand than the provider's minimum.
        """
        profile, sections, totals = self.profile, request.sections, request.prompt.totals
        asked = breakpoints(request.prompt, profile)
        marks = [mark for mark in asked if totals[mark.section] >= profile.min_tokens]
        if not marks:
            return CacheOutcome(totals[-1]), {}
        read = self._deepest(request, marks)
        read_tokens = totals[read] if read >= 0 else 0
        writing = [mark for mark in marks if mark.writes]
        outcome = CacheOutcome(totals[-1], read_tokens, billed(writing, totals, read_tokens), read + 1)
        _use(request.path[: read + 1], request.now)
        ends = {mark.section: mark.ttl for mark in writing}
        if profile.implicit_reads == "prefix":
            last = max(mark.section for mark in marks)
            for index in message_ends(sections[: last + 1]):
                if totals[index] >= profile.min_tokens:
                    ends.setdefault(index, request.ttl)
        return outcome, ends

    def _deepest(self, request: _Request, marks: Sequence[Breakpoint]) -> int:
        """The last section of the longest entry that a mark of this request reads; -1 for none."""
        found = -1
        path, now = request.path, request.now
        if self.profile.lookback is None:
            # The provider's rule (OpenAI from 5.6 on): the latest few marks, of this request and of earlier ones.
            own = {mark.section for mark in marks}
            known = {index for index, node in enumerate(path[: max(own) + 1]) if node.life is not None}
            candidates = sorted(own | known, reverse=True)[: self.profile.read_candidates]
            return next((i for i in candidates if i < len(path) and path[i].readable(now)), -1)
        # The provider's rule (Anthropic): so many positions from each mark back.
        for mark in marks:
            for index in window(request.sections, mark.section, self.profile):
                if index <= found:
                    break
                if index < len(path) and path[index].readable(now):
                    found = index
                    break
        return found

    def _in_blocks(self, request: _Request) -> tuple[CacheOutcome, dict[int, Ttl]]:
        """``_at_breakpoints`` where whole blocks of what two requests have in common are read, without any marks."""
        profile, sections = self.profile, request.sections
        total = request.prompt.tokens
        if total < profile.min_tokens:
            return CacheOutcome(total), {}
        whole = 0
        for node in request.path:
            if not node.readable(request.now):
                break
            whole += 1
        totals = request.prompt.totals
        shared = totals[whole - 1] if whole else 0
        if whole < len(sections):
            shared += self._part(request, whole) + self._around(request, whole)
        if profile.recomputes_last:
            shared = min(shared, total - 1)
        read = shared // profile.block_tokens * profile.block_tokens
        read = read if read >= max(profile.min_tokens, 1) else 0
        if read:
            _use(request.path[:whole], request.now)
        written = {}
        if total > read and ("write" in profile.usage_fields or request.ttl.write != 1):
            written[request.ttl.name] = total - read
        complete = bisect_right(totals, read, hi=whole)
        ends = dict.fromkeys(range(whole if read else 0, len(sections)), request.ttl)
        return CacheOutcome(total, read, written, complete), ends

    def _part(self, request: _Request, index: int) -> int:
        """Tokens of section ``index`` that are equal to the beginning of one that stood at its place."""
        own, now = request.sections[index], request.now
        near = request.parent(index).alike(request.group(index), own.data, lambda node: node.readable(now))
        return max((self._shared(node, own, request) for node in near), default=0)

    def _around(self, request: _Request, index: int) -> int:
        """Opening markers that section ``index`` shares with its siblings, or minus a closing one counted early."""
        if not self._opening:
            return 0
        others = {node.section.head for node in request.parent(index).children.values() if node.section}
        head = request.sections[index].head
        if head == "+" or (others and others <= {"+"}):
            return self._opening - MESSAGE_TOKENS
        return (self._opening - (head not in others)) if others else 0

    def _shared(self, node: Node, own: Section, request: _Request) -> int:
        if node.section is None:
            return 0
        return shared_tokens(node.section, own, self._count, request.prompt.model)

    def _in_units(self, request: _Request) -> tuple[CacheOutcome, dict[int, Ttl]]:
        """Only whole units are read: ends of earlier requests, and beginnings found to be common.

        Source: DeepSeek's guide to context caching ("prefix units"): after A+B and A+C a request A+D reads A.
        The end of a model's output, a unit there as well, is not known here before it comes back as input.
        """
        sections, totals = request.sections, request.prompt.totals
        units = (index for index in range(len(request.path), 0, -1) if request.path[index - 1].readable(request.now))
        whole = next(units, 0)
        read = totals[whole - 1] if whole else 0
        known = len(request.path)
        ends = {len(sections) - 1: request.ttl}
        if known < len(sections):
            part = self._common(request, known)
            if part:
                read, whole = (totals[known - 1] if known else 0) + part, known
            elif whole < known:
                ends[known - 1] = request.ttl
        _use(request.path[:whole], request.now)
        if read < max(self.profile.min_tokens, 1):
            read = whole = 0
        return CacheOutcome(totals[-1], read, {}, whole), ends

    def _common(self, request: _Request, index: int) -> int:
        """Tokens read of section ``index`` from a common beginning; a longer one is kept as a new unit."""
        own, now, model = request.sections[index], request.now, request.prompt.model
        group, parent = request.group(index), request.parent(index)
        units = b"common\0" + group
        kept = parent.alike(units, own.data, lambda n: own.data.startswith(_data(n)) and n.readable(now))
        best = max((self._shared(node, own, request) for node in kept), default=0)
        alike = [node.section.text for node in parent.alike(group, own.data, lambda _: True) if node.section]
        length = max((shared_characters(text, own.text) for text in alike), default=0)
        found = _cut(own, length, self._count, model)
        if found.tokens > best and length:
            node = self._forest.child(parent, units + found.digest, units, found)
            request.fresh.append(_born(node, request.ttl, now))
        return best

    def _write(self, request: _Request, ends: Mapping[int, Ttl], read: int) -> list[Life]:
        """Entries at ``ends``: live ones are kept, the others begin; what was not read was computed again."""
        if not ends:
            return []
        profile, now = self.profile, request.now
        for index in range(len(request.path), max(ends) + 1):
            node = self._forest.child(
                request.parent(index), request.keys[index], request.group(index), request.sections[index]
            )
            request.path.append(node)
            request.made.append(node)
        at_once = profile.readable == "start" or profile.cold_parallel_shares
        used: list[Life] = []
        for index, ttl in ends.items():
            life = _born(request.path[index], ttl, now)
            if at_once:
                life.readable_at = min(life.readable_at, now)
            if life.readable_at > now:
                request.fresh.append(life)
            if index >= read:
                life.rewrite(now, ttl)
            used.append(life)
        return used


def _born(node: Node, ttl: Ttl, now: float) -> Life:
    """The entry that ends at ``node``: the live one, which gets one more writer, or a new one."""
    if node.life is not None and node.alive(now):
        node.life.writers += 1
        return node.life
    node.life = Life(ttl, now, _NEVER)
    return node.life


def _use(path: Sequence[Node], now: float) -> None:
    """A read starts the lives of what it covers anew, where the profile says so."""
    for node in path:
        life = node.life
        if life is not None and life.ttl.refreshed_by_read and life.readable_at <= now <= life.expires:
            life.extend(now)


def _data(node: Node) -> bytes:
    return b"" if node.section is None else node.section.data


def _cut(one: Section, length: int, count: CountTokens, model: str) -> Section:
    """The first ``length`` characters of a section, as a section."""
    data = one.text[:length].encode("utf-8", "surrogatepass")
    return section(one.tier, one.path, one.kind, one.head, data, lambda text: count(text, model))
