"""Request bodies as forks, without a client: what an adapter of finished bodies relies on."""

from __future__ import annotations

import copy
import gc

import pytest

from cacheprefix import Session, SharedPrefix
from cacheprefix.bodies import (
    Role,
    allowed_choice,
    condensed_body,
    forces_any,
    fork_body,
    instruction_of,
    well_formed,
)
from cacheprefix.history import Compaction
from cacheprefix.layout import Pass
from cacheprefix.prompt import Insert
from cacheprefix.testing import request_errors

LONG = "The handbook says that every statement needs a source. " * 90
USAGE = {"prompt_tokens": 2_000, "prompt_tokens_details": {"cached_tokens": 0}}


def body(system="You object.", **more):
    """A chat body as an application makes it."""
    messages = [{"role": "system", "content": f"{system}\n\n{LONG}"}, {"role": "user", "content": "hi"}]
    return {"model": "gpt-5.2", "messages": messages, **more}


def test_a_body_is_not_changed_and_its_messages_are_passed_on():
    """The fork has a body of its own, with the application's very objects where nothing was decided."""
    given = body()
    before = copy.deepcopy(given)
    fork = fork_body(Session(SharedPrefix(system=LONG)).adapter, given, "openai-chat", Role("critic"))
    assert given == before
    assert fork.body["messages"][1] is given["messages"][1]
    assert fork.body["messages"][-1]["content"] == '<role name="critic">\nYou object.\n</role>'


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses", "anthropic"])
def test_what_is_written_into_the_tools_of_a_request_is_in_no_other(api):
    """A client that changes them in place, or a callback, as LiteLLM's: another role may ask for another user."""
    look = {"name": "look", "description": "Looks it up."}
    schema = {"type": "object", "properties": {"at": {"type": "string", "description": "Where."}}}
    tool = {
        "openai-chat": {"type": "function", "function": {**look, "parameters": schema}},
        "openai-responses": {"type": "function", **look, "parameters": schema},
        "anthropic": {**look, "input_schema": schema},
    }[api]
    session = Session(SharedPrefix(system=LONG, tools=[tool]))
    system = {"openai-responses": "instructions", "anthropic": "system"}.get(api)
    said, model = [{"role": "user", "content": "hi"}], "claude-sonnet-4-6" if api == "anthropic" else "gpt-5.2"

    def fork(name):
        lead = [] if system else [{"role": "system", "content": LONG}]
        history = {"input" if api == "openai-responses" else "messages": [*lead, *said]}
        given = {"model": model, **history, **({system: LONG} if system else {}), "tools": [copy.deepcopy(tool)]}
        return fork_body(session.adapter, given, api, Role(name)).body

    def write(value):
        """Write into all that can be written into."""
        inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
        for one in inner:
            write(one)
        if isinstance(value, dict):
            value["note"] = "of Ann's"

    write(fork("planner")["tools"])
    assert fork("critic")["tools"] == [tool]


def test_a_summary_goes_out_without_our_marks():
    """Providers refuse fields that they do not know."""
    said = [{"role": role, "content": f"{role} {n} " * 200} for n in range(10) for role in ("user", "assistant")]
    session = Session(SharedPrefix(system=LONG), compaction=Compaction(8_000, keep_turns=3))
    fork = fork_body(session.adapter, {"model": "gpt-5.2", "messages": said}, "openai-chat", Role("critic"))
    assert any(message["content"].startswith("[Earlier messages were removed") for message in fork.body["messages"])
    assert {name for message in fork.body["messages"] for name in message} == {"role", "content"}


@pytest.mark.parametrize(
    "given",
    [{}, {"messages": 7}, {"messages": {"a": 1}}, {"messages": [3, None]}, {"messages": [], "tools": 4}],
)
def test_a_body_of_another_shape_goes_out_as_it_came(given):
    """The failure is counted, nothing is raised."""
    fork = fork_body(Session(SharedPrefix(system=LONG)).adapter, given, "openai-chat", Role("critic"))
    turn = fork.begin(fork.queue())
    assert fork.body == given or fork.forked
    turn.finish(USAGE)


SYSTEM = {"role": "system", "content": f"You object.\n\n{LONG}"}
PICTURE = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}


