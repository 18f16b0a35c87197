"""What tracers and agents really write, as seen when they were run: each fault of theirs is one here."""

import gzip
import json
import random
from datetime import datetime, timezone

import pytest
from test_forms import RULES, calls, har, lines, pairs

from cacheprefix.audit import audit
from cacheprefix.cli import main


def shown_first(*logs):
    """The id in the system prompt is the only leak, and has its price."""
    with audit([str(log) for log in logs], what_if=False) as found:
        assert found.calls == 5
        assert found.totals.without_text == 0
        (only,) = found.totals.breaks
        assert (only.cause, only.path, only.count) == ("system_changed", "system[0]", 4)
        assert only.lost_usd > 0


def span(number, attributes):
    """A span as a file exporter writes it."""
    start = 1_760_000_000_000_000_000 + 20_000_000_000 * number
    held = {
        "traceId": f"{number + 1:032x}",
        "spanId": f"{number + 1:016x}",
        "name": "chat",
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + 10**9),
        "attributes": pairs(attributes),
    }
    return {"resourceSpans": [{"scopeSpans": [{"spans": [held]}]}]}


def test_langfuses_callback_writes_tools_among_the_messages_of_a_span(tmp_path):
    """They are the request's tools, and no answers of tools."""
    log = tmp_path / "log"
    log.write_text(lines(
        span(one.number, {
            "langfuse.observation.type": "generation",
            "langfuse.observation.model.name": "gpt-4.1",
            "langfuse.observation.input": json.dumps(
                [*one.messages, *({"role": "tool", "content": tool} for tool in one.body["tools"])]
            ),
            "langfuse.observation.usage_details": json.dumps({"input": one.total, "output": 5, "input_cache_read": 0}),
        })
        for one in calls()
    ))  # fmt: skip
    shown_first(log)


def test_mlflow_writes_names_as_json(tmp_path):
    """The model is the name without its quotation marks, so its price is known; the tools stand beside the messages."""
    log = tmp_path / "log"
    log.write_text(lines(
        {"data": {"spans": [{
            "trace_id": "nA==", "span_id": str(one.number), "start_time_unix_nano": int(one.at) * 10**9,
            "attributes": {
                "mlflow.spanType": '"CHAT_MODEL"',
                "mlflow.llm.model": '"gpt-4.1"',
                "mlflow.llm.provider": '"openai"',
                "mlflow.spanInputs": json.dumps({"messages": one.messages}),
                "mlflow.chat.tools": json.dumps(one.body["tools"]),
                "mlflow.chat.tokenUsage": json.dumps({"input_tokens": one.total, "cache_read_input_tokens": 0}),
            },
        }]}}
        for one in calls()
    ))  # fmt: skip
    shown_first(log)


def test_litellm_logs_the_input_of_a_responses_call_as_messages(tmp_path):
    """It is the request's input all the same, so a second conversation is no edit of the first."""
    log = tmp_path / "log"
    found = calls()
    log.write_text(lines(
        {
            "call_type": "responses", "custom_llm_provider": "openai", "model": "gpt-4.1", "id": f"resp_{one.number}",
            "messages": one.messages[1:], "model_parameters": {"instructions": one.messages[0]["content"]},
            "startTime": one.at, "endTime": one.at + 1,
            "response": {"usage": {"input_tokens": one.total, "input_tokens_details": {"cached_tokens": 0}}},
        }
        for one in found
    ))  # fmt: skip
    shown_first(log)
    other = [{"role": "user", "content": "something else"}]
    with log.open("a") as stream:
        stream.write(lines([{
            "call_type": "responses", "custom_llm_provider": "openai", "model": "gpt-4.1", "id": "resp_other",
            "messages": other, "model_parameters": {"instructions": "You are the writer.\n" + RULES},
            "startTime": found[-1].at + 60,
        }]))  # fmt: skip
    with audit([str(log)], what_if=False) as more:
        assert [(one.path, one.count) for one in more.totals.breaks] == [("system[0]", 4)]


def events(one, *, printed):
    """A request's messages as log records of their own, and its answer: exported one by one, or printed."""
    names = [*(f"gen_ai.{message['role']}.message" for message in one.messages), "gen_ai.choice"]
    bodies = [*({"content": message["content"]} for message in one.messages), {"index": 0, "finish_reason": "stop"}]
    for name, body in zip(names, bodies, strict=True):
        if printed:
            yield {
                "body": body, "severity_number": None, "attributes": {"gen_ai.system": "openai"}, "timestamp": None,
                "observed_timestamp": datetime.fromtimestamp(one.at + 0.5, timezone.utc).isoformat(),
                "trace_id": "0x01", "span_id": f"0x{one.number + 1:016x}", "event_name": name,
            }  # fmt: skip
            continue
        record = {
            "observedTimeUnixNano": str(1_760_000_000_000_500_000 + 20_000_000_000 * one.number),
            "body": {"kvlistValue": {"values": pairs(body)}},
            "attributes": pairs({"gen_ai.system": "openai"}),
            "spanId": f"{one.number + 1:016x}",
            "eventName": name,
        }
        yield {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}


