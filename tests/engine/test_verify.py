"""``cacheprefix verify`` against llama.cpp itself: its row of rules holds, and a bent one is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import local_engine
from benchmarks.local_engine import TINY_MODEL, LocalEngine, Size, missing, write_model
from cacheprefix.profiles import default_registry
from cacheprefix.verify import HttpProvider, Lab, Limit, run

SLOW = Size(width=128, layers=2, inner=256)
"""A model whose answers take long enough for two to overlap."""
ROW = default_registry().get("llama.cpp")


def verified(engine, row):
    """What the protocol finds out on a running engine: outcomes by rule."""
    provider = HttpProvider(engine.openai_base_url, "", "openai-chat", row)
    lab = Lab(provider, row, TINY_MODEL, "openai-chat", Limit(None), lambda _: None)
    return {one.rule: one.outcome for one in run(lab)}


def test_llama_cpp_as_it_is_started_without_options_follows_its_row(tmp_path):
    """Four slots: no rule differs."""
    if missing():
        pytest.skip(missing())
    write_model(tmp_path / "tiny.gguf", SLOW)
    with LocalEngine(tmp_path / "tiny.gguf", slots=4) as running:
        found = verified(running, ROW)
    assert set(found.values()) <= {"holds", "unclear"}
    # On a busy machine two answers may fail to overlap; everything else is seen.
    assert {rule for rule, outcome in found.items() if outcome == "unclear"} <= {"readable", "cold_parallel_shares"}
    assert len(found) >= 12


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
