"""Saving, loading, resetting: the next request is byte-identical to that of a run that was never interrupted."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import killing
import pytest
from autogen_agentchat.agents import (
    AssistantAgent,
    MessageFilterAgent,
    MessageFilterConfig,
    PerSourceFilter,
    SocietyOfMindAgent,
)
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.models import AssistantMessage, UserMessage
from autogen_teams import HANDBOOK, ROLES, TASK, Says, after_a_pause, role, search

from cacheprefix import Caching, Compaction, Session, SharedPrefix
from cacheprefix.profiles import profile_for
from cacheprefix.server import Reply, ToolCall
from cacheprefix_autogen import conversation_of, session_of, wrap

HERE = Path(__file__).parent
STEPS = {name: (ToolCall("search", {"query": name}), f"{name} is done") for name in ROLES}


def _bodies(records):
    return [_without_ids(record.json) for record in records]


def _without_ids(value):
    """Call ids follow from the whole prompt at the simulated provider; here only what was said counts."""
    if isinstance(value, dict):
        return {key: _without_ids(item) for key, item in value.items() if key not in ("id", "tool_call_id")}
    return [_without_ids(item) for item in value] if isinstance(value, list) else value


def _tool_team(client, **options):
    return RoundRobinGroupChat(
        [role(n, client, tools=[search()], reflect_on_tool_use=True, **options) for n in ROLES], max_turns=2
    )


async def test_a_resumed_team_sends_the_same_bytes(provide, new_client):
    """State saved as JSON and loaded into a new team continues as the old one does."""
    provider = provide("openai", Says(STEPS))
    team = wrap(_tool_team(new_client(provider)))
    await team.run(task=TASK)
    state = json.loads(json.dumps(await team.save_state()))
    provider.simulator.script = Says(STEPS)
    provider.requests.clear()
    await team.run(task="Go on.")
    uninterrupted = _bodies(provider.requests)

    provider.simulator.script = Says(STEPS)
    provider.requests.clear()
    other = wrap(_tool_team(new_client(provider)))
    await other.load_state(state)
    await other.run(task="Go on.")
    assert _bodies(provider.requests) == uninterrupted
    assert session_of(other).failures == {}


@pytest.mark.parametrize("saved", ["at once", "after a run"])
async def test_a_team_that_is_reset_and_taken_up_sends_the_same_bytes(provide, new_client, saved):
    """Long texts stand where the run before has left them in the cache, and in another process there too."""
    prefix = SharedPrefix(system=HANDBOOK)

    def made():
        text = "Never leave out who said what, and when. " * 120
        agents = [role(name, client, system_message=f"You are {name}. {text}\n\n{HANDBOOK}") for name in ROLES]
        ends = MaxMessageTermination(3) | TextMentionTermination("never said")
        return wrap(RoundRobinGroupChat(agents, termination_condition=ends), Session(prefix))

    async def asked(task, team):
        provider.simulator.script = Says()
        provider.requests.clear()
        await team.run(task=task)
        return _bodies(provider.requests)

    provider = provide("openai", Says())
    client = new_client(provider)
    team = made()
    await asked("Which day was it? " * 40, team)
    if saved == "after a run":
        # The process that resets it took it up itself.
        state = json.loads(json.dumps(await team.save_state()))
        other = made()
        await other.load_state(state)
        await team.reset()
        await other.reset()
    else:
        await team.reset()
        state = json.loads(json.dumps(await team.save_state()))
        other = made()
        await other.load_state(state)
    task = "Who came by then? " * 40
    on, resumed = await asked(task, team), await asked(task, other)
    assert on == resumed
    # The role's text goes in front of what is said: the run before has left it there.
    assert "Never leave out" in json.dumps(on[0]["messages"][1])
    assert not any("Which day" in json.dumps(body) for body in on)
    assert "Which day" not in json.dumps(state) or saved == "after a run"


async def test_a_team_that_goes_back_to_a_state_sends_what_a_fresh_one_sends(provide, new_client):
    """What was decided behind that state, in the process that went on, is dropped."""
    provider = provide("openai", Says())
    compaction = Compaction(trigger=6_000, keep_turns=1, keep_users=False, horizon=10_000)

    def made():
        team = RoundRobinGroupChat([role(name, new_client(provider)) for name in ROLES], max_turns=2)
        return wrap(team, Session(SharedPrefix(system=HANDBOOK), compaction=compaction))

    async def goes_on(team):
        await team.load_state(json.loads(state))
        provider.simulator.script = Says()
        provider.requests.clear()
        await team.run(task="Go on.")
        return _bodies(provider.requests)

    team = made()
    long = "Some words of the task. " * 160
    for number in range(5):
        if number == 3:
            state = json.dumps(await team.save_state())
        await team.run(task=f"{number}: {long}")
    assert b"Earlier messages were removed" in provider.requests[-1].body
    assert await goes_on(team) == await goes_on(made())


def _searches(request):
    """Search for what the newest task names, then answer."""
    if request.asked.choice == "none":
        return Reply("Found it. " * 30)
    named = "second" if "And the second?" in request.text else "first"
    return Reply(tool_calls=(ToolCall("search", {"query": named}),))


def _killed(*arguments):
    """Start the team in a process, kill it inside the tool, and give its exit code."""
    command = [sys.executable, str(HERE / "killing.py"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "inside\n"
        finally:
            process.kill()
    return process.returncode


@pytest.mark.slow
async def test_a_killed_process_is_resumed_byte_identically(provide, tmp_path):
    """SIGKILL inside a tool; another process, under another budget, sends what an undisturbed team would have sent."""
    provider = provide("openai", _searches)
    url, state = provider.openai_base_url, tmp_path / "state.json"
    assert _killed(url, str(state)) == -9
    before = _bodies(provider.requests)
    bodies = []
    for saved, budget in ((None, 100), (state, 400)):
        provider.requests.clear()
        team = killing.team(url, budget)
        if saved is None:
            await team.run(task=f"{TASK} first")
        else:
            await team.load_state(json.loads(saved.read_text()))
        await team.run(task="And the second?")
        assert session_of(team).failures == {}
        bodies.append(_bodies(provider.requests))
        await team._participants[0]._model_client.close()
    control, resumed = bodies
    assert before == control[:5]
    assert resumed == control[4:]
    assert len(resumed[1]["messages"][-1]["content"]) < len(killing.LONG) / 2


async def test_the_states_messages_are_stored_once(provide, new_client):
    """The transcript stands in the team's state and not in every agent's."""
    provider = provide("openai", Says())
    team = wrap(RoundRobinGroupChat([role(n, new_client(provider)) for n in ROLES], max_turns=4))
    await team.run(task=TASK)
    state = await team.save_state()
    assert [entry["forms"][0]["content"].split("\n")[0] for entry in state["cacheprefix"]["entries"]] == [
        "[user]",
        "[planner]",
        "[critic]",
        "[writer]",
        "[planner]",
    ]
    for name in ROLES:
        assert "entries" not in state["agent_states"][name]["agent_state"]["cacheprefix"]


async def test_an_unwrapped_team_loads_the_state_of_a_wrapped_one(provide, new_client):
    """AutoGen's own state in it is complete, so nothing is lost without cacheprefix."""
    provider = provide("openai", Says())
    team = wrap(RoundRobinGroupChat([role(n, new_client(provider)) for n in ROLES], max_turns=2))
    await team.run(task=TASK)
    plain = RoundRobinGroupChat([role(n, new_client(provider)) for n in ROLES], max_turns=1)
    await plain.load_state(await team.save_state())
    await plain.run(task="Go on.")
    contents = [message["content"] for message in provider.requests[-1].json["messages"]]
    assert contents[1] == TASK
    assert contents[-1] == "Go on."
    assert any(text.startswith("planner speaks") for text in contents)


