"""A fork holds every text of the application's own request once, and no other one but ours that are listed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import Handoff
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat, Swarm
from autogen_core import FunctionCall
from autogen_core.memory import ListMemory, MemoryContent
from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    ModelFamily,
    ModelInfo,
    UserMessage,
)
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from autogen_teams import HANDBOOK as RULES
from autogen_teams import after_a_pause, role, search
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cacheprefix import Session, SharedPrefix
from cacheprefix.errors import SetupError
from cacheprefix.server import Queue, Reply, SimulatedProvider, ToolCall
from cacheprefix_autogen import session_of, wrap
from cacheprefix_autogen.messages import ABOVE, ANSWER, CALLING, MEMORY, SPEAKER, STANDS, TOOL_SPEAKER

NAMES = ("ann", "bob", "cid", "dot")
HANDBOOK = "\n".join(f"Rule {n} of the house: every claim stands beside the place it is taken from." for n in range(90))
INFO = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=True,
    family=ModelFamily.GPT_4O,
    structured_output=True,
    multiple_system_messages=True,
)

ANY = ".*"
OURS = [
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r'<role name="\w+">', "</role>", r"Tools you may use in this role: .*\.",
        r'<earlier_call tool="\w+">', "</?result>", "</earlier_call>",
        *(re.escape(line) for line in MEMORY.format("\n").split("\n") if line.strip("{} ")),
        *(re.escape(SPEAKER.format("@")).replace("@", who) for who in
          (r"\w+", TOOL_SPEAKER.format(r"\w+"), CALLING.format(r"\w+", r"\w+"))),
        re.escape(STANDS), re.escape(ANSWER), re.escape(ABOVE),
    )
]  # fmt: skip
"""All that a request may say beside what the application or the user says, line by line."""


def _system(name: str, kind: str) -> str | None:
    """An agent's own system text: with the handbook before or behind its role, in other words, without, or none."""
    role = f"You are {name}, and {name} minds the duty that nobody but {name} has.\n"
    texts = {
        "behind": f"{role}\n{HANDBOOK}",
        "before": f"{HANDBOOK}\n\n{role}",
        "indented": f"{role}\n{textwrap.indent(HANDBOOK, '    ')}",
        "crlf": f"{role}\n{HANDBOOK}".replace("\n", "\r\n"),
        "double": f"{role}\n" + HANDBOOK.replace("\n", "\n\n"),
        "other": f"{role}\nNothing of the house's rules was told to {name} by anybody so far.",
    }
    return texts.get(kind)


def _lines(text: str) -> Iterator[str]:
    """The text's lines, whatever their white space; none of what a JSON of arguments puts around its values."""
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    for one in values.values() if isinstance(values, dict) else [text]:
        yield from (found for line in re.split(r"[\r\n]+", str(one)) if (found := " ".join(line.split())))


def _bare(line: str) -> list[str]:
    """The values of arguments that stand in a line of ours."""
    return [*_lines(line)] if line.startswith("{") else [line]


def texts_of(body: dict[str, Any]) -> list[str]:
    """Every line of a request, but for the definitions of its tools."""
    found: list[str] = []
    for message in body["messages"]:
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content or ""}]
        found += [bare for part in parts for line in _lines(part.get("text", "")) for bare in _bare(line)]
        found += [line for call in message.get("tool_calls") or () for line in _lines(call["function"]["arguments"])]
    return found


AGENT = st.fixed_dictionaries(
    {
        "system": st.sampled_from(["behind", "before", "indented", "crlf", "double", "other", "none"]),
        "tools": st.sampled_from(["none", "summary", "brief", "reflect", "loop"]),
        "memory": st.booleans(),
    }
)


def _search(name: str, *, brief: bool = False) -> FunctionTool:
    def search(query: str) -> str:
        if brief:
            return f"Yes, {query.split()[-3]}."
        return "\n".join(f"Line {n} of what was found for {query} by {name}, of some length." for n in range(12))

    return FunctionTool(search, name=f"search_{name}", description=f"Looks things up for {name}.")


