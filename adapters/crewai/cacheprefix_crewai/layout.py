"""How a task's requests are laid out: what they begin with, what tasks share, where the agent's text stands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

from cacheprefix import SharedPrefix
from cacheprefix.adapter import (
    AHEAD,
    ITEMS,
    LONG_ROLE,
    AdapterSession,
    AgentRequest,
    Bounded,
    CountedHistory,
    CrewAhead,
    CrewTask,
    KnownCrews,
    Part,
    Reason,
    RequestPlan,
    RolePosition,
    digest_of,
    dumps,
    find_text,
    once,
    reason,
)
from cacheprefix_crewai.binding import FLOW, owners_of
from cacheprefix_crewai.durable import DurableTexts
from cacheprefix_crewai.framing import IN_FRONT, SYSTEM, input_label, result_label, role_again
from cacheprefix_crewai.history import Executions
from cacheprefix_crewai.material import (
    MIN_CHARS,
    Material,
    Piece,
    Words,
    common_material,
    referred,
    used,
    without,
)
from cacheprefix_crewai.tools import Offer, adopt, canonical_ids, coworkers_note, differing, name_of, offer, ordered

if TYPE_CHECKING:
    from cacheprefix import Profile, Prompt
    from cacheprefix_crewai.binding import Binding

BREAKPOINT = "cache_breakpoint"
"""CrewAI's own mark on a message; the session sets the marks of a fork, and LiteLLM would send this key."""
_TEXT_TOOLS = "\nYou ONLY have access to the following tools"
_ACTION = "\nAction Input: "
_LABEL_TOKENS = 14
"""About what a reference and the label it names cost."""
_LIMITS_TOKENS = 8
"""About what the sentence on a role's tools costs."""
_KEEP = 2_000
_KEEP_TEXTS = 40


@dataclass(frozen=True, slots=True)
class LLMCall:
    """What a model object was called with, by CrewAI or the application."""

    llm: Any
    messages: Any
    tools: Any = None
    task: Any = None
    agent: Any = None
    response_model: Any = None

    @property
    def model(self) -> str:
        """The model's name."""
        return str(getattr(self.llm, "model", ""))


# ---------------------------------------------------------------------- one task in one agent's hands


@dataclass(frozen=True, slots=True)
class Opening:
    """How an executor's requests begin: its system text, the user text with the task, and what follows."""

    system: str
    task: str
    rest: int
    """Index of the first message behind both."""

    @property
    def digest(self) -> bytes:
        """The same for all requests of one execution."""
        state = blake2b(self.system.encode("utf-8", "surrogatepass"), digest_size=16)
        state.update(b"\0" + self.task.encode("utf-8", "surrogatepass"))
        return state.digest()


def opening_of(messages: Sequence[Mapping[str, Any]]) -> Opening | None:
    """The opening of an executor's request; None for requests of another shape (files, images, templates)."""
    if not messages:
        return None
    system, at = "", 0
    if messages[0].get("role") == "system":
        content = messages[0].get("content")
        if not isinstance(content, str):
            return None
        system, at = content, 1
    if len(messages) <= at or messages[at].get("role") != "user":
        return None
    task = messages[at].get("content")
    if not isinstance(task, str) or not task or messages[at].get("files"):
        return None
    return Opening(system, task, at + 1)


