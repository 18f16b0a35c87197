"""Applications made from a seed: who asks what of whom, and what goes wrong; drivers make frameworks' objects of them.

Several people talk at a time, with equal words among theirs, some through one session, some as another tenant. Each
person, and each tenant, has a word that stands in all that is theirs and nowhere else.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from cacheprefix import Compaction, Gate, ToolResultBudget
from cacheprefix.server import Record, Reply, Request, SimulatedProvider, ToolCall
from tests.fault_matrix import PROVIDER, Case, cases

Act = Literal["ask", "rewind", "reset", "resume"]
"""What comes before the question: nothing, going back a turn, beginning anew, or state saved and loaded elsewhere."""
Way = Literal["whole", "stream", "left", "cancelled"]
"""How an answer is received: at once, streamed, as a stream that is closed early, or not at all."""
MODES = ("unmodified", "observed", "forked")
SCHEMA = {
    "type": "object",
    "properties": {"built": {"type": "string"}},
    "required": ["built"],
    "additionalProperties": False,
}


class Built(BaseModel):
    """``SCHEMA`` for frameworks that take a class."""

    model_config = ConfigDict(extra="forbid")
    built: str


IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
"""One pixel."""
RETRIEVED = "retrieved"
"""The key of volatile text, which stands around it in a fork."""
EQUAL = ("Go on.", "Hello.", "What is next?", "And why is that so?")
"""Questions that several people ask in the same words."""
_BREAKS = [one for one in cases(answers=False) if one.provider is None and one.name != "disk is full"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool by name; what it gives back begins with the person's word and has ``size`` words."""

    name: str
    says: str
    size: int
    tenant: str = ""
    """Whose it is alone."""


@dataclass(frozen=True, slots=True)
class Role:
    """An agent: the text that makes it one, and its tools."""

    name: str
    duty: str
    tools: tuple[Tool, ...]


@dataclass(frozen=True, slots=True)
class Person:
    """Who talks. ``name`` and ``tenant`` are words that stand in nobody else's texts."""

    name: str
    tenant: str
    thread: str
    """The id of the conversation, which another tenant's may have too."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One question of each of some people, who ask at the same time."""

    number: int
    people: tuple[Person, ...]
    roles: tuple[Role, ...]
    """Who answers each of them, one after the other, or, ``together``, all at once on the same history."""
    together: bool
    said: str
    """The question; ``{mine}`` stands for a person's own words."""
    act: Act
    way: Way
    rounds: int
    """How often a role calls tools before it answers."""
    fault: str
    """What goes wrong at the provider, see ``fault_matrix.PROVIDER``; empty for nothing."""
    late: bool
    """Whether it goes wrong behind the rounds of tools, not before."""
    retried: bool
    """Whether the application asks again after an error, else it goes on without an answer."""
    volatile: bool
    """Whether requests hold text of this turn alone: what was retrieved, the time."""
    image: bool
    form: bool
    """Whether the answer has to follow ``SCHEMA``."""


