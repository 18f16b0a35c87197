"""Teams made from a seed, which the tests of an adapter run unmodified and forked: neither may be much the dearer.

A plan is sizes alone; an adapter's test makes a team of its framework of it, of a kind whose run is known beforehand or
of another one. ``CACHEPREFIX_TEAMS`` is the number of plans (``make test-more`` takes more), ``CACHEPREFIX_SEED``
another seed.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from benchmarks._table import counter
from cacheprefix import Caching, Session
from cacheprefix.profiles import Profile, default_registry
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Reply, Request, SimulatedProvider, fill

RULES = ("openai", "openai-5.6", "anthropic")
READS = (0.1, 0.25, 0.5)
NAMES = ("ann", "bob", "cid", "dot", "eve")
MANY = int(os.environ.get("CACHEPREFIX_TEAMS", "0"))
SEED = int(os.environ.get("CACHEPREFIX_SEED", "1"))


@dataclass(frozen=True, slots=True)
class Plan:
    """A team and its run. Token counts, by the estimate."""

    number: int
    rules: str
    read: float
    roles: tuple[int, ...]
    """Of each agent's own text."""
    tools: tuple[int, ...]
    """Of each agent's tools; no agent has any where all are 0."""
    rounds: int
    handbook: int
    """Of what all agents' texts have in common."""
    first: bool
    """Whether it stands in front of their own."""
    task: int
    answer: int

    @property
    def names(self) -> tuple[str, ...]:
        """The agents' names."""
        return NAMES[: len(self.roles)]

    @property
    def profile(self) -> Profile:
        """The provider's rules, with the price of a read token."""
        return replace(default_registry().get(self.rules), read=self.read)

    def session(self) -> Session:
        """One that knows these rules and nothing else."""
        registry = default_registry().copy()
        registry.register(self.profile)
        return Session(caching=Caching(provider=self.rules, counter=ESTIMATE, profiles=registry))

    def text(self, at: int) -> str:
        """An agent's whole system text."""
        own = f"You are {self.names[at]}. {fill(f'The duty of {self.names[at]}:', self.roles[at])}"
        book = fill("The handbook:", self.handbook)
        return "\n\n".join((book, own) if self.first else (own, book))

    @property
    def said(self) -> str:
        """The task."""
        return fill("The task:", self.task)

    def kit(self, at: int) -> list[tuple[str, str]]:
        """Names and descriptions of an agent's tools, of 300 tokens each at most."""
        sizes = [300] * (self.tools[at] // 300) + [self.tools[at] % 300]
        name = self.names[at]
        return [(f"{name}_{n}", fill(f"Tool {n} of {name}:", size)) for n, size in enumerate(sizes) if size >= 20]


def plans(many: int, *, tools: bool, agents: int = 1, salt: str = "") -> list[Plan]:
    """So many plans of at least so many agents, or as many as the environment says, all rules and prices in turn."""
    return [_plan(number, tools=tools, agents=agents, salt=salt) for number in range(MANY or many)]


def _plan(number: int, *, tools: bool, agents: int, salt: str) -> Plan:
    chance = random.Random(f"{SEED} {salt} {number}")
    some = chance.randint(agents, 5)

    def size(low: int, high: int) -> int:
        # Small ones as often as large ones.
        return round(low * (high / low) ** chance.random())

    roles = tuple(size(20, 2_000) for _ in range(some))
    if chance.random() < 0.3:
        roles = roles[:1] * some
    kits = tuple(size(40, 2_000) if tools and chance.random() < 0.6 else 0 for _ in range(some))
    read = READS[(number + number // 3) % 3]
    return Plan(
        number, RULES[number % 3], read, roles, kits, chance.randint(1, 6), size(100, 3_000), chance.random() < 0.5,
        size(20, 2_000), size(20, 600),
    )  # fmt: skip


def answering(plan: Plan) -> Callable[[Request], Reply]:
    """A model that says in so many tokens which role it was asked as last, and how often that was."""
    count: dict[str, int] = {}

    def answer(request: Request) -> Reply:
        who = [*re.findall(r"You are (\w+)\.", request.text), "nobody"][-2 if "You are" in request.text else -1]
        count[who] = count.get(who, 0) + 1
        return Reply(fill(f"{who} says, for the time {count[who]}:", plan.answer))

    return answer


def near_the_minimum(many: int, factor: float, *, tools: bool = False, agents: int = 1, salt: str = "") -> list[Plan]:
    """Plans whose handbook, with an agent's own text or without, is about as long as the provider's minimum.

    ``factor`` is what the provider counts for one of our tokens.
    """
    found = []
    for plan in plans(many, tools=tools, agents=agents, salt=f"{salt} {factor}"):
        chance = random.Random(f"{SEED} minimum {salt} {factor} {plan.number}")
        own = chance.choice((0, plan.roles[0]))
        least = plan.profile.min_tokens / factor * chance.uniform(0.9, 1.1)
        found.append(replace(plan, handbook=max(20, round(least) - own), rounds=min(plan.rounds, 3)))
    return found


@contextmanager
def serving(factor: float = 1.0) -> Iterator[Callable[[Plan], SimulatedProvider]]:
    """One provider, which begins each plan with its rules and an empty cache.

    ``factor`` is what it counts for one of our tokens.
    """
    with SimulatedProvider(count=counter(factor)) as provider:

        def begun(plan: Plan) -> SimulatedProvider:
            provider.reset()
            provider.simulator.rules = plan.profile
            provider.simulator.script = answering(plan)
            return provider

        yield begun


def spent(provider: SimulatedProvider, plan: Plan) -> list[float]:
    """What each request cost, in cost units. Raises ``AssertionError`` for one that was refused."""
    assert all(record.status == 200 for record in provider.requests)
    return [record.outcome.cost_units(plan.profile) for record in provider.requests if record.outcome is not None]


EQUAL = 1.0005
"""What a known run may cost for each unmodified unit: costs are counted to a tenth of a unit."""
PART, TOOLS = 0.10, 0.43
"""docs/never-dearer.md: what an open-ended run may cost more, and the first of its requests for the tools of all."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What a plan cost unmodified and forked, call by call."""

    plan: Plan
    own: Sequence[float]
    forked: Sequence[float]
    known: bool
    """Whether the run was known beforehand."""
    failures: Mapping[str, int]
    reported: float | None = None
    """What the session's report says that it had cost unmodified."""

    @property
    def ratio(self) -> float:
        """Cost units forked, for each unmodified."""
        return sum(self.forked) / sum(self.own)

    @property
    def most(self) -> float:
        """What it may cost forked: at most the unmodified run, or within the bounds of one that nobody knows."""
        own = sum(self.own)
        premium = self.plan.profile.default_ttl.write - 1.0
        return EQUAL * own if self.known else (1.0 + PART) * own + (TOOLS + premium) * self.own[0]

    def __str__(self) -> str:
        plan, how = self.plan, "known" if self.known else "open"
        return f"{self.ratio:.3f} {how} {len(self.own)} calls {plan}"


def dearer(found: Sequence[Compared]) -> list[str]:
    """Those that cost more than they may, or failed, or made other calls than without us; for an assertion."""
    wrong = [one for one in found if one.failures or len(one.own) != len(one.forked) or sum(one.forked) > one.most]
    return [f"{one} {dict(one.failures)}" for one in wrong]


FACTORS = (0.7, 1.4)
"""Tokens that a provider counts for one of ours."""


def untrue(found: Sequence[Compared]) -> list[str]:
    """Those whose report is more than 2 % from what they cost unmodified, and does not say that it is unknown."""
    wrong = [one for one in found if one.reported is not None and abs(one.reported / sum(one.own) - 1) > 0.02]
    return [f"reported {one.reported:.0f} for {sum(one.own):.0f} {one.plan}" for one in wrong]


def known_of(found: Sequence[Compared]) -> float:
    """The share of them whose report gives a number."""
    return sum(one.reported is not None for one in found) / len(found)
