"""A session is freed with the team that was wrapped with it; the application's client goes on."""

from __future__ import annotations

import gc
import weakref

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_core.models import AssistantMessage, UserMessage
from autogen_teams import ROLES, role
from test_selector import Selecting

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


async def test_what_was_said_goes_with_a_reset(provide, new_client):
    """No message stays, in what was counted or laid out of it neither; the team and its selector run on."""
    provider = provide("openai", Selecting(*ROLES), keep=1)
    client = new_client(provider)
    team = wrap(SelectorGroupChat([role(name, client) for name in ROLES], client, max_turns=3))
    await team.run(task="Word of Alice.")
    await team.run(task="Another word of Alice.")
    await team.reset()
    gc.collect()
    left = [one for one in gc.get_objects() if isinstance(one, (UserMessage, AssistantMessage))]
    assert [one.content for one in left if "Alice" in str(one.content)] == []
    await team.run(task="Word of Bob.")
    assert "Alice" not in provider.requests[-1].body.decode()
