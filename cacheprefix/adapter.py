"""What adapters need beside the public names: the session of a front door."""

from __future__ import annotations

# Read here, and not with the first front door: that may be called in an event loop, which must not wait for a disk.
from cacheprefix import config as _config  # noqa: F401
from cacheprefix.session import Session

__all__ = ["given_or_configured"]


def given_or_configured(session: Session | None) -> Session:
    """The session that a front door was given; without one, ``Session.from_config()``.

    Every front door that may be called without a session asks here, so that the file and the variables reach it too.
    Raises ``ConfigError``, before anything is wrapped.
    """
    return Session.from_config() if session is None else session
