"""Applications that another process takes up in their midst: what it sends, and what the application sees of it.

An adapter's driver of the trial plays each of them unmodified, observed, and forked: once by several processes, each of
which goes on from what the framework itself saves, and once by one process. Unlike in the trial nobody asks at the same
time, so that every byte of the prompts is to be the same, whoever asks first, and with whatever tools or schema.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cacheprefix import Caching, Compaction, ToolResultBudget
from tests.transparent.compare import allowed_in
from tests.transparent.harness import Mode
from tests.trial.applications import Application, Person, Role, Tool, Turn
from tests.trial.checks import Broken, Run, change, check, spoken
from tests.trial.playing import driver, one_run

ALICE = Person("xalice", "xacme", "thread-0")
FIND, READ, COUNT = Tool("find_page", "Finds a page.", 40), Tool("read_log", "Reads the log.", 900), Tool(
    "count_page", "Counts the pages. " * 40, 3
)  # fmt: skip
PLANNER = Role("planner", "You are the planner. Plan in three steps.", (FIND,))
CRITIC = Role("critic", "You are the critic. Name the weakest point.", ())
WRITER = Role("writer", "You are the writer. " + "A writer says why, and says it once. " * 120, (FIND, READ))
BUILDER = Role("builder", "You are the builder. Say what is built.", ())
CHECKER = Role("checker", "You are the checker. Check what was said.", (COUNT,))
ROLES = PLANNER, CRITIC, WRITER, CHECKER, BUILDER
_TURN = Turn(
    0, (ALICE,), (PLANNER,), together=False, said="My own: {mine}", act="ask", way="whole", rounds=0, fault="",
    late=False, retried=False, volatile=False, image=False, form=False,
)  # fmt: skip


def _asks(*roles: Role, **more: Any) -> Turn:
    return replace(_TURN, roles=roles, **more)


def _later(*roles: Role, **more: Any) -> Turn:
    """The same in a process that takes the conversation up."""
    return _asks(*roles, act="resume", **more)


SCENARIOS: Mapping[str, Sequence[Turn]] = {
    "several roles": (
        _asks(PLANNER, CRITIC), _asks(WRITER, PLANNER), _later(CRITIC, WRITER), _asks(PLANNER), _later(WRITER, CRITIC),
    ),
    "a schema that was asked for before": (
        _asks(PLANNER, CRITIC), _asks(WRITER, form=True), _later(WRITER, form=True), _asks(PLANNER, WRITER),
    ),
    "a schema that is asked for first": (
        _asks(PLANNER, BUILDER), _asks(WRITER, PLANNER), _asks(WRITER), _later(CRITIC, form=True),
        _asks(PLANNER, BUILDER), _later(WRITER, form=True), _asks(BUILDER),
    ),
    "a role that has a schema": (
        _asks(CRITIC, PLANNER), _asks(WRITER, CRITIC), _asks(WRITER), _later(BUILDER, form=True), _asks(CRITIC),
    ),
    "tools that come late": (
        _asks(CRITIC), _asks(PLANNER, rounds=1), _later(CHECKER, rounds=1), _asks(WRITER, rounds=1),
        _later(PLANNER, CHECKER, rounds=1), _asks(CRITIC),
    ),
    "a request that is refused": (
        _asks(PLANNER, CRITIC), _asks(WRITER, fault="400"), _later(WRITER, PLANNER), _asks(CRITIC, fault="400"),
        _later(CRITIC, fault="400", retried=True), _asks(WRITER),
    ),
    # By a request that was refused nothing has begun, so that its process sends what another one does. The same role
    # asks first behind it: from another role's process gathers that each role has threads of its own, and a new one
    # does not.
    "a first request that is refused": (
        _asks(WRITER, fault="400"), _asks(PLANNER, WRITER), _later(WRITER, CRITIC), _asks(PLANNER),
    ),
    "a resume behind a refusal": (
        _asks(WRITER, fault="400"), _later(WRITER, PLANNER), _asks(CRITIC), _later(WRITER),
    ),
    "text of one turn": (
        _asks(PLANNER, WRITER, volatile=True), _asks(CRITIC), _later(WRITER, CRITIC, volatile=True), _asks(PLANNER),
    ),
}  # fmt: skip
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "unbounded": {},
    "authority": {"caching": Caching(role_as="developer")},
    "compaction": {"compaction": Compaction(trigger=2_500, horizon=1_000)},
    "budget": {"budget": ToolResultBudget(max_tokens=60)},
}


@dataclass(frozen=True, slots=True)
class Taken:
    """One cell: an application, and by which API and in which way it asks."""

    scenario: str
    options: str
    api: str
    later: bool
    kind: str = ""
    """Which of the driver's kinds."""

    def __str__(self) -> str:
        return f"{self.scenario}, {self.options}, {self.kind or self.api}{' async' if self.later else ''}"

    @property
    def application(self) -> Application:
        """For a driver of the trial."""
        turns = tuple(replace(turn, number=number) for number, turn in enumerate(SCENARIOS[self.scenario]))
        handbook = " ".join(f"Rule {n}: who claims something of part {n} names its source." for n in range(130))
        asked = [role for role in ROLES if any(role in turn.roles for turn in turns)]
        return Application(
            1, self.api, self.later, handbook, (ALICE,), tuple(asked), turns, named=True, last=True, memory=False,
            latency=0.0, kind=self.kind, options=dict(OPTIONS[self.options]),
        )  # fmt: skip


