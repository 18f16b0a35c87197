"""What the session of a nested team, or of another tenant, begins with."""

import pytest

from cacheprefix import Session, SharedPrefix

HANDBOOK = "Everyone keeps to the rules of this house. " * 20
LOOK, HOUSE = ({"name": name, "description": f"For {name}."} for name in ("look", "house"))


def tools_of(session):
    """Names of the tools that all agents of a session share."""
    return session.prefix.tool_names


def test_another_tenants_session_begins_with_what_the_user_gave():
    """Tools and text that were found in requests of the first one are the first one's alone."""
    session = Session(SharedPrefix(tools=[LOOK]))
    session.adapter.adopt_tools([HOUSE], dict)
    session.adapter.adopt_system(HANDBOOK)
    assert set(tools_of(session)) == {"look", "house"}
    other = session.child("other", scope="other")
    assert tools_of(other) == ("look",)
    assert not other.prefix.system
    again = session.child("inner").child("other", scope="other")
    assert tools_of(again) == ("look",)


@pytest.mark.parametrize("holds", [True, False])
def test_a_nested_team_shows_a_text_that_was_found_to_those_who_hold_it(holds):
    """As the team around it does: nobody gave it to the session."""
    session = Session()
    session.adapter.adopt_system(HANDBOOK)
    inner = session.child("inner").adapter
    assert inner.prefix.system
    assert inner.holds_shared([f"You plan. {HANDBOOK}" if holds else "You plan."]) is holds


def test_a_nested_team_knows_which_tools_came_late():
    """So that a tenant's tools that it begins with stay out of other tenants' prompts there too."""
    session = Session(SharedPrefix(tools=[LOOK]))
    session.adapter.adopt_tools([], dict)
    session.adapter.team.adopt_tools([HOUSE], dict, print, grows=True)
    assert set(session.child("inner").adapter.team.apart) == {"house"}


def test_an_edition_has_what_the_user_gave_and_nothing_of_what_others_came_with():
    """It is the user's session in all else, and the same one for who asks again."""
    session = Session(SharedPrefix(system="The house."))
    session.adapter.adopt_tools([HOUSE], dict)
    other = {**HOUSE, "description": "Another house."}
    assert session.adapter.team.contradicts([other], dict) == HOUSE["name"]
    edition = session.adapter.edition("ann")
    assert (edition.prefix.tool_names, edition.prefix.system) == ((), "The house.")
    edition.adopt_tools([other], dict)
    assert session.adapter.edition("ann") is edition
    assert session.adapter.edition("bob") is not edition
    assert (edition.session, edition.scope, edition.name) == (session, "ann", session.name)
    assert edition.related(session.adapter)
