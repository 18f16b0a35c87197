"""How a task's requests are laid out: what they begin with, what tasks share, where the agent's text stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cacheprefix import SharedPrefix
from cacheprefix.adapter import (
    AgentRequest,
    Bounded,
    CountedHistory,
    Reason,
    RolePosition,
    digest_of,
    dumps,
    find_text,
    reason,
)
from cacheprefix_crewai.ahead import SentTexts, SharingTasks, TasksAhead, inputs_of
from cacheprefix_crewai.binding import FLOW
from cacheprefix_crewai.durable import DurableTexts
from cacheprefix_crewai.framing import IN_FRONT, SYSTEM, role_again
from cacheprefix_crewai.history import Executions
from cacheprefix_crewai.material import (
    MIN_CHARS,
    CommonTexts,
    SharedText,
    TaskWords,
    common_texts,
    stands_in,
    texts_in,
    with_references,
    without,
)
from cacheprefix_crewai.task_layout import LLMCall, Opening, TaskLayout, from_executor, opening_of, role_of
from cacheprefix_crewai.tasks import (
    able_to_share,
    crew_of,
    hooks_before_calls,
    kept_by_provider,
    own_prompt_option,
    results_in,
    sends_its_reasoning,
    speaks_alone,
    tool_names,
    words_of,
)
from cacheprefix_crewai.tools import Offer, RunTools, coworkers_note, differing, known_models, name_of, offer, ordered

if TYPE_CHECKING:
    from cacheprefix import Profile
    from cacheprefix.adapter import AdapterSession
    from cacheprefix_crewai.binding import Binding
    from cacheprefix_crewai.flow_run import FlowRun

_TEXT_TOOLS = "\nYou ONLY have access to the following tools"
"""How CrewAI's system text begins to describe tools that are called in the answer's text."""
_ACTION = "\nAction Input: "
"""What its system text says where tools are called in the answer's text."""
_KEEP_LAYOUTS = 2_000
_KEEP_TEXTS = 40


# ---------------------------------------------------------------------- an installation's layouts


