"""Models that CrewAI's ``llm_overlay`` makes like an installed one.

CrewAI compares the very class of the model that it goes by, as which a generated class is a stranger's: the key and the
address that the application gave were left out of the new model, and its requests failed, or went to another server.
So it goes by the model as the application made it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from cacheprefix_crewai.binding import WhileUsed, replaced_method
from cacheprefix_crewai.llm import as_made


def _watch() -> list[Callable[[], object]]:
    """Have CrewAI go by models as they were made; the functions returned end that."""
    from crewai.utilities import llm_utils  # noqa: PLC0415 - CrewAI loads slowly

    name = "create_llm_like"  # an earlier version has no overlay
    return [replaced_method(llm_utils, name, _by_its_own_class)] if hasattr(llm_utils, name) else []


WATCH_OVERLAYS = WhileUsed(_watch)
"""As long as anything is installed."""


def _by_its_own_class(function: Any) -> Any:
    """The function that makes a model like another one, which is given that as the application made it."""

    @functools.wraps(function)
    def create_llm_like(model: str, base: Any) -> Any:
        return function(model, as_made(base))

    return create_llm_like
