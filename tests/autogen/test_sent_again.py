"""What is sent again stands again, and what was said first stands first: as often and in the order as without us."""

from __future__ import annotations

import json
import re
from itertools import count

import pytest
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_core import CancellationToken
from autogen_teams import HANDBOOK, ROLES, role

from cacheprefix import Session, SharedPrefix
from cacheprefix_autogen import wrap

TEXT = "Words that fill a line and the next one too, so that there is something to share. " * 4


def _mark(name):
    return f"mk_{name} {TEXT}"


def _sent(name):
    return TextMessage(content=_mark(name), source="user")


def _answers():
    """A model whose answers are numbered; asked who speaks next it names the planner."""
    numbers = count()

    def answer(request):
        return ROLES[0] if "select the next role" in request.text else _mark(f"answer{next(numbers)}")

    return answer


class Repeats(BaseChatAgent):
    """An agent without a model that publishes one and the same message in each turn, or the newest that it was told."""

    def __init__(self, message=None):
        super().__init__("echo", "Repeats.")
        self.message = message

    @property
    def produced_message_types(self):
        """Texts."""
        return (TextMessage,)

    async def on_messages(self, messages, cancellation_token):
        """The message."""
        return Response(chat_message=self.message or messages[-1])

    async def on_reset(self, cancellation_token):
        """Nothing."""


class OneId(AssistantAgent):
    """An agent all of whose answers have one id."""

    async def on_messages_stream(self, messages, cancellation_token):
        """The answer, under that id."""
        async for item in super().on_messages_stream(messages, cancellation_token):
            if isinstance(item, Response):
                item.chat_message.id = "one"
            yield item


async def _answers_of_one_id(agents, client, wrapped):
    """Each of them is told to all."""
    text = f"You are the editor.\n\n{HANDBOOK}"
    team = wrapped(RoundRobinGroupChat([OneId("editor", client, system_message=text), agents[0]], max_turns=5))
    await team.run(task=_mark("task"))
    await team.run(task=_mark("last"))


async def _the_task(agents, client, wrapped):
    """The same message object is the task of several runs, twice in one of them."""
    task, team = _sent("task"), wrapped(RoundRobinGroupChat(agents, max_turns=2))
    for tasks in ([task], [task], [task, task], [_sent("last")]):
        await team.run(task=tasks)


async def _the_task_of_a_selector(agents, client, wrapped):
    task, team = _sent("task"), wrapped(SelectorGroupChat(agents, client, max_turns=1, allow_repeated_speaker=True))
    for tasks in ([task], [task], [task, task]):
        await team.run(task=tasks)


async def _an_agents_own(agents, client, wrapped):
    """An agent publishes one message in each turn."""
    team = wrapped(RoundRobinGroupChat([agents[0], Repeats(_sent("same")), agents[1]], max_turns=5))
    for number in range(2):
        await team.run(task=_mark(f"task{number}"))


async def _anothers(agents, client, wrapped):
    """An agent publishes the message that it was told."""
    team = wrapped(RoundRobinGroupChat([agents[0], Repeats(), agents[1]], max_turns=5))
    for number in range(2):
        await team.run(task=_mark(f"task{number}"))


async def _to_one_agent(agents, client, wrapped):
    task, agent = _sent("task"), wrapped(agents[0])
    await agent.run(task=[task])
    await agent.run(task=[task, task])
    await agent.on_messages([task], CancellationToken())


async def _with_other_words(agents, client, wrapped):
    """Under the same id, to a team of which one agent was reset."""
    task, team = _sent("task"), wrapped(RoundRobinGroupChat(agents, max_turns=3))
    await team.run(task=[task])
    await agents[1].on_reset(CancellationToken())
    await team.run(task=[task.model_copy(update={"content": _mark("edited")})])
    await team.run(task=_mark("last"))


