"""A log goes in; verdicts, breaks, costs and what-ifs come out."""

import gc
import gzip
import json
import random
import re
from datetime import datetime, timedelta, timezone
from io import BytesIO, StringIO
from uuid import uuid4

import pytest
from audit_logs import Conversation, prose, quiet, team, write

from cacheprefix.audit import CHANGES, Totals, audit, write_json, write_summary
from cacheprefix.errors import ProfileError, SetupError
from cacheprefix.wire import Memo


def result_of(path, **options):
    """The JSON output of one or several logs."""
    files = [str(path)] if not isinstance(path, list) else [str(one) for one in path]
    with audit(files, **options) as found:
        stream = BytesIO()
        write_json(found, stream)
    return json.loads(stream.getvalue())


def log_of(tmp_path, lines, name="log.jsonl"):
    """The path of a log with these lines."""
    return write(tmp_path / name, lines)


CALL = {
    "index", "session", "agent", "provider", "model", "verdict", "cause", "path", "ancestor_index",
    "expected_cached_tokens", "cached_tokens", "cached_source", "lost_tokens", "lost_usd", "excerpt",
}  # fmt: skip


@pytest.mark.parametrize("api", ["openai-chat", "anthropic"])
def test_the_output_has_its_fixed_form(tmp_path, api):
    """Version, totals, calls, breaks and what_if, each with the documented keys and types."""
    lines = team(3, api=api)
    lines[5]["request"]["messages"][1]["content"] = "edited"
    found = result_of(log_of(tmp_path, lines))
    assert list(found) == ["version", "totals", "calls", "breaks", "what_if"]
    assert found["version"] == 1
    assert [call["index"] for call in found["calls"]] == list(range(9))
    for call in found["calls"]:
        assert set(call) == CALL
        assert call["verdict"] in {"hit", "partial", "miss", "unknown"}
        assert call["cached_source"] in {"reported", "simulated"}
        assert call["excerpt"] is None
        assert call["ancestor_index"] is None or call["ancestor_index"] < call["index"]
    for group in found["breaks"]:
        assert set(group) == {"cause", "path", "count", "lost_tokens", "lost_usd", "calls", "fix"}
        assert group["count"] == len(group["calls"])
        assert group["fix"]
    assert [set(one) for one in found["what_if"]] == [{"change", "cost_units_now", "cost_units_then"}] * len(CHANGES)
    assert [one["change"] for one in found["what_if"]] == list(CHANGES)


@pytest.mark.parametrize("api", ["openai-chat", "anthropic"])
def test_an_undisturbed_conversation_has_no_break(tmp_path, api):
    """After the first call everything is a hit."""
    found = result_of(log_of(tmp_path, quiet(8, api=api)))
    assert [call["cause"] for call in found["calls"]] == ["cold_start"] + ["hit"] * 7
    assert found["breaks"] == []
    assert found["totals"]["lost_tokens"] == 0


@pytest.mark.parametrize("api", ["openai-chat", "anthropic"])
def test_an_edited_message_is_found_where_it_stands(tmp_path, api):
    """Cause, path, tokens and money of one edit in the history."""
    talk, lines = Conversation(api=api), []
    for number in range(6):
        talk.turn()
        if number == 4:
            talk.messages[2]["content"] += " and one more thing"
        lines.append(talk.line(1_000 + 20 * number, agent="coder"))
    found = result_of(log_of(tmp_path, lines))
    (group,) = found["breaks"]
    where = "messages[3].content" if api == "openai-chat" else "messages[2].content"
    assert (group["cause"], group["path"], group["calls"]) == ("history_edited", where, [4])
    assert group["lost_tokens"] > 500
    assert group["lost_usd"] > 0
    assert found["calls"][4]["ancestor_index"] == 3
    assert found["totals"]["lost_tokens"] == group["lost_tokens"]


