"""What an audit says of a log it cannot use, of calls logged twice, and of one leak seen many times."""

import json
import uuid

import pytest
from audit_logs import Conversation, prose, quiet, write

from cacheprefix.audit import audit
from cacheprefix.cli import main


def judged(path, lines, **options):
    """The audit of these lines."""
    with audit([write(path, lines)], what_if=False, **options) as found:
        return found, list(found.rows)


def usage(total, read):
    """OpenAI's counts."""
    return {"prompt_tokens": total, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": read}}


def reported(lines):
    """Each call counted, and with a name of its own for the answer."""
    return [
        {
            **line,
            "usage": usage(2_000 + 10 * at, 1_920),
            "response_id": f"chatcmpl-{at}",
            "response_ended_ts": line["ts"] + 2,
        }
        for at, line in enumerate(lines)
    ]


def test_a_file_read_twice_counts_once(tmp_path):
    """The same calls again, whether behind the first or in a file of their own."""
    lines = reported(quiet(5))
    found, rows = judged(tmp_path / "twice.jsonl", lines + lines)
    assert len(rows) == 5
    assert "5 calls stand in the log twice and are counted once" in found.notes
    first, second = write(tmp_path / "a.jsonl", lines), write(tmp_path / "b.jsonl", lines)
    with audit([first, second], what_if=False) as both:
        assert both.calls == 5


def test_calls_without_names_are_the_same_when_body_and_time_are(tmp_path):
    """Where nothing names the answer, body and time do."""
    lines = [{key: value for key, value in line.items() if key != "response_id"} for line in reported(quiet(4))]
    assert len(judged(tmp_path / "log.jsonl", [line for line in lines for _ in range(2)])[1]) == 4


def test_a_true_retry_stays(tmp_path):
    """The same body sent again a second later was asked, and paid for, again."""
    lines = reported(quiet(3))
    again = {
        **lines[2],
        "ts": lines[2]["ts"] + 1,
        "response_id": "chatcmpl-again",
        "response_ended_ts": lines[2]["ts"] + 3,
    }
    assert len(judged(tmp_path / "log.jsonl", [*lines, again])[1]) == 4


def test_two_instrumentations_of_one_call_are_one_call(tmp_path):
    """A span with counts alone inside one with the messages adds nothing, and lends nothing but counts."""
    lines = []
    for line in reported(quiet(4)):
        counts = {
            "ts": line["ts"] + 0.01,
            "usage": line["usage"],
            "model": "gpt-4.1",
            "session": "s0",
            "provider": "openai",
        }
        lines += [counts, {key: value for key, value in line.items() if key != "response_id"}]
    found, rows = judged(tmp_path / "log.jsonl", lines)
    assert len(rows) == 4
    assert found.totals.without_text == 0


@pytest.mark.parametrize("command", ["audit", "check"])
@pytest.mark.parametrize(
    "lines", [[{"level": "info", "message": "hello"}] * 40, [{"traceId": "t", "calculatedTotalCost": 1}]]
)
def test_a_log_without_requests_is_named_and_not_praised(tmp_path, capsys, command, lines):
    """What the entries look like is said once, and the exit code is 1."""
    assert main([command, write(tmp_path / "log.jsonl", lines)]) == 1
    told = "".join(capsys.readouterr())
    assert "understood" in told
    assert told.count("this looks like") == 1


def test_an_empty_log_is_nothing_understood(tmp_path, capsys):
    """No call at all is no clean bill."""
    assert main(["audit", write(tmp_path / "log.jsonl", [])]) == 1
    assert "no request of a language model was found" in capsys.readouterr().out


def test_entries_of_an_unknown_form_count_one_by_one(tmp_path):
    """Named once, counted all."""
    found, _ = judged(tmp_path / "log.jsonl", [*[{"level": "info", "message": "x"}] * 7, *quiet(2)])
    assert found.totals.broken_count == 7
    assert len(found.totals.broken) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt_tokens": 1e30, "prompt_tokens_details": {"cached_tokens": 0}},
        {"prompt_tokens": -5, "prompt_tokens_details": {"cached_tokens": 0}},
        {"prompt_tokens": 2_000, "prompt_tokens_details": {"cached_tokens": 9_000}},
        {"prompt_tokens": "many", "prompt_tokens_details": {"cached_tokens": "none"}},
        {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 0}},
    ],
    ids=["huge", "negative", "more read than sent", "text", "fewer than the text can have"],
)
def test_counts_that_cannot_be_are_named_and_left_out(tmp_path, wrong):
    """The totals hold what the other calls say, and the simulated cache stands in."""
    lines = reported(quiet(4))
    lines[2]["usage"] = {**wrong, "completion_tokens": 1}
    found, rows = judged(tmp_path / "log.jsonl", lines)
    assert any("left out or mended" in note for note in found.notes)
    assert rows[2].public["cached_source"] == "simulated"
    assert 0 < found.totals.all.input_tokens < 20_000


