"""How a role is kept to its own tools, although its requests carry those of others too."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cacheprefix.profiles import Profile


@dataclass(frozen=True, slots=True)
class Restriction:
    """The role's own tools, where its requests carry others too; by ``tool_choice``, or in words."""

    permitted: tuple[str, ...] | None = None
    """Tools that the role may call: a call of another one is refused. None for no restriction."""
    allowed: tuple[str, ...] | None = None
    """Those that ``tool_choice`` allows alone, where the provider keeps its cache then; empty for none at all."""
    said: tuple[str, ...] | None = None
    """Those that the role's text names, where another ``tool_choice`` would be another prompt."""


FREE = Restriction()
"""The role may use whatever its requests carry."""


def restrict(
    own: Sequence[str],
    carried: Collection[str],
    rules: Profile,
    *,
    free: bool = True,
    lists: bool = True,
    calls: bool = True,
) -> Restriction:
    """How a role with these ``own`` tools is kept to them in requests that carry ``carried``.

    ``free`` says that the application leaves ``tool_choice`` to the model, ``lists`` that the client takes a list of
    allowed tools. Without ``calls`` this one request must call none, in the words of the role's others.
    """
    names, safe = tuple(own), rules.tool_choice_safe
    if not calls:
        said = restrict(own, carried, rules, free=free, lists=lists).said
        # Where ``tool_choice`` may vary, it says so; elsewhere it stays, and whoever asks says so behind the messages.
        varies = safe in ("allowed_tools", "none")
        return Restriction((), allowed=() if varies else None, said=said)
    if set(own) >= set(carried):
        return FREE
    # Where the provider's rules keep the cache whole for another tool_choice, it restricts the role; see the
    # profile's evidence for tool_choice_safe. Elsewhere it would invalidate the messages, so words do.
    if free and ((safe == "allowed_tools" and lists) or (safe != "keep" and not names)):
        return Restriction(names, allowed=names)
    return Restriction(names, said=names)
