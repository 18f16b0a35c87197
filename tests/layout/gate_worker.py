"""One process at the gate of a shared store: each pair on its line is a command and its argument, answered by a dict.

``ready`` does nothing, ``enter`` takes a pass, ``release`` gives it back, and ``ask`` sends one request of a session
whose siblings are the other processes.
"""

from __future__ import annotations

import json
import time
import urllib.request
from multiprocessing.connection import Connection
from typing import Any

from cacheprefix import Caching, Gate, Session, SharedPrefix
from cacheprefix.adapter import Request
from cacheprefix.effects import drive
from cacheprefix.layout import StoreGate, store_gate
from cacheprefix.stores import RedisStore, SqliteStore, Store

SYSTEM = "The handbook says that every statement needs a source. " * 200


def ask(session: Session, url: str, name: str) -> int | None:
    """Send one streamed request behind the gate; the tokens it read from the provider's cache."""
    body = {
        "model": "claude-sonnet-4-6",
        "max_tokens": 50,
        "stream": True,
        "system": [{"type": "text", "text": SYSTEM}],
        "messages": [{"role": "user", "content": f"You are {name}."}],
    }
    turn = session.adapter.begin(
        Request(body, "anthropic", boundary=1), session.adapter.waiting.queue(body, "anthropic", boundary=1)
    )
    headers = {"content-type": "application/json", "x-api-key": "k", "anthropic-version": "2023-06-01"}
    request = urllib.request.Request(f"{url}/v1/messages", json.dumps(turn.body).encode(), headers)
    usage: dict[str, Any] = {}
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if line.startswith(b"data: "):
                turn.first_token()
                event = json.loads(line[6:])
                usage |= event.get("message", event).get("usage") or {}
    turn.finish(usage)
    return usage.get("cache_read_input_tokens")


def serve(line: Connection, where: str, limit: float, lease: float, url: str) -> None:
    """Answer commands until the line is closed."""
    # A busy machine may take longer for a call than a store is given, and then each process would lead.
    store_gate.CALL_SECONDS = 30.0
    store: Store = RedisStore(where, cooldown=0.2) if where.startswith("redis") else SqliteStore(where)
    errors: list[str] = []
    gate = StoreGate(store, limit, lease=lease, failed=lambda error: errors.append(str(error)))
    session = Session(
        SharedPrefix(system=SYSTEM),
        caching=Caching(provider="anthropic"),
        gate=Gate(limit=limit, price=0.0, store=store),
    )
    held = None
    while True:
        try:
            command, given = line.recv()
        except EOFError:
            break
        began, answer = time.monotonic(), {}
        if command == "enter":
            held = drive(gate.entering(given.encode()))
            answer = {"leads": held.leader, "errors": len(errors)}
        elif command == "release" and held is not None:
            held.release(ok=given == "ok")
        elif command == "ask":
            answer = {"read": ask(session, url, given)}
        line.send({**answer, "seconds": time.monotonic() - began})
    store.close()
