"""Where the text of a role stands over the turns of a chat, and that it never makes a plan dearer."""

from __future__ import annotations

import copy
import re
from itertools import pairwise

import pytest
from ag2 import Agent, MemoryStream
from ag2.events import TextInput, ToolResultsEvent
from ag2.tools import tool
from ag2_driver import HANDBOOK, RULES, Ag2Driver, configured, role_text, texts
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from test_layout import NAMES, discuss, named, session

from cacheprefix import Caching, Compaction, Session, SharedPrefix
from cacheprefix.profiles import cost_units, normalise_usage
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Queue, Reply, ToolCall
from cacheprefix.testing.driver import Role, Team, script
from cacheprefix_ag2 import PrefixState, session_of, wrap


def long_text(name, words=200):
    """A role's own text, of about four tokens a word."""
    return f"{role_text(name)} " + " ".join(f"{name} keeps to rule number {at}." for at in range(words // 2))


def team(config, shared, **options):
    """Three wrapped agents with long texts of their own."""
    return wrap([Agent(name, f"{long_text(name)}\n\n{HANDBOOK}", config=config, **options) for name in NAMES], shared)


async def turns(agents, stream, rounds):
    """Everyone is asked in turn on one stream."""
    for number in range(rounds):
        for each in agents:
            await each.ask(f"{each.name}, question {number}?", stream=stream)


def own(server, name):
    """The requests of a role."""
    return [record for record in server.requests if any(role_text(name) in text for text in texts(record))]


@pytest.mark.slow
@pytest.mark.parametrize("api", tuple(RULES))
@pytest.mark.parametrize("kind", ["stream", "channel"])
async def test_a_long_role_text_stays_where_the_role_last_had_it(fresh, api, kind):
    """Each later request of the role begins with its whole earlier one, in a tool loop too, and reads it."""
    server, shared = fresh(api), session()
    async with configured(api, server) as config:
        agents = team(config, shared, tools=[named("look")])
        if kind == "stream":
            stream = MemoryStream()
            await turns(agents, stream, 2)
            await agents[2].ask("Call look.", stream=stream)
        else:
            await discuss(agents, ("One?", "Two?"))
    for name in NAMES[1:]:
        found = own(server, name)
        assert len(found) >= 2
        for earlier, later in pairwise(found):
            size = len(earlier.prompt.sections)
            assert [one.data for one in later.prompt.sections[:size]] == [one.data for one in earlier.prompt.sections]
            assert later.outcome.read_tokens >= earlier.outcome.input_tokens - 127
    assert shared.failures == {}


async def test_a_short_role_text_goes_to_the_end(fresh):
    """Where everybody reads what stands before it."""
    server = fresh("openai-chat")
    async with configured("openai-chat", server) as config:
        agents = wrap([Agent(n, f"{role_text(n)}\n\n{HANDBOOK}", config=config) for n in NAMES], session())
        await turns(agents, MemoryStream(), 2)
    assert all("<role" in texts(record)[-1] for record in server.requests[1:])


async def test_a_saved_place_is_taken_up_elsewhere(fresh):
    """It is in an event of the stream's history; in another process the next requests are the same bytes."""
    server = fresh("openai-chat")
    async with configured("openai-chat", server) as config:
        stream = MemoryStream()
        agents = team(config, session())
        await turns(agents, stream, 1)
        saved = [
            type(event).from_dict(event.to_dict()) if isinstance(event, PrefixState) else event
            for event in await stream.history.get_events()
        ]
        await agents[2].ask("And now?", stream=stream)
        again = MemoryStream(id=stream.id)
        await again.history.replace(saved)
        await team(config, session())[2].ask("And now?", stream=again)
    first, second = server.requests[-2:]
    assert first.body == second.body
    assert "<role" not in texts(first)[-1]
    assert any("<role" in text for text in texts(first))


async def test_who_asked_is_saved_before_anybody_shares(fresh):
    """By that another process knows that several ask on the stream, although the first kept its own layout."""
    server = fresh("openai-chat")
    async with configured("openai-chat", server) as config:
        agents = wrap([Agent(name, f"{role_text(name)} Be brief.", config=config) for name in NAMES[:2]], session())
        stream = MemoryStream()
        await agents[0].ask("Hello.", stream=stream)
        saved = [event for event in await stream.history.get_events() if isinstance(event, PrefixState)]
    assert "<role" not in texts(server.requests[-1])[-1]
    assert [event.state["speakers"] for event in saved] == [[NAMES[0]]]


async def test_a_stream_resumed_after_each_turn_sends_what_one_process_sends(servers):
    """Also where a long text leaves its place: the reckoning is saved, not only the place."""
    server = servers["openai-chat"]
    kept = server.simulator.script

    async def sent(*, resumed):
        server.reset()
        server.simulator.script = lambda request: Reply("fine " * (len(request.text) % 50))
        async with configured("openai-chat", server) as config:

            def made():
                return wrap([Agent(n, f"{long_text(n)}\n\n{HANDBOOK}", config=config) for n in NAMES[:2]], session())

            agents, stream = made(), MemoryStream()
            for number, size in enumerate((400, 1000, 400, 20)):
                if resumed and number:
                    events = list(await stream.history.get_events())
                    stream, agents = MemoryStream(id=stream.id), made()
                    await stream.history.replace(
                        [type(one).from_dict(one.to_dict()) if isinstance(one, PrefixState) else one for one in events]
                    )
                for each in agents:
                    await each.ask(f"{number}: {'pad ' * size}", stream=stream)
        return [record.json["messages"] for record in server.requests]

    try:
        assert await sent(resumed=True) == await sent(resumed=False)
    finally:
        server.simulator.script = kept


@pytest.mark.parametrize("at", [0, 3])
async def test_a_stream_that_goes_back_sends_what_a_fresh_process_sends(fresh, at):
    """What was decided behind that point, in the process that went on, is dropped."""
    server = fresh("openai-chat")
    options = {"compaction": Compaction(trigger=6_000, keep_turns=1, keep_users=False, horizon=10_000)}
    async with configured("openai-chat", server) as config:

        def made():
            return wrap([Agent(n, f"{role_text(n)}\n\n{HANDBOOK}", config=config) for n in NAMES], session(**options))

        stream, agents = MemoryStream(), made()
        for number in range(6):
            if number == at:
                saved = list(await stream.history.get_events())
            await agents[number % 2].ask(f"{number}: " + "Some words of the task. " * 160, stream=stream)
        assert b"Earlier messages were removed" in server.requests[-1].body
        await stream.history.replace(saved)
        await agents[0].ask("And now?", stream=stream)
        again = MemoryStream(id=stream.id)
        await again.history.replace(saved)
        await made()[0].ask("And now?", stream=again)
    assert server.requests[-1].body == server.requests[-2].body


class Named(MemoryStream):
    """A stream of the application's own, whose copies are equal: it compares ids."""

    def __eq__(self, other):
        return isinstance(other, Named) and other.id == self.id

    def __hash__(self):
        return hash(self.id)


@pytest.mark.parametrize("kind", [MemoryStream, Named])
@pytest.mark.parametrize("forgotten", [False, True])
async def test_a_stream_put_in_the_place_of_copies_of_it_sends_what_a_fresh_process_sends(fresh, forgotten, kind):
    """Of the agents who asked on copies that the application does not go on with, its history tells nothing.

    Nor does the stream that the conversation went on in before the application had it forgotten.
    """
    server, held = fresh("openai-chat"), []

    def copied(name=None):
        held.append(kind(id=name) if name else kind())
        return held[-1]

    async with configured("openai-chat", server) as config:

        def made():
            return wrap(
                [Agent(n, f"{role_text(n)}\n\n{HANDBOOK}", config=config, tools=[named("look")]) for n in NAMES],
                session(),
                conversation=(lambda _: "one") if forgotten else None,
            )

        agents, name = made(), MemoryStream().id
        if forgotten:
            await agents[0].ask("What now?", stream=copied())
            session_of(agents).forget("one")
        for each in agents:
            await each.ask("What now?", stream=copied(name))
        for asked in (agents, made()):
            await asked[0].ask("Call look.", stream=copied(name))
    bodies = [re.sub(rb"call_\w+", b"", record.body) for record in server.requests[-4:]]
    assert len(bodies) == 4
    assert bodies[:2] == bodies[2:]


def spent(servers, plan, api, shared=None):
    """Cost units of a plan's requests."""
    provider, kept = servers[api], servers[api].simulator.script
    provider.reset()
    provider.simulator.script = script()
    try:
        Ag2Driver(api).run(plan, provider, shared)
    finally:
        provider.simulator.script = kept
    profile = Session(caching=Caching(provider=RULES[api])).adapter.profile("")
    return sum(cost_units(normalise_usage(one.usage, one.api, profile=profile), profile) for one in provider.requests)


@pytest.mark.slow
@pytest.mark.parametrize("api", ["openai-chat", "anthropic"])
@settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    sizes=st.lists(st.sampled_from([100, 200, 50, 10]), min_size=2, max_size=3),
    handbook=st.sampled_from([HANDBOOK, HANDBOOK, "Be brief."]),
    rounds=st.sampled_from([10, 4, 1]),
)
def test_no_plan_is_dearer(servers, api, sizes, handbook, rounds):
    """However long the roles' texts are, however often they speak, and whether they share enough or not."""
    roles = tuple(Role(name, long_text(name, size)) for name, size in zip(NAMES, sizes, strict=False))
    plan = Team(handbook=handbook, roles=roles, questions=tuple(f"Question {at}?" for at in range(rounds)))
    shared = Session(SharedPrefix(system=handbook), caching=Caching(provider=RULES[api], counter=ESTIMATE))
    assert spent(servers, plan, api, shared) <= 1.001 * spent(servers, plan, api)
    assert shared.failures == {}


class _Clears:
    """An application's policy that clears all results but the newest ones."""

    name = "clears"

    async def apply(self, prompts, events, context):
        results = [event for event in events if isinstance(event, ToolResultsEvent)]
        return prompts, [self._cleared(event) if event in results[:-1] else event for event in events]

    def _cleared(self, event):
        twin = copy.deepcopy(event)
        for one in twin.results:
            one.result.parts = [TextInput("[cleared]")]
        return twin


@pytest.mark.parametrize("api", tuple(RULES))
async def test_no_role_text_parts_a_call_from_its_result_where_that_was_rewritten(fresh, api, monkeypatch):
    """The text went behind a long result, which the application clears in the next request of the same loop."""
    found = iter(["A long result. " * 300, "Short.", "Short."])
    look = tool(lambda: next(found), name="look", description="Look.", schema={"type": "object", "properties": {}})
    server, shared = fresh(api), session()
    replies = [Reply("Planned."), *(Reply(tool_calls=(ToolCall("look", {}, id=f"c{at}"),)) for at in range(3))]
    monkeypatch.setattr(server.simulator, "script", Queue([*replies, Reply("Done.")]))
    async with configured(api, server) as config:
        agents = team(config, shared, tools=[look], assembly=[_Clears()])
        stream = MemoryStream()
        for each in agents[:2]:
            await each.ask("Go on. " * 50, stream=stream)
    # The provider is strict, and the fixture ``valid_requests`` looks at each body.
    sent = [list(map(bool, map(re.compile("<role").search, texts(record)))) for record in server.requests]
    assert len(sent) == 5
    assert sent[2][-1]
    assert all(map(any, sent))
    assert shared.failures == {}
