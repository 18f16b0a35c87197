"""The crews that CrewAI's documentation builds, in their shapes and with words of our own: the same outputs."""

from __future__ import annotations

import pytest
from crew_wire import outputs
from documented_crews import CREWS, go

from benchmarks.crewai_workloads import CrewModel
from cacheprefix import Session
from cacheprefix_crewai import install


@pytest.mark.slow
@pytest.mark.parametrize("build", CREWS, ids=lambda build: build.__name__)
def test_a_documented_crew_finishes_with_the_same_outputs(servers, new_llm, tmp_path, build, monkeypatch) -> None:
    """Installed and not: every task's output, in as many requests, and nothing of ours failed."""
    # CrewAI takes the leading slash of an output file away, so that an absolute path is none.
    monkeypatch.chdir(tmp_path)
    found = []
    calls = []
    for session in (None, Session()):
        provider = servers("openai", CrewModel())
        made, inputs = build(new_llm(provider))
        if session is not None:
            install(made, session)
        found.append([outputs(one) for one in go(made, inputs)])
        calls.append(len(provider.requests))
    assert found[1] == found[0]
    assert all(text for texts in found[0] for text in texts[:1])
    assert calls[1] == calls[0] == len(session.calls)
    assert session.failures == {}
