"""Selectors, swarms and Magentic-One."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import HandoffMessage, TextMessage
from autogen_agentchat.teams import MagenticOneGroupChat, SelectorGroupChat, Swarm
from autogen_core.tools import FunctionTool
from autogen_teams import HANDBOOK, ROLES, TASK, Says, common, prompts, role, search, tail_index

from cacheprefix import Session, SharedPrefix, preview
from cacheprefix.profiles import profile_for
from cacheprefix.server import Queue, Reply, ToolCall
from cacheprefix_autogen import conversation_of, session_of, wrap
from cacheprefix_autogen.messages import ABOVE


class Selecting(Says):
    """Chooses the roles in turn."""

    def __init__(self, *answers, **options):
        super().__init__(**options)
        self._answers = list(answers)
        self._turn = 0

    def __call__(self, request):
        if "nly return the role" in request.tail or "Please select" in request.tail:
            self._turn += 1
            return Reply(self._answers[(self._turn - 1) % len(self._answers)])
        return super().__call__(request)


def _looked_up(key: str) -> str:
    return key


@pytest.mark.parametrize("rules", ["openai-5.6", "anthropic"])
async def test_a_selector_in_short_conversations_costs_no_more_than_by_its_own_prompt(provide, new_client, rules):
    """Together the tools are just long enough to be cached: it carried them where no agent's request did."""
    provider = provide(rules, Selecting(*ROLES, steps={name: ["A short answer. " * 8] for name in ROLES}))
    session = Session(gate=None)
    client = new_client(provider, model="gpt-5.6" if rules != "anthropic" else "claude-sonnet-4-5")
    said = " ".join(f"about{number}" for number in range(30))
    for number in range(4):
        agents = [
            AssistantAgent(
                name,
                client,
                description=f"The {name}.",
                system_message=f"You are the {name}. " + f"A {name} keeps to its duties. " * 40,
                tools=[FunctionTool(_looked_up, f"{name}. {said}", name=f"{name}_{at}") for at in range(3)],
            )
            for name in ROLES
        ]
        await wrap(SelectorGroupChat(agents, client, max_turns=4), session).run(task=f"{number}: {TASK[:400]}")
    (asked,) = (line for line in session.report().lines if line.agent == "selector")
    assert asked.ratio is not None
    assert asked.ratio <= 1.0


async def test_the_selectors_question_stands_behind_the_shared_transcript(provide, new_client):
    """Once an agent has asked, selection calls extend the agents' prefix; roles and candidates come last."""
    provider = provide("openai", Selecting(*ROLES))
    client = new_client(provider, model="gpt-5-2025-08-07")
    team = SelectorGroupChat([role(n, client) for n in ROLES], client, max_turns=3)
    await wrap(team, Session(SharedPrefix(system=HANDBOOK))).run(task=TASK)
    sent = prompts(provider.requests)
    assert len(sent) == 6
    # Money: nobody may come to read what the first one would write.
    assert HANDBOOK[:60] not in provider.requests[0].body.decode()
    for selecting, speaking in zip(sent[2::2], sent[3::2], strict=True):
        assert "planner: The planner." in selecting.sections[-1].text
        assert ABOVE in selecting.sections[-1].text
        assert common(selecting, speaking) == len(selecting.sections) - 1 == tail_index(speaking)


async def test_a_selector_is_not_shown_what_was_found_in_the_agents_system_texts(provide, new_client):
    """Nobody gave it to the selector, and its own request does not hold it; its questions extend one another."""
    provider = provide("openai", Selecting(*ROLES))
    client = new_client(provider, model="gpt-5-2025-08-07")
    await wrap(SelectorGroupChat([role(n, client) for n in ROLES], client, max_turns=3)).run(task=TASK)
    questions = prompts(provider.requests)[::2]
    assert not any(HANDBOOK[:60] in section.text for prompt in questions for section in prompt.sections)
    assert all(common(a, b) == len(a.sections) - 1 for a, b in pairwise(questions))


