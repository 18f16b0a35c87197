"""Time that setting the wall clock does not change."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

steady: Callable[[], float]
"""Seconds since the machine started, the same in all of its processes."""

if sys.platform == "linux":
    # Only BOOTTIME counts the time asleep: a laptop must not serve last night's results in the morning.
    steady = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
else:
    steady = time.monotonic


def boot_id() -> bytes:
    """Return what names this start of the machine, or nothing where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    except OSError:
        return b""
