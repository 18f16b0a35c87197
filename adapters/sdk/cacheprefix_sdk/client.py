"""``wrap``: a copy of the application's client whose model requests are measured and, in a role, become forks."""

from __future__ import annotations

from typing import TypeVar

from cacheprefix import Session
from cacheprefix.adapter import bound_role, current_role, given_or_configured, supported, vendor_of, watched_client
from cacheprefix.adapter import in_role as role
from cacheprefix.errors import SetupError, found_instead

__all__ = ["role", "wrap"]

C = TypeVar("C")


def wrap(
    client: C, session: Session | None = None, *, role: str = "", instruction: str = "", conversation: str = ""
) -> C:
    """A copy of ``client``, of the same class, sharing its connections; the client itself where it is turned off.

    Calls in a role (``with role("critic"):``, or bound here) are forks of the session's shared prefix; all others,
    and all in ``observe`` mode, are byte-identical to those of ``client`` and only measured. Raises ``SetupError`` for
    anything but a client of OpenAI or Anthropic, and for an instruction or a conversation without a role.
    """
    if vendor_of(client) is None:
        raise SetupError(f"wrap takes a client of OpenAI or Anthropic, {found_instead(client)}")
    joined = given_or_configured(session)
    bound = bound_role(role, instruction, conversation)
    if bound is not None:
        joined.join(bound.name)
    if joined.off:
        return client
    return watched_client(client, joined, lambda: bound or current_role())


supported("cacheprefix-sdk")
