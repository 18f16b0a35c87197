"""What requests had cost as the application made them: its prompts, rebuilt, and a cache that only those were sent to.

A request is entered when its answer has ended, with the time at which it would have gone out (before it waited for a
sibling) and the provider's own count of what was sent in its place; before one that began behind its first token, and
has ended sooner, by the counts that there are. With ``T`` tokens counted by the provider for the ``x`` tokens of text
and ``y`` of images by our counter in what was sent,

    theirs(p) = T / (a*x + b*y) * (a * text in p + b * images in p)        for a beginning p of the unmodified prompt

where ``a`` and ``b`` are what the provider counts for one token of ours of text and of images, by all its counts so
far. Only ``a / b`` matters, and only where images are: a request without any is scaled by ``T / x``. A beginning that
was a whole prompt has the count that it had then, which is off by the least: by what stood in it and was not sent.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from math import ceil, floor, inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from cacheprefix.bounded import Bounded
from cacheprefix.cache.model import SentBy
from cacheprefix.locks import Guarded, Lock, RLock
from cacheprefix.profiles import NO_CALLS, Profile, Usage
from cacheprefix.prompt import Prompt, Section, dumps, section
from cacheprefix.prompt.reasons import Unsure
from cacheprefix.services import TELLING, counts_alike, scale_of
from cacheprefix.wire import decode

if TYPE_CHECKING:
    from cacheprefix.cache import CacheModel, Observation

_SURE = 900.0
"""Squared tokens by which text and images must have varied against each other before their counts are told apart."""
_FARTHEST = 20.0
"""How far ``a`` and ``b`` may lie from the common ratio: an image that is paid by its size and counted flat."""
_NOISE = 0.005
"""By what share a request's count lies from what the others' say, before there is more than one."""
_APART = 20.0
"""How many times as far a single text's count lies from it."""
_SURELY = 0.25
"""By how much of that a beginning lies from a provider's minimum that surely is, or is not, reached."""
_EITHER = 8.0
"""How many times as much as it seems an image counts at most, or as little, before counts tell."""
_WORDS = 4
"""Tokens that the count of a beginning may be off by at least: what stands around messages is counted for itself."""
_NAMES = 0.25
"""By what share the count of a call may be off that was sent with another id: names and ids are no words."""
_SEPARATE = 3
"""Requests that read nothing of what another tenant had sent, after which each is taken to have a cache of its own."""
_TENANTS = 8
"""Tenants of late whose requests are looked at for what another one's could have read."""
_MODELS = 1_000
_WHOLES = 10_000
"""Prompts whose count is remembered for those that go on from them."""
_AT_ONCE = 0.05
"""Seconds within which no provider begins to answer a long prompt. A simulated one does, where it takes no time."""
_WAITS = 10.0
"""Seconds for which siblings may wait that are not begun yet."""
_BEGUN = 1_000
"""Answers under way, whose requests are held until they end."""


class _About(NamedTuple):
    """A number of tokens, and by how many it may be off."""

    tokens: float
    off: float


class _Told(NamedTuple):
    """A beginning that a provider read: its tokens by our count and by the provider's."""

    ours: int
    theirs: _About

    def apart(self, scale: float) -> float:
        """By what share its count surely lies from what the whole request says: its texts count otherwise."""
        whole = scale * self.ours
        return max(0.0, abs(self.theirs.tokens - whole) - self.theirs.off) / whole if whole else 0.0


class Estimate(NamedTuple):
    """What a request had used as the application made it."""

    usage: Usage
    unsure: Mapping[Unsure, float] = MappingProxyType({})
    """Cost units by which it may be off, by what nobody knows."""


class Own(NamedTuple):
    """A request as the application made it, and when it would have gone out."""

    prompt: Prompt
    scope: str
    agent: str
    conversation: str
    arrived: float
    """Seconds: before it waited for a sibling."""


class Times(NamedTuple):
    """When the request was sent in its place, answered first, and answered whole. Seconds."""

    started: float
    first_token: float | None
    ended: float


