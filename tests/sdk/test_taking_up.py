"""Conversations that another process takes up: its requests are those of one process, and so is what is seen."""

import pytest

from tests.taking_up import cells, taken_up


@pytest.mark.slow
@pytest.mark.parametrize("cell", cells("sdk", ways=(False, True)), ids=str)
def test_a_process_that_takes_a_conversation_up_sends_what_one_process_sends(cell):
    """Byte for byte, each text under its own speaker; what was decided is saved beside the messages."""
    assert taken_up("sdk", cell) == []