class Layouts:
    """The layouts of an installation's tasks, each settled at the task's first request and kept."""

    def __init__(self, binding: Binding) -> None:
        self.binding = binding
        self.sent = SentTexts(binding)
        self._settled: Bounded[tuple[str, str, str | None, tuple[str, ...], str], TaskLayout] = Bounded(_KEEP_LAYOUTS)
        """By model, opening, why its kickoff or role is left alone (None: it is not), what was said to the crew, and
        what else it goes by (``_beside``)."""
        self._asked: Bounded[tuple[str, str, str], TaskWords] = Bounded(_KEEP_TEXTS)
        """What agents without a crew were asked, by model, opening and the schema of the answer."""
        self._common: Bounded[tuple[str, int], tuple[Any, CommonTexts]] = Bounded(_KEEP_TEXTS)
        """What crews' tasks have in common, and what it was found in, by model and crew."""

    def of(self, call: LLMCall) -> TaskLayout | None:
        """The layout of an executor's request; None for any other request (a planner's, a converter's).

        Without an agent (CrewAI's forced final answer names none) only a layout settled before is found.
        """
        opening = opening_of(call.messages)
        if opening is None:
            return None
        # Before others have to wait: the application's own consolidation may ask a model.
        self.durable.of(opening.digest, first=len(call.messages) <= opening.rest)
        with self.binding.lock:
            asks = call.agent is not None and from_executor(call, opening)
            if asks and len(call.messages) <= opening.rest:
                self._bring(call)
            known = self.settled(call, opening)
            if known is not None or not asks:
                return known
            durable, beside = self.durable.of(opening.digest, first=False), self._beside(call, opening)
            layout = replace(settle(self, call, opening, durable), beside=beside)
            self._settled[call.model, opening.digest, self._left(call.agent), durable, beside] = layout
            return layout

    def _bring(self, call: LLMCall) -> None:
        """Let the run under way here carry the tools of its first request, where that may be a fork."""
        binding = self.binding
        if not binding.rewrites or binding.clash or _stays_own(binding, call, role_of(call.agent)) is not None:
            return
        # Those of servers are known when the first task begins. Before the first request of all the session's others
        # grow by them: no request sent changes by that.
        early = binding.part(Executions).none_yet
        if early and binding.scope != binding.session.scope:
            # What other crews of this tenant were installed with comes in too.
            tenants = binding.session.tools_open_to(binding.scope) - binding.tools
            binding.part(RunTools).asked("", tenants, known_models(binding.session))
            binding.tools |= tenants
        models = {name_of(tool): frozenset({call.model}) for tool in call.tools or ()}
        binding.part(RunTools).bring(call.tools or (), models, asks=True, grows=early)

    def _beside(self, call: LLMCall, opening: Opening) -> str:
        """Names what a task's layout goes by beside its own words: tools, which may be a user's own."""
        run = None
        if len(call.messages) > opening.rest or call.agent is None:
            run = self.binding.part(Executions).known(opening.digest, call.agent, call.messages)
        if run is not None:
            return run.beside
        tools = [dumps(ordered(tool), f"tool {name_of(tool)}").decode() for tool in call.tools or ()]
        return digest_of(call.schema, *tools, "", *sorted(self.binding.part(RunTools).here))

    def settled(self, call: LLMCall, opening: Opening) -> TaskLayout | None:
        """The layout that a task's earlier request with this opening got; None for one that is not settled yet.

        The same task has another one in kickoffs that are left alone (``fork_share``), behind a guard that returned its
        role to its own layout, and after something new was said to the crew's conversation.
        """
        durable, beside = self.durable.of(opening.digest, first=False), self._beside(call, opening)
        left = self._left(call.agent)
        # Without an agent nobody knows whether its role was returned to its own layout, so that is looked for too.
        ways = (left,) if call.agent is not None else (left, "dearer_as_fork")
        with self.binding.lock:
            for way in ways:
                key = (call.model, opening.digest, way, durable, beside)
                if key in self._settled:
                    self._settled.move_to_end(key)
                    return self._settled[key]
        return None

    def _left(self, agent: Any) -> str | None:
        """Why a kickoff, or an agent's role, is left alone; None where it is not."""
        left = self.binding.session.left_alone(role_of(agent), _talk(self.binding), self.binding.scope)
        return None if left is None else left.why

    def unread(self, call: LLMCall) -> Any:
        """The messages of an agent whose task is no plain text (files, images), with what they leave to the session."""
        opening, messages = call.messages[0], call.messages
        system = opening.get("content")
        whole = Opening(str(system), str(messages[1:2]), 2)
        if opening.get("role") != "system" or not isinstance(system, str) or not from_executor(call, whole):
            return messages
        durable = self.durable.of(whole.digest, first=len(messages) <= whole.rest)
        missing = _missing_in(whole.text, self.binding, role_of(call.agent), durable)
        return [{**opening, "content": f"{missing}\n\n{system}"}, *messages[1:]] if missing else messages

    @property
    def durable(self) -> DurableTexts:
        """What the application said to the crew's conversation."""
        return self.binding.part(DurableTexts)

    def flow_run(self) -> FlowRun | None:
        """The run of this installation's flow that is under way here; None outside of one."""
        run: FlowRun | None = FLOW.get()
        return run if run is not None and run.binding is self.binding else None

    def sharing(self, crew: Any, call: LLMCall, opening: Opening) -> SharingTasks:
        """The tasks that can share with the one that a call asks, and what they have in common."""
        tasks = able_to_share(crew, call)
        words = [words_of(crew, task) for task in tasks] or self._asked_so_far(call, opening)
        at = next((place for place, task in enumerate(tasks) if task is call.task), None)
        other = 0 if crew is not None else sum(key[0] == call.model and key[2] != call.schema for key in self._asked)
        return SharingTasks(crew, tasks, words, self._in_common(crew, call.model, words), at, other)

    def _asked_so_far(self, call: LLMCall, opening: Opening) -> list[TaskWords]:
        """What agents without a crew were asked of this model for such an answer, this request last."""
        this = TaskWords(opening.task, str(getattr(call.agent, "backstory", "") or ""), role_of(call.agent))
        # The provider's rule: requests whose answers follow another schema, or none, read nothing of this one.
        lane = call.model, call.schema
        earlier = [words for (model, _, schema), words in self._asked.items() if (model, schema) == lane]
        self._asked[call.model, opening.digest, call.schema] = this
        return [*earlier, this]

    def _in_common(self, crew: Any, model: str, words: Sequence[TaskWords]) -> CommonTexts:
        """What tasks have in common; for a crew, found once and kept for as long as its tasks say the same."""
        binding, options, run = self.binding, self.binding.options, self.flow_run()
        inputs, flow = inputs_of(crew), {} if run is None else dict(run.texts())
        said = [(one.task, one.background) for one in words]
        key, found_in = (model, id(crew)), (said, inputs, binding.constant_inputs, flow)
        known = self._common.get(key)
        if crew is not None and known is not None and known[0] == found_in:
            return known[1]
        made = common_texts(
            words,
            inputs,
            context=options.shared_context,
            names=options.shared_inputs,
            constant=binding.constant_inputs,
            known=binding.session.prefix.system if options.declared else "",
            flow=flow,
        )
        if crew is not None:
            self._common[key] = found_in, made
        return made


