"""A session is freed with the team that was wrapped with it; the application's client goes on."""

from __future__ import annotations

import gc
import weakref

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import UserMessage

from cacheprefix import Session, SharedPrefix
from cacheprefix_autogen import PrefixClient, PrefixSettings, wrap
from cacheprefix_autogen.settings import session_of_settings

HANDBOOK = "The handbook says that every statement needs a source. " * 200


async def test_a_session_goes_with_its_team(provide, new_client):
    """Also one whose messages went through the client that others use on."""
    client = new_client(provide("openai"))

    async def run():
        session = Session(SharedPrefix(system=HANDBOOK))
        agents = [AssistantAgent(name, client, system_message=f"You are {name}.") for name in ("critic", "writer")]
        team = wrap(RoundRobinGroupChat(agents, max_turns=2), session)
        await team.run(task="Look into it.")
        assert session.calls
        return weakref.ref(session)

    session = await run()
    gc.collect()
    assert session() is None
    assert (await client.create([UserMessage(content="still there", source="user")])).content


async def test_a_session_goes_with_its_client(provide, new_client):
    """A wrapped client that was asked once."""
    plain = new_client(provide("openai"))

    async def run():
        session = Session(SharedPrefix(system=HANDBOOK))
        client = PrefixClient(plain, session, role="critic")
        await client.create([UserMessage(content="hello", source="user")])
        return weakref.ref(session)

    session = await run()
    gc.collect()
    assert session() is None


def test_a_session_of_settings_goes_with_the_last_component_that_holds_it():
    """Until then all components of the same settings share it."""
    settings = PrefixSettings(system=HANDBOOK)
    session = session_of_settings(settings)
    assert session_of_settings(settings) is session
    held = weakref.ref(session)
    del session
    gc.collect()
    assert held() is None