@pytest.mark.parametrize("usage", ["text", 7, float("nan"), True])
def test_usage_that_is_no_object_leaves_the_call(tmp_path, usage):
    """The call is judged without counts of its own, and the note says what was wrong with them."""
    lines = reported(quiet(4))
    lines[2]["usage"] = usage
    found, rows = judged(tmp_path / "log.jsonl", lines)
    assert any("usage of no known form" in note for note in found.notes)
    assert [row.public["cached_source"] for row in rows] == ["reported", "reported", "simulated", "reported"]


def test_one_leak_is_one_row_with_its_fix(tmp_path, capsys):
    """The same edit at five places of the history, and what to do about it beside it."""
    lines = []
    talk = Conversation(seed=2, words=400)
    for turn in range(8):
        if turn:
            talk.turn()
        if turn >= 3:
            talk.messages[2 * turn - 4]["content"] += " (edited)"
        lines.append(talk.line(1_000 + 20 * turn, agent="a"))
    found, _ = judged(tmp_path / "log.jsonl", lines)
    (group,) = found.totals.breaks
    assert (group.cause, group.path, group.count) == ("history_edited", "messages[*].content", 5)
    assert main(["audit", str(tmp_path / "log.jsonl"), "--plain", "--html", str(tmp_path / "page.html")]) == 0
    out = capsys.readouterr().out
    (row,) = [
        line
        for line in out.splitlines()
        if "messages[*].content" in line and "history_edited" in line and "  5  " in line
    ]
    assert "Append to the history" in row
    assert "Append to the history" in (tmp_path / "page.html").read_text()


def test_a_missing_mark_is_placed_in_its_field(tmp_path):
    """Whatever message lacks it, one row names the field."""
    lines = []
    talk = Conversation(api="anthropic", seed=2, words=700)
    for turn in range(8):
        if turn:
            talk.turn()
        line = talk.line(1_000 + 20 * turn, agent="a")
        if turn >= 3:
            del line["request"]["messages"][-1]["content"][0]["cache_control"]
        lines.append(line)
    found, _ = judged(tmp_path / "log.jsonl", lines)
    (group,) = found.totals.breaks
    assert (group.cause, group.path) == ("breakpoint_missing", "messages[*].content.cache_control")


def test_what_is_paid_is_one_figure(tmp_path):
    """The changes are told in proportion to what the calls did cost."""
    lines = quiet(6, system=prose("x", 3_000))
    for at, line in enumerate(lines):
        line["usage"] = usage(5_000 + at, 0)
    with audit([write(tmp_path / "log.jsonl", lines)]) as found:
        assert {round(one.cost_units_now, 3) for one in found.what_if} == {round(found.totals.all.cost_units, 3)}


def test_a_lone_surrogate_is_written_as_its_escape(tmp_path, capsys):
    """Names and texts that no encoding can write stop nothing."""
    lines = quiet(4)
    lines[2]["request"]["messages"][1]["content"] += "\ud800 (edited)"
    for line in lines:
        line["agent"] = "coder \udc80"
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page, out = tmp_path / "page.html", tmp_path / "a.json"
    assert main(["audit", str(log), "--include-text", "--html", str(page), "--json", str(out)]) == 0
    assert "coder \\udc80" in json.loads(out.read_bytes())["totals"]["agents"]
    assert "udc80" in page.read_text(encoding="utf-8")
    assert main(["audit", str(log), "--plain"]) == 0
    assert "Traceback" not in "".join(capsys.readouterr())


def test_an_id_of_the_request_explains_nothing_where_the_cache_was_read(tmp_path):
    """Fields that clients add beside the settings change with every call and cost nothing."""
    lines = reported(quiet(5))
    for line in lines:
        line["request"] |= {"extra_headers": {"x-id": str(uuid.uuid4())}, "idempotency_key": str(uuid.uuid4())}
        line["request"] |= {
            "timeout": uuid.uuid4().int % 50,
            "created": line["ts"],
            "id": str(uuid.uuid4()),
            "my_tag": line["ts"],
        }
    found, rows = judged(tmp_path / "log.jsonl", lines)
    assert [row.public["cause"] for row in rows if row.view["broke"]] == []
    assert found.totals.all.calls == 5


