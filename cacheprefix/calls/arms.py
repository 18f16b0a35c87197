"""Two arms of one application: conversations that are forked and those left as they are, and a guard over the roles.

    conversation -> digest of its tenant and id -> below ``fork_share``: forked, else in the application's own layout

Both arms are counted by what the provider reported, and by nothing that is estimated here. Where those counts show that
a role got dearer as a fork, the guard returns it to its own layout.

Where all conversations are forked there is no second arm: then each fork is held against what the application's own
request is estimated to have cost, and roles go back only where all forks together cost more. A layout is chosen within
one conversation. Across many of them each role's own opening is in the cache already, so that what sharing saves in
one, by the formulas, may cost in all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import takewhile
from math import inf, sqrt

from cacheprefix.bounded import Bounded
from cacheprefix.call import Call
from cacheprefix.calls.report import Arm, ArmLine, Arms
from cacheprefix.locks import Lock
from cacheprefix.prompt import Prompt, Reason, reason

CONVERSATIONS = 20
"""Conversations of each arm that a judgement takes: the number from which on an estimate of their spread is of use."""
DEVIATIONS = 3.5
"""Standard errors by which a role's forks must cost more. It is looked at after each request, for each role, so that
the usual two would be passed by chance sooner or later (``tests/session/test_arms.py`` counts how often)."""
DEARER = 1.02
"""Of the other arm's cost, below which a difference is none that another layout is worth."""
_WORDS, _PART = 64, 0.01
"""By how many tokens, and by what part of its own, a fork's text may differ from its application's to be held against
it: what stands around a role's text is more than that nowhere, and less than that is no difference in cost."""
_KEEP = 20_000
_AGENTS = 1_000
_ALL = "\0all"
_OF_ALL, _OF_ONE = "of all roles", "of the role"
"""Whose costs a reason names: all together may decide, of which no role's own are the same."""
_BEYOND = "\0beyond"
_UNMODIFIED = "\0unmodified"
"""Behind the id of a conversation: what its forks would have cost as the application made them."""


def _sharing(roles: frozenset[str]) -> frozenset[str]:
    """The roles that stay forks, where the others go back.

    Money: what made forks of one role cheaper was read of those that are none any more. It is none by itself either.
    """
    return roles if len(roles) > 1 else frozenset()


def comparable(call: Call, sent: Prompt, own: Prompt | None) -> bool:
    """Whether a fork's cost may be held against the estimate of the application's own request."""
    verdict, unmodified = call.verdict, call.unmodified_units
    if call.layout != "fork" or own is None or unmodified is None or call.usage.cache_read_tokens is None:
        return False
    # What a real cache misses by chance the estimate does not miss: it would be held against forks alone.
    if verdict.cause == "provider_miss" or call.unsure_units > (DEARER - 1) * unmodified:
        return False
    # Text that the user gave to the session alone costs in either layout, and shortened histories in neither.
    theirs, ours = _said(own), _said(sent)
    return abs(ours - theirs) <= _WORDS + _PART * theirs


def _said(prompt: Prompt) -> int:
    """Tokens of a prompt without its tools, which stand in front."""
    return prompt.tokens - sum(one.tokens for one in takewhile(lambda one: one.tier == "tools", prompt.sections))


