"""The public surface is as written down."""

from __future__ import annotations

import pytest

from tests.surface.__main__ import PACKAGES, differences


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_no_public_name_or_signature_changes_unnoticed(package):
    """Where a change is meant, ``make surface`` writes it down, and the diff shows it to whoever reviews."""
    said = differences(package)
    assert not said, "\n".join([*said, "where this is meant: make surface"])