@dataclass(frozen=True, slots=True)
class Application:
    """All that a driver needs to build and run one."""

    seed: int
    api: str
    later: bool
    """Whether it is asynchronous."""
    handbook: str
    people: tuple[Person, ...]
    roles: tuple[Role, ...]
    turns: tuple[Turn, ...]
    named: bool
    """Whether conversations have an id."""
    last: bool
    """Whether the shared text stands behind the role's in system texts."""
    memory: bool
    """Whether system texts hold what is remembered of a person."""
    latency: float
    """Seconds to each first token."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of the session; none is the default configuration."""
    broken: Case | None = None
    """What of ours fails."""
    same_ids: bool = False
    """Whether the model's calls have the same ids in all conversations."""
    kind: str = ""
    """Which of a driver's kinds of application it is; empty for one that goes by the seed."""

    @property
    def rules(self) -> str:
        """The provider's rules."""
        return "anthropic" if self.api == "anthropic" else "openai-5.6"

    @property
    def tenants(self) -> tuple[str, ...]:
        """All tenants, in order."""
        return tuple(dict.fromkeys(one.tenant for one in self.people))

    @property
    def bounded(self) -> bool:
        """Whether histories or results may be shortened."""
        return bool({"compaction", "budget"} & self.options.keys())

    def system(self, role: Role, person: Person) -> str:
        """A role's system text, as the application writes it."""
        memory = self.remembered(person) if self.memory else ""
        parts = (role.duty, memory, self.handbook) if self.last else (self.handbook, role.duty, memory)
        return "\n\n".join(part for part in parts if part)

    def remembered(self, person: Person) -> str:
        """What system texts hold of a person, where the application has ``memory``."""
        return f"Remember of them: {self.words(person, 'memory', 12)}"

    def tools(self, role: Role, person: Person) -> tuple[Tool, ...]:
        """Those of a role that a person's tenant has."""
        return tuple(tool for tool in role.tools if tool.tenant in ("", person.tenant))

    @property
    def parallel(self) -> bool:
        """Whether any requests are made at the same time."""
        return any(turn.together or len(turn.people) > 1 or turn.way == "cancelled" for turn in self.turns)

    @property
    def resumed(self) -> bool:
        """Whether state is saved and loaded in it."""
        return any(turn.act == "resume" for turn in self.turns)

    def back(self, turn: Turn, count: int) -> int:
        """Which of ``count`` turns a person's conversation goes back to the beginning of, in a ``rewind``."""
        return random.Random(f"{self.seed}/{turn.number}").randrange(count)

    def words(self, person: Person, what: str, count: int) -> str:
        """Words of a person's own."""
        return " ".join(f"{person.name}-{what}-{at}" for at in range(count))

    def question(self, turn: Turn, person: Person) -> str:
        """What a person asks in a turn."""
        return turn.said.replace("{mine}", self.words(person, f"ask-{turn.number}", len(turn.said)))

    def retrieved(self, turn: Turn, person: Person) -> str:
        """Text of this turn alone."""
        return f"It is {turn.number} o'clock. Found: {self.words(person, f'found-{turn.number}', 9)}"

    def run_tool(self, name: str, person: Person, at: str) -> str:
        """What a tool gives back."""
        size = next((tool.size for role in self.roles for tool in role.tools if tool.name == name), 3)
        return f"{name} {at}: " + self.words(person, f"{name}-{at}", size)

    def __str__(self) -> str:
        kinds = [one.act if one.act != "ask" else one.way for one in self.turns]
        kinds += [f"{one.fault} at {one.number}" for one in self.turns if one.fault]
        more = [key for key, on in (("named", self.named), ("together", any(t.together for t in self.turns))) if on]
        broken = [f"ours broken: {self.broken.name}"] if self.broken else []
        whose = f"{len(self.people)} people of {len(self.tenants)} tenants, {len(self.roles)} roles"
        said = (f"{self.seed}: {self.api}{' async' if self.later else ''}", whose, " ".join(kinds))
        return ", ".join((*said, *more, *self.options, *broken))


