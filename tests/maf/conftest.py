"""The framework's own clients against the simulated provider, and small teams to run on them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("cacheprefix_maf", reason="this adapter is tested in its own environment (make test-maf)")

from cacheprefix.server import SimulatedProvider

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def servers():
    """One provider for each API's rules."""
    with SimulatedProvider("openai-5.6") as chat, SimulatedProvider("anthropic") as claude:
        yield {"openai-chat": chat, "openai-responses": chat, "anthropic": claude}
