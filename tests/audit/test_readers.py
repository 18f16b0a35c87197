"""Every log format is read into the same records, and a broken line costs nothing but itself."""

import gzip
import io
import json

import pytest
from audit_logs import quiet, write
from hypothesis import given
from hypothesis import strategies as st

from cacheprefix.audit import BUILTIN, Broken, Placed, Reader, Record, records, seconds
from cacheprefix.errors import BodyError, SetupError


def read(path, **options):
    """The records and the broken lines of a log."""
    found = list(records(str(path), **options))
    return [one.record for one in found if isinstance(one, Placed)], [one for one in found if isinstance(one, Broken)]


def span(attributes, *, name="chat", start=1_000, parent="", identity="b1", events=()):
    """One span in OTLP JSON."""

    def wire(value):
        if isinstance(value, bool):
            return {"boolValue": value}
        if isinstance(value, int):
            return {"intValue": str(value)}
        if isinstance(value, float):
            return {"doubleValue": value}
        if isinstance(value, list):
            return {"arrayValue": {"values": [wire(item) for item in value]}}
        if isinstance(value, dict):
            return {"kvlistValue": {"values": pairs(value)}}
        return {"stringValue": value}

    def pairs(held):
        return [{"key": key, "value": wire(value)} for key, value in held.items()]

    return {
        "traceId": "t1",
        "spanId": identity,
        "parentSpanId": parent,
        "name": name,
        "startTimeUnixNano": str(start * 1_000_000_000),
        "endTimeUnixNano": str((start + 3) * 1_000_000_000),
        "attributes": pairs(attributes),
        "events": [{"name": title, "attributes": pairs(held)} for title, held in events],
    }


def export(*spans):
    """Spans as a collector exports them."""
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}


OTEL = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "openai",
    "gen_ai.request.model": "gpt-4.1",
    "gen_ai.conversation.id": "c7",
    "gen_ai.usage.input_tokens": 1200,
    "gen_ai.usage.cache_read.input_tokens": 1024,
}
MESSAGES = [
    {"role": "user", "parts": [{"type": "text", "content": "Wie spät ist es?"}]},
    {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "clock", "arguments": {"zone": "CET"}}]},
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "noon"}]},
]
SYSTEM = [{"type": "text", "content": "Be brief."}]
TOOLS = [{"type": "function", "name": "clock", "description": "Tells the time", "parameters": {"type": "object"}}]
LANGSMITH = {
    "id": "r1",
    "trace_id": "tr1",
    "run_type": "llm",
    "start_time": "2026-11-20T10:00:00.123456",
    "end_time": "2026-11-20T10:00:04+00:00",
    "inputs": {
        "messages": [
            [
                {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "SystemMessage"],
                 "kwargs": {"content": "Be brief.", "type": "system"}},
                {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "HumanMessage"],
                 "kwargs": {"content": "Hi", "type": "human"}},
                {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "AIMessage"],
                 "kwargs": {"content": "", "type": "ai",
                            "tool_calls": [{"id": "x", "name": "clock", "args": {"a": 1}}]}},
                {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "ToolMessage"],
                 "kwargs": {"content": "noon", "type": "tool", "tool_call_id": "x"}},
            ]
        ]
    },
    "outputs": {
        "generations": [
            [{"message": {"kwargs": {"usage_metadata": {"input_tokens": 90, "output_tokens": 3, "total_tokens": 93,
                                                        "input_token_details": {"cache_read": 64}}}}}]
        ]
    },
    "extra": {
        "invocation_params": {"model": "gpt-4.1", "tools": [{"type": "function", "function": {"name": "clock"}}]},
        "metadata": {"ls_provider": "openai", "thread_id": "th1", "langgraph_node": "reviewer"},
    },
}  # fmt: skip
LITELLM = {
    "id": "q1",
    "trace_id": "tr9",
    "call_type": "acompletion",
    "custom_llm_provider": "anthropic",
    "model": "claude-sonnet-4-5",
    "startTime": 1_763_000_000.5,
    "completionStartTime": 1_763_000_001.5,
    "endTime": 1_763_000_003.0,
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    "model_parameters": {
        "tools": [{"type": "function", "function": {"name": "clock"}}], "temperature": 0, "stream": True,
    },
    "metadata": {
        "user_api_key_hash": "k1",
        "usage_object": {"prompt_tokens": 50, "prompt_tokens_details": {"cached_tokens": 0}},
    },
    "status": "success",
}  # fmt: skip
LMCACHE = {"timestamp": 1_760_995_776_640_783, "input": "user: Hi\n\nassistant: Ho", "output": "x", "session_id": "s"}
ALL = {
    "native": quiet(1)[0],
    "body": quiet(1)[0]["request"],
    "otel": export(span({**OTEL, "gen_ai.input.messages": json.dumps(MESSAGES)})),
    "langsmith": LANGSMITH,
    "litellm": LITELLM,
    "lmcache": LMCACHE,
}


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize("packed", [False, True])
def test_every_format_is_recognised_by_its_content(tmp_path, form, packed):
    """No option names the format, and gzip needs no file ending."""
    found, broken = read(write(tmp_path / "log", [ALL[form], ALL[form]], packed=packed))
    assert len(found) == 2
    assert not broken
    assert found[0].body["messages"]


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize(
    "damage", ["{", "nonsense", "42", "null", '{"a":1}', '{"ts": 1, "request": {}', "\ufffd\x00", '{"request": 3}']
)
def test_a_broken_line_is_named_and_skipped(tmp_path, form, damage):
    """The lines before and behind it are read, and the report says which line it was."""
    found, broken = read(write(tmp_path / "log", [ALL[form], damage, ALL[form]]))
    assert len(found) == 2
    assert [(one.line, one.file) for one in broken] == [(2, str(tmp_path / "log"))]
    assert broken[0].problem