_MODES: Mapping[str, Mode] = {
    "unmodified": "unmodified", "observed": "observed", "forked": "forked", "continued": "forked",
}  # fmt: skip
"""What is played; ``continued`` is what one process sends, all others are taken up where the application says so."""
_STEP = 5
"""Has no divisor in common with the numbers of APIs, options and ways: each meets each of the others."""


def cells(adapter: str, *kinds: str, ways: Sequence[bool] = (True,)) -> list[Taken]:
    """Each scenario with each kind; APIs, options and ways in turn."""
    more = list(itertools.product(driver(adapter).apis, OPTIONS, ways))
    pairs = enumerate(itertools.product(SCENARIOS, kinds or ("",)))
    return [
        Taken(scenario, options, api, later, kind)
        for at, (scenario, kind) in pairs
        for api, options, later in [more[at * _STEP % len(more)]]
    ]


def taken_up(adapter: str, cell: Taken) -> list[str]:
    """What is broken in an application that other processes take up."""
    kind, app = driver(adapter), cell.application
    runs = {name: one_run(kind, app, mode, name) for name, mode in _MODES.items()}
    found = check(app, runs, [*allowed_in(kind.framework), *kind.allowed])
    return [str(one) for one in (*found, *_other_bytes(runs), *_without_authority(cell, runs["forked"]))]


def _other_bytes(runs: Mapping[str, Run]) -> Iterator[Broken]:
    """2, and none of what the trial leaves out: here nobody asks at the same time, and each conversation has a name."""
    after, before = runs["forked"].by_key, runs["continued"].by_key
    if not before or before.keys() != after.keys():
        yield Broken(2, f"one process asks {sorted(before)}, several {sorted(after)}")
    for key in sorted(before.keys() & after.keys()):
        if found := change(before[key], after[key], prompts=True):
            yield Broken(2, f"{key}: in one process {found} where another took it up")


def _without_authority(cell: Taken, run: Run) -> Iterator[Broken]:
    """Where the model takes a developer's message behind the conversation, a role's text is none of the user's."""
    if cell.options != "authority" or cell.api == "anthropic":
        return
    duties = [role.duty for role in ROLES]
    for key, record in run.by_key.items():
        for speaker, section in spoken(record.prompt) if record.prompt else ():
            if speaker != "application" and any(duty in section.text for duty in duties):
                yield Broken(9, f"{key}: a role's text as the {speaker}'s, in {section.text[:200]!r}")
