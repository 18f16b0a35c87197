"""Teams played against a prompt cache in this process; no framework, no HTTP.

All sides follow the same rules, each in a cache of its own: the application's own requests, what ``fork_body`` makes of
them, and layouts that never change their mind (``FIXED``), which say what could have been had.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.bodies import Role, fork_body
from cacheprefix.cache.breakpoints.plan import plan_breakpoints
from cacheprefix.cache.breakpoints.write import mark
from cacheprefix.layout.known_runs import RunAhead, RunCall
from cacheprefix.profiles import Profile, default_registry
from cacheprefix.prompt import ESTIMATE, Api, Counter, Prompt
from cacheprefix.server import CacheOutcome, ProviderCache
from cacheprefix.wire import decode
from cacheprefix.wire.openai_chat import tool_name

_MODEL = {"openai-5.6": "gpt-5.6"}
_TAG = re.compile(r"~(\d+)~")
_TOOL = 400
_STEP = 2.0
"""Seconds from one request to the next, which is begun when the one before has ended."""

Shape = Literal["shared", "fan-out", "private"]
"""``shared``: all read one transcript; ``fan-out``: so do they, but those of a wave do not read each other's answers;
``private``: each reads its own."""


@dataclass(frozen=True)
class Plan:
    """Who answers in which order, and the tokens of the handbook, of each role's text, and of each message."""

    handbook: int
    roles: tuple[int, ...]
    turns: tuple[tuple[int, int], ...]
    """A role, and the length of its answer. One that comes again at once is in a loop."""
    tools: tuple[int, ...] = ()
    """Tokens of the tools that each role alone has; nothing for those left out."""
    common: int = 0
    """Tokens of a tool that all roles have."""
    shape: Shape = "shared"
    book_first: bool = False
    """Whether the handbook stands before the role's text in the application's own requests."""
    marked: bool = False
    """Whether the application marks its own requests for the cache, where a provider keeps only what is marked."""
    known: bool = False
    """Whether who is asked in which order is known before the first request."""
    outlier: int | None = None
    """A role whose text does not hold the handbook, which is then found in the others' requests and given by nobody."""
    declared: bool = True
    """Whether all tools and roles are known before the first request."""
    tagged: bool = False
    """Whether texts only say how long they are (``TAGGED`` counts them), so that a plan is played in milliseconds."""


class Asked(NamedTuple):
    """One request before any layout."""

    who: int
    talk: str
    history: list[dict[str, Any]]


class Fixed(NamedTuple):
    """A layout that is the same for all requests of a plan."""

    place: Literal["end", "kept", "front"]
    """Where a role's text stands: behind the history, where it first stood, or before it. Cards are not among these:
    they would show each agent the others' texts."""
    union: bool
    """Whether each request carries the tools of all."""


FIXED = {
    f"{place}, {'all' if union else 'own'} tools": Fixed(place, union)
    for place in ("end", "kept", "front")
    for union in (True, False)
}