def test_a_repeated_break_counts_every_time(tmp_path):
    """A clock in the system prompt costs on every call, though a running session is told of it once."""
    lines = quiet(6)
    for number, line in enumerate(lines):
        line["request"]["messages"][0]["content"] = f"Time: 10:0{number}\n" + line["request"]["messages"][0]["content"]
    found = result_of(log_of(tmp_path, lines))
    (group,) = found["breaks"]
    assert (group["cause"], group["path"], group["count"]) == ("system_changed", "system[0]", 5)
    then = {one["change"]: one["cost_units_then"] for one in found["what_if"]}
    assert then["volatile_to_tail"] < 0.5 * found["what_if"][0]["cost_units_now"]


@pytest.mark.parametrize("second", ["ttl_expired", "provider_miss", "tools_changed"])
@pytest.mark.parametrize("first", ["provider_miss", "tools_changed", "ttl_expired"])
def test_a_break_right_after_one_of_another_cause_is_in_the_table_too(tmp_path, first, second):
    """Both have a row, and the rows are the sum."""
    talk, lines, at, before = Conversation(), [], 1_000.0, 0
    for cause in ("cold_start", "hit", first, second, "hit"):
        if lines:
            talk.turn()
        at += 90_000 if cause == "ttl_expired" else 20
        if cause == "tools_changed":
            talk.tools.insert(0, f"tool_{len(lines)}")
        size = len(json.dumps(talk.body())) // 5
        details = {"cached_tokens": before // 128 * 128 if cause == "hit" else 0}
        usage = {"prompt_tokens": size, "completion_tokens": 5, "prompt_tokens_details": details}
        lines.append(talk.line(at, agent="coder", usage=usage))
        before = size
    with audit([write(tmp_path / "log.jsonl", lines)], what_if=False) as found:
        calls = [row.public for row in found.rows]
        assert [call["cause"] for call in calls] == ["cold_start", "hit", first, second, "hit"]
        groups = found.totals.breaks
        assert {index: group.cause for group in groups for index in group.calls} == {2: first, 3: second}
        total = sum(group.lost_tokens for group in groups)
        assert total == found.totals.all.lost_tokens == sum(call["lost_tokens"] for call in calls)


def test_reported_counts_are_taken_as_they_are(tmp_path):
    """With usage the provider's word counts, and the source says so."""
    lines = quiet(3)
    for line, cached in zip(lines, (0, 2048, 2304), strict=True):
        line["usage"] = {"prompt_tokens": 2600, "prompt_tokens_details": {"cached_tokens": cached}}
    found = result_of(log_of(tmp_path, lines))
    assert [call["cached_tokens"] for call in found["calls"]] == [0, 2048, 2304]
    assert {call["cached_source"] for call in found["calls"]} == {"reported"}
    assert found["totals"]["input_tokens"] == 7800


def test_a_call_without_usage_finds_the_simulated_cache_as_the_others_left_it(tmp_path):
    """The stand-in starts at the first call that needs it and knows those before."""
    lines = quiet(4)
    for line in lines[:3]:
        line["usage"] = {"prompt_tokens": 2600, "prompt_tokens_details": {"cached_tokens": 2304}}
    last = result_of(log_of(tmp_path, lines))["calls"][3]
    assert last["cached_source"] == "simulated"
    assert last["cached_tokens"] > 2000


def test_calls_that_run_side_by_side_cannot_read_each_other(tmp_path):
    """The second starts before the first has answered: a concurrent cold start, known by the times."""
    lines = [Conversation(seed=1).line(1_000 + 0.1 * number, agent=f"a{number}") for number in range(3)]
    for line in lines:
        line.update(session="one", response_started_ts=line["ts"] + 2, response_ended_ts=line["ts"] + 5)
    found = result_of(log_of(tmp_path, lines))
    assert [call["cause"] for call in found["calls"][1:]] == ["concurrent_cold_start"] * 2
    assert [call["cached_tokens"] for call in found["calls"]] == [0, 0, 0]


def test_a_log_in_the_wrong_order_is_put_in_order(tmp_path):
    """Logs are written when answers end; the times say what came first, the index what stood first."""
    lines = quiet(8)
    mixed = list(lines)
    random.Random(3).shuffle(mixed)
    found = result_of(log_of(tmp_path, mixed))
    assert found["breaks"] == []
    first = mixed.index(lines[0])
    assert [call["index"] for call in found["calls"] if call["cause"] == "cold_start"] == [first]
    assert [call["index"] for call in found["calls"]] == list(range(8))


def test_several_logs_are_merged_by_time(tmp_path):
    """Two workers that write two files speak to one cache."""
    lines = quiet(8)
    files = [log_of(tmp_path, lines[0::2], "a.jsonl"), log_of(tmp_path, lines[1::2], "b.jsonl.gz")]
    found = result_of(files)
    assert [call["cause"] for call in found["calls"]].count("cold_start") == 1
    assert found["breaks"] == []


def test_a_log_without_times_is_read_in_its_order(tmp_path):
    """Bare bodies: nothing expires, nothing is concurrent, and the notes say so."""
    with audit([log_of(tmp_path, [line["request"] for line in quiet(5)])]) as found:
        causes = found.totals.causes
        assert dict(causes) == {"cold_start": 1, "hit": 4}
        assert any("no times" in note for note in found.notes)


def test_what_was_read_of_a_log_is_let_go_before_its_page_is_written(tmp_path):
    """The memory of sections may hold 64 MB; a result that is kept keeps none of it."""

    def memories():
        gc.collect()
        return sum(isinstance(one, Memo) for one in gc.get_objects())

    before = memories()
    with audit([str(log_of(tmp_path, quiet()))]) as found:
        assert found.calls
        assert memories() <= before


def test_failed_requests_leave_nothing_behind(tmp_path):
    """A refused first call writes no cache, so the second one is cold."""
    lines = quiet(2)
    lines[0]["error"] = {"message": "overloaded"}
    with audit([log_of(tmp_path, lines)]) as found:
        assert found.calls == 1
        assert found.totals.failed == 1
        assert dict(found.totals.causes) == {"cold_start": 1}


def test_a_request_that_cannot_be_decoded_is_a_broken_line(tmp_path):
    """The path inside the body is named beside file and line."""
    lines = quiet(2)
    lines.insert(1, {**lines[0], "request": {"model": "gpt-4.1", "messages": [{"content": "no role"}]}})
    with audit([log_of(tmp_path, lines)]) as found:
        assert found.calls == 2
        assert found.totals.broken_count == 1
        assert ":2: request: messages[0].role" in found.totals.broken[0]


def test_a_recorded_compaction_is_no_break(tmp_path):
    """The event in the log explains the rewritten history."""
    talk, lines = Conversation(), []
    for number in range(5):
        talk.turn()
        if number == 4:
            talk.messages[:6] = [{"role": "user", "content": prose("summary", 100)}]
        lines.append(talk.line(1_000 + 20 * number, agent="coder"))
    lines[4]["events"] = [{"type": "compaction"}]
    found = result_of(log_of(tmp_path, lines))
    assert found["calls"][4]["cause"] == "compacted"
    assert found["breaks"] == []


def test_request_ids_in_headers_do_not_separate_calls(tmp_path):
    """Only headers that matter to the cache count."""
    lines = quiet(4, api="anthropic")
    for number, line in enumerate(lines):
        line["headers"] = {"x-request-id": str(number), "anthropic-version": "2023-06-01"}
    assert result_of(log_of(tmp_path, lines))["breaks"] == []


def test_a_body_does_not_change_its_form_within_a_conversation(tmp_path):
    """A bare Anthropic body without system and tools looks like OpenAI's until a tool result comes."""
    messages = [{"role": "user", "content": prose("a", 2_000)}]
    first = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": list(messages)}
    messages += [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "n", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]},
    ]
    lines = [{**first, "messages": list(messages)} if number else first for number in range(2)]
    found = result_of(log_of(tmp_path, lines), rules="exact")
    assert [call["cause"] for call in found["calls"]] == ["cold_start", "hit"]