def test_an_unknown_field_explains_what_nothing_else_does(tmp_path):
    """Where nothing was read although all was there, the field that changed is named."""
    lines = reported(quiet(6))
    for at, line in enumerate(lines):
        line["usage"] = usage(2_000 + 10 * at, 0 if at in (0, 3) else 1_920)
        line["request"]["safety_mode"] = "strict" if at >= 3 else "lax"
    _, rows = judged(tmp_path / "log.jsonl", lines)
    assert [(row.public["cause"], row.public["path"]) for row in rows if row.view["broke"]] == [
        ("settings_changed", "safety_mode")
    ]


@pytest.mark.parametrize("field", ["temperature", "generationConfig"])
def test_how_an_answer_is_drawn_explains_no_miss(tmp_path, field):
    """Gemini's requests hold the temperature in an object, beside what may matter."""
    lines = reported(quiet(6))
    for at, line in enumerate(lines):
        line["request"]["model"] = "gemini-2.5-flash"
        line["provider"] = "gemini"
        line["usage"] = usage(2_000 + 10 * at, 0 if at in (0, 3) else 1_990 + 10 * at)
        drawn = 0.2 if at >= 3 else 0.7
        line["request"][field] = drawn if field == "temperature" else {"temperature": drawn, "responseMimeType": "a/b"}
    _, rows = judged(tmp_path / "log.jsonl", lines)
    assert [row.public["cause"] for row in rows if row.view["broke"]] == ["provider_miss"]


def test_an_unknown_field_that_changed_while_the_cache_was_read_explains_no_miss(tmp_path):
    """Calls before read all they could with another value each: it is the provider who let go."""
    lines = reported(quiet(6))
    for at, line in enumerate(lines):
        line["usage"] = usage(2_000 + 10 * at, 0 if at in (0, 4) else 1_920)
        line["request"]["my_tag"] = at
    _, rows = judged(tmp_path / "log.jsonl", lines)
    assert [row.public["cause"] for row in rows if row.view["broke"]] == ["provider_miss"]


def test_a_previous_response_is_followed(tmp_path):
    """A request that goes on from an answer's id has all that was before it, and its id is no setting."""
    lines = []
    talk = Conversation(seed=9, words=300)
    for turn in range(5):
        if turn:
            talk.turn()
        body = {
            "model": "gpt-5",
            "instructions": talk.system,
            "input": [talk.messages[-1]],
            **({"previous_response_id": f"resp_{turn - 1}"} if turn else {}),
        }
        counts = {"input_tokens": 2_200 + 700 * turn, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 5}
        if turn and turn != 3:
            counts["input_tokens_details"]["cached_tokens"] = (2_200 + 700 * (turn - 1)) // 128 * 128
        lines.append({"ts": 1_000 + 20 * turn, "request": body, "response_id": f"resp_{turn}", "usage": counts})
    _, rows = judged(tmp_path / "log.jsonl", lines)
    assert [row.public["cause"] for row in rows] == ["cold_start", "hit", "hit", "provider_miss", "hit"]
    assert [row.view["sections"] for row in rows] == [2, 3, 4, 5, 6]
    for line in lines[3:]:
        line["request"]["instructions"] += " Be brief."
    _, rows = judged(tmp_path / "log.jsonl", lines)
    assert [row.public["cause"] for row in rows][2:] == ["hit", "system_changed", "hit"]


def note_of(tmp_path, *lines):
    """The audit of a log, and its notes as one text."""
    found, _ = judged(tmp_path / "log.jsonl", list(lines))
    return found, "\n".join(found.notes)


ANSWER = {"type": "assistant", "sessionId": "s", "timestamp": "2026-11-20T10:00:00Z",
          "message": {"id": "m1", "role": "assistant", "model": "claude-sonnet-4-5", "content": []}}  # fmt: skip
