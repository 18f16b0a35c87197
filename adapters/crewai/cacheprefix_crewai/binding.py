"""Which installation a crew, an agent or a model object belongs to, and which crew is running here."""

from __future__ import annotations

import copyreg
import secrets
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from cacheprefix.adapter import AdapterSession, BlockVar, Bounded, ByObject, RLock, VolatileRole, Whose

if TYPE_CHECKING:
    from cacheprefix import Call, Conversation

T = TypeVar("T")

KEY = "__cacheprefix__"
"""Where a crew, agent or model carries its binding: in the instance's dict, out of reach of its dumps."""

_KEEP_CALLS = 10_000

RUN: BlockVar[Binding] = BlockVar("cacheprefix_crewai_run")
"""The installation whose crew, or agent by itself, is running here; its threads and tasks inherit it."""
KICKOFF: BlockVar[tuple[str, ...]] = BlockVar("cacheprefix_crewai_kickoff")
"""The ids of the conversations that the kickoffs under way here are, the innermost last: a tool may kick a crew off."""

ALONE: BlockVar[tuple[str, ...]] = BlockVar("cacheprefix_crewai_alone")
"""The same of agents' own kickoffs, without a crew, which share the conversation of their installation."""

RESUMED: BlockVar[Binding | None] = BlockVar("cacheprefix_crewai_resumed")
"""The installation on the crew or agent whose kickoff goes on from a checkpoint here: what that holds becomes part of
it. None in any other kickoff."""

FLOW: BlockVar[Any] = BlockVar("cacheprefix_crewai_flow")
"""The run of an installed flow that is under way here, a ``FlowRun``."""

EACH: BlockVar[ForEach] = BlockVar("cacheprefix_crewai_for_each")
"""The ``kickoff_for_each`` that is under way here: another one beside it, of the same crew too, is somebody else's."""

_MADE: ContextVar[tuple[weakref.ref[Binding], ...]] = ContextVar("cacheprefix_crewai_made", default=())
"""The installations that this thread or task, or what started it, has made, the newest last."""

Volatile = Callable[[], Mapping[str, str]]
"""Gives texts by name when a request is about to be sent."""


@dataclass(frozen=True, slots=True)
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
class ForEach:
    """A ``kickoff_for_each`` of an installed crew, of which it is known how many runs it has."""

    binding: Binding
    constant: frozenset[str]
    """Names of the inputs that are the same in all its runs."""
    left: int
    """Of its runs, those that have not begun."""


