"""A fork never costs more than the request it stands for, whatever the plan: generated teams against a prompt cache."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from benchmarks.role_plans import Plan, played, session_for
from cacheprefix.layout.role_position import LONG
from cacheprefix.profiles import default_registry

RULES = ("openai", "openai-5.6", "deepseek", "groq", "vllm", "anthropic")
ENVELOPE = 20
"""Tokens of a call: the name in front of a role's text, and that text as a message of its own."""


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
    tools = draw(st.lists(st.sampled_from([0, 300, 1_200, 4_000]), max_size=len(roles)))
    return Plan(draw(st.sampled_from([0, 200, 1_100, 4_000])), tuple(roles), tuple(order), tuple(tools))


def cost(plan, rules, session=None):
    """Cost units of each call."""
    profile = default_registry().get(rules)
    return [outcome.cost_units(profile) for outcome in played(plan, rules, session)]


def allowed(plan, profile):
    """What nobody can know beforehand, in cost units.

    A short text goes to the end also where the same role asks again at once, for what others may read of it, and a
    long one until that has cost a quarter of what is shared. A conversation that began too short to share is shared
    for some time to come. Where the application marks nothing, the first mark is a write, and the plan may end before
    it is read; that of a role in the application's own layout comes with its second request. The first one that carries
    the tools of all pays for them, and those who have them may never be asked; whether they are worth reading is an
    estimate of how much will be said.
    """
    known, beforehand, last = 0.0, 0.0, None
    write = max(profile.default_ttl.write, 1.0)
    whole = plan.handbook + sum(size + 8 for _, size in plan.turns)
    for who, _ in plan.turns:
        known += ENVELOPE * write
        if who == last:
            own = plan.roles[who] + profile.block_tokens
            known += own * write * (plan.roles[who] < LONG)
            beforehand += own * write * (plan.roles[who] >= LONG)
        last = who
    known += min(beforehand, whole / 4 * write)
    counts = [-(-size // 400) for size in plan.tools]
    # DeepSeek keeps what two requests have in common only once the second one has come.
    times = 2 if profile.match == "unit" else 1
    carried = sum(plan.tools) + 3 * ENVELOPE * sum(counts)
    known += carried * (write * times + profile.read * len(plan.turns))
    # A provider without allowed_tools is told them in words.
    known += sum(counts[who] * ENVELOPE / 2 for who, _ in plan.turns if who < len(counts)) * write
    if plan.handbook < profile.min_tokens:
        known += whole
    if not (profile.markers is None or profile.implicit_breakpoint):
        asked = Counter(who for who, _ in plan.turns)
        own = sum(plan.roles[who] + whole for who, times in asked.items() if times > 1)
        known += (profile.default_ttl.write - 1.0) * (whole + own * (plan.handbook < profile.min_tokens))
    return known


TWO_WITHOUT_A_TEXT = ((0, 5), (1, 500), (0, 5), (1, 5), (0, 500), (1, 30), (0, 500), (1, 5), (0, 5))
"""Two that take turns: where whole requests alone are kept, each would read only what its own last one held too."""


QUICK = settings(max_examples=25, phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@pytest.mark.parametrize("rules", RULES)
@QUICK
@given(plan=plans())
@example(Plan(1_100, (2_500, 2_500, 2_500), tuple((n % 3, 30) for n in range(30))))
@example(Plan(4_000, (400, 400), tuple((n % 2, 5) for n in range(30))))
@example(Plan(1_100, (2_500, 1_000), ((0, 120), (1, 2_000), (0, 2_000), (1, 2_000), (0, 120), (1, 120))))
@example(Plan(0, (40, 40), TWO_WITHOUT_A_TEXT))
def test_a_completed_plan_is_never_dearer(rules, plan):
    """Long role texts or short ones, many short messages or a few long ones, everyone once or one alone."""
    profile, session = default_registry().get(rules), session_for(plan, rules)
    plain, ours = sum(cost(plan, rules)), sum(cost(plan, rules, session))
    assert ours <= plain + allowed(plan, profile), (round(ours / plain, 3), ours - plain)
    assert not session.failures


@pytest.mark.slow
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("size", [40, 400, 2_500])
def test_a_long_chat_of_short_messages_costs_less_whatever_the_roles_bring(rules, size):
    """Three roles with a handbook, thirty answers of thirty tokens: never the role's text anew with each of them."""
    plan = Plan(1_100, (size,) * 3, tuple((n % 3, 30) for n in range(30)))
    plain, ours = cost(plan, rules), cost(plan, rules, session_for(plan, rules))
    assert sum(ours) < sum(plain)
    # Once everyone has asked twice, each single request is no dearer either.
    assert all(a <= b + ENVELOPE for a, b in zip(ours[6:], plain[6:], strict=True))


GUESSED = {
    "what its first request saved is counted": (
        Plan(98, (28, 921), ((0, 1529), (1, 939), (0, 805), (1, 1239), (0, 1532), (1, 1538)), shape="fan-out"),
        0.80,
    ),
    "no long text leaves its place at a loss": (
        Plan(
            5296,
            (25, 1065, 145, 1040, 2058),
            tuple(
                zip((2, 1, 2, 2, 1, 0, 1, 4, 2, 3, 4, 2), (26, 42, 83, 67, 88, 96, 64, 36, 76, 43, 62, 49), strict=True)
            ),
        ),
        0.48,
    ),
}


@pytest.mark.parametrize("name", GUESSED)
def test_texts_in_front_on_a_guess_cost_little_if_there_is_one_conversation(name):
    """They go behind what is said once that is cheaper."""
    plan, most = GUESSED[name]
    assert sum(cost(plan, "vllm", session_for(plan, "vllm"))) <= most * sum(cost(plan, "vllm"))


@pytest.mark.parametrize("rules", ["deepseek", "vllm"])
def test_where_the_names_of_forks_would_weigh_requests_stay_as_they_are(rules):
    """A provider may cache the shortest prompts too: a fork's name around its text is then more than it shares."""
    plan = Plan(0, (80, 80, 80, 80), ((0, 700), (1, 700), (2, 700), (3, 700)), shape="fan-out")
    assert cost(plan, rules, session_for(plan, rules)) == cost(plan, rules)