@pytest.mark.parametrize("told", [False, True])
async def test_a_selector_is_shown_nothing_from_before_a_reset(provide, new_client, told):
    """What the team's thread holds no more is not in its questions, nor what the application told the team then."""
    provider = provide("openai", Selecting(*ROLES))
    client, session = new_client(provider, model="gpt-5-2025-08-07"), Session(SharedPrefix(system=HANDBOOK))
    team = wrap(SelectorGroupChat([role(n, client) for n in ROLES], client, max_turns=3), session)
    if told:
        session.conversation(conversation_of(team)).append_context("Alice is seven.", key="news")
    await team.run(task="What did Alice ask?")
    # Said to the selector too, so that a later request could hold it.
    assert [told] * 6 == ["Alice is seven." in record.body.decode() for record in provider.requests]
    await team.reset()
    provider.requests.clear()
    await team.run(task="What did Bob ask?")
    sent = prompts(provider.requests)
    assert [any(ABOVE in section.text for section in prompt.sections) for prompt in sent] == [True, False] * 3
    assert all("Bob" in record.body.decode() and "Alice" not in record.body.decode() for record in provider.requests)
    assert not session.failures


async def test_where_reads_cost_half_a_selector_has_a_lane_of_its_own(provide, new_client):
    """Carrying the agents' system text would cost more; its questions still extend one another."""
    provider = provide("openai", Selecting(*ROLES))
    client = new_client(provider)
    team = SelectorGroupChat([role(n, client) for n in ROLES], client, max_turns=3)
    await wrap(team, Session(SharedPrefix(system=HANDBOOK))).run(task=TASK)
    questions = prompts(provider.requests)[::2]
    assert not any(HANDBOOK[:60] in section.text for prompt in questions for section in prompt.sections)
    assert all(common(a, b) == len(a.sections) - 1 for a, b in pairwise(questions))


@pytest.mark.parametrize("all_of_them", [True, False], ids=["agents hold it", "nobody holds it"])
async def test_of_a_selector_that_asks_behind_the_conversation_alone_the_report_says_no_more(
    provide, new_client, all_of_them
):
    """It counted the handbook as shared and added there, which its questions do not hold; a preview too."""
    provider = provide("openai", Selecting(*ROLES))
    client, session = new_client(provider), Session(SharedPrefix(system=HANDBOOK))
    held = HANDBOOK if all_of_them else ""
    agents = [role(name, client, system_message=f"You are the {name}. {held}") for name in ROLES]
    team = wrap(SelectorGroupChat(agents, client, max_turns=4), session)
    before = await asyncio.to_thread(preview, team, session, task=TASK)
    await team.run(task=TASK)
    sent = prompts(provider.requests)
    assert not any(HANDBOOK[:60] in section.text for prompt in sent[::2] for section in prompt.sections)
    calls = [call for call in session.calls if call.agent == "selector"]
    reasons = [next(one for one in before.requests if one.agent == "selector").reasons, *(one.reasons for one in calls)]
    said = [dict(why.numbers)["shared"] for (why,) in reasons]
    told = [sum(section.tokens for section in prompt.sections[:-1]) for prompt in sent[::2]]
    assert said == [told[0], *told]
    notes = [note for note in session.report().notes if "SharedPrefix" in note]
    assert ["added to those of critic, writer, planner," in note for note in notes] == [True] * (not all_of_them)


async def test_a_wrong_choice_is_answered_as_autogen_does(provide, new_client):
    """The selector's own retries go on behind its question."""
    provider = provide("openai", Selecting("nobody", "planner"))
    team = SelectorGroupChat([role(n, new_client(provider)) for n in ROLES], new_client(provider), max_turns=1)
    result = await wrap(team).run(task=TASK)
    first, second, _ = prompts(provider.requests)
    assert result.messages[-1].source == "planner"
    assert common(first, second) == len(first.sections)
    assert "No valid name was mentioned" in second.sections[-1].text