# ---------------------------------------------------------------------- one task's layout


def settle(layouts: Layouts, call: LLMCall, opening: Opening, durable: tuple[str, ...]) -> TaskLayout:
    """Decide how the requests of one task are laid out: as forks, or as the application made them, and why.

    Called at the task's first request, under the binding's lock. It first looks for what keeps the application's own
    layout whatever it would save, then gathers what the crew's tasks have in common, and has the session compare the
    costs. ``durable`` are the texts of the crew's conversation, which stand in every request.
    Raises ``NotSharedError`` in strict mode.
    """
    binding, agent = layouts.binding, call.agent
    name = getattr(call.task, "name", None) or getattr(call.task, "description", None) or opening.task
    own = TaskLayout(role_of(agent), " ".join(str(name).split())[:60], opening, call.tools)
    if not binding.rewrites:
        return own
    crew, flow = crew_of(agent), layouts.flow_run()
    owner, hierarchical = crew if crew is not None else agent, crew is not None and crew.process == "hierarchical"
    worker = hierarchical and agent is not crew.manager_agent
    if flow is not None and not worker:
        # Whatever keeps its layout here: in another run it may share.
        flow.asks(owner, call.model)
    if _shares_schema(call):
        own = replace(own, schema=call.schema)
    own = replace(own, durable=durable, missing=_missing_in(opening.text, binding, own.role, durable))
    kept_own = _stays_own(binding, call, own.role) or _tools_stay_own(binding, call)
    if kept_own is not None:
        if kept_own.why == "kept_by_provider" and not opening.system:
            # It would be said in a message, which the provider keeps: that of the system text is for one request alone.
            own = replace(own, missing="")
        return _planned_own(binding, own, call.model, kept_own)
    flow_texts = [text for text in ({} if flow is None else flow.texts()) if stands_in(text, opening.task)]
    awaited = flow is not None and flow.awaited(flow_texts, owner, call.model)
    others = flow is not None and flow.held_by_others(flow_texts, owner, call.model)
    # Others of the flow share more than an agent that speaks alone shares with itself: its role goes behind. That of a
    # manager is long, and does so where there are others.
    alone = speaks_alone(crew, agent) and not (flow_texts and (awaited or others or not hierarchical))
    if worker:
        # A worker's task is in the manager's own words and shares nothing.
        return _planned_own(binding, own, call.model, reason("own_prompt", "the manager words a worker's task"))
    ahead, instruction = _as_fork(layouts, call, own, alone=alone)
    plan = binding.session.plan(_request(layouts, ahead, instruction, awaited=awaited))
    layouts.sent.agent_texts[own.role], layouts.sent.own_tools[own.role] = ahead.agent_text, ahead.own_tools
    layouts.sent.crews.send(ahead.ahead, RolePosition(plan.at, plan.continues) if plan.forks else None)
    if not plan.forks:
        return replace(own, plan=plan)
    return _placed(binding.session, replace(ahead.layout, plan=plan), ahead.agent_text, instruction)


