"""Teams that take turns on one transcript, played against a prompt cache in this process; no framework, no HTTP.

The two sides follow the same rules in two caches: the application's own requests, and what ``fork_body`` makes of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.bodies import Role, fork_body
from cacheprefix.profiles import default_registry
from cacheprefix.prompt import ESTIMATE, Api
from cacheprefix.server import CacheOutcome, ProviderCache
from cacheprefix.wire import decode

_MODEL = {"openai-5.6": "gpt-5.6"}


@dataclass(frozen=True)
class Plan:
    """Who answers in which order, and the tokens of the handbook, of each role's text, and of each message."""

    handbook: int
    roles: tuple[int, ...]
    turns: tuple[tuple[int, int], ...]
    """A role, and the length of its answer."""
    tools: tuple[int, ...] = ()
    """Tokens of the tools that each role alone has; nothing for those left out."""


def words(tokens: int, what: str) -> str:
    """A text of about so many tokens by the estimate, unlike any other."""
    return "".join(f"{what}{index:05d} " for index in range(-(-tokens * 4 // (len(what) + 6))))


def tools_of(plan: Plan, who: int, api: Api) -> list[dict[str, Any]]:
    """A role's tools in the form of a provider, 400 tokens each at most."""
    size = plan.tools[who] if who < len(plan.tools) else 0
    form, made = {"type": "object", "properties": {"q": {"type": "string"}}}, []
    for number in range(-(-size // 400)):
        name, text = f"tool{who}x{number}", words(min(400, size - 400 * number), f"tool{who}x{number}-")
        if api == "anthropic":
            made.append({"name": name, "description": text, "input_schema": form})
        else:
            made.append({"type": "function", "function": {"name": name, "description": text, "parameters": form}})
    return made


def session_for(plan: Plan, rules: str) -> Session:
    """One that knows the handbook, all tools and all roles, and goes by these rules."""
    tools = [tool for who in range(len(plan.roles)) for tool in tools_of(plan, who, "openai-chat")]
    prefix = SharedPrefix(system=words(plan.handbook, "book"), tools=tuple(tools))
    session = Session(prefix, caching=Caching(provider=rules, counter=ESTIMATE))
    for who in range(len(plan.roles)):
        session.adapter.join(f"role{who}")
    return session


def played(plan: Plan, rules: str, session: Session | None = None) -> list[CacheOutcome]:
    """What became of each call, in the application's own layout or as forks of ``session``."""
    cache = ProviderCache(default_registry().get(rules))
    api: Api = "anthropic" if rules == "anthropic" else "openai-chat"
    handbook = words(plan.handbook, "book")
    transcript: list[dict[str, Any]] = [{"role": "user", "content": "Begin, please."}]
    outcomes, clock = [], 0.0
    for number, (who, size) in enumerate(plan.turns):
        text = f"{words(plan.roles[who], f'role{who}-')}\n\n{handbook}"
        lead: dict[str, Any] = {"system": text} if api == "anthropic" else {}
        first = [] if lead else [{"role": "system", "content": text}]
        body = {"model": _MODEL.get(rules, "gpt-5.2"), **lead, "messages": [*first, *transcript], "max_tokens": 64}
        own = tools_of(plan, who, api)
        if own:
            body["tools"] = own
        turn = None
        if session is not None:
            turn = fork_body(session.adapter, body, api, Role(f"role{who}", conversation="one")).begin()
            body = turn.body
        serving = cache.begin(decode(body, api, count=ESTIMATE.count), clock)
        serving.ended(clock + 1)
        if turn is not None:
            turn.finish(None)
        outcomes.append(serving.outcome)
        clock += 2
        transcript.append({"role": "user", "content": words(size, f"said{number}-")})
    return outcomes