def test_roles_at_the_tail_and_one_tool_list_cost_a_team_less(tmp_path):
    """Agents with systems and tools of their own share nothing; laid out as forks they share the transcript."""
    found = result_of(log_of(tmp_path, team(6)), rules="exact")
    now = found["what_if"][0]["cost_units_now"]
    then = {one["change"]: one["cost_units_then"] for one in found["what_if"]}
    assert then["all"] < 0.75 * now
    assert then["all"] < min(then["roles_to_tail"], then["tools_unified"])


@pytest.mark.parametrize("blocks", [False, True], ids=["one text", "text blocks"])
@pytest.mark.parametrize("first", ["role", "handbook"])
def test_a_handbook_that_all_roles_hold_is_found_before_and_behind_the_role(tmp_path, first, blocks):
    """Most applications write the role first: then nothing is shared, and moving the role is what saves."""
    handbook = "\n".join(f"Rule {number}: {prose(str(number), 60)}" for number in range(40))
    lines = []
    for role in ("planner", "critic", "writer"):
        parts = [f"You are the {role}.\nBe brief.", handbook]
        parts = parts if first == "role" else parts[::-1]
        system = [{"type": "text", "text": part} for part in parts] if blocks else "\n\n".join(parts)
        messages = [{"role": "user", "content": "Go."}]
        lines.append({"model": "claude-sonnet-4-5", "max_tokens": 9, "system": system, "messages": messages})
    found = {one["change"]: one for one in result_of(log_of(tmp_path, lines), rules="exact")["what_if"]}
    roles = found["roles_to_tail"]
    assert roles["cost_units_then"] < 0.5 * sum(len(json.dumps(line)) / 4 for line in lines)
    assert (roles["cost_units_then"] < 0.5 * roles["cost_units_now"]) == (first == "role")


