"""Changing an application's object in place, so that all of it can be taken back.

AutoGen's teams hold their agents in closures and containers, so a wrapped agent has to stay the same object.
"""

from __future__ import annotations

from typing import Any

from cacheprefix.errors import SetupError

BINDING = "__cacheprefix__"
_ABSENT = object()


class Patches:
    """Attributes that were replaced on one object, with what stood there."""

    def __init__(self, target: Any) -> None:
        self.target = target
        self._before: dict[str, Any] = {}

    def set(self, name: str, value: Any) -> None:
        """Replace an attribute of the instance."""
        if name not in self._before:
            self._before[name] = vars(self.target).get(name, _ABSENT)
        setattr(self.target, name, value)

    def expect(self, *names: str) -> None:
        """Raise ``SetupError`` unless the object has these attributes, AutoGen's private names among them."""
        missing = [name for name in names if not hasattr(self.target, name)]
        if missing:
            kind = type(self.target).__name__
            message = (
                f"{kind} has no {', '.join(missing)}: this version is made for autogen-agentchat 0.7.4 and 0.7.5; "
                "install one of these, or give the agent a PrefixClient instead of wrapping it"
            )
            raise SetupError(message)

    def undo(self) -> None:
        """Put everything back."""
        for name, value in self._before.items():
            if value is _ABSENT:
                delattr(self.target, name)
            else:
                setattr(self.target, name, value)
        self._before.clear()
