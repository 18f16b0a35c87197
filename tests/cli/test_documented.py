"""The pages about the command line and the configuration name everything that there is."""

from __future__ import annotations

import pytest

from cacheprefix import cli
from cacheprefix.config import FILE
from cacheprefix.config_fields import FIELDS
from cacheprefix.plugins import VARIABLE


@pytest.fixture
def page(repository):
    """``page("cli")`` is the text of that page."""
    return lambda name: (repository / "docs" / f"{name}.md").read_text("utf-8")


def test_every_command_is_documented(page):
    """With what it does; plugins' commands but the demonstration are their own pages' business."""
    documented = {line.split("`")[1].split()[0] for line in page("cli").splitlines() if line.startswith("| `")}
    assert {command.name for command in cli.application().registered_commands} == documented


def test_every_key_is_documented(page):
    """As ``doctor`` and the errors call it."""
    text = page("configuration")
    assert [key for key, field in FIELDS.items() if f"| `{key}` | {field.says} |" not in text] == []
    assert FILE in text
    assert VARIABLE in text