@pytest.mark.parametrize("roles", [["clerk"], ["planner", "critic", "writer"]])
def test_an_id_in_a_system_prompt_makes_no_roles_of_one_agent(tmp_path, roles):
    """Another id in each request is what costs, whether one agent asks or several take turns."""
    handbook = "\n".join(f"Rule {number}: {prose(str(number), 60)}" for number in range(40))
    lines, messages = [], [{"role": "user", "content": "Go."}]
    for turn in range(9):
        system = f"Request {uuid4()}. You are the {roles[turn % len(roles)]}.\n{handbook}"
        lines.append({"model": "gpt-4.1", "messages": [{"role": "system", "content": system}, *messages]})
        messages += [{"role": "assistant", "content": f"{turn} is done."}, {"role": "user", "content": "Go on."}]
    found = {one["change"]: one for one in result_of(log_of(tmp_path, lines), rules="exact")["what_if"]}
    volatile, tail = found["volatile_to_tail"], found["roles_to_tail"]
    assert volatile["cost_units_then"] < 0.6 * volatile["cost_units_now"]
    assert (tail["cost_units_then"] < tail["cost_units_now"]) == (len(roles) > 1)


def test_an_id_in_the_system_prompt_of_every_conversation_can_be_moved(tmp_path):
    """Questions of their own, each of them a conversation, have nothing in common but what stands behind the id."""
    handbook = "\n".join(f"Rule {number}: {prose(str(number), 60)}" for number in range(40))
    lines = [
        {"model": "gpt-4.1", "messages": [{"role": "system", "content": f"Request {uuid4()}.\n{handbook}"},
                                          {"role": "user", "content": prose(("question", number), 30)}]}
        for number in range(6)
    ]  # fmt: skip
    found = {one["change"]: one for one in result_of(log_of(tmp_path, lines), rules="exact")["what_if"]}
    volatile = found["volatile_to_tail"]
    assert volatile["cost_units_then"] < 0.5 * volatile["cost_units_now"]


def test_a_name_of_its_own_for_every_call_costs_no_memory():
    """Some loggers name agents so: the first ten thousand are told, the others as one."""
    totals = Totals()
    for number in range(10_020):
        for held in totals.sums(f"agent {number}", "gpt-4.1", 1_760_000_000.0):
            held.add((7, 0, 0), 7.0, None, 0)
    assert len(totals.agents) == 10_001
    assert totals.agents["others"].calls == 20
    assert sum(held.input_tokens for held in totals.agents.values()) == totals.all.input_tokens


