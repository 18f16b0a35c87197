"""What CrewAI's tests stand in, which its distribution leaves out: the folder around them sets it up in its repository.

A pytest plugin: recorded answers are found by method and address and nothing goes to the network, every
test has a storage and an event bus of its own, and keys that no provider knows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

KEYS = ("OPENAI", "ANTHROPIC", "GEMINI", "AZURE", "OPENROUTER", "SERPER", "EXA", "BRAVE")
AWS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_DEFAULT_REGION": "us-east-1"}
QUIET = {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "CREWAI_TRACING_ENABLED": "false"}
AZURE = {
    "AZURE_ENDPOINT": "https://fake-azure-endpoint.openai.azure.com",
    "AZURE_API_VERSION": "2024-02-15-preview",
    "OPENAI_API_VERSION": "2024-02-15-preview",
}
OPENAI = {"OPENAI_BASE_URL": "https://api.openai.com/v1", "OPENAI_API_BASE": "https://api.openai.com/v1"}

os.environ.update({f"{name}_API_KEY": "fake-api-key" for name in KEYS} | AWS | QUIET | AZURE | OPENAI)


def _region_apart(one: Any, other: Any) -> None:
    """Bedrock's hosts name their region."""
    assert _host(one) == _host(other)


def _host(request: Any) -> str:
    return re.sub(r"^bedrock-runtime\.[a-z0-9.-]+\.amazonaws\.com$", "bedrock", request.host or "")


def _anywhere(request: Any) -> Any:
    """Recorded addresses stand for those of any account and region."""
    host = request.host or ""
    if host.endswith(".openai.azure.com"):
        request.uri = request.uri.replace(host, "fake-azure-endpoint.openai.azure.com")
    elif _host(request) == "bedrock":
        request.uri = request.uri.replace(host, "bedrock-runtime.vcr.amazonaws.com")
    return request


def pytest_recording_configure(config: pytest.Config, vcr: Any) -> None:
    """Comparisons that tests name."""
    vcr.register_matcher("bedrock_host", _region_apart)


@pytest.fixture(scope="module")
def vcr_cassette_dir(request: pytest.FixtureRequest) -> str:
    """Recorded answers stand in one folder, in folders like the tests'."""
    tests = request.config.rootpath / "tests"
    return str(tests / "cassettes" / request.path.parent.relative_to(tests))


@pytest.fixture(scope="module")
def vcr_config(vcr_cassette_dir: str) -> dict[str, Any]:
    """How a recorded answer is found: not by the body, which is compared where it is sent."""
    return {
        "cassette_library_dir": vcr_cassette_dir,
        "record_mode": "none",
        "before_record_request": _anywhere,
        "filter_query_parameters": ["key"],
        "match_on": ["method", "scheme", "host", "port", "path"],
    }


@pytest.fixture(autouse=True)
def _on_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A storage, and an event bus without the handlers of the test before."""
    from crewai.events.base_events import reset_emission_counter
    from crewai.events.event_bus import crewai_event_bus as bus
    from crewai.events.event_context import EventContextConfig, _event_context_config, _event_id_stack

    monkeypatch.setenv("CREWAI_STORAGE_DIR", str(tmp_path))
    monkeypatch.setenv("CREWAI_TESTING", "true")
    for name, value in (QUIET | OPENAI).items():
        monkeypatch.setenv(name, value)
    reset_emission_counter()
    _event_id_stack.set(())
    _event_context_config.set(EventContextConfig())
    yield
    with bus._rwlock.w_locked():
        bus._sync_handlers.clear()
        bus._async_handlers.clear()