@dataclass(frozen=True, slots=True)
class TaskLayout:
    """What all requests of one task are made of."""

    role: str
    task: str
    """The task's name, or the beginning of its description."""
    opening: Opening
    tools: Sequence[Any] | None
    """As the application passes them."""
    plan: RequestPlan[Piece] | None = None
    """How the session lays its requests out, and why; None in a session that only observes."""
    offer: Offer = field(default_factory=lambda: Offer(None))
    opened: str = ""
    """What the shared part begins with, of the session or the only agent that speaks."""
    start: bytes = b""
    """A digest of the tools and of that."""
    pieces: tuple[Piece, ...] = ()
    """What it shares with other tasks, each in its own words too or named by the user."""
    log: tuple[Piece, ...] = ()
    """Results of earlier tasks that later ones need too."""
    tail: str = ""
    front: str = ""
    """The agent's text, where it stands in front of the log and not in the tail."""
    text_mode: bool = False
    """Whether the tools are described in the system text, and called in the answer's text."""
    durable: tuple[str, ...] = ()
    """What the application said to the crew's conversation."""
    missing: str = ""
    """What a request in the application's own layout leaves to the session to say."""

    @property
    def system(self) -> str:
        """The system text of its forks."""
        return "\n\n".join(part for part in (self.opened, *(piece.block for piece in self.pieces)) if part)

    @property
    def forked(self) -> bool:
        """Whether its requests are forks; they stay the application's where not."""
        return self.plan is not None and self.plan.forks

    @property
    def has_tools(self) -> bool:
        """Whether the task may go on after its first request, since the agent has tools."""
        return bool(self.tools or self.text_mode)

    @property
    def head(self) -> int:
        """Messages before the tool loop: the system text, the log, the role with its task."""
        return 2 + bool(self.front) + len(self.log)

    def own(self, given: Sequence[Mapping[str, Any]]) -> Sequence[Any]:
        """The messages in the application's own layout, with what is missing in front of their first text.

        The very same messages where nothing is.
        """
        if not self.missing:
            return given
        # Without a system message there is none to be: the model may not take one.
        text = "\n\n".join(part for part in (self.missing, str(given[0].get("content") or "")) if part)
        return [{**given[0], "content": text}, *given[1:]]

    @property
    def key(self) -> bytes:
        """The same for all layouts that share their whole cached part."""
        state = blake2b(self.system.encode("utf-8", "surrogatepass"), digest_size=16)
        for piece in self.log:
            state.update(b"\0" + piece.block.encode("utf-8", "surrogatepass"))
        return state.digest()

    def messages(self, given: Sequence[Mapping[str, Any]]) -> list[Any]:
        """The request's messages in this layout; those of the tool loop as they are but for canonical ids."""
        head: list[Any] = [{"role": "system", "content": self.system}]
        head += [{"role": "user", "content": self.front}] * bool(self.front)
        head += [{"role": "user", "content": piece.block} for piece in self.log]
        head.append({"role": "user", "content": self.tail})
        return [*head, *canonical_ids(unmarked(given[self.opening.rest :]))]

    def boundary(self, prompt: Prompt) -> int | None:
        """The number of leading sections shared with the other roles, or with the agent's own next task."""
        data = self.tail.encode("utf-8", "surrogatepass")
        return next((i for i, section in enumerate(prompt.sections) if section.data == data), None)


