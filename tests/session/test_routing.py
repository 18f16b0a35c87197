"""Which requests say a routing key: those that are known to share something."""

from __future__ import annotations

import pytest

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.adapter import Request

BODY = {"model": "gpt-4.1", "messages": [{"role": "user", "content": "Say something."}]}


@pytest.mark.parametrize(
    ("session", "keyed"),
    [
        (Session(), False),
        (Session(SharedPrefix(system="The house.")), True),
        (Session(caching=Caching(routing_keys=4)), True),
    ],
    ids=["nothing", "a prefix", "keys that the user asked for"],
)
def test_requests_that_share_nothing_have_no_key(session, keyed):
    """It would be that of all applications without a prefix; the provider goes by the text's own beginning."""
    turn = session.adapter.begin(Request(BODY, "openai-chat", agent="one", conversation="talk"))
    turn.fail()
    assert ("prompt_cache_key" in turn.body) == keyed