def _lacks(plain, fork):
    """Texts of the application's own requests that the wrapped ones have not, or have more than once."""
    found = []
    for own, mine in zip(plain, fork, strict=True):
        said = "\n".join(str(one["content"]) for one in mine.json["messages"])
        parts = (part for one in own.json["messages"] for part in str(one["content"] or "").split("\n") if part.strip())
        found += [part[:60] for part in parts if said.count(part.strip()) != 1]
    return found


async def test_a_state_saved_without_us_is_taken_over_without_a_reset(provide, new_client):
    """The agents share from the next turn on and hold all that they were told; a plain team loads their state again.

    Their own tool calls of before are with them too, and nobody else's.
    """

    def build():
        return _tool_team(new_client(provider))

    provider = provide("openai", Says(STEPS))
    plain = build()
    await plain.run(task=TASK)
    state = json.loads(json.dumps(await plain.save_state()))
    sent = []
    for wrapped in (False, True):
        provider.simulator.script = Says()
        provider.requests.clear()
        team = wrap(build(), after_a_pause()) if wrapped else build()
        await team.load_state(state)
        await team.run(task="Go on.")
        sent.append(list(provider.requests))
        if not wrapped:
            continue
        assert [call.layout for call in session_of(team).calls] == ["fork", "fork"]
        assert not any("saved without" in note for note in session_of(team).report().notes)
        assert not session_of(team).failures
    assert _lacks(*sent) == []
    back = build()
    await back.load_state(json.loads(json.dumps(await team.save_state())))
    provider.requests.clear()
    await back.run(task="And on.")
    texts = [str(one["content"]) for one in provider.requests[0].json["messages"]]
    assert texts[1] == TASK
    assert texts[-1] == "And on."


