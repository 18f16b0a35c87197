"""What an agent's message holds beside text and calls: it is in the fork as the framework hands it on."""

from __future__ import annotations

import json

import pytest
from agent_framework import Content, Message
from maf_teams import HANDBOOK, NAMES, look, role, served

from cacheprefix import Gate, Session, SharedPrefix
from cacheprefix_maf import wrap

IMAGE = Content.from_uri("https://example.test/PICTURE.png", media_type="image/png")
THOUGHT = Content("text_reasoning", id="rs_1", text="THOUGHT", protected_data=json.dumps("SEALED"))
CALL = Content.from_function_call("c1", "look", arguments='{"query": "WANTED"}')
RESULT = Message("tool", [Content.from_function_result("c1", result="FOUND")])
HOSTED = [
    Content.from_mcp_server_tool_call("m1", "SERVICE", server_name="there", arguments={"query": "WANTED"}),
    Content.from_mcp_server_tool_result("m1", output="FOUND"),
]
APPROVAL = Content.from_function_approval_request(
    "a1", Content.from_function_call("a1", "DELETE", arguments="{}", hosted=True, server_name="there")
)
APPROVED = Message("user", [APPROVAL.to_function_approval_response(approved=True)])
HISTORIES = {
    "image": ([Message("assistant", ["Look.", IMAGE], author_name="{}")], ["PICTURE"]),
    "image alone": ([Message("assistant", [IMAGE], author_name="{}")], ["PICTURE"]),
    "hosted tool": ([Message("assistant", [*HOSTED, "Done."], author_name="{}")], ["SERVICE", "WANTED", "FOUND"]),
    "hosted approval": ([Message("assistant", ["May I?", APPROVAL], author_name="{}"), APPROVED], ["DELETE"]),
    "thought before a call": (
        [Message("assistant", [THOUGHT, CALL], author_name="{}"), RESULT],
        ["SEALED", "WANTED", "FOUND"],
    ),
    "thought in a message of its own": (
        [Message("assistant", [THOUGHT], author_name="{}"), Message("assistant", [CALL], author_name="{}"), RESULT],
        ["SEALED", "WANTED", "FOUND"],
    ),
}
SENT = {
    "openai-chat": {"image", "image alone", "thought before a call"},
    "openai-responses": set(HISTORIES),
    "anthropic": set(HISTORIES) - {"hosted approval", "thought in a message of its own"},
}
"""What each of the framework's clients sends at all."""
CASES = [(api, kind) for api, kinds in SENT.items() for kind in sorted(kinds)]


@pytest.mark.parametrize("whose", ["critic", "planner"])
@pytest.mark.parametrize(("api", "kind"), CASES)
async def test_what_is_not_said_in_words_is_not_lost(servers, api, kind, whose):
    """In a conversation that several agents share, of an earlier turn: the agent's own and another's."""
    made, marks = HISTORIES[kind]
    said = [Message(one.role, one.contents, author_name=one.author_name and whose) for one in made]
    # A turn that has ended: else it is the agent's own tool loop, which is sent as it is.
    history = [Message("user", ["What is there?"]), *said, Message("assistant", ["Done."], author_name=whose)]
    history.append(Message("user", ["And now?"]))
    options = {"default_options": {"store": False}} if api == "openai-responses" else {}
    found = {}
    for shared in (False, True):
        async with served(servers, api) as (client, provider):
            agents = [role(client, name, tools=[look()], **options) for name in NAMES]
            session = Session(SharedPrefix(system=HANDBOOK), gate=Gate(price=0.0))
            if shared:
                wrap(agents, session, conversation="one")
            for agent in agents[:2]:
                await agent.run(history)
            body = provider.requests[-1].body.decode()
        found[shared] = [body.count(mark) for mark in marks]
    assert min(found[False]) > 0
    assert found[True] == found[False]
    assert session.calls[-1].layout == "fork"
    assert session.failures == {}


CALLS = [Content.from_function_call(f"c{number}", "look", arguments="{}") for number in range(2)]
RESULTS = [Content.from_function_result(f"c{number}", result=f"FOUND-{number}") for number in range(2)]
ANSWERED = {
    "alone": [Message("user", RESULTS)],
    "with words": [Message("user", [*RESULTS, "And the NOTE."])],
    "one each": [Message("tool", RESULTS[:1]), Message("user", RESULTS[1:])],
}
"""Results in messages of the user's, as an application gives those of tools that it runs itself."""


@pytest.mark.parametrize("ends", [False, True], ids=["last", "earlier"])
@pytest.mark.parametrize("results", ANSWERED)
@pytest.mark.parametrize("whose", ["critic", "planner"])
@pytest.mark.parametrize("api", ["openai-responses", "anthropic"])
async def test_a_result_in_a_message_of_the_users_stays_behind_its_call(servers, api, whose, results, ends):
    """The agent's own calls stand behind its role's text: their results went before them, which providers refuse."""
    asked = Message("assistant", CALLS, author_name=whose)
    history = [Message("user", ["What is there?"]), asked, *ANSWERED[results]]
    if ends:
        history += [Message("assistant", ["Done."], author_name=whose), Message("user", ["And now?"])]
    options = {"default_options": {"store": False}} if api == "openai-responses" else {}
    async with served(servers, api) as (client, provider):
        session = Session(SharedPrefix(system=HANDBOOK), gate=Gate(price=0.0))
        agents = wrap([role(client, name, tools=[look()], **options) for name in NAMES], session, conversation="one")
        for agent in agents[:2]:
            await agent.run(history)
        bodies = [record.body.decode() for record in provider.requests]
    # The provider is strict, and the fixture ``valid_requests`` looks at each body.
    marks = ["FOUND-0", "FOUND-1", *(["NOTE"] if results == "with words" else [])]
    assert [[body.count(mark) for mark in marks] for body in bodies] == [[1] * len(marks)] * 2
    assert [call.layout for call in session.calls] == ["fork"] * 2
    assert session.failures == {}