@dataclass(slots=True)
class _Counts:
    """What a provider counted for a model: sums over its reports, by which text and images are told apart."""

    xx: float = 0.0
    xy: float = 0.0
    yy: float = 0.0
    xt: float = 0.0
    yt: float = 0.0
    ours: float = 0.0
    theirs: float = 0.0
    reports: int = 0
    missed: float = 0.0
    """The sum of squares of the shares by which the reports were missed."""

    def learn(self, text: int, images: int, counted: int) -> None:
        """Enter a report: a prompt that we count as ``text`` and ``images`` tokens, and the provider as ``counted``."""
        self.xx += text * text
        self.xy += text * images
        self.yy += images * images
        self.xt += text * counted
        self.yt += images * counted
        self.ours += text + images
        self.theirs += counted
        a, b = self.scales()
        self.reports += 1
        self.missed += ((a * text + b * images) / counted - 1) ** 2

    @property
    def noise(self) -> float:
        """By what share a request's count lies from what these say: the root of the mean square."""
        return float(((self.missed + _NOISE**2) / (self.reports + 1)) ** 0.5)

    @property
    def blind(self) -> float:
        """What share of ``a / b`` is still a guess.

        ``_SURE / (_SURE + d)``, where ``d`` is by how many squared tokens the two varied against each other.
        """
        whole = self.xx + self.yy
        return _SURE / (_SURE + (self.xx * self.yy - self.xy * self.xy) / whole) if whole else 1.0

    def scales(self) -> tuple[float, float]:
        """``a`` and ``b``: least squares, drawn to the common ratio ``r`` as far as the reports do not tell.

        min  sum (T - a*x - b*y)^2 + _SURE * ((a - r)^2 + (b - r)^2)
        """
        if not self.ours:
            return 1.0, 1.0
        r = self.theirs / self.ours
        xx, yy = self.xx + _SURE, self.yy + _SURE
        xt, yt = self.xt + _SURE * r, self.yt + _SURE * r
        below = xx * yy - self.xy * self.xy
        a, b = (xt * yy - yt * self.xy) / below, (yt * xx - xt * self.xy) / below
        return min(max(a, r / _FARTHEST), r * _FARTHEST), min(max(b, r / _FARTHEST), r * _FARTHEST)


@dataclass(slots=True, eq=False)
class _Begun:
    """A request under way, or one that ended while another one was that began before."""

    own: Own
    sent: Observation
    """What was sent in its place."""
    first_token: float = inf
    """When the application's own would have been answered first. Seconds."""
    ended: float = inf
    """When it would have been answered whole. Seconds."""
    seen: Observation | None = None
    """Itself, once it was entered."""

    @property
    def order(self) -> tuple[float, int]:
        """By what requests come one after the other."""
        return self.own.arrived, self.sent.index


@dataclass(slots=True)
class _Tenants:
    """Whether a session's tenants share the provider's cache, by what it read for those that had sent nothing yet.

    A provider's rule: a cache is an account's, or a workspace's. With one key for all tenants what one of them sent is
    read for another; with a key each it is not. Nobody says which it is, and most applications have one.
    """

    found: int = 0
    """Requests for which others' were read."""
    missing: int = 0
    """Requests for which others' would have been read, had they shared it."""
    scopes: Bounded[str, bool] = field(default_factory=lambda: Bounded(_TENANTS))
    """The tenants of late."""

    @property
    def apart(self) -> bool:
        """Whether each tenant has a cache of its own."""
        return self.missing >= _SEPARATE and self.missing > self.found

    def learn(self, own: Observation, sent: Observation, usage: Usage, model: CacheModel) -> None:
        """One more request whose answer has ended; ``sent`` is what was sent in place of the application's own.

        Its own tenant's requests had left nothing for it. What had those of all, as the application made them, is in
        ``own``; what had those that were sent, in ``model``.
        """
        least, scope = max(1, sent.profile.min_tokens), sent.record.scope
        self.scopes[scope] = True
        if usage.cache_read_tokens is None or sent.expectation.tokens >= least:
            return
        if usage.cache_read_tokens >= least:
            self.found += 1
        elif own.expectation.tokens >= least and not self.apart:
            # Money: a fork begins otherwise than another tenant's request in the application's own layout, and reads
            # nothing of it in one cache either.
            record = sent.record
            others = (one for one in self.scopes if one != scope)
            found = (model.expect(record.prompt, sent.profile, scope=one, at=record.at).tokens for one in others)
            self.missing += any(tokens >= least for tokens in found)


