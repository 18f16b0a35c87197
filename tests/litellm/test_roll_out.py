"""A safe way in, on LiteLLM's wire: off, and a share of the conversations."""

from __future__ import annotations

import asyncio

import litellm
import pytest
from litellm_driver import HANDBOOK, MODELS, RULES, messages, place

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.prompt import ESTIMATE
from cacheprefix_litellm import role, wrap


@pytest.mark.parametrize("vendor", tuple(RULES))
@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_off_and_a_conversation_outside_of_the_share_keep_every_byte(fresh, vendor, later, monkeypatch):
    """Off sees nothing; the other is counted with its reason; within the share the same call is another one."""
    function = litellm.acompletion if later else litellm.completion

    def sent(session=None):
        provider = fresh(vendor)
        ask = function if session is None else wrap(function, session)
        for name in ("critic", "writer"):
            with role(name, conversation="one"):
                answer = ask(MODELS[vendor], messages(name), **place(vendor, provider))
                asyncio.run(answer) if later else None
        return [record.body for record in provider.requests]

    def session(share):
        caching = Caching(provider=RULES[vendor], counter=ESTIMATE, fork_share=share)
        return Session(SharedPrefix(system=HANDBOOK), caching=caching)

    plain, left, shares = sent(), session(0.0), session(1.0)
    assert sent(left) == plain
    assert {(call.layout, call.reasons[-1].why) for call in left.calls} == {("own", "not_in_fork_share")}
    assert left.report().arms.own.calls == len(plain)
    assert sent(shares) != plain
    monkeypatch.setenv("CACHEPREFIX_MODE", "off")
    off = session(1.0)
    assert sent(off) == plain
    assert off.calls == ()
