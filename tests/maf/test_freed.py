"""A session is freed with the agents that were wrapped with it, as soon as their client has another run."""

from __future__ import annotations

import gc
import weakref

from agent_framework.orchestrations import SequentialBuilder
from maf_teams import HANDBOOK, NAMES, TASK, role, served

from cacheprefix import Session, SharedPrefix
from cacheprefix_maf import wrap


async def test_a_session_goes_with_its_workflow(servers):
    """The framework's client keeps the middleware of its latest run, and of no earlier one."""
    async with served(servers, "openai-chat") as (client, _):

        async def run():
            session = Session(SharedPrefix(system=HANDBOOK))
            workflow = SequentialBuilder(participants=[role(client, name) for name in NAMES]).build()
            await wrap(workflow, session).run(TASK)
            assert len(session.calls) == len(NAMES)
            return weakref.ref(session)

        sessions = [await run() for _ in range(3)]
        gc.collect()
        assert [session() for session in sessions[:2]] == [None, None]