class Unmodified(Guarded):
    """The cache as the application's own requests would have left it, in the provider's tokens. Thread-safe."""

    def __init__(self, model: CacheModel, sent: CacheModel) -> None:
        self._model = model
        self._sent = sent
        """The cache as what was sent has left it, which knows each tenant's requests apart."""
        self._tenants = _Tenants()
        self._own_alone = True
        """Whether all that was sent was the application's own."""
        self._counts: Bounded[str, _Counts] = Bounded(_MODELS)
        self._wholes: Bounded[bytes, _About] = Bounded(_WHOLES)
        """The provider's counts of whole prompts, by ``_name``, for those that go on from them."""
        self._begun: Bounded[int, _Begun] = Bounded(_BEGUN)
        """Requests under way, and those that ended beside one, by the number of what was sent."""
        # By model: whether its provider was last seen to let siblings that are sent together read from one another, and
        # the cost units that were reckoned as if it did not, before anything was seen.
        self._shares: Bounded[str, bool] = Bounded(_MODELS)
        self._open: Bounded[str, float] = Bounded(_MODELS)
        # By model: until when the provider may hold what another process had sent, in seconds of the clock.
        self._foreign: Bounded[str, float] = Bounded(_MODELS)
        # Agents that have asked: model, tenant and name of each.
        self._known: Bounded[tuple[str, str, str], bool] = Bounded(_WHOLES)
        # Conversations that were seen: the agents that have asked in one that was under way by then; None for others.
        self._talks: Bounded[tuple[str, str], set[str] | None] = Bounded(_WHOLES)
        self._lock = Lock()
        self._entering = RLock()

    @property
    def busy(self) -> bool:
        """Whether this thread is changing or reading any of it."""
        return self._entering.mine or super().busy or self._model.busy

    def sent(self, own: Own, sent: Observation) -> None:
        """A request goes out in place of the application's own."""
        with self._entering:
            self._begun[sent.index] = _Begun(own, sent)

    def begun(self, sent: Observation, started: float, first_token: float) -> None:
        """The answer has begun to what was sent in place of the application's own request. Times in seconds."""
        with self._entering:
            one = self._begun.get(sent.index)
            if one is not None:
                one.first_token = first_token - (started - one.own.arrived)

    def failed(self, sent: Observation) -> None:
        """There will be no answer to it."""
        with self._entering:
            self._begun.pop(sent.index, None)

    def forget(self, conversation: str) -> set[bytes]:
        """Hold no text that only this conversation held; the texts that are gone."""
        with self._entering:
            # Privacy: an answer that nobody ever ended holds its whole request.
            for index in [index for index, one in self._begun.items() if one.own.conversation == conversation]:
                del self._begun[index]
        return self._model.forget(conversation)

    def scale(self, model: str) -> float:
        """What the provider counts for a token of our text; 1.0 where that is about the same, or not known."""
        with self._lock:
            counts = self._counts.get(model)
            if counts is None or counts.ours < TELLING:
                return 1.0
            found = counts.scales()[0]
        return scale_of(found, 1.0)

    def usage(self, own: Own, sent: Observation, usage: Usage, times: Times) -> Estimate:
        """What the application's own request would have used; ``usage`` is the provider's for what was sent.

        Where the same was sent, and the cache held the same for it, that very usage.
        """
        with self._entering:
            return self._usage(own, sent, usage, times)

    def _usage(self, own: Own, sent: Observation, usage: Usage, times: Times) -> Estimate:
        """What a request had cost as the application made it, once the answer to the one sent has said what it cost."""
        prompt, profile = own.prompt, sent.profile
        if not prompt.sections:
            self._begun.pop(sent.index, None)
            return Estimate(Usage(0, 0, {}))
        scale = self._scale(sent.record.prompt, prompt, usage, _told(sent, usage))
        begun = self._begun.setdefault(sent.index, _Begun(own, sent))
        # Seconds that it waited for a sibling: without us it had been sent, and answered, so much earlier.
        earlier = times.started - own.arrived
        # Money: who waited may have read what a sibling had begun to answer by then; without us it was sent before.
        seen_beside = _read_beside(sent, usage) if earlier <= _AT_ONCE else None
        if seen_beside is not None:
            self._learn(sent, shares=seen_beside)
        # Money: who was not to read from a sibling, as where it waited for that one, goes by what others did.
        reads_siblings = self._shares.get(prompt.model, False) if seen_beside is None else seen_beside
        # A provider's rule: what another one wrote may be read from its first token on, before its answer has ended.
        # Where the provider let what was sent read what was under way, so it would have the application's own.
        before = (
            one
            for one in self._begun.values()
            if reads_siblings or (one.seen is None and one.first_token <= own.arrived)
        )
        for one in sorted(before, key=lambda one: one.order):
            if one.order >= begun.order:
                break
            if one.seen is None:
                known = self._scale(one.sent.record.prompt, one.own.prompt, NO_CALLS)
                one.seen = self._enter(one.own, known.rules(one.sent.profile))
            self._model.first_token(one.seen, one.own.arrived if reads_siblings else one.first_token)
        seen = begun.seen = self._enter(own, scale.rules(profile)) if begun.seen is None else begun.seen
        # It would have been answered as fast, but for the wait.
        if times.first_token is not None:
            self._model.first_token(seen, times.first_token - earlier)
        begun.ended = times.ended - earlier
        self._model.finish(seen, None, begun.ended)
        self._let_go(begun.ended)
        self._tenants.learn(seen, sent, usage, self._sent)
        strange = self._strange(own, sent, usage)
        taken_over = self._taken_over(own, sent)
        alike = _alike(prompt, sent.record.prompt, profile.routing_key)
        self._own_alone = self._own_alone and alike
        # Of other tenants' requests the model of what was sent knows nothing: where all were the application's own the
        # cache held the same all the same.
        same = seen_beside or (self._own_alone and usage.reported) or _found_alike(seen, sent, plain=scale.plain)
        if alike and same:
            return Estimate(usage if usage.reported else sent.expectation.usage)
        unsure = scale.unsure(seen, profile)
        # Cost units by which a token that is paid as new, or written, is dearer than one that is read.
        expected, dearer = seen.expectation, max(profile.default_ttl.write, 1.0) - profile.read
        if seen_beside is None and prompt.model not in self._shares and expected.reason == "concurrent_cold_start":
            # Money: had it read from a sibling, all that both share; whether it would nobody has seen yet.
            more = (expected.shared_tokens - expected.tokens) * dearer
            self._open[prompt.model] = self._open.get(prompt.model, 0.0) + more
        elif reads_siblings:
            # Money: what was reckoned by the other rule before may be off by all of that.
            unsure["siblings"] = self._open.pop(prompt.model, 0.0)
        if strange:
            # Money: as the application made them, that process's requests may have left all of this one, or nothing.
            unsure["elsewhere"] = max(0, prompt.tokens - expected.tokens) * dearer
        elif taken_over:
            # Money: the requests before this one, which the session has not seen, may have left that much, or nothing.
            unsure["under_way"] = max(0, taken_over - expected.tokens) * dearer
        return Estimate(scale.theirs(expected.usage, profile), {why: units for why, units in unsure.items() if units})

    def _learn(self, sent: Observation, *, shares: bool) -> None:
        """Note for a model whether siblings sent at once read from one another (``shares``).

        Only where one was sent just before ``sent`` that begins as that does.
        """
        record = sent.record
        alike = record.digests[: bisect_right(record.totals, sent.expectation.shared_tokens)]
        begun = [one.sent.record for one in self._begun.values() if one.sent.index < sent.index]
        times = [one.at for one in begun if one.scope == record.scope and one.digests[: len(alike)] == alike]
        # Any of those who wrote the same may have been the one that it read from.
        if times and record.at - min(times) <= _AT_ONCE:
            self._shares[record.prompt.model] = shares

    def _strange(self, own: Own, sent: Observation, usage: Usage) -> bool:
        """Whether another process may have sent, unknown to this session, what the application's request begins with.

        It is so once the provider has read what none of this session's requests had sent, as after a restart: for that
        request, and the first one of each agent for as long as the provider keeps an entry.
        """
        record, profile, read = sent.record, sent.profile, usage.cache_read_tokens or 0
        model, agent = own.prompt.model, (own.prompt.model, own.scope, own.agent)
        first, self._known[agent] = agent not in self._known, True
        found = sent.expectation.reason == "cold_start" and read >= max(1, profile.min_tokens)
        if found:
            scopes = (one for one in self._tenants.scopes if one != record.scope)
            others = (self._sent.expect(record.prompt, profile, scope=one, at=record.at) for one in scopes)
            found = all(2 * one.shared_tokens < read for one in (sent.expectation, *others))
        if found:
            lives = profile.default_ttl.max_seconds or profile.default_ttl.seconds
            self._foreign[model] = record.at + (inf if lives is None else lives)
        return found or (first and record.at <= self._foreign.get(model, -inf))

    def _taken_over(self, own: Own, sent: Observation) -> int:
        """Tokens of a conversation that was under way before the session saw it, up to the last answer in it; else 0.

        Told for the first request of each of its agents: what they ask next, the session has seen the most of.
        """
        if not own.conversation:
            return 0
        talk = (own.scope, own.conversation)
        if talk not in self._talks:
            prompt, known = sent.record.prompt, sent.expectation.shared_tokens
            # Answers that an earlier request held are not from before: one without a name goes on under another, or the
            # application begins all its conversations with them.
            end = _answered(prompt)
            self._talks[talk] = set() if end > known else None
        agents = self._talks[talk]
        if agents is None or own.agent in agents or len(agents) >= _TENANTS:
            return 0
        agents.add(own.agent)
        return _answered(own.prompt)

    def _let_go(self, now: float) -> None:
        """Hold no request that ended before all that are under way began, or wait to: none of them ran beside it."""
        since = min([now - _WAITS, *(one.own.arrived for one in self._begun.values() if one.ended == inf)])
        for index in [index for index, one in self._begun.items() if one.ended <= since]:
            del self._begun[index]

    def _enter(self, own: Own, rules: Profile) -> Observation:
        # Money: what one tenant's requests leave another's read, where they have one key.
        scope = own.scope if self._tenants.apart else ""
        return self._model.begin(own.prompt, rules, SentBy(scope, own.agent, own.conversation), at=own.arrived)

    def _scale(self, sent: Prompt, own: Prompt, usage: Usage, told: _Told | None = None) -> _Scale:
        """The provider's count of the application's own request, by its count of the one that was ``sent``."""
        text, images = _parts(sent, sent.tokens)
        counted = usage.input_tokens if usage.calls == 1 and not usage.summed else None
        with self._lock:
            counts = self._counts.of(sent.model, _Counts)
            if counted and sent.tokens:
                # A count that no tokenizer explains says nothing of other requests.
                if images or counts_alike(counted, text):
                    counts.learn(text, images, counted)
                self._wholes[_name(sent, len(sent.sections))] = _About(counted, 0.0)
            a, b = counts.scales()
            noise, blind = counts.noise, counts.blind
        if not images and (own is sent or not _parts(own, own.tokens)[1]):
            a = b = counted / text if counted and text else a
            blind = 0.0
        else:
            whole = a * text + b * images
            ratio = counted / whole if counted and whole else 1.0
            a, b = ratio * a, ratio * b
        if a == b == 1.0:
            return _Scale(own, a, b)
        scale = _Scale(own, a, b, sent, noise, blind, self._wholes)
        if told is not None and counted and not blind and max(noise, told.apart(scale.text)) * _APART > _SURELY:
            scale = replace(scale, ends=_by_texts(scale, sent, told, counted))
        with self._lock:
            self._wholes.setdefault(_name(own, len(own.sections)), scale.about(own.tokens))
        return scale