@pytest.mark.parametrize("kind", [RoundRobinGroupChat, SelectorGroupChat])
async def test_a_conversation_that_began_without_us_goes_on_so_until_a_pause(provide, new_client, kind):
    """In another layout, or under a routing key, all that the provider holds was paid anew: up to 1.6 of unmodified."""

    def build():
        selects = {} if kind is RoundRobinGroupChat else {"model_client": client, "selector_func": choose}
        return kind([role(name, client) for name in ROLES[:2]], max_turns=2, **selects)

    def choose(thread):
        return "critic" if thread[-1].source == "planner" else None

    sent, costs = [], []
    for wrapped in (False, True):
        provider = provide("openai", Says({"nobody": ["planner"] * 9}))
        client, sessions = new_client(provider), []
        team = build()
        await team.run(task=TASK)
        for _ in range(2):
            # Saved by the plain team, then by a wrapped one in another process.
            state = json.loads(json.dumps(await team.save_state()))
            sessions.append(Session())
            team = wrap(build(), sessions[-1]) if wrapped else build()
            await team.load_state(state)
            await team.run(task="Go on.")
        sent.append([record.json for record in provider.requests])
        costs.append(sum(record.outcome.cost_units(profile_for("gpt-4.1")) for record in provider.requests))
    assert sent[0] == sent[1]
    assert costs[0] == costs[1]
    for session in sessions:
        assert {call.reasons[-1].why for call in session.calls} == {"began_without_us"}
        assert session.report().total.ratio == 1.0
    again = wrap(build(), after_a_pause())
    await again.load_state(json.loads(json.dumps(await team.save_state())))
    await again.run(task="And on.")
    assert "fork" in {call.layout for call in session_of(again).calls}


async def test_where_nothing_was_marked_a_conversation_that_began_without_us_is_shared_at_once(provide, new_client):
    """Anthropic holds nothing of it."""
    provider = provide("anthropic", Says())
    team = RoundRobinGroupChat([role(name, new_client(provider, api="anthropic")) for name in ROLES], max_turns=3)
    await team.run(task=TASK)
    session = session_of(wrap(team))
    await team.run(task="Go on.")
    assert [call.layout for call in session.calls] == ["fork"] * 3


@pytest.mark.parametrize("way", ["loaded", "wrapped"])
async def test_an_agent_by_itself_is_taken_over_in_the_middle_of_its_work(provide, new_client, way):
    """What its own context holds is what it was told: it shares once the provider has forgotten what it was sent."""

    def build():
        return role("planner", new_client(provider), tools=[search()], reflect_on_tool_use=True)

    provider = provide("openai", Says(STEPS))
    later = [0]
    caching = Caching(clock=lambda: time.time() + later[0])
    agent, session = build(), Session(SharedPrefix(system=HANDBOOK), caching=caching)
    await agent.run(task=TASK)
    state = json.loads(json.dumps(await agent.save_state()))
    provider.simulator.script = Says()
    provider.requests.clear()
    same = build()
    await same.load_state(state)
    await same.run(task="Go on.")
    plain = list(provider.requests)
    provider.simulator.script = Says()
    provider.requests.clear()
    if way == "loaded":
        agent = wrap(build(), session)
        await agent.load_state(state)
    else:
        wrap(agent, session)
    later[0] = 3_600
    await agent.run(task="Go on.")
    assert [call.layout for call in session.calls] == ["fork"]
    assert not session.failures
    assert _lacks(plain, provider.requests) == []


