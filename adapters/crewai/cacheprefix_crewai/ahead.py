"""A crew's tasks in tokens: the one whose first request is due and those behind it, for the session to compare layouts.

The session plays them in the application's own layout and as forks, and takes what costs less (``KnownCrews``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from cacheprefix.adapter import (
    AHEAD,
    ITEMS,
    LONG_ROLE,
    Bounded,
    CrewAhead,
    CrewTask,
    KnownCrews,
    Part,
    digest_of,
    dumps,
    once,
)
from cacheprefix_crewai.framing import input_label, result_label
from cacheprefix_crewai.history import Executions
from cacheprefix_crewai.material import CommonTexts, SharedText, TaskWords, texts_in
from cacheprefix_crewai.task_layout import TaskLayout, role_of
from cacheprefix_crewai.tasks import doer_of, reads_result_of, reads_results, tool_names
from cacheprefix_crewai.tools import name_of, schemas

if TYPE_CHECKING:
    from cacheprefix import Profile
    from cacheprefix_crewai.binding import Binding

_REFERENCE_TOKENS = 14
"""About what a reference to a shared text and the label above that text cost."""
_LIMITS_TOKENS = 8
"""About what the sentence on a role's tools costs."""
_KEEP_COUNTS = 2_000


class SentTexts:
    """What an installation's requests carried so far, and how many tokens its texts have."""

    def __init__(self, binding: Binding) -> None:
        self.binding = binding
        self.crews = KnownCrews()
        """What requests began with."""
        self.agent_texts: dict[str, str] = {}
        """Each agent's text as forks sent it last, by its role."""
        self.own_tools: dict[str, Part] = {}
        """The tools of each agent's last request in the application's own layout, by its role."""
        self._listed: Bounded[tuple[str, ...], Part] = Bounded(_KEEP_COUNTS)
        self._tokens: Bounded[tuple[str, str], int] = Bounded(_KEEP_COUNTS)
        self._kickoffs: Bounded[str, None] = Bounded(_KEEP_COUNTS)
        self._inputs: Bounded[str, _KeptInput] = Bounded(_KEEP_COUNTS)

    def further_runs(self, inputs: dict[str, Any], names: Iterable[str]) -> int:
        """In how many further kickoffs the inputs of these ``names`` are likely to stay, by earlier ones."""
        kickoff = self.binding.kickoff_id
        with self.binding.lock:
            if kickoff and kickoff not in self._kickoffs:
                self._kickoffs[kickoff] = None
                for name, value in inputs.items():
                    if isinstance(value, str):
                        self._inputs.of(name, _KeptInput).learn(value)
            return min((self._inputs.of(name, _KeptInput).further for name in names), default=0)

    def tokens(self, text: str, model: str) -> int:
        """The tokens of a text, counted once: a crew's tasks carry the same ones."""
        return self._tokens.of((model, digest_of(text)), lambda: self.binding.session.count(text, model))

    def listed_tools(self, task: Any, agent: Any, model: str) -> Part:
        """The tools that a task, or else its agent, lists: those of its request as far as that is known before."""
        owner = task if task.tools else agent
        names = tool_names(owner)

        def counted() -> Part:
            texts = [_schema_text(tool) for tool in schemas(owner.tools or [])]
            return Part(digest_of("tools", *texts), sum(self.tokens(text, model) for text in texts))

        return self._listed.of((role_of(agent), model, *names), counted)

    def text_of(self, agent: Any) -> str:
        """An agent's text: as it was sent, or about what it will be."""
        known = self.agent_texts.get(role_of(agent))
        return known or "\n".join(str(getattr(agent, name, "")) for name in ("role", "goal", "backstory"))


