"""What ``install`` keeps for a crew: the session, the layouts settled so far, and what to undo."""

from __future__ import annotations

import copyreg
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cacheprefix.bounded import Bounded
from cacheprefix.contexts import BlockVar
from cacheprefix.layout import Pass, VolatileRole, Worth
from cacheprefix.locks import RLock
from cacheprefix_crewai.fork_context import BREAKPOINT, Frame, Opening, Volatile, opening_of
from cacheprefix_crewai.history import Execution, compact_now
from cacheprefix_crewai.layout import settle
from cacheprefix_crewai.tool_results import shorten

if TYPE_CHECKING:
    from cacheprefix import Call, Conversation, Session

KEY = "__cacheprefix__"
"""Where a crew, agent or model carries its binding: in the instance's dict, out of reach of its dumps."""

_KEEP_FRAMES = 2_000
_KEEP_TEXTS = 40
_KEEP_CALLS = 10_000
_WARM_SECONDS = 240.0
"""A prefix unused for longer may be gone from the provider's cache (5 minutes), so someone leads again."""

RUN: BlockVar[Binding] = BlockVar("cacheprefix_crewai_run")
"""The installed crew that is running here; its threads and tasks inherit it."""
KICKOFF: BlockVar[str] = BlockVar("cacheprefix_crewai_kickoff")
"""The name that the requests of the kickoff under way have in common."""


@dataclass(frozen=True)
class Options:
    """What the user chose at ``install``."""

    shared_inputs: tuple[str, ...] | None = None
    shared_context: str = ""
    declared: bool = False
    """The user gave a shared system text, so every agent's request carries it."""
    gate: bool = True
    volatile: Volatile | None = None
    volatile_role: VolatileRole = "user"
    scope: str | None = None
    """The tenant whose crew it is; None for the session's."""