@dataclass(eq=False)
class Binding:
    """One installation. Thread-safe; crew copies, their agents and models share it."""

    session: AdapterSession
    options: Options
    conversation: str = ""
    """The id of the conversation with the decisions of all runs."""
    agents: list[Any] = field(default_factory=list)
    tools: frozenset[str] = frozenset()
    """Names of the tools that it was installed with, and its tenant's others that were known before its first request.
    """
    clash: str = ""
    """The name of two tools that differ, so that the crew's tools make no union; empty where they make one."""
    of_flow: bool = False
    """Installed on a flow: the crews and agents that start in its runs are part of it there, and nowhere else."""
    active: bool = True
    holders: int = 0
    """Who installed it; the last of them to leave takes it back."""
    ending: bool = False
    """All have left it, and runs that were kicked off in it go on in it: it is in force in these, and nowhere else."""
    undo: list[Callable[[], None]] = field(default_factory=list)
    joined_later: dict[int, tuple[weakref.ref[Any], Callable[[Any, Binding], object]]] = field(default_factory=dict)
    """What a flow started, or a crew was given since, by identity, with how it is restored; none is kept alive."""
    calls: Bounded[int, tuple[str, Call]] = field(default_factory=lambda: Bounded(_KEEP_CALLS))
    """The names of the tasks and the finished requests, by the request's number."""

    def __post_init__(self) -> None:
        self.lock = RLock()
        self.given = self.session
        """The session that it was installed with; ``session`` may be an edition of it."""
        self.owner = Whose(self.new_kickoff_id())
        """What its own tools are known by: another crew of its conversation's name may be another user's."""
        # What nobody uses any longer holds no tools: a process may make a crew for each request.
        weakref.finalize(self, self.session.drop_tools, self.owner).atexit = False
        self._runs = 0
        """How many of its runs, with streams that were not read yet, have not ended."""
        self._parts: dict[Any, Any] = {}
        self._earlier_outputs: ByObject[Any, list[Any]] = ByObject()
        """What a crew's tasks held when its run began, by crew: of the run before."""
        self._earlier_runs: ByObject[Any, int] = ByObject()
        self._same_tools: ByObject[Any, bool] = ByObject()
        self._made_before = _MADE.get()
        """What those who make it had made before."""

    def made(self) -> bool:
        """Whoever runs here has installed it, or joined it; whether that is new here."""
        before = _MADE.get()
        others = (ref for ref in before if (one := ref()) is not None and one.active and one is not self)
        _MADE.set((*others, weakref.ref(self)))
        return not any(ref() is self for ref in before)

    def left(self) -> None:
        """Whoever runs here has it no longer. Others may: a server's thread goes on with somebody else's request."""
        _MADE.set(tuple(ref for ref in _MADE.get() if ref() is not self))

    def made_with(self, other: Binding) -> bool:
        """Whether one who had made one of the two has made the other one too."""
        pairs = ((self, other), (other, self))
        return self is other or any(ref() is one for one, later in pairs for ref in later._made_before)

    def joined_with(self, scope: str | None, volatile: Volatile | None) -> bool:
        """Whether who installs with these in the same session joins it; None for none asked for."""
        if any(ref() is self for ref in _MADE.get()):
            return scope in (None, self.scope) and volatile in (None, self.options.volatile)
        # Privacy: who asks for nothing is given nothing that another request of the server asked for.
        return self.scope == (self.session.scope if scope is None else scope) and volatile is self.options.volatile

    def held_by(self, stream: object) -> Callable[[], object]:
        """A run is kicked off that begins where a stream is read: the function returned says that it has.

        A stream that is dropped unread says so by itself.
        """
        with self.lock:
            self._runs += 1
        held = weakref.finalize(stream, self._run_ended)
        held.atexit = False
        return held

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """A block in which a run goes on, and the installation with it."""
        with self.lock:
            self._runs += 1
        try:
            yield
        finally:
            self._run_ended()

    def _run_ended(self) -> None:
        """One run less; with the last one goes an installation that everybody has left."""
        with self.lock:
            self._runs -= 1
            over = self.ending and not self._runs and not self.holders
        if over:
            self.take_back()

    def end(self) -> None:
        """Restore every object: now, or when the runs under way have ended."""
        with self.lock:
            self.ending = self._runs > 0
        if not self.ending:
            self.take_back()

    def take_back(self) -> None:
        """Restore every object, whoever still holds the installation, and whatever runs in it."""
        self.active = False
        while self.undo:
            self.undo.pop()()
        with self.lock:  # a flow's run may add some still
            joined, self.joined_later = self.joined_later, {}
        for kept, back in joined.values():
            target = kept()
            if target is not None:
                back(target, self)

    def part(self, kind: Callable[[Binding], T]) -> T:
        """What another module keeps for this installation; ``kind`` makes it where it is first asked for."""
        with self.lock:
            if kind not in self._parts:
                self._parts[kind] = kind(self)
            found: T = self._parts[kind]
            return found

    @property
    def scope(self) -> str:
        """The tenant whose crew it is."""
        return self.session.scope if self.options.scope is None else self.options.scope

    @property
    def held(self) -> Conversation:
        """The conversation with the decisions of all runs."""
        return self.session.conversation(self.conversation, scope=self.scope)

    @property
    def for_each(self) -> ForEach | None:
        """This installation's ``kickoff_for_each`` that is under way here; None outside of one."""
        found = EACH.get()
        return found if found is not None and found.binding is self else None

    @property
    def constant_inputs(self) -> frozenset[str]:
        """Names of the inputs that are the same in all runs of the ``kickoff_for_each`` under way here."""
        found = self.for_each
        return frozenset() if found is None else found.constant

    @property
    def rewrites(self) -> bool:
        """Whether requests may be changed at all."""
        return self.active and self.session.mode != "observe"

    @property
    def kickoff_id(self) -> str:
        """The id of the conversation under way, a kickoff's; empty outside of one."""
        return (KICKOFF.get() or ("",))[-1]

    def kickoff(self) -> AbstractContextManager[None]:
        """A block in which what happens is a kickoff's, a conversation that no other has."""
        return KICKOFF.within((*(KICKOFF.get() or ()), self.new_kickoff_id()))

    def agent_kickoff(self) -> AbstractContextManager[None]:
        """A block in which what happens is an agent's own kickoff's, without a crew."""
        return ALONE.within((*(ALONE.get() or ()), self.new_kickoff_id()))

    @property
    def own_kickoff(self) -> str:
        """The id of this installation's innermost kickoff under way here, a crew's or else an agent's own; or empty."""
        under_way = (*reversed(KICKOFF.get() or ()), *reversed(ALONE.get() or ()))
        return next((one for one in under_way if one.rpartition(":")[0] == self.conversation), "")

    def new_kickoff_id(self) -> str:
        """An id for a kickoff that no other has."""
        return f"{self.conversation}:{secrets.token_hex(16)}"

    def began(self, crew: Any) -> None:
        """A run of a crew starts: the outputs that its tasks hold now are an earlier run's."""
        with self.lock:
            held = [task.output for task in crew.tasks if task.output is not None]
            self._earlier_outputs[crew] = held
            self._earlier_runs[crew] = 1 + self.runs_before(crew) if held else 0

    def joined(self, crew: Any, *, same_tools: bool) -> None:
        """A crew becomes part of the installation; ``same_tools`` says whether all its tasks carry the same ones."""
        with self.lock:
            self._same_tools[crew] = same_tools

    def same_tools(self, crew: Any) -> bool:
        """Whether all tasks of a crew carried the same tools when it was installed."""
        return bool(self._same_tools.get(crew))

    def runs_before(self, crew: Any) -> int:
        """How often the crew has run before; it may run as often once more."""
        return self._earlier_runs.get(crew) or 0

    def finished(self, crew: Any, task: Any) -> bool:
        """Whether a task has its output in the run under way."""
        earlier = self._earlier_outputs.get(crew) or ()
        return task.output is not None and not any(task.output is one for one in earlier)

    def remember(self, target: Any, back: Callable[[Any, Binding], object]) -> None:
        """Have an object restored at the end, where it is still there."""
        with self.lock:
            self.joined_later = {key: one for key, one in self.joined_later.items() if one[0]() is not None}
            self.joined_later[id(target)] = weakref.ref(target), back

    def record(self, task: str, call: Call) -> None:
        """Keep a finished request under its task's name."""
        with self.lock:
            self.calls[call.index] = (task, call)