COUNTED = {"input_tokens": 3, "cache_read_input_tokens": 12_000, "cache_creation_input_tokens": 0, "output_tokens": 9}
ROLLOUT = {"timestamp": "2026-11-20T10:00:00Z", "type": "event_msg", "payload": {"type": "token_count", "info": None}}
BATCH = {"id": "batch_req_1", "error": None, "response": {"status_code": 200, "body": {
    "id": "chatcmpl-1", "model": "gpt-4.1", "choices": [],
    "usage": usage(1_500, 1_024)}}}  # fmt: skip
SPAN = {"traceId": "t", "spanId": "a", "name": "POST", "startTimeUnixNano": "1763000000000000000", "attributes": []}
GENERATION = {"id": "o1", "traceId": "t1", "type": "GENERATION", "model": "gpt-4.1", "usageDetails": {"input": 5}}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (ANSWER, "left out: answers without counts of tokens"),
        ({**ANSWER, "type": "user"}, "session files without answers"),
        (ROLLOUT, "rollouts without counts of tokens"),
        (
            {**ROLLOUT, "payload": {"type": "token_count", "info": {"total_token_usage": {"total_tokens": 9}}}},
            "left out: counts that do not tell the last request's",
        ),
        (SPAN, "spans, but none of a model request"),
        ({**GENERATION, "type": "SPAN", "input": {}}, "observations, but none of type GENERATION"),
        ({"run_type": "chain", "inputs": {}}, "runs, but none of type llm"),
        ({"call_type": "allm_passthrough_route", "model_parameters": {}}, "left out: calls of type allm_passthrough"),
        ({"log": {"entries": [{"request": {"method": "GET", "url": "https://example.com"}}]}}, "no request of a model"),
    ],
)
def test_what_is_left_out_of_a_log_is_said_once(tmp_path, line, said):
    """Entries of a known form that hold no call are no silence: the report says what they lack, and how many."""
    found, notes = note_of(tmp_path, line, line, line)
    assert not found.totals.understood
    assert notes.count(said) == 1
    assert "log.jsonl:1" in notes


def test_one_answer_without_counts_among_others_is_named(tmp_path):
    """It is missing from the sums."""
    found, notes = note_of(tmp_path, {**ANSWER, "message": {**ANSWER["message"], "usage": COUNTED}}, ANSWER)
    assert found.calls == 1
    assert "answers without counts of tokens (1, first in" in notes


def test_a_log_that_counts_tokens_and_no_cached_ones_is_not_said_to_have_no_usage(tmp_path):
    """Many gateways write the sums alone: what was read is a simulated cache's, and that is what is said."""
    counted = [{**line, "usage": {"prompt_tokens": 2_000, "completion_tokens": 5}} for line in quiet(3)]
    found, rows = judged(tmp_path / "log.jsonl", counted)
    assert {row.public["cached_source"] for row in rows} == {"simulated"}
    assert "the log has no counts of cached tokens; all that are shown are those of a simulated cache" in found.notes


def test_a_file_with_calls_says_nothing_of_its_bookkeeping(tmp_path):
    """Lines that hold no call stand in every such file."""
    counted = {**ANSWER, "message": {**ANSWER["message"], "usage": COUNTED}}
    assert "session files" not in note_of(tmp_path, {**ANSWER, "type": "user"}, counted)[1].replace(
        "session files keep no requests", ""
    )


def test_lines_of_a_batch_without_custom_id_are_named(tmp_path):
    """Nothing joins a request and its answer."""
    asked = {"method": "POST", "url": "/v1/chat/completions", "body": quiet(1)[0]["request"]}
    found, notes = note_of(tmp_path, asked, BATCH)
    assert found.calls == 2
    assert "answers of a batch without custom_id" in notes
    assert "requests of a batch without custom_id" in notes
    assert "custom_id" not in note_of(tmp_path, {**asked, "custom_id": "c1"}, {**BATCH, "custom_id": "c1"})[1]


@pytest.mark.parametrize(
    "refused",
    [
        {"id": "batch_req_1", "custom_id": "c1", "response": None, "error": {"code": "batch_expired"}},
        {**BATCH, "custom_id": "c1", "response": {"status_code": 400, "body": {"error": {"message": "no"}}}},
        {"custom_id": "c1", "result": {"type": "errored", "error": {"type": "invalid_request"}}},
    ],
)
def test_what_a_batch_refused_is_no_call(tmp_path, refused):
    """Its request was not answered, so that nothing of it was cached."""
    asked = {"custom_id": "c1", "body": quiet(1)[0]["request"]}
    found, notes = note_of(tmp_path, asked, refused)
    assert (found.calls, found.totals.failed) == (0, 1)
    assert "1 failed requests are left out" in notes