async def test_a_filtered_agent_is_shown_nothing_that_its_filter_kept_back(provide, new_client):
    """Also where its team is taken over in the middle: its own context says what it has heard."""
    provider = provide("openai", Says())
    only_user = MessageFilterConfig(per_source=[PerSourceFilter(source="user")])
    agents = [role("planner", new_client(provider)), role("critic", new_client(provider))]
    agents.append(MessageFilterAgent("deaf", wrapped_agent=role("writer", new_client(provider)), filter=only_user))
    team = RoundRobinGroupChat(agents, max_turns=3)
    await team.run(task=TASK)
    session = session_of(wrap(team))
    await team.run(task="Go on.")
    texts = [str(one["content"]) for one in provider.requests[-1].json["messages"]]
    assert sum(text.count(TASK) for text in texts) == 1
    assert any("Go on." in text for text in texts)
    assert not any("planner speaks" in text or "critic speaks" in text for text in texts)
    assert not session.failures


@pytest.mark.parametrize("kind", ["filter", "society"])
async def test_what_autogen_leaves_out_of_a_state_is_not_brought_back(provide, new_client, kind):
    """A filtered agent's context and a mind's own: a resumed team runs and is told as it is without us."""

    def build():
        client = new_client(provider)
        if kind == "filter":
            only = MessageFilterConfig(per_source=[PerSourceFilter(source="user"), PerSourceFilter(source="planner")])
            inner = MessageFilterAgent("deaf", wrapped_agent=role("writer", client), filter=only)
        else:
            team = RoundRobinGroupChat(
                [role(n, client) for n in ROLES[:2]], termination_condition=MaxMessageTermination(4)
            )
            inner = SocietyOfMindAgent("society", team=team, model_client=client)
        return RoundRobinGroupChat([role("planner", client), inner], max_turns=2)

    provider = provide("openai", Says())
    seen = []
    for wrapped in (False, True):
        provider.simulator.script = Says()
        team = wrap(build()) if wrapped else build()
        await team.run(task=TASK)
        state = json.loads(json.dumps(await team.save_state()))
        provider.simulator.script = Says()
        provider.requests.clear()
        other = wrap(build()) if wrapped else build()
        await other.load_state(state)
        result = await other.run(task="Go on.")
        seen.append(([(one.source, one.to_text()) for one in result.messages], list(provider.requests)))
    assert session_of(other).failures == {}
    (plain, before), (forked, now) = seen
    assert forked == plain
    assert _lacks(before, now) == []
    for own, mine in zip(before, now, strict=True):
        for text in (TASK, "planner speaks", "critic speaks"):
            assert (text in str(mine.json)) == (text in str(own.json))


async def test_reset_forgets_the_conversation_and_keeps_the_prefix(provide, new_client):
    """After a reset the team's first request is that of a new team."""
    provider = provide("openai", Says())
    team = wrap(RoundRobinGroupChat([role(n, new_client(provider)) for n in ROLES], max_turns=3))
    await team.run(task=TASK)
    await team.reset()
    await team.run(task=TASK)
    bodies = _bodies(provider.requests)
    assert bodies[0] == bodies[3]


async def test_resetting_one_agent_leaves_the_others_views(provide, new_client):
    """What the others have read does not vanish with one agent's memory."""
    from autogen_core import CancellationToken

    provider = provide("openai", Says())
    agents = [role(n, new_client(provider)) for n in ROLES]
    team = wrap(RoundRobinGroupChat(agents, max_turns=3))
    await team.run(task=TASK)
    await agents[0].on_reset(CancellationToken())
    provider.requests.clear()
    await team.run(task="Go on.")
    planner, critic, _ = provider.requests
    assert not any(TASK[:30] in section.text for section in planner.prompt.sections)
    assert any(TASK[:30] in section.text for section in critic.prompt.sections)