@dataclass(frozen=True, slots=True)
class _Scale:
    """The provider's tokens for ours, in one prompt."""

    prompt: Prompt
    text: float
    images: float
    sent: Prompt | None = None
    """What was sent in its place, whose count is known."""
    noise: float = 0.0
    """By what share a request's count lies from what the scales say."""
    blind: float = 0.0
    """How little it is known what images count: 1 before counts tell them from text; 0 where there are none."""
    wholes: Mapping[bytes, _About] = field(default_factory=dict)
    """The counts of whole prompts."""
    ends: tuple[_About, ...] = ()
    """The count at the end of each section, where what was read told of the texts in it; empty where it did not."""

    @property
    def plain(self) -> bool:
        """Whether the provider counts as we do."""
        return self.text == self.images == 1.0

    def of(self, tokens: int) -> float:
        """Tokens by the provider's count of a beginning that has so many by ours."""
        return self.about(tokens).tokens

    def about(self, tokens: int) -> _About:
        """The same, and by how much that may be off."""
        prompt = self.prompt
        end = bisect_right(prompt.totals, tokens)
        known = self.wholes.get(_name(prompt, end)) if end else None
        if known is not None:
            rest = tokens - prompt.totals[end - 1]
            scale = self.images if rest and prompt.sections[end].kind == "image" else self.text
            return _About(known.tokens + rest * scale, known.off + rest * self.noise * _APART)
        if self.ends:
            before, until = self.ends[end - 1] if end else _About(0.0, 0.0), self.ends[min(end, len(self.ends) - 1)]
            whole = prompt.sections[end].tokens if end < len(prompt.sections) else 0
            share = (tokens - (prompt.totals[end - 1] if end else 0)) / whole if whole else 0.0
            return _About(*(a + share * (b - a) for a, b in zip(before, until, strict=True)))
        text, images = _parts(prompt, tokens)
        return _About(text * self.text + images * self.images, self._apart(tokens) + self._blindly(text, images))

    def _apart(self, tokens: int) -> float:
        """By how many tokens the count of a beginning may be off: by what stands in it and was not sent, or not in it.

        Texts are joined and parted by a layout, so they count by their sum; a call with another id is another text.
        """
        if self.sent is None:
            return 0.0
        end = bisect_right(self.prompt.totals, tokens)
        calls, made = (
            {(one.digest, one.tokens) for one in sections if one.kind == "tool_use"}
            for sections in (self.prompt.sections[:end], self.sent.sections)
        )
        named, sent = (sum(tokens for _, tokens in found) for found in (calls, made))
        words = abs((tokens - named) - (self.sent.tokens - sent))
        return words * self.noise * _APART + sum(tokens for _, tokens in calls ^ made) * _NAMES

    def rules(self, profile: Profile) -> Profile:
        """The rules with their sizes in our tokens. Blocks are the provider's, and cut when its tokens are known."""
        if self.plain or not self.prompt.tokens:
            return profile
        return _resized(profile, self._ours(profile.min_tokens))

    def _ours(self, least: int) -> int:
        """Of how many of our tokens on a beginning has so many of the provider's."""
        totals = self.prompt.totals
        end = bisect_left(totals, least, key=lambda tokens: floor(self.of(tokens)))
        before, known = (totals[end - 1], self.of(totals[end - 1])) if end else (0, 0.0)
        inside = end < len(totals)
        scale = self.images if inside and self.prompt.sections[end].kind == "image" else self.text
        found = before + ceil((least - known) / scale) if scale else least
        return min(found, totals[end]) if inside else found

    def unsure(self, seen: Observation, profile: Profile) -> dict[Unsure, float]:
        """Cost units by which the cost of the request may be off."""
        if self.plain:
            return {}
        read, totals = seen.expectation.usage.cache_read_tokens or 0, self.prompt.totals
        ends = [seen.expectation.shared_tokens]
        # A provider's rule: where marks decide, its minimum holds for what stands before each.
        if profile.match == "breakpoint":
            ends = [totals[at] for at in seen.outlook.marks.all]
        # Behind what is read for certain nothing of this is asked.
        ends = [end for end in ends if end >= max(read, 1)]
        least = profile.min_tokens
        near = least and any(self._near(end, least) for end in ends)
        # Money: a beginning as long as the minimum is paid as new, or as read.
        apart = least * (max(profile.default_ttl.write, 1.0) - profile.read) if near else 0.0
        images = sum(self._blindly(*_parts(self.prompt, tokens)) for tokens in (self.prompt.tokens, read))
        return {"minimum": apart, "images": images}

    def _near(self, tokens: int, least: int) -> bool:
        """Whether a beginning of so many of our tokens may have so many of the provider's, or a few less."""
        about, blindly = self.about(tokens), self._blindly(*_parts(self.prompt, tokens))
        return abs(about.tokens - least) <= max(_WORDS, about.off * _SURELY + blindly)

    def _blindly(self, text: int, images: int) -> float:
        """How far the count of so many of our tokens moves, if an image counts ``_EITHER`` times as much or as little.

        The whole count of what was sent stays; less by as much as earlier counts have told of images.
        """
        if not self.blind or self.sent is None:
            return 0.0
        all_text, all_images = _parts(self.sent, self.sent.tokens)

        def count(image: float) -> float:
            whole = self.text * all_text + image * all_images
            known = self.text * all_text + self.images * all_images
            return (self.text * text + image * images) * (known / whole if whole else 1.0)

        here = count(self.images)
        return self.blind * max(abs(count(self.images * by) - here) for by in (_EITHER, 1 / _EITHER))

    def theirs(self, ours: Usage, profile: Profile) -> Usage:
        """A usage that is expected in our tokens, in the provider's."""
        if self.plain:
            return ours
        total, read = ours.input_tokens or 0, ours.cache_read_tokens or 0
        # Behind the last section stands what begins the answer, which counts alike.
        their_total = round(self.of(min(total, self.prompt.tokens)) + max(0, total - self.prompt.tokens))
        about = self.about(read)
        their_read = min(their_total, round(about.tokens))
        if profile.match == "block":
            their_read = round(in_blocks(their_read, about.off, profile.block_tokens, profile.min_tokens))
        # What is written stands behind what is read; each lifetime has the same part of it in either count.
        written = ours.cache_write or {}
        end = read + sum(written.values())
        their_end = their_total if end >= total else round(self.of(end))
        scale = max(0, their_end - their_read) / (end - read) if end > read else 0.0
        return Usage(their_total, their_read, {name: round(tokens * scale) for name, tokens in written.items()})


