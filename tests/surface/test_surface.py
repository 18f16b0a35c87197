"""The public surface is as written down."""

from __future__ import annotations

import pytest

from tests.surface.__main__ import PACKAGES, differences, pages


@pytest.mark.parametrize("package", PACKAGES)
def test_no_public_name_or_signature_changes_unnoticed(package):
    """Where a change is meant, ``make surface`` writes it down, and the diff shows it to whoever reviews."""
    said = differences(package)
    assert not said, "\n".join([*said, "where this is meant: make surface"])


def test_the_reference_says_what_the_docstrings_say():
    """Its pages are plain Markdown that is read without building the site; ``make surface`` writes them."""
    assert [path.name for path in pages()] == []
