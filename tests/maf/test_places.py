"""Where the text of a role stands over the turns of a chat, and that it never makes a request dearer."""

from __future__ import annotations

import json
import operator
from itertools import pairwise

import pytest
from agent_framework import AgentSession, Content, Message
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from maf_driver import RULES, MafDriver
from maf_teams import HANDBOOK, NAMES, look, prompts, role, served, texts
from test_agents import session_for

from cacheprefix import Caching, Compaction, Session, SharedPrefix
from cacheprefix.profiles import cost_units, normalise_usage
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Reply, ToolCall
from cacheprefix.testing.driver import Role, Team, script
from cacheprefix_maf import wrap


def long_text(name, words=200):
    """A role's own text, of about four tokens a word."""
    return f"You are the {name}. " + " ".join(f"{name} keeps to rule number {at}." for at in range(words // 2))


async def chat(agents, rounds, transcript=(), held=None):
    """Everyone answers each short question in turn; the transcript as it is then."""
    said = list(transcript)
    for number in range(rounds):
        said.append(Message("user", [f"Question {len(said)} {number}?"]))
        for agent in agents:
            answer = await agent.run(list(said), session=(held or {}).get(agent.name))
            said.append(Message("assistant", [answer.text], author_name=agent.name))
    return said


@pytest.mark.parametrize("api", tuple(RULES))
async def test_a_long_role_text_stays_where_the_role_last_had_it(servers, api):
    """Each later request of the role begins with its whole earlier one, in a tool loop too, and reads it."""
    session = session_for(api)
    steps = {name: ["Yes.", "No.", ToolCall("look"), "Found."] for name in NAMES}
    async with served(servers, api, **steps) as (client, provider):
        options = {"default_options": {"store": False}} if api == "openai-responses" else {}
        agents = [
            wrap(role(client, n, instructions=long_text(n), tools=[look(result="it")], **options), session,
                 conversation="c")
            for n in NAMES
        ]  # fmt: skip
        await chat(agents, 3)
    for name in NAMES:
        own = [at for at, prompt in enumerate(prompts(provider)) if f'<role name="{name}">' in "".join(texts(prompt))]
        found = [prompts(provider)[at] for at in own]
        assert len(found) == 4
        for earlier, later in pairwise(found[1:]):
            assert [one.data for one in later.sections[: len(earlier.sections)]] == [
                one.data for one in earlier.sections
            ]
        last, before = (provider.requests[at].outcome for at in (own[2], own[1]))
        assert last.read_tokens >= before.input_tokens - 127
    assert session.failures == {}


async def test_a_short_role_text_goes_to_the_end(servers):
    """Where everybody reads what stands before it."""
    async with served(servers, "openai-chat") as (client, provider):
        session = session_for("openai-chat")
        await chat([wrap(role(client, n), session, conversation="c") for n in NAMES], 3)
    assert all(texts(prompt)[-1].startswith("<role") for prompt in prompts(provider))


async def test_a_saved_place_is_taken_up_elsewhere(servers):
    """Each agent's AgentSession holds it; in another process the next round's requests are the same bytes."""
    async with served(servers, "openai-chat") as (client, provider):

        def team(conversation):
            session = session_for("openai-chat")
            return [wrap(role(client, n, instructions=long_text(n)), session, conversation=conversation) for n in NAMES]

        agents, held = team("c"), {name: AgentSession(session_id=name) for name in NAMES}
        said = await chat(agents, 1, held=held)
        saved = {name: json.loads(json.dumps(one.to_dict())) for name, one in held.items()}
        provider.simulator.script.said.clear()
        await chat(agents, 1, said, held)
        first = [record.body for record in provider.requests[-3:]]
        provider.simulator.script.said.clear()
        await chat(team("c"), 1, said, {name: AgentSession.from_dict(one) for name, one in saved.items()})
    assert [record.body for record in provider.requests[-3:]] == first
    assert all(b"<role" in body and not texts(prompt)[-1].startswith("<role") for body, prompt in zip(
        first, prompts(provider)[-3:], strict=True
    ))  # fmt: skip


@pytest.mark.parametrize("several", [False, True], ids=["one session", "a session each"])
async def test_a_chat_resumed_after_each_turn_sends_what_one_process_sends(servers, several):
    """Also where a long text leaves its place: the reckoning is saved, not only the place."""

    async def turns(*, resumed):
        async with served(servers, "openai-chat") as (client, provider):
            provider.simulator.script = lambda request: Reply("fine " * (len(request.text) % 50))

            def team():
                session = session_for("openai-chat")
                made = (role(client, n, instructions=f"{long_text(n)}\n\n{HANDBOOK}") for n in NAMES[:2])
                return [wrap(each, session, conversation="c") for each in made]

            agents, held = team(), [AgentSession(session_id=name) for name in NAMES[: 1 + several]]
            said = []
            for number, size in enumerate((400, 1000, 400, 20)):
                if resumed and number:
                    agents = team()
                    held = [AgentSession.from_dict(json.loads(json.dumps(one.to_dict()))) for one in held]
                asked = f"{number}: {'pad ' * size}"
                said.append(Message("user", [asked]))
                for at, agent in enumerate(agents):
                    # A session that all have holds the history itself.
                    answer = await agent.run(list(said) if several else asked, session=held[at * several])
                    said.append(Message("assistant", [answer.text], author_name=agent.name))
            return [record.body for record in provider.requests]

    one, another = await turns(resumed=False), await turns(resumed=True)
    assert list(map(operator.eq, one, another)) == [True] * 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compaction", "sizes"),
    [
        (None, ([20], [20, 300, 20], [1700])),
        (Compaction(3_000, 1_000), ([20, 900, 1700, 900], [300, 20, 300, 1700], [300, 900, 300])),
    ],
    ids=["places", "compacted"],
)
async def test_agents_that_go_back_to_earlier_sessions_send_what_a_fresh_process_sends(servers, compaction, sizes):
    """Also where the conversation has a name: what was decided since then is gone; no other agent brings it back."""

    async def turns(*, fresh):
        async with served(servers, "openai-chat") as (client, provider):
            provider.simulator.script = lambda request: Reply("fine " * (len(request.text) % 50))

            def team():
                session = session_for("openai-chat", compaction=compaction)
                made = {name: role(client, name, instructions=f"{long_text(name)}\n\n{HANDBOOK}") for name in NAMES}
                return session, {name: wrap(each, session, conversation="c") for name, each in made.items()}

            async def rounds(agents, held, first, sizes):
                for number, size in enumerate(sizes, first):
                    for name, own in held.items():
                        await agents[name].run(f"{number}: {'pad ' * size}", session=own)

            (session, agents), held = team(), {name: AgentSession(session_id=name) for name in NAMES}
            await rounds(agents, held, 0, sizes[0])
            kept = json.dumps({name: one.to_dict() for name, one in held.items()})
            await rounds(agents, held, len(sizes[0]), sizes[1])
            sent = len(provider.requests)
            if fresh:
                session, agents = team()
            held = {name: AgentSession.from_dict(one) for name, one in reversed(json.loads(kept).items())}
            await rounds(agents, held, len(sizes[0]), sizes[2])
            assert session.failures == {}
            return [record.body for record in provider.requests[sent:]]

    one, another = await turns(fresh=False), await turns(fresh=True)
    assert list(map(operator.eq, one, another)) == [True] * len(NAMES) * len(sizes[2])


async def test_agents_on_messages_resumed_with_what_the_application_kept_send_what_one_process_sends(servers):
    """Nothing of the framework's holds their decisions: the conversation's own state does."""

    async def turns(*, resumed):
        async with served(servers, "openai-chat") as (client, provider):

            def team():
                session = session_for("openai-chat", compaction=Compaction(trigger=3_000, horizon=1_000))
                agents = [role(client, name, instructions=long_text(name)) for name in NAMES[:2]]
                return session, [wrap(agent, session, conversation="c") for agent in agents]

            (session, agents), said = team(), []
            for number in range(4):
                if resumed and number:
                    kept = session.conversation("c").dumps()
                    session, agents = team()
                    session.conversation("c").restore(kept)
                said.append(Message("user", [f"{number}: {'pad ' * 600}"]))
                said = await chat(agents, 1, said)
            assert session.failures == {}
            return [record.body for record in provider.requests]

    one, another = await turns(resumed=False), await turns(resumed=True)
    assert any(b"Earlier messages were removed" in body for body in one)
    assert list(map(operator.eq, one, another)) == [True] * 8


def spent(servers, team, api, session=None):
    """Cost units of a plan's requests."""
    provider = servers[api]
    provider.reset()
    provider.simulator.script = script()
    MafDriver(api).run(team, provider, session)
    profile = Session(caching=Caching(provider=RULES[api])).adapter.profile("")
    return sum(cost_units(normalise_usage(one.usage, one.api, profile=profile), profile) for one in provider.requests)


@pytest.mark.parametrize("api", ["openai-chat", "anthropic"])
@settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    sizes=st.lists(st.sampled_from([10, 60, 200, 500]), min_size=2, max_size=3),
    handbook=st.sampled_from(["Be brief.", HANDBOOK]),
    rounds=st.integers(1, 5),
)
def test_no_plan_is_dearer(servers, api, sizes, handbook, rounds):
    """However long the roles' texts are, however often they speak, and whether they share enough or not.

    Nobody knows how often they will be asked: who keeps its own layout pays the write premium of its second request,
    which its third one reads, and loses no more than that where there is none.
    """
    roles = tuple(Role(name, long_text(name, size)) for name, size in zip(NAMES, sizes, strict=False))
    team = Team(handbook=handbook, roles=roles, questions=tuple(f"Question {at}?" for at in range(rounds)))
    session = Session(SharedPrefix(system=handbook), caching=Caching(provider=RULES[api], counter=ESTIMATE))
    shared, plain = spent(servers, team, api, session), spent(servers, team, api)
    profile = session.adapter.profile("")
    once = {call.agent: sum((call.usage.cache_write or {}).values()) for call in reversed(session.calls)
            if call.layout == "own" and call.usage.cache_write}  # fmt: skip
    assert shared <= 1.001 * plain + (profile.default_ttl.write - 1.0) * sum(once.values())
    assert session.failures == {}