def _told(sent: Observation, usage: Usage) -> _Told | None:
    """How much of a request the provider read; None where that says nothing of how it counts."""
    read, profile, found = usage.cache_read_tokens, sent.profile, sent.expectation
    if not read or usage.calls != 1 or usage.summed or found.reason != "hit":
        return None
    if profile.match == "block":
        # A provider's rule: whole blocks are read, so that the beginning may be longer by less than one.
        half = profile.block_tokens / 2
        return _Told(found.shared_tokens, _About(read + half, half))
    return _Told(found.tokens, _About(read, 0.0))


def _by_texts(scale: _Scale, sent: Prompt, told: _Told, counted: int) -> tuple[_About, ...]:
    """The provider's count at the end of each section of the application's own prompt, sentence by sentence.

    Texts count apart: one of figures, by a fourth less than one of words. What was read and what stood behind it have a
    count each, and so have the sentences of them in the application's own layout. Empty where these are no counts of
    those.
    """
    behind, rest = sent.tokens - told.ours, counted - told.theirs.tokens
    if not (counts_alike(told.theirs.tokens, told.ours) and behind > 0 and counts_alike(rest, behind)):
        return ()
    read, after = set[str](), set[str]()
    for one, total in zip(sent.sections, sent.totals, strict=True):
        inside = min(max(told.ours - total + one.tokens, 0), one.tokens) / (one.tokens or 1)
        text = one.text
        read.update(_sentences(text[: int(len(text) * inside)]))
        after.update(_sentences(text[int(len(text) * inside) :]))
    by_read, by_rest, apart = told.theirs.tokens / told.ours, rest / behind, min(scale.noise * _APART, 1.0)
    front = back = other = 0.0
    ends = []
    for one in scale.prompt.sections:
        said = _sentences(one.text)
        whole = sum(len(words) + 1 for words in said)
        known = sum(len(words) + 1 for words in said if words in read)
        later = sum(len(words) + 1 for words in said if words in after and words not in read)
        front, back = front + one.tokens * known / whole, back + one.tokens * later / whole
        other += one.tokens * (whole - known - later) / whole
        # A part of either may count otherwise than all of it.
        parts = min(front, abs(told.ours - front)) + min(back, abs(behind - back)) + other
        off = told.theirs.off * min(front / told.ours, 1.0) + parts * apart
        ends.append(_About(front * by_read + back * by_rest + other * scale.text, off))
    return tuple(ends)