@dataclass(slots=True)
class _Costs:
    """Cost per call of one role in one arm, and how far that is known: conversations differ, their calls depend."""

    n: int = 0
    """Conversations."""
    units: float = 0.0
    calls: int = 0
    squares: float = 0.0
    """Sum over the conversations of the squared cost."""
    products: float = 0.0
    """The same of cost times calls."""
    squared_calls: float = 0.0

    def add(self, before: tuple[float, int] | None, units: float) -> tuple[float, int]:
        """One more call of a conversation that had ``before``; what it has now."""
        u, c = before or (0.0, 0)
        self.n += before is None
        self.units, self.calls = self.units + units, self.calls + 1
        self.squares += (u + units) ** 2 - u**2
        self.products += (u + units) * (c + 1) - u * c
        self.squared_calls += (c + 1) ** 2 - c**2
        return u + units, c + 1

    @property
    def mean(self) -> float:
        """Cost units a call."""
        return self.units / self.calls if self.calls else 0.0

    @property
    def variance(self) -> float:
        """Of that mean: the ratio estimator's, with conversations as what was drawn.

        n/(n-1) * sum((u - R*c)^2) / (sum c)^2    with u, c a conversation's cost and calls, R the mean
        """
        if self.n < CONVERSATIONS:
            return inf
        r = self.mean
        spread = max(0.0, self.squares - 2 * r * self.products + r * r * self.squared_calls)
        return self.n / (self.n - 1) * spread / self.calls**2