async def test_an_agent_by_itself_carries_its_transcript_in_its_own_state(provide, new_client):
    """A wrapped agent outside a team resumes byte-identical too."""

    def build():
        return wrap(role("planner", new_client(provider)), Session(SharedPrefix(system="Rules. " * 1500)))

    provider = provide("openai", Says())
    agent = build()
    await agent.run(task=TASK)
    state = json.loads(json.dumps(await agent.save_state()))
    await agent.run(task="Go on.")
    other = build()
    await other.load_state(state)
    await other.run(task="Go on.")
    assert provider.requests[1].json == provider.requests[2].json


@pytest.mark.parametrize("saved", ["before it was wrapped", "as it was wrapped", "in the middle"])
@pytest.mark.parametrize("kind", ["team", "agent"])
async def test_a_state_that_is_loaded_for_another_user_brings_nothing_of_the_one_before(
    provide, new_client, kind, saved
):
    """One object serves all users, each with a state: what one was told is in no other's request and state."""
    provider = provide("openai", Says())
    agents = [role(name, new_client(provider)) for name in ROLES]
    made = agents[0] if kind == "agent" else RoundRobinGroupChat(agents, max_turns=2)
    states = {"before it was wrapped": await made.save_state()}
    target = wrap(made, Session(SharedPrefix(system="Rules. " * 1500)))
    states["as it was wrapped"] = await target.save_state()
    await target.run(task="Begin.")
    states["in the middle"] = await target.save_state()
    begun = json.dumps(states[saved])

    await target.load_state(json.loads(begun))
    talk = session_of(target).conversation(conversation_of(target))
    talk.append_context("Alice has a dog.", key="facts")
    talk.set_zone("memories", "Alice likes tea.")
    await target.run(task="Alice asks.")
    alice = json.loads(json.dumps(await target.save_state()))
    await target.load_state(json.loads(begun))
    provider.requests.clear()
    await target.run(task="Bob asks.")
    seen = [*(record.body.decode() for record in provider.requests), json.dumps(await target.save_state())]
    assert all("Bob asks." in one and "Alice" not in one for one in seen)

    await target.load_state(alice)
    provider.requests.clear()
    await target.run(task="Go on.")
    said = [record.body.decode() for record in provider.requests]
    assert all("Alice has a dog." in one and "Alice asks." in one and "Bob" not in one for one in said)
    assert session_of(target).failures == {}


async def test_a_state_that_two_teams_begin_with_is_a_conversation_of_each(provide, new_client):
    """What one user was told is the other's in no request, and a reset of one team leaves the other's."""
    provider = provide("openai", Says())
    session = Session(SharedPrefix(system="Rules. " * 1500))
    first, alice, bob = (
        wrap(RoundRobinGroupChat([role(name, new_client(provider)) for name in ROLES], max_turns=2), session)
        for _ in range(3)
    )
    await first.run(task="Begin.")
    begun = json.dumps(await first.save_state())
    for team, user in ((alice, "Alice"), (bob, "Bob")):
        await team.load_state(json.loads(begun))
        session.conversation(conversation_of(team)).append_context(f"{user} has a dog.", key="facts")
    await alice.run(task="Alice asks.")
    await alice.reset()
    provider.requests.clear()
    await bob.run(task="Bob asks.")
    said = [record.body.decode() for record in provider.requests]
    assert all("Bob has a dog." in one and "Alice" not in one for one in said)


async def test_a_selector_team_resumes_with_one_copy_of_the_task(provide, new_client):
    """AutoGen appends the thread again when it loads into a used team; the fork shows it once."""
    from test_selector import Selecting

    provider = provide("openai", Selecting(*ROLES))
    team = wrap(SelectorGroupChat([role(n, new_client(provider)) for n in ROLES], new_client(provider), max_turns=2))
    await team.run(task=TASK)
    state = await team.save_state()
    provider.requests.clear()
    await team.load_state(state)
    await team.run(task="Go on.")
    selecting = provider.requests[0].prompt
    assert sum(section.text.count(TASK[:40]) for section in selecting.sections) == 1