@pytest.mark.parametrize("printed", [False, True])
def test_messages_in_a_log_and_counts_in_spans_are_one_request(tmp_path, printed):
    """Each message is a record of its own; the span of the same name says whose model it was, and what it counted."""
    spans, log = tmp_path / "spans", tmp_path / "logs"
    found = calls()
    spans.write_text(lines(
        span(one.number, {
            "gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-4.1",
            "gen_ai.usage.input_tokens": one.total, "gen_ai.usage.output_tokens": 5,
        })
        for one in found
    ))  # fmt: skip
    records = [event for one in found for event in events(one, printed=printed)]
    log.write_text("".join(json.dumps(one, indent=4) + "\n" for one in records) if printed else lines(records))
    shown_first(spans, log)
    with audit([str(log)], what_if=False) as alone:
        assert [one.path for one in alone.totals.breaks] == ["system[0]"]


def test_an_sdks_own_debug_log_begins_with_a_bracket(tmp_path):
    """It is no array of JSON; what is no literal beside a body does no harm; whole seconds make no calls concurrent."""
    log = tmp_path / "log"
    log.write_text("".join(
        f"[2026-11-20 10:00:0{one.number // 3} - openai._base_client:606 - DEBUG] Request options: {{'method': 'post', "
        f"'url': '/chat/completions', 'span': <function name at 0x7f>, 'json_data': {one.body!r}, 'files': <file>}}\n"
        f"[2026-11-20 10:00:0{one.number // 3} - httpcore.http11:45 - DEBUG] send_request_body.complete\n"
        for one in calls()
    ))  # fmt: skip
    shown_first(log)


def test_a_debug_log_without_bodies_says_so(tmp_path, capsys):
    """The one line tells what the file seems to be and what to do."""
    log = tmp_path / "log"
    log.write_text("[2026-11-20 10:00:00 - openai._base_client:606 - DEBUG] Building HTTP request: method=POST\n" * 9)
    assert main(["audit", str(log), "--plain"]) == 1
    said = capsys.readouterr().out
    assert "a debug log without the bodies of its requests" in said
    assert "not JSON" not in said
    assert "Nothing was understood" in said


def test_session_files_hold_lines_that_are_no_calls(tmp_path):
    """Bookkeeping of Claude Code and Codex is passed over; a rollout names its model once, for all that follows."""
    claude, codex = tmp_path / "claude", tmp_path / "codex"
    at = {"timestamp": "2026-11-20T10:00:00Z"}
    usage = {"input_tokens": 4, "cache_read_input_tokens": 3_000, "cache_creation_input_tokens": 50, "output_tokens": 5}
    answer = {"id": "msg_1", "model": "claude-sonnet-4-5", "usage": usage}
    claude.write_text(lines([
        {"type": "queue-operation", "operation": "enqueue", "sessionId": "s", "content": "hello", **at},
        {"type": "mode", "mode": "normal", "sessionId": "s"},
        {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}},
        {"type": "assistant", "sessionId": "s", "uuid": "a", "message": answer, **at},
    ]))  # fmt: skip
    last = {"input_tokens": 9_000, "cached_input_tokens": 8_000, "output_tokens": 5}
    count = {"type": "token_count", "info": {"last_token_usage": last, "total_token_usage": {"total_tokens": 9_005}}}
    codex.write_text(lines([
        {"ordinal": 1, "type": "world_state", "payload": {"full": True}, **at},
        {"ordinal": 2, "type": "turn_context", "payload": {"model": "gpt-5"}, **at},
        {"ordinal": 3, "type": "event_msg", "payload": count, **at},
        {"ordinal": 4, "type": "token_usage_record", "payload": {}, **at},
    ]))  # fmt: skip
    for log, model in ((claude, "claude-sonnet-4-5"), (codex, "gpt-5")):
        assert main(["audit", str(log), "--quiet", "--json", str(tmp_path / "json")]) == 0
        (call,) = json.loads((tmp_path / "json").read_bytes())["calls"]
        assert call["model"] == model


