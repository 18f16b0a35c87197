"""Cost of short conversations, one after another: forks against the application's own requests, in process.

``python -m benchmarks.bench_short`` prints a table and writes ``benchmarks/results/short.json``. A role that is asked
once or twice in each conversation finds in the cache what its own requests of other conversations began with; what
sharing costs more (others' tools, a text that is paid anew) has little time to come back. The sum is of ``TALKS``
conversations, the first of which is cold on both sides, and of one alone.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from benchmarks import _table
from benchmarks.role_plans import profile_of, side_of, words
from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.bodies import Role, fork_body
from cacheprefix.profiles import Profile, default_registry
from cacheprefix.prompt import ESTIMATE, Api
from cacheprefix.server import CacheOutcome, ProviderCache
from cacheprefix.wire import decode

RULES = (("openai", 0.1), ("openai", 0.25), ("openai", 0.5), ("openai-5.6", 0.1), ("anthropic", 0.1))
TALKS = 6
BOOK = words(1_200, "book")
_STEP = 2.0


class Asked(NamedTuple):
    """A role, its system text, its tools with their sizes, and the tokens that are said to it in turn."""

    role: str
    system: str
    tools: tuple[tuple[str, int], ...]
    said: tuple[int, ...]


Conversation = Callable[[int], Sequence[Asked]]
"""The requests of a conversation, by its number."""


def _router(at: int) -> Sequence[Asked]:
    specialist = ("billing", "technical", "sales")[at % 3]

    def one(name: str, *said: int) -> Asked:
        return Asked(name, f"{BOOK}\n\n{words(400, name)}", ((f"{name}_tool", 100),), said)

    return one("router", 50), one(specialist, 50, 150), one(specialist, 50, 150, 150)


def _documents(*, front: bool) -> Conversation:
    def talk(at: int) -> Sequence[Asked]:
        found = words(800, f"doc{at}")

        def one(name: str, *said: int) -> Asked:
            parts = (found, words(300, name)) if front else (words(300, name), found)
            return Asked(name, "\n\n".join((BOOK, *parts)), (), said)

        return one("planner", 100), one("critic", 100, 100), one("writer", 100, 100, 100)

    return talk


def _bots(at: int) -> Sequence[Asked]:
    name = ("english", "french", "german")[at % 3]
    system, tools = f"{BOOK}\n\n{words(300, name)}", ((f"{name}_tool", 200),)
    return Asked(name, system, tools, (100,)), Asked(name, system, tools, (100, 150))


def _alone(_: int) -> Sequence[Asked]:
    system, tools = words(3_000, "solo"), (("look", 200),)
    return Asked("solo", system, tools, (200,)), Asked("solo", system, tools, (200, 150))


WORKLOADS: dict[str, tuple[Conversation, str]] = {
    "router and one of three specialists, a tool each": (_router, BOOK),
    "three roles, new documents in front of their texts": (_documents(front=True), BOOK),
    "three roles, new documents behind their texts": (_documents(front=False), BOOK),
    "bots that each have conversations of their own, a tool each": (_bots, BOOK),
    "an agent alone, one round of a tool": (_alone, ""),
}


def requests(talk: Conversation, talks: int, api: Api, model: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """A role, the conversation, and the body as the application sends it."""
    for at in range(talks):
        for one in talk(at):
            said = [{"role": "user", "content": words(size, f"said{at}x{n}")} for n, size in enumerate(one.said)]
            lead = {"system": one.system} if api == "anthropic" else {}
            first = [] if lead else [{"role": "system", "content": one.system}]
            body = {"model": model, "max_tokens": 64, **lead, "messages": [*first, *said]}
            tools = [_tool(name, size, api) for name, size in one.tools]
            yield one.role, f"talk{at}", {**body, "tools": tools} if tools else body


def _tool(name: str, tokens: int, api: Api) -> dict[str, Any]:
    form, about = {"type": "object", "properties": {"query": {"type": "string"}}}, words(tokens, name)
    if api == "anthropic":
        return {"name": name, "description": about, "input_schema": form}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": form}}


def compared(talk: Conversation, shared: str, talks: int, rules: str, read: float) -> list[list[CacheOutcome]]:
    """What became of each call, in the application's own layout and as forks."""
    api: Api = "anthropic" if rules == "anthropic" else "openai-chat"
    model = {"anthropic": "claude-sonnet-4-6", "openai-5.6": "gpt-5.6"}.get(rules, "gpt-5.2")
    profile = profile_of(rules, read)
    session, caches = _session(talk, shared, rules, profile), (ProviderCache(profile), ProviderCache(profile))
    sides: list[list[CacheOutcome]] = [[], []]
    for number, (role, name, body) in enumerate(requests(talk, talks, api, model)):
        turn = fork_body(session.adapter, body, api, Role(role, conversation=name)).begin()
        for side, cache, sent in zip(sides, caches, (body, turn.body), strict=True):
            serving = cache.begin(decode(sent, api), number * _STEP)
            serving.ended(number * _STEP + _STEP / 2)
            side.append(serving.outcome)
        turn.finish(None)
    if session.failures:
        raise RuntimeError(f"a step of ours failed: {dict(session.failures)}")
    return sides


def _session(talk: Conversation, shared: str, rules: str, profile: Profile) -> Session:
    """One that knows the handbook, and all roles and tools before the first request."""
    registry = default_registry().copy()
    registry.register(replace(profile))
    everyone = [one for at in range(3) for one in talk(at)]
    tools = {name: _tool(name, size, "openai-chat") for one in everyone for name, size in one.tools}
    prefix = SharedPrefix(system=shared, tools=tuple(tools.values()))
    session = Session(prefix, caching=Caching(provider=rules, counter=ESTIMATE, profiles=registry))
    for name in dict.fromkeys(one.role for one in everyone):
        session.adapter.join(name)
    return session


def main() -> int:
    """Run it."""
    given = _table.options(__doc__).parse_args()
    # Breaks of the application's own layout are no news here.
    logging.getLogger("cacheprefix").setLevel(logging.ERROR)
    rows = []
    for name, (talk, shared) in WORKLOADS.items():
        for talks in (1, TALKS):
            what = f"{name}, {talks} conversation{'s' * (talks > 1)}"
            _table.progress(what)
            for rules, read in RULES:
                profile = profile_of(rules, read)
                plain, ours = (side_of(side, profile) for side in compared(talk, shared, talks, rules, read))
                rows.append(_table.cost(what, "none", rules, read, plain, ours))
    _table.finish("short", rows, given, lines=lambda found: _table.grid(found, [""], lambda row: [row["workload"]]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
