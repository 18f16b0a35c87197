"""A session is freed with the clients that were wrapped with it; the application's own client goes on."""

from __future__ import annotations

import gc
import weakref

import openai

from cacheprefix import Session, SharedPrefix
from cacheprefix.server import SimulatedProvider
from cacheprefix_sdk import role, wrap

HANDBOOK = "The handbook says that every statement needs a source. " * 200


def test_a_session_goes_with_its_clients():
    """A whole answer, a stream that was read and one that was not."""
    with SimulatedProvider("openai") as provider:
        plain = openai.OpenAI(base_url=provider.openai_base_url, api_key="k", max_retries=0)
        request = {"model": "gpt-5", "messages": [{"role": "system", "content": HANDBOOK}]}

        def run():
            session = Session(SharedPrefix(system=HANDBOOK))
            client = wrap(plain, session)
            with role("critic", instruction="You criticise."):
                client.chat.completions.create(**request)
                list(client.chat.completions.create(**request, stream=True))
                client.chat.completions.create(**request, stream=True).close()
            assert len(session.calls) == 2
            return weakref.ref(session)

        session = run()
        gc.collect()
        assert session() is None
        assert plain.chat.completions.create(**request).choices
        plain.close()