@pytest.mark.parametrize(
    ("api", "model", "said", "forks"),
    [
        ("openai-chat", "gpt-5.6", [], False),
        ("openai-chat", "gpt-5.6", [SYSTEM], True),
        ("openai-chat", "gpt-5.6", [SYSTEM, ""], True),
        ("openai-responses", "gpt-5.6", [], False),
        ("openai-responses", "gpt-5.6", [SYSTEM], True),
        ("openai-responses", "gpt-5.6", [" "], True),
        ("anthropic", "claude-sonnet-4-6", [], False),
        ("anthropic", "claude-sonnet-4-6", ["", "  \n"], False),
        ("anthropic", "claude-sonnet-4-6", [[{"type": "text", "text": " "}]], False),
        ("anthropic", "claude-sonnet-4-6", [[{"type": "text", "text": " "}, PICTURE]], True),
        ("anthropic", "claude-sonnet-4-6", [" ", "Go on."], True),
        # Written in another form than the provider's own, it is translated on the way, and blanks with it.
        ("openai-chat", "anthropic/claude-sonnet-4-6", [SYSTEM], False),
        ("openai-chat", "anthropic/claude-sonnet-4-6", [SYSTEM, ""], True),
    ],
)
@pytest.mark.invalid_requests
def test_what_asks_nothing_goes_out_as_it_is_where_it_is_refused(api, model, said, forks):
    """Without the text for this request alone too, which would be something to answer."""
    field = "input" if api == "openai-responses" else "messages"
    given = {"model": model, field: [one if one == SYSTEM else {"role": "user", "content": one} for one in said]}
    if api != "openai-chat":
        given["system" if api == "anthropic" else "instructions"] = SYSTEM["content"]
    session = Session(SharedPrefix(system=LONG))
    fork = fork_body(session.adapter, given, api, Role("critic", volatile={"time": "noon"}))
    with fork.begin() as turn:
        turn.finish(USAGE)
    assert fork.forked is forks
    assert ("it asks nothing" in str(session.calls[0].reasons)) is not forks
    if not forks:
        assert turn.body == given


@pytest.mark.parametrize("kind", [{"role": "a secret"}, ["a secret"], None, 7])
def test_a_tool_whose_type_is_no_name_is_told_by_what_it_is(kind):
    """A report that names the tools of the provider's shows no part of a prompt."""
    session = Session(SharedPrefix(system=LONG))
    body = {"model": "gpt-5.2", "messages": [{"role": "user", "content": "q"}], "tools": [{"type": kind, "of": "x"}]}
    fork = fork_body(session.adapter, body, "openai-chat", Role("critic"))
    fork.begin(fork.queue()).finish(USAGE)
    assert [reason.name for reason in session.calls[0].reasons if reason.why == "provider_tools"] == ["dict"]


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses", "anthropic"])
def test_a_request_too_short_to_share_says_what_only_the_session_knows(api):
    """Shared, role's and passing text reach the model in the application's own layout too, each once."""
    session = Session(SharedPrefix(system="Be brief."))
    role = Role("critic", "You object.", volatile={"time": "noon"})
    field = "input" if api == "openai-responses" else "messages"
    fork = fork_body(session.adapter, {"model": "any", field: [{"role": "user", "content": "hi"}]}, api, role)
    sent = str(fork.begin().body)
    assert not fork.forked
    assert [sent.count(text) for text in ("Be brief.", "You object.", "hi", "noon")] == [1, 1, 1, 1]
    assert sent.index("Be brief.") < sent.index("You object.")
    own = {"openai-chat": None, "openai-responses": "instructions", "anthropic": "system"}[api]
    said = "Be brief.\n\nYou object. Always."
    lead = [] if own else [{"role": "system", "content": said}]
    whole = {"model": "any", field: [*lead, {"role": "user", "content": "hi"}], **({own: said} if own else {})}
    assert fork_body(session.adapter, whole, api, Role("critic", "You object.")).body == whole


def test_a_block_that_raises_fails_the_turn():
    """And a block that ends leaves it open, since a stream outlasts it."""
    session = Session(SharedPrefix(system=LONG))
    fork = fork_body(session.adapter, body(), "openai-chat", Role("critic"))
    with pytest.raises(ConnectionError), fork.begin():
        raise ConnectionError
    with fork.begin() as turn:
        pass
    assert session.calls == ()
    turn.finish(USAGE)
    assert len(session.calls) == 1


