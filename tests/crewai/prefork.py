"""A process that makes a session, installs it on a crew, and forks children that kick the crew off, as a server does.

``used`` has it kick the crew off before, with the way out that docs/crewai.md names; ``later`` has the children use
``akickoff``. CrewAI's event bus is the whole process's, so that this is a program and no test.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from benchmarks import crewai_workloads as work

from crewai.events.event_bus import crewai_event_bus

from cacheprefix import Session, locks
from cacheprefix.server import SimulatedProvider
from cacheprefix_crewai import install
from tests.forking import all_locks_held, in_child

CHILDREN = 2
BRIEF = {"brief": work.BRIEF}


def renew_the_event_bus() -> None:
    """Let CrewAI start its threads anew in this process."""
    crewai_event_bus._executor_initialized = False
    crewai_event_bus._pending_futures.clear()


def run(*how: str) -> dict[str, object]:
    """What the children sent, each the bodies of its requests in their order, and whether all of them ended well."""
    with SimulatedProvider("openai", work.CrewModel()) as provider:
        who = work.agents(lambda: work.new_llm("gpt-5-2025-08-07", provider.openai_base_url))
        crew, session = work.crew(who, work.tasks(who)), Session()
        install(crew, session)
        if "used" in how:
            os.register_at_fork(after_in_child=renew_the_event_bus)
            crew.kickoff(inputs=BRIEF)
        earlier = len(session.calls)

        def child() -> bool:
            result = asyncio.run(crew.akickoff(inputs=BRIEF)) if "later" in how else crew.kickoff(inputs=BRIEF)
            calls = session.calls[earlier:]
            forked = len(calls) > len(who) and all(call.layout == "fork" for call in calls)
            return forked and "Result of writing" in result.raw and not session.failures and bool(str(session.report()))

        locks._FORK_WAITS = 0.05
        sent, well = [], []
        for _ in range(CHILDREN):
            before = len(provider.requests)
            # Another thread of the parent is in the middle of everything.
            well.append(in_child(child, all_locks_held()))
            sent.append([record.body.decode() for record in provider.requests[before:]])
        before = len(provider.requests)
        crew.kickoff(inputs=BRIEF)
        sent.append([record.body.decode() for record in provider.requests[before:]])
        return {"well": well, "started": crewai_event_bus._executor_initialized, "sent": sent}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(run(*sys.argv[1:])))