class Bound:
    """The installations on one crew, agent or (``flow``) flow: outside of a run, the newest of this thread or task.

    Installations may be taken back in any order. Copies of the object belong to the same ones; a pickle has none.
    """

    def __init__(self, *, flow: bool = False) -> None:
        self._flow = flow
        self._all: list[Binding] = []
        self._flows = 0
        """How many flows' installations there have been."""

    def add(self, binding: Binding) -> None:
        """One more installation, in force from now on."""
        self._flows += binding.of_flow and binding not in self
        self._all = [*self._all, binding]

    def discard(self, binding: Binding) -> bool:
        """One less; whether it was the last one."""
        self._all = [one for one in self._all if one is not binding]
        return not self._all

    def __iter__(self) -> Iterator[Binding]:
        return iter(self._all)

    def __contains__(self, binding: Binding) -> bool:
        return any(one is binding for one in self._all)

    @property
    def installed(self) -> list[Binding]:
        """Those in force outside of their runs, the newest last."""
        # Privacy: what the flows of two users start, an agent that is made once for all, is each one's in its own runs.
        # So is one that was left while a run goes on: who kicks the crew off beside that has not installed it.
        return [one for one in self._all if one.active and not one.ending and (self._flow or not one.of_flow)]

    def found(self) -> Binding | None:
        """This run's, else this context's, else the only one there is; None where nobody knows whose it would be."""
        runs, everywhere = _runs(), self.installed
        # Privacy: requests of a server that install side by side on one object have each their own.
        mine = [one for ref in reversed(_MADE.get()) if (one := ref()) is not None and one in everywhere]
        for one in (*runs, *mine):
            if one.active and one in self:
                return one
        # Privacy: in a run, also where its own was taken back, what another request installed is not in force. Where
        # several did, neither is anybody's: a thread of a pool knows nothing of the request that it works for.
        left = [one for one in everywhere if not runs or one.made_with(runs[0])]
        return left[-1] if left and all(left[-1].made_with(one) for one in left) else None

    def only(self) -> Binding | None:
        """The one in force here, or else the only one that there has been."""
        alive = [one for one in self._all if one.active and not one.ending]
        # Privacy: behind the runs of two users' flows, one of which has ended, it would be the other one's.
        return self.found() or (alive[0] if len(alive) == 1 and self._flows <= 1 else None)

    def __deepcopy__(self, memo: dict[int, Any]) -> Bound:
        """A list of its own of the same installations."""
        made = Bound(flow=self._flow)
        made._all, made._flows = list(self._all), self._flows
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, ()


