"""What an exception says may quote a prompt: it stands in no log and in no warning unless the user asks for it."""

from __future__ import annotations

import logging
import warnings

import pytest

from cacheprefix import History, Session, SharedPrefix, ToolResultBudget, hookimpl
from cacheprefix.bodies import Role, fork_body
from cacheprefix.errors import SHOW, BodyError, StoreError, told
from cacheprefix.history.summary import Removed, summarised
from cacheprefix.profiles import normalise_usage
from cacheprefix.prompt import estimate_tokens
from cacheprefix.stores import MemoryStore, ResultStore

SECRET = "the customer's name is Zacharias Quill"
HANDBOOK = "The handbook says that every statement needs a source. " * 200


@pytest.fixture(autouse=True)
def default(monkeypatch):
    """As users have it."""
    monkeypatch.delenv(SHOW)


def spoil(body):
    """A body with something in it that cannot be read, and the secret in what is said about that."""
    return {**body, "messages": [*body["messages"], {"role": SECRET, "content": SECRET}]}


class Fails:
    """A plugin whose error quotes the prompt."""

    @hookimpl
    def cacheprefix_before_call(self, prompt):
        raise ValueError(prompt.sections[-1].text)


def said_by(work, caplog):
    """All that is logged and warned while ``work`` runs."""
    with caplog.at_level(logging.DEBUG), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        work()
    logged = [f"{record.getMessage()} {record.exc_text} {record.exc_info}" for record in caplog.records]
    return "\n".join([*logged, *(str(one.message) for one in warned)])


@pytest.mark.parametrize("fails", ["body", "plugin", "core"])
def test_no_log_and_no_warning_holds_what_an_exception_says(caplog, monkeypatch, fails):
    """Of a body that cannot be read, of a plugin, and of a failure of ours."""
    # A body's history is read where the session shortens results.
    options = {"plugins": [Fails()]} if fails == "plugin" else {"budget": ToolResultBudget(max_tokens=300)}
    session = Session(SharedPrefix(system=HANDBOOK), **options)
    if fails == "core":

        def broken(*_, **__):
            raise ValueError(SECRET)

        monkeypatch.setattr("cacheprefix.layout.team.tail_text", broken)
    turns = [{"role": role, "content": f"{SECRET} {n} " * 40} for n in range(12) for role in ("user", "assistant")]
    body = {"model": "gpt-5.6", "messages": [{"role": "system", "content": HANDBOOK}, *turns]}
    body["messages"].append({"role": "user", "content": SECRET})

    def work():
        with fork_body(
            session.adapter, spoil(body) if fails == "body" else body, "openai-chat", Role("reader")
        ).begin() as turn:
            turn.finish(None)

    said = said_by(work, caplog)
    assert "Error" in said
    assert "Zacharias" not in said


def test_no_reason_shows_a_text_that_stands_where_a_name_should():
    """Reports, event logs and traces hold reasons; of a damaged body they tell two texts apart and no more."""
    session = Session(SharedPrefix(system=HANDBOOK))
    plain = {"messages": [{"role": "system", "content": HANDBOOK}, {"role": "user", "content": "Hello."}]}
    bodies = [
        *({"model": "gpt-5.6", **plain} for _ in range(3)),
        {"model": SECRET, **plain},
        {"model": "gpt-5.6", **plain, "tools": [{"type": SECRET}, {"type": "web_search"}]},
    ]
    forks = []
    for number, body in enumerate(bodies):
        forks.append(fork_body(session.adapter, body, "openai-chat", Role(f"r{number}")))
        forks[-1].begin().finish(None)
    said = " ".join(str(one) for fork in forks for one in fork.plan.reasons)
    assert "other_model <38 characters" in said
    assert ", web_search" in said
    assert "Zacharias" not in said


def test_a_store_that_quotes_what_it_cannot_keep_is_not_quoted(caplog):
    """A store of the user's may say anything of the value that it refuses."""

    class Refuses(MemoryStore):
        def set(self, key, value, ttl=None):
            raise ValueError(f"cannot keep {SECRET}")

    results = ResultStore(Refuses())
    kept = Session(history=History(results=results))

    def work():
        with pytest.raises(ValueError, match="cannot keep"):
            results.put(SECRET)

    said = said_by(work, caplog)
    assert kept.failures["full tool results"] == 1
    assert "the store failed (ValueError at" in said
    assert "Zacharias" not in said


def test_a_failed_summary_of_the_users_own_quotes_nothing(caplog):
    """An extract stands in its place."""

    def summary(removed):
        raise ValueError(SECRET)

    removed = Removed((), (), 100, estimate_tokens)
    said = said_by(lambda: summarised(removed, summary), caplog)
    assert "the summary failed (ValueError at" in said
    assert "Zacharias" not in said


def test_a_usage_that_cannot_be_read_quotes_nothing():
    """A report may be any object, and what it raises any text."""

    class Report:
        @property
        def prompt_tokens(self):
            raise ValueError(SECRET)

    (problem,) = normalise_usage(Report()).problems
    assert "ValueError at" in problem
    assert "Zacharias" not in problem


def test_the_text_is_shown_where_the_user_wants_it(caplog, monkeypatch):
    """By a variable, for the time of a search."""
    monkeypatch.setenv(SHOW, "1")
    session = Session(SharedPrefix(system=HANDBOOK))

    def broken():
        raise ValueError(SECRET)

    assert SECRET in said_by(lambda: session.adapter.attempt("layout", broken, None), caplog)


def test_what_is_told_names_the_kind_and_the_place():
    """Errors of ours that speak of files and numbers alone are told whole."""
    with pytest.raises(ValueError) as raised:
        int("Zacharias")
    assert told(raised.value).startswith("ValueError at test_redacted.py:")
    assert told(BodyError("messages[0].role", SECRET)) == "BodyError"
    assert told(StoreError("cache.db: disk full")) == "StoreError: cache.db: disk full"


@pytest.mark.parametrize(
    ("step", "sent"),
    [
        ("layout", "the application's own layout"),
        ("compaction", "without that decision"),
        ("usage", "goes on without it"),
    ],
)
def test_the_warning_says_what_is_sent(step, sent):
    """Not the same of every step: a request that lacks a decision is still a fork."""
    session = Session(SharedPrefix(system=HANDBOOK))

    def broken():
        raise ValueError(SECRET)

    with pytest.warns(UserWarning, match=f"{step}: cacheprefix failed .*{sent}"):
        session.adapter.attempt(step, broken, None)
