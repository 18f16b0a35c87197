"""The provider's count of our tokens, learned from its reports by model and kind of content."""

from __future__ import annotations

from cacheprefix.cache.calibration import Calibration
from cacheprefix.wire import decode

PROSE = decode(
    {"model": "m", "messages": [{"role": "user", "content": "The tide is early today. " * 200}]}, "openai-chat"
)
TOKENS = sum(section.tokens for section in PROSE.sections)


def test_counts_are_exact_until_a_report_of_the_model_speaks_against_them() -> None:
    """What another model counted says nothing; a report within the share that is allowed changes nothing."""
    calibration = Calibration()
    calibration.learn(PROSE.sections, "other", TOKENS * 2)
    assert calibration.exact(PROSE.sections, "m", 0.02)
    calibration.learn(PROSE.sections, "m", TOKENS)
    assert calibration.exact(PROSE.sections, "m", 0.02)
    calibration.learn(PROSE.sections, "m", round(TOKENS * 1.5))
    assert not calibration.exact(PROSE.sections, "m", 0.02)
    assert calibration.weigh(PROSE.sections, "m") > TOKENS * 1.1