@pytest.mark.parametrize("step", ["plan_breakpoints", "Requests._own"])
def test_a_request_that_cannot_be_begun_leaves_no_trace_and_nobody_waiting(monkeypatch, step):
    """Before it is noted or behind that: the next one is the first of its prefix, and siblings go on at once."""
    session, released = Session(SharedPrefix(system=LONG)), []
    fork = fork_body(session.adapter, body(), "openai-chat", Role("critic"))
    with monkeypatch.context() as broken:
        broken.setattr(f"cacheprefix.calls.begin.{step}", lambda *_, **__: 1 / 0)
        turn = fork.begin(Pass(released.append))
    assert turn.body == fork.given
    assert released == [False]
    assert session.failures == {"begin": 1}
    turn.finish({"prompt_tokens": 2_000})
    after, fresh = (
        fork.begin(),
        fork_body(Session(SharedPrefix(system=LONG)).adapter, body(), "openai-chat", fork.role).begin(),
    )
    assert after.seen.observation.outlook == fresh.seen.observation.outlook
    assert after.finish(USAGE).cause == fresh.finish(USAGE).cause


def test_a_stream_that_nobody_reads_to_its_end_is_a_call():
    """Also where it is dropped without being closed."""
    session = Session(SharedPrefix(system=LONG))
    fork = fork_body(session.adapter, body(stream=True), "openai-chat", Role("critic"))
    stream = fork.watch(fork.begin(), iter([object(), object()]))
    next(stream)
    del stream
    gc.collect()
    assert [call.agent for call in session.calls] == ["critic"]


def test_a_call_without_usage_is_told_beside_the_money():
    """A sum that holds a guess does not look like a bill."""
    session = Session(SharedPrefix(system=LONG))
    fork = fork_body(session.adapter, body(), "openai-chat", Role("critic"))
    fork.begin().finish(USAGE)
    assert "were answered without" not in str(session.report())
    fork.begin().finish(None)
    shown = str(session.report())
    assert "1 of 2 calls were answered without" in shown
    # It does not know of which API they were.
    assert "in streams of chat completions" in shown
    assert "a proxy or a gateway" in shown
    assert " ~0." in shown


def test_each_api_says_which_tools_are_allowed():
    """OpenAI names them in two forms; Anthropic can only forbid all."""
    assert allowed_choice([], "anthropic") == {"type": "none"}
    assert allowed_choice([], "openai-chat") == allowed_choice([], "openai-responses") == "none"
    assert allowed_choice(["a"], "openai-responses")["tools"] == [{"type": "function", "name": "a"}]
    assert allowed_choice(["a"], "openai-chat")["allowed_tools"]["mode"] == "auto"


def test_an_instruction_is_what_is_left_beside_the_shared_text():
    """Each text once, in order."""
    assert instruction_of([f"A\n\n{LONG}", "B", "A", ""], LONG) == "A\n\nB"


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses", "anthropic"])
@pytest.mark.parametrize("parts", [False, True])
def test_a_handbook_in_the_users_message_is_sent_once(api, parts):
    """Whatever its white space; what else the message says stays, and the application's own layout is left alone."""
    field, kind = ("input", "input_text") if api == "openai-responses" else ("messages", "text")
    said = f"Objections?\r\n\r\n  {LONG.replace('. ', '.  ')}\r\nThanks."
    content = [{"type": kind, "text": said}] if parts else said
    given = {"model": "any", "max_tokens": 9, field: [{"role": "user", "content": content}]}
    before = copy.deepcopy(given)
    role = Role("critic", "You object.")
    fork = fork_body(Session(SharedPrefix(system=LONG)).adapter, given, api, role)
    sent = " ".join(str(fork.body).replace("\\r\\n", " ").split())
    assert fork.forked
    assert sent.count(LONG.strip()) == sent.count("Objections?") == sent.count("Thanks.") == 1
    assert fork.given == given == before


@pytest.mark.parametrize("said_by", ["system", "developer"])
@pytest.mark.parametrize("api", ["openai-chat", "openai-responses"])
def test_a_handbook_behind_the_users_message_is_sent_once(api, said_by):
    """The application's own message stands in the midst, with what else it says; the text stands in front."""
    field = "input" if api == "openai-responses" else "messages"
    late = {"role": said_by, "content": f"You are careful.\n\n{LONG}"}
    given = {"model": "gpt-5.2", field: [{"role": "user", "content": "Compare."}, late]}
    fork = fork_body(Session(SharedPrefix(system=LONG)).adapter, given, api, Role("critic", "You object."))
    sent = str(fork.body)
    assert fork.forked
    assert sent.count(LONG.strip()) == sent.count("You are careful.") == sent.count("Compare.") == 1