class WhileUsed:
    """A change of CrewAI's own (a class, a registry), made for the first installation that needs it.

    Undone with the last one, also where its crew or flow was dropped: it keeps none alive.
    """

    def __init__(self, make: Callable[[], list[Callable[[], object]]]) -> None:
        self._make = make
        self._users: list[weakref.ref[Binding]] = []
        self._undo: list[Callable[[], object]] = []

    def use(self, binding: Binding) -> Callable[[], None]:
        """One more installation needs it; the function returned says that it does no longer."""
        with _CHANGING:
            self._users.append(weakref.ref(binding, lambda _: self._leave(None)))
            if not self._undo:
                self._undo = self._make()
        return lambda: self._leave(binding)

    def _leave(self, binding: Binding | None) -> None:
        """One installation less (None: those that were dropped); with the last one the change is undone."""
        with _CHANGING:
            self._users = [one for one in self._users if (user := one()) is not None and user is not binding]
            while not self._users and self._undo:
                self._undo.pop()()


_CHANGING = RLock()
"""May be had twice by one thread: Python lets dropped installations go wherever it is."""


def replaced_method(kind: Any, name: str, around: Callable[[Any], Any]) -> Callable[[], None]:
    """Replace a class's method; the function returned puts it back, where nobody else has replaced it since."""
    own, method = vars(kind).get(name), getattr(kind, name)
    changed = around(method)
    setattr(kind, name, changed)

    def back() -> None:
        if vars(kind).get(name) is not changed:
            return  # a tracer's, which calls ours: that does nothing where nothing is installed
        if own is not None:
            setattr(kind, name, own)
        else:
            delattr(kind, name)

    return back


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


def subclassed(base: Any, methods: Mapping[str, Any], *beside: Any) -> Any:
    """A subclass with a class's own name, so that an object can change to it; its pickles are of the base.

    Subclasses ``beside`` it of what it derives from come behind its own methods and in front of theirs.
    """

    def reduce(self: Any, protocol: Any) -> Any:
        build, arguments, *rest = base.__reduce_ex__(self, protocol)
        if build is copyreg.__newobj__:  # type: ignore[attr-defined]
            # pickle insists that ``__newobj__`` is given the object's own class; this one makes the same, unasked.
            return (copyreg._reconstructor, (base, object, None), *rest)  # type: ignore[attr-defined]
        return (build, arguments, *rest)

    own = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    return type(base)(base.__name__, (base, *beside), {**own, "__reduce_ex__": reduce, **methods})