@pytest.mark.parametrize("api", ["openai-chat", "anthropic"])
async def test_agents_that_are_asked_in_one_short_conversation_after_another_read_their_texts(servers, api):
    """From the second one on a long text stands in front of what is said, and from the third one on it is read."""
    session = session_for(api)
    async with served(servers, api) as (client, provider):
        for number in range(3):
            agents = [
                wrap(role(client, n, instructions=f"{HANDBOOK}\n\n{long_text(n, 600)}"), session,
                     conversation=f"c{number}")
                for n in NAMES[:2]
            ]  # fmt: skip
            said = [Message("user", [f"About item {number}."])]
            for agent in agents:
                answer = await agent.run(list(said))
                said.append(Message("assistant", [f"{answer.text} It is item {number}."], author_name=agent.name))
    assert session.failures == {}
    for first, later in zip(provider.requests[:2], provider.requests[4:], strict=True):
        found = texts(first.prompt), texts(later.prompt)
        at = [next(index for index, text in enumerate(one) if text.startswith("<role")) for one in found]
        asked = [next(index for index, text in enumerate(one) if text.startswith("About item")) for one in found]
        assert at[0] > asked[0]
        assert at[1] < asked[1]
        assert later.outcome.read_tokens > first.prompt.tokens - 300


@pytest.mark.parametrize("api", tuple(RULES))
@pytest.mark.parametrize("results", [1, 2])
@pytest.mark.parametrize("who", ["tool", "user"])
async def test_no_role_text_parts_a_call_from_its_result_where_that_was_rewritten(servers, api, results, who):
    """Another agent's last result, which the application cleared since: the text is not put in front of it."""
    if who == "user" and api == "openai-chat":
        pytest.skip("this client makes no tool's message of it")
    calls = [Content.from_function_call(f"c{number}", "look", arguments="{}") for number in range(results)]
    found = "A long result. " * 100

    def said(*found):
        told = zip(calls, found, strict=True)
        results = [Message(who, [Content.from_function_result(one.call_id, result=text)]) for one, text in told]
        return [Message("user", ["Begin. " * 50]), Message("assistant", calls, author_name="critic"), *results]

    session = session_for(api)
    options = {"default_options": {"store": False}} if api == "openai-responses" else {}
    after = [Message("assistant", ["So it is."], author_name="critic"), Message("user", ["And now?"])]
    async with served(servers, api) as (client, provider):
        critic, planner = (
            wrap(role(client, n, instructions=f"{long_text(n)}\n\n{HANDBOOK}", tools=[look()], **options), session,
                 conversation="c")
            for n in ("critic", "planner")
        )  # fmt: skip
        await critic.run("Begin. " * 50)
        await planner.run(said(*[found] * results))
        await planner.run([*said(*[found] * (results - 1), "[cleared]"), *after])
    # The provider is strict, and the fixture ``valid_requests`` looks at each body.
    assert len(provider.requests) == 3
    assert all("<role" in texts(prompt)[-1] for prompt in prompts(provider)[1:])
    assert session.failures == {}


