"""What some programs send, report and print is what is recorded; `make test-more` looks at all of them."""

from __future__ import annotations

from tests.recorded.quick import differences


def test_programs_send_report_and_print_what_is_recorded():
    """Section by section of each request; where a change is meant, ``make net ARGS=--write`` records it."""
    assert differences("openai_agents") == ""