def _replies(agents: list[dict[str, Any]], turns: int) -> list[Reply]:
    """What the model says in the order in which it is asked; no two texts are alike."""
    said: list[Reply] = []
    for turn in range(turns):
        name, tools = NAMES[turn % len(agents)], agents[turn % len(agents)]["tools"]
        rounds = {"none": 0, "summary": 1, "brief": 1, "reflect": 1, "loop": 2}[tools]
        calls = [ToolCall(f"search_{name}", {"query": f"the question {turn}.{n} of {name}"}) for n in range(rounds)]
        said += [Reply(tool_calls=(call,)) for call in calls]
        if tools not in ("summary", "brief"):
            said.append(Reply(f"In turn {turn} it was answered by {name}, with reasons that fill a line."))
    return said


def _team(client: Any, agents: list[dict[str, Any]], turns: int) -> RoundRobinGroupChat:
    made = []
    for name, one in zip(NAMES, agents, strict=False):
        options: dict[str, Any] = {}
        if one["tools"] != "none":
            options["tools"] = [_search(name, brief=one["tools"] == "brief")]
            options["reflect_on_tool_use"] = one["tools"] == "reflect"
            options["max_tool_iterations"] = 3 if one["tools"] == "loop" else 1
        if one["memory"]:
            fact = MemoryContent(content=f"It is remembered that {name} was once here.", mime_type="text/plain")
            options["memory"] = [ListMemory(memory_contents=[fact])]
        made.append(AssistantAgent(name, client, system_message=_system(name, one["system"]), **options))
    return RoundRobinGroupChat(made, max_turns=turns)


async def _sent(provider: SimulatedProvider, agents: list[dict[str, Any]], turns: int, given: str | None, *, on: bool):
    provider.reset()
    provider.simulator.script = Queue(_replies(agents, turns))
    client = OpenAIChatCompletionClient(
        model="gpt-5-2025-08-07", base_url=provider.openai_base_url, api_key="any", model_info=INFO
    )
    team = _team(client, agents, turns)
    if on:
        wrap(team, Session(SharedPrefix(system=given)) if given else None)
    half = "\n".join(f"Part {n} of the task: compare the two proposals with each other." for n in range(60))
    await team.run(task=half)
    await client.close()
    failures = session_of(team).failures if on else {}
    assert failures == {}
    return [record.json for record in provider.requests]


def _hold_the_same(plain: list[dict[str, Any]], ours: list[dict[str, Any]], given_text: str | None = None) -> None:
    """Each line of a request stands in ours once, and no other but those that may."""
    assert len(ours) == len(plain) > 0
    for theirs, mine in zip(map(texts_of, plain), map(texts_of, ours), strict=True):
        # What AutoGen says twice, such as a memory's text, stands twice in an agent's own layout.
        assert {text: n for text in theirs if (n := mine.count(text)) not in (1, theirs.count(text))} == {}
        may = {*theirs, *texts_of({"messages": [{"content": given_text}]})}
        strange = [text for text in mine if text not in may]
        assert [text for text in strange if not any(one.fullmatch(text) for one in OURS)] == []


@pytest.mark.slow
@settings(max_examples=25, deadline=None, phases=[Phase.generate], derandomize=True)
@given(st.lists(AGENT, min_size=2, max_size=4), st.integers(2, 9), st.booleans())
def test_each_text_of_the_applications_request_stands_in_ours_once_and_no_other(agents, turns, user_gave):
    """White space apart; beside them only what the user gave to the shared prefix, and the sentences of ours."""
    given_text = HANDBOOK if user_gave else None
    with SimulatedProvider("openai") as provider:
        plain = asyncio.run(_sent(provider, agents, turns, given_text, on=False))
        ours = asyncio.run(_sent(provider, agents, turns, given_text, on=True))
    _hold_the_same(plain, ours, given_text)


STEPS = st.lists(st.sampled_from(["text", "search", "hand over", "search and hand over"]), min_size=3, max_size=9)
"""What the two agents of a swarm do, a request each."""


