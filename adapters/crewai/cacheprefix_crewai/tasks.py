"""What a crew's tasks tell before they run: which can share, whose results they read, and which agents do them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from cacheprefix_crewai.binding import owners_of
from cacheprefix_crewai.framing import result_label
from cacheprefix_crewai.material import MIN_CHARS, SharedText, TaskWords
from cacheprefix_crewai.task_layout import LLMCall, role_of


def crew_of(agent: Any) -> Any:
    """The crew that an agent works in; None for an agent by itself."""
    crew = getattr(agent, "crew", None)
    return None if isinstance(crew, str) else crew  # CrewAI lets it be a name


def doer_of(crew: Any, task: Any) -> Any:
    """The agent that asks for a crew's task: its own, or the manager in a hierarchical crew."""
    return crew.manager_agent if crew.process == "hierarchical" else task.agent


def words_of(crew: Any, task: Any) -> TaskWords:
    """What a crew's task says without us."""
    agent, said = doer_of(crew, task), f"{task.description}\n{task.expected_output}"
    template = getattr(task, "_original_description", None)
    background = str(getattr(agent, "backstory", "") or "")
    return TaskWords(said, background, role_of(agent), said if template is None else template)


# ---------------------------------------------------------------------- who can share


def able_to_share(crew: Any, call: LLMCall) -> list[Any]:
    """The crew's tasks whose requests can begin like this one's: of its model, in CrewAI's words, without a schema."""

    def can(task: Any) -> bool:
        if task is call.task or task.agent is None or crew.process == "hierarchical":
            return True
        llm = getattr(task.agent, "llm", None)
        if str(getattr(llm, "model", "")) != call.model or owners_of(llm) is None:
            return False
        if kept_by_provider(llm) or sends_its_reasoning(llm):
            return False
        # With tools, CrewAI asks for the schema only once the work is done, in a request of its own.
        schema = task.output_pydantic or task.output_json or getattr(task, "response_model", None)
        return not own_prompt_option(task.agent) and (not schema or bool(task.tools or task.agent.tools))

    return [] if crew is None else [task for task in crew.tasks if can(task)]


def own_prompt_option(agent: Any) -> str:
    """The name of the option by which the application words the agent's whole prompt; empty where it sets none."""
    if getattr(agent, "use_system_prompt", True) is False:
        return "use_system_prompt=False"
    templates = ("system_template", "prompt_template", "response_template")
    return next((name for name in templates if getattr(agent, name, None)), "")


def kept_by_provider(llm: Any) -> bool:
    """Whether the provider keeps the conversation itself (OpenAI's Responses API), so that nothing may be moved.

    Privacy: an agent's own text at the end of a request would stay there for the next agent to read.
    """
    return bool(getattr(llm, "auto_chain", False) or getattr(llm, "previous_response_id", None))


def sends_its_reasoning(llm: Any) -> bool:
    """Whether what a model thought before stands in front of each of its requests, which are then alike in nothing."""
    return bool(getattr(llm, "auto_chain_reasoning", False)) and getattr(llm, "api", None) == "responses"


def speaks_alone(crew: Any, agent: Any) -> bool:
    """Whether one agent does all of the crew's tasks, so that its own text can be shared among them too."""
    if crew is None or getattr(agent, "inject_date", False):
        return False
    if crew.process == "hierarchical":
        return agent is crew.manager_agent
    return len(crew.tasks) > 1 and all(task.agent is agent for task in crew.tasks)


def same_tools_for_all(crew: Any) -> bool:
    """Whether all tasks of a crew carry the same tools. Asked before a run, which gives a manager its tasks."""
    own = (task.agent for task in crew.tasks if task.agent is not None and task.agent is not crew.manager_agent)
    if crew.process == "hierarchical" and next(own, None) is not None:
        return False  # a manager is told of a task's own agent alone
    return len({tool_names(task) for task in crew.tasks}) == 1


def tool_names(owner: Any) -> tuple[str, ...]:
    """The names of the tools of an agent or task, in alphabetical order."""
    return tuple(sorted(str(tool.name) for tool in owner.tools or []))


# ---------------------------------------------------------------------- results of earlier tasks


def results_in(text: str, crew: Any, tasks: Sequence[Any]) -> list[SharedText]:
    """The results of finished tasks that ``text`` (a task's own) contains and another of ``tasks`` needs, in order."""
    if crew is None:
        return []
    found: dict[str, SharedText] = {}
    readers, lines = _readers(crew, tasks), f"\n{text}\n"
    for number, task in enumerate(crew.tasks, 1):
        raw = getattr(task.output, "raw", None)
        # Privacy: only what CrewAI itself put into this task's text, on lines of its own: what begins a longer line is
        # another result. Once, where two tasks found the same.
        if not raw or len(raw) < MIN_CHARS or readers[number - 1] < 2 or raw in found:
            continue
        if f"\n{raw}\n" in lines:
            found[raw] = SharedText(result_label(number), raw, on_lines=True)
    return list(found.values())


def _readers(crew: Any, tasks: Sequence[Any]) -> list[int]:
    """For each of the crew's tasks, how many of ``tasks`` behind it need its result. Takes linear time."""
    places = {id(task): at for at, task in enumerate(crew.tasks)}
    by_name = [0] * len(places)
    """How many name the task in their ``context``."""
    of_all = [0] * (len(places) + 1)
    """1 for a task that needs the results of all before it."""
    for task in tasks:
        at = places.get(id(task))
        if at is None:
            continue
        if isinstance(task.context, list):
            # By identity: two tasks are equal to CrewAI if all their fields are.
            for earlier in {places[id(one)] for one in task.context if places.get(id(one), at) < at}:
                by_name[earlier] += 1
        elif task.context is not None:
            of_all[at] += 1
    # Added up from the end: how many from a place on need all results before them.
    from_here = list(accumulate(reversed(of_all)))[::-1]
    return [from_here[at + 1] + count for at, count in enumerate(by_name)]


def reads_results(task: Any) -> bool:
    """Whether a task is given results of earlier ones."""
    return bool(task.context) if isinstance(task.context, list) else task.context is not None


def reads_result_of(task: Any, earlier: Any) -> bool:
    """Whether a task is given the result of an earlier one."""
    context = task.context
    return any(one is earlier for one in context) if isinstance(context, list) else context is not None


def hooks_before_calls() -> list[str]:
    """The names of the application's hooks that may change a request before it comes to its model."""
    from crewai import hooks  # noqa: PLC0415 - CrewAI loads slowly

    found: list[Any] = getattr(hooks, "get_before_llm_call_hooks", list)()
    return [str(getattr(one, "__qualname__", type(one).__qualname__)) for one in map(_written, found)]


def _written(hook: Any) -> Any:
    """The application's own function in a hook that CrewAI wraps, for a method of a crew's class with a filter."""
    if str(getattr(hook, "__module__", "")).partition(".")[0] == "crewai":
        held = [cell.cell_contents for cell in getattr(hook, "__closure__", None) or ()]
        return next((one for one in held if callable(one)), hook)
    return hook
