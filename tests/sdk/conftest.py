"""The driver of the SDK adapter is a plain module beside its tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("cacheprefix_sdk", reason="the SDK adapter is tested in the core's environment (make test)")

sys.path.insert(0, str(Path(__file__).parent))
