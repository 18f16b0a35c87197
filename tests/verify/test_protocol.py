"""The protocol against simulated providers: none of a row's own, and each bent rule, is told apart."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from cacheprefix.errors import CacheprefixError, SetupError
from cacheprefix.profiles import Ttl, Usage, default_registry
from cacheprefix.server import Echo, Fault, Latency, Reply, SimulatedProvider
from cacheprefix.verify import (
    Answer,
    Evidence,
    Finding,
    HttpProvider,
    Lab,
    Limit,
    Rehearsal,
    read_evidence,
    run,
    save_evidence,
)

ROWS = {
    "anthropic": ("claude-sonnet-4-6", "anthropic"),
    "openai": ("gpt-5.2", "openai-chat"),
    "openai-5.6": ("gpt-5.6", "openai-chat"),
    "openai-5.6-prefix": ("gpt-5.6", "openai-chat"),
    "openai-uncached": ("gpt-4", "openai-chat"),
    "deepseek": ("deepseek-chat", "openai-chat"),
    "xai": ("grok-4.5", "openai-chat"),
    "vllm": ("some", "openai-chat"),
    "llama.cpp": ("some", "openai-chat"),
    "exact": ("exact", "openai-chat"),
}


def rehearsed(name, bend=None, usd=None):
    """The findings on a provider that follows the row but for ``bend``, and the bill."""
    profile = default_registry().get(name)
    model, api = ROWS[name]
    provider = Rehearsal(profile if bend is None else bend(profile), api)
    limit = Limit(usd)
    lab = Lab(provider, profile, model, api, limit, provider.sleep)
    return list(run(lab, slow=True)), limit


@pytest.mark.parametrize("name", ROWS)
def test_a_provider_that_follows_its_row_differs_in_nothing(name):
    """And a few dozen requests are enough."""
    findings, limit = rehearsed(name)
    assert [one for one in findings if one.outcome != "holds"] == []
    assert len(findings) >= (1 if name == "openai-uncached" else 8)
    assert limit.requests <= 60


def _setting(name, where):
    return lambda row: replace(row, settings={**row.settings, name: where})


def _lives(seconds):
    return lambda row: replace(row, ttls=(replace(row.ttls[0], seconds=seconds, max_seconds=None), *row.ttls[1:]))


def _any_key(row):
    return replace(_setting("prompt_cache_key", "none")(row), routing_key=None)


BENT = [
    ("anthropic", "min_tokens", lambda row: replace(row, min_tokens=2048)),
    ("anthropic", "min_tokens", lambda row: replace(row, min_tokens=512)),
    ("anthropic", "max_breakpoints", lambda row: replace(row, max_breakpoints=3)),
    ("anthropic", "max_breakpoints", lambda row: replace(row, max_breakpoints=6)),
    ("anthropic", "lookback", lambda row: replace(row, lookback=10)),
    ("anthropic", "lookback", lambda row: replace(row, lookback=40)),
    ("anthropic", "readable", lambda row: replace(row, readable="end")),
    ("anthropic", "cold_parallel_shares", lambda row: replace(row, readable="start")),
    ("anthropic", "cold_parallel_shares", lambda row: replace(row, cold_parallel_shares=True)),
    ("anthropic", "control", lambda row: replace(row, control="none")),
    ("anthropic", "control", lambda row: replace(row, control="automatic", match="block")),
    ("anthropic", "automatic_breakpoint", lambda row: replace(row, automatic_breakpoint=False)),
    ("anthropic", "settings.stop_sequences", _setting("stop_sequences", "system")),
    ("anthropic", "settings.temperature", _setting("temperature", "messages")),
    ("anthropic", "settings.tool_choice", _setting("tool_choice", "none")),
    ("anthropic", "settings.tool_choice", _setting("tool_choice", "lane")),
    ("anthropic", "ttls", _lives(60.0)),
    ("anthropic", "ttls", _lives(3600.0)),
    ("openai", "min_tokens", lambda row: replace(row, min_tokens=2048)),
    ("openai", "min_tokens", lambda row: replace(row, min_tokens=256)),
    ("openai", "min_tokens", lambda row: replace(row, min_tokens=1_000_000)),
    ("openai", "block_tokens", lambda row: replace(row, block_tokens=64)),
    ("openai", "block_tokens", lambda row: replace(row, block_tokens=256)),
    ("openai", "block_tokens", lambda row: replace(row, block_tokens=1)),
    ("openai", "control", lambda row: replace(row, control="none")),
    ("openai", "match", lambda row: replace(row, match="unit")),
    ("openai", "readable", lambda row: replace(row, readable="end")),
    ("openai", "cold_parallel_shares", lambda row: replace(row, cold_parallel_shares=True)),
    ("openai", "settings.prompt_cache_key", _any_key),
    ("openai", "settings.tool_choice", _setting("tool_choice", "lane")),
    ("openai", "settings.response_format", _setting("response_format", "none")),
    ("openai", "settings.parallel_tool_calls", _setting("parallel_tool_calls", "none")),
    ("openai", "settings.user", _setting("user", "lane")),
    ("openai", "settings.seed", _setting("seed", "lane")),
    ("openai", "ttls", _lives(30.0)),
    ("openai-5.6", "implicit_reads", lambda row: replace(row, implicit_reads="prefix")),
    ("openai-5.6", "control", lambda row: replace(row, implicit_breakpoint=False, control="explicit")),
    ("openai-5.6", "min_tokens", lambda row: replace(row, min_tokens=4096)),
    ("openai-5.6", "ttls", _lives(300.0)),
    ("openai-5.6-prefix", "implicit_reads", lambda row: replace(row, implicit_reads="breakpoint")),
    ("deepseek", "match", lambda row: replace(row, match="block")),
    ("deepseek", "readable", lambda row: replace(row, readable="first_token")),
    ("vllm", "block_tokens", lambda row: replace(row, block_tokens=64)),
    ("exact", "block_tokens", lambda row: replace(row, block_tokens=16)),
    ("openai-uncached", "control", lambda row: replace(row, control="automatic", match="block")),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rule", "bend"), BENT, ids=[f"{name}-{rule}-{at}" for at, (name, rule, _) in enumerate(BENT)]
)
def test_a_bent_rule_is_found(name, rule, bend):
    """By its name, in the row where it is bent."""
    findings, _ = rehearsed(name, bend)
    assert rule in {one.rule for one in findings if one.outcome == "differs"}


def test_nothing_is_sent_that_could_go_over_the_limit():
    """The bill stays below, what was found so far is kept, and the last finding says why it ended."""
    findings, limit = rehearsed("anthropic", usd=0.05)
    assert 0.02 < limit.spent_usd <= 0.05
    assert findings[-1].rule == "limit"
    assert "$0.05" in findings[-1].seen
    assert any(one.outcome == "holds" for one in findings)


def _over_http(name, **options):
    profile = default_registry().get(name)
    model, api = ROWS[name]
    with SimulatedProvider(options.pop("rules", name), **options) as provider:
        url = provider.openai_base_url if api == "openai-chat" else provider.anthropic_base_url
        http = HttpProvider(url, "sk-any", api, profile)
        limit = Limit(None)
        return list(run(Lab(http, profile, model, api, limit, lambda _: None))), http.is_simulated(), limit


@pytest.mark.parametrize("name", ["anthropic", "openai", "xai"])
def test_a_provider_that_counts_what_was_read_otherwise_is_found(name):
    """Its input count leaves out what was read where the row says that it holds it, or the other way round."""
    row = default_registry().get(name)
    model, api = ROWS[name]

    class Otherwise(Rehearsal):
        def ask(self, body):
            answer = super().ask(body)
            read = (answer.usage.cache_read_tokens or 0) * (-1 if row.input_includes_cached else 1)
            return replace(answer, usage=replace(answer.usage, input_tokens=(answer.usage.input_tokens or 0) + read))

    provider = Otherwise(row, api)
    findings = list(run(Lab(provider, row, model, api, Limit(None), provider.sleep)))
    assert "input_includes_cached" in {one.rule for one in findings if one.outcome == "differs"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["anthropic", "openai", "openai-5.6"])
def test_over_http_it_finds_the_same(name):
    """With streams, parallel requests and refusals as a provider sends them; latency makes the streams last."""
    latency = Latency(base=0.02, uncached=0.0, cached=0.0, output=0.004, scale=1.0)
    findings, simulated, _ = _over_http(name, script=Echo(400), latency=latency)
    assert [one for one in findings if one.outcome != "holds"] == []
    assert simulated


@pytest.mark.parametrize("block", [16, 32, 64])
def test_blocks_are_found_whatever_a_line_has_in_tokens(block):
    """Lines of the protocol's own text may come to a multiple of the block, as with a vocabulary of bytes."""
    row = replace(default_registry().get("vllm"), block_tokens=block)
    with SimulatedProvider(row, count=lambda text, _model="": len(text)) as provider:
        lab = Lab(
            HttpProvider(provider.openai_base_url, "", "openai-chat", row),
            row,
            "some",
            "openai-chat",
            Limit(None),
            lambda _: None,
        )
        found = {one.rule: one for one in run(lab)}
    assert found["block_tokens"].outcome == "holds", found["block_tokens"]