def words(tokens: int, what: str) -> str:
    """A text of about so many tokens by the estimate, unlike any other."""
    return "".join(f"{what}{index:05d} " for index in range(-(-tokens * 4 // (len(what) + 6))))


def _tagged(tokens: int, what: str) -> str:
    return f"{what} ~{tokens}~"


def _counted(text: str, model: str = "") -> int:
    said = sum(map(int, _TAG.findall(text))) if "~" in text else 0
    return said + ESTIMATE.count(text, model)


TAGGED = Counter("tagged", exact=True, count=_counted)
"""Counts the texts of plans that are ``tagged``: what they say of themselves, and their characters."""


def _text(plan: Plan, tokens: int, what: str) -> str:
    return _tagged(tokens, what) if plan.tagged else words(tokens, what)


def counter_of(plan: Plan) -> Counter:
    """What counts a plan's tokens on all sides."""
    return TAGGED if plan.tagged else ESTIMATE


def tools_of(plan: Plan, who: int, api: Api) -> list[dict[str, Any]]:
    """A role's tools in the form of a provider, 400 tokens each at most unless they are tagged."""
    size = plan.tools[who] if who < len(plan.tools) else 0
    each = size if plan.tagged else _TOOL
    many = -(-size // each) if size else 0
    sizes = [(f"tool{who}x{number}", min(each, size - each * number)) for number in range(many)]
    sizes += [("common", plan.common)] if plan.common else []
    form, made = {"type": "object", "properties": {"q": {"type": "string"}}}, []
    for name, tokens in sizes:
        text = _text(plan, tokens, f"{name}-")
        if api == "anthropic":
            made.append({"name": name, "description": text, "input_schema": form})
        else:
            made.append({"type": "function", "function": {"name": name, "description": text, "parameters": form}})
    return made


def profile_of(rules: str, read: float | None = None) -> Profile:
    """A provider's rules, at its own price of a token that is read or at another."""
    profile = default_registry().get(rules)
    return profile if read is None else replace(profile, read=read)


def session_for(plan: Plan, rules: str, read: float | None = None) -> Session:
    """One that knows the handbook, all tools and all roles if they are ``declared``, and goes by these rules."""
    everyone = range(len(plan.roles)) if plan.declared else ()
    tools = {tool["function"]["name"]: tool for who in everyone for tool in tools_of(plan, who, "openai-chat")}
    prefix = SharedPrefix(system=_handbook(plan) if plan.outlier is None else "", tools=tuple(tools.values()))
    registry = default_registry().copy()
    registry.register(profile_of(rules, read))
    session = Session(prefix, caching=Caching(provider=rules, counter=counter_of(plan), profiles=registry))
    if plan.outlier is not None:
        session.adapter.adopt_system(_handbook(plan))
    for who in everyone:
        session.adapter.join(f"role{who}")
    return session


def asked(plan: Plan) -> Iterator[Asked]:
    """The requests of a plan, in order."""
    opening = {"role": "user", "content": "Begin, please."}
    talks: dict[str, list[dict[str, Any]]] = {}
    wave: list[tuple[int, dict[str, Any]]] = []
    for number, (who, size) in enumerate(plan.turns):
        talk = f"of role{who}" if plan.shape == "private" else "one"
        history = talks.setdefault(talk, [opening])
        if plan.shape == "fan-out" and who in (one for one, _ in wave):
            history += [message for _, message in wave]
            wave.clear()
        yield Asked(who, talk, list(history))
        message = {"role": "user", "content": _text(plan, size, f"said{number}-")}
        if plan.shape == "fan-out":
            wave.append((who, message))
        else:
            history.append(message)


def played(
    plan: Plan, rules: str, session: Session | None = None, *, read: float | None = None, weigh: bool = False
) -> list[CacheOutcome]:
    """What became of each call, in the application's own layout or as forks of ``session``.

    ``weigh`` has layouts played in open-ended plans too (``Role.played``).
    """
    api: Api = "anthropic" if rules == "anthropic" else "openai-chat"
    profile, count = profile_of(rules, read), counter_of(plan).count
    cache, outcomes = ProviderCache(profile, count=count), list[CacheOutcome]()
    for number, one in enumerate(asked(plan)):
        body, turn = own_body(plan, one, rules, api), None
        if session is not None:
            role = Role(f"role{one.who}", conversation=one.talk, ahead=_ahead(plan, number, api), played=weigh)
            turn = fork_body(session.adapter, body, api, role).begin()
            body = turn.body
        outcomes.append(_served(cache, decode(body, api, count=count), number))
        if turn is not None:
            turn.finish(None)
    return outcomes


def _ahead(plan: Plan, number: int, api: Api) -> RunAhead | None:
    """The calls from one on, where they are known."""
    if not plan.known:
        return None
    names = [tuple(tool_name(one) for one in tools_of(plan, who, api)) for who in range(len(plan.roles))]
    wave: set[int] = set()
    calls = []
    for who, _ in plan.turns:
        beside = plan.shape == "fan-out" and bool(wave) and who not in wave
        wave = {*wave, who} if beside else {who}
        calls.append(RunCall(f"role{who}", plan.roles[who], names[who], beside=beside))
    return RunAhead(tuple(calls[number:]), joint=plan.shape != "private")


def played_fixed(plan: Plan, rules: str, layout: Fixed, *, read: float | None = None) -> list[CacheOutcome]:
    """What would have become of each call in one layout."""
    api: Api = "anthropic" if rules == "anthropic" else "openai-chat"
    profile, count = profile_of(rules, read), counter_of(plan).count
    cache, places = ProviderCache(profile, count=count), dict[tuple[int, str], int]()
    outcomes = []
    for number, one in enumerate(asked(plan)):
        at = len(one.history)
        if one.who == plan.outlier:
            outcomes.append(_served(cache, decode(own_body(plan, one, rules, api), api, count=count), number))
            continue
        if layout.place == "kept":
            at = places.setdefault((one.who, one.talk), at)
        elif layout.place == "front":
            at = 0
        prompt = _fixed(plan, one, layout, at, api, rules)
        boundary = prompt.head + at
        goes_on = layout.place in ("kept", "front") or plan.shape == "private"
        chosen = plan_breakpoints(prompt, profile, boundary=boundary, continues=goes_on)
        if chosen:
            prompt = decode(mark(_fixed_body(plan, one, layout, at, api, rules), api, prompt, chosen), api, count=count)
        outcomes.append(_served(cache, prompt, number))
    return outcomes


def _fixed(plan: Plan, one: Asked, layout: Fixed, at: int, api: Api, rules: str) -> Prompt:
    return decode(_fixed_body(plan, one, layout, at, api, rules), api, count=counter_of(plan).count)


def _fixed_body(plan: Plan, one: Asked, layout: Fixed, at: int, api: Api, rules: str) -> dict[str, Any]:
    tools = {
        next(iter(tool.get("function", tool).values())): tool
        for who in (range(len(plan.roles)) if layout.union else (one.who,))
        for tool in tools_of(plan, who, api)
    }
    text = f'<role name="role{one.who}">\n{_role(plan, one.who)}\n</role>'
    said = {"role": "user", "content": text}
    return _body(rules, api, _handbook(plan), [*one.history[:at], said, *one.history[at:]], list(tools.values()))


def own_body(plan: Plan, one: Asked, rules: str, api: Api) -> dict[str, Any]:
    """A request as the application makes it."""
    texts = (_role(plan, one.who), _handbook(plan) if one.who != plan.outlier else "")
    text = "\n\n".join(texts[::-1] if plan.book_first else texts)
    made = _body(rules, api, text, one.history, tools_of(plan, one.who, api))
    if plan.marked and api == "anthropic":
        # As Anthropic's caching middlewares do: the system text, and the newest message.
        made["system"] = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]
        last = made["messages"][-1]
        block = {"type": "text", "text": last["content"], "cache_control": {"type": "ephemeral"}}
        made["messages"] = [*made["messages"][:-1], {**last, "content": [block]}]
    return made


def _body(rules: str, api: Api, system: str, messages: list[dict[str, Any]], tools: list[Any]) -> dict[str, Any]:
    lead: dict[str, Any] = {"system": system} if api == "anthropic" and system else {}
    first = [{"role": "system", "content": system}] if system and not lead else []
    made = {"model": _MODEL.get(rules, "gpt-5.2"), **lead, "messages": [*first, *messages], "max_tokens": 64}
    return {**made, "tools": tools} if tools else made


def _handbook(plan: Plan) -> str:
    return _text(plan, plan.handbook, "book") if plan.handbook else ""


def _role(plan: Plan, who: int) -> str:
    return _text(plan, plan.roles[who], f"role{who}-")


def side_of(outcomes: Iterable[CacheOutcome], profile: Profile) -> dict[str, float]:
    """What the calls of one side of a comparison come to."""
    found = list(outcomes)
    return {
        "calls": len(found),
        "input_tokens": sum(one.input_tokens for one in found),
        "cache_read_tokens": sum(one.read_tokens for one in found),
        "cache_write_tokens": sum(one.written_tokens for one in found),
        "uncached_tokens": sum(one.uncached_tokens for one in found),
        "cost_units": round(sum(one.cost_units(profile) for one in found), 1),
    }


def _served(cache: ProviderCache, prompt: Prompt, number: int) -> CacheOutcome:
    serving = cache.begin(prompt, number * _STEP)
    serving.ended(number * _STEP + _STEP / 2)
    return serving.outcome
