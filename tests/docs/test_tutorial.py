"""The ten-minute tutorial, run as its page says."""

from __future__ import annotations

import re


def _totals(printed):
    """The last line of the report's table: share read from the cache in percent, cost against unmodified."""
    cells = next(line for line in printed.splitlines() if line.startswith("all ")).split()
    return float(cells[5].rstrip("%")), float(cells[8])


def test_the_tutorial_does_what_it_says(tutorial):
    """Both programs run; the second reads most of its input and costs less than the first."""
    printed = tutorial("langgraph")
    assert list(printed) == ["before.py", "after.py"]
    cached, ratio = _totals(printed["before.py"])
    assert cached == 0
    assert ratio == 1.0
    cached, ratio = _totals(printed["after.py"])
    assert cached > 50
    assert ratio < 0.7
    assert re.search(r"<Verdict #\d+ hit, lost 0 tokens>", printed["after.py"])


def test_a_clock_in_front_of_the_system_text_is_the_break_that_the_page_names(tutorial):
    """Without forks each verdict of the second run is ``system_changed``; in the tail the clock breaks nothing."""

    def changed(code):
        now = "import itertools\n\nNOW = itertools.count(600)\nsession = "
        code = code.replace("session = ", now, 1).replace("{ROLES[role]}", "It is {next(NOW)}. {ROLES[role]}")
        twice = code.replace("app.invoke(", "for _ in range(2):\n    app.invoke(")
        return twice + "\nprint([each.verdict.cause for each in session.calls][4:])\n"

    printed = tutorial("langgraph", changed)
    assert printed["before.py"].splitlines()[-1] == str(["system_changed"] * 4)
    assert printed["after.py"].splitlines()[-1] == str(["hit"] * 4)
