"""Models that ``init_chat_model`` makes only when they are called, from the run's configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.language_models import BaseChatModel


def configured(model: object, wrap: Callable[[BaseChatModel], BaseChatModel]) -> Any:
    """A copy that wraps every model it makes; None for anything else."""
    kind = type(model)
    if kind.__module__ != "langchain.chat_models.base" or not hasattr(kind, "_model"):
        return None
    return _of(model, wrap)


def _of(model: Any, wrap: Callable[[BaseChatModel], BaseChatModel]) -> Any:
    base = type(model)

    class Wrapped(base):  # type: ignore[valid-type,misc]
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
                return _of(found(*args, **kwargs), wrap)

            return queue

        def with_config(self, config: Any = None, **kwargs: Any) -> Any:
            return _of(base.with_config(self, config, **kwargs), wrap)

    copy = Wrapped.__new__(Wrapped)
    copy.__dict__.update(model.__dict__)
    Wrapped.__name__, Wrapped.__qualname__, Wrapped.__module__ = base.__name__, base.__qualname__, base.__module__
    return copy
