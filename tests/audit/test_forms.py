"""Logs in the shapes that their producers write: an id in a system prompt is the first thing that each shows."""

import csv
import io
import json
import uuid

import pytest
from audit_logs import prose

from cacheprefix.audit import audit
from cacheprefix.cli import main

RULES = prose("handbook", 1_400)
TOOLS = [
    {
        "type": "function",
        "function": {"name": f"tool_{at}", "description": prose(at, 20), "parameters": {"type": "object"}},
    }
    for at in range(3)
]


class Call:
    """One call of a conversation whose system prompt has a new id each time."""

    def __init__(self, number, messages):
        self.number = number
        self.at = 1_760_000_000.0 + 20 * number
        self.messages = [{"role": "system", "content": f"Request {uuid.UUID(int=number + 1)}\n{RULES}"}, *messages]
        self.total = 2_000 + 150 * number

    @property
    def body(self):
        return {"model": "gpt-4.1", "messages": self.messages, "tools": TOOLS}

    @property
    def usage(self):
        read = {"cached_tokens": 0}
        return {"prompt_tokens": self.total, "completion_tokens": 5, "prompt_tokens_details": read}

    @property
    def answer(self):
        message = {"role": "assistant", "content": "ok"}
        return {
            "id": f"chatcmpl-{self.number}",
            "model": "gpt-4.1",
            "choices": [{"message": message}],
            "usage": self.usage,
        }

    @property
    def iso(self):
        return f"2026-11-20T10:{self.number:02d}:00.000Z"


def calls():
    """Five turns."""
    messages = [{"role": "user", "content": prose("task", 40)}]
    made = []
    for number in range(5):
        made.append(Call(number, list(messages)))
        messages += [
            {"role": "assistant", "content": prose(("a", number), 60)},
            {"role": "user", "content": prose(("u", number), 60)},
        ]
    return made


def lines(entries):
    """JSON lines."""
    return "".join(json.dumps(entry) + "\n" for entry in entries)


def pairs(held):
    """Attributes as OTLP spells them."""

    def wire(value):
        if isinstance(value, int):
            return {"intValue": str(value)}
        if isinstance(value, list):
            return {"arrayValue": {"values": [wire(one) for one in value]}}
        return {"stringValue": value if isinstance(value, str) else json.dumps(value)}

    return [{"key": key, "value": wire(value)} for key, value in held.items()]


def span(call, attributes, **more):
    """One call as a span."""
    return {
        "traceId": f"t{call.number}",
        "spanId": f"s{call.number}",
        "name": "chat",
        "startTimeUnixNano": str(int(call.at * 1e9)),
        "endTimeUnixNano": str(int((call.at + 2) * 1e9)),
        "attributes": pairs(attributes),
        **more,
    }


def export(one):
    """A span as a collector exports it."""
    return {"resourceSpans": [{"scopeSpans": [{"spans": [one]}]}]}


def openinference(call):
    """Numbered attributes, without the request itself."""
    found = {"openinference.span.kind": "LLM", "llm.model_name": "gpt-4.1", "llm.system": "openai"}
    for at, message in enumerate(call.messages):
        found[f"llm.input_messages.{at}.message.role"] = message["role"]
        found[f"llm.input_messages.{at}.message.content"] = message["content"]
    for at, tool in enumerate(TOOLS):
        found[f"llm.tools.{at}.tool.json_schema"] = json.dumps(tool)
    found["llm.token_count.prompt"] = call.total
    found["llm.token_count.prompt_details.cache_read"] = 0
    return {**found, "llm.token_count.completion": 5}


def whole(call):
    """The request and the answer as JSON text, as OpenInference keeps them beside its attributes."""
    return {"input.value": json.dumps(call.body), "output.value": json.dumps(call.answer)}


def spans(found):
    """All calls as spans."""
    return [span(one, openinference(one)) for one in found]


