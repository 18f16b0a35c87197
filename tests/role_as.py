"""As whom an adapter says role texts, on the bytes that a simulated provider receives."""

from __future__ import annotations

from typing import Any

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import SimulatedProvider
from cacheprefix.testing import Team
from cacheprefix.testing.driver import script


def said_as(driver: Any) -> set[str]:
    """The API's roles under which the role texts of a small team went out, all of them in messages of their own."""
    team = Team()
    caching = Caching(provider=driver.rules, counter=ESTIMATE, role_as="developer")
    session = Session(SharedPrefix(system=team.handbook), caching=caching)
    found: list[str] = []
    with SimulatedProvider(driver.rules, script()) as provider:
        driver.run(team, provider, session)
        for record in provider.requests:
            assert record.status == 200
            said = record.json.get("input" if driver.api == "openai-responses" else "messages")
            found += [one.get("role") for one in said if "<role name=" in str(one.get("content"))]
    assert not session.failures
    assert len(found) == len(team.roles)
    return set(found)