@dataclass(slots=True)
class ForkShare:
    """Which conversations are forked, what both arms cost, and which roles the guard returned. Thread-safe, bounded."""

    share: float | None = None
    """Of the conversations, that are forked: 0 to 1; None for all, without a second arm or a guard."""
    _costs: dict[tuple[Arm, str], _Costs] = field(default_factory=dict)
    """By arm and agent; those of all agents under a name that none has."""
    _talks: Bounded[tuple[str, str, str], tuple[float, int]] = field(default_factory=lambda: Bounded(_KEEP))
    """By tenant, conversation and agent, what it cost and in how many calls."""
    _agents: set[str] = field(default_factory=set)
    _lines: dict[Arm, ArmLine] = field(default_factory=lambda: {"fork": ArmLine("fork"), "own": ArmLine("own")})
    _unreported: int = 0
    _returned: dict[str, Reason] = field(default_factory=dict)
    _beyond: _Costs = field(default_factory=_Costs)
    """What forks cost beyond the estimate of the application's own requests and a little more (``DEARER``)."""
    _rounds: int = 0
    """How often roles were returned by that: then it begins anew, since the others' requests are other ones now."""
    _in_all: Reason | None = None
    """Why all roles were returned by it, but for those that are ``_cheap``; None where none was."""
    _cheap: frozenset[str] = frozenset()
    _lock: Lock = field(default_factory=Lock)

    def arm(self, scope: str, conversation: str) -> Arm | None:
        """The arm of a conversation: the same in every process, as it goes by its tenant and id alone.

        None where all are forked.
        """
        if self.share is None:
            return None
        digest = blake2b(f"{scope}\0{conversation}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return "fork" if int.from_bytes(digest, "big") < self.share * 2**64 else "own"

    def kept_own(self, scope: str, conversation: str, agent: str) -> Reason | None:
        """Why a role's request keeps the application's own layout, whatever sharing saves; None where it may share."""
        if self.arm(scope, conversation) == "own":
            return reason("not_in_fork_share")
        # Money: whoever was not heard yet would begin what did not pay for those that were.
        return self._returned.get(agent) or (self._in_all if agent not in self._cheap else None)

    def take(self, call: Call, scope: str) -> Mapping[str, Reason]:
        """Count a finished call; the roles that go back to their own layout by it, and why."""
        arm = None if call.layout == "observed" else self.arm(scope, call.conversation)
        if arm is None:
            return {}
        with self._lock:
            if call.usage.cache_read_tokens is None:
                self._unreported += 1
                return {}
            first = (scope, call.conversation, _ALL) not in self._talks
            line, usage = self._lines[arm], call.usage
            self._lines[arm] = replace(
                line,
                conversations=line.conversations + first,
                calls=line.calls + 1,
                input_tokens=line.input_tokens + (usage.input_tokens or 0),
                cache_read_tokens=line.cache_read_tokens + (usage.cache_read_tokens or 0),
                cache_write_tokens=line.cache_write_tokens + (usage.cache_write_tokens or 0),
                cost_units=line.cost_units + call.units,
            )
            return self.count(arm, (scope, call.conversation), call.agent, call.units)

    def weigh(self, talk: tuple[str, str], agent: str, units: float, unmodified: float) -> Mapping[str, Reason]:
        """Count what a fork cost beside the application's own request, where there is no second arm; as ``take``."""
        if self.share is not None:
            return {}
        with self._lock:
            if agent not in self._agents and len(self._agents) >= _AGENTS:
                return {}
            self._agents.add(agent)
            first, beside = (*talk, _ALL) not in self._talks, (talk[0], talk[1] + _UNMODIFIED)
            for name in (_ALL,) if first else (_ALL, agent):
                self._count("fork", talk, name, units)
                self._count("own", beside, name, unmodified)
            key = (*talk, f"{_BEYOND}{self._rounds}")
            self._talks[key] = self._beyond.add(self._talks.get(key), units - DEARER * unmodified)
            # Money: conversation by conversation both costs are of the same requests, so their difference is judged.
            if not self._beyond.mean > DEVIATIONS * sqrt(self._beyond.variance):
                return {}
            forked, own = (round(self._costs[arm, _ALL].mean) for arm in ("fork", "own"))
            known = self._cheap if self._rounds else self._agents
            self._cheap = _sharing(frozenset(one for one in known if self._cheaper(one)))
            self._in_all = reason("dearer_as_fork", _OF_ALL, forked=forked, own=own)
            self._beyond, self._rounds = _Costs(), self._rounds + 1
            return dict.fromkeys(sorted(known - self._cheap), self._in_all)

    def count(self, arm: Arm, talk: tuple[str, str], agent: str, units: float) -> Mapping[str, Reason]:
        """Count what one request of a conversation (its tenant and id) cost, and look at the roles; as ``take``."""
        first = self._count(arm, talk, _ALL, units)
        if agent not in self._agents and len(self._agents) >= _AGENTS:
            # Roles made up for each request have no costs of their own that could be compared.
            return {}
        self._agents.add(agent)
        if not first and agent not in self._returned:
            # A conversation's first request writes what the others read, which is not held against its role.
            self._count(arm, talk, agent, units)
        news = self._judged(agent)
        self._returned.update(news)
        return news

    def report(self) -> Arms | None:
        """Both arms; None where all conversations are forked."""
        if self.share is None:
            return None
        with self._lock:
            said = tuple(f"{agent}: {why.said}" for agent, why in self._returned.items())
            return Arms(self.share, self._lines["fork"], self._lines["own"], self._unreported, said)

    def _count(self, arm: Arm, talk: tuple[str, str], agent: str, units: float) -> bool:
        """Count a request for a role, or for all; whether it is its conversation's first there."""
        key = (*talk, agent)
        before = self._talks.get(key)
        self._talks[key] = self._costs.setdefault((arm, agent), _Costs()).add(before, units)
        return before is None

    def _judged(self, agent: str) -> Mapping[str, Reason]:
        """A role whose forks got dearer; where all of them together did, each one whose own costs are not lower."""
        left = frozenset(self._agents - self._returned.keys())
        found = self._dearer(agent) if agent in left else None
        if found is not None:
            stay = left - {agent}
        else:
            found = self._dearer(_ALL)
            stay = frozenset(one for one in left if found is None or self._cheaper(one))
        return {} if found is None else dict.fromkeys(sorted(left - _sharing(stay)), found)

    def _dearer(self, agent: str) -> Reason | None:
        forked, own = (self._costs.get((arm, agent)) for arm in ("fork", "own"))
        if forked is None or own is None or forked.mean <= own.mean * DEARER:
            return None
        if not forked.mean - own.mean > DEVIATIONS * sqrt(forked.variance + own.variance):
            return None
        whose = _OF_ALL if agent == _ALL else _OF_ONE
        return reason("dearer_as_fork", whose, forked=round(forked.mean), own=round(own.mean))

    def _cheaper(self, agent: str) -> bool:
        forked, own = (self._costs.get((arm, agent)) for arm in ("fork", "own"))
        return forked is not None and own is not None and forked.mean < own.mean
