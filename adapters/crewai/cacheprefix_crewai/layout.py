"""How a task's requests are laid out: what they begin with, what tasks share, where the agent's text stands."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from cacheprefix.adapter import (
    AdapterSession,
    AgentRequest,
    Bounded,
    CountedHistory,
    Reason,
    RequestPlan,
    RolePosition,
    digest_of,
    dumps,
    economics,
    reason,
)
from cacheprefix_crewai.history import Executions
from cacheprefix_crewai.tools import Offer, canonical_ids, coworkers_note, differing, name_of, offer, ordered

if TYPE_CHECKING:
    from cacheprefix import Prompt
    from cacheprefix_crewai.binding import Binding

SYSTEM = (
    "You are one of several specialists who work on the same material. "
    "The message with your role and task comes last; act in that role."
)
"""The shared system text where the session has none."""
BREAKPOINT = "cache_breakpoint"
"""CrewAI's own mark on a message; the session sets the marks of a fork, and LiteLLM would send this key."""
MIN_CHARS = 200
"""Shorter texts stay where they are: the reference to them would cost as much as they do."""

_TEXT_TOOLS = "\nYou ONLY have access to the following tools"
_ACTION = "\nAction Input: "
_LABEL_TOKENS = 14
"""About what a reference and the label it names cost."""
_LIMITS_TOKENS = 8
"""About what the sentence on a role's tools costs."""
_KEEP = 2_000
_KEEP_TEXTS = 40

Mark = tuple[str, bytes]
"""A model, and the digest of what a request of it begins with."""


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


# ---------------------------------------------------------------------- what several tasks have in common


@dataclass(frozen=True, slots=True)
class Piece:
    """A text that stands in the shared part, and the words that refer to it from a task."""

    label: str
    text: str

    @property
    def reference(self) -> str:
        """What stands in a task in place of the text."""
        return f"(see {self.label} above)"

    @property
    def block(self) -> str:
        """How the text stands in the shared part."""
        return f"[{self.label}]\n{self.text}"


def given_inputs(
    inputs: Mapping[str, object], texts: Sequence[str], names: Iterable[str] | None, constant: frozenset[str]
) -> list[Piece]:
    """The interpolated inputs to hoist: those named, or else long ones that two texts contain.

    What is the same in all runs of a ``kickoff_for_each`` (``constant``) comes first, and is hoisted for one
    text too. An input that is no string, or that no text contains, stays where it is.
    """
    wanted = None if names is None else set(names)
    found = []
    for name, value in inputs.items():
        if not isinstance(value, str) or not value.strip():
            continue
        uses = sum(value in text for text in texts)
        if wanted is None:
            take = len(value) >= MIN_CHARS and uses >= (1 if name in constant else 2)
        else:
            take = name in wanted and uses > 0
        if take:
            found.append((name not in constant, name, Piece(f"shared input {name!r}", value)))
    return [piece for *_, piece in sorted(found, key=lambda item: item[:2])]


def common_blocks(texts: Sequence[str], first_label: int = 1) -> list[Piece]:
    """Runs of whole lines, together at least 200 characters long, that two texts have in common.

    In order of their first appearance; of two that overlap only the first is taken.
    """
    lines = [text.split("\n") for text in texts]
    where: dict[str, list[tuple[int, int]]] = {}
    for number, own in enumerate(lines):
        for index, line in enumerate(own):
            if line.strip():
                where.setdefault(line, []).append((number, index))
    found: list[Piece] = []
    for number, own in enumerate(lines):
        index = 0
        while index < len(own):
            others = [(lines[other], start) for other, start in where.get(own[index], ()) if other > number]
            length = max((_equal_lines(own, index, other, start) for other, start in others), default=0)
            block = "\n".join(own[index : index + length]).strip()
            if len(block) >= MIN_CHARS and all(block not in piece.text for piece in found):
                found.append(Piece(f"shared text {first_label + len(found)}", block))
            index += max(length, 1)
    return found


def _equal_lines(a: Sequence[str], i: int, b: Sequence[str], j: int) -> int:
    length = 0
    while i + length < len(a) and j + length < len(b) and a[i + length] == b[j + length]:
        length += 1
    return length


