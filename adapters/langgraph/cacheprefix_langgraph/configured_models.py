"""Models that ``init_chat_model`` makes only when they are called, from the run's configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.language_models import BaseChatModel

from cacheprefix_langgraph.wrapping import Wrapping

_KNOWN = "__cacheprefix__"
"""The attribute of the class of a copy: what the models that it makes are wrapped with."""


def is_configured(model: object) -> bool:
    """Whether it is such a model."""
    kind = type(model)
    return kind.__module__ == "langchain.chat_models.base" and hasattr(kind, "_model")


def known_to(model: object) -> Wrapping | None:
    """What a copy wraps the models with that it makes; None for anything else."""
    found = getattr(type(model), _KNOWN, None) if is_configured(model) else None
    return found if isinstance(found, Wrapping) else None


def configured(model: Any, known: Wrapping, wrap: Callable[[BaseChatModel], BaseChatModel]) -> Any:
    """A copy that wraps every model it makes."""
    base: Any = type(model).__mro__[1] if known_to(model) else type(model)

    class Wrapped(base):  # type: ignore[misc]
        def _model(self, config: Any = None) -> Any:
            queued = self._queued_declarative_operations
            self_made = base(
                default_config=self._default_config,
                configurable_fields=self._configurable_fields,
                config_prefix=self._config_prefix,
            )
            made: Any = wrap(self_made._model(config))
            for name, args, kwargs in queued:
                made = getattr(made, name)(*args, **kwargs)
            return made

        def __getattr__(self, name: str) -> Any:
            found = base.__getattr__(self, name)
            if not callable(found) or getattr(found, "__name__", "") != "queue":
                return found

            def queue(*args: Any, **kwargs: Any) -> Any:
                return configured(found(*args, **kwargs), known, wrap)

            return queue

        def with_config(self, config: Any = None, **kwargs: Any) -> Any:
            return configured(base.with_config(self, config, **kwargs), known, wrap)

    setattr(Wrapped, _KNOWN, known)
    copy = Wrapped.__new__(Wrapped)
    copy.__dict__.update(model.__dict__)
    Wrapped.__name__, Wrapped.__qualname__, Wrapped.__module__ = base.__name__, base.__qualname__, base.__module__
    return copy