async def test_wrapping_a_team_that_has_run_continues_with_what_was_said(provide, new_client):
    """A team in the middle of its work is taken over with its agents' views."""
    provider = provide("openai", Says())
    team = RoundRobinGroupChat([role(n, new_client(provider)) for n in ROLES], max_turns=2)
    await team.run(task=TASK)
    wrap(team, after_a_pause())
    await team.run(task="Go on.")
    heads = [s.text.split("\n")[0] for s in provider.requests[-1].prompt.tier("messages")]
    assert heads[:5] == ["[user]", "[planner]", "[critic]", "[user]", "[writer]"]
    assert session_of(team).failures == {}


@pytest.mark.parametrize("way", ["asked alone before", "given a hint"])
async def test_wrapping_a_team_loses_nothing_that_an_agent_alone_knows(provide, new_client, way):
    """Asked by itself before the team ran, or given a hint: no thread holds it, so its requests stay its own."""
    provider = provide("openai", Says())
    agents = [role(name, new_client(provider)) for name in ROLES[:2]]
    team = RoundRobinGroupChat(agents, max_turns=2)
    if way == "asked alone before":
        await agents[0].run(task="What nobody else was told.")
    await team.run(task=TASK)
    if way == "given a hint":
        hint = UserMessage(content="What nobody else was told.", source="application")
        await agents[0].model_context.add_message(hint)
    session = Session()
    wrap(team, session)
    start = len(provider.requests)
    await team.run(task="Go on.")
    mine, other = [record.body.decode() for record in list(provider.requests)[start:]]
    assert "What nobody else was told." in mine
    assert "What nobody else was told." not in other
    assert any("what nobody said in the team" in note for note in session.report().notes)


async def _of_another(agent, how):
    """Put another user's messages, as many as there were, into an agent's model context."""
    context = agent.model_context
    if how == "edited":
        message, *_ = await context.get_messages()
        message.content = "I am Bob."
        return
    said = [UserMessage(content="I am Bob.", source="user"), AssistantMessage(content="Hello.", source="planner")]
    if how == "loaded":
        other = UnboundedChatCompletionContext(said)
        await context.load_state(await other.save_state())
        return
    await context.clear()
    for message in said:
        await context.add_message(message)


@pytest.mark.parametrize(
    ("when", "how"),
    [
        *((when, how) for when in ("between turns", "and saved") for how in ("loaded", "filled", "edited")),
        ("in a tool", "edited"),
    ],
)
async def test_what_the_application_takes_out_of_an_agents_context_is_not_sent_again(provide, new_client, how, when):
    """Another user's messages in its place are, though they are as many; in the state's next process too."""
    steps = [ToolCall("forget", {}), "Done."] if when == "in a tool" else ["Yes."]
    provider = provide("openai", Says({"planner": ["Hello.", *steps, "Yes."]}))

    async def forget() -> str:
        """Begins anew."""
        await _of_another(agent, how)
        return "Forgotten."

    def made():
        return role("planner", new_client(provider), tools=[forget], reflect_on_tool_use=True)

    agent = wrap(made(), Session(SharedPrefix(system=HANDBOOK)))
    await agent.run(task="I am Alice.")
    if when != "in a tool":
        await _of_another(agent, how)
    await agent.run(task="Who am I?")
    if when == "and saved":
        state = json.loads(json.dumps(await agent.save_state()))
        agent = wrap(made(), Session(SharedPrefix(system=HANDBOOK)))
        await agent.load_state(state)
        await agent.run(task="And now?")
    body = provider.requests[-1].body.decode()
    assert "Alice" not in body
    assert "I am Bob." in body
    assert session_of(agent).failures == {}


class _Keeps(AssistantAgent):
    """Its context is left alone by a reset and in no state, as that of AutoGen's CodeExecutorAgent."""

    async def on_reset(self, cancellation_token):
        """Nothing is cleared."""

    async def save_state(self):
        """Nothing is saved."""
        return {}

    async def load_state(self, state):
        """Nothing is loaded."""


def _said_to(provider, name):
    """Which texts each request of an agent holds."""
    texts = ["\n".join(section.text for section in record.prompt.sections) for record in provider.requests]
    named = [text for text in texts if f"You are the {name}." in text]
    return [sorted(set(re.findall(r"task \d|\w+ speaks for the time \d", text))) for text in named]


