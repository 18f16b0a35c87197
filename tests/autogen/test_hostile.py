"""Teams that compact, and are taken up by another process: applications of the trial that broke there."""

import pytest

from tests.trial.applications import application
from tests.trial.playing import driver, played


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1_128_000_015, 1_128_000_101], ids=["tools", "said"])
def test_a_team_that_compacts_sends_the_same_in_a_process_that_takes_it_up(seed):
    """Also where agents ask for the first time there; ``make trial`` plays as many as there is time for."""
    kind = driver("autogen")
    found, requests, _ = played(kind, application(seed, kind.apis))
    assert [str(one) for one in found] == []
    assert requests