def test_a_provider_that_takes_no_tools_is_said_to_refuse_them():
    """And not to show the model none."""

    class Toolless(Rehearsal):
        def ask(self, body):
            return Answer(Usage(), "tools need a parser") if "tools" in body else super().ask(body)

    profile = default_registry().get("vllm")
    provider = Toolless(profile, "openai-chat")
    lab = Lab(provider, profile, "some", "openai-chat", Limit(None), provider.sleep)
    found = {one.rule: one for one in run(lab)}["settings and order"]
    assert (found.outcome, found.seen) == ("unclear", "refused: tools need a parser")


@pytest.mark.parametrize(
    ("first", "second", "beside"),
    [((0, 2), (1, 3), True), ((0, 1), (1, 2), False), ((0, 9), (8.95, 9.9), False), ((0, 0.08), (0.01, 0.09), False)],
)
def test_answers_are_beside_one_another_by_more_than_a_late_thread(first, second, beside):
    """A tenth of the shorter one and a tenth of a second at least: what a busy machine's clocks may be off."""
    one, other = (Answer(Usage(), began_at=began, ended_at=ended) for began, ended in (first, second))
    assert one.beside(other) is beside
    assert other.beside(one) is beside


def test_answers_too_fast_to_overlap_teach_nothing():
    """They are not said to break the rule."""
    findings, _, _ = _over_http("openai")
    assert {one.outcome for one in findings} <= {"holds", "unclear"}
    assert {one.rule for one in findings if one.outcome == "unclear"} <= {"readable", "cold_parallel_shares"}