async def _swarm(provider: SimulatedProvider, steps: list[str], *, brief: bool, on: bool) -> list[dict[str, Any]]:
    provider.reset()
    replies: list[Reply] = []
    for number, step in enumerate(steps):
        found = ToolCall("search_all", {"query": f"the question {number} of all"})
        calls = [found] * ("search" in step) + [ToolCall("pass_on", {})] * ("hand" in step)
        thought = f"It was thought over in step {number}." if number % 3 else ""
        said = thought if calls else f"In step {number} a line was said."
        replies.append(Reply(said, tool_calls=tuple(calls)))
    provider.simulator.script = Queue(replies)
    client = OpenAIChatCompletionClient(
        model="gpt-5-2025-08-07", base_url=provider.openai_base_url, api_key="any", model_info=INFO
    )
    agents = [
        AssistantAgent(
            name,
            client,
            tools=[_search("all", brief=brief)],
            handoffs=[Handoff(target=other, name="pass_on", message=f"{other} goes on.")],
            system_message=_system(name, "behind"),
        )
        for name, other in (("ann", "bob"), ("bob", "ann"))
    ]
    team = Swarm(agents, max_turns=len(steps))
    if on:
        wrap(team)
    await team.run(task="The task of this team is told in one line.")
    await client.close()
    assert not on or session_of(team).failures == {}
    return [record.json for record in provider.requests]


@pytest.mark.slow
@settings(max_examples=20, deadline=None, phases=[Phase.generate], derandomize=True)
@given(STEPS, st.booleans())
def test_what_a_hand_off_says_and_takes_along_stands_once(steps, brief):
    """However short it is: in the request of the agent that handed over too, whose own calls and results they are."""
    with SimulatedProvider("openai") as provider:
        plain = asyncio.run(_swarm(provider, steps, brief=brief, on=False))
        ours = asyncio.run(_swarm(provider, steps, brief=brief, on=True))
    _hold_the_same(plain, ours)


@pytest.mark.parametrize("outlier", ["crlf", "indented", "double"])
def test_a_handbook_in_other_words_is_shared_and_said_once(outlier):
    """All four agents' requests begin alike, and nobody is an outlier for the sake of white space."""
    agents = [{"system": kind, "tools": "none", "memory": False} for kind in ("behind", "behind", outlier, "behind")]
    with SimulatedProvider("openai") as provider:
        sent = asyncio.run(_sent(provider, agents, 4, None, on=True))
    assert len({json.dumps(body["messages"][0]) for body in sent}) == 1
    assert [sum(text.startswith("Rule 7 ") for text in texts_of(body)) for body in sent] == [1] * 4


@pytest.mark.parametrize("outlier", ["other", "none"])
def test_one_outlier_keeps_its_own_request_is_named_and_the_others_share(outlier):
    """Its request is the application's, byte for byte in what it says."""
    agents = [{"system": kind, "tools": "none", "memory": False} for kind in ("behind", "before", outlier, "behind")]
    with SimulatedProvider("openai") as provider:
        plain = asyncio.run(_sent(provider, agents, 4, None, on=False))
        sent = asyncio.run(_sent(provider, agents, 4, None, on=True))
    assert [texts_of(a) == texts_of(b) for a, b in zip(plain, sent, strict=True)] == [False, False, True, False]
    others = [body["messages"][0] for at, body in enumerate(sent) if at != 2]
    assert others[0] == others[1] == others[2]


async def test_the_outlier_stands_in_the_report_by_name_and_in_its_calls_reason(provide, new_client):
    """With what to do about it."""
    provider = provide("openai")
    agents = [{"system": kind, "tools": "none", "memory": False} for kind in ("behind", "behind", "none")]
    team = wrap(_team(new_client(provider), agents, 3))
    await team.run(task="Part 1 of the task. " * 80)
    session = session_of(team)
    assert any("'cid'" in note and "SharedPrefix(system=...)" in note for note in session.report().notes)
    assert [str(call.reasons[-1]) for call in session.calls if call.agent == "cid"] == ["text_taken cid"]


async def test_what_the_user_gave_reaches_all_also_those_that_have_it_not(provide, new_client):
    """Only a text that was found is kept from an outlier."""
    provider = provide("openai")
    agents = [{"system": kind, "tools": "none", "memory": False} for kind in ("behind", "behind", "none")]
    await wrap(_team(new_client(provider), agents, 3), Session(SharedPrefix(system=HANDBOOK))).run(task="Go on. " * 80)
    for record in provider.requests:
        assert sum(text.startswith("Rule 7 ") for text in texts_of(record.json)) == 1


