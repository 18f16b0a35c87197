"""Agents of the application's own classes, with a model client of their own under whatever name."""

from __future__ import annotations

import pytest
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import AgentId, MessageContext, RoutedAgent, SingleThreadedAgentRuntime, message_handler
from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.models import AssistantMessage, SystemMessage, UserMessage
from autogen_ext.agents.openai import OpenAIAgent
from autogen_teams import HANDBOOK, TASK, Says, role
from pydantic import BaseModel

from cacheprefix import Session, SharedPrefix, preview
from cacheprefix.adapter import current_role, watched_client
from cacheprefix.errors import SetupError
from cacheprefix_autogen import PrefixClient, session_of, unwrap, wrap


class Own(BaseChatAgent):
    """Keeps its history itself, and its client under a name that is given."""

    def __init__(self, name, client, attribute):
        super().__init__(name, "An agent of our own.")
        self.attribute, self.said = attribute, []
        setattr(self, attribute, client)

    @property
    def produced_message_types(self):
        """Texts."""
        return (TextMessage,)

    async def on_messages(self, messages, cancellation_token):
        """Asks the model with all that it has heard."""
        self.said += [UserMessage(content=one.to_model_text(), source=one.source) for one in messages]
        system = SystemMessage(content=f"You are the {self.name}.\n\n{HANDBOOK}")
        answer = await getattr(self, self.attribute).create([system, *self.said])
        self.said.append(AssistantMessage(content=answer.content, source=self.name))
        return Response(chat_message=TextMessage(content=answer.content, source=self.name))

    async def on_reset(self, cancellation_token):
        """Forgets it."""
        self.said.clear()


def _team(client, attribute):
    return RoundRobinGroupChat(
        [role("planner", client), Own("surveyor", client, attribute), role("writer", client)], max_turns=6
    )


def _own(provider):
    bodies = [record.json["messages"] for record in provider.requests]
    return [body for body in bodies if not any("<role name=" in str(one["content"]) for one in body)]


@pytest.mark.parametrize("attribute", ["brain", "_c", "_model_client"])
async def test_it_is_counted_and_its_requests_stay_its_own(provide, new_client, attribute):
    """To the byte, whatever the attribute is called; the others share as they do without it."""
    provider = provide("openai", Says())
    plain = _team(new_client(provider), attribute)
    await plain.run(task=TASK)
    before = [record.json["messages"] for record in provider.requests][1::3]
    provider.requests.clear()
    provider.simulator.script = Says()
    session = Session()
    team = wrap(_team(new_client(provider), attribute), session)
    await team.run(task=TASK)
    calls = [call for call in session.calls if call.agent == "surveyor"]
    assert [(call.layout, call.reasons[-1].why) for call in calls] == [("own", "own_prompt")] * 2
    assert [record.json["messages"] for record in provider.requests][1::3] == before
    assert [call.layout for call in session.calls if call.agent != "surveyor"] == ["fork"] * 4
    assert not any("have not the text" in note for note in session.report().notes)
    unwrap(team)
    assert not isinstance(vars(team._participants[1])[attribute], PrefixClient)


async def test_its_client_wrapped_by_the_application_shares(provide, new_client):
    """The way that the note and the docs name: its requests begin with what the others' begin with."""
    provider = provide("openai", Says())
    session = Session(SharedPrefix(system=HANDBOOK))
    client = new_client(provider)
    own = Own("surveyor", PrefixClient(client, session, role="surveyor"), "brain")
    await wrap(RoundRobinGroupChat([role("planner", client), own], max_turns=4), session).run(task=TASK)
    planner, mine = provider.requests[2].json["messages"], provider.requests[3].json["messages"]
    assert mine[:4] == planner[:4]
    assert {call.layout for call in session.calls} == {"fork"}


async def test_durable_context_reaches_it_in_its_own_layout(provide, new_client):
    """What the user gave to all agents is said, though nothing else of the request changes."""
    provider = provide("openai", Says())
    session = Session(SharedPrefix(context={"world": "It is raining in Bern."}))
    await wrap(_team(new_client(provider), "brain"), session).run(task=TASK)
    assert all("raining in Bern" in str(record.json["messages"]) for record in provider.requests)