def test_a_miss_by_chance_is_tried_again():
    """A provider that loses one entry is not said to break its rules."""
    asked = []

    class Forgetful(Rehearsal):
        def ask(self, body):
            answer = super().ask(body)
            asked.append(answer)
            if len(asked) == 4:
                return replace(answer, usage=replace(answer.usage, cache_read_tokens=0))
            return answer

    profile = default_registry().get("openai")
    provider = Forgetful(profile, "openai-chat")
    findings = list(run(Lab(provider, profile, "gpt-5.2", "openai-chat", Limit(None), provider.sleep)))
    assert [one for one in findings if one.outcome != "holds"] == []


def test_a_busy_provider_is_asked_again_and_a_wrong_key_is_said(monkeypatch):
    """429 is no refusal of the rule under test; 401 ends the run with what the provider said."""
    monkeypatch.setattr("time.sleep", lambda _: None)
    left = [Reply(fault=Fault(429, "slow down")), Reply(fault=Fault(401, "who are you"))]
    profile = default_registry().get("openai")
    with SimulatedProvider("openai", lambda request: left.pop(0) if left else Reply("well")) as provider:
        http = HttpProvider(provider.openai_base_url, "k", "openai-chat", profile)
        lab = Lab(http, profile, "gpt-5.2", "openai-chat", Limit(None), lambda _: None)
        with pytest.raises(CacheprefixError, match="401"):
            list(run(lab))
        assert len(provider.requests) == 2


def test_evidence_is_read_back_as_it_was_written(tmp_path, monkeypatch):
    """From the user's folder and from files that somebody sent; what is none of ours is named."""
    monkeypatch.setenv("CACHEPREFIX_EVIDENCE", str(tmp_path / "own"))
    found = Evidence(
        profile="openai",
        provider="openai",
        model="gpt-5.2",
        api="openai-chat",
        date="2026-11-22T00:00:00Z",
        simulated=False,
        requests=40,
        input_tokens=90_000,
        usd=0.1,
        findings=(Finding("min_tokens", "1,024", "read at 1,200", "holds"),),
    )
    later = replace(found, date="2026-11-23T00:00:00Z")
    saved = save_evidence(found)
    assert saved.parent == tmp_path / "own"
    sent = save_evidence(later, tmp_path / "sent.json")
    assert list(read_evidence([sent])) == [found, later]
    (tmp_path / "own" / "broken.json").write_text("{}")
    assert list(read_evidence()) == [found]
    with pytest.raises(SetupError, match="no evidence"):
        list(read_evidence([tmp_path / "own" / "broken.json"]))


def test_lifetimes_are_only_tried_where_the_row_promises_one():
    """A row without a promise, or with an entry for ever, is not waited for."""
    for seconds in (None, math.inf):
        findings, _ = rehearsed("openai", lambda row, seconds=seconds: replace(row, ttls=(Ttl("x", 1.0, seconds),)))
        assert "ttls" in {one.rule for one in findings}
    findings, _ = rehearsed("deepseek")
    assert "ttls" not in {one.rule for one in findings}
