"""What a wrapped model knows beside what it is, and where it keeps that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable, RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.configurable import DynamicRunnable

from cacheprefix.adapter import AdapterSession
from cacheprefix_langgraph.views import Views

_PRIVATE = "__cacheprefix__"
"""Where a wrapped model keeps what it knows beside its class's own private attributes: no field, and in no dump."""


@dataclass
class Wrapping:
    """What a wrapped model knows beside what it is.

    Models that were wrapped alike are equal where the plain ones are; a request and what was seen do not count.
    """

    session: AdapterSession
    role: tuple[str, str] | None = None
    """Name and instruction of the role that the model was bound to."""
    prewarm: bool = False
    held: Any = field(default=None, compare=False)
    """On a copy that is for one request alone: that request, a ``Sending``, whose module builds on this one."""
    streams: bool = field(default=True, compare=False)
    """Whether a whole answer may come as a stream, for siblings that wait."""
    views: Views = field(default_factory=Views, compare=False)


def wrapping_of(model: Any) -> Wrapping | None:
    """What a model was wrapped with; None where it was not, or is no model but a class."""
    private = model.__pydantic_private__ if isinstance(model, BaseChatModel) else None
    found = (private or {}).get(_PRIVATE)
    return found if isinstance(found, Wrapping) else None


def wrapping(model: Any) -> Wrapping:
    """What a wrapped model was wrapped with."""
    found = wrapping_of(model)
    assert found is not None
    return found


_STANDS: dict[Any, str] = {RunnableBindingBase: "bound", RunnableWithFallbacks: "runnable", DynamicRunnable: "default"}
"""Runnables that stand for others, and where they have them."""


def stands_for(one: Any) -> Any:
    """What a Runnable stands for: what it binds, or the first of those that it chooses from; else None."""
    return next((getattr(one, name) for kind, name in _STANDS.items() if isinstance(one, kind)), None)


def held(one: Any, name: str) -> Any:
    """What an object has under a name, or what it stands for; None where there is nothing.

    A Runnable itself is not asked: a model that is made when it is called would be made, from what is not known yet.
    """
    while isinstance(one, Runnable):
        if name in vars(one) or hasattr(type(one), name):
            return getattr(one, name)
        one = stands_for(one)
    return getattr(one, name, None)


def wrapped_with(model: Any, made: Wrapping | None) -> Any:
    """The model itself, which from now on knows ``made`` or, without it, nothing of us."""
    private = dict(getattr(model, "__pydantic_private__", None) or {})
    private.pop(_PRIVATE, None)
    if made is not None:
        private[_PRIVATE] = made
    object.__setattr__(model, "__pydantic_private__", private or None)
    return model