async def test_the_applications_selector_and_candidate_functions_keep_their_say(provide, new_client):
    """A selector function that answers is obeyed, and one that does not leaves the choice to the model."""
    provider = provide("openai", Selecting("writer"))
    asked = []

    def choose(thread):
        asked.append(len(thread))
        return "critic" if len(thread) == 1 else None

    team = SelectorGroupChat(
        [role(n, new_client(provider)) for n in ROLES],
        new_client(provider),
        max_turns=2,
        selector_func=choose,
        candidate_func=lambda thread: ["writer", "planner"],
    )
    result = await wrap(team).run(task=TASK)
    assert [message.source for message in result.messages] == ["user", "critic", "writer"]
    assert asked == [1, 2]
    assert "['writer', 'planner']" in provider.requests[1].prompt.sections[-1].text


@pytest.mark.parametrize(
    "template",
    [
        "{roles}\n{history}\nOnly return the role.",
        "{history}{participants}: only return the role.",
        "{history}|{roles}|{participants}: only return the role.",
    ],
)
async def test_a_prompt_whose_fields_stand_close_together_is_read_too(provide, new_client, template):
    """Where the roles end and the conversation begins cannot be told from the words, but the conversation is known."""
    provider = provide("openai", Selecting(*ROLES))
    client = new_client(provider, model="gpt-5-2025-08-07")
    team = SelectorGroupChat([role(n, client) for n in ROLES], client, max_turns=3, selector_prompt=template)
    await wrap(team, Session(SharedPrefix(system=HANDBOOK))).run(task=f"{TASK}\n\nplanner: is a name.\nAnd so on.")
    # The first one is asked before any agent.
    questions = prompts(provider.requests)[2::2]
    assert all(question.sections[-1].text.count(ABOVE) == 1 for question in questions)
    assert not any(TASK[:40] in question.sections[-1].text for question in questions)


@pytest.mark.parametrize("head", ["{roles}\n", "{roles}\nOne of {participants}.\n"])
async def test_a_selector_keeps_its_own_question_where_that_is_read_from_the_cache_with_the_roles(
    provide, new_client, head
):
    """Behind the conversation long descriptions were paid in full with each question: they cost 2.5 times as much."""
    bodies, costs = [], []
    for session in (None, Session()):
        provider = provide("openai", Selecting(*ROLES))
        client = new_client(provider)
        agents = [role(name, client) for name in ROLES]
        for agent in agents:
            agent._description = f"{agent.name}: " + "It is asked for one thing. " * 60
        team = SelectorGroupChat(
            agents, client, max_turns=7, selector_prompt=head + "{history}\nOnly return the role of {participants}."
        )
        await (team if session is None else wrap(team, session)).run(task=TASK)
        bodies.append([record.json["messages"] for record in provider.requests[::2]])
        costs.append(sum(record.outcome.cost_units(profile_for("gpt-4.1")) for record in provider.requests))
    assert bodies[0] == bodies[1]
    assert costs[1] < costs[0]
    [why] = {call.reasons[-1] for call in session.calls if call.agent == "selector"}
    assert why.why == "little_to_share"
    numbers = dict(why.numbers)
    # Of three agents in turn the candidates are named in three ways: two replies are said until one comes again.
    assert (numbers["saved"] > 0) is ("{participants}" in head)
    assert numbers["cost"] > numbers["saved"]


async def test_a_selector_that_keeps_its_own_question_is_told_what_is_said_to_all(provide, new_client):
    """What the application says to the conversation arrives behind it, though long descriptions are paid for that."""
    provider = provide("openai", Selecting(*ROLES))
    client, session = new_client(provider), Session()
    agents = [role(name, client) for name in ROLES]
    agents[0]._description = "It is asked for one thing. " * 200
    team = wrap(SelectorGroupChat(agents, client, max_turns=2), session)
    await team.run(task=TASK)
    session.conversation(conversation_of(team)).append_context("The line is closed.", key="news")
    await team.run(task="Go on.")
    told = [record.body.decode().count("The line is closed.") for record in provider.requests[::2]]
    assert told == [0, 0, 1, 1]
    assert [ABOVE in record.body.decode() for record in provider.requests[::2]] == [False, False, True, True]