def _stays_own(binding: Binding, call: LLMCall, role: str) -> Reason | None:
    """Why a task's requests keep the application's own layout, whatever forks would save; None where costs decide."""
    kept = kept_by_provider(call.llm)
    # Kickoffs outside of ``fork_share``, and roles that a guard returned to their own layout.
    left = binding.session.left_alone(role, _talk(binding), binding.scope)
    if left is not None and not kept:
        return left
    if binding.clash:
        return reason("tool_schema_differs", binding.clash)
    if kept:
        return reason("kept_by_provider")
    if sends_its_reasoning(call.llm):
        return reason("own_history", "auto_chain_reasoning")
    if call.response_model is not None and crew_of(call.agent) is None and not _shares_schema(call):
        return reason("response_schema")
    option = own_prompt_option(call.agent)
    if getattr(call.llm, "guardrail_config", None):
        # Bedrock's judges what users say and no system text: a role's text among that would be judged too.
        option = "guardrail_config"
    # The prompt is the application's own, and stays; only a text that is declared and not in it is added.
    return reason("own_prompt", option) if option else None


def _shares_schema(call: LLMCall) -> bool:
    """Whether a request whose answer follows a schema may be a fork among others with the same one.

    Those of agents by themselves may. CrewAI's helpers, which ask by its own schemas, are sent as they were.
    """
    by_crewai = str(getattr(call.response_model, "__module__", "")).split(".")[0] == "crewai"
    return bool(call.schema) and not call.tools and crew_of(call.agent) is None and not by_crewai


def _tools_stay_own(binding: Binding, call: LLMCall) -> Reason | None:
    """That a tool of the request is another one than the shared one of its name; None where none is."""
    differs = differing(binding, call.tools)
    return reason("tool_schema_differs", differs) if differs else None


def _planned_own(binding: Binding, own: TaskLayout, model: str, why: Reason) -> TaskLayout:
    """The application's own layout, with the session's word on it. Raises ``NotSharedError`` in strict mode."""
    asked = AgentRequest(
        own.role, model, binding.held, "", lambda _: _no_results(), worded="", own=(why,), talk=_talk(binding)
    )
    return replace(own, plan=binding.session.plan(asked))


def _no_results() -> CountedHistory[SharedText]:
    """The application's own messages stay where they are."""
    return CountedHistory((), lambda result: digest_of(result.block), lambda _: 0)


# ---------------------------------------------------------------------- a task as a fork


def _as_fork(layouts: Layouts, call: LLMCall, own: TaskLayout, *, alone: bool) -> tuple[TasksAhead, str]:
    """What a task's requests share as forks, and the agent's text in its own words, which stands behind that.

    Where the agent is ``alone`` in its crew its text is shared too, among all its tasks: none stands behind then.
    """
    binding, session, opening = layouts.binding, layouts.binding.session, own.opening
    crew, declared = crew_of(call.agent), binding.options.declared
    sharing = layouts.sharing(crew, call, opening)
    text_mode = not call.tools and _ACTION in opening.system
    moved = _text_tools(opening.system, crew, binding) if text_mode else ""
    texts = sharing.common.allowed_with(opening.text)
    if alone:
        moved = without(opening.system, session.prefix.system) if declared else opening.system
        texts = [text for text in texts if not texts_in(moved, [text])]
    spoken = session.prefix.text if declared or not alone else ""
    layout = replace(
        own,
        offer=_offered(binding, call, crew, alone=alone, text_mode=text_mode),
        beginning="\n\n".join(filter(None, (spoken, *own.durable, moved.strip("\n")))),
        texts=tuple(texts),
        results=tuple(results_in(opening.task, crew, sharing.tasks)),
        text_mode=text_mode,
    )
    instruction = "" if alone else _instruction_of(session, own.role, opening, moved)
    agent_text = with_references(instruction, texts)
    return TasksAhead(layouts.sent, sharing, layout, call.model, moved, agent_text), instruction