async def _before_it_was_wrapped(agents, client, wrapped):
    """A message that an agent has been told once and that waits for it once more."""
    task, team = _sent("task"), RoundRobinGroupChat(agents, max_turns=1)
    await team.run(task=[task])
    await team.run(task=[task])
    wrapped(team)
    for _ in range(4):
        await team.run(task=_mark("last"))


async def _taken_up(agents, client, wrapped):
    """A saved state in which it stands twice."""
    task, team = _sent("task"), wrapped(RoundRobinGroupChat(agents, max_turns=2))
    await team.run(task=[task])
    await team.run(task=[task])
    state = json.loads(json.dumps(await team.save_state()))
    team = wrapped(RoundRobinGroupChat([role(name, client) for name in ROLES], max_turns=2))
    await team.load_state(state)
    await team.run(task=[task])
    await team.run(task=_mark("last"))


async def _redacted(agents, client, wrapped):
    """Where the application redacts what waits for an agent in a saved state, it is told that."""
    team = wrapped(RoundRobinGroupChat(agents, max_turns=2))
    await team.run(task=_mark("secret"))
    state = json.loads(json.dumps(await team.save_state()))
    for one in state["agent_states"].values():
        for message in one.get("message_buffer", ()):
            message["content"] = message["content"].replace("mk_secret", "mk_redacted")
    team = wrapped(RoundRobinGroupChat([role(name, client) for name in ROLES], max_turns=2))
    await team.load_state(state)
    await team.run(task=_mark("last"))


async def _in_two_teams(agents, client, wrapped):
    """An agent's answer in one team stands in front of the task that the other one is given later."""
    first = wrapped(RoundRobinGroupChat(agents[:2], max_turns=2))
    second = wrapped(RoundRobinGroupChat([agents[2], agents[1]], max_turns=2))
    for number in range(6):
        await (first, second)[number % 2].run(task=_mark(f"task{number}"))


async def _told_to_a_second_team(agents, client, wrapped):
    """What was said in one team, behind words of the application's own."""
    first = wrapped(RoundRobinGroupChat(agents[:2], max_turns=2))
    second = wrapped(RoundRobinGroupChat(agents[1:], max_turns=2))
    said = await first.run(task=_mark("task"))
    await second.run(task=[_sent("introduction"), *said.messages])
    await first.run(task=_mark("last"))


async def _in_a_team_and_by_itself(agents, client, wrapped):
    """An agent's answer to a question of its own stands behind that, in front of what waited meanwhile."""
    team = wrapped(RoundRobinGroupChat(agents, max_turns=3))
    for number, agent in enumerate(agents):
        await team.run(task=_mark(f"task{number}"))
        await agent.run(task=_mark(f"side{number}"))
    await team.run(task=_mark("last"))


_WAYS = [
    _the_task,
    _the_task_of_a_selector,
    _an_agents_own,
    _anothers,
    _answers_of_one_id,
    _to_one_agent,
    _with_other_words,
    _before_it_was_wrapped,
    _taken_up,
    _redacted,
    _in_two_teams,
    _told_to_a_second_team,
    _in_a_team_and_by_itself,
]


@pytest.mark.parametrize("api", ["openai", "anthropic"])
@pytest.mark.parametrize("way", _WAYS)
async def test_everything_stands_as_often_and_in_the_order_as_without_us(provide, new_client, api, way):
    """In each request: on Anthropic an answer at the end in place of a question would be a prefill."""
    provider = provide(api, _answers())
    client, marks = new_client(provider, api=api), []
    session = Session(SharedPrefix(system=HANDBOOK))
    for wrapped in (lambda target: target, lambda target: wrap(target, session)):
        provider.simulator.script = _answers()
        provider.requests.clear()
        await way([role(name, client) for name in ROLES], client, wrapped)
        marks.append([re.findall(r"mk_\w+", json.dumps(one.json["messages"])) for one in provider.requests])
    assert marks[0] == marks[1]
    assert session.failures == {}
    # On OpenAI a conversation that began without us goes on so.
    own = api == "openai" and way is _before_it_was_wrapped
    assert ("fork" in {call.layout for call in session.calls}) is not own