@dataclass(slots=True)
class _KeptInput:
    """How often an input of a crew was the same in its next kickoffs, and how often another one."""

    seen: Bounded[bytes | str, None] = field(default_factory=lambda: Bounded(_KEEP_COUNTS))
    """Digests of what it was so far."""
    same: int = 0
    other: int = 0

    def learn(self, value: str) -> None:
        """Enter what it is in one more kickoff. One that comes back is in the provider's cache as well."""
        name = digest_of(value)
        if name in self.seen:
            self.same += 1
        elif len(self.seen):
            self.other += 1
        self.seen[name] = None

    @property
    def further(self) -> int:
        """In how many further kickoffs it is likely to be what it is: as in the mean so far."""
        return self.same // self.other if self.other else ITEMS


@dataclass(frozen=True)
class SharingTasks:
    """Tasks whose requests can begin alike, what they say, and what they have in common."""

    crew: Any
    """None for agents without one."""
    tasks: Sequence[Any]
    """In the crew's order, the one whose request is due among them; none without a crew."""
    words: Sequence[TaskWords]
    """What each says; without a crew what agents were asked so far, the request that is due last."""
    common: CommonTexts
    at: int | None
    """The place in ``tasks`` of the one whose request is due; None for one that the crew has not got."""
    other: int = 0
    """How many requests of agents without a crew were for an answer by another schema, or by none."""

    @property
    def inputs(self) -> dict[str, Any]:
        """What the crew was kicked off with."""
        return inputs_of(self.crew)


def inputs_of(crew: Any) -> dict[str, Any]:
    """What a crew was kicked off with, by name, lists and dictionaries as CrewAI writes them into texts."""
    given = dict(getattr(crew, "_inputs", None) or {})
    return {name: str(value) if isinstance(value, (list, dict)) else value for name, value in given.items()}


@dataclass(frozen=True, slots=True)
class _TaskTexts:
    """One task's words, its agent's, and which of the shared texts stand in its requests."""

    words: TaskWords
    agent_text: str
    """The agent's text, which a fork repeats behind the shared part; may be empty."""
    held: set[SharedText]
    """Shared texts that its own layout contains."""
    ends: Sequence[tuple[int, SharedText]]
    """Those among them that its words begin with, each with the index in the words at which it ends."""
    shared: Sequence[SharedText]
    """The texts that stand in its fork's shared part."""
    results: Sequence[SharedText] = ()
    """The results of earlier tasks that stand in front of it."""
    reads: bool = True
    """Whether it reads results of earlier tasks at all."""
    at: int | None = None
    """Its place among the crew's tasks; None for the task that is due."""
    others: frozenset[SharedText] = frozenset()
    """Shared texts in whose place a later run has others, taken to be as long."""
    same: int | None = None
    """Index in the words up to which a later run says the same; None in this run."""


