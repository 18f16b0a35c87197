"""What the entry point ``crewai`` loads: the adapter's hooks, as plain functions of this module."""

from __future__ import annotations

import sys

from cacheprefix import Session


def cacheprefix_wrap(target: object, session: Session) -> object | None:
    """Install on a crew, a ``@CrewBase`` instance, an agent or a list of agents; gives the target back."""
    if "crewai" not in sys.modules:
        return None  # nothing of CrewAI can be the target, and loading it takes seconds
    from cacheprefix_crewai.installing import install, known

    if not known(target):
        return None
    install(target, session)
    return target


def cacheprefix_preview(target: object, session: Session, task: object) -> object | None:
    """What the tasks of a crew, a ``@CrewBase`` instance or agents will ask first; None for anything else."""
    if "crewai" not in sys.modules:
        return None
    from cacheprefix_crewai.preview import preview

    return preview(target, session, task)
