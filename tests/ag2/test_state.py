"""What streams save of the decisions on them, in their own histories."""

from __future__ import annotations

import json

import pytest
from ag2 import MemoryStream, tool
from ag2.compact import TailWindowCompact
from ag2_driver import agent, configured
from test_layout import session

from cacheprefix import ToolResultBudget
from cacheprefix_ag2 import PrefixState, session_of, wrap

ROUNDS = 6


def team(config, budget=200):
    """Two agents whose one tool says something long and new each time."""
    logs = iter("\n".join(f"line {line} of log {at}" for line in range(300)) for at in range(100))
    schema = {"type": "object", "properties": {}}
    look = tool(lambda: next(logs), name="look", description="Look.", schema=schema)
    made = [agent(name, config, tools=[look]) for name in ("planner", "critic")]
    return wrap(made, session(budget=ToolResultBudget(max_tokens=budget)))


async def played(config, rounds):
    """A stream on which they called it so often by turns."""
    agents, stream = team(config), MemoryStream()
    for number in range(rounds):
        await agents[number % 2].ask("Call look.", stream=stream)
    return agents, stream


async def events_of(stream):
    """A stream's events as a storage gives them back."""
    return [
        type(event).from_dict(json.loads(json.dumps(event.to_dict()))) if isinstance(event, PrefixState) else event
        for event in await stream.history.get_events()
    ]


async def test_each_event_holds_what_was_decided_since_the_one_before(fresh):
    """All decisions stood in each, so that what a history holds grew with the square of its shortened results."""
    async with configured("openai-chat", fresh("openai-chat")) as config:
        _, stream = await played(config, ROUNDS)
    states = [event.state for event in await events_of(stream) if isinstance(event, PrefixState)]
    decided = [list(state["conversation"]["ledger"].get("results", {})) for state in states]
    assert sorted(map(len, decided)) == [0] * ROUNDS + [1] * ROUNDS
    assert len({key for keys in decided for key in keys}) == ROUNDS


@pytest.mark.parametrize("kept", ["all", "the last ones", "those up to an earlier turn"])
@pytest.mark.parametrize("api", ["openai-chat", "anthropic"])
async def test_a_stream_resumed_elsewhere_sends_the_same_bytes(fresh, api, kept):
    """By all its events together, also where ag2's compaction drops the earlier ones, or the application goes back."""
    server = fresh(api)
    async with configured(api, server) as config:
        agents, stream = await played(config, ROUNDS)
        events = await events_of(stream)
        if kept == "the last ones":
            events = await TailWindowCompact(10).compact(events, None, None)
        elif kept != "all":
            events = events[: len(events) // 2]
            events = events[: max(at for at, one in enumerate(events) if type(one).__name__ == "ModelRequest")]
        assert 1 < sum(isinstance(event, PrefixState) for event in events) <= 2 * ROUNDS
        await stream.history.replace(events)
        for asked, on in ((agents, stream), (team(config, 1_500), MemoryStream(id=stream.id))):
            if on is not stream:
                await on.history.replace(events)
            await asked[0].ask("What now?", stream=on)
    first, second = server.requests[-2:]
    assert first.body == second.body
    assert b"of log" in first.body
    assert b"line 150 of log" not in first.body


async def test_decisions_that_were_taken_back_are_not_resumed(fresh):
    """By the application, with the turns that they are on: a later event says all that still holds."""
    async with configured("openai-chat", fresh("openai-chat")) as config:
        agents, stream = await played(config, 1)
        talk, first = session_of(agents).conversation(str(stream.id)), await events_of(stream)
        earlier = talk.to_json()
        for number in range(1, ROUNDS):
            await agents[number % 2].ask("Call look.", stream=stream)
        later = [event for event in await events_of(stream) if isinstance(event, PrefixState)]
        talk.restore(earlier, merge=False)
        await stream.history.replace([*first, *later[2:]])
        await agents[0].ask("What now?", stream=stream)
        saved = [event.state for event in await events_of(stream) if isinstance(event, PrefixState)]
    assert len(saved) == len(later) + 1
    assert saved[-1]["version"] == 1
    assert len(saved[-1]["conversation"]["ledger"]["results"]) == 1


async def test_a_state_of_a_newer_release_is_named(fresh, caplog):
    """It is never misread: the stream goes on without it, and one warning says so."""
    async with configured("openai-chat", fresh("openai-chat")) as config:
        _, stream = await played(config, 1)
        events = await events_of(stream)
        for event in events:
            if isinstance(event, PrefixState):
                event.state["version"] = 99
        await stream.history.replace(events)
        agents, _ = await played(config, 0)
        with pytest.warns(UserWarning, match="is of version 99, this release reads 2"):
            await agents[0].ask("What now?", stream=stream)