def _offered(binding: Binding, call: LLMCall, crew: Any, *, alone: bool, text_mode: bool) -> Offer:
    """The tools that a task's forks carry: those of all, or its own where all tasks of its crew have the same."""
    if text_mode or call.schema:
        # By a schema CrewAI asks agents without tools alone, so that none of those who share has any.
        return Offer(None)
    if alone and call.tools and binding.same_tools(crew):
        # In CrewAI's order, in which a manager's workers find their own tools cached.
        return Offer([ordered(tool) for tool in call.tools])
    return offer(binding, call.model, getattr(call.agent, "llm", None), call.tools)


def _text_tools(system: str, crew: Any, binding: Binding) -> str:
    """The description of tools in a text-mode system prompt, where all agents have the same tools."""
    start = system.find(_TEXT_TOOLS)
    if start < 0:
        return ""
    agents = list(crew.agents) if crew is not None else binding.agents
    end = system.find("\n```", system.rfind("Final Answer:"))
    return system[start : end + 4] if len({tool_names(agent) for agent in agents}) == 1 and end > 0 else ""


def _request(layouts: Layouts, ahead: TasksAhead, instruction: str, *, awaited: bool) -> AgentRequest[SharedText]:
    """What the session is asked to lay out: the agent's text may stand in front of the results, or behind them.

    ``awaited``: other crews of the same flow will hold the same texts, so that sharing them pays across crews.
    """
    binding, layout = layouts.binding, ahead.layout
    options, prefix = binding.options, binding.session.prefix
    results = CountedHistory(
        layout.results, lambda result: digest_of(result.block), lambda result: ahead.count(result.block)
    )
    # A declared text is said in the crew's own layout too; role cards beside it are not.
    cards = prefix.text.strip() != prefix.system.strip()
    context = any(text.text == options.shared_context for text in layout.texts)

    def place(rules: Profile) -> RolePosition | Reason:
        return layouts.sent.crews.position(
            replace(ahead.ahead, least=rules.min_tokens),
            declared=options.declared or bool(layout.durable),
            wanted=awaited or context or (options.declared and cards),
        )

    return AgentRequest(
        layout.role,
        ahead.model,
        binding.held,
        instruction,
        lambda _: results,
        worded=ahead.agent_text,
        shared=sum(part.size for part in (*ahead.due.shared, *ahead.due.results)),
        beside=ahead.count(layout.opening.task),
        known=tuple(_mistakes(binding, ahead)),
        place=place,
        schema=layout.schema,
        peers=ahead.others_asked,
        talk=_talk(binding),
    )


def _mistakes(binding: Binding, ahead: TasksAhead) -> Iterator[Reason]:
    """What the user named to be shared and is not, and tools that came too late to be shared.

    A text that no task contains, or that the due task contains and its request does not: the application's hooks took
    it out.
    """
    options, sharing, opening = binding.options, ahead.sharing, ahead.layout.opening
    yield from (reason("made_too_late", name) for name in ahead.layout.offer.late)
    _note_changed_by_hooks(binding, ahead)
    if not (options.shared_inputs or options.shared_context):
        return
    tasks = getattr(sharing.crew, "tasks", None) or ()
    texts = [*(words_of(sharing.crew, task).task for task in tasks), *(one.task for one in sharing.words)]
    due = [] if sharing.at is None else [sharing.words[sharing.at].task]

    def missing(text: object, stands: Callable[[str, str], bool]) -> bool:
        if not isinstance(text, str):
            return True
        here, then, ever = (any(stands(text, one) for one in some) for some in ([opening.text], due, texts))
        return not here and (then or not ever)

    inputs, given = sharing.inputs, tuple(options.shared_inputs or ())
    yield from (reason("text_not_found", name) for name in given if name in inputs and missing(inputs[name], stands_in))
    if unknown := [name for name in given if name not in inputs]:
        strings = [(name, text) for name, text in inputs.items() if isinstance(text, str)]
        there = [name for name, text in strings if any(stands_in(text, one) for one in texts)]
        contain = f"inputs that the tasks contain: {', '.join(there) or 'none'}"
        if binding.session.mode == "strict":
            yield from (reason("text_not_found", f"{name}; {contain}") for name in unknown)
        else:  # the same for every agent, and so told once
            binding.session.note(
                f"shared_inputs names {', '.join(unknown)}, and the kickoff was given no such input; {contain}"
            )
    if options.shared_context and missing(options.shared_context, lambda one, text: find_text(one, text) is not None):
        yield reason("text_not_found", "shared_context")


