"""What holds for any input at all: a typed error that says where, or a result that is consistent with itself."""

from __future__ import annotations

import contextlib
import warnings

from cacheprefix.audit import audit
from cacheprefix.cache import CacheModel, mark, plan_breakpoints
from cacheprefix.errors import CacheprefixError
from cacheprefix.profiles import CacheprefixProfileWarning, Usage, default_registry, normalise_usage
from cacheprefix.wire import decode, encode


def check_body(body, api, usage):
    """Read, write again, mark, expect and judge a body; every refusal is one of our own errors."""
    try:
        prompt = decode(body, api)
    except CacheprefixError:
        return
    # What no provider takes may be written in another form; it is still read, or refused by a typed error.
    with contextlib.suppress(CacheprefixError):
        decode(encode(prompt), api)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheprefixProfileWarning)
        profile = default_registry().profile_for(prompt.model, api=api)
    marked = mark(body, api, prompt, plan_breakpoints(prompt, profile, boundary=len(prompt.sections)))
    again = decode(marked, api)
    assert [section.digest for section in again.sections] == [section.digest for section in prompt.sections]
    try:
        read = normalise_usage(usage, api)
    except CacheprefixError:
        read = Usage()
    model = CacheModel()
    verdict = model.finish(model.begin(again, profile, at=1.0), read, 2.0)
    assert verdict.lost_tokens >= 0


def check_log(path):
    """Audit a file: every line becomes calls or is named as broken."""
    with audit([str(path)]) as found:
        assert found.totals.broken_count >= 0
        assert sum(1 for _ in found.rows) == found.calls
