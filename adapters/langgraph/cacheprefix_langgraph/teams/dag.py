"""``prefix_dag``: tasks with dependencies as a compiled graph, each task a fork of one prefix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph

from cacheprefix import Session, Usage
from cacheprefix_langgraph.state import PrefixState
from cacheprefix_langgraph.teams.outcomes import Outcome, merged, outcome_from, total
from cacheprefix_langgraph.teams.templates import fill_in
from cacheprefix_langgraph.teams.waves import Task, waves_of
from cacheprefix_langgraph.teams.worker import Step, Worker, session_for, step_of, worker_for


class DagState(MessagesState, PrefixState):
    """The state of a task graph; ``messages`` is what all tasks read."""

    variables: Annotated[dict[str, Any], merged]
    """Texts for the places of the prompts."""
    outcomes: Annotated[dict[str, Any], merged]
    """By task id."""


@dataclass(frozen=True, slots=True)
class DagResult:
    """What a task graph came to."""

    outcomes: Mapping[str, Outcome]
    waves: tuple[tuple[str, ...], ...]
    """Task ids by the wave in which they ran."""

    @property
    def parallelized_count(self) -> int:
        """How many tasks ran beside another one; those that were blocked did not run."""
        ran = Counter(one.wave for one in self.outcomes.values() if one.status != "blocked")
        return sum(number for number in ran.values() if number > 1)

    @property
    def wall_seconds(self) -> float:
        """From the first task's start to the last one's end."""
        ran = [one for one in self.outcomes.values() if one.status != "blocked"]
        return max((one.started + one.seconds for one in ran), default=0.0) - min(
            (one.started for one in ran), default=0.0
        )

    @property
    def sequential_seconds(self) -> float:
        """All tasks' times added up: what they would have taken one after the other, when none waits for a sibling."""
        return sum(outcome.seconds - outcome.waited for outcome in self.outcomes.values())

    @property
    def usage(self) -> Usage:
        """All calls added up."""
        return total(self.outcomes.values())

    @property
    def cached_share(self) -> float | None:
        """Share of the whole input that was read from the cache; None where the provider did not say."""
        return self.usage.cached_share

    @property
    def cost_units(self) -> float:
        """The whole input's price in uncached input tokens."""
        return sum(outcome.cost_units for outcome in self.outcomes.values())

    def text(self, task: str) -> str:
        """A task's result; empty when it failed or did not run. Raises ``KeyError`` for an unknown id."""
        return self.outcomes[task].text


def prefix_dag(
    model: Any,
    tasks: Sequence[Task],
    *,
    session: Session | None = None,
    variables: Mapping[str, str] | None = None,
    checkpointer: Any = None,
    store: Any = None,
    name: str = "prefix_dag",
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """A compiled graph with one node a task; tasks whose dependencies are done run side by side.

    Invoke it with ``{"messages": [...]}`` (what all tasks should read, may be empty) and, if wanted, ``variables``;
    read the result with ``dag_result``. A task that fails blocks only those that need it, which are not run. The
    graph's recursion limit is set to its length. Raises ``CycleError``, ``UnknownDependencyError``,
    ``DuplicateTaskError``, and ``SetupError`` for a prompt that uses a result its task does not wait for.
    """
    bound = session_for(model, session)
    waves = waves_of(tasks)
    given = dict(variables or {})
    graph = StateGraph(DagState)
    names = _node_names([task.id for task in tasks])
    needed = {dependency for task in tasks for dependency in task.depends_on}
    for number, wave in enumerate(waves):
        for task in wave:
            worker = worker_for(task.model or model, bound, task.id, task.instructions, task.tools, task.max_turns)
            worker.bound  # noqa: B018 - tools join the shared union before the first request
            graph.add_node(names[task.id], _node(task, worker, given, number, names))
            before = [names[dependency] for dependency in dict.fromkeys(task.depends_on)]
            graph.add_edge(before if len(before) > 1 else before[0] if before else START, names[task.id])
            if task.id not in needed:
                graph.add_edge(names[task.id], END)
    compiled = graph.compile(checkpointer=checkpointer, store=store, name=name)
    return compiled.with_config(recursion_limit=max(25, 2 * len(waves) + 10))


def dag_result(values: Mapping[str, Any]) -> DagResult:
    """The result of a task graph from its values."""
    outcomes = {key: outcome_from(data) for key, data in (values.get("outcomes") or {}).items()}
    waves: dict[int, list[str]] = {}
    for key, outcome in outcomes.items():
        waves.setdefault(outcome.wave, []).append(key)
    return DagResult(outcomes, tuple(tuple(waves[number]) for number in sorted(waves)))


def _node(task: Task, worker: Worker, variables: Mapping[str, str], wave: int, ids: Collection[str]) -> Step:
    """The node of one task: it waits for the results that the task needs, fills them in, and works."""
    needs = tuple(dict.fromkeys(task.depends_on))

    def place(state: Any) -> tuple[Worker, str] | Outcome:
        done = {need: outcome_from(state["outcomes"][need]) for need in needs}
        missing = [need for need, outcome in done.items() if outcome.status != "completed"]
        if missing:
            return Outcome(task.id, "blocked", error=f"needs {', '.join(missing)}", wave=wave)
        values = {**variables, **{key: str(value) for key, value in (state.get("variables") or {}).items()}}
        values |= {need: outcome.text for need, outcome in done.items()}
        return worker, fill_in(task.prompt, values, ids)

    return step_of(task.id, worker, place, wave=wave)


def _node_names(ids: Sequence[str]) -> dict[str, str]:
    """Names that LangGraph takes for nodes: the ids, but for those with characters it keeps for itself."""
    taken = set(ids)
    names: dict[str, str] = {}
    for id_ in ids:
        plain = id_.replace(":", "_").replace("|", "_")
        if plain.startswith("__") or plain in DagState.__annotations__ or plain in ("messages", "cacheprefix"):
            plain = f"task {plain}"
        while plain != id_ and plain in taken:
            plain += "_"
        taken.add(plain)
        names[id_] = plain
    return names
