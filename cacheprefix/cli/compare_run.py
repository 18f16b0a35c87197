"""The user's evaluation on both layouts: scores and costs of every task, and how sure their difference is."""

from __future__ import annotations

import math
import random
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cacheprefix.cli.files import imported
from cacheprefix.errors import SetupError

if TYPE_CHECKING:
    from cacheprefix import Session

Layout = Literal["unmodified", "shared"]
LAYOUTS: tuple[Layout, ...] = ("unmodified", "shared")
Evaluate = Callable[[Callable[..., "Session"]], Any]
DRAWS = 2_000
"""Resamples behind a confidence interval."""


class EvaluationError(SetupError):
    """The user's evaluation raised, or returned something that is no score."""


@dataclass(frozen=True)
class Task:
    """One task as one layout did it. Cost in cost units, the price of an uncached input token being 1."""

    name: str
    score: float
    cost_units: float | None
    """None where the costs of single tasks are not known: the evaluation returned all scores at once."""


@dataclass
class Side:
    """What one layout came to, over all repeats."""

    tasks: list[Task] = field(default_factory=list)
    calls: int = 0
    input_tokens: int = 0
    cache_read_tokens: int = 0
    cost_units: float = 0.0
    usd: float | None = 0.0
    failures: int = 0

    @property
    def cached_share(self) -> float:
        """Cached tokens of all input tokens."""
        return self.cache_read_tokens / self.input_tokens if self.input_tokens else 0.0


class Sessions:
    """Makes the sessions of one run of the evaluation, and adds up what they report."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.made: list[Session] = []

    def __call__(self, *given: Any, **options: Any) -> Session:
        """``Session(...)`` in the mode of the layout; ``observe`` sends the application's own bytes."""
        from cacheprefix import Session

        mode: Literal["observe", "fork"] = "observe" if self._layout == "unmodified" else "fork"
        self.made.append(Session(*given, **{**options, "mode": mode}))
        return self.made[-1]

    def cost(self) -> float:
        """Cost units so far."""
        return sum(session.report().total.cost_units for session in self.made)


def load(name: str) -> Evaluate:
    """The function ``module:function``; the current folder counts as a place of modules."""
    where, colon, what = name.partition(":")
    if not colon or not where or not what:
        raise SetupError(f"{name!r} is no function: write module:function, as in my_evaluation:evaluate")
    function = imported(name, None)
    if not callable(function):
        raise SetupError(f"module {where!r} has no function {what!r}")
    evaluate: Evaluate = function
    return evaluate


def run(evaluate: Evaluate, side: Side, layout: Layout) -> None:
    """Run the evaluation once in one layout and add what came of it."""
    sessions = Sessions(layout)
    try:
        returned = evaluate(sessions)
        side.tasks += list(_tasks(returned, sessions))
    except EvaluationError:
        raise
    except Exception as error:
        raise EvaluationError(f"the evaluation failed in the {layout} layout: {_said(error)}") from error
    if not sessions.made:
        raise EvaluationError(
            "the evaluation made no session: it gets a function and calls it as it would call Session(...), "
            "def evaluate(new_session): session = new_session(SharedPrefix(...))"
        )
    for session in sessions.made:
        total = session.report().total
        side.calls += total.calls
        side.input_tokens += total.input_tokens
        side.cache_read_tokens += total.cache_read_tokens
        side.cost_units += total.cost_units
        side.usd = None if side.usd is None or total.money is None else side.usd + total.money
        side.failures += sum(session.failures.values())


def _tasks(returned: Any, sessions: Sessions) -> Iterator[Task]:
    """The tasks that an evaluation returned or yields; a yielded one has a cost, what was paid since the last."""
    if isinstance(returned, Mapping):
        for name, score in returned.items():
            yield Task(str(name), _score(score), None)
        return
    single = isinstance(returned, Iterator)
    before = 0.0
    for number, one in enumerate(returned if hasattr(returned, "__iter__") else [returned], 1):
        name, score = one if isinstance(one, tuple) and len(one) == 2 else (f"task {number}", one)
        after = sessions.cost() if single else 0.0
        yield Task(str(name), _score(score), after - before if single else None)
        before = after


def _score(value: Any) -> float:
    try:
        score = float(value)
    except (TypeError, ValueError):
        score = float("nan")
    if math.isnan(score):
        raise EvaluationError(f"the evaluation gave {value!r} as a score; a score is a number or a bool")
    return score


def _said(error: Exception) -> str:
    """The error and the innermost line it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f", {Path(frames[-1].filename).name} line {frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


@dataclass(frozen=True)
class Estimate:
    """A value and the interval that holds it with the confidence asked for."""

    value: float
    low: float
    high: float


def mean_of(values: Sequence[float], confidence: float, seed: int) -> Estimate:
    """The mean and its interval, from resampled tasks (percentile bootstrap)."""
    return _interval(values, _mean, confidence, seed)


def difference(sides: Mapping[Layout, Side], confidence: float, seed: int) -> Estimate:
    """Quality of the shared layout less that of the unmodified one, task by task where the tasks are the same."""
    return _interval(_pairs(sides), lambda pairs: _mean([b.score - a.score for a, b in pairs]), confidence, seed)


def cost_ratio(sides: Mapping[Layout, Side], confidence: float, seed: int) -> Estimate | None:
    """Cost of the shared layout against the unmodified one; None where the costs of single tasks are not known."""
    pairs = _pairs(sides)
    if any(one.cost_units is None for pair in pairs for one in pair):
        return None

    def ratio(drawn: Sequence[tuple[Task, Task]]) -> float:
        before = sum(a.cost_units or 0.0 for a, _ in drawn)
        return sum(b.cost_units or 0.0 for _, b in drawn) / before if before else 1.0

    return _interval(pairs, ratio, confidence, seed)


def _pairs(sides: Mapping[Layout, Side]) -> list[tuple[Task, Task]]:
    before, after = sides["unmodified"].tasks, sides["shared"].tasks
    if [task.name for task in before] != [task.name for task in after]:
        raise EvaluationError(
            f"the layouts did different tasks ({len(before)} and {len(after)}); an evaluation gives the same tasks "
            "in the same order each time"
        )
    return list(zip(before, after, strict=True))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _interval(
    items: Sequence[Any], statistic: Callable[[Sequence[Any]], float], confidence: float, seed: int
) -> Estimate:
    draw = random.Random(seed)  # noqa: S311 - resampling, no secret
    found = sorted(statistic(draw.choices(items, k=len(items))) for _ in range(DRAWS))
    outside = (1 - confidence) / 2
    return Estimate(statistic(items), found[int(outside * (DRAWS - 1))], found[int((1 - outside) * (DRAWS - 1))])
