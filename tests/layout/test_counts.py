"""How many of so many tokens a provider reads that keeps whole blocks, where their number is not known exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheprefix.layout.baseline import in_blocks


@given(
    tokens=st.integers(0, 4_000),
    off=st.integers(0, 400),
    block=st.sampled_from([16, 128]),
    least=st.sampled_from([1, 8]),
)
def test_tokens_in_whole_blocks_are_the_mean_over_what_they_may_be(tokens, off, block, least):
    """As if each token more or less were tried."""
    least *= block
    found = in_blocks(tokens, off, block, least)
    tried = [tokens - off + (2 * off) * (i + 0.5) / 4_000 for i in range(4_000)] if off else [tokens]
    if tokens - off >= least or not off:
        mean = sum(block * (t // block) if t >= least else 0 for t in tried) / len(tried)
        assert found == pytest.approx(mean, abs=block / 100)
    else:
        assert found in (0, tokens - tokens % block)