def binding_of(target: Any) -> Binding | None:
    """The installation on a crew or agent; None without one."""
    found = getattr(target, "__dict__", {}).get(KEY)
    return found.found() if isinstance(found, Bound) else None


def bindings_on(target: Any) -> list[Binding]:
    """All installations on a crew, agent or flow that are in force outside of their runs."""
    found = getattr(target, "__dict__", {}).get(KEY)
    return found.installed if isinstance(found, Bound) else []


def ending_on(target: Any) -> list[Binding]:
    """Those that everybody has left, and that are in force in the runs that go on."""
    found = getattr(target, "__dict__", {}).get(KEY)
    return [one for one in found if one.active and one.ending] if isinstance(found, Bound) else []


def only_binding(target: Any) -> Binding | None:
    """The installation on a crew or agent, also behind the runs of the one flow that started it; None without one."""
    found = getattr(target, "__dict__", {}).get(KEY)
    return found.only() if isinstance(found, Bound) else None


def bind(target: Any, binding: Binding, *, flow: bool = False) -> None:
    """Put an installation on a crew, an agent or a flow."""
    # Privacy: threads may install at once on an agent that their crews share. One that was lost there would have the
    # other one's session answer for it.
    with _CHANGING:
        found = vars(target).get(KEY)
        if not isinstance(found, Bound):
            found = vars(target)[KEY] = Bound(flow=flow)
        found.add(binding)


def bound_to(target: Any, binding: Binding) -> bool:
    """Whether an installation is on a crew or agent, be it in force there or not."""
    found = vars(target).get(KEY)
    return isinstance(found, Bound) and binding in found


def unbind(target: Any, binding: Binding) -> bool:
    """Take one off again; whether the object is free then."""
    with _CHANGING:
        found = vars(target).get(KEY)
        free = not isinstance(found, Bound) or found.discard(binding)
        if free:
            vars(target).pop(KEY, None)
        return free


def owners_of(llm: Any) -> Owners | None:
    """The installations whose agents use a model object; None for one that none does."""
    found = getattr(llm, "__dict__", {}).get(KEY)
    return found if isinstance(found, Owners) else None


def binding_for(llm: Any, agent: Any) -> Binding | None:
    """Whose request this is: the live agent's; without one, of the crew that is running here.

    Never by the model object alone, which crews may share: only an agent-less request of a model that a single
    crew uses is taken for that crew's, and then only if it continues one of its requests. An agent that nobody
    installed (a helper of CrewAI's, or one of a crew that a tool kicks off) asks for the run that it works in.
    """
    found = binding_of(agent) or _running()
    if found is None and agent is not None:
        for one in bindings_on(agent):
            one.session.unseen(
                f"agent {str(agent.role).strip()!r} was asked in a thread that none of those started who installed on "
                "it side by side: whose request that is nobody knows, and it goes out as without us. Take the context "
                "along (asyncio.to_thread, contextvars.copy_context().run), or make an agent for each"
            )
    if found is not None or agent is not None:
        return found
    owners = owners_of(llm)
    alive = [one for one in owners.alive if not one.ending] if owners is not None else []
    return alive[0] if len(alive) == 1 else None


def asks_for(llm: Any, binding: Binding) -> bool:
    """Whether a request without an agent is the binding's: in its run, or its memory's."""
    owners = owners_of(llm)
    return _running() is binding or (owners is not None and owners.remembers)


def _runs() -> list[Binding]:
    """The installations that run here, be they taken back or not: the crew's or agent's, then the flow's."""
    flow = FLOW.get()
    runs: tuple[Binding | None, ...] = (RUN.get(), None if flow is None else flow.binding)
    return [one for one in runs if one is not None]


def _running() -> Binding | None:
    """The installation whose crew or agent runs here, or else whose flow; None without one."""
    return next((one for one in _runs()[:1] if one.active), None)
