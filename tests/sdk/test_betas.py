"""Requests with a beta of Anthropic's and without, in one session: each has a cache of its own at the provider."""

from __future__ import annotations

import pytest
from sdk_driver import MODELS, RULES, make_client

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import SimulatedProvider
from cacheprefix_sdk import role, wrap

HANDBOOK = "The handbook says that every statement needs a source. " * 90
BETA = "context-management-2025-06-27"


@pytest.fixture
def provider():
    """Anthropic's, with an empty cache."""
    with SimulatedProvider("anthropic") as one:
        yield one


def _body(text, system):
    block = {"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}
    messages = [{"role": "user", "content": text}]
    return {"model": MODELS["anthropic"], "max_tokens": 50, "system": [block], "messages": messages}


def _session(mode):
    return Session(SharedPrefix(system=HANDBOOK), mode=mode, caching=Caching(RULES["anthropic"], counter=ESTIMATE))


@pytest.mark.parametrize("way", ["betas", "extra_headers", "default_headers"])
@pytest.mark.parametrize("mode", ["observe", "fork"])
def test_what_one_beta_wrote_is_missed_by_no_other(mode, way, provider):
    """Nothing of it was to be read: the provider is not to blame."""
    session = _session(mode)
    with make_client("anthropic", provider) as client, role("critic"):
        plain, other = wrap(client, session), client
        if way == "default_headers":
            other = client.with_options(default_headers={"Anthropic-Beta": BETA})
        beta = wrap(other, session)
        more = {"betas": {"betas": [BETA]}, "extra_headers": {"extra_headers": {"anthropic-beta": BETA}}}.get(way, {})
        for number in range(2):
            system = HANDBOOK if mode == "observe" else "You criticise."
            plain.messages.create(**_body(f"hello {number}", system))
            beta.beta.messages.create(**_body(f"hello {number}", system), **more)
    verdicts = [call.verdict for call in session.calls]
    assert "provider_miss" not in [one.cause for one in verdicts]
    assert [one.expected_tokens > 0 for one in verdicts] == [False, False, True, True]
    assert [call.usage.cache_read_tokens > 0 for call in session.calls] == [False, False, True, True]


def test_no_beta_is_the_cache_of_all(provider):
    """An empty list of betas is sent as an empty header, which asks for nothing."""
    session = _session("observe")
    with make_client("anthropic", provider) as client:
        wrapped = wrap(client, session)
        wrapped.messages.create(**_body("hello", HANDBOOK))
        wrapped.beta.messages.create(betas=[], **_body("hello again", HANDBOOK))
    assert session.calls[1].verdict.expected_tokens > 0
    assert session.calls[1].usage.cache_read_tokens > 0


def test_other_headers_part_nothing(provider):
    """They change no cache; some of them are another one in each request."""
    session = _session("observe")
    with make_client("anthropic", provider) as client:
        wrapped = wrap(client, session)
        for number in range(2):
            wrapped.messages.create(extra_headers={"x-secret": f"s{number}"}, **_body(f"hello {number}", HANDBOOK))
    assert session.calls[1].verdict.expected_tokens > 0


def test_the_estimate_reads_nothing_across_betas_either(provider):
    """Unmodified, each of the two would have written the system text for itself."""
    session = _session("fork")
    with make_client("anthropic", provider) as client, role("critic"):
        wrapped = wrap(client, session)
        wrapped.messages.create(**_body("hello", "You criticise every statement. " * 300))
        wrapped.beta.messages.create(betas=[BETA], **_body("hello", "You criticise every statement. " * 300))
    first, second = session.calls
    assert second.unmodified_units == pytest.approx(first.unmodified_units)