async def test_a_selector_on_another_model_does_not_carry_the_agents_system_text(provide, new_client):
    """It cannot read the agents' cache, so only the transcript stands before its question."""
    provider = provide("openai", Selecting(*ROLES))
    other = new_client(provider, fresh=True)
    other._create_args["model"] = other._resolved_model = "gpt-4o-mini-2024-07-18"
    team = SelectorGroupChat([role(n, new_client(provider)) for n in ROLES], other, max_turns=2)
    await wrap(team).run(task=TASK)
    sent = [record.prompt for record in provider.requests if record.model.startswith("gpt-4o-mini")]
    assert len(sent) == 2
    assert not any(HANDBOOK[:60] in section.text for prompt in sent for section in prompt.sections)
    assert common(*sent) == len(sent[0].sections) - 1


async def test_a_swarm_hands_over_within_one_prefix(provide, new_client):
    """Hand-off tools of all agents are in the union, and what was found travels as public text."""
    steps = {
        "planner": (ToolCall("search", {"query": "q"}), "planned", ToolCall("transfer_to_critic")),
        "critic": ("criticised",),
    }
    provider = provide("openai", Says(steps))
    team = Swarm(
        [
            role("planner", new_client(provider), tools=[search()], handoffs=["critic"], reflect_on_tool_use=True),
            role("critic", new_client(provider), handoffs=["planner"]),
        ],
        max_turns=3,
    )
    result = await wrap(team).run(task=TASK)
    assert [message.source for message in result.messages if isinstance(message, HandoffMessage)] == ["planner"]
    sent = prompts(provider.requests)
    names = [[tool["function"]["name"] for tool in record.json["tools"]] for record in provider.requests]
    assert names == [["search", "transfer_to_critic", "transfer_to_planner"]] * 4
    assert common(sent[2], sent[3]) == tail_index(sent[2])


async def test_what_a_handoff_carries_stands_in_the_transcript(provide, new_client):
    """Results of tools called together with a hand-off reach the next agent, as they do without us."""
    provider = provide("openai")
    calls = Reply(tool_calls=(ToolCall("search", {"query": "q"}), ToolCall("transfer_to_critic")))
    provider.simulator.script = Queue([calls, "criticised"])
    team = Swarm(
        [
            role("planner", new_client(provider), tools=[search()], handoffs=["critic"]),
            role("critic", new_client(provider), handoffs=["planner"]),
        ],
        max_turns=2,
    )
    await wrap(team).run(task=TASK)
    texts = [section.text for section in provider.requests[1].prompt.tier("messages")]
    assert [text.split("\n")[0] for text in texts[:-1]] == [
        "[user]",
        "[planner calls search]",
        "[tool search]",
        "[planner]",
    ]
    assert '{"query":"q"}' in texts[1].replace(" ", "")
    assert "search for q" in texts[2]


# AutoGen dumps the SDK's parsed answer, which the SDK's own types do not foresee.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_magentic_ones_agents_share_and_its_ledger_keeps_its_own_lane(provide, new_client):
    """The orchestrator's requests are its own; the agents' begin alike."""
    from benchmarks.autogen_workloads import Model

    provider = provide("openai", Model(order=("planner", "critic", "planner")))
    team = MagenticOneGroupChat([role(n, new_client(provider)) for n in ("planner", "critic")], new_client(provider))
    result = await wrap(team).run(task=TASK)
    agents = [p for p in prompts(provider.requests) if p.sections[-1].text.startswith("<role")]
    assert len(agents) == 3
    assert all(common(a, b) == tail_index(a) for a, b in pairwise(agents))
    assert isinstance(result.messages[-1], TextMessage)
    assert session_of(team).failures == {}


@pytest.mark.parametrize(("saved", "lane"), [(True, "joined"), (False, "apart"), ("own", "own")])
async def test_a_saved_state_says_what_a_selector_asks_behind(provide, new_client, saved, lane):
    """Also one of an earlier version, which knew two ways and saved whether it is the first."""
    client = new_client(provide("openai", Selecting(*ROLES)))
    teams = [wrap(SelectorGroupChat([role(n, client) for n in ROLES], client, max_turns=1)) for _ in range(2)]
    await teams[0].run(task=TASK)
    state = await teams[0].save_state()
    assert state["cacheprefix"]["joins"] == {"selector": "apart"}
    state["cacheprefix"]["joins"] = {"selector": saved}
    await teams[1].load_state(state)
    assert teams[1]._model_client.member.lane == lane