def vercel(call):
    """The inner span of a call, parts and tools as the SDK spells them."""
    messages = [
        {
            "role": one["role"],
            "content": one["content"] if one["role"] == "system" else [{"type": "text", "text": one["content"]}],
        }
        for one in call.messages
    ]
    tools = [
        json.dumps({"type": "function", "name": one["function"]["name"], "inputSchema": one["function"]["parameters"]})
        for one in TOOLS
    ]
    return {
        "ai.operationId": "ai.generateText.doGenerate",
        "ai.model.id": "gpt-4.1",
        "ai.model.provider": "openai.chat",
        "ai.prompt.messages": json.dumps(messages),
        "ai.prompt.tools": tools,
        "ai.response.id": f"chatcmpl-{call.number}",
        "ai.usage.inputTokens": call.total,
        "ai.usage.inputTokenDetails.cacheReadTokens": 0,
        "ai.usage.cachedInputTokens": 0,
        "ai.usage.outputTokens": 5,
        "gen_ai.request.model": "gpt-4.1",
    }


def vercel_spans(found):
    """Each call has an outer span as well, which repeats it."""
    made = []
    for call in found:
        outer = {
            "ai.operationId": "ai.generateText",
            "ai.model.id": "gpt-4.1",
            "ai.prompt": json.dumps({"messages": []}),
        }
        made += [export(span(call, vercel(call))), export(span(call, {**outer, "ai.usage.inputTokens": call.total}))]
    return lines(made)


def nested(call):
    """Phoenix: the same attributes, nested."""
    messages = [{"message": message} for message in call.messages]
    counts = {"prompt": call.total, "completion": 5, "prompt_details": {"cache_read": 0}}
    return {
        "name": "ChatCompletion",
        "context": {"trace_id": f"t{call.number}", "span_id": f"s{call.number}"},
        "span_kind": "LLM",
        "start_time": call.iso,
        "end_time": call.iso,
        "attributes": {
            "openinference": {"span": {"kind": "LLM"}},
            "llm": {"model_name": "gpt-4.1", "system": "openai", "input_messages": messages, "token_count": counts},
        },
    }


def langfuse(call):
    """One generation, as the export has it."""
    return {
        "id": f"o{call.number}",
        "traceId": f"t{call.number}",
        "type": "GENERATION",
        "name": "OpenAI-generation",
        "startTime": call.iso,
        "model": "gpt-4.1",
        "input": {"messages": call.messages, "tools": TOOLS},
        "usageDetails": {"input": call.total, "input_cached_tokens": 0, "output": 5},
    }


def table(entries):
    """The same as CSV, JSON in its cells."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=list(entries[0]))
    writer.writeheader()
    for entry in entries:
        writer.writerow({key: held if isinstance(held, str) else json.dumps(held) for key, held in entry.items()})
    return stream.getvalue()


def genai_logs(call):
    """OTLP as logs: one record a message, then the answer with the counts."""
    records = [
        {
            "timeUnixNano": str(int(call.at * 1e9)),
            "spanId": f"s{call.number}",
            "traceId": f"t{call.number}",
            "eventName": f"gen_ai.{message['role']}.message",
            "attributes": pairs({"gen_ai.system": "openai", "gen_ai.request.model": "gpt-4.1"}),
            "body": {"kvlistValue": {"values": pairs({"content": message["content"]})}},
        }
        for message in call.messages
    ]
    counts = {"gen_ai.usage.input_tokens": call.total, "gen_ai.usage.cache_read.input_tokens": 0}
    records.append({"spanId": f"s{call.number}", "eventName": "gen_ai.choice", "attributes": pairs(counts)})
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}


def jaeger(found):
    """Jaeger's JSON: tags, and times in microseconds."""

    def one(call):
        tags = [{"key": key, "type": "string", "value": value} for key, value in openinference(call).items()]
        return {
            "traceID": f"t{call.number}",
            "spanID": f"s{call.number}",
            "operationName": "chat",
            "references": [],
            "startTime": int(call.at * 1e6),
            "duration": 2_000_000,
            "tags": tags,
        }

    return {"data": [{"traceID": f"t{call.number}", "spans": [one(call)], "processes": {}} for call in found]}


def mlflow(call):
    """A trace of one span, its values as JSON text."""
    attributes = {
        "mlflow.spanType": json.dumps("CHAT_MODEL"),
        "mlflow.spanInputs": json.dumps(call.body),
        "mlflow.spanOutputs": json.dumps(call.answer),
    }
    one = {
        "trace_id": f"t{call.number}",
        "span_id": f"s{call.number}",
        "parent_span_id": None,
        "name": "Completions",
        "start_time_unix_nano": int(call.at * 1e9),
        "end_time_unix_nano": int((call.at + 2) * 1e9),
        "attributes": attributes,
        "status": {"code": "STATUS_CODE_OK", "message": ""},
    }
    return {"info": {"trace_id": f"t{call.number}"}, "data": {"spans": [one]}}