@pytest.mark.parametrize("damage", ["{", '{"ts": 1,', "[", "nonsense"])
def test_a_broken_first_line_does_not_make_a_document_of_the_log(tmp_path, damage):
    """A truncated first line is one broken line, whatever bracket it begins with."""
    found, broken = read(write(tmp_path / "log", [damage, *quiet(3)]))
    assert len(found) == 3
    assert [one.line for one in broken] == [1]


def test_many_broken_lines_at_the_start_are_each_named(tmp_path):
    """Even several truncated lines in a row are judged one by one."""
    found, broken = read(write(tmp_path / "log", ['{"a":', '{"b":', '{"c":', "{", *quiet(2)]))
    assert len(found) == 2
    assert [one.line for one in broken] == [1, 2, 3, 4]


@pytest.mark.parametrize("form", ["{deep}\n{call}\n", "{{\n}}\n{deep}\n{call}\n", "[\n{deep},\n{call}\n]"])
@pytest.mark.parametrize("deep", ["[" * 20_000 + "]" * 20_000, '{"a":' * 20_000 + "1" + "}" * 20_000])
def test_what_is_nested_without_end_is_named(tmp_path, form, deep):
    """In lines, documents and an array; of lines only that one is lost, unless it makes the file look like an array."""
    path = tmp_path / "log"
    path.write_text(form.format(deep=deep, call=json.dumps(quiet(1)[0])))
    found, broken = read(path)
    assert len(found) == (form.startswith("{deep}") and deep.startswith("{"))
    assert any("recursion" in one.problem or "nested" in one.problem for one in broken)


def test_what_is_no_object_is_named_once(tmp_path):
    """With how many of its kind there are, and in JSON's own words."""
    _, broken = read(write(tmp_path / "log", ["null", "1", "null", *quiet(1), "null", "2.5", '"text"']))
    assert sorted(one.problem.partition(" (")[0] for one in broken) == [
        "expected an object, found a number",
        "expected an object, found null",
        "expected an object, found text",
    ]
    assert sum(one.count for one in broken) == 6


def test_blank_lines_and_a_byte_order_mark_are_nothing(tmp_path):
    """Editors leave both behind; neither is an error."""
    path = tmp_path / "log"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(ALL["native"]).encode() + b"\n\n  \n")
    found, broken = read(path)
    assert len(found) == 1
    assert not broken


@pytest.mark.parametrize("packed", [False, True])
def test_what_powershell_redirects_is_read(tmp_path, packed):
    """Its ``>`` writes UTF-16, of which a block may end within a character."""
    data = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in quiet(40)).encode("utf-16")
    (tmp_path / "log").write_bytes(gzip.compress(data) if packed else data)
    found, broken = read(tmp_path / "log")
    assert len(found) == 40
    assert not broken