def test_a_message_that_is_nothing_but_the_handbook_stays():
    """An empty one is refused."""
    given = {"model": "gpt-5.2", "messages": [{"role": "user", "content": LONG}]}
    fork = fork_body(Session(SharedPrefix(system=LONG)).adapter, given, "openai-chat", Role("critic", "You object."))
    assert fork.body["messages"][1] is given["messages"][0]


def test_a_text_found_in_all_agents_becomes_the_shared_one_only_where_there_is_none():
    """What the user gave to the prefix stays."""
    for own, kept in (("", "found"), ("mine", "mine")):
        session = Session(SharedPrefix(system=own))
        session.adapter.adopt_system("found")
        assert session.prefix.text == kept


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses", "anthropic"])
def test_a_user_who_quotes_the_shared_text_is_not_cut_short(api):
    """The request's own system text says it too, so that the user asks about it."""
    said = {"role": "user", "content": f"Is this ours?\n\n{LONG}\n\nAnd is it good?"}
    field = {"openai-responses": "instructions", "anthropic": "system"}.get(api)
    own = f"You object.\n\n{LONG}"
    given = {"model": "m", ("input" if api == "openai-responses" else "messages"): [said]}
    if field:
        given[field] = own
    else:
        given["messages"].insert(0, {"role": "system", "content": own})
    fork = fork_body(Session(SharedPrefix(system=LONG)).adapter, given, api, Role("critic"))
    assert fork.forked
    assert said in fork.body["input" if api == "openai-responses" else "messages"]


def test_what_a_user_says_in_passing_is_not_cut_out():
    """A short shared text may be said by anybody; only a handbook is taken out of a user's message."""
    session = Session(SharedPrefix(system="Be brief."))
    said = [{"role": "user", "content": f"{LONG} Please: Be brief. And be kind."}]
    fork = fork_body(session.adapter, {"model": "gpt-5.2", "messages": said}, "openai-chat", Role("critic", "Object."))
    assert fork.forked
    assert any(one["content"] == said[0]["content"] for one in fork.body["messages"])


def shaped(api):
    """A request with a call and its result, in the form of an API."""
    if api == "anthropic":
        said = [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "found"}]},
        ]
        tools = [{"name": "look", "description": "", "input_schema": {}}]
        return {"model": "claude-sonnet-4-6", "max_tokens": 9, "system": LONG, "messages": said, "tools": tools}
    if api == "openai-responses":
        said = [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "function_call", "call_id": "t", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "t", "output": "found"},
        ]
        tools = [{"type": "function", "name": "look", "parameters": {}}]
        return {"model": "gpt-5.2", "instructions": LONG, "input": said, "tools": tools}
    call = {"id": "t", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    said = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "t", "content": "found"}]
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    made = body(tools=tools)
    return {**made, "messages": [*made["messages"], *said]}


def places(value):
    """Each place in a body: what holds it, and the key or index."""
    for key, one in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(one, (dict, list)):
            yield from places(one)


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses", "anthropic"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_body_of_a_wrong_shape_fails_in_one_step_at_most(api):
    """Whatever stands in its place: the application sees its own body sent, and reads of one trouble."""
    wrong = 0
    session = Session(SharedPrefix(system=LONG))
    for at in range(len(list(places(shaped(api))))):
        for value in (5, "text", ["a"], {"a": 1}):
            given = shaped(api)
            holder, key = list(places(given))[at]
            holder[key] = value
            if not well_formed(given, api):
                wrong += 1
                continue
            before = copy.deepcopy(given)
            count = sum(session.failures.values())
            turn = fork_body(session.adapter, given, api, Role("critic", conversation="c")).begin()
            turn.finish(USAGE)
            assert given == before
            assert sum(session.failures.values()) - count <= 1
    assert wrong > 10