async def test_one_whose_client_cannot_be_seen_is_named(provide, new_client):
    """It may hold it anywhere; the note says what would share."""
    client = new_client(provide("openai", Says()))

    class Hidden(Own):
        def __init__(self, name, inner):
            super().__init__(name, None, "brain")
            self.box = [inner]

    session = Session()
    wrap(RoundRobinGroupChat([role("planner", client), Hidden("surveyor", client)], max_turns=2), session)
    notes = [note for note in session.report().notes if "'surveyor'" in note]
    assert any("Hidden" in note and "PrefixClient(client, session, role='surveyor')" in note for note in notes)


async def test_one_that_asks_through_a_providers_sdk_is_told_of_that_client(new_client, provide):
    """A ``PrefixClient`` in its place could not answer it; a client that is watched already is no matter for a note."""
    client = new_client(provide("openai", Says()))._client

    def notes(held):
        session = Session()
        agent = OpenAIAgent("surveyor", "Surveys.", held, "gpt-4o-2024-08-06", "You are the surveyor.")
        wrap(RoundRobinGroupChat([agent], max_turns=1), session)
        return [note for note in session.report().notes if "'surveyor'" in note]

    (said,) = notes(client)
    assert "cacheprefix_sdk.wrap(client, session, role='surveyor')" in said
    watched = watched_client(client, Session().adapter, current_role)
    assert notes(watched) == []


class Say(BaseModel):
    """One turn between two agents."""

    who: str
    text: str
    left: int


class Talker(RoutedAgent):
    """Answers, and passes the answer on."""

    def __init__(self, name, client, other):
        super().__init__(name)
        self.name, self.llm, self.other = name, client, other
        self.heard = [SystemMessage(content=f"You are the {name}.\n\n{HANDBOOK}")]

    @message_handler
    async def on_say(self, message: Say, ctx: MessageContext) -> None:
        """One turn."""
        self.heard.append(UserMessage(content=message.text, source=message.who))
        answer = await self.llm.create(self.heard, cancellation_token=ctx.cancellation_token)
        self.heard.append(AssistantMessage(content=answer.content, source=self.name))
        if message.left:
            said = Say(who=self.name, text=answer.content, left=message.left - 1)
            await self.send_message(said, AgentId(self.other, "default"))


async def test_routed_agents_wrapped_where_they_are_made_share_and_are_named(provide, new_client):
    """By the type under which the runtime knows them."""
    provider = provide("openai", Says())
    client, session = new_client(provider), Session(SharedPrefix(system=HANDBOOK))
    runtime, made = SingleThreadedAgentRuntime(), []

    def make(name, other):
        made.append(wrap(Talker(name, client, other), session))
        return made[-1]

    for name, other in (("critic", "writer"), ("writer", "critic")):
        await Talker.register(runtime, name, lambda name=name, other=other: make(name, other))
    runtime.start()
    await runtime.send_message(Say(who="user", text=TASK, left=3), AgentId("critic", "default"))
    await runtime.stop_when_idle()
    assert [call.agent for call in session.calls] == ["critic", "writer"] * 2
    assert {call.layout for call in session.calls} == {"fork"}
    assert all(call.usage.cache_read_tokens for call in session.calls[1:])
    assert session_of(made[0]) is session
    assert unwrap(made[0]).llm is client


def test_a_routed_agent_without_a_client_is_refused():
    """At set-up, with what to do instead."""
    with pytest.raises(SetupError, match="holds no model client"):
        wrap(Talker("critic", None, "writer"), Session())


def test_a_preview_names_what_is_known_in_the_run_alone(provide, new_client):
    """An agent of one's own class by its client's attribute, and a ``RoutedAgent``."""
    client = new_client(provide("openai", Says()))
    made = preview(_team(client, "brain"), Session(), task=TASK)
    assert any(note.startswith("surveyor: what it asks by brain") for note in made.notes)
    assert {one.agent for one in made.requests} == {"planner", "writer"}
    routed = preview(Talker("critic", client, "writer"), Session())
    assert any("Talker: what it asks its model clients (llm)" in note for note in routed.notes)


