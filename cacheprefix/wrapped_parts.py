"""Parts of a team that have a model of ours in place of their own: whose they are, and as what that model passes."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cacheprefix.errors import SetupError

if TYPE_CHECKING:
    from cacheprefix.adapter_session import AdapterSession

Conversation = str | Callable[[], str]
"""An id, or what gives it."""
Reach = Callable[[Any], Iterable[Any]]
"""Gives a part and all the parts that it reaches."""


@dataclass(frozen=True, slots=True)
class Wrap:
    """What a part was wrapped with, which its model has as ``cacheprefix_wrap``."""

    session: AdapterSession
    conversation: Conversation
    reach: Reach
    roots: Sequence[weakref.ref[Any]] = ()
    """The parts that ``wrap`` was given: it is one of them, or they reach it."""

    def live(self) -> list[Any]:
        """The roots that there are."""
        return [root for each in self.roots if (root := each()) is not None]


def claimed(target: Any, reach: Reach, session: AdapterSession, conversation: Conversation) -> Wrap:
    """What a part, and all that it reaches, are to be wrapped with.

    Raises ``SetupError`` for one that is wrapped already, in another session or conversation.
    """
    others = {}
    for one in reach(target):
        by = _wrap_of(one)
        for root in by.live() if by else ():
            if by is not None and (by.session is not session or by.conversation != conversation):
                # Privacy: runs under way, and another team's, would go on with this one's shared text and zones.
                raise SetupError(
                    f"{one.name!r} is wrapped already, with {root.name!r}, in another session or conversation; unwrap "
                    "that first, or give both the same. Of one that several users share, say whose a run is by "
                    "conversation=<a function>; with sessions of their own wrap a provider for each run, and no agent"
                )
            others[id(root)] = root
    others[id(target)] = target
    return Wrap(session, conversation, reach, [weakref.ref(root) for root in others.values()])


def released(part: Any, target: Any) -> bool:
    """Whether a part gets its own model again when ``target`` is unwrapped: another root may reach it still."""
    by = _wrap_of(part)
    roots = by.live() if by else []
    others = [root for root in roots if root is not target]
    if by is None or len(others) == len(roots) or not any(part is each for root in others for each in by.reach(root)):
        return True
    part.model.cacheprefix_wrap = replace(by, roots=[weakref.ref(root) for root in others])
    return False


def _wrap_of(part: Any) -> Wrap | None:
    """What a part was wrapped with; None for one that is not wrapped."""
    return getattr(part.model, "cacheprefix_wrap", None)


def named(model: Any, name: str | None) -> Any:
    """A copy of a model that is its name too, for a framework that goes by the name where it is given one.

    By it settings are chosen, and agents compared, copied and pickled. None is the name that the model itself has.
    """
    base = type(model)

    def copied(self: Any, _: object = None) -> Any:
        # A name is its own copy: the client that the model has is one for all that name it.
        twin = str.__new__(type(self), self)
        vars(twin).update(vars(self))
        return twin

    def reduced(*_: object) -> Any:
        # In another process there is no such session: what comes out there is the name.
        return copy.copy, (name,)

    body: dict[str, Any] = {"__module__": base.__module__, "__qualname__": base.__qualname__}
    body |= {"__copy__": copied, "__deepcopy__": copied, "__reduce_ex__": reduced}
    kind: Any = type(base.__name__, (base, str), body)
    made = str.__new__(kind, name or str(getattr(model, "model", "")))
    vars(made).update(vars(model))
    return made
