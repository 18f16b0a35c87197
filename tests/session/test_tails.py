"""Where a role's text stands."""

import pytest

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.adapter import Request, Role, fork_body, texts_said
from cacheprefix.errors import SetupError

ROLES = {"critic": "You criticise.", "writer": "You write."}


def test_with_cards_the_role_texts_are_shared_and_the_tail_only_names_the_speaker():
    """Every role's text stands in the system text that all begin with."""
    session = Session(SharedPrefix(system="Rules.", roles=ROLES), caching=Caching(tail="cards"))
    assert all(text in session.prefix.text for text in ROLES.values())
    assert session.adapter.tail_for("critic", ROLES["critic"]) == 'You now speak as "critic".'


def test_with_cards_a_role_that_has_no_card_says_its_text_in_the_tail():
    """Nothing a role has to know is lost."""
    session = Session(SharedPrefix(system="Rules.", roles=ROLES), caching=Caching(tail="cards"))
    assert "You edit." in session.adapter.tail_for("editor", "You edit.")
    assert "another text" in session.adapter.tail_for("critic", "another text")


def test_a_placement_that_is_not_built_is_refused():
    """``sticky`` would promise what no adapter does."""
    with pytest.raises(SetupError, match="'tail' or 'cards'"):
        Session(caching=Caching(tail="sticky"))


def talk(session, roles, turns, begins=300):
    """Roles that speak in turn about a growing transcript, laid out as the session says."""
    history = [{"role": "user", "content": "Let us begin. " * begins}]
    for number in range(turns):
        role = list(roles)[number % len(roles)]
        tail = {"role": "user", "content": session.adapter.tail_for(role, roles[role])}
        head = [{"role": "system", "content": session.prefix.text}] if session.prefix.text else []
        body = {"model": "gpt-5.2", "messages": [*head, *history, tail]}
        session.adapter.begin(
            Request(body, "openai-chat", agent=role, boundary=lambda prompt: len(prompt.sections) - 1)
        ).finish(None)
        history.append({"role": "user", "content": f"{role} said something. " * 20})
    return [note for note in session.report().notes if "tail='cards'" in note]


def test_the_report_says_when_cards_would_cost_less_and_is_right():
    """Long role texts, paid in full by every call of their role; as cards they are read by all."""
    roles = {name: f"You are {name}. Rules of the {name}: be exact, be brief. " * 60 for name in ("critic", "writer")}
    plain, cards = (
        Session(caching=Caching(provider="exact")),
        Session(SharedPrefix(roles=roles), caching=Caching(provider="exact", tail="cards")),
    )
    (note,) = talk(plain, roles, 8)
    assert "2 roles" in note
    assert "8 requests" in note
    assert not talk(cards, roles, 8)
    fresh, again = (sum(c.input_tokens - 0.9 * c.verdict.expected_tokens for c in one.calls) for one in (plain, cards))
    assert again < fresh


def test_nothing_is_said_of_cards_that_save_little_beside_all_that_was_paid():
    """Short role texts behind a long transcript: nobody changes a program for one percent."""
    roles = {name: f"You are {name}. Be exact." for name in ("critic", "writer")}
    assert talk(Session(caching=Caching(provider="exact")), roles, 8, begins=30)
    assert not talk(Session(caching=Caching(provider="exact")), roles, 8, begins=3_000)


def test_nothing_is_said_of_cards_where_requests_are_too_short_to_be_cached():
    """They would only be longer."""
    roles = {name: f"You are {name}. Be exact. " * 12 for name in ("critic", "writer")}
    assert talk(Session(caching=Caching(provider="exact")), roles, 4, begins=0)
    assert not talk(Session(caching=Caching(provider="openai")), roles, 4, begins=0)


def test_nothing_is_said_of_cards_where_many_roles_speak_once():
    """Each text would stand in front of every request, and is sent only once as it is."""
    roles = {f"expert {number}": f"You know subject {number}. " * 60 for number in range(12)}
    assert not talk(Session(caching=Caching(provider="exact")), roles, 12)


def test_a_role_text_that_short_conversations_read_in_blocks_is_no_reason_for_cards():
    """It stands in front of what is said; the few tokens behind the last whole block are not all of it."""
    handbook = "Every claim names its source and the page on which it stands. " * 90
    session = Session(SharedPrefix(system=handbook))
    for number in range(12):
        for name in ("critic", "writer"):
            own = f"You are the {name}. " + "Rules of it: be exact, be brief. " * 100
            messages = [{"role": "system", "content": own + handbook}, {"role": "user", "content": f"Step {number}?"}]
            body, role = {"model": "gpt-4.1", "messages": messages}, Role(name, conversation=f"talk {number}")
            fork_body(session.adapter, body, "openai-chat", role).begin().finish(None)
    assert session.calls[-1].verdict.expected_tokens > 0.9 * session.calls[-1].input_tokens
    assert not [note for note in session.report().notes if "tail='cards'" in note]


def test_a_role_text_that_a_loop_reads_again_is_no_reason_for_cards():
    """What stands still behind the shared part is read from the cache already."""
    session, text = Session(caching=Caching(provider="exact")), "You work in steps. " * 80
    for role in ("one", "two"):
        tail = {"role": "user", "content": session.adapter.tail_for(role, text)}
        messages = [{"role": "user", "content": "Begin. " * 300}, tail]
        for number in range(20):
            body = {"model": "m", "messages": list(messages)}
            session.adapter.begin(Request(body, "openai-chat", agent=role, boundary=1)).finish(None)
            messages.append({"role": "assistant", "content": f"Step {number}."})
    assert not [note for note in session.report().notes if "tail='cards'" in note]


def test_what_volatile_gives_is_texts_by_name_or_nothing():
    """The application's own mistake is told to it by name: which words were meant nobody can know."""
    assert texts_said(None) == {}
    assert texts_said(lambda: None) == {}
    assert texts_said(lambda state: {"who": state}, "Ann") == {"who": "Ann"}
    with pytest.raises(SetupError, match=r"volatile gives texts by name, .* or None, and gave list"):
        texts_said(lambda: [("time", "12:01")])
