"""What a crew's tasks will ask first, before anything is sent: CrewAI's own prompts, in the layouts of a run.

All of it happens on copies of the crew, its agents, tasks and models; no event is emitted, and no tool, memory or
model is asked.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from cacheprefix import Session
from cacheprefix.adapter import AdapterSession, Preview, preview_of, users_session
from cacheprefix.errors import SetupError
from cacheprefix_crewai.binding import FLOW, KEY, RUN, Binding, Options, binding_of
from cacheprefix_crewai.crew import binding_on, is_flow, parts_of
from cacheprefix_crewai.flow_run import FlowRun, crews_named, fields_of, makes_others
from cacheprefix_crewai.flows import join, parts_in
from cacheprefix_crewai.installing import Installation, conversation_of, install
from cacheprefix_crewai.llm import begin_unsent, kind_of
from cacheprefix_crewai.sending import PendingRequest
from cacheprefix_crewai.task_layout import LLMCall
from cacheprefix_crewai.tasks import hooks_before_calls

_INPUT = re.compile(r"\{([A-Za-z_][\w\-]*)\}")
"""CrewAI's own pattern for the names of inputs."""
_OF_TASK, _OF_AGENT = ("description", "expected_output"), ("role", "goal", "backstory")
"""The texts that inputs are written into."""
_MODELS = ("llm", "function_calling_llm", "manager_llm", "planning_llm", "chat_llm")


def preview(target: object, session: Session, task: object = None) -> Preview | None:
    """The first request of each task of a crew or flow, as an installed one would send it; None for anything else.

    ``task`` is what ``kickoff`` takes as its inputs; a text is the one input that a crew names, and what each of the
    agents without a crew is asked. Of a flow, the crews that it has as attributes, and those of ``@CrewBase`` classes
    that its methods name. Raises ``SetupError`` for a ``task`` that is neither.
    """
    if isinstance(target, type):
        return None
    flow = target if is_flow(target) else None
    crew, agents = parts_of(target)
    if flow is None and crew is None and not agents:
        return None
    task = _given(flow, crew, task)
    known = binding_of(flow) if flow is not None else binding_on(crew if crew is not None else agents)
    rehearsal = session.adapter.rehearsal()
    dry = _DryRun(rehearsal, Options() if known is None else known.options)
    held = session.adapter.known(conversation_of(target), dry.options.scope)
    if held is not None:
        rehearsal.conversation(held.id, scope=held.scope).restore(held.to_json(), rebase=True)
    if flow is None:
        dry.played(crew, agents, task)
    else:
        dry.played_flow(flow, task)
    # What a crew's tasks have in common names the inputs of a kickoff, and stands before its messages.
    return preview_of(rehearsal, dict.fromkeys(dry.notes), further=False)


def _given(flow: Any, crew: Any, task: object) -> object:
    """The ``task`` of a preview as a run takes it: inputs, a state, or a text. Raises ``SetupError`` for any other."""
    if task is None or isinstance(task, str if flow is None and crew is None else Mapping):
        if crew is not None and isinstance(task, Mapping) and (missing := sorted(_names(crew) - task.keys())):
            if not crew.before_kickoff_callbacks:
                message = f"the crew's texts name the inputs {', '.join(missing)}, which preview(crew, task=...) lacks"
                raise SetupError(f"{message}; found {', '.join(map(str, task)) or 'none'}")
            # A callback may give them.
            return {**{name: f"{{{name}}}" for name in missing}, **task}
        return task
    if flow is None and crew is None:
        message = f"agents without a crew are asked a text: preview(agents, task='...'), found {type(task).__name__}"
    elif flow is not None:
        message = f"a flow begins with its state: preview(flow, task={{...}}), found {type(task).__name__}"
    else:
        names = sorted(_names(crew))
        if isinstance(task, str) and len(names) == 1:
            return {names[0]: task}
        named = f"its texts name {', '.join(names)}" if names else "its texts name none"
        found = f"{named}, found {type(task).__name__}"
        message = f"a crew takes inputs, as kickoff does: preview(crew, task={{...}}); {found}"
    raise SetupError(message)


def _names(crew: Any) -> set[str]:
    """The inputs that a crew's texts name, as they were before a kickoff filled them in: the next one goes by those."""
    texts = [str(_written(one, name)) for one in crew.tasks for name in _OF_TASK]
    texts += [str(_written(one, name)) for one in crew.agents for name in _OF_AGENT]
    return {name for text in texts for name in _INPUT.findall(text)}


def _written(one: Any, name: str) -> Any:
    """A text of a task or agent with the names of inputs in their places."""
    original = getattr(one, f"_original_{name}", None)
    return getattr(one, name) if original is None else original


