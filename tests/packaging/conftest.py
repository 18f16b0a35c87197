"""What asks a package index has the machine's own certificate authorities, not the one of all other tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def authorities() -> Iterator[None]:
    """As they were named when the tests began, if they were."""
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("SSL_CERT_FILE")
        if given := os.environ["CACHEPREFIX_AUTHORITIES"]:
            patched.setenv("SSL_CERT_FILE", given)
        yield
