"""What a crew's policy decides, and which numbers it gives for it: pure functions, on generated counts."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from cacheprefix.layout.economics import (
    MARGIN,
    LaterTask,
    RoleText,
    Stake,
    Standing,
    crew_position,
    extra,
    keeping,
    pays,
)
from cacheprefix.layout.role_position import RolePosition
from cacheprefix.layout.tool_restriction import restrict
from cacheprefix.profiles import default_registry
from cacheprefix.prompt import Reason
from tests.drawn import examples

tokens = st.integers(0, 5_000)
stakes = st.builds(
    Stake,
    fresh=tokens,
    known=tokens,
    own=tokens,
    later=st.lists(st.builds(LaterTask, tokens, st.just(0), tokens, tokens), max_size=5).map(tuple),
    overhead=st.integers(0, 200),
    loops=st.floats(0, 12),
)
role_texts = st.builds(RoleText, st.sampled_from("abc"), st.sampled_from([50, 128, 700, 3_000]), st.booleans())
standings = st.builds(
    Standing,
    texts=st.lists(role_texts, min_size=1, max_size=6).map(tuple),
    read=st.floats(0.02, 0.9),
    blocks=st.booleans(),
    results=st.integers(1, 4),
    log=st.integers(0, 3_000),
    grows=st.integers(0, 800),
    own=st.frozensets(st.sampled_from("abc")),
)


@settings(max_examples=examples(200), deadline=None)
@given(stakes, standings)
def test_a_task_is_a_fork_exactly_where_that_pays(stake, standing) -> None:
    """In front of the results where the agent's text is kept there, else behind all of them; else it says why not."""
    kept = keeping(standing)
    found = crew_position(stake, standing)
    if isinstance(found, Reason):
        assert not pays(replace(stake, places=extra(standing, kept)), standing.read)
        assert found.why in {"alone", "role_costs_more", "little_to_share"}
        if found.why == "little_to_share":
            numbers = dict(found.numbers)
            assert numbers["cost"] + 1 >= numbers["saved"] * MARGIN
    else:
        assert pays(replace(stake, places=extra(standing, kept)), standing.read)
        in_front = standing.texts[0].agent in kept
        assert found == (RolePosition(0, continues=True) if in_front else RolePosition(standing.results))


@settings(max_examples=examples(100), deadline=None)
@given(stakes, standings)
def test_a_text_that_the_user_gave_makes_forks(stake, standing) -> None:
    """In any case, or but for agents whose long text the provider has in the crew's own layout."""
    assert isinstance(crew_position(stake, standing, wanted=True), RolePosition)
    this = standing.texts[0]
    if this.size < 128 or this.agent not in standing.own:
        assert isinstance(crew_position(stake, standing, declared=True), RolePosition)
    else:
        assert crew_position(stake, standing, declared=True) == crew_position(stake, standing)


def test_an_agents_long_text_that_costs_more_than_is_saved_is_named() -> None:
    """It is read in the crew's own layout, and would be paid once more; without it, sharing would pay."""
    stake = Stake(
        fresh=500,
        known=0,
        own=500,
        later=(LaterTask(500, read=500),),
        overhead=0,
        loops=0.0,
    )
    standing = Standing((RoleText("a", 5_000), RoleText("b", 50)), read=0.1, blocks=True, own=frozenset("a"))
    assert isinstance(crew_position(stake, replace(standing, texts=(RoleText("a", 50),) * 2)), RolePosition)
    found = crew_position(stake, standing)
    assert isinstance(found, Reason)
    assert (found.why, dict(found.numbers)) == ("role_costs_more", {"size": 5_000})


def test_a_role_without_tools_is_kept_from_all_by_a_client_that_takes_no_lists() -> None:
    """``none`` is no list; one that has some is told which, in words."""
    rules = default_registry().get("openai")
    assert rules.tool_choice_safe == "allowed_tools"
    assert restrict((), ("a", "b"), rules, lists=False).allowed == ()
    assert restrict(("a",), ("a", "b"), rules, lists=False).said == ("a",)