async def test_a_selector_is_told_what_its_own_question_would_tell_it(provide, new_client):
    """Each line of the transcript and of the question once, and nothing of the agents' handbook."""
    sides = []
    for on in (False, True):
        provider = provide(
            "openai", Queue([Reply(one) for n in range(4) for one in (NAMES[n % 3], f"Part {n} is done.")])
        )
        agents = [{"system": "behind", "tools": "none", "memory": False}] * 3
        client = new_client(provider)
        parts = _team(client, agents, 1)._participants
        team = SelectorGroupChat(parts, client, max_turns=4)
        if on:
            wrap(team)
        await team.run(task="The task of this team is told in one line.")
        sides.append([texts_of(record.json) for record in list(provider.requests)[::2]])
    for theirs, mine in zip(*sides, strict=True):
        # AutoGen's own prompt has the speaker in the line.
        said = [re.sub(r"^(user|ann|bob|cid): (?=Part|The task)", "", text) for text in theirs]
        assert {text: mine.count(text) for text in said if mine.count(text) != 1} == {}
        assert not any(text.startswith("Rule ") for text in mine)


async def test_examples_of_an_assistants_tool_calls_are_shown(provide, new_client):
    """The calls and results in an agent's first messages, under another name than its own, stood in no fork."""
    result = FunctionExecutionResult(call_id="call_1", name="search", content="result-1", is_error=False)
    examples = [
        UserMessage(content="question-1", source="user"),
        AssistantMessage(content=[FunctionCall("call_1", '{"query": "query-1"}', "search")], source="assistant"),
        FunctionExecutionResultMessage(content=[result]),
        AssistantMessage(content="answer-1", source="assistant"),
    ]
    provider, session = provide("anthropic", Queue(["Yes.", "No."])), Session(SharedPrefix(system=RULES))
    client = new_client(provider, api="anthropic")
    context = UnboundedChatCompletionContext(initial_messages=examples)
    agent = wrap(role("planner", client, tools=[search()], model_context=context), session)
    for task in ("task-1", "task-2"):
        await agent.run(task=task)
    for record in provider.requests:
        body = record.body.decode()
        assert [body.count(f"{said}-1") for said in ("question", "query", "result", "answer", "task")] == [1] * 5
    assert {call.layout for call in session.calls} == {"fork"}


@pytest.mark.parametrize("saved", ["with us", "without us"])
async def test_an_agent_that_was_renamed_is_shown_what_it_said_and_looked_up_once(provide, new_client, saved):
    """Of a state whose writer is the author now, the answer stood twice in its forks, or its tool calls nowhere."""
    ours, calls = saved == "with us", Reply(tool_calls=(ToolCall("search", {"query": "query-1"}),))
    said = [f"said-{number}" for number in range(1, 7)]
    provider = provide("openai", Queue(said if ours else [*said[:2], calls, *said[2:]]))

    def team(last):
        options = {} if ours else {"tools": [search(result="result-1")], "max_tool_iterations": 2}
        return RoundRobinGroupChat(
            [role(name, new_client(provider), **options) for name in ("planner", "critic", last)], max_turns=3
        )

    before = wrap(team("writer"), after_a_pause()) if ours else team("writer")
    await before.run(task="task-1")
    state = json.loads(json.dumps(await before.save_state()))
    state["agent_states"]["author"] = state["agent_states"].pop("writer")
    session = after_a_pause(prefix=SharedPrefix(system=RULES))
    after = wrap(team("author"), session)
    await after.load_state(state)
    await after.run(task="task-2")
    assert [call.layout for call in session.calls] == ["fork"] * 3
    body = provider.requests[-1].body.decode()
    known = ["task-1", *said[:5], "task-2", *([] if ours else ["query-1", "search for query-1: result-1"])]
    assert {one: body.count(one) for one in known} == {one: 1 + (one == "query-1") for one in known}


async def test_volatile_that_gives_no_texts_is_the_applications_error(provide, new_client):
    """None says nothing with a call; of what is no mapping nothing is sent, and nothing of ours has failed."""
    provider = provide("openai", Queue(["Yes."]))
    for said, error in ((None, None), ("12:01", SetupError)):
        session = Session(SharedPrefix(system=RULES))
        agent = wrap(role("planner", new_client(provider)), session, volatile=lambda said=said: said)
        with pytest.raises(error, match="volatile gives texts by name") if error else contextlib.nullcontext():
            await agent.run(task="task-1")
        assert session.failures == {}
    assert len(provider.requests) == 1
