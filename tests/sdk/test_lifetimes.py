"""Lifetimes and routing keys on the wire of the SDKs, with a clock that the test sets."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
from openai.resources.chat.completions import Completions
from sdk_driver import MODELS, RULES, creator, make_client

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import SimulatedProvider
from cacheprefix_sdk import role, wrap

HANDBOOK = "The handbook says that every statement needs a source. " * 200


def run(api, pause, *, rules=None, model=None, turns=6, each=None, **caching):
    """The bodies of a conversation's turns with a pause between them, and what they cost by the provider's counts."""
    now = [1_000_000.0]
    with (
        SimulatedProvider(rules or RULES[api], clock=lambda: now[0]) as provider,
        make_client(api, provider) as client,
    ):
        given = Caching(provider=rules or RULES[api], counter=ESTIMATE, clock=lambda: now[0], **caching)
        session = Session(SharedPrefix(system=HANDBOOK), caching=given)
        asking, said = wrap(client, session), []
        for turn in range(turns):
            said = [*said, {"role": "user", "content": f"Question {turn}."}]
            for one in ("critic", "writer"):
                asked = {"model": model or MODELS[api], **(each or {})}
                if api == "anthropic":
                    asked |= {"max_tokens": 20, "system": HANDBOOK, "messages": said}
                elif api == "openai-responses":
                    asked |= {"instructions": HANDBOOK, "input": said}
                else:
                    asked["messages"] = [{"role": "system", "content": HANDBOOK}, *said]
                with role(one, conversation=f"c{turn}" if each == {} else "c"):
                    creator(asking, api)(**asked)
                now[0] += 2
            said = [*said, {"role": "assistant", "content": "An answer. " * 20}]
            now[0] += pause
        bodies = [record.json for record in provider.requests]
        return bodies, session.report().total.cost_units, session.report()


@pytest.mark.slow
@pytest.mark.parametrize(("minutes", "hour"), [(4, False), (10, True), (20, True), (70, False)])
def test_auto_buys_an_hour_where_a_run_pauses_so_long(minutes, hour):
    """And then costs less than the default by the provider's counts, never more than a few per cent else."""
    plain, without, _ = run("anthropic", minutes * 60)
    chosen, cost, _ = run("anthropic", minutes * 60, lifetime="auto")
    assert '"1h"' not in json.dumps(plain)
    assert ('"1h"' in json.dumps(chosen)) == hour
    assert cost < without * (0.75 if hour else 1.001)


def test_a_lifetime_that_is_named_stands_in_all_marks():
    """From the first request on."""
    bodies, _, _ = run("anthropic", 60, lifetime="1h", turns=2)
    for body in bodies:
        marks = [one["cache_control"] for one in body["system"] if "cache_control" in one]
        assert marks == [{"type": "ephemeral", "ttl": "1h"}] * len(marks) != []


def test_openai_is_told_how_long_it_is_to_keep():
    """Its own field for older models; one lifetime for a request's marks from 5.6 on, in the Responses API."""
    bodies, _, _ = run("openai-chat", 1, rules="openai", model="gpt-4.1", lifetime="24h", turns=1)
    assert [body["prompt_cache_retention"] for body in bodies] == ["24h", "24h"]
    bodies, _, _ = run("openai-responses", 1, lifetime="12h", turns=1)
    assert [body["prompt_cache_options"]["ttl"] for body in bodies] == ["12h", "12h"]
    bodies, _, _ = run("openai-chat", 1, rules="openai", model="gpt-4.1", turns=1)
    assert not any("prompt_cache_retention" in body for body in bodies)


@pytest.mark.skipif(
    "prompt_cache_retention" not in inspect.signature(Completions.create).parameters,
    reason="this release takes no retention",
)
def test_what_the_application_says_of_it_stays():
    """Its own retention is not ours to change."""
    own = {"prompt_cache_retention": "in_memory"}
    bodies, _, _ = run("openai-chat", 1, rules="openai", model="gpt-4.1", lifetime="24h", turns=1, each=own)
    assert [body["prompt_cache_retention"] for body in bodies] == ["in_memory"] * 2


def test_a_lifetime_that_the_provider_has_not_is_told():
    """And its default counts."""
    bodies, _, report = run("openai-chat", 1, lifetime="1h", turns=1)
    assert "1h" not in json.dumps(bodies)
    assert any("lifetime '1h' is none that openai-5.6 has here" in note for note in report.notes)


def test_conversations_are_spread_over_the_keys_that_are_asked_for():
    """One key for each conversation, in both roles; with one key all have the prefix's own."""
    bodies, _, _ = run("openai-chat", 1, routing_keys=3, turns=12, each={})
    keys = [body["prompt_cache_key"] for body in bodies]
    assert keys[::2] == keys[1::2]
    assert 2 <= len(set(keys)) <= 3
    bodies, _, _ = run("openai-chat", 1, routing_keys=1, turns=4, each={})
    assert len({body["prompt_cache_key"] for body in bodies}) == 1


@pytest.mark.slow
def test_a_conversation_has_one_key_in_every_process():
    """Three processes without a store between them ask in the same conversations, in orders of their own."""
    talks = [f"talk-{number}" for number in range(8)]
    orders = talks, talks[::-1], talks[4:] + talks[:4]
    with SimulatedProvider("openai-5.6") as provider:
        asking = [sys.executable, Path(__file__).with_name("key_worker.py"), provider.openai_base_url, "4"]
        running = [subprocess.Popen([*asking, *order]) for order in orders]
        assert [one.wait(120) for one in running] == [0] * len(orders)
        keys: dict[str, set[str]] = {}
        for record in provider.requests:
            talk = next(one for one in talks if f"Talk {one}." in record.body.decode())
            keys.setdefault(talk, set()).add(record.json["prompt_cache_key"])
    assert len(provider.requests) == 2 * len(talks) * len(orders)
    assert [len(found) for found in keys.values()] == [1] * len(talks)
    assert 2 <= len(set.union(*keys.values())) <= 4


@pytest.mark.slow
def test_more_traffic_than_one_key_serves_gets_more_keys_and_says_so():
    """Forty requests a minute for three minutes; none in the first one, whose rate nobody knows yet."""
    bodies, _, report = run("openai-chat", -1.0, turns=60, each={})
    keys = [body["prompt_cache_key"] for body in bodies]
    assert len(set(keys[:30])) == 1
    assert len(set(keys)) > 1
    assert any("one routing key serves" in note for note in report.notes)