def referred(text: str, pieces: Iterable[Piece]) -> str:
    """The text with every piece replaced by the words that refer to it."""
    for piece in pieces:
        text = text.replace(piece.text, piece.reference)
    return text


def used(text: str, pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces a text contains."""
    return [piece for piece in pieces if piece.text in text]


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
    system: str = ""
    log: tuple[Piece, ...] = ()
    """Results of earlier tasks that later ones need too."""
    tail: str = ""
    front: str = ""
    """The agent's text, where it stands in front of the log and not in the tail."""
    text_mode: bool = False
    """Whether the tools are described in the system text, and called in the answer's text."""
    missing: str = ""
    """What an unforked request, too short to share, leaves to the session to say."""

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

    def marks(self, model: str, front: str) -> list[Mark]:
        """What stands for a request's tools, system text (and the agent's in front), and for each result behind."""
        head = _digest(self.system, *map(_schema, self.offer.tools or ())) + (_digest(front) if front else b"")
        logs = ((model, head + _digest(*(piece.block for piece in self.log[: i + 1]))) for i in range(len(self.log)))
        return [(model, head), *logs]

    def behind_mark(self, model: str, front: str) -> Mark:
        """What stands for an agent's text behind the results."""
        return model, self.marks(model, "")[-1][1] + _digest("behind", front)


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
        self.sent: set[Mark] = set()
        """What requests carried: shared parts, tool lists, agents' texts in their places."""
        self.said: dict[str, str] = {}
        """Each agent's text as forks sent it last, by its role."""
        self._settled: Bounded[tuple[str, bytes, bool], TaskLayout] = Bounded(_KEEP)
        self._texts: OrderedDict[bytes, str] = OrderedDict()

    def of(self, call: LLMCall) -> TaskLayout | None:
        """The layout of an executor's request; None for any other request (a planner's, a converter's).

        Without an agent (CrewAI's forced final answer names none) only a layout settled before is found.
        """
        opening = opening_of(call.messages)
        if opening is None:
            return None
        with self.binding.lock:
            known = self.settled(call.model, opening, call.agent)
            if known is not None or call.agent is None or not _of_executor(call, opening):
                return known
            layout = settle(self, call, opening)
            left = layout.plan is not None and layout.plan.left_alone
            self._settled[call.model, opening.digest, left] = layout
            return layout

    def settled(self, model: str, opening: Opening, agent: Any = None) -> TaskLayout | None:
        """The layout that an opening got before; another one in kickoffs that are left alone (``fork_share``)."""
        binding = self.binding
        left = binding.session.left_alone(_role(agent), _talk(binding), binding.scope) is not None
        with binding.lock:
            # Without an agent nobody knows whether its role was returned to its own layout.
            for each in (left,) if agent is not None else (left, True):
                known = self._settled.get((model, opening.digest, each))
                if known is not None:
                    self._settled.move_to_end((model, opening.digest, each))
                    return known
        return None

    def texts(self, crew: Any, opening: Opening) -> list[str]:
        """The texts that may have something in common: a crew's tasks', or those seen of agents without one."""
        if crew is not None:
            return [f"{task.description}\n{task.expected_output}" for task in crew.tasks]
        earlier = list(self._texts.values())
        self._texts[opening.digest] = opening.task
        if len(self._texts) > _KEEP_TEXTS:
            self._texts.popitem(last=False)
        return [*earlier, opening.task]

    def text_of(self, agent: Any) -> str:
        """An agent's text: as it was sent, or about what it will be."""
        known = self.said.get(_role(agent))
        return known or "\n".join(str(getattr(agent, name, "")) for name in ("role", "goal", "backstory"))


def settle(layouts: Layouts, call: LLMCall, opening: Opening) -> TaskLayout:
    """The layout of a task, as the session plans it. Called once for each, under the binding's lock.

    Raises ``NotSharedError`` in strict mode.
    """
    binding, session, agent = layouts.binding, layouts.binding.session, call.agent
    role, model = _role(agent), call.model
    name = getattr(call.task, "name", None) or getattr(call.task, "description", None) or opening.task
    plain = TaskLayout(role, " ".join(str(name).split())[:60], opening, call.tools)
    if not binding.rewrites:
        return plain

    def own(why: Reason, missing: str = "") -> TaskLayout:
        asked = AgentRequest(role, model, binding.held, "", _nothing, worded="", own=(why,), talk=_talk(binding))
        return replace(plain, plan=session.plan(asked), missing=missing)

    left = session.left_alone(role, _talk(binding), binding.scope)
    if left is not None and not kept_elsewhere(call.llm):
        return own(left, _missing(binding, role, opening))

    if binding.clash:
        return own(reason("tool_schema_differs", binding.clash))
    if kept_elsewhere(call.llm):
        session.note(
            "requests that go on from what the provider keeps (auto_chain, previous_response_id) have CrewAI's own "
            "layout"
        )
        # What is said in the system message is for one request alone.
        return own(reason("kept_by_provider"), _missing(binding, role, opening) if opening.system else "")
    worded = _worded(agent)
    if worded:
        # The prompt is the application's own, and stays; only a text that is declared and not in it is added.
        return own(reason("own_prompt", worded), _missing(binding, role, opening))
    crew = getattr(agent, "crew", None)
    crew = None if isinstance(crew, str) else crew
    text_mode = not call.tools and _ACTION in opening.system
    contradicts = "" if text_mode else differing(session, call.tools)
    if contradicts:
        return own(reason("tool_schema_differs", contradicts))
    offered = Offer(None) if text_mode else offer(session, model, getattr(agent, "llm", None), call.tools)
    alone = _speaks_alone(crew, agent)
    if alone and call.tools and _same_for_all(crew):
        # In CrewAI's order, in which a manager's workers find their own tools cached.
        offered = Offer([ordered(tool) for tool in call.tools])
    texts = layouts.texts(crew, opening)
    pieces = _pieces(binding, crew, texts)
    if crew is not None and crew.process == "hierarchical" and not alone:
        # A worker's task is in the manager's own words and shares nothing.
        return own(reason("own_prompt", "the manager words a worker's task"))
    moved = opening.system if alone else _text_tools(opening.system, crew, binding) if text_mode else ""
    opened = session.prefix.text if binding.options.declared or not alone else ""
    system = "\n\n".join(part for part in (opened, moved.strip("\n"), *(piece.block for piece in pieces)) if part)
    log = tuple(_log(crew, opening.task))
    draft = replace(plain, offer=offered, system=system, log=log, text_mode=text_mode)
    instruction = instruction_of(session, role, opening, moved)
    case = _Case(layouts, call, draft, crew, texts, pieces, moved, referred(instruction, pieces))
    plan = session.plan(case.asked(instruction))
    if not plan.forks:
        # From now on the provider has this agent's text in the crew's own layout.
        layouts.sent.add(_own_mark(model, role))
        return replace(plain, plan=plan, missing=_missing(binding, role, opening))
    layouts.said[role] = case.front
    draft = replace(draft, plan=plan)
    if not plan.continues:
        # Behind the results, which the next agent can read then.
        layouts.sent.update([*draft.marks(model, ""), draft.behind_mark(model, case.front)])
        return replace(draft, tail=tail_of(session, draft, instruction, [*pieces, *log]))
    layouts.sent.update([draft.marks(model, "")[0], *draft.marks(model, case.front)])
    # In front of the results: a long text that the agent's next task can read.
    again = f"Your role is {role}." if log else ""
    return replace(draft, front=case.front, tail=tail_of(session, draft, again, [*pieces, *log]))


def _talk(binding: Binding) -> str:
    """The id of the conversation under way: a kickoff's, whose decisions are held with those of the crew's others."""
    return binding.kickoff_id or binding.conversation


def _nothing(_: str) -> CountedHistory[Piece]:
    """No results: the application's own messages stay where they are."""
    return CountedHistory((), lambda piece: digest_of(piece.block), lambda _: 0)


def instruction_of(session: AdapterSession, role: str, opening: Opening, moved: str) -> str:
    """Role, goal and backstory. ``moved`` is the part of the system text that stands in the shared one already."""
    instruction = opening.system.replace(moved, "", 1).rstrip() if moved else opening.system
    shared = session.prefix.system.strip()
    if shared and shared in instruction:
        # It stands in front already, and is not said twice.
        instruction = instruction.replace(shared, "", 1).strip()
    if session.tail == "cards" and session.prefix.roles.get(role) == instruction:
        instruction = session.tail_for(role, instruction)
    return instruction


def tail_of(session: AdapterSession, layout: TaskLayout, instruction: str, pieces: Sequence[Piece]) -> str:
    """The agent's text and its task, with references in place of what is shared, and the limits of its tools."""
    offered = layout.offer
    limits = session.tail_for("", "", tools=offered.said) if offered.said is not None else ""
    roster = "" if offered.tools == list(layout.tools or ()) else coworkers_note(layout.tools)
    parts = [instruction, layout.opening.task.lstrip("\n"), roster, limits]
    return referred("\n\n".join(part for part in parts if part), pieces)


def _missing(binding: Binding, role: str, opening: Opening) -> str:
    """What only the session knows of the system text: the declared one and the role's card, where they are not in it.

    Requests with a declared text stay unforked only where they are too short, or were and the agent's text is long.
    """
    prefix = binding.session.prefix
    if not binding.options.declared:
        return ""
    said = opening.system or opening.task
    texts = ("" if prefix.system == SYSTEM else prefix.system.strip(), prefix.roles.get(role, "").strip())
    return "\n\n".join(text for text in texts if text and text not in said)


@dataclass(frozen=True, slots=True)
class _Case:
    """What the costs of a task are counted from: the layout it would have, and the tasks beside it."""

    layouts: Layouts
    call: LLMCall
    layout: TaskLayout
    crew: Any
    texts: Sequence[str]
    """Of the crew's tasks in its order; without a crew, those seen so far."""
    pieces: Sequence[Piece]
    moved: str
    """The part of the agent's system text that stands in the shared one."""
    front: str
    """The agent's text as a fork would say it."""

    @property
    def tasks(self) -> list[Any]:
        """The crew's tasks."""
        return [] if self.crew is None else list(self.crew.tasks)

    @property
    def at(self) -> int | None:
        """The place of this task among them; None for one that the crew has not got."""
        return next((i for i, one in enumerate(self.tasks) if one is self.call.task), None)

    def count(self, text: str) -> int:
        """The tokens of a text."""
        return self.layouts.binding.session.count(text, self.call.model)

    def size(self, tools: Iterable[Any] | None) -> int:
        """The tokens of a list of tools."""
        return sum(self.count(_schema(tool)) for tool in tools or ())

    def carried(self, text: str, pieces: Iterable[Piece]) -> int:
        """The tokens of the shared texts that a text contains."""
        return sum(self.count(piece.text) for piece in used(text, pieces))

    def asked(self, instruction: str) -> AgentRequest[Piece]:
        """What the task's agent asks, for the planner: its text may stand in front of the results, or behind them."""
        binding, layout, model = self.layouts.binding, self.layout, self.call.model
        options, prefix = binding.options, binding.session.prefix
        log = CountedHistory(layout.log, lambda piece: digest_of(piece.block), lambda piece: self.count(piece.block))
        head = self.size(layout.offer.tools) + self.count(layout.system)
        sizes = [head, *map(log.tokens, layout.log)]
        # A declared text is said in the crew's own layout too; role cards beside it are not.
        cards = prefix.text.strip() != prefix.system.strip()

        def place() -> RolePosition | Reason:
            listed = (model, _digest("tools", *map(_schema, layout.tools or ())))
            found = economics.crew_position(
                self._stake(sizes, listed),
                self.standing(),
                declared=options.declared,
                wanted=bool(options.shared_context) or (options.declared and cards),
            )
            if isinstance(found, Reason):
                self.layouts.sent.add(listed)
                binding.session.note(
                    f"{layout.role}: what its task shares with others is too little to pay, "
                    "its requests are left as they are"
                )
            return found

        return AgentRequest(
            layout.role,
            model,
            binding.held,
            instruction,
            lambda _: log,
            worded=self.front,
            shared=sum(sizes),
            known=tuple(self._mistakes()),
            place=place,
            talk=_talk(binding),
        )

    def _mistakes(self) -> Iterator[Reason]:
        """What the user named to be shared and no task contains, and tools that came too late for the union."""
        options, opening = self.layouts.binding.options, self.layout.opening
        texts, given = [*self.texts, opening.task, opening.system], getattr(self.crew, "_inputs", None) or {}
        for name in options.shared_inputs or ():
            value = given.get(name)
            if not isinstance(value, str) or not value.strip() or not any(value in text for text in texts):
                yield reason("text_not_found", name)
        if options.shared_context and not any(options.shared_context in text for text in texts):
            yield reason("text_not_found", "shared_context")
        yield from (reason("made_too_late", name) for name in self.layout.offer.late)

    def _stake(self, sizes: Sequence[int], listed: Mark) -> economics.Stake:
        """The counts that decide. ``sizes`` are tokens of the shared head and each result."""
        layout, sent = self.layout, self.layouts.sent
        shared = [*self.pieces, *layout.log]
        marks = layout.marks(self.call.model, "")
        known = sum(size for mark, size in zip(marks, sizes, strict=True) if mark in sent)
        own = self.carried(layout.opening.task + layout.opening.system, shared) + self.count(self.moved)
        references = _LABEL_TOKENS * len(used(layout.opening.task, shared))
        return economics.Stake(
            fresh=sum(sizes) - known,
            known=known,
            own_tools=self.size(layout.tools),
            tools_known=listed in sent,
            own_texts=own,
            later=tuple(self._later()),
            overhead=references + _LIMITS_TOKENS * (layout.offer.said is not None),
            loops=self.layouts.binding.part(Executions).loops if layout.has_tools else 0,
        )

    def standing(self) -> economics.Standing:
        """What the agents' texts and the results of earlier tasks have come to, and the tasks still to come."""
        layouts, layout, model, front = self.layouts, self.layout, self.call.model, self.front
        binding, sent, role = layouts.binding, layouts.sent, layout.role
        profile = binding.session.profile(model)
        log = [self.count(piece.block) for piece in layout.log]

        def size(role: str) -> int:
            return self.count(texts[role]) if role in texts else 0

        def text(task: Any) -> economics.RoleText:
            role, context = _role(task.agent), task.context
            return economics.RoleText(
                role, size(role), bool(context) if isinstance(context, list) else context is not None
            )

        def met(marks: Sequence[Mark]) -> int | None:
            if marks[0] not in sent:
                return None
            return sum(size for mark, size in zip(marks[1:], log, strict=True) if mark in sent)

        tasks, at = self.tasks, self.at
        waiting = [] if at is None else [one for one in tasks[at + 1 :] if not binding.finished(self.crew, one)]
        texts = {} if not front else {**{_role(one.agent): layouts.text_of(one.agent) for one in tasks}, role: front}
        this = economics.RoleText(role, size(role))
        fronts = {one: met(layout.marks(model, said)) for one, said in texts.items()}
        tools = self.size(layout.tools)
        head = self.size(layout.offer.tools) + self.count(layout.system)
        return economics.Standing(
            texts=(this, *map(text, waiting)),
            read=profile.read,
            blocks=profile.match == "block",
            short=head < profile.min_tokens,
            runs=tuple(map(text, tasks)) if self.crew is not None else (this,),
            left=max(binding.runs_left, binding.again(self.crew)) if self.crew is not None else 1,
            results=len(log),
            log=sum(log),
            known=met(layout.marks(model, "")) or 0,
            grows=min(log, default=0),
            front={one: had for one, had in fronts.items() if had is not None},
            behind={role: sum(log)} if layout.behind_mark(model, front) in sent else {},
            own=frozenset(one for one in texts if _own_mark(model, one) in sent),
            uncached=frozenset(one for one in texts if tools + size(one) < profile.min_tokens),
        )

    def _later(self) -> list[int]:
        """What each task still to come would carry of the shared texts itself."""
        binding, layout, at = self.layouts.binding, self.layout, self.at
        if self.crew is None:
            waiting = max(0, len(binding.agents) - len(self.texts))
            return [self.carried(layout.opening.task, self.pieces)] * waiting
        if at is None:
            return []
        moved, later = self.count(self.moved), []
        for index, (task, text) in enumerate(zip(self.tasks, self.texts, strict=True)):
            if index == at or binding.finished(self.crew, task):
                continue
            needed = [piece for piece in layout.log if index > at and self._consumes(task, piece)]
            later.append(self.carried(text, self.pieces) + moved + sum(self.count(piece.text) for piece in needed))
        labels = {f"shared input {name!r}" for name in binding.constant}
        constant = [piece for piece in self.pieces if piece.label in labels]
        return later + [self.carried(text, constant) + moved for text in self.texts] * binding.runs_left

    def _consumes(self, task: Any, piece: Piece) -> bool:
        source = next((one for one in self.tasks if getattr(one.output, "raw", None) == piece.text), None)
        return source is not None and _needs(task, source)


def _pieces(binding: Binding, crew: Any, texts: Sequence[str]) -> list[Piece]:
    """What the tasks' texts have in common: the user's shared context, inputs, and then blocks of lines."""
    options = binding.options
    pieces = [Piece("the shared context", options.shared_context)] if options.shared_context else []
    inputs = getattr(crew, "_inputs", None) or {}
    bare = [referred(text, pieces) for text in texts]
    pieces += given_inputs(inputs, bare, options.shared_inputs, binding.constant)
    return pieces + common_blocks([referred(text, pieces) for text in texts])


def _log(crew: Any, text: str) -> list[Piece]:
    """Outputs of finished tasks that stand in this one and that another one needs too, in the crew's order."""
    if crew is None:
        return []
    tasks = list(crew.tasks)
    found = []
    for index, task in enumerate(tasks):
        raw = getattr(task.output, "raw", None)
        # Privacy: only what CrewAI itself put into this task's text.
        if not raw or len(raw) < MIN_CHARS or raw not in text:
            continue
        if sum(_needs(other, task) for other in tasks[index + 1 :]) > 1:
            agent = str(getattr(task.output, "agent", "")).strip()
            found.append(Piece(f"result of task {index + 1} by {agent}", raw))
    return found


def _needs(task: Any, earlier: Any) -> bool:
    context = task.context
    return earlier in context if isinstance(context, list) else context is not None


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
    """By which option the application lays the agent's prompt out itself, if it does."""
    if getattr(agent, "use_system_prompt", True) is False:
        return "use_system_prompt=False"
    templates = ("system_template", "prompt_template", "response_template")
    return next((name for name in templates if getattr(agent, name, None)), "")


def kept_elsewhere(llm: Any) -> bool:
    """Whether the provider keeps what a model is asked, where an agent's tail would stay for the next one to read."""
    return bool(getattr(llm, "auto_chain", False) or getattr(llm, "previous_response_id", None))


def _speaks_alone(crew: Any, agent: Any) -> bool:
    """Whether all tasks that can share are one agent's: then its role is shared too, and stays in front."""
    if crew is None or getattr(agent, "inject_date", False):
        return False
    if crew.process == "hierarchical":
        return agent is crew.manager_agent
    return len(crew.tasks) > 1 and all(task.agent is agent for task in crew.tasks)


def _same_for_all(crew: Any) -> bool:
    """Whether a lone agent has the same tools in every task. CrewAI gives a manager to the tasks it reaches."""
    if crew.process == "hierarchical":
        waiting = [task for task in crew.tasks if task.agent is not crew.manager_agent]
        return not any(task.tools or task.agent is not None for task in waiting)
    return len({_tool_names(task) for task in crew.tasks}) == 1


def _tool_names(owner: Any) -> tuple[str, ...]:
    return tuple(sorted(str(tool.name) for tool in owner.tools or []))


def _role(agent: Any) -> str:
    return str(getattr(agent, "role", "")).strip()


def _own_mark(model: str, role: str) -> Mark:
    """What stands for an agent's text in the crew's own layout."""
    return model, _digest("own", role)


def _schema(tool: Any) -> str:
    return dumps(tool, f"tool {name_of(tool)}").decode()


def _digest(*texts: str) -> bytes:
    state = blake2b(digest_size=16)
    for text in texts:
        state.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return state.digest()
