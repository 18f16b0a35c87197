"""A process that asks one cold request by the front door, for siblings in other processes, and may be killed in it."""

from __future__ import annotations

import sys

import anthropic

from cacheprefix import Gate, Session, SharedPrefix
from cacheprefix.layout import store_gate
from cacheprefix.stores import RedisStore, SqliteStore, Store
from cacheprefix_sdk import role, wrap

HANDBOOK = "The handbook of the house, rule by rule, section by section. " * 400
LIMIT = 60.0
"""Far more than a lease: nobody goes on because the gate's own time is up."""


def session_on(where: str) -> tuple[Session, Store]:
    """A session whose siblings in other processes are those with the same store; its lease is the library's own."""
    # A busy machine may take longer for a call than a store is given, and then each process would lead.
    store_gate.CALL_SECONDS = 30.0
    store: Store = RedisStore(where) if where.startswith("redis") else SqliteStore(where)
    return Session(SharedPrefix(system=HANDBOOK), gate=Gate(limit=LIMIT, price=0.0, store=store)), store


def asked(*, stream: bool) -> dict[str, object]:
    """A short question behind the handbook, which the application marks itself."""
    system = [{"type": "text", "text": HANDBOOK, "cache_control": {"type": "ephemeral"}}]
    said = [{"role": "user", "content": "What now?"}]
    return {"model": "claude-sonnet-4-6", "max_tokens": 20, "system": system, "messages": said, "stream": stream}


def main(url: str, where: str, way: str) -> None:
    """Ask, and read the answer to its end."""
    session, store = session_on(where)
    client = wrap(anthropic.Anthropic(base_url=url, api_key="k", max_retries=0), session)
    with role("leader"):
        answer = client.messages.create(**asked(stream=way == "stream"))  # type: ignore[call-overload]
        for _ in answer if way == "stream" else ():
            pass
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
