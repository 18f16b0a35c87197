"""``cacheprefix bench``: one conversation in two layouts, simulated and through providers' APIs."""

from __future__ import annotations

import http.server
import json
import threading

import pytest

from cacheprefix import cli
from cacheprefix.cli.bench_live import SERVICES
from cacheprefix.server import SimulatedProvider

KEYS = {
    "openai": ("OPENAI_API_KEY", "OPENAI_BASE_URL"),
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
    "gemini": ("GEMINI_API_KEY", "GEMINI_BASE_URL"),
}


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch):
    """Keys and addresses of whoever runs the tests stay out of them."""
    for name in ("OPENAI", "ANTHROPIC", "GEMINI", "GOOGLE"):
        monkeypatch.delenv(f"{name}_API_KEY", raising=False)
        monkeypatch.delenv(f"{name}_BASE_URL", raising=False)
    monkeypatch.delenv("OLLAMA_HOST", raising=False)


def run(capsys, *arguments):
    """The exit code and the result as data."""
    code = cli.main(["bench", "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_both_layouts_and_both_matchings_have_a_row_a_turn(capsys):
    """And the cached tokens of the rows add up to those of the totals."""
    code, found = run(capsys, "--compare", "--turns", "7")
    assert code == 0
    seen = {(row["matching"], row["layout"], row["turn"]) for row in found["rows"]}
    assert seen == {(m, side, t) for m in ("token", "block") for side in ("naive", "ours") for t in range(1, 8)}
    for total in found["totals"]:
        mine = [row for row in found["rows"] if all(row[key] == total[key] for key in ("matching", "layout"))]
        assert sum(row["cached_tokens"] for row in mine) == total["cached_tokens"]


def test_ours_costs_less_under_both_matchings(capsys):
    """The volatile text changes every three turns, and only the naive layout pays for the history again."""
    _, found = run(capsys, "--compare")
    cost = {(total["matching"], total["layout"]): total["cost_units"] for total in found["totals"]}
    for matching in ("token", "block"):
        assert cost[matching, "ours"] < 0.75 * cost[matching, "naive"]
    changed = [row["turn"] for row in found["rows"] if row["volatile_changed"] and row["layout"] == "ours"]
    assert changed == [4, 7, 10, 13] * 2
    for row in found["rows"]:
        if row["matching"] == "token" and row["turn"] > 1:
            low = 0.86 if row["layout"] == "ours" else 0.3 if row["volatile_changed"] else 0.85
            assert row["cached_share"] >= low, row


def test_a_long_conversation_stays_within_its_limit(capsys):
    """Past the limit the naive layout drops and ours compacts; ours still costs less."""
    _, found = run(capsys, "--compare", "--turns", "40")
    for one in found["pays_from"]:
        both = {name: [r for r in found["rows"] if (r["matching"], r["layout"]) == (one["matching"], name)]
                for name in ("naive", "ours")}  # fmt: skip
        ahead = [sum(r["cost_units"] for r in both["ours"][:n]) <= sum(r["cost_units"] for r in both["naive"][:n])
                 for n in range(1, 41)]  # fmt: skip
        assert one["turn"] == 1 + max((n for n, pays in enumerate(ahead, 1) if not pays), default=0) > 1
    assert max(row["input_tokens"] for row in found["rows"]) < 4_000
    cost = {(total["matching"], total["layout"]): total["cost_units"] for total in found["totals"]}
    assert cost["token", "ours"] < cost["token", "naive"]
    assert cost["block", "ours"] < cost["block", "naive"]


def test_markdown_goes_to_a_file_and_says_what_it_does_not_show(tmp_path, capsys):
    """With the date, the version and a table for each matching."""
    target = tmp_path / "bench.md"
    assert cli.main(["bench", "--compare", "--turns", "4", "--output", str(target)]) == 0
    assert "written to" in capsys.readouterr().out
    text = target.read_text("utf-8")
    assert text.count("| turn |") == 2
    assert "the answers are not judged" in text
    assert "\n| 4 * |" in text


def test_a_file_that_cannot_be_written_is_named(tmp_path, capsys):
    """In a line, without a traceback."""
    assert cli.main(["bench", "--turns", "1", "--output", str(tmp_path / "no" / "bench.md")]) == 2
    assert "--output" in capsys.readouterr().err


@pytest.mark.parametrize("provider", KEYS)
def test_a_live_run_needs_a_key_and_says_so(provider, capsys):
    """It names the variable."""
    assert cli.main(["bench", "--provider", provider]) == 2
    assert KEYS[provider][0] in capsys.readouterr().err


@pytest.mark.parametrize("provider", KEYS)
def test_live_runs_speak_the_providers_api(provider, monkeypatch, capsys):
    """Both layouts over HTTP, with the usage as the provider reports it, and caches of their own."""
    key, base = KEYS[provider]
    with SimulatedProvider("auto") as simulated:
        monkeypatch.setenv(key, "any")
        monkeypatch.setenv(base, simulated.openai_base_url if provider == "openai" else simulated.url)
        code, found = run(capsys, "--provider", provider, "--compare", "--turns", "4")
        requests = list(simulated.requests)
    assert code == 0
    assert [record.status for record in requests] == [200] * 8
    assert [row["cached_tokens"] for row in found["rows"]] == [record.outcome.read_tokens for record in requests]
    assert [row["cached_tokens"] for row in found["rows"] if row["turn"] == 1] == [0, 0]
    assert found["rows"][-1]["cached_tokens"] > 1_000
    assert found["model"] == SERVICES[provider].model
    assert found["totals"][0]["usd"] > 0


def test_a_provider_that_refuses_is_quoted(monkeypatch, capsys):
    """What it answered, and exit code 2."""
    with SimulatedProvider("openai") as simulated:
        monkeypatch.setenv("OPENAI_API_KEY", "any")
        monkeypatch.setenv("OPENAI_BASE_URL", f"{simulated.url}/nowhere")
        assert cli.main(["bench", "--provider", "openai", "--turns", "1"]) == 2
    assert "openai answered 404" in capsys.readouterr().err


def test_ollama_needs_its_servers_log_and_says_so(capsys):
    """Its API reports no cached tokens."""
    assert cli.main(["bench", "--provider", "ollama"]) == 2
    assert "--ollama-log" in capsys.readouterr().err


class _Ollama(http.server.BaseHTTPRequestHandler):
    """Answers a chat and writes the line llama.cpp logs: it computed all but the system text's tokens."""

    log = None

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        with self.log.open("a") as stream:
            stream.write("slot print_timing: prompt eval time =      58.82 ms /    40 tokens (   1.47 ms per token)\n")
        answer = {"message": {"content": "yes"}, "prompt_eval_count": 1240, "eval_count": 3}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_):
        pass


def test_ollamas_cached_tokens_come_from_its_log(tmp_path, monkeypatch, capsys):
    """The prompt less what the log says was computed for it."""
    _Ollama.log = tmp_path / "server.log"
    _Ollama.log.write_text("prompt eval time = 1 ms / 999999 tokens of an earlier request\n")
    with http.server.HTTPServer(("127.0.0.1", 0), _Ollama) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{server.server_address[1]}")
        log = ["--ollama-log", str(_Ollama.log)]
        code, found = run(capsys, "--provider", "ollama", "--turns", "2", *log)
        server.shutdown()
    assert code == 0
    assert [(row["input_tokens"], row["cached_tokens"]) for row in found["rows"]] == [(1240, 1200), (1240, 1200)]