def test_a_damaged_gzip_file_gives_what_stood_before_the_damage(tmp_path):
    """The end of the readable part is reported as one broken line."""
    whole = gzip.compress("".join(json.dumps(line) + "\n" for line in quiet(40)).encode())
    (tmp_path / "log.gz").write_bytes(whole[: len(whole) // 2])
    found, broken = read(tmp_path / "log.gz")
    assert found
    assert len(broken) == 1 + (len(broken) == 2)
    assert "damaged" in broken[-1].problem


def test_standard_input_is_a_log_too(monkeypatch):
    """``-`` reads standard input, packed or not."""
    data = gzip.compress(json.dumps(ALL["native"]).encode())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))
    found, broken = read("-")
    assert len(found) == 1
    assert not broken


def test_a_missing_file_is_a_set_up_error(tmp_path):
    """The message names the file."""
    with pytest.raises(SetupError, match=r"nothing\.jsonl"):
        read(tmp_path / "nothing.jsonl")


def test_a_pretty_printed_array_is_one_document(tmp_path):
    """Exports are often one JSON array over many lines; its items are counted from 0."""
    path = tmp_path / "runs.json"
    path.write_text(json.dumps([LANGSMITH, {"run_type": "chain"}, {"no": "run"}], indent=2), encoding="utf-8")
    found = list(records(str(path)))
    assert [type(one).__name__ for one in found] == ["Placed", "Broken"]
    assert str(found[1]).startswith(f"{path}[2]: ")


@pytest.mark.parametrize("text", ["Grüße, 世界 🙂", "\ud800 lone", "tab\tand \u2028 separator"])
def test_text_of_any_script_survives(tmp_path, text):
    """Also what is no valid Unicode, which JSON on the wire may hold."""
    line = {**ALL["native"], "request": {"model": "m", "messages": [{"role": "user", "content": text}]}}
    found, broken = read(write(tmp_path / "log", [line]))
    assert not broken
    assert found[0].body["messages"][0]["content"] == text


def test_a_native_line_says_everything_a_record_holds(tmp_path):
    """Scope, headers, events, diagnostics and times come through."""
    line = {
        "ts": 12.5, "provider": "anthropic", "session": "s", "agent": "a", "scope": "tenant",
        "headers": {"anthropic-beta": "x"}, "request": {"model": "m", "messages": []}, "usage": {"input_tokens": 1},
        "diagnostics": {"cache_miss_reason": {"type": "tools_changed"}}, "events": [{"type": "compaction"}],
        "response_started_ts": 13, "response_ended_ts": "1970-01-01T00:00:14Z",
    }  # fmt: skip
    found, _ = read(write(tmp_path / "log", [line]))
    assert found == [
        Record(
            body=line["request"], provider="anthropic", ts=12.5, session="s", agent="a", scope="tenant",
            headers=line["headers"], usage=line["usage"], diagnostics=line["diagnostics"],
            events=({"type": "compaction"},), response_started_ts=13.0, response_ended_ts=14.0,
        )
    ]  # fmt: skip


@pytest.mark.parametrize("structured", [False, True])
@pytest.mark.parametrize("where", ["attributes", "event"])
def test_opentelemetry_spans_are_read_from_attributes_and_events(tmp_path, structured, where):
    """Content may be JSON text or structured, on the span or on its one details event."""
    content = {
        "gen_ai.input.messages": MESSAGES,
        "gen_ai.system_instructions": SYSTEM,
        "gen_ai.tool.definitions": TOOLS,
    }
    if not structured:
        content = {name: json.dumps(value) for name, value in content.items()}
    one = (
        span({**OTEL, **content})
        if where == "attributes"
        else span(OTEL, events=[("gen_ai.client.inference.operation.details", content)])
    )
    (record,), broken = read(write(tmp_path / "log", [export(one)]))
    assert not broken
    assert record.body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Wie spät ist es?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": '{"zone":"CET"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ]
    assert record.body["tools"][0]["function"]["name"] == "clock"
    assert (record.session, record.provider, record.model, record.ts) == ("c7", "openai", "gpt-4.1", 1_000.0)
    assert record.usage["gen_ai.usage.cache_read.input_tokens"] == 1024
    assert record.response_ended_ts == 1_003.0


def test_opentelemetry_events_of_one_message_each_are_read(tmp_path):
    """The older form has an event for every message."""
    events = [
        ("gen_ai.system.message", {"content": "Be brief."}),
        ("gen_ai.user.message", {"content": "Hi"}),
        ("gen_ai.choice", {"finish_reason": "stop"}),
    ]
    plain = {"gen_ai.system": "openai", "gen_ai.request.model": "gpt-4.1"}
    (record,), _ = read(write(tmp_path / "log", [export(span(plain, events=events))]))
    assert [message["role"] for message in record.body["messages"]] == ["system", "user"]
    assert record.provider == "openai"


