"""Conversations of several people with equal texts among theirs, and what must hold of their requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from cacheprefix import Compaction, ToolResultBudget

USERS = ("alice", "bob", "carol")
BOUNDS = pytest.mark.parametrize(
    "bounds",
    [{}, {"compaction": Compaction(trigger=4_000, horizon=1_000)}, {"budget": ToolResultBudget(max_tokens=300)}],
    ids=["none", "compaction", "budget"],
)
_REMOVED = "Earlier messages were removed"

Turn = tuple[int, str, bool, bool]
"""Who asks, with which words that others use too, whether words of their own follow, and whether all ask at once."""


def turns() -> st.SearchStrategy[list[Turn]]:
    """The turns of two or three people."""
    questions = st.sampled_from(("Go on.", "Hello.", "What is next?"))
    return st.lists(st.tuples(st.integers(0, 2), questions, st.booleans(), st.booleans()), min_size=4, max_size=12)


LONG: list[Turn] = [(number, "Go on.", number % 3 > 0, number % 2 > 0) for number in range(24)]
"""Enough for a compaction."""


def played(test: Callable[..., None]) -> Callable[..., None]:
    """Have a test play ``given_turns`` of two and of three ``people``: a long talk of each, and some that are drawn.

    What is drawn first is always the simplest, two people of whom one says the same four times: it shows nothing.
    """
    for people in (2, 3):
        test = example(given_turns=LONG, people=people)(test)
    drawn = given(given_turns=turns(), people=st.integers(2, 3))(test)
    return settings(
        max_examples=2,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )(drawn)


def asking(turn: Turn, people: int) -> tuple[str, ...]:
    """Who asks in a turn."""
    who, _, _, together = turn
    return USERS[:people] if together else (USERS[who % people],)


def question(user: str, number: int, turn: Turn) -> str:
    """What someone asks in a turn."""
    _, common, wordy, _ = turn
    return f"{user} {number}: " + " ".join(f"{user}-value-{number}-{at}" for at in range(60)) if wordy else common


def check(sent: Sequence[Any], histories: Mapping[str, Sequence[str]]) -> int:
    """Of the requests of one turn: nobody's words in another's prompt, and of each one's history no message missing.

    ``histories`` are the texts of those who asked. Returns how many requests were of a compacted history.
    """
    texts = [["\n".join(section.text for section in one.prompt.sections), one.body.decode()] for one in sent]
    for text, body in texts:
        assert not any(one in body and other in body for one in USERS for other in USERS if one < other), text[-2_000:]
    for user, history in histories.items():
        own = [text for text, body in texts if not any(other in body for other in USERS if other != user)]
        assert any(_stands(history, text) for text in own), f"{user} asked, and this is all that was sent: {own}"
    return sum(_REMOVED in text for text, _ in texts)


def _stands(history: Sequence[str], text: str) -> bool:
    """Whether all of it stands there, in order; where older messages were removed, what is asked."""
    at = 0
    for said in history[-1:] if _REMOVED in text else history:
        at = text.find(said, at)
        if at < 0:
            return False
        at += len(said)
    return True
