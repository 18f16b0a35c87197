"""Conversations that another process takes up: its requests are those of one process, and so is what is seen."""

import logging

import pytest

from tests.taking_up import cells, taken_up

CELLS = cells("autogen", "round", "selector", "swarm")


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_process_that_takes_a_conversation_up_sends_what_one_process_sends(cell, caplog):
    """Byte for byte, each text under its own speaker; what was decided stands in the team's state."""
    # Pytest keeps what is logged, with the frames of an error: they hold the session, which is to be let go.
    with caplog.at_level(logging.CRITICAL, logger="autogen_core"):
        assert taken_up("autogen", cell) == []