def unmarked(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The messages without CrewAI's marks; those that carry none are the same objects."""
    return [
        {key: value for key, value in message.items() if key != BREAKPOINT} if BREAKPOINT in message else message
        for message in messages
    ]


# ---------------------------------------------------------------------- an installation's layouts


class Layouts:
    """The layouts of an installation's tasks, each settled at the task's first request and kept."""

    def __init__(self, binding: Binding) -> None:
        self.binding = binding
        self.crews = KnownCrews()
        """What requests began with."""
        self.said: dict[str, str] = {}
        """Each agent's text as forks sent it last, by its role."""
        self.listed: dict[str, Part] = {}
        """The tools of each agent's last request in the application's own layout, by its role."""
        self._settled: Bounded[tuple[str, bytes, bool, tuple[str, ...]], TaskLayout] = Bounded(_KEEP)
        self._seen: Bounded[tuple[str, bytes], Words] = Bounded(_KEEP_TEXTS)
        """What agents without a crew were asked, by model and opening."""
        self._material: Bounded[tuple[str, int], tuple[Any, Material]] = Bounded(_KEEP_TEXTS)
        self._tokens: Bounded[tuple[str, bytes], int] = Bounded(_KEEP)

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
            known = self.settled(call.model, opening, call.agent)
            if known is not None or call.agent is None or not _of_executor(call, opening):
                return known
            durable = self.durable.of(opening.digest, first=False)
            layout = settle(self, call, opening, durable)
            left = layout.plan is not None and layout.plan.left_alone
            self._settled[call.model, opening.digest, left, durable] = layout
            return layout

    def unread(self, call: LLMCall) -> Any:
        """The messages of an agent whose task is no plain text (files, images), with what they leave to the session."""
        opening, messages = call.messages[0], call.messages
        system = opening.get("content")
        role, whole = _role(call.agent), Opening(str(system), str(messages[1:2]), 2)
        if opening.get("role") != "system" or not isinstance(system, str) or not _of_executor(call, whole):
            return messages
        durable = self.durable.of(whole.digest, first=len(messages) <= whole.rest)
        missing = missing_in(self.binding, role, f"{system}\n{whole.task}", durable)
        return [{**opening, "content": f"{missing}\n\n{system}"}, *messages[1:]] if missing else messages

    @property
    def durable(self) -> DurableTexts:
        """What the application said to the crew's conversation."""
        return self.binding.part(DurableTexts)

    def settled(self, model: str, opening: Opening, agent: Any = None) -> TaskLayout | None:
        """The layout that an opening got before; another one in kickoffs that are left alone (``fork_share``)."""
        binding = self.binding
        durable = self.durable.of(opening.digest, first=False)
        left = binding.session.left_alone(_role(agent), _talk(binding), binding.scope) is not None
        with binding.lock:
            # Without an agent nobody knows whether its role was returned to its own layout.
            for each in (left,) if agent is not None else (left, True):
                known = self._settled.get((model, opening.digest, each, durable))
                if known is not None:
                    self._settled.move_to_end((model, opening.digest, each, durable))
                    return known
        return None

    def words(self, tasks: Sequence[Any], call: LLMCall, opening: Opening) -> list[Words]:
        """What may have something in common: tasks, or what agents without a crew were asked, this request last."""
        if tasks:
            return [_words(task) for task in tasks]
        this = Words(opening.task, str(getattr(call.agent, "backstory", "") or ""), _role(call.agent))
        earlier = [words for (model, _), words in self._seen.items() if model == call.model]
        self._seen[call.model, opening.digest] = this
        return [*earlier, this]

    def material(self, crew: Any, model: str, words: Sequence[Words]) -> Material:
        """What they have in common; for a crew, found once and kept for as long as its tasks say the same."""
        binding, options = self.binding, self.binding.options
        inputs = dict(getattr(crew, "_inputs", None) or {})
        flow = self.flow_texts()
        said = [(one.task, one.background) for one in words]
        key, found_in = (model, id(crew)), (said, inputs, binding.constant, flow)
        known = self._material.get(key)
        if crew is not None and known is not None and known[0] == found_in:
            return known[1]
        made = common_material(
            words,
            inputs,
            context=options.shared_context,
            names=options.shared_inputs,
            constant=binding.constant,
            known=binding.session.prefix.system if options.declared else "",
            flow=flow,
        )
        if crew is not None:
            self._material[key] = found_in, made
        return made

    def flow_texts(self) -> dict[str, str]:
        """The long texts of the flow that is running here, with their names; none outside of one."""
        run = FLOW.get()
        return {} if run is None or run.binding is not self.binding else dict(run.texts())

    def tokens(self, text: str, model: str) -> int:
        """The tokens of a text, counted once: a crew's tasks carry the same ones."""
        return self._tokens.of((model, _digest(text)), lambda: self.binding.session.count(text, model))

    def text_of(self, agent: Any) -> str:
        """An agent's text: as it was sent, or about what it will be."""
        known = self.said.get(_role(agent))
        return known or "\n".join(str(getattr(agent, name, "")) for name in ("role", "goal", "backstory"))


def settle(layouts: Layouts, call: LLMCall, opening: Opening, durable: tuple[str, ...]) -> TaskLayout:
    """Decide how the requests of one task are laid out: as forks, or as the application made them, and why.

    Called at the task's first request, under the binding's lock. It first looks for what keeps the application's own
    layout whatever it would save, then gathers what the crew's tasks have in common, and has the session compare the
    costs. ``durable`` are the texts of the crew's conversation, which stand in every request.
    Raises ``NotSharedError`` in strict mode.
    """
    binding, session, agent = layouts.binding, layouts.binding.session, call.agent
    role, model = _role(agent), call.model
    name = getattr(call.task, "name", None) or getattr(call.task, "description", None) or opening.task
    plain = TaskLayout(role, " ".join(str(name).split())[:60], opening, call.tools)
    if not binding.rewrites:
        return plain
    missing = missing_in(binding, role, f"{opening.system}\n{opening.task}", durable)
    plain = replace(plain, durable=durable, missing=missing)

    def own(why: Reason) -> TaskLayout:
        asked = AgentRequest(role, model, binding.held, "", _nothing, worded="", own=(why,), talk=_talk(binding))
        return replace(plain, plan=session.plan(asked))

    # Kickoffs outside of ``fork_share``, and roles that a guard returned to their own layout.
    left = session.left_alone(role, _talk(binding), binding.scope)
    if left is not None and not kept_elsewhere(call.llm):
        return own(left)

    if binding.clash:
        return own(reason("tool_schema_differs", binding.clash))
    if kept_elsewhere(call.llm):
        # What is said in the system message is for one request alone.
        plain = plain if opening.system else replace(plain, missing="")
        return own(reason("kept_by_provider"))
    worded = _worded(agent)
    if worded:
        # The prompt is the application's own, and stays; only a text that is declared and not in it is added.
        return own(reason("own_prompt", worded))
    crew = getattr(agent, "crew", None)
    crew = None if isinstance(crew, str) else crew
    text_mode = not call.tools and _ACTION in opening.system
    if binding.scope != session.scope and binding.part(Executions).newest is None:
        # Nothing was sent yet: what other crews of this tenant were installed with comes in too.
        binding.tools |= session.tools_open_to(binding.scope)
    contradicts = "" if text_mode else _contradicting(binding, call.tools)
    if contradicts:
        return own(reason("tool_schema_differs", contradicts))
    offered = Offer(None) if text_mode else offer(binding, model, getattr(agent, "llm", None), call.tools)
    texts = [text for text in layouts.flow_texts() if find_text(text, opening.task) is not None]
    run = FLOW.get()
    awaited = run is not None and run.awaited(texts, crew if crew is not None else agent)
    # Others of the flow share more than an agent that speaks alone shares with itself: its role goes behind.
    alone = not texts and _speaks_alone(crew, agent)
    if alone and call.tools and binding.alike(crew):
        # In CrewAI's order, in which a manager's workers find their own tools cached.
        offered = Offer([ordered(tool) for tool in call.tools])
    if crew is not None and crew.process == "hierarchical" and not alone:
        # A worker's task is in the manager's own words and shares nothing.
        return own(reason("own_prompt", "the manager words a worker's task"))
    declared = binding.options.declared
    spoken = session.prefix.text if declared or not alone else ""
    moved = opening.system if alone else _text_tools(opening.system, crew, binding) if text_mode else ""
    if alone and declared:
        moved = without(moved, session.prefix.system)
    tasks = _sharing(crew, call)
    words = layouts.words(tasks, call, opening)
    material = layouts.material(crew, model, words)
    pieces = material.in_words(f"{opening.system}\n{opening.task}")
    if alone:
        pieces = [piece for piece in pieces if piece.for_all or not used(moved, [piece])]
    opened = "\n\n".join(filter(None, (spoken, *durable, moved.strip("\n"))))
    log = tuple(_log(crew, tasks, opening.task))
    start = _digest(opened, *map(_schema, offered.tools or ()))
    draft = replace(
        plain, offer=offered, opened=opened, start=start, pieces=tuple(pieces), log=log, text_mode=text_mode
    )
    instruction = "" if alone else instruction_of(session, role, opening, moved)
    case = _Case(layouts, call, draft, crew, tasks, words, material, moved, referred(instruction, pieces), awaited)
    return _planned(case, plain, session.plan(case.asked(instruction)), instruction)


def _contradicting(binding: Binding, tools: Sequence[Any] | None) -> str:
    """The name of a tool in ``tools`` that the shared tools define differently; empty where there is none.

    Before the first request of all it adds tools that are new to the shared ones.
    """
    if tools and binding.part(Executions).newest is None:
        # Those of servers are known when the first task begins, and nothing was sent yet.
        known = {tool.name for tool in binding.session.prefix.tools}
        found = [tool for tool in tools if name_of(tool) not in known]
        binding.tools |= frozenset(map(name_of, found))
        binding.clash = adopt(binding.session, found, binding.scope)
    return binding.clash or differing(binding.session, tools)


def _planned(case: _Case, plain: TaskLayout, plan: RequestPlan[Piece], instruction: str) -> TaskLayout:
    """Make the layout that ``plan`` decided on, and remember what its requests carry for the tasks that follow.

    ``plain`` is the application's own layout, which stays where the plan is no fork.
    """
    layouts, draft, role = case.layouts, case.layout, plain.role
    session, pieces, log = layouts.binding.session, draft.pieces, draft.log
    layouts.said[role], layouts.listed[role] = case.front, case.tools
    layouts.crews.send(case.ahead, RolePosition(plan.at, plan.continues) if plan.forks else None)
    if not plan.forks:
        return replace(plain, plan=plan)
    draft = replace(draft, plan=plan)
    if not plan.continues:
        return replace(draft, tail=tail_of(session, draft, instruction, [*pieces, *log]))
    # In front of the results: a long text that the agent's next task can read.
    again = role_again(role) if log else ""
    return replace(draft, front=case.front, tail=tail_of(session, draft, again, [*pieces, *log]))


def _talk(binding: Binding) -> str:
    """The id of the conversation under way: a kickoff's, whose decisions are held with those of the crew's others."""
    return binding.kickoff_id or binding.conversation


def _nothing(_: object) -> CountedHistory[Piece]:
    """No results: the application's own messages stay where they are."""
    return CountedHistory((), lambda piece: digest_of(piece.block), lambda _: 0)


def instruction_of(session: AdapterSession, role: str, opening: Opening, moved: str) -> str:
    """Role, goal and backstory. ``moved`` is the part of the system text that stands in the shared one already."""
    instruction = opening.system.replace(moved, "", 1).rstrip() if moved else opening.system
    # It stands in front already, and is not said twice.
    instruction = without(instruction, session.prefix.system)
    if session.tail == "cards" and session.prefix.roles.get(role) == instruction:
        instruction = session.tail_for(role, instruction)
    return instruction


def tail_of(session: AdapterSession, layout: TaskLayout, instruction: str, pieces: Sequence[Piece]) -> str:
    """The agent's text and its task, with references in place of what is shared, and the limits of its tools."""
    offered = layout.offer
    limits = session.tail_for("", "", tools=offered.said) if offered.said is not None else ""
    roster = "" if offered.tools == list(layout.tools or ()) else coworkers_note(layout.tools)
    task = layout.opening.task.lstrip("\n")
    if len(session.prefix.system) >= MIN_CHARS and (span := find_text(session.prefix.system, task)) is not None:
        task = task[: span[0]] + IN_FRONT + task[span[1] :]
    parts = [instruction, task, roster, limits]
    return referred("\n\n".join(part for part in parts if part), pieces)


def missing_in(binding: Binding, role: str, said: str, durable: tuple[str, ...]) -> str:
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


@dataclass(frozen=True)
class _Case:
    """One task at its first request, with all that the planner needs to compare its possible layouts by cost.

    ``asked`` is what the planner is given; ``ahead`` is the part of it that plays the crew's coming tasks through.
    Sizes are tokens.
    """

    layouts: Layouts
    call: LLMCall
    layout: TaskLayout
    crew: Any
    tasks: Sequence[Any]
    """The crew's tasks that can share with this one, itself among them, in their order."""
    words: Sequence[Words]
    """What they say; without a crew, what other agents were asked, this one last."""
    material: Material
    moved: str
    """The part of the agent's system text that stands in the shared one."""
    front: str
    """The agent's text as a fork would say it."""
    awaited: bool = False
    """Whether other crews of the same flow will hold the same texts, so that sharing them pays across crews."""

    @once
    def at(self) -> int | None:
        """The place of this task among them; None for one that the crew has not got."""
        return next((i for i, one in enumerate(self.tasks) if one is self.call.task), None)

    @property
    def waiting(self) -> list[int]:
        """The places in ``tasks`` of those not finished yet in this run, at most ``AHEAD`` of them."""
        at, finished = self.at, self.layouts.binding.finished
        later = () if at is None else range(at + 1, len(self.tasks))
        return list(islice((i for i in later if not finished(self.crew, self.tasks[i])), AHEAD))

    def count(self, text: str) -> int:
        """The tokens of a text."""
        return self.layouts.tokens(text, self.call.model)

    def size(self, tools: Iterable[Any] | None) -> int:
        """The tokens of a list of tools."""
        return sum(self.count(_schema(tool)) for tool in tools or ())

    def sum(self, pieces: Iterable[Piece]) -> int:
        """The tokens of shared texts."""
        return sum(self.count(piece.text) for piece in pieces)

    def asked(self, instruction: str) -> AgentRequest[Piece]:
        """What the task's agent asks, for the planner: its text may stand in front of the results, or behind them."""
        binding, layout, model = self.layouts.binding, self.layout, self.call.model
        options, prefix = binding.options, binding.session.prefix
        log = CountedHistory(layout.log, lambda piece: digest_of(piece.block), lambda piece: self.count(piece.block))
        # A declared text is said in the crew's own layout too; role cards beside it are not.
        cards = prefix.text.strip() != prefix.system.strip()

        def place(rules: Profile) -> RolePosition | Reason:
            return self.layouts.crews.position(
                replace(self.ahead, least=rules.min_tokens),
                declared=options.declared or bool(layout.durable),
                wanted=self.awaited or bool(options.shared_context) or (options.declared and cards),
            )

        return AgentRequest(
            layout.role,
            model,
            binding.held,
            instruction,
            lambda _: log,
            worded=self.front,
            shared=sum(part.size for part in (*self.due.shared, *self.due.results)),
            known=tuple(self._mistakes()),
            place=place,
            talk=_talk(binding),
        )

    def _mistakes(self) -> Iterator[Reason]:
        """What the user named to be shared and no task contains, and tools that came too late for the union."""
        options, opening = self.layouts.binding.options, self.layout.opening
        yield from (reason("made_too_late", name) for name in self.layout.offer.late)
        if not (options.shared_inputs or options.shared_context):
            return
        tasks = getattr(self.crew, "tasks", None) or ()
        texts = [*(_words(task).task for task in tasks), *(one.task for one in self.words), opening.task]
        texts.append(opening.system)
        given = getattr(self.crew, "_inputs", None) or {}

        def nowhere(text: object) -> bool:
            return not isinstance(text, str) or all(find_text(text, one) is None for one in texts)

        yield from (reason("text_not_found", name) for name in options.shared_inputs or () if nowhere(given.get(name)))
        if options.shared_context and nowhere(options.shared_context):
            yield reason("text_not_found", "shared_context")

    # ------------------------------------------------------------------ the tasks, as they are played

    @once
    def ahead(self) -> CrewAhead:
        """This task, and what is known of those that come behind it."""
        layout, binding = self.layout, self.layouts.binding
        rules = binding.session.profile(self.call.model)
        references = _LABEL_TOKENS * len(used(layout.opening.task, [*layout.pieces, *layout.log]))
        due = self.due
        waiting = self.waiting
        agents = {id(agent): agent for agent in (self.tasks[at].agent for at in waiting)}
        texts = [self.front, *map(self.layouts.text_of, agents.values())]
        given = set(getattr(self.crew, "_inputs", None) or {})
        items = () if binding.several or self.at is None else self._items(given)
        varying = items or given - binding.constant
        return CrewAhead(
            due,
            self._silent if self.crew is None else lambda: [self._waiting(at) for at in waiting],
            lambda: [due] if self.crew is None else self._run(frozenset(varying)),
            self.call.model,
            rules.read,
            rules.min_tokens,
            rules.match == "block",
            long=bool(self.front) and any(self.count(text) >= LONG_ROLE for text in texts),
            left=binding.runs_left if self.crew is not None else 0,
            likely=ITEMS if items else 0,
            repeats=self.crew is None or binding.again(self.crew),
            loops=binding.part(Executions).loops if layout.has_tools else 0,
            overhead=references + _LIMITS_TOKENS * (layout.offer.said is not None),
            grows=min((self.count(piece.block) for piece in layout.log), default=0),
        )

    def _shared(self, pieces: Sequence[Piece]) -> tuple[Part, ...]:
        """The parts that a fork with these texts begins with, each of which a later request can find in the cache."""
        parts = [self._opened, *self._blocks(pieces)]
        # The provider's rule: one that caches by itself (in blocks) reads what two system texts have in common, so that
        # each text counts alone. Where marks decide, a system text that goes on otherwise is not read at all.
        if self.layouts.binding.session.profile(self.call.model).match == "block":
            return tuple(parts)
        return (Part(_digest(*(part.key for part in parts)), sum(part.size for part in parts)),)

    @once
    def _opened(self) -> Part:
        """What every fork of the crew begins with."""
        layout = self.layout
        return Part(layout.start, self.size(layout.offer.tools) + self.count(layout.opened))

    @once
    def tools(self) -> Part:
        """The tools of this task's request in the application's own layout."""
        schemas = [_schema(tool) for tool in self.layout.tools or ()]
        return Part(_digest("tools", *schemas), sum(map(self.count, schemas)))

    @once
    def _log(self) -> tuple[Part, ...]:
        """The results in front of this task."""
        return self._blocks(self.layout.log)

    def _blocks(self, pieces: Sequence[Piece]) -> tuple[Part, ...]:
        return tuple(Part(piece.key, self.count(piece.block)) for piece in pieces)

    def _task(
        self, words: Words, text: str, held: set[Piece], begins: Sequence[tuple[int, Piece]], shared: Sequence[Piece],
        log: Sequence[Piece] = (), *, logs: bool = True,
    ) -> CrewTask:  # fmt: skip
        """A task as the cost comparison counts it, in the application's own layout and as a fork.

        Args:
            words: What the task says, and its agent's role.
            text: The agent's text, which a fork repeats behind the shared part; may be empty.
            held: Shared texts that its own layout contains.
            begins: Those among them that its words begin with, each with the index in the words at which it ends.
            shared: The texts that stand in its fork's shared part.
            log: The results of earlier tasks that stand in front of it.
            logs: Whether it reads results of earlier tasks at all.
        """
        front = held & self.material.backgrounds
        begun = [(end, piece) for end, piece in begins if piece not in front]
        # What an agent that asked before has in the provider's cache begins with its own tools, and not with these.
        others = {} if words.agent == self.layout.role else self.layouts.listed
        return CrewTask(
            words.agent,
            Part(_digest("text", text), self.count(text) if text else 0),
            others.get(words.agent, self.tools),
            self.count(self.moved) + self.sum(front),
            tuple(Part(_digest(words.agent, words.task[:end]), self.count(piece.text)) for end, piece in begun),
            self.sum(held - front - {piece for _, piece in begun}),
            self._shared(shared),
            # Mostly those of the task that is due: they are counted once.
            self._log if log == self.layout.log else self._blocks(log),
            logs,
        )

    @once
    def due(self) -> CrewTask:
        """The task whose first request this is."""
        layout = self.layout
        held = used(f"{layout.opening.system}\n{layout.opening.task}", [*layout.pieces, *layout.log])
        words = Words(layout.opening.task, "", layout.role) if self.at is None else self.words[self.at]
        begins = () if self.at is None else self.material.begins[self.at]
        return self._task(words, self.front, set(held), begins, layout.pieces, layout.log)

    def _waiting(self, at: int) -> CrewTask:
        """A task that is still to come in this run."""
        task, held = self.tasks[at], self.material.held[at]
        log = tuple(piece for piece, source in self._sources if _needs(task, source))
        shared, logs = self.material.carried(at), _reads_others(task)
        begins = self.material.begins[at]
        return self._task(self.words[at], self._text(at), {*held, *log}, begins, shared, log, logs=logs)

    def _silent(self) -> list[CrewTask]:
        """The tasks of agents without a crew that were not asked yet. Each is taken to be much like this one."""
        other = replace(self.due, agent="", text=Part("", 0), begins=(), rest=self.sum(self.layout.pieces))
        return [other] * (len(self.layouts.binding.agents) - len(self.words))

    def _text(self, at: int) -> str:
        """The text of the agent that does a task; empty where agents' texts stand in the shared part."""
        return self.layouts.text_of(self.tasks[at].agent) if self.front else ""

    @once
    def _sources(self) -> list[tuple[Piece, Any]]:
        """The results in front of this task, with the tasks that they are of."""
        numbers = {result_label(number): task for number, task in enumerate(self.crew.tasks, 1)}
        return [(piece, numbers[piece.label]) for piece in self.layout.log if piece.label in numbers]

    def _items(self, given: set[str]) -> set[str]:
        """The names among ``given`` that change from run to run, as a question does that is put to one long text.

        They are the inputs that are not shared themselves, where a long input is and a task's template holds one of
        them: further runs with the same long text are likely then. Empty where that is not so.
        """
        shared = {input_label(name) for name in given} & {piece.label for piece in self.material.pieces}
        items = {name for name in given if input_label(name) not in shared}
        named = shared and any(f"{{{name}}}" in words.template for name in items for words in self.words)
        return items if named else set()

    def _run(self, varying: frozenset[str]) -> list[CrewTask]:
        """The tasks of a later run of this crew, whose inputs of the names ``varying`` have other values by then.

        A text of such an input is left out of what the run can share, and so is what stands behind its place in a task.
        """
        rules, material = self.layouts.binding.session.profile(self.call.model), self.material
        others = {input_label(name) for name in varying}
        found = []
        for at, words in enumerate(self.words[:AHEAD]):
            starts = [start for name in varying if (start := words.template.find(f"{{{name}}}")) >= 0]
            # Marks stand at the end of a task, so that one that ends otherwise is read nowhere.
            same = "" if starts and rules.match != "block" else words.template[: min(starts) if starts else None]
            held = {piece for piece in material.held[at] if piece.label not in others}
            begins = [(end, piece) for end, piece in self.material.begins[at] if piece in held and _stands(piece, same)]
            shared = [piece for piece in material.carried(at) if piece.label not in others]
            logs = _reads_others(self.tasks[at])
            found.append(self._task(words, self._text(at), held, begins, shared, logs=logs))
        return found


def _stands(piece: Piece, template: str) -> bool:
    """Whether a text stands in a task's words, in which an input has only its name."""
    name = re.fullmatch(r"shared input '(.*)'", piece.label)
    return find_text(piece.text, template) is not None or (name is not None and f"{{{name[1]}}}" in template)


def _words(task: Any) -> Words:
    """What a crew's task says without us."""
    agent, said = task.agent, f"{task.description}\n{task.expected_output}"
    template = getattr(task, "_original_description", None)
    return Words(said, str(getattr(agent, "backstory", "") or ""), _role(agent), said if template is None else template)


def _sharing(crew: Any, call: LLMCall) -> list[Any]:
    """The crew's tasks whose requests can begin like this one's: of its model, in CrewAI's words, without a schema."""

    def can(task: Any) -> bool:
        if task is call.task or task.agent is None or crew.process == "hierarchical":
            return True
        llm = getattr(task.agent, "llm", None)
        if str(getattr(llm, "model", "")) != call.model or owners_of(llm) is None or kept_elsewhere(llm):
            return False
        # With tools, CrewAI asks for the schema only once the work is done, in a request of its own.
        schema = task.output_pydantic or task.output_json or getattr(task, "response_model", None)
        return not _worded(task.agent) and (not schema or bool(task.tools or task.agent.tools))

    return [] if crew is None else [task for task in crew.tasks if can(task)]


def _log(crew: Any, tasks: Sequence[Any], text: str) -> list[Piece]:
    """The results of finished tasks that ``text`` (this task) contains and at least one more task needs, in order."""
    if crew is None:
        return []
    found: dict[str, Piece] = {}
    needed = _needed(crew, tasks)
    for number, task in enumerate(crew.tasks, 1):
        raw = getattr(task.output, "raw", None)
        # Privacy: only what CrewAI itself put into this task's text; once, where two tasks found the same.
        if raw and len(raw) >= MIN_CHARS and needed[number - 1] > 1 and raw not in found and raw in text:
            found[raw] = Piece(result_label(number), raw)
    return list(found.values())


def _needed(crew: Any, tasks: Sequence[Any]) -> list[int]:
    """For each of the crew's tasks, how many of ``tasks`` behind it need its result."""
    places = {id(task): at for at, task in enumerate(crew.tasks)}
    named, behind = [0] * len(places), [0] * (len(places) + 1)
    for task in tasks:
        at = places.get(id(task))
        if at is None:
            continue
        if isinstance(task.context, list):
            # By identity: two tasks are equal to CrewAI if all their fields are.
            for earlier in {places[id(one)] for one in task.context if places.get(id(one), at) < at}:
                named[earlier] += 1
        elif task.context is not None:
            behind[at] += 1
    # What all that follow need: those behind a task, added up from the end.
    all_behind = list(accumulate(reversed(behind)))[::-1]
    return [all_behind[at + 1] + count for at, count in enumerate(named)]


def _reads_others(task: Any) -> bool:
    return bool(task.context) if isinstance(task.context, list) else task.context is not None


def _needs(task: Any, earlier: Any) -> bool:
    context = task.context
    return any(one is earlier for one in context) if isinstance(context, list) else context is not None


def _text_tools(system: str, crew: Any, binding: Binding) -> str:
    """The description of tools in a text-mode system prompt, where all agents have the same tools."""
    start = system.find(_TEXT_TOOLS)
    if start < 0:
        return ""
    agents = list(crew.agents) if crew is not None else binding.agents
    end = system.find("\n```", system.rfind("Final Answer:"))
    return system[start : end + 4] if len({_tool_names(agent) for agent in agents}) == 1 and end > 0 else ""


def _of_executor(call: LLMCall, opening: Opening) -> bool:
    """Whether a request comes from an agent's executor: it marks its opening, helpers do not."""
    role = str(getattr(call.agent, "role", ""))
    return BREAKPOINT in call.messages[0] or (bool(role) and opening.system.startswith(f"You are {role}."))


def _worded(agent: Any) -> str:
    """The name of the option by which the application words the agent's whole prompt; empty where it sets none."""
    if getattr(agent, "use_system_prompt", True) is False:
        return "use_system_prompt=False"
    templates = ("system_template", "prompt_template", "response_template")
    return next((name for name in templates if getattr(agent, name, None)), "")


def kept_elsewhere(llm: Any) -> bool:
    """Whether the provider keeps the conversation itself (OpenAI's Responses API), so that nothing may be moved.

    Privacy: an agent's own text at the end of a request would stay there for the next agent to read.
    """
    return bool(getattr(llm, "auto_chain", False) or getattr(llm, "previous_response_id", None))


def _speaks_alone(crew: Any, agent: Any) -> bool:
    """Whether one agent does all of the crew's tasks, so that its own text can be shared among them too."""
    if crew is None or getattr(agent, "inject_date", False):
        return False
    if crew.process == "hierarchical":
        return agent is crew.manager_agent
    return len(crew.tasks) > 1 and all(task.agent is agent for task in crew.tasks)


def same_for_all(crew: Any) -> bool:
    """Whether all tasks of a crew carry the same tools. Asked before a run, which gives a manager its tasks."""
    own = (task.agent for task in crew.tasks if task.agent is not None and task.agent is not crew.manager_agent)
    if crew.process == "hierarchical" and next(own, None) is not None:
        return False  # a manager is told of a task's own agent alone
    return len({_tool_names(task) for task in crew.tasks}) == 1


def _tool_names(owner: Any) -> tuple[str, ...]:
    return tuple(sorted(str(tool.name) for tool in owner.tools or []))


def _role(agent: Any) -> str:
    return str(getattr(agent, "role", "")).strip()


def _schema(tool: Any) -> str:
    return dumps(tool, f"tool {name_of(tool)}").decode()


def _digest(*texts: str | bytes) -> bytes:
    state = blake2b(digest_size=16)
    for text in texts:
        state.update((text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")) + b"\0")
    return state.digest()