@dataclass(frozen=True)
class TasksAhead:
    """The task whose first request is due and those that come behind it, each in tokens, in both layouts.

    What is compared of a task's first request, in the order in which it stands there:

        own  = its own tools + agent's text, with what is shared of it + shared texts and results in the task's words
        fork = tools of all + beginning of the system text + shared texts + results + rest of the agent's text

    The task's own words stand in both and are left out, but for what a later kickoff reads of their beginning. The
    agent's text may stand in front of the results.
    """

    sent: SentTexts
    sharing: SharingTasks
    layout: TaskLayout
    """How the due task's requests would be laid out as forks."""
    model: str
    moved: str
    """The part of the agent's own system text that stands in the shared one."""
    agent_text: str
    """The agent's text as a fork would say it; empty where it stands in the shared part."""
    _counted_texts: dict[str, int] = field(default_factory=dict, repr=False, compare=False)
    """The tokens of texts for this one request: each task ahead carries the same results."""

    @once
    def ahead(self) -> CrewAhead:
        """What the session compares costs by. The tasks behind this one are counted when they are asked for."""
        binding, layout, crew, rules = self.sent.binding, self.layout, self.sharing.crew, self._rules
        each = None if crew is None else binding.for_each
        references = texts_in(layout.opening.task, [*layout.texts, *layout.results])
        return CrewAhead(
            self.due,
            self._unasked_agents if crew is None else self._later_tasks,
            self._later_run,
            # The provider's rule: what stands behind another schema is another prompt.
            self.model + self.layout.schema,
            rules.read,
            rules.min_tokens,
            rules.match == "block",
            units=rules.match == "unit",
            long=self._has_long_text(),
            left=0 if each is None else each.left,
            likely=self._further if self._items else 0,
            repeats=1 if crew is None else binding.runs_before(crew),
            loops=binding.part(Executions).loops if layout.has_tools else 0,
            overhead=_REFERENCE_TOKENS * len(references) + _LIMITS_TOKENS * (layout.offer.said is not None),
            peers=self.others_asked,
            grows=min((self.count(result.block) for result in layout.results), default=0),
        )

    @property
    def others_asked(self) -> bool:
        """Whether there is another agent among the tasks, those that agents without a crew were asked before too."""
        return any(words.agent != self.layout.role for words in self.sharing.words)

    @once
    def due(self) -> CrewTask:
        """The task whose first request is due."""
        layout, at = self.layout, self.sharing.at
        held = set(texts_in(layout.opening.text, [*layout.texts, *layout.results]))
        words = TaskWords(layout.opening.task, "", layout.role) if at is None else self.sharing.words[at]
        ends = () if at is None else self.sharing.common.ends[at]
        return self._counted(_TaskTexts(words, self.agent_text, held, ends, layout.texts, layout.results))

    @once
    def own_tools(self) -> Part:
        """The tools of the due task's request in the application's own layout."""
        schemas = [_schema_text(tool) for tool in self.layout.tools or ()]
        return Part(digest_of("tools", *schemas), sum(map(self.count, schemas)))

    def count(self, text: str) -> int:
        """The tokens of a text."""
        known = self._counted_texts.get(text)
        if known is None:
            known = self._counted_texts[text] = self.sent.tokens(text, self.model)
        return known

    @property
    def _rules(self) -> Profile:
        """The cache rules of the provider of the due task's model."""
        return self.sent.binding.session.profile(self.model)

    # ------------------------------------------------------------------ the tasks behind it

    def _later_tasks(self) -> list[CrewTask]:
        """The crew's tasks that are still to come in this run, at most ``AHEAD`` of them."""
        return [self._later_task(at) for at in self._places_ahead]

    @once
    def _places_ahead(self) -> list[int]:
        """The places in ``sharing.tasks`` of those that are not finished yet in this run."""
        tasks, at, finished = self.sharing.tasks, self.sharing.at, self.sent.binding.finished
        behind = () if at is None else range(at + 1, len(tasks))
        return list(islice((one for one in behind if not finished(self.sharing.crew, tasks[one])), AHEAD))

    def _later_task(self, at: int) -> CrewTask:
        """A task that is still to come in this run."""
        task, common = self.sharing.tasks[at], self.sharing.common
        results = tuple(result for result, earlier in self._results_with_tasks if reads_result_of(task, earlier))
        held = {*common.held[at], *results}
        words, text = self.sharing.words[at], self._text_of(at)
        found = _TaskTexts(words, text, held, common.ends[at], common.carried(at), results, reads_results(task), at)
        return self._counted(found)

    @once
    def _results_with_tasks(self) -> list[tuple[SharedText, Any]]:
        """The results in front of the due task, each with the task that it is of."""
        by_label = {result_label(number): task for number, task in enumerate(self.sharing.crew.tasks, 1)}
        return [(result, by_label[result.label]) for result in self.layout.results if result.label in by_label]

    def _unasked_agents(self) -> list[CrewTask]:
        """The tasks of agents without a crew that were not asked yet. Each is taken to be much like this one."""
        texts = self._size_of(self.layout.texts)
        other = replace(self.due, agent="", text=Part("", 0), begins=(), rest=texts)
        # The provider's rule: a model reads nothing of what another was asked, so that its agents are not waited for.
        models = [getattr(getattr(agent, "llm", None), "model", None) for agent in self.sent.binding.agents]
        return [other] * (models.count(self.model) - len(self.sharing.words) - self.sharing.other)

    def _text_of(self, at: int) -> str:
        """The text of the agent that does a task; empty where agents' texts stand in the shared part."""
        return self.sent.text_of(self._doer(at)) if self.agent_text else ""

    def _doer(self, at: int) -> Any:
        """The agent that asks for a task, by its place."""
        return doer_of(self.sharing.crew, self.sharing.tasks[at])

    def _listed(self, at: int | None) -> Part | None:
        """The tools of a task whose agent was not asked yet; None where it may get others in the run."""
        if at is None:
            return None
        task, agent = self.sharing.tasks[at], self._doer(at)
        if getattr(agent, "allow_delegation", False) or getattr(agent, "mcps", None):
            return None
        return self.sent.listed_tools(task, agent, self.model)

    def _has_long_text(self) -> bool:
        """Whether one of the agents still to come has a text so long that its place matters."""
        agents = {id(agent): agent for agent in map(self._doer, self._places_ahead)}
        texts = [self.agent_text, *map(self.sent.text_of, agents.values())]
        return bool(self.agent_text) and any(self.count(text) >= LONG_ROLE for text in texts)

    # ------------------------------------------------------------------ later runs

    @once
    def _items(self) -> set[str]:
        """The names of inputs that change from run to run, as a question does that is put to one long text.

        They are the inputs that are not shared themselves, where a long input is and a task's template holds one of
        them: further runs with the same long text are likely then. Empty where that is not so, where earlier kickoffs
        had another long text each, and where it is known how many runs there will be.
        """
        sharing = self.sharing
        items = set(sharing.inputs) - self._shared_inputs
        if self.sent.binding.for_each is not None or sharing.at is None or not self._further:
            return set()
        return items if any(f"{{{name}}}" in words.template for name in items for words in sharing.words) else set()

    @once
    def _shared_inputs(self) -> set[str]:
        """The names of inputs that tasks share."""
        labels = {text.label for text in self.sharing.common.texts}
        return {name for name in self.sharing.inputs if input_label(name) in labels}

    @once
    def _further(self) -> int:
        """In how many further kickoffs the shared inputs are likely to be what they are; 0 where none is shared."""
        return self.sent.further_runs(self.sharing.inputs, self._shared_inputs)

    @property
    def _varying(self) -> set[str]:
        """The names of inputs that a later run is taken to have others of."""
        return self._items or set(self.sharing.inputs) - self.sent.binding.constant_inputs

    def _later_run(self) -> list[CrewTask]:
        """The tasks of a later run of this crew, at most ``AHEAD``; without a crew, this one task once more.

        By then inputs have other values, which that run shares in their turn: texts as long, which nobody has sent yet.
        """
        sharing, common = self.sharing, self.sharing.common
        if sharing.crew is None:
            return [self.due]
        changed = {input_label(name) for name in self._varying}
        tasks = []
        for at, words in enumerate(sharing.words[:AHEAD]):
            held = set(common.held[at])
            others = frozenset(text for text in common.texts if text.label in changed)
            same, text, reads = self._same_until(words), self._text_of(at), reads_results(sharing.tasks[at])
            ends = common.ends[at] if same else ()
            found = _TaskTexts(words, text, held, ends, common.carried(at), (), reads, at, others, same)
            tasks.append(self._counted(found))
        return tasks

    def _same_until(self, words: TaskWords) -> int:
        """Index in a task's words up to which a later run says the same and can find it in the provider's cache."""
        places = [at for name in self._varying if (at := words.template.find(f"{{{name}}}")) >= 0]
        if not places:
            return len(words.task)
        # The provider's rule: where marks decide, they stand at a task's end. One that ends otherwise is not read.
        if self._rules.match != "block":
            return 0
        start = words.template[: min(places)]
        for name, value in self.sharing.inputs.items():
            start = start.replace(f"{{{name}}}", str(value))
        return len(start) if words.task.startswith(start) else 0

    # ------------------------------------------------------------------ in tokens

    def _counted(self, task: _TaskTexts) -> CrewTask:
        """A task as the cost comparison counts it, in the application's own layout and as a fork."""
        words, text = task.words, task.agent_text
        in_background = task.held & self.sharing.common.backgrounds
        begun = [(end, one) for end, one in task.ends if one not in in_background]
        start = self._same_until(words) if self.sharing.at is not None else 0
        own = self._own_beginning(words, start, [one for end, one in begun if end <= start])

        def begins_with(end: int) -> bytes | str:
            """Stands for the task's words up to there, in this run or in one that says something else by then."""
            name = digest_of(words.agent, words.task[:end])
            return name if task.same is None or end <= task.same else digest_of("later", str(name))

        begins = [Part(begins_with(end), self.count(one.text)) for end, one in begun]
        place = sum(end <= start for end, _ in begun)
        tools = self.own_tools
        if words.agent != self.layout.role:
            # What an agent that asked before has in the provider's cache begins with its own tools, and not with these.
            tools = self.sent.own_tools.get(words.agent) or self._listed(task.at) or tools
        return CrewTask(
            agent=words.agent,
            text=Part(digest_of("text", text), self.count(text) if text else 0),
            tools=tools,
            beside=self.count(self.moved) + self._size_of(in_background),
            begins=(*begins[:place], *own, *begins[place:]),
            words=own,
            rest=self._size_of(task.held - in_background - {one for _, one in begun}),
            shared=self._beginning(task.shared, task.others),
            # Mostly those of the task that is due: they are counted once.
            results=self._results if task.results == self.layout.results else self._blocks(task.results),
            logs=task.reads,
        )

    def _own_beginning(self, words: TaskWords, end: int, shared: Sequence[SharedText]) -> tuple[Part, ...]:
        """What the beginning of a task's words, up to there, says but for ``shared`` texts; nothing where it is empty.

        The provider's rule: where marks decide, it stands behind none, so that nobody reads it.
        """
        start = words.task[:end]
        if self._rules.match != "block" or not start.strip():
            return ()
        # Money: the application's own requests begin with it each time; behind a text that changes it is paid anew.
        size = self.count(start) - self._size_of(shared)
        return (Part(digest_of("words", words.agent, start), size),) if size > 0 else ()

    def _beginning(self, shared: Sequence[SharedText], others: frozenset[SharedText]) -> tuple[Part, ...]:
        """What a fork begins with, in parts each of which a later request can find in the cache.

        In the place of ``others`` stand texts that are as long.
        """
        blocks = zip(shared, self._blocks(shared), strict=True)
        later = [Part(digest_of("later", str(part.key)), part.size) if one in others else part for one, part in blocks]
        parts = [self._first_part, *later]
        # The provider's rule: one that caches by itself (in blocks) reads what two system texts have in common, so that
        # each text counts alone. Where marks decide, a system text that goes on otherwise is not read at all.
        if self._rules.match == "block":
            return tuple(parts)
        return (Part(digest_of(*(str(part.key) for part in parts)), sum(part.size for part in parts)),)

    @once
    def _first_part(self) -> Part:
        """What every fork of the crew begins with: the tools of all, and the beginning of the system text."""
        schemas = [_schema_text(tool) for tool in self.layout.offer.tools or ()]
        size = sum(map(self.count, schemas)) + self.count(self.layout.beginning)
        return Part(digest_of(self.layout.beginning, *schemas), size)

    @once
    def _results(self) -> tuple[Part, ...]:
        """The results in front of the due task."""
        return self._blocks(self.layout.results)

    def _blocks(self, texts: Sequence[SharedText]) -> tuple[Part, ...]:
        """Texts as they stand in the shared part, each with its heading."""
        return tuple(Part(text.key, self.count(text.block)) for text in texts)

    def _size_of(self, texts: Iterable[SharedText]) -> int:
        """The tokens of texts without their headings, as they stand in a task's words."""
        return sum(self.count(text.text) for text in texts)


def _schema_text(tool: Any) -> str:
    """A tool's schema as a text, to be counted."""
    return dumps(tool, f"tool {name_of(tool)}").decode()