@pytest.mark.parametrize("how", ["reset", "moved", "rewound"])
async def test_an_agent_whose_class_keeps_its_context_is_shown_what_it_is_shown_without_us(provide, new_client, how):
    """After a reset and in the place that was saved all that it still holds, in another team nothing from before."""
    shown = []
    for plain in (True, False):
        provider = provide("openai", Says())

        def build(provider=provider, plain=plain):
            first, *others = ROLES
            text = f"You are the {first}. Mind the duty of a {first}.\n\n{HANDBOOK}"
            agents = [_Keeps(first, new_client(provider), system_message=text)]
            agents += [role(name, new_client(provider)) for name in others]
            team = RoundRobinGroupChat(agents, max_turns=4)
            return team if plain else wrap(team)

        team = build()
        await team.run(task="task 1")
        state = json.loads(json.dumps(await team.save_state()))
        if how == "reset":
            await team.reset()
        elif how == "moved":
            team = build()
            await team.load_state(state)
        else:
            await team.run(task="task 2")
            await team.load_state(state)
        await team.run(task="task 3")
        shown.append([_said_to(provider, name) for name in ROLES])
    assert shown[0] == shown[1]


async def test_what_was_redacted_in_a_saved_state_is_not_sent(provide, new_client):
    """The application edits AutoGen's part of a state, and knows nothing of ours."""
    provider = provide("openai", Says())

    def build():
        return wrap(RoundRobinGroupChat([role(n, new_client(provider)) for n in ROLES], max_turns=3))

    team = build()
    await team.run(task="My number is 4711.")
    state = json.loads(json.dumps(await team.save_state()))
    for agent in state["agent_states"].values():
        for message in agent.get("agent_state", {}).get("llm_context", {}).get("messages", ()):
            message["content"] = message["content"].replace("4711", "****")
    team = build()
    await team.load_state(state)
    provider.requests.clear()
    await team.run(task="Go on.")
    assert [("****" in str(one.json), "4711" in str(one.json)) for one in provider.requests] == [(True, False)] * 3


async def test_what_was_redacted_in_a_saved_thread_is_not_sent_to_a_selector(provide, new_client):
    """It is asked of the thread as the application left it."""
    provider = provide("openai", Says())

    def build():
        client = new_client(provider)
        team = SelectorGroupChat([role(n, client) for n in ROLES], client, max_turns=2)
        return wrap(team, Session(SharedPrefix(system=HANDBOOK)))

    team = build()
    await team.run(task=f"My number is 4711. {TASK}")
    assert any(call.layout == "fork" for call in session_of(team).calls if call.agent == "selector")
    state = json.loads(json.dumps(await team.save_state()))
    thread = json.dumps(state["agent_states"]["SelectorGroupChatManager"])
    state["agent_states"]["SelectorGroupChatManager"] = json.loads(thread.replace("4711", "****"))
    team = build()
    await team.load_state(state)
    provider.requests.clear()
    await team.run(task="Go on.")
    asked = [str(one.json) for one in provider.requests if "You are the" not in str(one.json)]
    assert asked
    assert not any("4711" in text for text in asked)


def _with_version(value, version):
    """A saved state with every version of ours replaced."""
    if not isinstance(value, dict):
        return value
    ours = {"version": version} if "version" in value and ("view" in value or "entries" in value) else {}
    return {key: _with_version(one, version) for key, one in value.items()} | ours


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda state: _with_version(state, 99), "is of version 99, this release reads 1"),
        (lambda state: {**state, "cacheprefix": {"version": 1}}, "the saved state is damaged"),
    ],
)
async def test_a_state_that_cannot_be_read_is_named_in_one_warning(provide, new_client, caplog, damage, said):
    """The application's own part is loaded all the same, and its agents go on with that."""

    def team():
        return RoundRobinGroupChat([role(name, client) for name in ROLES[:2]], max_turns=2)

    provider = provide("openai", Says())
    client = new_client(provider)
    saved = team()
    wrap(saved, Session())
    await saved.run(task=TASK)
    state = damage(json.loads(json.dumps(await saved.save_state())))
    loaded = wrap(team(), session := Session())
    with pytest.warns(UserWarning, match="saved state"):
        await loaded.load_state(state)
    (warned,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert said in warned
    await loaded.run(task="And then?")
    assert [call.layout for call in session.calls] == ["own", "own"]
    assert "its saved state could not be read" in str(session.report())
