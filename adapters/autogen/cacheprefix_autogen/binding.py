"""What holds an application's object and a session together: what was changed on it in place, to be taken back whole.

AutoGen's teams hold their agents in closures and containers, so a wrapped agent has to stay the same object.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from cacheprefix.adapter import AdapterSession
from cacheprefix.errors import SetupError
from cacheprefix_autogen.member import Group, Member

BINDING = "__cacheprefix__"
_ABSENT = object()
_COPYING = "cacheprefix"
"""In a deep copy's memo: something around this object is being copied, and will be bound as a whole."""


class Patches:
    """Attributes that were replaced on one object, with what stood there.

    A replaced method belongs to the one object, so copies and pickles are made of the object as it was; ``rebind``,
    where it is set, binds a deep copy anew.
    """

    def __init__(self, target: Any) -> None:
        self.target = target
        self.rebind: Callable[[Any], None] | None = None
        self._before: dict[str, Any] = {}

    def set(self, name: str, value: Any) -> None:
        """Replace an attribute of the instance."""
        if not self._before:
            # Looked up on the instance by ``copy`` and ``pickle`` alike.
            self._replace("__deepcopy__", self._deep_copy)
            self._replace("__reduce_ex__", self._reduce)
        self._replace(name, value)

    def _replace(self, name: str, value: Any) -> None:
        """Replace an attribute, and remember what stood there first."""
        if name not in self._before:
            self._before[name] = vars(self.target).get(name, _ABSENT)
        setattr(self.target, name, value)

    def expect(self, *names: str) -> None:
        """Raise ``SetupError`` unless the object has these attributes, AutoGen's private names among them."""
        missing = [name for name in names if not hasattr(self.target, name)]
        if missing:
            kind = type(self.target).__name__
            raise SetupError(
                f"{kind} has no {', '.join(missing)}: this version is made for autogen-agentchat 0.7.4 and 0.7.5; "
                "install one of these, or give the agent a PrefixClient instead of wrapping it"
            )

    def undo(self) -> None:
        """Put everything back."""
        for name, value in self._before.items():
            if value is _ABSENT:
                delattr(self.target, name)
            else:
                setattr(self.target, name, value)
        self._before.clear()

    def _before_us(self, state: Any) -> Any:
        """An object's state, as its class gives it, with what stood there before."""
        if isinstance(state, tuple) and len(state) == 2:  # the second holds what is in slots
            return self._before_us(state[0]), state[1]
        if not isinstance(state, dict):
            return state
        own = {name: value for name, value in self._before.items() if value is not _ABSENT}
        return {name: value for name, value in state.items() if name not in self._before} | own

    def _reduce(self, protocol: Any) -> Any:
        """How the object is pickled: as it was before us."""
        kind: Any = type(self.target)
        build, arguments, *rest = kind.__reduce_ex__(self.target, protocol)
        return (build, arguments, *(self._before_us(one) if at == 0 else one for at, one in enumerate(rest)))

    def _deep_copy(self, memo: dict[Any, Any]) -> Any:
        """A deep copy of the object as it was before us, which belongs to the same session where that is wanted."""
        outermost = memo.setdefault(_COPYING, self) is self
        own = getattr(type(self.target), "__deepcopy__", None)
        made = self._copied(memo) if own is None else own(copy.copy(self.target), memo)
        if outermost:
            del memo[_COPYING]
            if self.rebind is not None:
                self.rebind(made)
        return made

    def _copied(self, memo: dict[Any, Any]) -> Any:
        """A deep copy of an object whose class has no way of its own, as Python makes it."""
        build, arguments, *rest = self._reduce(4)
        made = build(*copy.deepcopy(arguments, memo))
        # Before its state, which may lead back to the object.
        memo[id(self.target)] = made
        state = copy.deepcopy(rest[0], memo) if rest else None
        if hasattr(made, "__setstate__"):
            made.__setstate__(state)
            return made
        values, slots = state if isinstance(state, tuple) else (state, None)
        made.__dict__.update(values or {})
        for name, value in (slots or {}).items():
            setattr(made, name, value)
        return made


class Binding:
    """What holds a wrapped object and its session together; ``undo`` takes it apart."""

    def __init__(
        self, target: Any, session: AdapterSession, member: Member | None = None, group: Group | None = None
    ) -> None:
        self.session = session
        self.member = member
        self.group = group
        self.patches = Patches(target)
        self.inner: list[Binding] = []
        self.roots: list[Binding] = []
        """The bindings of what ``wrap`` was given, of which it is a part: several for an agent of several teams."""
        self.afterwards: list[Callable[[], None]] = []

    def attach(self) -> Binding:
        """Make the binding known on its object."""
        self.patches.set(BINDING, self)
        return self

    def undo(self) -> None:
        """Give everything that ``wrap`` bound with it back as it was, all but what another wrap still holds.

        Of a part of it, that part alone, whoever holds it.
        """
        parts, part = self.whole, self not in self.roots
        for each in parts:
            each.roots = [] if part else [root for root in each.roots if root is not self]
        for each in parts:
            if not each.roots:
                each.patches.undo()
        for each in parts:
            while each.afterwards and not each.roots:
                each.afterwards.pop()()

    @property
    def whole(self) -> list[Binding]:
        """This one and all inside, each once."""
        found: dict[int, Binding] = {}
        left = [self]
        while left:
            one = left.pop()
            # Agents may be each other's tools.
            if id(one) not in found:
                found[id(one)] = one
                left += reversed(one.inner)
        return [*found.values()]

    @property
    def joins(self) -> Group | None:
        """The conversation that its agents share, behind a filter too; None where there is none."""
        return next((each.group for each in self.whole if each.group is not None), None)


def binding_of(target: Any) -> Binding | None:
    """The binding of a wrapped agent or team; None when it is not wrapped."""
    found = getattr(target, "__dict__", {}).get(BINDING)
    return found if isinstance(found, Binding) else None