def test_marks_that_tracing_lost_are_taken_to_stand_where_the_counts_say(tmp_path):
    """A program that marks its system prompt alone reads that and no more: nothing was missed."""
    log = tmp_path / "log"
    size, said = len(RULES) // 4, [f"word {at} " * 16 for at in range(9)]
    log.write_text(lines(
        span(one.number, {
            "gen_ai.operation.name": "chat", "gen_ai.provider.name": "anthropic",
            "gen_ai.request.model": "claude-sonnet-4-5",
            "gen_ai.system_instructions": json.dumps([{"type": "text", "content": RULES}]),
            "gen_ai.input.messages": json.dumps([
                {"role": message["role"], "content": text}
                for message, text in zip(one.messages[1:], said, strict=False)
            ]),
            "gen_ai.usage.input_tokens": size + 28 * len(one.messages[1:]),
            "gen_ai.usage.cache_read.input_tokens": size if one.number else 0,
            "gen_ai.usage.cache_creation.input_tokens": 0 if one.number else size,
        })
        for one in calls()
    ))  # fmt: skip
    with audit([str(log)], what_if=False) as found:
        assert found.calls == 5
        assert not found.totals.breaks


@pytest.mark.parametrize("question", ["where is order {0}?", "{0}: other words, {0} each time"])
@pytest.mark.parametrize("counted", [True, False])
def test_an_id_is_shown_where_every_call_is_a_conversation_of_its_own(tmp_path, question, counted):
    """One question a call, without tools: no text is the very same, and the system prompt is all that repeats."""
    log = tmp_path / "log"
    log.write_text(lines(
        {
            "ts": one.at, "request": {"model": "gpt-4.1", "messages": [
                one.messages[0], {"role": "user", "content": question.format(one.number)},
            ]},
            **({"usage": one.usage | {"prompt_tokens": 2_000}} if counted else {}),
        }
        for one in calls()
    ))  # fmt: skip
    shown_first(log)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"SQLite format 3\0" + bytes(99), "a SQLite database"),
        (b"PAR1" + bytes(range(256)), "a Parquet file"),
        (bytes(range(13, 256)), "text, no JSON"),
        (b"a,b\rc,d\0", "binary data"),
        (gzip.compress(random.Random(7).randbytes(5_000))[:2_000], "binary data"),
    ],
)
def test_a_file_that_is_no_text_is_named_for_what_it_is(tmp_path, capsys, data, said):
    """Nothing in it raises."""
    log = tmp_path / "log"
    log.write_bytes(data)
    assert main(["audit", str(log), "--plain"]) == 1
    assert said in capsys.readouterr().out


def run(one, inputs, usage, provider):
    """What LangSmith's wrapper of an SDK's client posts for one call (langsmith 0.14.17)."""
    return {
        "id": f"r{one.number}", "trace_id": f"r{one.number}", "run_type": "llm", "start_time": one.iso,
        "extra": {"metadata": {"ls_provider": provider, "ls_method": "traceable", "usage_metadata": usage}},
        "inputs": inputs, "outputs": {"id": f"a{one.number}", "usage_metadata": usage},
    }  # fmt: skip


def test_langsmiths_wrapper_keeps_a_responses_request_as_it_was(tmp_path):
    """Its instructions are the system prompt, and no setting."""
    log = tmp_path / "log"
    log.write_text(lines(
        run(one, {"model": "gpt-4.1", "instructions": one.messages[0]["content"], "input": one.messages[1:]},
            {"input_tokens": one.total, "input_token_details": {"cache_read": 0}}, "openai")
        for one in calls()
    ))  # fmt: skip
    shown_first(log)


def test_langsmiths_wrapper_folds_anthropics_system_prompt_and_leaves_zeros_out(tmp_path):
    """The marks are there, so they are what the cache is judged by; a count that is missing is none."""
    log = tmp_path / "log"
    mark = {"cache_control": {"type": "ephemeral"}}
    log.write_text(lines(
        run(one, {"model": "claude-sonnet-4-5", "max_tokens": 99, "messages": [
                {"role": "system", "content": [{"type": "text", "text": one.messages[0]["content"], **mark}]},
                *one.messages[1:],
            ]}, {"input_tokens": one.total, "input_token_details": {"ephemeral_5m_input_tokens": 1_800}}, "anthropic")
        for one in calls()
    ))  # fmt: skip
    shown_first(log)


def test_a_recording_without_bodies_says_so(tmp_path, capsys):
    """Playwright keeps bodies in files of their own where it writes a zip, or nowhere when it is told to omit them."""
    log = tmp_path / "log.har"
    recorded = har(calls())
    for entry in recorded["log"]["entries"]:
        entry["request"]["postData"] = {"mimeType": "application/json", "params": [], "_file": "6c6f.json"}
        entry["response"]["content"] = {"mimeType": "application/json", "size": 733, "_file": "c938.json"}
    log.write_text(json.dumps(recorded))
    assert main(["audit", str(log), "--plain"]) == 1
    assert "5 requests of a model without their bodies" in capsys.readouterr().out


