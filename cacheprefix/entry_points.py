"""What an adapter's entry point and package load: names and hooks whose modules wait for their first use.

Every session loads the entry points of all adapters that are installed, also where nobody uses their frameworks: this
module loads nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from cacheprefix.lazy_names import lazy

if TYPE_CHECKING:
    from cacheprefix.session import Session

__all__ = ["lazy", "previews", "wraps"]


def wraps(framework: str, module: str) -> Callable[[object, Session], object | None]:
    """An adapter's hook ``wrap``, for what ``module``'s ``known`` takes of a framework's own functions and classes.

    ``module`` is loaded with the first of them: a framework may take seconds, which others need not wait for.
    """

    def cacheprefix_wrap(target: object, session: Session) -> object | None:
        if not _is_of(target, framework):
            return None
        door = import_module(module)
        return door.wrap(target, session) if door.known(target) else None

    return cacheprefix_wrap


def previews(framework: str, module: str) -> Callable[[object, Session, object], object | None]:
    """An adapter's hook ``preview``, as ``wraps`` has the other."""

    def cacheprefix_preview(target: object, session: Session, task: object) -> object | None:
        found: object | None = (
            import_module(module).preview(target, session, task) if _is_of(target, framework) else None
        )
        return found

    return cacheprefix_preview


def _is_of(target: object, framework: str) -> bool:
    if isinstance(target, (list, tuple, dict)) and target:
        target = next(iter(target.values() if isinstance(target, dict) else target))
    homes = (getattr(target, "__module__", None), *(base.__module__ for base in type(target).__mro__))
    return any(str(home).partition(".")[0] == framework for home in homes)