def _sentences(text: str) -> list[str]:
    """A text in pieces that a layout moves whole: a shared text may stand in the midst of a line."""
    return text.replace(". ", ".\n").split("\n")


def in_blocks(tokens: float, off: float, block: int, least: int) -> float:
    """How many of so many tokens stand in whole blocks, on average over ``tokens - off`` to ``tokens + off``.

    A token more or less decides on a whole block, and the same request repeated would be off by one each time:

        mean of  block * floor(t / block)  where that is at least ``least``, else 0

    whose integral from 0 to ``t``, which has n whole blocks, is  block^2 * n(n-1)/2 + block * n * (t - block*n).
    """
    if tokens - off < least or off < 1:
        whole = tokens - tokens % block
        return whole if whole >= least else 0

    def area(t: float) -> float:
        n = t // block
        return block * block * n * (n - 1) / 2 + block * n * (t - block * n)

    return (area(tokens + off) - area(tokens - off)) / (2 * off)


@lru_cache(256)
def _resized(profile: Profile, least: int) -> Profile:
    return replace(profile, min_tokens=least, block_tokens=1 if profile.match == "block" else profile.block_tokens)


def _name(prompt: Prompt, end: int) -> bytes:
    """What tells a beginning of so many sections from all others."""
    data = prompt.model.encode("utf-8", "surrogatepass") + b"".join(prompt.digests[:end])
    return blake2b(data, digest_size=16).digest()


