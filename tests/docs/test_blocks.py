"""The Python of pages that belong to no adapter, run as it stands; programs with a name are run by ``test_pages``."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cacheprefix import Session, SharedPrefix

HANDBOOK = "Every statement needs a source. " * 300


CLIENT = SimpleNamespace(messages=SimpleNamespace(create=lambda **body: None))
REQUEST = {"model": "claude-sonnet-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": HANDBOOK}]}
PAGES = {
    "breaks": {"session": Session(HANDBOOK)},
    "cli": {"HANDBOOK": HANDBOOK},
    "configuration": {"HANDBOOK": HANDBOOK},
    "profiles": {},
    "scale": {"HANDBOOK": HANDBOOK, "TOOLS": (), "request": REQUEST, "client": CLIENT, "input": lambda asked: "Yes."},
    "how-to/lifetimes": {"prefix": SharedPrefix(system=HANDBOOK)},
    "how-to/roll-out": {"prefix": SharedPrefix(system=HANDBOOK)},
}


@pytest.mark.parametrize("name", PAGES)
def test_the_python_of_a_page_runs_as_it_stands(page, name, repository, tmp_path, monkeypatch):
    """And leaves a session, beside the files that it names."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy" / "cacheprefix.toml").write_text('mode = "observe"\n', "utf-8")
    rows = (repository / "docs" / "profiles.md").read_text("utf-8").partition("```toml\n")[2].partition("```")[0]
    (tmp_path / "mine.toml").write_text(rows, "utf-8")
    assert isinstance(page(f"docs/{name}.md", PAGES[name])["session"], Session)