def test_a_result_of_anthropics_batches_has_counts(tmp_path):
    """Its message stands in its result."""
    message = {"id": "m", "type": "message", "model": "claude-sonnet-4-5", "stop_reason": "end_turn", "usage": COUNTED}
    found, _ = note_of(tmp_path, {"custom_id": "a1", "result": {"type": "succeeded", "message": message}})
    assert found.totals.all.cache_read_tokens == 12_000


def test_answers_alone_are_counted(tmp_path):
    """Without their requests nothing can be said about causes."""
    found, notes = note_of(tmp_path, BATCH["response"]["body"])
    assert found.totals.all.cache_read_tokens == 1_024
    assert "log the request bodies as well" in notes


@pytest.mark.parametrize("hidden", ["__REDACTED__", "redacted-by-litellm"])
def test_hidden_texts_are_not_taken_for_prompts(tmp_path, hidden):
    """Every call would seem to say the same, and a log full of breaks would be praised."""
    lines = reported(quiet(4))
    for line in lines:
        line["request"] = {"model": "gpt-4.1", "messages": [{"role": "user", "content": hidden}]}
    found, notes = note_of(tmp_path, *lines)
    assert found.totals.without_text == 4
    assert "texts were hidden from the log: of these calls only the counts are read (4," in notes


def test_a_text_that_is_far_less_than_was_counted_is_named(tmp_path):
    """It was cut on the way into the log; what changed in the rest nobody can see."""
    line = {"ts": 1.0, "session": "s", "usage": {"prompt_tokens": 20_000},
            "request": {"model": "gpt-4.1", "messages": [{"role": "user", "content": "cut ..."}]}}  # fmt: skip
    assert "text is far less than the provider counted" in note_of(tmp_path, line)[1]
    assert "far less" not in note_of(tmp_path, {**line, "usage": {"prompt_tokens": 12}})[1]


def test_texts_that_litellm_cut_are_named(tmp_path):
    """Its proxy stores the beginning and the end of a long text."""
    body = {"messages": [{"role": "user", "content": "a... (litellm_truncated skipped 9 chars. See) ...b"}]}
    row = {"call_type": "acompletion", "custom_llm_provider": "openai", "proxy_server_request": body}
    assert "MAX_STRING_LENGTH_PROMPT_IN_DB" in note_of(tmp_path, row)[1]


def test_a_conversation_that_the_provider_keeps_is_named(tmp_path):
    """The log does not hold what stood before."""
    line = {"ts": 1.0, "session": "s", "usage": None,
            "request": {"model": "gpt-4.1", "input": "And then?", "previous_response_id": "resp_0"}}  # fmt: skip
    assert "go on from a conversation that the provider keeps" in note_of(tmp_path, line)[1]
    first = {**line, "response_id": "resp_0", "request": {"model": "gpt-4.1", "input": "Begin."}}
    assert "the provider keeps" not in note_of(tmp_path, first, {**line, "ts": 2.0})[1]


def test_inputs_of_an_unknown_shape_are_named(tmp_path):
    """Their counts are read."""
    assert "inputs that hold no messages" in note_of(tmp_path, {**GENERATION, "input": {"question": "Why?"}})[1]


def test_the_same_remark_of_many_files_is_one(tmp_path):
    """With how many files it is said of."""
    files = [write(tmp_path / f"{name}.jsonl", [ANSWER]) for name in "abc"]
    with audit(files) as found:
        assert [note for note in found.notes if "in 3 files" in note]


@pytest.mark.parametrize(("read", "said"), [(1_500, True), (0, False)])
def test_marks_that_a_log_has_lost_are_said_to_be_presumed(tmp_path, read, said):
    """Where the counts show that there were some; where nothing was cached there may have been none."""
    usage = {"input": 2_000 - read, "cache_read_input_tokens": read, "output": 5}
    lines = [
        {
            "id": f"g{at}", "type": "GENERATION", "traceId": "t", "startTime": f"2026-11-20T10:00:{at}0.000Z",
            "model": "claude-sonnet-4-5", "usageDetails": usage,
            "input": [{"role": "system", "content": prose("handbook", 1_400)}, {"role": "user", "content": "go on"}],
        }
        for at in range(2)
    ]  # fmt: skip
    with audit([write(tmp_path / "log.jsonl", lines)]) as found:
        assert any("cache marks" in note for note in found.notes) is said
