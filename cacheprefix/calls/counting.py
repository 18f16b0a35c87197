"""How a session counts tokens: by the counter given, a plugin, or the default for the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cacheprefix.prompt import Counter, default_counter

if TYPE_CHECKING:
    from cacheprefix.plugins import Plugins
    from cacheprefix.prompt import Count


class TokenCounting:
    """Counts texts for any model. Safe to share between threads."""

    def __init__(self, counter: Counter | None, plugins: Plugins) -> None:
        self._given = counter
        self._plugins = plugins
        self._by_plugin = counter is None and plugins.overrides("count_tokens")
        self._by_model: dict[str, Count] = {}

    def count(self, text: str, model: str = "") -> int:
        """Tokens of a text."""
        if self._given is not None:
            return self._given(text, model)
        if self._by_plugin:
            counted = self._plugins.call_first("count_tokens", text=text, model=model)
            if isinstance(counted, int):
                return counted
        return default_counter(model)(text, model)

    def for_model(self, model: str = "") -> Count:
        """``count`` for one model; the same object each time, as the memory of views needs it."""
        found = self._by_model.get(model)
        if found is None:
            # Of two threads that come at once the first one's stays.
            found = self._by_model.setdefault(model, lambda text: self.count(text, model))
        return found

    @property
    def counts(self) -> tuple[Count, ...]:
        """What ``for_model`` gave so far."""
        return tuple(self._by_model.values())

    def name(self, model: str) -> str:
        """Which counter answers for a model."""
        if self._given is not None:
            return self._given.name
        return "plugin" if self._by_plugin else default_counter(model).name
