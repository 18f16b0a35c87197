"""What a session says of a request does not depend on what it remembers of earlier ones."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import asdict

import pytest

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.adapter import Request
from cacheprefix.bodies import Role, fork_body
from cacheprefix.layout import team as team_module
from cacheprefix.prompt import ESTIMATE
from cacheprefix.wire import Memo

RULES = "Everyone keeps to the rules of the house. " * 120
MODELS = [("gpt-5", "openai-chat"), ("gpt-5.6", "openai-chat"), ("claude-sonnet-4-6", "anthropic")]


def _talk(seed, model, api, memo):
    """One random run of several agents: bodies sent, expectations, verdicts, and the report."""
    chance, now, said = random.Random(seed), [0.0], []
    session = Session(SharedPrefix(system=RULES), caching=Caching(counter=ESTIMATE, clock=lambda: now[0]), gate=None)
    session.adapter.shared.memo = memo
    history = [{"role": "user", "content": f"{n} " + "word " * 40} for n in range(8)]
    for turn in range(30):
        now[0] += chance.choice([1, 2, 5, 5, 5, 200, 400, 4_000])
        kind = chance.random()
        history += [
            {"role": chance.choice(["user", "assistant"]), "content": f"{turn}.{n} " + "new " * 50} for n in range(2)
        ]
        if kind < 0.1:
            history[chance.randrange(len(history))]["content"] += " edited"
        elif kind < 0.15:
            del history[: chance.randrange(4)]
        elif kind < 0.2:
            history = copy.deepcopy(history)
        role = chance.choice("abc")
        messages = [*history, {"role": "user", "content": f'You now speak as "{role}".'}]
        system = {"system": RULES, "max_tokens": 9} if api == "anthropic" else {}
        body = {
            "model": model,
            **system,
            "messages": messages if system else [{"role": "system", "content": RULES}, *messages],
        }
        turned = session.adapter.begin(
            Request(body, api, agent=role, conversation="one", boundary=len(body["messages"]) - 1)
        )
        said += [json.dumps(turned.body), turned.seen.prompt.tokens, asdict(turned.seen.observation.expectation)]
        if kind > 0.95:
            turned.fail()
            continue
        turned.first_token()
        read = turned.seen.observation.expectation.tokens // chance.choice([1, 1, 2])
        verdict = turned.finish({"prompt_tokens": 9_000, "prompt_tokens_details": {"cached_tokens": read}})
        said.append(asdict(verdict))
    return said, session.report().as_dict(), session.failures


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("model", "api"), MODELS)
def test_verdicts_causes_and_costs_are_those_of_a_session_that_reads_everything_anew(seed, model, api):
    """Growing, edited in place, cut and copied histories of three roles, with failures and expired entries."""
    assert _talk(seed, model, api, Memo()) == _talk(seed, model, api, Memo(max_bytes=0))


def test_what_is_known_of_roles_named_after_users_is_bounded(monkeypatch):
    """Roles and schemas of each user's own: no request looks through all of them, no conversation records all of them.

    One that comes back after it was let go is laid out as it was, and reads what it wrote.
    """
    monkeypatch.setattr(team_module, "_ROLES", 8)
    monkeypatch.setattr(team_module, "_LATELY", 4)
    monkeypatch.setattr(team_module, "_SCHEMAS", 2)
    session = Session(SharedPrefix(system=RULES), gate=None, caching=Caching(counter=ESTIMATE))

    def asked(user, talk):
        told = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"title": f"of {user}"}}}
        said = [{"role": "system", "content": f"{RULES}\n\nYou help {user}."}, {"role": "user", "content": "Go on."}]
        sent = []
        for shape in ({}, {"response_format": told}):
            body = {"model": "gpt-5.1", "messages": said, **shape}
            fork = fork_body(session.adapter, body, "openai-chat", Role(f"helper {user}", conversation=talk))
            turn = fork.begin(fork.queue())
            turn.finish({"prompt_tokens": 2_000, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 0}})
            sent.append(turn.body)
        return sent

    first = asked(0, "talk 0")
    for user in range(1, 40):
        asked(user, f"talk {user}")
    team = session.adapter.team
    assert (len(team.roles), len(team._known), len(team._declared)) == (8, 8, 0)
    for user in range(9):
        assert team.others_with(session.conversation(), f"helper {user}", "alike") == min(user, 3)
    for user in range(9):
        team.others_with(session.conversation(), "helper 0", f"of {user}")
    assert team.others_with(session.conversation(), "helper 8", "of 0") == 0
    assert team.others_with(session.conversation(), "helper 8", "of 8") == 1
    again = asked(0, "talk 0")
    assert [one["messages"] for one in again] == [one["messages"] for one in first]
    assert session.failures == {}
