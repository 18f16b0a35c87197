"""Tests of which tests a run takes."""

from __future__ import annotations

from tests.drawn import in_part


def test_each_test_is_in_one_part():
    """Both halves together are all, neither is empty, and without a part all are taken."""
    tests = [f"tests/session/test_report.py::test_sums[{number}]" for number in range(100)]
    halves = [[one for one in tests if in_part(one, part)] for part in ("1/2", "2/2")]
    assert sorted(halves[0] + halves[1]) == sorted(tests)
    assert min(map(len, halves)) > 30
    assert all(in_part(one, "") for one in tests)
