"""People's words kept apart, leaders that are left or cancelled, sessions let go: some applications of the trial."""

import pytest

from tests.trial.applications import application
from tests.trial.playing import driver, played

# What of LiteLLM's own a cancelled call had begun, goes with it.
pytestmark = [pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [24, 58])
def test_an_application_of_several_people_breaks_no_invariant(seed):
    """``make trial`` plays as many as there is time for."""
    kind = driver("litellm")
    found, requests, _ = played(kind, application(seed, kind.apis))
    assert [str(one) for one in found] == []
    assert requests
