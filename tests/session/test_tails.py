"""Where a role's text stands."""

import pytest

from cacheprefix import Session, SharedPrefix
from cacheprefix.errors import SetupError

ROLES = {"critic": "You criticise.", "writer": "You write."}


def test_with_cards_the_role_texts_are_shared_and_the_tail_only_names_the_speaker():
    """Every role's text stands in the system text that all begin with."""
    session = Session(SharedPrefix(system="Rules.", roles=ROLES), tail="cards")
    assert all(text in session.prefix.text for text in ROLES.values())
    assert session.tail_for("critic", ROLES["critic"]) == 'You now speak as "critic".'


def test_with_cards_a_role_that_has_no_card_says_its_text_in_the_tail():
    """Nothing a role has to know is lost."""
    session = Session(SharedPrefix(system="Rules.", roles=ROLES), tail="cards")
    assert "You edit." in session.tail_for("editor", "You edit.")
    assert "another text" in session.tail_for("critic", "another text")


def test_a_placement_that_is_not_built_is_refused():
    """``sticky`` would promise what no adapter does."""
    with pytest.raises(SetupError, match="'tail' or 'cards'"):
        Session(tail="sticky")