class Redacting(AssistantAgent):
    """Takes a number out of what it hears, before it remembers it."""

    async def on_messages_stream(self, messages, cancellation_token):
        """Answers what is left, and a word of its own behind it."""
        heard = [one.model_copy(update={"content": _redacted(one.content)}) for one in messages]
        async for item in super().on_messages_stream(heard, cancellation_token):
            yield item


class RedactingContext(UnboundedChatCompletionContext):
    """Takes a number out of what it keeps."""

    async def add_message(self, message):
        """Keeps what is left, and a word of its own behind it."""
        kept = isinstance(message, UserMessage)
        await super().add_message(
            message.model_copy(update={"content": _redacted(message.content)}) if kept else message
        )


def _redacted(text):
    return text.replace("555-0199", "[number]") + " Answer in prose."


@pytest.mark.parametrize("kind", ["agent", "context"])
async def test_what_an_application_redacts_on_the_way_to_its_model_is_not_sent(provide, new_client, kind):
    """And what it adds there is; the others, to whom it says no less than before, share as without it."""
    provider = provide("openai", Says())
    client = new_client(provider)
    options = {"system_message": f"You are the planner.\n\n{HANDBOOK}"}
    if kind == "agent":
        planner = Redacting("planner", client, **options)
    else:
        planner = AssistantAgent("planner", client, model_context=RedactingContext(), **options)
    team = RoundRobinGroupChat([planner, role("critic", client), role("writer", client)], max_turns=6)
    session = Session(SharedPrefix(system=HANDBOOK))
    await wrap(team, session).run(task=f"Call 555-0199. {TASK}")
    sent = [record.body.decode() for record in provider.requests]
    assert ["555-0199" in body for body in sent] == [False, True, True] * 2
    assert ["Answer in prose." in body for body in sent] == [True, False, False] * 2
    assert [call.layout for call in session.calls] == ["own", "fork", "fork"] * 2
    assert session.failures == {}


class Unsigned(TextMessage):
    """A message whose sender no model is told."""

    type: str = "Unsigned"

    def to_model_message(self):
        """Without its sender."""
        return UserMessage(content=self.content, source="somebody")


class Telling(AssistantAgent):
    """Tells the others something else than it answers, or does not tell them who says it."""

    def __init__(self, name, client, tells):
        super().__init__(name, client, system_message=f"You are the {name}.\n\n{HANDBOOK}")
        self.tells = tells

    async def on_messages_stream(self, messages, cancellation_token):
        """As it answers, but for what the others are told."""
        async for item in super().on_messages_stream(messages, cancellation_token):
            yield Response(chat_message=self.tells(item.chat_message)) if isinstance(item, Response) else item


def _marked(message):
    return TextMessage(content="It was found wanting.", source=message.source)


def _unsigned(message):
    return Unsigned(content=message.content, source=message.source)


@pytest.mark.parametrize("api", ["openai", "anthropic"])
@pytest.mark.parametrize(
    ("tells", "word", "told"),
    [(_marked, "It was found wanting.", [False, True, True]), (_unsigned, "planner speaks", [True, True, True])],
)
async def test_an_agent_is_not_shown_what_its_class_makes_of_its_answers(provide, new_client, api, tells, word, told):
    """The others are told that, by whom it says, and no more; from then on its requests are its own."""
    provider = provide(api, Says())
    client = new_client(provider, api=api)
    agents = [Telling("planner", client, tells), role("critic", client), role("writer", client)]
    session = Session(SharedPrefix(system=HANDBOOK))
    team = RoundRobinGroupChat(agents, max_turns=6, custom_message_types=[Unsigned])
    await wrap(team, session).run(task=TASK)
    sent = [record.body.decode() for record in provider.requests]
    assert [word in body for body in sent] == [False, *told[1:], *told]
    assert [call.layout for call in session.calls[3:]] == ["own", "fork", "fork"]
    assert [sum("[planner]" in body for body in sent)] == [0 if tells is _unsigned else 4]
    assert session.failures == {}