def test_no_what_if_costs_more_than_what_is(tmp_path):
    """Each change is made only for teams it helps."""
    for api in ("openai-chat", "anthropic"):
        for one in result_of(log_of(tmp_path, team(4, api=api)))["what_if"]:
            assert one["cost_units_then"] <= one["cost_units_now"]


def test_ideal_breakpoints_help_who_sets_none(tmp_path):
    """Without marks Anthropic caches nothing."""
    lines = quiet(8, api="anthropic")
    for line in lines:
        for block in line["request"]["system"]:
            block.pop("cache_control")
        line["request"]["messages"][-1]["content"][0].pop("cache_control")
    found = result_of(log_of(tmp_path, lines))
    ideal = found["what_if"][0]
    assert ideal["cost_units_then"] < 0.5 * ideal["cost_units_now"]
    assert {call["cached_tokens"] for call in found["calls"]} == {0}


def test_traces_that_lose_the_marks_are_judged_as_marked_when_counts_show_it(tmp_path):
    """A span has no cache_control; that something was read shows that there was one."""
    lines = []
    for number, line in enumerate(quiet(4, api="anthropic")):
        body = line["request"]
        text = [
            {"role": m["role"], "parts": [{"type": "text", "content": _plain(m["content"])}]} for m in body["messages"]
        ]
        total = sum(len(json.dumps(part)) for part in (text, body["system"])) // 4
        usage = {
            "gen_ai.usage.input_tokens": total,
            "gen_ai.usage.cache_read.input_tokens": total - 300 if number else 0,
        }
        written = {"gen_ai.usage.cache_creation.input_tokens": 300 if number else total}
        attributes = {
            "gen_ai.operation.name": "chat", "gen_ai.provider.name": "anthropic", "gen_ai.request.model": body["model"],
            "gen_ai.conversation.id": "c", "gen_ai.input.messages": text,
            "gen_ai.system_instructions": [{"type": "text", "content": body["system"][0]["text"]}], **usage, **written,
        }  # fmt: skip
        one = {
            "name": "chat",
            "context": {"trace_id": "t", "span_id": str(number)},
            "start_time": line["ts"],
            "attributes": attributes,
        }
        lines.append(one)
    found = result_of(log_of(tmp_path, lines))
    assert "breakpoint_missing" not in {call["cause"] for call in found["calls"]}
    assert found["breaks"] == []


def _plain(content):
    return content if isinstance(content, str) else content[0]["text"]


SECRET = "Zanzibar-4711"


def _log_with_a_secret(tmp_path):
    talk, lines = Conversation(), []
    for number in range(4):
        talk.turn()
        if number == 3:
            talk.messages[2]["content"] = f"{SECRET} {talk.messages[2]['content']}"
        lines.append(talk.line(1_000 + 20 * number, agent="coder"))
    return log_of(tmp_path, lines)


def test_no_prompt_text_is_written_unless_it_is_asked_for(tmp_path):
    """Neither the JSON nor the summary holds a word of a prompt."""
    path = _log_with_a_secret(tmp_path)
    for wanted in (False, True):
        with audit([path], include_text=wanted) as found:
            raw, told = BytesIO(), StringIO()
            write_json(found, raw)
            write_summary(found, told, plain=True)
        both = raw.getvalue().decode() + told.getvalue()
        assert (SECRET in both) is wanted
        assert ("ledger" in both) is False or wanted


def test_the_excerpt_shows_both_sides_of_the_difference(tmp_path):
    """A few characters before and after, where text is wanted."""
    call = result_of(_log_with_a_secret(tmp_path), include_text=True)["calls"][3]
    assert SECRET in call["excerpt"]["after"]
    assert SECRET not in call["excerpt"]["before"]


