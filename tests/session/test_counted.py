"""A provider that counts otherwise than the client: its minimum is in its own tokens."""

from __future__ import annotations

import pytest

from benchmarks._table import counter
from benchmarks.role_plans import Plan, asked, words
from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.bodies import Role, fork_body
from cacheprefix.profiles import default_registry
from cacheprefix.prompt import ESTIMATE, Counter
from cacheprefix.server import ProviderCache
from cacheprefix.wire import decode

TURNS = tuple((at % 3, 20) for at in range(9))
FORM = {"openai": "openai-chat", "anthropic": "anthropic"}


def bodies(rules, handbook):
    """The requests of three roles in turn: the role, and the body."""
    model = {"openai": "gpt-5.2", "anthropic": "claude-sonnet-4-5"}[rules]
    for one in asked(Plan(handbook, (20,) * 3, TURNS)):
        text = f"{words(handbook, 'book')}\n\nYou are role{one.who}."
        lead = {"system": text, "max_tokens": 64} if rules == "anthropic" else {}
        first = [] if lead else [{"role": "system", "content": text}]
        yield f"role{one.who}", {"model": model, **lead, "messages": [*first, *one.history]}


def session_of(handbook, rules):
    """One that counts by the estimate."""
    session = Session(SharedPrefix(system=words(handbook, "book")), caching=Caching(provider=rules, counter=ESTIMATE))
    for at in range(3):
        session.adapter.join(f"role{at}")
    return session


def usage_of(outcome, rules):
    """As the provider reports it."""
    read, written, total = outcome.read_tokens, outcome.written_tokens, outcome.input_tokens
    if rules == "anthropic":
        plain = total - read - written
        return {"input_tokens": plain, "cache_read_input_tokens": read, "cache_creation_input_tokens": written}
    return {"prompt_tokens": total, "prompt_tokens_details": {"cached_tokens": read}}


def ask(session, sent, usage):
    """One request to OpenAI that is answered with this usage; the body as it went out."""
    turn = fork_body(session.adapter, sent[1], FORM["openai"], Role(sent[0], f"You are {sent[0]}.", "one")).begin()
    turn.finish(usage)
    return turn.body


def answered(session, sent, rules, factor, *, cache=None, start=0, conversation="one"):
    """What became of each request at a provider that counts ``factor`` tokens for one of ours."""
    count, found = counter(factor), []
    cache = ProviderCache(default_registry().get(rules), count=count) if cache is None else cache
    for number, (role, body) in enumerate(sent, start):
        turn = fork_body(session.adapter, body, FORM[rules], Role(role, f"You are {role}.", conversation)).begin()
        serving = cache.begin(decode(turn.body, FORM[rules], count=count), number * 2.0)
        serving.ended(number * 2.0 + 1.0)
        turn.finish(usage_of(serving.outcome, rules))
        found.append(serving.outcome)
    assert session.failures == {}
    return found


@pytest.mark.parametrize("rules", ["openai", "anthropic"])
def test_what_the_provider_counts_as_enough_is_shared_and_read(rules):
    """850 of our tokens are 1,190 of its: from the second request on they are a fork, and marked."""
    session = session_of(850, rules)
    found = answered(session, bodies(rules, 850), rules, 1.4)
    assert [call.layout for call in session.calls] == ["own", *["fork"] * 8]
    assert session.calls[0].reasons[-1].why == "prefix_below_minimum"
    assert all(one.read_tokens > 1_024 for one in found[2:])


@pytest.mark.parametrize("rules", ["openai", "anthropic"])
def test_what_the_provider_counts_as_too_little_says_so_in_its_tokens(rules):
    """1,150 of ours are 805 of its, and its minimum is 1,024."""
    session = session_of(1_150, rules)
    found = answered(session, bodies(rules, 1_150), rules, 0.7)
    assert not any(one.read_tokens or one.written_tokens for one in found)
    assert [call.layout for call in session.calls] == ["fork", *["own"] * 8]
    (why,) = session.calls[1].reasons
    numbers = dict(why.numbers)
    assert (why.why, numbers["minimum"]) == ("prefix_below_minimum", 1_024)
    assert 780 < numbers["shared"] < 850


def test_another_process_goes_by_the_same_counts():
    """They are recorded with the conversation when the first answer has ended."""
    sent = list(bodies("openai", 850))
    first, other = session_of(850, "openai"), session_of(850, "openai")
    answered(first, sent[:1], "openai", 1.4)
    other.conversation("one").restore(first.conversation("one").to_json(), rebase=True)
    for session in (first, other):
        answered(session, sent[1:], "openai", 1.4, start=1)
    assert [call.layout for call in first.calls[1:]] == [call.layout for call in other.calls] == ["fork"] * 8


def test_another_process_goes_by_what_was_known_before_an_answer_was_counted():
    """The process learns from others meanwhile, and a resumed one knows nothing: neither changes the conversation."""
    sent = list(bodies("openai", 850))
    first, other = session_of(850, "openai"), session_of(850, "openai")
    ask(first, sent[0], None)
    saved = first.conversation("one").to_json()
    answered(first, bodies("openai", 850), "openai", 1.4, conversation="two")
    assert first.adapter.shared.services.scale("gpt-5.2") > 1.3
    other.conversation("one").restore(saved, rebase=True)
    one, resumed = (ask(session, sent[1], None) for session in (first, other))
    assert one == resumed
    assert [call.layout for call in (first.calls[-1], other.calls[-1])] == ["own"] * 2


def test_counts_that_are_about_alike_change_nothing():
    """Within three hundredths, as long as little was counted, and where no tokenizer explains what was."""
    session = session_of(850, "openai")
    answered(session, bodies("openai", 850), "openai", 1.02)
    assert session.adapter.shared.services.scale("gpt-5.2") == 1.0
    assert set(session.conversation("one").ledger.section("shares").values()) <= {"", "1.0"}
    odd = session_of(850, "openai")
    answered(odd, bodies("openai", 850), "openai", 0.001)
    assert odd.adapter.shared.services.scale("gpt-5.2") == 1.0
    answered(short := session_of(10, "openai"), list(bodies("openai", 10))[:2], "openai", 1.4)
    assert short.adapter.shared.services.scale("gpt-5.2") == 1.0
    ask(odd, next(bodies("openai", 850)), {"prompt_tokens": 3})
    answered(odd, bodies("openai", 850), "openai", 1.4, conversation="two")
    assert odd.adapter.shared.services.scale("gpt-5.2") > 1.3


def test_a_text_is_counted_once_whoever_asks_of_it():
    """A tokenizer takes 0.1 s a megabyte: ten times that stood between two siblings' requests and their event loop."""
    counted = []

    def count(text, _model):
        counted.append(text)
        return len(text) // 4

    counter = Counter("counted", exact=True, count=count)
    session = Session(SharedPrefix(system=words(2_000, "book")), caching=Caching(counter=counter))
    long = words(3_000, "letter")
    for role in ("writer", "critic", "writer"):
        system = {"role": "system", "content": f"{words(2_000, 'book')}\n\nYou are {role}."}
        body = {"model": "gpt-5.2", "messages": [system, {"role": "user", "content": long}]}
        ask(session, (role, body), {"prompt_tokens": 5_000})
    assert {call.layout for call in session.calls} == {"fork"}
    assert counted.count(long) == 1
