"""One process of a fleet: lays out a request in the conversation and at the time of each line, and says its key."""

from __future__ import annotations

import sys

from cacheprefix import Caching, Gate, Session, SharedPrefix
from cacheprefix.adapter import Role, fork_body
from cacheprefix.stores import RedisStore, SqliteStore


def main(kind: str, place: str) -> None:
    """One request a line; none is sent."""
    now = [0.0]
    store = {"sqlite": SqliteStore, "valkey": RedisStore}[kind](place)
    caching = Caching(clock=lambda: now[0])
    session = Session(SharedPrefix(system="Keep to the rules. " * 400), gate=Gate(store=store), caching=caching)
    for line in sys.stdin:
        at, talk = line.split()
        now[0] = float(at)
        body = {"model": "gpt-5.6", "messages": [{"role": "user", "content": f"Talk {talk}."}]}
        with fork_body(session.adapter, body, "openai-chat", Role("critic", conversation=talk)).begin() as turn:
            print(turn.body["prompt_cache_key"], flush=True)
        turn.finish({"prompt_tokens": 2_000, "completion_tokens": 1})


if __name__ == "__main__":
    main(*sys.argv[1:])
