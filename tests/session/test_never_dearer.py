"""A fork never costs more than the request it stands for, whatever the plan: generated teams against a prompt cache.

The two sides follow the same rules in two caches: the application's own requests, and what ``fork_body`` makes of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from cacheprefix import Session, SharedPrefix
from cacheprefix._places import LONG
from cacheprefix.bodies import Role, fork_body
from cacheprefix.profiles import default_registry
from cacheprefix.prompt import ESTIMATE, decode
from cacheprefix.server import ProviderCache

RULES = ("openai", "openai-5.6", "deepseek", "groq", "vllm", "anthropic")
MODEL = {"openai-5.6": "gpt-5.6"}
ENVELOPE = 20
"""Tokens of a call: the name in front of a role's text, and that text as a message of its own."""


@dataclass(frozen=True)
class Plan:
    """Who answers in which order, and the tokens of the handbook, of each role's text, and of each message."""

    handbook: int
    roles: tuple[int, ...]
    turns: tuple[tuple[int, int], ...]
    """A role, and the length of its answer."""


@st.composite
def plans(draw):
    """Short and long texts in every mixture; agents that come once, often, or again and again."""
    sizes = st.sampled_from([3, 40, 150, 400, 1_000, 2_500])
    roles = draw(st.lists(sizes, min_size=1, max_size=4))
    who = st.integers(0, len(roles) - 1)
    turns = st.tuples(who, st.sampled_from([5, 30, 120, 500, 2_000]))
    order = draw(st.lists(turns, min_size=1, max_size=30))
    if draw(st.booleans()):
        order = [(index % len(roles), size) for index, (_, size) in enumerate(order)]
    return Plan(draw(st.sampled_from([0, 200, 1_100, 4_000])), tuple(roles), tuple(order))


def words(tokens, what):
    """A text of about so many tokens by the estimate, unlike any other."""
    return "".join(f"{what}{index:05d} " for index in range(-(-tokens * 4 // (len(what) + 6))))


def played(plan, rules, session=None):
    """Cost units of each call, in the application's own layout or as forks of ``session``, and tokens of the last."""
    profile = default_registry().get(rules)
    cache = ProviderCache(profile)
    api = "anthropic" if rules == "anthropic" else "openai-chat"
    handbook = words(plan.handbook, "book")
    transcript = [{"role": "user", "content": "Begin, please."}]
    costs, clock = [], 0.0
    for number, (who, size) in enumerate(plan.turns):
        text = words(plan.roles[who], f"role{who}-")
        lead = {"system": f"{text}\n\n{handbook}"} if api == "anthropic" else {}
        first = [] if lead else [{"role": "system", "content": f"{text}\n\n{handbook}"}]
        given = {"model": MODEL.get(rules, "gpt-5.2"), **lead, "messages": [*first, *transcript], "max_tokens": 64}
        body, turn = given, None
        if session is not None:
            turn = fork_body(session, given, api, Role(f"r{who}", conversation="one")).begin()
            body = turn.body
        prompt = decode(body, api, count=ESTIMATE.count)
        serving = cache.begin(prompt, clock)
        serving.ended(clock + 1)
        outcome = serving.outcome
        if turn is not None:
            turn.finish({"prompt_tokens": outcome.input_tokens} if api == "openai-chat" else None)
        costs.append(outcome.cost_units(profile))
        clock += 2
        transcript.append({"role": "user", "content": words(size, f"said{number}-")})
    return costs


def shared_session(plan, rules):
    """One that knows the handbook and goes by these rules."""
    return Session(SharedPrefix(system=words(plan.handbook, "book")), provider=rules, counter=ESTIMATE)


def allowed(plan, profile):
    """What nobody can know beforehand, in cost units.

    A short text goes to the end also where the same role asks again at once, for what others may read of it. A
    conversation that began too short to share is shared for some time to come. Where the application marks nothing,
    the first mark is a write, and the plan may end before it is read.
    """
    known, last = 0.0, None
    for who, _ in plan.turns:
        known += ENVELOPE * max(profile.default_ttl.write, 1.0)
        if who == last and plan.roles[who] < LONG:
            known += (plan.roles[who] + profile.block_tokens) * max(profile.default_ttl.write, 1.0)
        last = who
    whole = plan.handbook + sum(size + 8 for _, size in plan.turns)
    if plan.handbook < profile.min_tokens:
        known += whole
    if not (profile.markers is None or profile.implicit_breakpoint):
        known += (profile.default_ttl.write - 1.0) * whole
    return known


QUICK = settings(max_examples=25, phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("rules", RULES)
@QUICK
@given(plan=plans())
@example(Plan(1_100, (2_500, 2_500, 2_500), tuple((n % 3, 30) for n in range(30))))
@example(Plan(4_000, (400, 400), tuple((n % 2, 5) for n in range(30))))
def test_a_completed_plan_is_never_dearer(rules, plan):
    """Long role texts or short ones, many short messages or a few long ones, everyone once or one alone."""
    profile, session = default_registry().get(rules), shared_session(plan, rules)
    plain, ours = sum(played(plan, rules)), sum(played(plan, rules, session))
    assert ours <= plain + allowed(plan, profile), (round(ours / plain, 3), ours - plain)
    assert not session.failures


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("size", [40, 400, 2_500])
def test_a_long_chat_of_short_messages_costs_less_whatever_the_roles_bring(rules, size):
    """Three roles with a handbook, thirty answers of thirty tokens: never the role's text anew with each of them."""
    plan = Plan(1_100, (size,) * 3, tuple((n % 3, 30) for n in range(30)))
    plain, ours = played(plan, rules), played(plan, rules, shared_session(plan, rules))
    assert sum(ours) < sum(plain)
    # Once everyone has asked twice, each single request is no dearer either.
    assert all(a <= b + ENVELOPE for a, b in zip(ours[6:], plain[6:], strict=True))