def test_a_request_with_functions_of_the_older_field_keeps_to_them():
    """A ``tool_choice`` that is meant for other roles' tools would forbid them."""
    session = Session(SharedPrefix(system=LONG))
    look = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
    given = {"planner": {"tools": [{"type": "function", "function": look}]}, "critic": {"functions": [look]}}
    for role, more in given.items():
        fork = fork_body(session.adapter, body(**more), "openai-chat", Role(role, conversation="one"))
        fork.begin().finish(USAGE)
        fields = ("tools", "functions", "tool_choice")
        assert {name: fork.body[name] for name in fields if name in fork.body} == more
    assert session.failures == {}


def test_what_fails_while_a_body_is_taken_apart_sends_the_applications_own(monkeypatch):
    """Also where the failure comes before anything is planned."""
    session = Session(SharedPrefix(system="The handbook says that every statement needs a source. " * 90))
    body = {"model": "gpt-5.6", "messages": [{"role": "user", "content": "hello"}]}

    def broken(*_):
        raise KeyError("broken")

    monkeypatch.setattr("cacheprefix.bodies._read_elsewhere", broken)
    made = fork_body(session.adapter, body, "openai-chat", Role("critic", "Be kind."))
    assert made.body["messages"][-1] == body["messages"][0]
    assert session.failures["layout"]


@pytest.mark.parametrize("at", range(4))
def test_what_is_decided_on_a_history_is_carried_out_around_the_roles_text(monkeypatch, at):
    """An inserted text follows the message that it stood behind; the role's text is the last that reads so."""
    session = Session(compaction=Compaction(8_000)).adapter
    decided = (Insert(at, "user", "new"),)
    monkeypatch.setattr("cacheprefix.calls.history_runner.HistoryRunner.condense", lambda *_, **__: decided)
    said = [("system", "s"), ("user", "tail"), ("assistant", "a"), ("user", "tail"), ("user", "b")]
    given = {"model": "m", "messages": [{"role": role, "content": text} for role, text in said]}
    sent = condensed_body(session, session.conversation("t"), given, "openai-chat", "tail")
    expected = ["s", "tail", "a", "tail", "b"]
    expected.insert((1, 2, 3, 5)[at], "new")
    assert [message["content"] for message in sent["messages"]] == expected


@pytest.mark.parametrize(
    ("choice", "forces"),
    [
        *[(one, True) for one in ("required", "any", True, {"type": "any"}, {"any": {}}, {"mode": "required"})],
        *[(one, False) for one in (None, "auto", "none", False, {}, {"type": "auto"}, {"auto": {}}, {"mode": "auto"})],
        ({"mode": "required", "required_function_name": "look"}, False),
        ({"type": "function", "function": {"name": "look"}}, False),
        ({"type": "allowed_tools", "mode": "required", "tools": []}, False),
    ],
    ids=str,
)
def test_a_call_is_forced_whichever_tool_it_is_of(choice, forces):
    """One that names a tool, or lists some, can be of no other role's."""
    assert forces_any(choice) is forces


def _chat(result):
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": result},
    ]


def _responses(result):
    return [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": result},
    ]


def _anthropic(result):
    return [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "read", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": result}]},
    ]


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize(
    ("api", "field", "round_of"),
    [
        ("openai-chat", "messages", _chat),
        ("openai-responses", "input", _responses),
        ("anthropic", "messages", _anthropic),
    ],
)
def test_no_roles_text_parts_a_call_from_its_result_where_that_was_rewritten(api, field, round_of, goes_on):
    """As applications do that clear results which were read: the last message of the role's request is another one."""
    session = Session(SharedPrefix(system=LONG))
    mind = "Mind each claim and say what it rests upon. " * 30
    system = f"{mind}\n\n{LONG}"
    lead = [] if api == "anthropic" else [{"role": "system", "content": system}]
    more = {"system": system, "max_tokens": 64} if api == "anthropic" else {}
    model = "claude-sonnet-4-5" if api == "anthropic" else "gpt-5.2"
    begun = [{"role": "user", "content": "Go. " * 50}]
    after = [{"role": "assistant", "content": "So it is."}, {"role": "user", "content": "And now?"}] if goes_on else []
    for said in (round_of("long result " * 200), [*round_of("[cleared]"), *after]):
        given = {"model": model, field: [*lead, *begun, *said], **more}
        fork = fork_body(session.adapter, given, api, Role("critic", mind, conversation="one"))
        turn = fork.begin()
        turn.finish(None)
        assert fork.forked
        assert request_errors(turn.body) == []
    assert session.failures == {}