@pytest.mark.parametrize("plain", [True, False])
def test_the_summary_says_what_is_paid_lost_and_to_be_saved(tmp_path, plain):
    """With rich and without it the same facts are there."""
    lines = team(4)
    lines[6]["request"]["tools"].reverse()
    told = StringIO()
    with audit([log_of(tmp_path, [*lines, "{broken"])]) as found:
        write_summary(found, told, plain=plain, previous=True)
    text = told.getvalue()
    for expected in (
        "What you pay",
        "What you could pay",
        "tools_reordered",
        "Agents",
        "planner",
        "previous-request",
        ":13",
    ):
        assert expected in text


@pytest.mark.parametrize("plain", [True, False])
def test_where_no_change_would_help_one_line_says_so(tmp_path, plain):
    """Instead of a table of nothing."""
    told = StringIO()
    with audit([log_of(tmp_path, quiet(3))]) as found:
        write_summary(found, told, plain=plain)
    assert re.search(r"as it is [\d,]+ units: none of 5 changes that were simulated make it less", told.getvalue())
    assert "saving" not in told.getvalue()


def test_unknown_rules_and_no_log_are_named(tmp_path):
    """Misuse raises at once, with what to do."""
    path = log_of(tmp_path, quiet(1))
    with pytest.raises(ProfileError, match="exakt"):
        audit([path], rules="exakt")
    with pytest.raises(SetupError, match="no log"):
        audit([])


def test_rules_provider_and_model_can_be_overridden(tmp_path):
    """A log without a model is priced once the user says which it was."""
    lines = quiet(3)
    for line in lines:
        line["request"].pop("model")
        line.pop("provider")
    path = log_of(tmp_path, lines)
    with audit([path]) as found:
        assert any("no cache rules are known" in note for note in found.notes)
    call = result_of(path, model="claude-sonnet-4-5", provider="bedrock")["calls"][0]
    assert (call["model"], call["provider"]) == ("claude-sonnet-4-5", "bedrock")
    exact = result_of(path, model="gpt-4.1", rules="exact")["calls"][2]
    assert exact["cached_tokens"] % 128


def test_a_log_costs_what_it_cost_when_it_was_made(tmp_path):
    """DeepSeek is cheaper at night: the calls' own hours count, not the hour of the audit."""
    pytest.importorskip("genai_prices", reason="needs the extra prices, which make test installs")
    noon = datetime(2026, 11, 20, 12, tzinfo=timezone.utc).timestamp()
    paid = []
    for name, start in (("day", noon), ("night", noon + 8 * 3600)):
        lines = quiet(3, start=start)
        lines[2]["request"]["messages"][1]["content"] = "edited"
        with audit([log_of(tmp_path, lines, name)], model="deepseek-r1", provider="deepseek") as found:
            paid.append((found.totals.all.usd, found.totals.lost_usd))
    assert paid[1][0] < 0.5 * paid[0][0]
    assert 0 < paid[1][1] < 0.5 * paid[0][1]


