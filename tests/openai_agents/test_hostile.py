"""People's words kept apart, leaders that are left or cancelled, sessions let go: some applications of the trial."""

import pytest

from tests.trial.applications import application
from tests.trial.playing import driver, played


@pytest.mark.slow
@pytest.mark.parametrize("seed", [29, 58, 103])
def test_an_application_of_several_people_breaks_no_invariant(seed):
    """``make trial`` plays as many as there is time for."""
    kind = driver("openai_agents")
    found, requests, _ = played(kind, application(seed, kind.apis))
    assert [str(one) for one in found] == []
    assert requests