def application(seed: int, apis: Sequence[str]) -> Application:
    """The application of a seed; every other one has a session with nothing but a prefix."""
    rng = random.Random(seed)
    tenants = [_word(rng) for _ in range(rng.choice((1, 1, 2)))]
    of = [rng.choice(tenants) for _ in range(rng.choice((1, 2, 2, 3)))]
    people = tuple(Person(_word(rng), one, f"thread-{of[:at].count(one)}") for at, one in enumerate(of))
    tools = [
        Tool(f"{verb}_{rng.choice(('log', 'page'))}", _told(rng, verb), rng.choice((2, 2, 30, 900)))
        for verb in rng.sample(("read", "find", "open", "list", "count"), rng.choice((0, 2, 4)))
    ]
    # What is saved is loaded where the same tools are known; a tenant's own are so to nobody before.
    resumed = rng.random() < 0.4
    if tools and not resumed and rng.random() < 0.3:
        # Each has its own of that name, or one alone has it.
        whose = tenants[: rng.choice((1, 2))]
        tools += [Tool("house", f"Asks the house of {tenant}.", 3, tenant) for tenant in whose]
    roles = tuple(
        Role(name, f"You are the {name}. " + f"A {name} keeps to rule {at}. " * rng.choice((1, 1, 8, 120)),
             tuple(rng.sample(tools, rng.choice((0, len(tools) // 2, len(tools))))))
        for at, name in enumerate(rng.sample(("planner", "critic", "writer", "checker"), rng.choice((1, 2, 3))))
    )  # fmt: skip
    later, named = rng.random() < 0.5, resumed or rng.random() < 0.4
    turns = tuple(
        _turn(rng, number, people, roles, later=later, resumed=resumed) for number in range(rng.randint(3, 9))
    )
    rules = range(rng.choice((130, 130, 20)))
    handbook = " ".join(f"Rule {n}: who claims something of part {n} names its source." for n in rules)
    plain = rng.random() < 0.5
    options: dict[str, Any] = {}
    if not plain:
        chosen = rng.randrange(4)
        if chosen in (0, 2):
            options["compaction"] = Compaction(trigger=rng.choice((2_500, 5_000)), horizon=1_000)
        if chosen in (1, 2):
            options["budget"] = ToolResultBudget(max_tokens=rng.choice((60, 300)))
        if chosen == 3:
            options["gate"] = rng.choice((None, Gate(price=0.0)))
    broken = rng.choice(_BREAKS) if rng.random() < 0.12 else None
    waits = any(turn.way == "cancelled" for turn in turns) or rng.random() < 0.15
    return Application(
        seed, rng.choice(list(apis)), later, handbook, people, roles, turns, named, rng.random() < 0.5,
        rng.random() < 0.3, 0.04 if waits else 0.0, options, broken, rng.random() < 0.5,
    )  # fmt: skip


def _word(rng: random.Random) -> str:
    return "x" + "".join(rng.choice("bcdfghjklmnpqrstvwz") for _ in range(9))


def _told(rng: random.Random, verb: str) -> str:
    return f"Use it to {verb} what is there. " * rng.choice((1, 3, 60))


def _turn(
    rng: random.Random, number: int, people: Sequence[Person], roles: Sequence[Role], *, later: bool, resumed: bool
) -> Turn:
    asking = tuple(rng.sample(people, rng.randint(1, len(people))))
    answering = tuple(rng.sample(roles, rng.randint(1, len(roles))))
    said = rng.choice((*EQUAL, "My own: {mine}", "My own: {mine}" + " and more" * rng.choice((1, 12))))
    act: Act = "ask" if number == 0 else rng.choice(("ask",) * 6 + ("rewind", "reset", "resume" if resumed else "ask"))
    way: Way = rng.choice(("whole",) * 4 + ("stream",) * 2 + ("left", "cancelled" if later else "left"))
    fault = rng.choice(sorted(PROVIDER)) if rng.random() < 0.12 and way in ("whole", "stream") else ""
    form = rng.random() < 0.08 and way == "whole"
    rounds = 0 if form or way in ("left", "cancelled") else rng.choice((0, 0, 1, 2))
    return Turn(
        number, asking, answering, rng.random() < 0.3, said, act, way, rounds, fault, rng.random() < 0.5,
        rng.random() < 0.5, rng.random() < 0.2, rng.random() < 0.08, form,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------ who asks, on the wire

_ASKING: ContextVar[tuple[str, str]] = ContextVar("trial_asking", default=("", ""))


@contextmanager
def asking(person: Person, turn: Turn, agent: str, attempt: int = 0) -> Iterator[None]:
    """Requests of the block, and of what is started there, carry in their headers whose they are.

    ``agent`` is the role's name; where one role asks several things at once, ``NAME#BRANCH``. A driver that does not
    know it says none: it is found by the role's duty in the body. With ``#cancelled`` the request may go out or not.
    """
    token = _ASKING.set((f"{person.name}/{turn.number}/{attempt}", agent))
    try:
        yield
    finally:
        _ASKING.reset(token)


def whose() -> dict[str, str]:
    """The headers that say who asks."""
    session, agent = _ASKING.get()
    return {"x-cacheprefix-session": session, "x-cacheprefix-agent": agent}


def who() -> str:
    """The name of the person who asks."""
    return _ASKING.get()[0].partition("/")[0]


def hooks(role: str = "", *, later: bool = False) -> dict[str, list[Any]]:
    """``event_hooks`` for an httpx client: it says in headers who asks, which the simulated provider records.

    ``role`` is for a client of one role's own, where ``asking`` does not know whose turn it is.
    """

    def mark(request: Any) -> None:
        told = whose()
        request.headers.update({**told, "x-cacheprefix-agent": role + told["x-cacheprefix-agent"]})

    async def amark(request: Any) -> None:
        mark(request)

    return {"request": [amark if later else mark]}


def again(last: Record | None, record: Record) -> bool:
    """Whether a leader that streamed for its siblings, and whose answer was a fault, asks for the whole answer."""
    if last is None or last.reply is None or last.reply.fault is None or record.asked.stream >= last.asked.stream:
        return False
    bodies = [[one.data for one in each.prompt.sections] if each.prompt else None for each in (last, record)]
    return bodies[0] is not None and bodies[0] == bodies[1]


class Answers:
    """What the model says: it goes by who asks and how often, so it is the same in every layout."""

    def __init__(self, app: Application, provider: SimulatedProvider) -> None:
        self._app, self._provider = app, provider
        self._asked: Counter[tuple[str, str]] = Counter()
        self._last: dict[tuple[str, str], Record] = {}

    def __call__(self, request: Request, /) -> Reply:
        """The answer to the next request of this agent in this turn."""
        record = self._provider.requests[request.index]
        if not (record.agent or "").partition("#")[0]:
            text, roles = request.text, self._app.roles
            told = (one.name for one in roles if one.duty.partition(".")[0] in text)
            record.agent = f"{next(told, '')}{record.agent or ''}"
        key = record.session or "", record.agent or ""
        if not again(self._last.get(key), record):
            self._asked[key] += 1
        self._last[key], nth = record, self._asked[key] - 1
        name, number, attempt = key[0].split("/")
        turn, person = self._app.turns[int(number)], next(one for one in self._app.people if one.name == name)
        said = self._said(request, person, turn, key[1], f"a{attempt}n{nth}", calls=nth < turn.rounds)
        if turn.fault and attempt == "0" and nth >= (turn.rounds if turn.late else 0):
            # However often it is asked: a leader that streams for its siblings is asked again as a whole.
            return replace(said, fault=PROVIDER[turn.fault])
        return said

    def _said(self, request: Request, person: Person, turn: Turn, agent: str, nth: str, *, calls: bool) -> Reply:
        rng = random.Random(f"{self._app.seed}/{person.name}/{turn.number}/{agent}/{nth}")
        role = agent.partition("#")[0]
        if request.asked.schema is not None:
            return Reply(f'{{"built": "{person.name}-built-{turn.number}"}}')
        found = next((one for one in self._app.roles if one.name == role), None)
        tools = [tool for tool in self._app.tools(found, person) if tool.name in request.asked.tools] if found else []
        if calls and tools:
            whose = f"{'everyone' if self._app.same_ids else person.name}{agent.replace('#', '')}{turn.number}{nth}"
            names = [rng.choice(tools).name for _ in range(rng.choice((1, 1, 2, 3)))]
            made = (
                ToolCall(name, {"at": f"{turn.number}.{nth}.{at}"}, id=f"call_{whose}n{at}")
                for at, name in enumerate(names)
            )
            return Reply(rng.choice(("", "I look.")), tuple(made))
        if rng.random() < 0.3:
            return Reply("Fine.")
        return Reply(self._app.words(person, f"answer-{turn.number}-{role}", rng.choice((3, 40, 250))))
