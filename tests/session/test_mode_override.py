"""``CACHEPREFIX_MODE``: what it takes back of a session, and what it leaves."""

from __future__ import annotations

import pytest

from cacheprefix import Session, cli
from cacheprefix.errors import ConfigError
from cacheprefix.mode import MODES

MODE = "CACHEPREFIX_MODE"


@pytest.mark.parametrize("asked", ["fork", "strict"])
@pytest.mark.parametrize("said", ["observe", "off", " OFF "])
def test_the_variable_takes_back_what_a_program_asks_for(monkeypatch, asked, said):
    """Of sessions that are made from then on, with and without a configuration, children included; it is said."""
    before = Session(mode=asked)
    monkeypatch.setenv(MODE, said)
    word = said.strip().lower()
    made = Session(mode=asked)
    assert (before.mode, made.mode, made.child("team").mode, Session.from_config().mode) == (asked, *[word] * 3)
    assert any(f"{MODE}={word}" in note and asked in note for note in made.report().notes)


def test_the_variable_turns_nothing_on(monkeypatch):
    """A program that has it off, or only observes, stays so."""
    for said in ("fork", "strict", "observe", ""):
        monkeypatch.setenv(MODE, said)
        assert Session(mode="off").mode == "off"
        assert Session(mode="observe").mode == "observe"


def test_another_word_is_a_mistake_where_the_session_is_made(monkeypatch):
    """With the variable and the words that there are."""
    monkeypatch.setenv(MODE, "of")
    with pytest.raises(ConfigError, match=MODE) as told:
        Session()
    assert all(repr(mode) in str(told.value) for mode in MODES)


def test_an_empty_variable_says_nothing(monkeypatch):
    """As containers set variables that nobody gave a value."""
    monkeypatch.setenv(MODE, "")
    assert Session(mode="strict").mode == "strict"
    assert Session.from_config().mode == "fork"


def test_doctor_says_that_every_session_is_concerned(monkeypatch, capsys):
    """In words beside the configuration."""
    monkeypatch.setenv(MODE, "off")
    cli.main(["doctor"])
    assert "CACHEPREFIX_MODE=off is in force for every session" in capsys.readouterr().out