def bedrock(call):
    """Bedrock's invocation log of a Converse call, without marks."""
    messages = [{"role": one["role"], "content": [{"text": one["content"]}]} for one in call.messages[1:]]
    system = [{"text": call.messages[0]["content"]}, {"cachePoint": {"type": "default"}}]
    usage = {
        "inputTokens": call.total - 1_800,
        "outputTokens": 5,
        "cacheReadInputTokens": 0,
        "cacheWriteInputTokens": 1_800,
    }
    return {
        "schemaType": "ModelInvocationLog",
        "timestamp": call.iso,
        "operation": "Converse",
        "modelId": "anthropic.claude-sonnet-4-5-20250929-v1:0",
        "input": {"inputBodyJson": {"system": system, "messages": messages}, "inputTokenCount": call.total},
        "output": {"outputBodyJson": {"output": {}, "stopReason": "end_turn", "usage": usage}},
    }


def har(found):
    """What a browser or a proxy saves."""
    entries = [
        {
            "startedDateTime": call.iso,
            "time": 2_000,
            "request": {
                "method": "POST",
                "url": "https://api.openai.com/v1/chat/completions",
                "headers": [{"name": "authorization", "value": "Bearer secret"}],
                "postData": {"mimeType": "application/json", "text": json.dumps(call.body)},
            },
            "response": {"status": 200, "content": {"mimeType": "application/json", "text": json.dumps(call.answer)}},
        }
        for call in found
    ]
    return {"log": {"version": "1.2", "entries": entries}}


def streamed(call):
    """A logged stream: its events, the counts in the last."""
    return "".join(
        f"data: {json.dumps(event)}\n\n"
        for event in ({"choices": [{"delta": {"content": "ok"}}]}, {"choices": [], "usage": call.usage})
    )


def batch(found):
    """Requests and their answers, told apart."""
    sent = [
        {"custom_id": f"c{one.number}", "method": "POST", "url": "/v1/chat/completions", "body": one.body}
        for one in found
    ]
    came = [
        {
            "id": f"b{one.number}",
            "custom_id": f"c{one.number}",
            "response": {"status_code": 200, "body": one.answer},
            "error": None,
        }
        for one in found
    ]
    return lines([*sent, *came])


