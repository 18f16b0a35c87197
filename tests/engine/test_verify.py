"""``cacheprefix verify`` against llama.cpp and vLLM themselves: their rows of rules hold, and a bent one is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import local_engine, local_vllm
from benchmarks.local_engine import TINY_MODEL, LocalEngine, Size, missing, write_model
from cacheprefix.profiles import default_registry
from cacheprefix.verify import HttpProvider, Lab, Limit, run

SLOW = Size(width=128, layers=2, inner=256)
"""A model whose answers take long enough for two to overlap."""
ROW = default_registry().get("llama.cpp")


@pytest.fixture(scope="module")
def four_slots(tmp_path_factory):
    """llama.cpp as it is started without options."""
    if missing():
        pytest.skip(missing())
    model = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(model, SLOW)
    with LocalEngine(model, slots=4) as running:
        yield running


def verified(engine, row):
    """What the protocol finds out on a running engine: outcomes by rule."""
    provider = HttpProvider(f"{engine.url}/v1", "", "openai-chat", row)
    lab = Lab(provider, row, TINY_MODEL, "openai-chat", Limit(None), lambda _: None)
    return {one.rule: one.outcome for one in run(lab)}


@pytest.mark.slow
def test_llama_cpp_as_it_is_started_without_options_follows_its_row(four_slots):
    """Four slots: no rule differs."""
    found = verified(four_slots, ROW)
    assert set(found.values()) <= {"holds", "unclear"}
    # On a busy machine two answers may fail to overlap; everything else is seen.
    assert {rule for rule, outcome in found.items() if outcome == "unclear"} <= {"readable", "cold_parallel_shares"}
    assert len(found) >= 12


BENT = {
    "control": replace(ROW, control="none"),
    "min_tokens": replace(ROW, min_tokens=512),
    "block_tokens": replace(ROW, block_tokens=64),
    "match": replace(ROW, match="unit"),
    "cold_parallel_shares": replace(ROW, cold_parallel_shares=True),
    "settings.tool_choice": replace(ROW, settings={**ROW.settings, "tool_choice": "lane"}),
    "settings.seed": replace(ROW, settings={**ROW.settings, "seed": "system"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", BENT)
def test_a_rule_that_llama_cpp_does_not_follow_is_found(four_slots, rule):
    """Each in turn, by its name."""
    assert verified(four_slots, BENT[rule])[rule] == "differs"


@pytest.mark.slow
def test_a_bent_row_is_found_and_what_one_slot_cannot_show_is_left_open(tmp_path):
    """Blocks of 64 tokens are told from none. Where requests queue, nothing is learned about two at once."""
    if missing():
        pytest.skip(missing())
    write_model(tmp_path / "tiny.gguf", SLOW)
    with LocalEngine(tmp_path / "tiny.gguf") as running:
        found = verified(running, replace(ROW, block_tokens=64))
    assert found["block_tokens"] == "differs"
    assert {rule for rule, outcome in found.items() if outcome == "unclear"} == {"readable", "cold_parallel_shares"}


def test_a_template_that_shows_no_tools_is_no_broken_rule(tmp_path, monkeypatch):
    """SmolLM2's own template leaves tools out: their order says nothing about the cache."""
    if missing():
        pytest.skip(missing())
    template = local_engine.TINY_TEMPLATE
    start = template.index("{%- for m in messages")
    monkeypatch.setattr(local_engine, "TINY_TEMPLATE", template[start:])
    write_model(tmp_path / "tiny.gguf")
    with LocalEngine(tmp_path / "tiny.gguf", slots=4) as running:
        found = verified(running, ROW)
    assert found["settings and order"] == "unclear"
    assert "differs" not in found.values()


VLLM = local_vllm.rules().get("vllm")
BENT_VLLM = {
    "control": replace(VLLM, control="none"),
    "min_tokens": replace(VLLM, min_tokens=512),
    "block_tokens": replace(VLLM, block_tokens=64),
    "match": replace(VLLM, match="unit"),
    "settings.tool_choice": replace(VLLM, settings={**VLLM.settings, "tool_choice": "lane"}),
}


def test_vllm_follows_its_row_and_not_a_bent_one(tmp_path):
    """No rule differs, and each that is bent in turn is found by its name."""
    if local_vllm.missing():
        pytest.skip(local_vllm.missing())
    local_vllm.write_model(tmp_path, SLOW)
    with local_vllm.LocalVllm(tmp_path) as running:
        found = verified(running, VLLM)
        bent = {rule: verified(running, row)[rule] for rule, row in BENT_VLLM.items()}
    assert {rule for rule, outcome in found.items() if outcome != "holds"} <= {"readable", "cold_parallel_shares"}
    assert "differs" not in found.values()
    assert len(found) >= 14
    assert bent == dict.fromkeys(BENT_VLLM, "differs")