@pytest.mark.parametrize("otlp", [False, True])
def test_phoenixs_api_tells_the_kind_beside_the_attributes_and_writes_other_types_as_null(tmp_path, otlp):
    """Both of its ways to ask for spans, as Phoenix 20.26 answered them."""
    log = tmp_path / "log"

    def told(one):
        found = {
            "llm.model_name": "gpt-4.1", "input.value": json.dumps(one.body), "input.mime_type": "application/json",
            "llm.token_count.prompt": one.total, "llm.token_count.prompt_details.cache_read": 0,
        }  # fmt: skip
        if not otlp:
            return {
                "name": "ChatCompletion", "span_kind": "LLM", "start_time": one.iso, "attributes": found,
                "context": {"trace_id": f"{one.number}", "span_id": f"{one.number}"}, "status_code": "OK",
            }  # fmt: skip
        kinds = dict.fromkeys(("array_value", "bool_value", "int_value", "string_value"))
        held = {**found, "openinference.span.kind": "LLM"}.items()
        values = [
            {"key": key, "value": {**kinds, ("int_value" if isinstance(one, int) else "string_value"): one}}
            for key, one in held
        ]
        name = {"trace_id": f"{one.number}", "span_id": f"{one.number}"}
        return {**name, "start_time_unix_nano": int(one.at) * 10**9, "attributes": values}

    log.write_text(json.dumps({"data": [told(one) for one in calls()], "next_cursor": None}))
    shown_first(log)


def test_helicones_own_logger_parts_a_time_and_names_the_session_in_the_answer(tmp_path):
    """What its manual logger posts for one call (@helicone/helpers 1.8.3)."""
    log = tmp_path / "log"
    log.write_text(lines(
        {
            "providerRequest": {"url": "custom-model-nopath", "json": one.body, "meta": {}},
            "providerResponse": {
                "headers": {"Helicone-Session-Id": "s-1"}, "status": 200,
                "json": {"id": f"a{one.number}", "choices": [{"message": {"content": "yes"}}], "usage": one.usage},
            },
            "timing": {
                "startTime": {"seconds": int(one.at), "milliseconds": 423},
                "endTime": {"seconds": int(one.at) + 1, "milliseconds": 0},
            },
        }
        for one in calls()
    ))  # fmt: skip
    shown_first(log)
    with audit([str(log)], what_if=False) as found:
        assert {row.public["session"] for row in found.rows} == {"s-1"}
        assert [row.view["at"] for row in found.rows] == [int(one.at) + 0.423 for one in calls()]


def test_a_streamed_converse_call_counts_in_an_event_of_its_own(tmp_path):
    """Bodies as boto3 1.44 sends them; the log keeps a stream's events in a list."""
    log = tmp_path / "log"
    log.write_text(lines(
        {
            "schemaType": "ModelInvocationLog", "timestamp": one.iso, "operation": "ConverseStream",
            "modelId": "anthropic.claude-sonnet-4-5-20250929-v1:0",
            "input": {"inputBodyJson": {
                "system": [{"text": one.messages[0]["content"]}, {"cachePoint": {"type": "default"}}],
                "messages": [{"role": m["role"], "content": [{"text": m["content"]}]} for m in one.messages[1:]],
            }},
            "output": {"outputBodyJson": [
                {"messageStart": {"role": "assistant"}}, {"messageStop": {"stopReason": "end_turn"}},
                {"metadata": {"usage": {
                    "inputTokens": one.total - 1_800, "outputTokens": 5, "cacheReadInputTokens": 0,
                    "cacheWriteInputTokens": 1_800,
                }}},
            ]},
        }
        for one in calls()
    ))  # fmt: skip
    shown_first(log)
    with audit([str(log)], what_if=False) as found:
        assert {row.public["cached_source"] for row in found.rows} == {"reported"}


@pytest.mark.parametrize("wrapped", ["batches", "trace", "result"])
def test_the_servers_of_traces_wrap_the_protocols_own_json(tmp_path, wrapped):
    """Tempo's two APIs and Jaeger's third; names are base64 and numbers texts, as the protocol's JSON has them."""
    log = tmp_path / "log"

    def told(one):
        (resource,) = span(one.number, {
            "openinference.span.kind": "LLM", "llm.model_name": "gpt-4.1", "input.value": json.dumps(one.body),
            "input.mime_type": "application/json", "llm.token_count.prompt": one.total,
            "llm.token_count.prompt_details.cache_read": 0,
        })["resourceSpans"]  # fmt: skip
        held = resource["scopeSpans"][0]["spans"][0]
        held |= {"traceId": "IuRLqkm4RJhGiHmHazSyVw==", "spanId": f"dI0b2rSGT{'ABCDE'[one.number]}A="}
        return {wrapped: [resource]} if wrapped == "batches" else {wrapped: {"resourceSpans": [resource]}}

    log.write_text(lines(map(told, calls())))
    shown_first(log)