def _parts(prompt: Prompt, tokens: int) -> tuple[int, int]:
    """Of the first so many tokens those of texts, and those of images."""
    end = bisect_right(prompt.totals, tokens)
    images = sum(one.tokens for one in prompt.sections[:end] if one.kind == "image")
    rest = tokens - (prompt.totals[end - 1] if end else 0)
    if rest and end < len(prompt.sections) and prompt.sections[end].kind == "image":
        images += rest
    return tokens - images, images


def _answered(prompt: Prompt) -> int:
    """Tokens of a prompt up to the end of the last answer of a model in it; 0 without one."""
    end, answers = 0, False
    for at in range(prompt.head, len(prompt.sections)):
        one = prompt.sections[at]
        if one.head != "+":
            answers = "assistant" in one.head or "model" in one.head
        if answers:
            end = prompt.totals[at]
    return end


def _alike(own: Prompt, sent: Prompt, key: str | None) -> bool:
    """Whether the very same was sent, marks and settings included, but for the routing ``key`` that we add.

    A provider's rule: that sends it to a machine, and is no part of what is cached or paid.
    """
    if own is sent:
        return True
    settings = ({name: one for name, one in prompt.settings.items() if name != key} for prompt in (own, sent))
    marks = ([(at, prompt.sections[at].marker) for at in prompt.marked] for prompt in (own, sent))
    return (
        own.digests == sent.digests
        and own.top_marker == sent.top_marker
        and next(settings) == next(settings)
        and next(marks) == next(marks)
    )


