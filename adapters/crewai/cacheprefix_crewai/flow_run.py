"""The run of a flow: the long texts of its state that its crews share, and what its methods are going to start."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from crewai import Crew
from crewai.agents.agent_builder.base_agent import BaseAgent

from cacheprefix.adapter import Bounded, names_known_to
from cacheprefix_crewai.material import MIN_CHARS

if TYPE_CHECKING:
    from cacheprefix_crewai.binding import Binding

_KEEP_OWNERS = 2_000
_FUNCTIONS = 50
"""Functions of the application whose code is looked at, at most."""
_STARTS = frozenset({"kickoff", "kickoff_async", "akickoff", "kickoff_for_each", "kickoff_for_each_async"})

_ASKED = "models that flows' methods asked"
"""The key under which a session keeps those of earlier runs, by the flow's class and the method's name."""


class FlowRun:
    """One run of a flow, whose crews and agents share the long texts of its state that their own words hold."""

    def __init__(self, binding: Binding, flow: Any) -> None:
        self.binding = binding
        self.flow = flow
        self.id = binding.new_kickoff_id()
        self._texts: dict[str, str] | None = None
        # The provider's rule: another model reads nothing of it. Whoever held a text first did so for its own.
        self._first_holders: dict[tuple[str, str], int] = {}
        """The crew or agent that held a text first, by model and text."""
        self._first_kinds: dict[tuple[str, str], str] = {}
        """The kind of that crew or agent: those that are made of the same texts are of one, such as a crew's copies."""
        self._methods: Bounded[int, str] = Bounded(_KEEP_OWNERS)
        """The method that each crew or agent started in."""
        self._asked: dict[str, frozenset[str]] = {}
        """The models that each method asked in this run."""
        # As it was when the run began: what others find out meanwhile changes nothing that this one sends.
        self._asked_before: Mapping[str, frozenset[str]] = self._earlier_runs().get(type(flow), {})
        """Those that each method asked in earlier runs."""

    def _earlier_runs(self) -> WeakKeyDictionary[type, dict[str, frozenset[str]]]:
        found: WeakKeyDictionary[type, dict[str, frozenset[str]]]
        found = self.binding.session.beside.setdefault(_ASKED, WeakKeyDictionary())
        return found

    def asks(self, owner: object, model: str) -> None:
        """A crew or agent asks a model."""
        method = self._methods.get(id(owner))
        if method is not None:
            self._asked[method] = self._asked.get(method, frozenset()) | {model}

    def ended(self) -> None:
        """The run is over: later ones know what its methods asked, those that came to their end."""
        known = self._earlier_runs()
        before = known.get(type(self.flow), {})
        ran = map(str, list(getattr(self.flow, "_completed_methods", ())))
        now = {name: before.get(name, frozenset()) | self._asked.get(name, frozenset()) for name in ran}
        known[type(self.flow)] = {**before, **now}

    def started(self, owner: object, method: str) -> None:
        """A crew or agent starts in a method of the flow."""
        self._methods[id(owner)] = method

    def texts(self) -> Mapping[str, str]:
        """The names of the long texts that the state had when its first crew or agent asked, by text.

        Not of what came later, which is mostly what the one before answered: requests would begin otherwise each time.
        """
        if self._texts is None:
            self._texts = {text: name for name, text in _long_texts(getattr(self.flow, "state", None))}
        return self._texts

    def awaited(self, texts: Iterable[str], owner: object, model: str) -> bool:
        """Whether others are likely to hold one of the texts that ``owner`` (a crew, an agent) holds.

        Methods that have not run yet start crews, as far as their code tells; or an earlier crew held it too, and there
        are methods left. Those whose crews are all known to ask other models are no such methods.
        """
        ran, methods = getattr(self.flow, "_completed_methods", ()), getattr(self.flow, "_methods", {})
        here = self._methods.get(id(owner))
        left = {str(name): method for name, method in methods.items() if name not in ran and str(name) != here}
        # The provider's rule: another model reads nothing of it.
        readers = [method for name, method in left.items() if self._may_ask(name, method, model)]
        again = [self._first_holders.setdefault((model, text), id(owner)) != id(owner) for text in texts]
        if not again or not readers:
            return False
        return any(again) or any(starts_others(method, type(self.flow)) for method in readers)

    def _may_ask(self, name: str, method: Any, model: str) -> bool:
        """Whether a method may start something that asks ``model``.

        All but those that name crews of others alone, or make their crews and asked no such one in earlier runs.
        """
        asked, before = set[str](), self._asked_before.get(name)
        for code in _named_in(method, type(self.flow)):
            mine = [inspect.getattr_static(self.flow, name, None) for name in sorted(code.names)]
            # Of what the run makes nobody knows the model before it has run once.
            if any(map(_makes_owner, code.objects)):
                return before is None or model in before
            for one in [*code.objects, *mine]:
                if isinstance(one, Crew | BaseAgent):
                    asked |= models_of(one)
        if not asked and before is not None:
            return model in before
        return not asked or not asked.isdisjoint({"", model})

    def held_by_others(self, texts: Iterable[str], owner: Any, model: str) -> bool:
        """Whether another kind of crew or agent, of this model, held one of the texts before ``owner`` did."""
        kind = str(getattr(owner, "key", id(owner)))
        first = [self._first_kinds.setdefault((model, text), kind) for text in texts]
        return any(one != kind for one in first)


