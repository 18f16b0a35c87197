"""How a session counts tokens: by the counter given, a plugin, or the default for the model."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from cacheprefix.bounded import Generations
from cacheprefix.prompt import ESTIMATE, Counter, default_counter

if TYPE_CHECKING:
    from cacheprefix.plugins import Plugins
    from cacheprefix.prompt import Count


_KEPT_BYTES, _ENTRY = 8_000_000, 160
"""What counts may take, and one of them: some 50,000 texts, of which digests alone are held."""


class TokenCounting:
    """Counts texts for any model. Safe to share between threads."""

    def __init__(self, counter: Counter | None, plugins: Plugins) -> None:
        self._given = counter
        self._plugins = plugins
        self._by_plugin = counter is None and plugins.overrides("count_tokens")
        self._by_model: dict[str, Count] = {}
        self._known: Generations[tuple[str, bytes], int] = Generations(_KEPT_BYTES)

    def count(self, text: str, model: str = "") -> int:
        """Tokens of a text."""
        if self._by_plugin:
            counted = self._plugins.call_first("count_tokens", text=text, model=model)
            if isinstance(counted, int):
                return counted
        counter = self._given or default_counter(model)
        return counter(text, model) if counter is ESTIMATE else self._once(counter, text, model)

    def _once(self, counter: Counter, text: str, model: str) -> int:
        """A tokenizer's count, known from before where there is one: each request counts its whole history.

        An event loop waits for it, and of the same messages again with each sibling and each turn.
        """
        key = model, hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        known = self._known.get(key)
        if known is None:
            self._known.put(key, known := counter(text, model), _ENTRY)
        return known

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