def _read_beside(sent: Observation, usage: Usage) -> bool | None:
    """Whether the provider let a request read what others wrote that had not been answered yet, as far as was seen.

    It read more than was there for certain: nearer to all that the request shares with them. None where that says
    nothing, since nobody was writing what it shares.
    """
    read, total = usage.cache_read_tokens, sent.record.prompt.tokens
    if sent.expectation.reason != "concurrent_cold_start" or read is None or not total:
        return None
    shared = sent.expectation.shared_tokens * (usage.input_tokens or total) / total
    return 2 * read > sent.expected + shared


def _found_alike(own: Observation, sent: Observation, *, plain: bool) -> bool:
    """Whether the cache held the same for both."""
    a, b = own.expectation, sent.expectation
    return a.shared_tokens == b.shared_tokens and (not plain or a.usage == b.usage)


def unmodified(
    prompt: Prompt,
    *,
    system: Sequence[str],
    tools: Sequence[Mapping[str, Any]] | None,
    tail: str,
    count: Callable[[str, str], int],
    restored: Sequence[tuple[str, str]] = (),
) -> Prompt:
    """The prompt as the application made it: its own system texts and tools, no tail.

    ``prompt`` is the one to send before it was marked by us: its markers and settings are the application's. ``tools``
    are in the wire form of the prompt's API. Sections of the conversation are taken over as they are, but for tool
    results that were shortened: ``restored`` pairs the text sent with the text it stands for.
    """
    body: dict[str, Any] = {"model": prompt.model, "tools": list(tools or [])}
    if prompt.api == "anthropic":
        body["system"] = [{"type": "text", "text": text} for text in system]
    elif prompt.api == "gemini":
        body["systemInstruction"] = {"parts": [{"text": text} for text in system]}
    else:
        field = "input" if prompt.api == "openai-responses" else "messages"
        body[field] = [{"role": "system", "content": text} for text in system]
    head = decode(body, prompt.api, count=count).sections
    rest, found = list(prompt.sections[prompt.head :]), prompt.last_of(tail)
    if found is not None and found >= prompt.head:
        found -= prompt.head
        gone = rest.pop(found)
        if gone.head != "+" and found < len(rest) and rest[found].head == "+":
            # The role's text opened a message of the application's own, which what stands behind it opened before.
            first = rest[found]
            rest[found] = section(
                first.tier, first.path, first.kind, gone.head, first.data, lambda text: count(text, prompt.model),
                first.marker,
            )  # fmt: skip
    for sent, full in restored:
        rest = [_full(section, sent, full, prompt.model, count) for section in rest]
    return replace(prompt, sections=(*head, *rest))


def _full(one: Section, sent: str, full: str, model: str, count: Callable[[str, str], int]) -> Section:
    """The section with the whole tool result, if it holds the shortened one."""
    if one.kind not in ("text", "tool_result"):
        return one
    if one.kind == "tool_result":
        sent, full = (dumps(text, one.path).decode()[1:-1] for text in (sent, full))
    if sent not in one.text:
        return one
    data = one.text.replace(sent, full, 1).encode("utf-8", "surrogatepass")
    return section(one.tier, one.path, one.kind, one.head, data, lambda text: count(text, model), one.marker)
