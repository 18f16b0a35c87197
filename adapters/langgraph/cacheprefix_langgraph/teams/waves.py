"""Tasks with dependencies: checked, and put in waves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from graphlib import CycleError as NotOrderedError
from graphlib import TopologicalSorter
from typing import Any

from cacheprefix.errors import SetupError
from cacheprefix_langgraph.teams.templates import named_in


@dataclass(frozen=True, slots=True)
class Task:
    """One task. In ``prompt``, ``{id}`` of a dependency stands for its result and ``{name}`` for a variable."""

    id: str
    prompt: str
    depends_on: Sequence[str] = ()
    instructions: str = ""
    """Who does it, if that matters: the role's text."""
    tools: Sequence[Any] = ()
    model: Any = None
    """A model of its own; it shares nothing with the others'. None takes the graph's."""
    max_turns: int = 10


class CycleError(SetupError):
    """Tasks wait for one another. ``cycle`` holds their ids, the first one again at the end."""

    def __init__(self, cycle: Sequence[str]) -> None:
        self.cycle = tuple(cycle)
        shown = " -> ".join(cycle if len(cycle) <= 12 else [*cycle[:6], "...", *cycle[-5:]])
        super().__init__(f"tasks wait for one another: {shown}; take one of these dependencies out")


class UnknownDependencyError(SetupError):
    """A task needs one that does not exist; ``task`` and ``dependency`` name them."""

    def __init__(self, task: str, dependency: str, known: Collection[str]) -> None:
        self.task = task
        self.dependency = dependency
        listed = ", ".join(sorted(known)[:10])
        super().__init__(f"task {task!r} depends on {dependency!r}, which does not exist; tasks are: {listed}")


class DuplicateTaskError(SetupError):
    """Two tasks have the same id; ``task`` names it."""

    def __init__(self, task: str) -> None:
        self.task = task
        super().__init__(f"there are two tasks with the id {task!r}")


def waves_of(tasks: Sequence[Task]) -> list[list[Task]]:
    """The tasks in waves: each needs only what stands in earlier ones. Order inside a wave is that given.

    Linear, and without recursion. Raises ``DuplicateTaskError``, ``UnknownDependencyError`` and ``CycleError``, and
    ``SetupError`` where a prompt uses a result that its task does not wait for.
    """
    if not tasks:
        raise SetupError("prefix_dag needs at least one task")
    known: dict[str, Task] = {}
    for task in tasks:
        if not task.id:
            raise SetupError("a task's id cannot be empty")
        if task.id in known:
            raise DuplicateTaskError(task.id)
        known[task.id] = task
    for task in tasks:
        for dependency in task.depends_on:
            if dependency not in known:
                raise UnknownDependencyError(task.id, dependency, known)
        for name in sorted(named_in(task.prompt, known.keys()) - set(task.depends_on)):
            raise SetupError(
                f"the prompt of task {task.id!r} uses the result of {name!r} and does not depend on it; add it to "
                f"depends_on, or write {{{{{name}}}}} for the word in braces"
            )
    order = TopologicalSorter({task.id: task.depends_on for task in tasks})
    try:
        order.prepare()
    except NotOrderedError as error:
        # It names each before what needs it; told is what each waits for.
        raise CycleError(error.args[1][::-1]) from None
    place = {task.id: number for number, task in enumerate(tasks)}
    waves: list[list[Task]] = []
    while order.is_active():
        ready = sorted(order.get_ready(), key=place.__getitem__)
        order.done(*ready)
        waves.append([known[id_] for id_ in ready])
    return waves
