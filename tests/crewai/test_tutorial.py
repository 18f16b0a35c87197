"""The ten-minute tutorial, run as its page says."""

from __future__ import annotations

import re


def _totals(printed):
    """The last line of the report's table: share read from the cache in percent, cost against unmodified."""
    cells = next(line for line in printed.splitlines() if line.startswith("all ")).split()
    return float(cells[5].rstrip("%")), float(cells[8])


def test_the_tutorial_does_what_it_says(tutorial):
    """Both programs run; the second reads most of its input and costs less than the first."""
    printed = tutorial("crewai")
    assert list(printed) == ["before.py", "after.py"]
    cached, ratio = _totals(printed["before.py"])
    assert cached == 0
    assert ratio == 1.0
    cached, ratio = _totals(printed["after.py"])
    assert cached > 50
    assert ratio < 0.7
    assert re.search(r"<Verdict #\d+ hit, lost 0 tokens>", printed["after.py"])