@pytest.mark.slow
def test_a_long_log_keeps_its_memory(tmp_path):
    """Eight times the conversations need about the same memory: rows and text are let go."""
    import subprocess
    import sys

    program = (
        "import resource, sys; from cacheprefix.audit import audit;"
        "found = audit([sys.argv[1]]); print(found.calls, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    peaks = []
    for sessions in (2, 16):
        path = tmp_path / f"{sessions}.jsonl.gz"
        with gzip.open(path, "wt", compresslevel=1) as stream:
            for session in range(sessions):
                for line in quiet(25, start=1_000.0 + 1_000 * session, seed=session, words=500):
                    stream.write(json.dumps(line) + "\n")
        done = subprocess.run([sys.executable, "-c", program, str(path)], check=True, capture_output=True, text=True)
        calls, peak = map(int, done.stdout.split())
        assert calls == sessions * 25
        peaks.append(peak)
    assert peaks[1] < peaks[0] + 40_000


def test_lmcache_sessions_raise_few_alarms_and_each_is_real(traces, tmp_path):
    """An alarm's call does not continue any earlier prompt of its session: the text says so itself."""
    files = sorted((traces("lmcache_agent_trace") / "magagent").glob("*.gz"))
    with audit([str(path) for path in files], include_text=True) as found:
        rows = list(found.rows)
        rule = found.previous
    broken = [row for row in rows if row.view["broke"]]
    assert 0 < len(broken) < 0.05 * len(rows)
    texts = {}
    for path in files:
        with gzip.open(path, "rt", encoding="utf-8") as stream:
            for number, line in enumerate(stream, 1):
                texts[f"{path}:{number}"] = json.loads(line)
    for row in broken:
        mine = texts[row.view["place"]]
        before = texts[found_place(rows, row.public["ancestor_index"])]
        assert not mine["input"].startswith(before["input"])
        assert row.public["lost_tokens"] > 0
    assert rule.alarms > 0
    assert rule.false == rule.alarms - sum(row.view["rule"] and row.view["broke"] for row in rows)


def found_place(rows, index):
    """File and line of a call."""
    return next(row.view["place"] for row in rows if row.public["index"] == index)


@pytest.mark.parametrize("kind", ["miniswe", "taubench"])
def test_append_only_lmcache_sessions_raise_none(traces, kind):
    """One agent that only appends breaks nothing."""
    files = sorted((traces("lmcache_agent_trace") / kind).glob("*.gz"))
    with audit([str(path) for path in files]) as found:
        assert found.totals.groups == {}
        assert found.totals.broken_count == 0


def test_tracelab_rounds_raise_no_alarm(traces):
    """Provider noise of a block, and real misses without text to explain them, are no alarms."""
    found = result_of(traces("tracelab") / "round_trace.jsonl")
    assert found["breaks"] == []
    assert found["totals"]["calls_without_text"] == 19
    assert found["totals"]["input_tokens"] == 514_012
    assert sum(call["verdict"] == "hit" for call in found["calls"]) >= 10


@pytest.mark.parametrize("off", [-128, 0, 128])
def test_a_block_more_or_less_is_no_break(tmp_path, off):
    """Providers round; one block either way says nothing."""
    lines = quiet(6)
    before = 0
    for number, line in enumerate(lines):
        total = len(json.dumps(line["request"])) // 4
        cached = max(0, before // 128 * 128 + (off if number % 2 else 0)) if number else 0
        line["usage"] = {"prompt_tokens": total, "prompt_tokens_details": {"cached_tokens": min(cached, total)}}
        before = total
    assert result_of(log_of(tmp_path, lines))["breaks"] == []


def test_what_will_break_is_warned_of_with_its_path(tmp_path):
    """A clock in the system prompt is a timestamp at system[0]; one that never changes is none."""
    for moving in (True, False):
        lines = quiet(3)
        for number, line in enumerate(lines):
            first = line["request"]["messages"][0]
            first["content"] = f"Time: 2026-11-20T10:00:{number * moving:02}Z\n{first['content']}"
        found = result_of(log_of(tmp_path, lines))["totals"]["lint"]
        assert [(one["smell"], one["path"]) for one in found] == [("timestamp", "system[0]")] * moving
        assert all("excerpt" not in one for one in found)


def test_a_single_call_is_warned_of_what_may_change(tmp_path):
    """With one call in the log nobody can know, so the warning stands."""
    (line,) = quiet(1)
    line["request"]["messages"][0]["content"] += " Session 123e4567-e89b-42d3-a456-426614174000."
    (one,) = result_of(log_of(tmp_path, [line]))["totals"]["lint"]
    assert (one["smell"], one["path"]) == ("uuid", "system[0]")


@pytest.mark.parametrize("packed", [False, True])
def test_progress_adds_up_to_the_file(tmp_path, packed):
    """What is told of a file's bytes, packed or not, is its size on disk."""
    told = []
    path = write(tmp_path / "log", quiet(150, words=20), packed=packed)
    with audit([path], on_bytes=told.append):
        assert sum(told) == (tmp_path / "log").stat().st_size
    assert len(told) > 1


def _as_wire(line, form):
    """A chat line in another API's form."""
    body = line["request"]
    system, *messages = body["messages"]
    tools = [tool["function"] for tool in body["tools"]]
    if form == "openai-responses":
        tools = [{"type": "function", **tool} for tool in tools]
        request = {"model": body["model"], "instructions": system["content"], "tools": tools, "input": messages}
        return {**line, "request": request}
    if form == "gemini":
        request = {
            "systemInstruction": {"parts": [{"text": system["content"]}]},
            "tools": [{"functionDeclarations": tools}],
            "contents": [
                {"role": "model" if one["role"] == "assistant" else "user", "parts": [{"text": one["content"]}]}
                for one in messages
            ],
        }
        return {**line, "provider": "google", "model": "gemini-2.5-pro", "request": request}
    point = {"cachePoint": {"type": "default"}}
    turns = [{"role": one["role"], "content": [{"text": one["content"]}]} for one in messages]
    turns[-1]["content"].append(point)
    request = {
        "system": [{"text": system["content"]}, point],
        "toolConfig": {"tools": [{"toolSpec": tool} for tool in tools]},
        "messages": turns,
    }
    return {**line, "provider": "bedrock", "model": "anthropic.claude-sonnet-4-5-20250929-v1:0", "request": request}


@pytest.mark.parametrize("form", ["openai-responses", "gemini", "bedrock"])
def test_every_wire_form_is_judged(tmp_path, form):
    """A quiet conversation is quiet, and an edited system prompt is found, on each API's wire."""
    lines = [_as_wire(line, form) for line in quiet(5)]
    found = result_of(log_of(tmp_path, lines))
    assert [call["cause"] for call in found["calls"]] == ["cold_start"] + ["hit"] * 4
    changed = quiet(5)
    for line in changed[3:]:
        line["request"]["messages"][0]["content"] = "New. " + line["request"]["messages"][0]["content"]
    (group,) = result_of(log_of(tmp_path, [_as_wire(line, form) for line in changed]))["breaks"]
    assert group["cause"] == "system_changed"
    assert group["calls"] == [3]


def test_the_collector_of_the_process_is_left_as_it_was(tmp_path):
    """Whatever an audit sets for itself holds for its own time, also where reading fails."""
    before = gc.get_threshold()
    talk = Conversation()
    with audit([write(tmp_path / "log", [talk.line(1_000.0)])]):
        assert gc.get_threshold() == before
    with pytest.raises(SetupError):
        audit([str(tmp_path / "missing")])
    assert gc.get_threshold() == before


def test_usage_is_summed_up_by_model_and_day(tmp_path):
    """Each call in one of them, by the day in UTC; a table shows them where there are several."""
    lines = quiet(6)
    for number, line in enumerate(lines):
        line["ts"] = 1_795_392_000.0 + number * 43_200.0
        line["request"]["model"] = ("gpt-5.6", "gpt-4.1")[number % 2]
    path = log_of(tmp_path, lines)
    found = result_of(path)["totals"]
    held = {(one["day"], one["model"]): one["calls"] for one in found["models_by_day"]}
    days = [(datetime(2026, 11, 23, tzinfo=timezone.utc) + timedelta(days=n)).date().isoformat() for n in range(3)]
    assert held == {(day, model): 1 for day in days for model in ("gpt-4.1", "gpt-5.6")}
    assert sum(one["input_tokens"] for one in found["models_by_day"]) == found["input_tokens"]
    out = StringIO()
    with audit([str(path)]) as done:
        write_summary(done, out, plain=True)
    assert "Models by day" in out.getvalue()
    assert days[2] in out.getvalue()


def test_a_log_whose_times_begin_at_zero_has_them(tmp_path):
    """Zero is a time like any other: its call is of the same day as those that follow."""
    lines = [{**line, "ts": float(number)} for number, line in enumerate(quiet(3))]
    (held,) = result_of(log_of(tmp_path, lines))["totals"]["models_by_day"]
    assert (held["day"], held["calls"]) == ("1970-01-01", 3)