def test_openllmetry_numbered_attributes_are_read(tmp_path):
    """``gen_ai.prompt.0.role`` and so on, tools as ``llm.request.functions.0.name``."""
    plain = {
        "gen_ai.request.model": "gpt-4.1",
        "gen_ai.prompt.0.role": "system", "gen_ai.prompt.0.content": "Be brief.",
        "gen_ai.prompt.1.role": "user", "gen_ai.prompt.1.content": "Hi",
        "llm.request.functions.0.name": "clock", "llm.request.functions.0.parameters": '{"type": "object"}',
    }  # fmt: skip
    (record,), _ = read(write(tmp_path / "log", [export(span(plain))]))
    assert [message["content"] for message in record.body["messages"]] == ["Be brief.", "Hi"]
    assert record.body["tools"][0]["function"]["parameters"] == {"type": "object"}


def test_an_agents_span_names_the_calls_below_it(tmp_path):
    """The agent stands on the span above; tool spans and agents' own spans are no calls."""
    agent = span(
        {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "planner"}, name="invoke_agent", identity="a1"
    )
    step = span({}, name="step", identity="a2", parent="a1")
    call = span({**OTEL, "gen_ai.input.messages": json.dumps(MESSAGES)}, parent="a2", identity="a3")
    found, broken = read(write(tmp_path / "log", [export(agent, step, call)]))
    assert [record.agent for record in found] == ["planner"]
    assert not broken


def test_console_exported_spans_are_read(tmp_path):
    """The SDK's console exporter prints one pretty JSON object with plain attributes."""
    one = {
        "name": "chat gpt-4.1",
        "context": {"trace_id": "0x1", "span_id": "0x2"},
        "start_time": "2026-11-20T10:00:00.000000Z",
        "end_time": "2026-11-20T10:00:02.000000Z",
        "attributes": {**OTEL, "gen_ai.input.messages": json.dumps(MESSAGES)},
        "status": {"status_code": "UNSET"},
    }
    path = tmp_path / "spans.json"
    path.write_text(json.dumps(one, indent=4), encoding="utf-8")
    (record,), broken = read(path)
    assert not broken
    assert record.response_ended_ts - record.ts == 2


def test_a_langsmith_run_keeps_tools_thread_node_and_usage(tmp_path):
    """Messages come back in the wire's form, the rest from parameters and metadata."""
    (record,), _ = read(write(tmp_path / "log", [LANGSMITH, {"run_type": "tool"}]))
    assert [message["role"] for message in record.body["messages"]] == ["system", "user", "assistant", "tool"]
    assert record.body["messages"][2]["tool_calls"][0]["function"] == {"name": "clock", "arguments": '{"a":1}'}
    assert record.body["tools"][0]["function"]["name"] == "clock"
    assert (record.session, record.agent, record.provider, record.model) == ("th1", "reviewer", "openai", "gpt-4.1")
    assert record.usage["input_token_details"]["cache_read"] == 64


def test_a_langsmith_run_of_a_wrapped_client_holds_the_body_itself(tmp_path):
    """``wrap_openai`` records the request as it was."""
    run = {"run_type": "llm", "id": "1", "inputs": quiet(1)[0]["request"], "outputs": {"usage": {"prompt_tokens": 4}}}
    (record,), _ = read(write(tmp_path / "log", [run]))
    assert record.body["tools"] == quiet(1)[0]["request"]["tools"]
    assert record.usage == {"prompt_tokens": 4}


def test_a_litellm_row_keeps_key_provider_and_parameters(tmp_path):
    """The caller's key is the scope; streaming is no setting of the prompt."""
    (record,), _ = read(write(tmp_path / "log", [LITELLM]))
    assert record.scope == "k1"
    assert record.body["temperature"] == 0
    assert "stream" not in record.body
    assert (record.ts, record.response_started_ts) == (1_763_000_000.5, 1_763_000_001.5)


