"""``cacheprefix serve`` as a person runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

COMMAND = [sys.executable, "-m", "cacheprefix", "serve"]


@pytest.fixture
def environment() -> dict[str, str]:
    """The package of this checkout, whatever is installed."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUNBUFFERED": "1"}


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_address_serves_records_and_ends_cleanly(environment, tmp_path, ending):
    """Ctrl-C ends it without a traceback and with exit code 0."""
    log = tmp_path / "log.jsonl"
    command = [*COMMAND, "--rules", "anthropic", "--port", "0", "--record", str(log), "--json"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        address = json.loads(running.stdout.readline())
        body = {"model": "claude-sonnet-4-6", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
        answer = httpx.post(f"{address['anthropic_base_url']}/v1/messages", json=body)
        running.send_signal(ending)
        _, errors = running.communicate(timeout=30)
    assert address["rules"] == "anthropic"
    assert answer.status_code == 200
    assert json.loads(log.read_text())["request"] == body
    assert running.returncode == 0
    assert errors == b""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "said"),
    [(["--rules", "nobody"], "no profile is called"), (["--latency", "slow"], "cannot read 'slow'")],
)
def test_a_wrong_option_is_told_in_a_line(environment, wrong, said):
    """Exit code 2 and no traceback."""
    ended = subprocess.run([*COMMAND, *wrong], env=environment, capture_output=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert said in ended.stderr.decode()
    assert "Traceback" not in ended.stderr.decode()


@pytest.mark.slow
@pytest.mark.parametrize(("lax", "status"), [([], 400), (["--lax"], 200)])
def test_lax_takes_what_the_real_provider_would_refuse(environment, lax, status):
    """A tool's result that answers no call: 400, and an answer where that was asked for."""
    body = {"model": "gpt-5.6", "messages": [{"role": "tool", "tool_call_id": "t1", "content": "lost"}]}
    with subprocess.Popen([*COMMAND, "--json", *lax], env=environment, stdout=subprocess.PIPE) as running:
        address = json.loads(running.stdout.readline())
        answer = httpx.post(f"{address['openai_base_url']}/chat/completions", json=body)
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
    assert answer.status_code == status, answer.text