class _DryRun:
    """One preview: the copies that it is made with, and what is not known before a run."""

    def __init__(self, session: AdapterSession, options: Options) -> None:
        self.session, self.options = session, options
        self.notes: list[str] = []
        self._copies: dict[int, Any] = {}

    def played(self, crew: Any, agents: Iterable[Any], task: object) -> None:
        """Install on copies, and let each task come to its first request."""
        made: Any = [self._agent(agent) for agent in agents] if crew is None else self._crew(crew)
        with self._installed(made):
            if crew is None:
                text = task if isinstance(task, str) else ""
                for agent in made:
                    self._asked(agent, None, text, list(agent.tools or []))
            else:
                self._run(made, task)

    def played_flow(self, flow: Any, task: object) -> None:
        """Install on copies of what the flow has, as its installation would, and let each come to its requests."""
        parts, kind = parts_in(flow), type(flow)
        methods = dict(getattr(flow, "_methods", None) or {})
        for name, method in methods.items():
            named = crews_named(method, kind)
            parts += [parts_of(one())[0] for one in named]
            if makes_others(method, flow) and not named:
                self.notes.append(f"what the method {name} starts beside what the flow has is known in the run")
        crews = [self._crew(one) for one in parts if hasattr(one, "tasks")]
        agents = [one for one in parts if hasattr(one, "role")]
        self.notes += [f"{one.role}: what a method asks it is known in the run" for one in agents]
        if not crews:
            return
        state = {**fields_of(getattr(flow, "state", None)), **(task if isinstance(task, Mapping) else {})}
        with self._installed(crews[0], conversation_of(flow)) as binding:
            for crew in crews[1:]:
                join(binding, crew)
            token = FLOW.set(FlowRun(binding, SimpleNamespace(state=state, _methods=methods)))
            try:
                for crew in crews:
                    self._run(crew, self._inputs(crew, state))
            finally:
                FLOW.reset(token)

    def _inputs(self, crew: Any, state: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What of a flow's state a crew's texts name; the method itself says in the run what the crew is given."""
        names = _names(crew)
        if names - state.keys():
            unknown = ", ".join(sorted(names - state.keys()))
            self.notes.append(f"the inputs {unknown} of a crew are given by its method, and known in the run")
        return {name: state.get(name, "") for name in names} or None

    @contextmanager
    def _installed(self, made: Any, conversation: str = "") -> Iterator[Binding]:
        """Install on a copy, with its options, for the time of the preview."""
        options = self.options
        installed = install(
            made,
            users_session(self.session),
            shared_inputs=options.shared_inputs,
            shared_context=options.shared_context,
            gate=False,
            volatile=options.volatile,
            volatile_role=options.volatile_role,
            scope=options.scope,
        )
        binding = _binding(installed)
        binding.conversation = conversation or binding.conversation
        try:
            with RUN.within(binding), binding.kickoff():
                yield binding
        finally:
            installed.undo()

    # ------------------------------------------------------------------ copies

    def _crew(self, crew: Any) -> Any:
        """A copy of a crew with copies of all in it, as at the beginning of a run."""
        made = self._copied(crew)
        own = vars(made)
        own["agents"] = [self._agent(agent) for agent in crew.agents]
        own["tasks"] = [self._task(task) for task in crew.tasks]
        for parts, names in ((own["tasks"], _OF_TASK), (own["agents"], _OF_AGENT)):
            for one in parts:
                vars(one).update({name: _written(one, name) for name in names})
        if crew.manager_agent is not None:
            own["manager_agent"] = self._agent(crew.manager_agent)
        memory = getattr(crew, "_memory", None)
        if memory is not None:
            made._memory = self._memory(memory)
            self.notes.append("what the crew's memory finds is known when it is asked, and not counted")
        for agent in {
            id(one): one for one in (*own["agents"], *(t.agent for t in own["tasks"]), made.manager_agent)
        }.values():
            if agent is not None:
                vars(agent)["crew"] = made
        return made

    def _agent(self, agent: Any) -> Any:
        """A copy of an agent without what only a run can ask: apps, MCP servers, its executor."""
        made = self._copied(agent)
        vars(made)["agent_executor"] = None
        for name, words in (("apps", "apps"), ("mcps", "MCP servers")):
            if vars(made).get(name):
                vars(made)[name] = None
                self.notes.append(f"{made.role}: the tools of its {words} are known in the run")
        if vars(made).get("memory"):
            vars(made)["memory"] = self._memory(made.memory)
        if vars(made).get("knowledge_sources") or vars(made).get("memory"):
            self.notes.append(f"{made.role}: what its knowledge and memory find is known when they are asked")
        return made

    def _task(self, task: Any) -> Any:
        """A copy of a task that has not run, with copies of its agent and of the tasks that it names."""
        made = self._copied(task)
        own = vars(made)
        own["output"] = None
        own["agent"] = None if task.agent is None else self._agent(task.agent)
        if isinstance(task.context, list):
            own["context"] = [self._task(one) for one in task.context]
        return made

    def _memory(self, memory: Any) -> Any:
        """A copy of a memory, with a copy of its model."""
        made = self._copied(memory)
        inner = getattr(made, "_memory", None)
        if inner is not None:
            made._memory = self._memory(inner)
        llm = getattr(made, "_llm_instance", None)
        if llm is not None:
            made._llm_instance = self._copied(llm)
        return made

    def _copied(self, given: Any) -> Any:
        """The one copy of an object, of the class that it had before any installation, with copies of its models."""
        if id(given) in self._copies:
            return self._copies[id(given)]
        made = self._copies[id(given)] = copy.copy(given)
        own = vars(made)
        if own.pop(KEY, None) is not None and type(made).__qualname__ == type(made).__mro__[1].__qualname__:
            object.__setattr__(made, "__class__", type(made).__mro__[1])
        for name in _MODELS:
            if hasattr(own.get(name), "call"):
                own[name] = self._copied(own[name])
        return made

    # ------------------------------------------------------------------ first requests

    def _run(self, crew: Any, given: object) -> None:
        """The tasks in their order, as ``kickoff`` goes through them."""
        if crew.before_kickoff_callbacks:
            self.notes.append("what before_kickoff callbacks do to the inputs is known in the run")
        if hooks := hooks_before_calls():
            self.notes.append(f"what hooks before model calls do ({', '.join(hooks)}) is known in the run")
        if crew.planning:
            self.notes.append("what the crew's planner adds to the tasks is known in the run")
        if given is None and (names := sorted(_names(crew))):
            self.notes.append(f"the inputs {', '.join(names)} are not given, so that their names stand in the texts")
        if isinstance(given, Mapping):
            crew._inputs = dict(given)
            crew._interpolate_inputs(dict(given))
        hierarchical = str(crew.process.value) == "hierarchical"
        if hierarchical:
            crew._create_manager_agent()
            self.notes.append("the manager words what the other agents are asked, which is known in the run")
        for task in crew.tasks:
            agent = crew.manager_agent if hierarchical else task.agent
            if agent is None:
                continue
            if task.context is None or isinstance(task.context, list):
                self.notes.append("results of tasks are not known before the run, and not counted in what others read")
            tools = crew._prepare_tools(agent, task, list(task.tools or agent.tools or []))
            vars(task)["agent"] = agent  # as a task's execution does
            self._asked(agent, task, _prompt(agent, task), tools)
            vars(task)["output"] = SimpleNamespace(raw="", agent=agent.role)

    def _asked(self, agent: Any, task: Any, text: str, tools: list[Any]) -> None:
        """An agent's first request on a task, with the prompt that its executor makes."""
        llm = agent.llm
        if kind_of(llm) is None:
            self.notes.append(f"{agent.role}: requests of its model class are neither changed nor measured")
            return
        messages, schemas, native = _messages(agent, task, text, tools)
        answer = None if task is None else task.response_model or task.output_pydantic or task.output_json
        call = LLMCall(llm, messages, schemas if native else None, task, agent, None if tools else answer)
        binding = _of(agent)
        request = PendingRequest.opened(binding, call)
        if request is None:
            return
        begin_unsent(request)
        if request.pending is not None:
            request.pending.finish(None)


def _binding(installed: Installation) -> Binding:
    """What an installation's parts share."""
    return installed._binding


def _of(agent: Any) -> Binding:
    """The installation of an agent's copy."""
    found = binding_on([agent])
    assert found is not None
    return found


def _prompt(agent: Any, task: Any) -> str:
    """A task as its agent is told it, without what memory and knowledge find."""
    from crewai.agent.utils import apply_training_data, build_task_prompt_with_schema  # noqa: PLC0415 - loads slowly

    return apply_training_data(agent, build_task_prompt_with_schema(task, task.prompt()))


def _messages(agent: Any, task: Any, text: str, tools: list[Any]) -> tuple[list[Any], Any, bool]:
    """An executor's first messages, its tools' schemas, and whether they are called natively."""
    from crewai.llms.cache import mark_cache_breakpoint  # noqa: PLC0415 - loads slowly
    from crewai.utilities import agent_utils as own  # noqa: PLC0415 - loads slowly

    offered = agent._add_skill_loader_tool(list(tools), task=task)
    parsed = own.parse_tools(offered)
    prompt = agent._build_execution_prompt(offered)[0]

    def filled(part: str) -> str:
        said = str(prompt[part]).replace("{input}", text).replace("{tool_names}", own.get_tool_names(parsed))
        return said.replace("{tools}", own.render_text_description_and_args(parsed))

    # CrewAI 1.15.9 has it there, newer releases in a module of its own, from which it is imported there.
    message: Any = getattr(own, "format_message_for_llm")  # noqa: B009 - mypy knows the newest release alone
    roles = (("system", "system"), ("user", "user")) if hasattr(prompt, "system") else (("prompt", "user"),)
    messages: list[Any] = [mark_cache_breakpoint(message(filled(part), role=role)) for part, role in roles]
    native = agent._supports_native_tool_calling(offered)
    return messages, own.setup_native_tools(offered)[0] if native else None, native