URL = "https://api.openai.com/v1/chat/completions"
FORMS = {
    "openinference spans": lambda found: lines(export(span(one, openinference(one))) for one in found),
    "openinference with the request": lambda found: lines(
        export(span(one, {**openinference(one), **whole(one)}))
        for one in found
    ),
    "phoenix": lambda found: lines(map(nested, found)),
    "printed one after another": lambda found: "\n".join(json.dumps(nested(one), indent=4) for one in found),
    "vercel ai sdk": vercel_spans,
    "langfuse lines": lambda found: lines(map(langfuse, found)),
    "langfuse array": lambda found: json.dumps(list(map(langfuse, found)), indent=2),
    "langfuse csv": lambda found: table(list(map(langfuse, found))),
    "langfuse traces": lambda found: lines(
        {"id": f"t{one.number}", "sessionId": "x", "input": "Hi", "observations": [langfuse(one)]} for one in found
    ),
    "langfuse page": lambda found: json.dumps({"data": list(map(langfuse, found)), "meta": {"cursor": None}}),
    "otlp logs": lambda found: lines(map(genai_logs, found)),
    "tempo": lambda found: json.dumps({"batches": [{"scopeSpans": [{"spans": spans(found)}]}]}),
    "tempo 2": lambda found: json.dumps(
        {"trace": {"resourceSpans": [{"scopeSpans": [{"spans": spans(found)}]}]}}, indent=1
    ),
    "jaeger": lambda found: json.dumps(jaeger(found)),
    "mlflow": lambda found: lines(map(mlflow, found)),
    "helicone": lambda found: lines(
        {
            "request_id": f"r{one.number}",
            "request_created_at": one.iso,
            "request_path": URL,
            "request_body": one.body,
            "response_body": one.answer,
            "response_status": 200,
            "request_properties": {"Helicone-Session-Id": f"h{one.number}"},
        }
        for one in found
    ),
    "bedrock invocations": lambda found: lines(map(bedrock, found)),
    "openai batch": batch,
    "har": lambda found: json.dumps(har(found), indent=2),
    "sdk debug log": lambda found: "".join(
        f"2026-11-20 10:{one.number:02d}:00,123 DEBUG:openai._base_client:Request options: "
        f"{ {'method': 'post', 'url': '/chat/completions', 'json_data': one.body}!r}\n"
        f"2026-11-20 10:{one.number:02d}:01,123 DEBUG:httpx:load_verify_locations\n"
        for one in found
    ),
    "request and response": lambda found: lines(
        {"timestamp": one.iso, "request": one.body, "response": one.answer} for one in found
    ),
    "http in json": lambda found: lines(
        {
            "time": one.at,
            "request": {"method": "POST", "url": URL, "body": json.dumps(one.body)},
            "response": {"status": 200, "body": json.dumps(one.answer)},
        }
        for one in found
    ),
    "http with a stream": lambda found: lines(
        {"time": one.at, "request": {"url": URL, "body": one.body}, "response": streamed(one)} for one in found
    ),
    "deep in an envelope": lambda found: lines(
        {"@timestamp": one.iso, "log": {"event": {"data": {"request": {"json": one.body}, "result": one.answer}}}}
        for one in found
    ),
    "as text in a message": lambda found: lines(
        {"timestamp": one.iso, "level": "INFO", "message": json.dumps({"payload": one.body, "result": one.answer})}
        for one in found
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_an_id_in_the_system_prompt_is_shown_first_with_its_price(tmp_path, form, capsys):
    """Whatever the wrapping, the calls are the same five and the leak is the same one."""
    log = tmp_path / "log"
    log.write_text(FORMS[form](calls()))
    with audit([str(log)], what_if=False) as found:
        assert found.calls == 5
        assert found.totals.without_text == 0
        (first, *others) = found.totals.breaks
        assert others == []
        assert (first.cause, first.path, first.count) == ("system_changed", "system[0]", 4)
        assert first.lost_usd > 0
        assert first.lost_tokens > 4 * 1_000
    assert main(["audit", str(log), "--plain", "--no-what-if"]) == (form == "sdk debug log")
    assert "system_changed  system[0]" in capsys.readouterr().out


COUNTS = {
    "claude code": lambda found: lines(
        entry
        for one in found
        for entry in (
            {
                "type": "user",
                "sessionId": "s",
                "uuid": f"u{one.number}",
                "timestamp": one.iso,
                "message": {"role": "user"},
            },
            *[
                {
                    "type": "assistant",
                    "sessionId": "s",
                    "uuid": f"a{one.number}{block}",
                    "timestamp": one.iso,
                    "message": {
                        "id": f"msg_{one.number}",
                        "model": "claude-sonnet-4-5",
                        "usage": {
                            "input_tokens": 4,
                            "cache_read_input_tokens": one.total - 200,
                            "cache_creation_input_tokens": 196,
                            "output_tokens": 5,
                        },
                    },
                }
                for block in range(2)
            ],
        )
    ),
    "codex": lambda found: lines(
        entry
        for one in found
        for entry in [
            {
                "timestamp": one.iso,
                "type": "event_msg",
                "payload": {
                    "type": "token_count",
                    "info": {
                        "total_token_usage": {"total_tokens": 2_000 * (one.number + 1)},
                        "last_token_usage": {
                            "input_tokens": one.total,
                            "cached_input_tokens": 1_920,
                            "output_tokens": 5,
                        },
                    },
                },
            }
        ]
        * 2
    ),
    "litellm spend rows": lambda found: lines(
        {
            "request_id": f"r{one.number}",
            "call_type": "acompletion",
            "custom_llm_provider": "openai",
            "model": "gpt-4.1",
            "startTime": one.iso,
            "messages": {},
            "proxy_server_request": {},
            "prompt_tokens": one.total,
            "completion_tokens": 5,
        }
        for one in found
    ),
}


@pytest.mark.parametrize("form", COUNTS)
def test_counts_alone_say_what_they_can_and_what_is_missing(tmp_path, form):
    """Each answer counts once, nothing is said about causes, and a note says how to get the rest."""
    log = tmp_path / "log"
    log.write_text(COUNTS[form](calls()))
    with audit([str(log)], what_if=False) as found:
        assert found.calls == 5
        assert found.totals.without_text == 5
        assert found.totals.breaks == []
        assert any("nothing can be said about causes" in note for note in found.notes)
        assert form == "codex" or any("record" in note or "store_prompts" in note for note in found.notes)


def without(value, *names):
    """The same without these fields, however deep they stand."""
    if isinstance(value, dict):
        return {name: without(held, *names) for name, held in value.items() if name not in names}
    return [without(one, *names) for one in value] if isinstance(value, list) else value


def notes_of(tmp_path, entries):
    """What an audit of these entries says beside its figures, and how many calls it saw."""
    log = tmp_path / "log"
    log.write_text(lines(entries))
    with audit([str(log)], what_if=False) as found:
        return " / ".join(found.notes), found.calls, found.totals


def test_calls_without_a_model_say_why_they_have_no_price(tmp_path):
    """A log of bodies whose model the address would have told has its costs in units alone, and says so."""
    entries = [{"provider": "openai", "request": without(one.body, "model"), "usage": one.usage} for one in calls()]
    notes, count, _ = notes_of(tmp_path, entries)
    assert count == 5
    assert "5 calls name no model, so they have no price in dollars; give it with --model" in notes


def test_a_sum_in_dollars_says_whose_calls_it_leaves_out(tmp_path):
    """Of two models one has no price: half a sum does not pass for a whole one."""
    entries = [
        {"provider": "openai", "request": {**one.body, "model": f"house-model-{at}" if at < 2 else "gpt-4.1"},
         "usage": one.usage}
        for at, one in enumerate(calls())
    ]  # fmt: skip
    notes, _, totals = notes_of(tmp_path, entries)
    assert totals.all.usd > 0
    assert "2 calls are not in the sum in dollars: no price is known for house-model-0, house-model-1" in notes


def test_log_records_of_messages_without_a_span_are_named_and_not_counted_as_calls(tmp_path):
    """Nothing says which of them are one request, and each alone would be a request that nobody sent."""
    log = tmp_path / "log"
    log.write_text(lines(without(genai_logs(one), "spanId", "traceId") for one in calls()))
    with audit([str(log)], what_if=False) as found:
        assert found.calls == 0
        assert "log records without spanId" in found.totals.broken[0]


def test_calls_without_text_and_counts_are_not_said_to_have_counts(tmp_path):
    """Rows that keep neither say nothing, and the note says so beside how to get the text."""
    rows = [without(json.loads(row), "prompt_tokens") for row in COUNTS["litellm spend rows"](calls()).splitlines()]
    notes, count, _ = notes_of(tmp_path, [without(row, "completion_tokens") for row in rows])
    assert count == 5
    assert "5 calls have neither text nor counts" in notes
    assert "have counts and no text" not in notes
    assert "store_prompts_in_spend_logs" in notes


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        ({"model": "text-embedding-3-small", "input": ["a", "b"]}, "embeddings"),
        (
            {
                "request": {"url": "https://api.openai.com/v1/embeddings", "body": {"model": "m", "input": "x"}},
                "response": {},
            },
            "embeddings",
        ),
        ({"model": "gpt-image-1", "prompt": "a cat", "size": "1024x1024"}, "images"),
    ],
)
def test_requests_for_something_else_are_counted_aside(tmp_path, entry, kind):
    """Embeddings and images have no prompt cache: they are no calls, and no broken lines either."""
    log = tmp_path / "log"
    log.write_text(lines([entry, *[{"request": one.body, "ts": one.at} for one in calls()]]))
    with audit([str(log)], what_if=False) as found:
        assert found.calls == 5
        assert found.totals.aside == {kind: 1}
        assert found.totals.broken_count == 0
        assert any(kind in note for note in found.notes)


def test_no_credential_of_a_har_file_is_kept(tmp_path):
    """Headers stay out of everything that is written."""
    log = tmp_path / "log.har"
    log.write_text(json.dumps(har(calls())))
    out, page = tmp_path / "a.json", tmp_path / "a.html"
    assert main(["audit", str(log), "--json", str(out), "--html", str(page), "-q"]) == 0
    assert b"secret" not in out.read_bytes() + page.read_bytes()
