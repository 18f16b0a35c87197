"""Conversations that another process takes up: its requests are those of one process, and so is what is seen."""

import pytest

from tests.taking_up import cells, taken_up

# A team whose request is refused is left to the trial: AutoGen's groups end there with an error of their own.
CELLS = [one for one in cells("autogen", "round", "selector", "swarm") if "refus" not in one.scenario]


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_process_that_takes_a_conversation_up_sends_what_one_process_sends(cell):
    """Byte for byte, each text under its own speaker; what was decided stands in the team's state."""
    assert taken_up("autogen", cell) == []