def fields_of(state: Any) -> Mapping[str, Any]:
    """The fields of a flow's state, which is a dictionary or an object."""
    return state if isinstance(state, Mapping) else getattr(state, "__dict__", None) or {}


def _long_texts(state: Any, depth: int = 2) -> Iterator[tuple[str, str]]:
    """The long texts in a state and in the objects that are its fields, each with its field's name."""
    for name, value in list(fields_of(state).items()):
        if isinstance(value, str) and len(value) >= MIN_CHARS:
            yield str(name), value
        elif depth > 1 and not isinstance(value, str):
            yield from _long_texts(value, depth - 1)


def models_of(owner: Any) -> set[str]:
    """The models whose requests of a crew or an agent can share, by name; empty for one that is not known yet."""
    if isinstance(owner, BaseAgent):
        llms = [owner.llm]
    elif owner.process != "hierarchical":
        llms = [agent.llm for agent in (*owner.agents, *(task.agent for task in owner.tasks)) if agent is not None]
    else:
        # A worker's task is in the manager's own words and shares nothing. CrewAI makes a manager as the crew begins.
        llms = [owner.manager_llm if owner.manager_agent is None else owner.manager_agent.llm]
    return {str(getattr(llm, "model", "")) for llm in llms}


# ---------------------------------------------------------------------- what a method's code tells


def starts_others(method: Any, flow: type) -> bool:
    """Whether a method's code starts a crew or an agent, itself or in functions that it names."""
    return any(not _STARTS.isdisjoint(code.names) for code in _named_in(method, flow))


def makes_others(method: Any, flow: Any) -> bool:
    """Whether what a method's code starts may be more than the crews and agents that the flow has as attributes."""
    if not starts_others(method, type(flow)):
        return False
    had = {name for name, one in vars(flow).items() if isinstance(one, Crew | BaseAgent)}
    codes = list(_named_in(method, type(flow), had))
    made = any(_makes_owner(one) for code in codes for one in code.objects)
    return made or had.isdisjoint(name for code in codes for name in code.names)


def crews_named(method: Any, flow: type) -> list[Any]:
    """The ``@CrewBase`` classes that a method's code names, itself or in functions that it names."""
    found = [one for code in _named_in(method, flow) for one in code.objects]
    return list({id(one): one for one in found if _is_crew_class(one)}.values())


def _is_crew_class(value: object) -> bool:
    return isinstance(value, type) and bool(getattr(value, "is_crew_class", False))


def _makes_owner(value: object) -> bool:
    return isinstance(value, type) and (_is_crew_class(value) or issubclass(value, Crew | BaseAgent))


class _Named(NamedTuple):
    """What one function's code names."""

    names: set[str]
    """All names in it: of variables, and of attributes and methods, whatever they are of."""
    objects: list[Any]
    """What is known by these names; None for a name that only the run gives a meaning."""


def _named_in(method: Any, flow: type, had: Collection[str] = ()) -> Iterator[_Named]:
    """What a method's code names, and what the functions that it names do in turn, each function once.

    Names that are ``had`` are the flow's own attributes, whatever else has that name.
    """
    # CrewAI's decorators keep the method itself in ``_meth``.
    waiting: list[Any] = [getattr(method, "_meth", method)]
    seen: set[int] = set()
    while waiting and len(seen) < _FUNCTIONS:
        function = inspect.unwrap(waiting.pop())
        code = getattr(function, "__code__", None)
        if code is None or id(code) in seen:
            continue
        seen.add(id(code))
        names = set(_names(code))
        known = names_known_to(function) if isinstance(function, FunctionType) else {}
        # What is no variable may be an attribute of the flow, as in ``self.name``.
        looked_up = sorted({*names, *code.co_freevars}.difference(had))
        objects = [known.get(name, inspect.getattr_static(flow, name, None)) for name in looked_up]
        yield _Named(names, objects)
        # A crew's ``kickoff`` has the name of the flow's own, which leads through all of CrewAI.
        waiting += [one for one in objects if isinstance(one, FunctionType) and not _of_crewai(one)]


def _of_crewai(function: FunctionType) -> bool:
    return str(function.__module__).split(".")[0] == "crewai"


def _names(code: CodeType) -> Iterator[str]:
    """The names in a function's code, and in that of the functions within."""
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _names(one)