def test_a_litellm_spend_row_holds_the_proxys_request_as_text(tmp_path):
    """The database stores JSON columns as text, and times as text."""
    row = {
        "request_id": "q", "call_type": "acompletion", "custom_llm_provider": "openai", "model": "gpt-4.1",
        "api_key": "k", "startTime": "2026-11-20 10:00:00.5", "messages": "{}", "metadata": "{}",
        "proxy_server_request": json.dumps({"messages": [{"role": "user", "content": "Hi"}], "temperature": 1}),
        "response": json.dumps({"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}}}),
    }  # fmt: skip
    (record, aside), _ = read(write(tmp_path / "log", [row, {**row, "call_type": "aembedding"}]))
    assert aside.aside == "embeddings"
    assert record.body["messages"][0]["content"] == "Hi"
    assert record.usage["prompt_tokens"] == 9


def test_a_failed_litellm_call_is_marked(tmp_path):
    """It left nothing in the cache."""
    (record,), _ = read(write(tmp_path / "log", [{**LITELLM, "status": "failure"}]))
    assert record.failed


def test_rendered_text_is_split_at_roles_only(tmp_path):
    """A name with a colon inside a message is text; without any role the prompt is one message."""
    text = "user: The team:\n\nFileSurfer: reads files\n\nassistant: Ok\nuser: no"
    lines = [{**LMCACHE, "input": text}, {**LMCACHE, "input": "No roles here\n\nNote: none"}]
    found, _ = read(write(tmp_path / "log", lines))
    assert [(m["role"], m["content"]) for m in found[0].body["messages"]] == [
        ("user", "The team:\n\nFileSurfer: reads files"),
        ("assistant", "Ok\nuser: no"),
    ]
    assert len(found[1].body["messages"]) == 1
    assert found[0].ts == pytest.approx(1_760_995_776.640783)


@given(parts=st.lists(st.text(alphabet="ab: \nuser", max_size=12), max_size=6), cut=st.integers(0, 60))
def test_a_longer_rendered_prompt_splits_alike(parts, cut):
    """All messages but the last of a beginning are messages of the whole, so appending edits nothing."""
    from cacheprefix.audit.formats.text import split

    text = "\n\nuser: ".join(["user: x", *parts])
    short, whole = split(text[:cut]), split(text)
    assert whole[: len(short) - 1] == short[:-1]


def test_tracelab_counts_are_read_as_reported(traces, tmp_path):
    """Claude's count excludes the cached tokens, Codex's includes them; both come out the same."""
    from cacheprefix.profiles import normalise_usage, profile_for

    path = traces("tracelab") / "round_trace.jsonl"
    found, broken = read(path)
    raw = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert not broken
    for record, line in zip(found, raw, strict=True):
        usage = normalise_usage(record.usage, profile=profile_for(record.model, record.provider))
        assert usage.input_tokens == line["input_tokens_total"]
        assert usage.cache_read_tokens == line["prefix_tokens"]


@pytest.mark.parametrize(
    "entry",
    [
        {"request": {"messages": []}},
        {"ts": 1, "usage": None},
        {"type": "response_item", "payload": {}},
        {"type": "user", "sessionId": "s"},
        {"type": "summary"},
        {"input": "hi", "timestamp": 1, "session_id": "s"},
        *({name: []} for name in ("resourceSpans", "resource_spans", "resourceLogs", "resource_logs")),
        {"batches": []},
        {"spans": []},
        {"data": [{"spans": []}]},
        {"trace": {}},
        {"result": {"resourceSpans": []}},
        {"logRecords": []},
        {"attributes": {}, "traceId": "t"},
        {"observations": [{}]},
        {"traceId": "t", "input": "hi", "type": "GENERATION"},
        {"run_type": "llm"},
        {"runs": []},
        {"call_type": "completion", "litellm_params": {}},
        {"litellm_call_id": "c", "messages": []},
        {"session_id": "s", "prefix_tokens": 1, "input_tokens_total": 2},
        {"custom_id": "c"},
        {"log": {"entries": []}},
        {"message": {"body": '{"messages": []}'}},
        {"entry": {"response": {"usage": {}}}},
        {"response": {"content": {"parsed": {"usage": {}}}}},
        {"result": {"body": '{"usage": {}}'}},
        {"kwargs": {"json_data": {"contents": []}}},
        {"data": {"model": "gpt-4.1", "system": "hi"}},
        {"choices": [], "usage": {}},
        {"candidates": [], "usageMetadata": {}},
        {"model": "gpt-4.1", "prompt": "hi"},
        {"contents": []},
        {"instructions": "hi"},
    ],
)
def test_what_a_reader_knows_has_one_of_its_signs(entry):
    """Entries without any are not looked at, so a reader that knows one must name a field of it."""
    knowing = [one for one in BUILTIN if one.recognises(entry)]
    assert knowing
    assert all(one.may_read(entry.keys()) for one in knowing)


def test_lines_of_text_are_told_from_json_that_is_no_entry(tmp_path):
    """The first are counted together, without being parsed; what is JSON is said to be none of a request."""
    path = tmp_path / "log"
    text = ["INFO started", "2026-11-22 12:00:00 up", "[2026-11-22] up", "[INFO] up", "None", "nullable", "true story"]
    values = ["null", "true", "-1", "12", '"text"', "NaN", "Infinity", "[12, true]", "  [ 1 ]"]
    path.write_text("\n".join([*text, *values, *text]))
    _, broken = read(path)
    assert sum(one.count for one in broken if one.problem.startswith("expected an object")) == len(values) + 1
    told = next(one for one in broken if one.problem.startswith("text, no JSON"))
    assert (told.line, told.count) == (1, 2 * len(text))


def test_a_plugins_reader_comes_first(tmp_path):
    """A format of one's own needs a name, a look and a read."""
    mine = Reader("mine", lambda value: "ask" in value, lambda value: [Record(body={"messages": [value["ask"]]})])
    found, broken = read(write(tmp_path / "log", [{"ask": {"role": "user", "content": "x"}}]), readers=(mine,))
    assert len(found) == 1
    assert not broken


def test_a_reader_that_fails_loses_one_entry_and_no_more(tmp_path):
    """Whatever a plugin's reader raises is a broken line."""
    mine = Reader("mine", lambda value: "ask" in value, lambda value: [Record(body=value["ask"]["deep"])])
    found, broken = read(write(tmp_path / "log", [{"ask": {}}, {"ask": {"deep": {}}}]), readers=(mine,))
    assert len(found) == 1
    assert "mine" in broken[0].problem


@pytest.mark.parametrize(
    ("given_", "read_"),
    [
        (1_760_000_000, 1_760_000_000.0),
        (1_760_000_000.25, 1_760_000_000.25),
        (1_760_000_000_250, 1_760_000_000.25),
        (1_760_000_000_250_000, 1_760_000_000.25),
        ("1760000000250000000", 1_760_000_000.25),
        ("2025-10-09T08:53:20.250Z", 1_760_000_000.25),
        ("2025-10-09T08:53:20.25", 1_760_000_000.25),
        ("2025-10-09 10:53:20.250000123+02:00", 1_760_000_000.25),
        ("0001-01-01T00:00:00Z", -62_135_596_800.0),
        (None, None),
    ],
)
def test_times_of_every_unit_are_seconds(given_, read_):
    """The unit is told by the size, text by its form."""
    found = seconds(given_, "ts")
    assert found == read_ if read_ is None else found == pytest.approx(read_, abs=1e-5)


@pytest.mark.parametrize("bad", ["soon", True, float("nan"), [], "2025-99-99", 1e300, -(10**25), "-1e99", "9999-12-31"])
def test_what_is_no_time_says_where_it_stood(bad):
    """The error carries the field's name."""
    with pytest.raises(BodyError, match="start_time"):
        seconds(bad, "start_time")


SCALARS = st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | st.text(max_size=8)
KEYS = """
ts provider session agent headers request usage events api model messages role content parts type text tools system
contents input timestamp session_id resourceSpans scopeSpans spans attributes key value stringValue intValue kvlistValue
values context traceId spanId startTimeUnixNano gen_ai.request.model gen_ai.input.messages gen_ai.system_instructions
gen_ai.tool.definitions gen_ai.prompt.0.role run_type runs inputs outputs extra invocation_params metadata generations
call_type model_parameters custom_llm_provider proxy_server_request startTime response input_tokens_total prefix_tokens
tool_calls kwargs id prompt_tokens diagnostics response_started_ts scope arrayValue name
"""
NAMES = st.sampled_from(KEYS.split())
VALUES = st.recursive(
    SCALARS | st.sampled_from(["llm", "chat", "user", "acompletion", "{", "[]", '{"a": 1}']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=6),
    max_leaves=20,
)


@given(entries=st.lists(st.dictionaries(NAMES, VALUES, max_size=8), min_size=1, max_size=4))
def test_no_entry_of_any_shape_stops_the_reading(tmp_path_factory, entries):
    """Whatever JSON objects a log holds, each becomes records or one broken line, and the last line is read."""
    from cacheprefix.audit import audit

    path = write(tmp_path_factory.mktemp("log") / "log.jsonl", [*entries, ALL["native"]])
    with audit([path]) as found:
        assert found.totals.broken_count <= len(entries)
        assert any(row.view["place"].endswith(f":{len(entries) + 1}") for row in found.rows)
