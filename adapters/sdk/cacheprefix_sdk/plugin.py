"""What the entry point ``sdk`` loads: the adapter's hooks, as plain functions of this module."""

from __future__ import annotations

from cacheprefix import Session


def cacheprefix_wrap(target: object, session: Session) -> object | None:
    """Wrap a client of OpenAI or Anthropic."""
    from cacheprefix.adapter import vendor_of
    from cacheprefix_sdk.client import wrap

    return wrap(target, session) if vendor_of(target) else None