@dataclass
class Binding:
    """One installation. Thread-safe; crew copies, their agents and models share it.

    ``holders`` counts who installed it; the last of them to leave takes it back.
    """

    session: Session
    options: Options
    conversation: str = ""
    agents: list[Any] = field(default_factory=list)
    union: bool = True
    """Whether the crew's tools make a union; two tools of one name do not."""
    active: bool = True
    holders: int = 0
    constant: frozenset[str] = frozenset()
    """Inputs that are the same in all runs of the ``kickoff_for_each`` under way."""
    runs_left: int = 0
    undo: list[Callable[[], None]] = field(default_factory=list)
    texts: OrderedDict[bytes, str] = field(default_factory=OrderedDict)
    """Task texts of agents without a crew, to find what they have in common."""
    sent: set[tuple[str, bytes]] = field(default_factory=set)
    """(model, digest) of shared parts and tool lists that requests carried."""
    said: dict[str, str] = field(default_factory=dict)
    """Each agent's text as forks sent it last, by its role."""
    tasks: Bounded[int, tuple[str, Call]] = field(default_factory=lambda: Bounded(_KEEP_CALLS))
    newest: Execution | None = None
    """The run whose request was answered last."""

    def __post_init__(self) -> None:
        self.lock = RLock()
        self._frames: Bounded[tuple[str, bytes], Frame] = Bounded(_KEEP_FRAMES)
        self._stale: Bounded[int, list[Any]] = Bounded(_KEEP_FRAMES)
        self._executions: Bounded[tuple[bytes, int], Execution] = Bounded(_KEEP_FRAMES)
        self._warm: dict[bytes, float] = {}
        self._opened = self._looped = 0

    @property
    def scope(self) -> str:
        """The tenant whose crew it is."""
        return self.session.scope if self.options.scope is None else self.options.scope

    @property
    def held(self) -> Conversation:
        """The conversation with the decisions of all runs."""
        return self.session.conversation(self.conversation, scope=self.scope)

    @property
    def loops(self) -> float:
        """Further requests a task makes after its first: as seen so far, two at least."""
        frames = len({(call.agent, task) for task, call in self.tasks.values()})
        return max(2.0, len(self.tasks) / frames - 1) if frames else 2.0

    def continues(self, frame: Frame) -> bool:
        """Whether a task's first request is worth marking at its end: tools were mostly used so far.

        Writing a token costs a quarter more than sending it, and reading it again saves nine tenths of it, so that
        one task in three that goes on is enough.
        """
        if not (frame.tools or frame.text_mode):
            return False
        with self.lock:
            return (self._looped + 1) * 3 >= self._opened

    def asked(self, frame: Frame, execution: Execution) -> None:
        """Count the tasks with tools that began, and those of them that went on."""
        with self.lock:
            execution.steps += 1
            if frame.tools or frame.text_mode:
                self._opened += execution.steps == 1
                self._looped += execution.steps == 2

    @property
    def rewrites(self) -> bool:
        """Whether requests may be changed at all."""
        return self.active and self.session.mode == "fork"

    def frame(
        self, model: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, agent: Any, task: Any
    ) -> Frame | None:
        """The layout of an executor's request; None for any other request (a planner's, a converter's).

        Without an ``agent`` (CrewAI's forced final answer names none) only a layout settled before is found.
        """
        opening = opening_of(messages)
        if opening is None:
            return None
        key = (model, opening.digest)
        with self.lock:
            known = self._frames.get(key)
            if known is not None:
                self._frames.move_to_end(key)
                return known
            if agent is None or not _of_executor(messages, opening, agent):
                return None
            frame = self._frames[key] = settle(self, model, opening, tools, agent, task)
            return frame

    def began(self, crew: Any) -> None:
        """A run starts: what its tasks hold of an earlier one is none of its outputs."""
        with self.lock:
            self._stale[id(crew)] = [task.output for task in crew.tasks if task.output is not None]

    def again(self, crew: Any) -> bool:
        """Whether the crew has run before, and so may once more."""
        return bool(self._stale.get(id(crew)))

    def finished(self, crew: Any, task: Any) -> bool:
        """Whether a task has its output in the run under way."""
        return task.output is not None and not any(task.output is old for old in self._stale.get(id(crew), ()))

    def remember_text(self, opening: Opening) -> list[str]:
        """Earlier task texts of agents that run without a crew; takes this one in."""
        earlier = list(self.texts.values())
        self.texts[opening.digest] = opening.task
        if len(self.texts) > _KEEP_TEXTS:
            self.texts.popitem(last=False)
        return earlier

    def shortened(self, messages: list[Any], model: str) -> list[Any]:
        """The messages with large tool results cut to the session's budget, decided once and replayed."""
        return shorten(self.session, self.held, messages, model)

    def execution(self, digest: bytes, agent: Any, *, first: bool) -> Execution:
        """The run of a task that a request belongs to. Without an ``agent``, the newest with this opening."""
        key = (digest, id(agent))
        with self.lock:
            if agent is None:
                key = next((known for known in reversed(self._executions) if known[0] == digest), key)
            if first:
                self._executions.pop(key, None)
            return self._executions.of(key, self._executed)

    def _executed(self) -> Execution:
        # Of its kickoff, else of this task alone: the next one asks other things for somebody else.
        conversation = self.held.fork()
        conversation.id = self.talk or self.new_talk()
        return Execution(conversation)

    @property
    def talk(self) -> str:
        """The name of the conversation under way, a kickoff's; empty outside of one."""
        return KICKOFF.get() or ""

    def new_talk(self) -> str:
        """A name for a kickoff that no other has."""
        return f"{self.conversation}:{uuid.uuid4().hex}"

    def halved(self, model: str, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Shorten a history that the provider refused; the request that follows replays what was decided."""
        opening = opening_of(messages)
        frame = None if opening is None else self._frames.get((model, opening.digest))
        if frame is None:
            return False
        execution = self.execution(frame.opening.digest, None, first=False)
        laid = self.shortened(frame.messages(messages), model) if frame.forked else list(frame.own(messages))
        head = frame.head if frame.forked else frame.own_head
        return compact_now(self.session, execution, laid, head, model)

    def enter(self, key: bytes, worth: Worth) -> Pass:
        """Lead on a cold shared part, or wait until its leader has begun to answer where that is worth it."""
        return self.session.follow(self._lane(key), worth)

    async def aenter(self, key: bytes, worth: Worth) -> Pass:
        """``enter`` without blocking the event loop."""
        return await self.session.afollow(self._lane(key), worth)

    def _lane(self, key: bytes) -> bytes:
        return self.scope.encode("utf-8", "surrogatepass") + b"\0" + key

    def is_warm(self, key: bytes) -> bool:
        """Whether nobody waits for this shared part: it was sent not long ago, or the user wants no gate."""
        used = self._warm.get(key)
        return not self.options.gate or (used is not None and self.session.clock() - used < _WARM_SECONDS)

    def warmed(self, key: bytes) -> None:
        """The shared part is in the provider's cache from now on."""
        with self.lock:
            if len(self._warm) > _KEEP_FRAMES:
                self._warm.clear()
            self._warm[key] = self.session.clock()

    def record(self, task: str, call: Call) -> None:
        """Keep a call under its task's name."""
        with self.lock:
            self.tasks[call.index] = (task, call)


class Bound:
    """The installations on one crew or agent: the newest counts, outside of a run of another one's.

    Installations may be taken back in any order. Copies of the object belong to the same ones; a pickle has none.
    """

    def __init__(self) -> None:
        self._all: list[Binding] = []

    def add(self, binding: Binding) -> None:
        """One more installation, in force from now on."""
        self._all = [*self._all, binding]

    def discard(self, binding: Binding) -> bool:
        """One less; whether it was the last one."""
        self._all = [one for one in self._all if one is not binding]
        return not self._all

    def found(self) -> Binding | None:
        """The one in force here."""
        alive = [one for one in self._all if one.active]
        running = RUN.get()
        return running if running in alive else alive[-1] if alive else None

    def __deepcopy__(self, memo: dict[int, Any]) -> Bound:
        """A list of its own of the same installations."""
        made = Bound()
        made._all = list(self._all)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, ()


class Owners:
    """The bindings whose agents use one model object. Weak: a forgotten crew does not live on in its model."""

    def __init__(self) -> None:
        self._refs: list[weakref.ref[Binding]] = []
        self.remembers = False
        """A crew's memory asks this model, also from threads that know nothing of the run."""

    def add(self, binding: Binding) -> None:
        """One more crew uses the model."""
        if binding not in self.alive:
            self._refs = [weakref.ref(one) for one in (*self.alive, binding)]

    def discard(self, binding: Binding) -> None:
        """One crew less."""
        self._refs = [weakref.ref(one) for one in self.alive if one is not binding]

    @property
    def alive(self) -> list[Binding]:
        """Those that are still installed."""
        return [found for ref in self._refs if (found := ref()) is not None and found.active]

    def __deepcopy__(self, memo: dict[int, Any]) -> Owners:
        """Copies of a model belong to the same crews."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, ()


def as_base(base: Any) -> Callable[[Any, Any], Any]:
    """How an object of a generated subclass is pickled: as one of the class that it was made as."""

    def reduce(self: Any, protocol: Any) -> Any:
        build, arguments, *rest = base.__reduce_ex__(self, protocol)
        if build is copyreg.__newobj__:  # type: ignore[attr-defined]
            # pickle holds that this one gets the object's own class; the other does the same and asks for none.
            return (copyreg._reconstructor, (base, object, None), *rest)  # type: ignore[attr-defined]
        return (build, arguments, *rest)

    return reduce


def binding_of(target: Any) -> Binding | None:
    """The installation on a crew or agent; None without one."""
    found = getattr(target, "__dict__", {}).get(KEY)
    return found.found() if isinstance(found, Bound) else None


def bind(target: Any, binding: Binding) -> None:
    """Put an installation on a crew or agent."""
    found = vars(target).get(KEY)
    if not isinstance(found, Bound):
        found = vars(target)[KEY] = Bound()
    found.add(binding)


def unbind(target: Any, binding: Binding) -> bool:
    """Take one off again; whether the object is free then."""
    found = vars(target).get(KEY)
    free = not isinstance(found, Bound) or found.discard(binding)
    if free:
        vars(target).pop(KEY, None)
    return free


def binding_for(llm: Any, agent: Any) -> Binding | None:
    """Whose request this is: the live agent's; without one, of the crew that is running here.

    Never by the model object alone, which crews may share: only an agent-less request of a model that a single
    crew uses is taken for that crew's, and then only if it continues one of its requests.
    """
    if agent is not None:
        found = binding_of(agent)
        if found is not None:
            return found
        # CrewAI's own helpers (an LLM guardrail's agent) belong to no crew; another crew's agents do.
        return _running() if getattr(agent, "crew", None) is None else None
    found = _running()
    if found is not None:
        return found
    owners = getattr(llm, "__dict__", {}).get(KEY)
    alive = owners.alive if isinstance(owners, Owners) else []
    return alive[0] if len(alive) == 1 else None


def asks_for(llm: Any, binding: Binding) -> bool:
    """Whether a request without an agent is the binding's: in its run, or its memory's."""
    owners = getattr(llm, "__dict__", {}).get(KEY)
    return RUN.get() is binding or (isinstance(owners, Owners) and owners.remembers)


def crew_of(agent: Any) -> Any:
    """The crew an agent works for; None in a flow."""
    crew = getattr(agent, "crew", None)
    return None if crew is None or isinstance(crew, str) else crew


def _running() -> Binding | None:
    found = RUN.get()
    return found if found is not None and found.active else None


def _of_executor(messages: Iterable[Mapping[str, Any]], opening: Opening, agent: Any) -> bool:
    """Whether a request comes from an agent's executor: it marks its opening, helpers do not."""
    first = next(iter(messages))
    role = str(getattr(agent, "role", ""))
    return BREAKPOINT in first or (bool(role) and opening.system.startswith(f"You are {role}."))