@pytest.mark.parametrize("rewritten", ["picture", "hosted"])
async def test_no_role_text_parts_a_thought_from_what_it_led_to(servers, rewritten):
    """What the model answered behind a thought that is a message of its own, and the application rewrote since."""
    thought = Content("text_reasoning", id="rs_1", text="Hm.", protected_data=json.dumps("SEALED"))

    def answer(output):
        if rewritten == "picture":
            return ["Look.", Content.from_uri(f"https://example.test/{output}.png", media_type="image/png")]
        call = Content.from_mcp_server_tool_call("m1", "SERVICE", server_name="there", arguments={})
        return [call, Content.from_mcp_server_tool_result("m1", output=output)]

    def said(output):
        first = [Message("user", ["What is there?"]), Message("assistant", [thought], author_name="critic")]
        return [*first, Message("assistant", answer(output), author_name="critic")]

    async with served(servers, "openai-responses") as (client, _):
        session = session_for("openai-responses")
        planner, _ = wrap(
            [
                role(client, name, instructions=f"{long_text(name)}\n\n{HANDBOOK}", default_options={"store": False})
                for name in NAMES[:2]
            ],
            session,
            conversation="c",
        )
        await planner.run(said("long"))
        await planner.run([*said("cleared"), Message("user", ["And now?"])])
    # The provider is strict, and the fixture ``valid_requests`` looks at each body.
    assert [call.layout for call in session.calls] == ["fork", "fork"]
    assert session.failures == {}