def _note_changed_by_hooks(binding: Binding, ahead: TasksAhead) -> None:
    """Say which long inputs the due task holds, and its request no more, since the application's hooks changed them."""
    sharing, said = ahead.sharing, ahead.layout.opening.text
    due, hooks = "" if sharing.at is None else sharing.words[sharing.at].task, hooks_before_calls()
    for name, text in sharing.inputs.items() if due and hooks else ():
        long = isinstance(text, str) and len(text) >= MIN_CHARS
        if long and stands_in(text, due) and not stands_in(text, said):
            binding.session.note(
                f"a hook before model calls ({', '.join(hooks)}) changes the input {name!r} in requests, so that it is "
                "not shared; changed in before_kickoff_callbacks instead, it is"
            )


def _placed(session: AdapterSession, fork: TaskLayout, agent_text: str, instruction: str) -> TaskLayout:
    """A fork with the agent's text where its plan has it: in front of the results, or in the tail behind them."""
    if fork.plan is None or not fork.plan.continues:
        return replace(fork, tail=_tail_of(session, fork, instruction))
    # In front of the results: a long text that the agent's next task can read from the cache.
    again = role_again(fork.role) if fork.results else ""
    return replace(fork, front=agent_text, tail=_tail_of(session, fork, again))


# ---------------------------------------------------------------------- texts


def _instruction_of(session: AdapterSession, role: str, opening: Opening, moved: str) -> str:
    """Role, goal and backstory. ``moved`` is the part of the system text that stands in the shared one already."""
    instruction = opening.system.replace(moved, "", 1).rstrip() if moved else opening.system
    # It stands in front already, and is not said twice.
    instruction = without(instruction, session.prefix.system)
    if session.tail == "cards" and session.prefix.roles.get(role) == instruction:
        instruction = session.tail_for(role, instruction)
    return instruction


def _tail_of(session: AdapterSession, fork: TaskLayout, instruction: str) -> str:
    """The agent's text and its task, with references in place of what is shared, and the limits of its tools."""
    offered = fork.offer
    limits = session.tail_for("", "", tools=offered.said) if offered.said is not None else ""
    roster = "" if offered.tools == list(fork.tools or ()) else coworkers_note(fork.tools)
    task = fork.opening.task.lstrip("\n")
    if len(session.prefix.system) >= MIN_CHARS and (span := find_text(session.prefix.system, task)) is not None:
        task = task[: span[0]] + IN_FRONT + task[span[1] :]
    text = "\n\n".join(part for part in (instruction, task, roster, limits) if part)
    return with_references(text, [*fork.texts, *fork.results])


def _missing_in(said: str, binding: Binding, role: str, durable: tuple[str, ...]) -> str:
    """The texts of the session that an agent must be told and ``said`` does not contain; empty where there are none.

    They are the declared prefix, the role's card and the ``durable`` texts of the conversation. In requests that keep
    the application's own layout they are put in front.
    """
    prefix = binding.session.prefix
    texts = list(durable)
    if binding.options.declared:
        context = (SharedPrefix(context={key: text}).text for key, text in prefix.context.items())
        own = "" if prefix.system == SYSTEM else prefix.system.strip()
        texts = [own, *context, prefix.roles.get(role, "").strip(), *durable]
    return "\n\n".join(text for text in texts if text and find_text(text, said) is None)


def _talk(binding: Binding) -> str:
    """The id of the conversation under way: a kickoff's, whose decisions are held with those of the crew's others."""
    return binding.kickoff_id or binding.conversation
