"""What is lost where two things come together, or where something comes and goes: causes and tokens."""

import json

import pytest
from audit_logs import Conversation, chat_tool, prose
from test_forms import calls, har
from test_sessions import answered, breaks, counted

from cacheprefix.audit import Placed, records
from cacheprefix.wire import decode


def test_a_document_is_no_larger_for_the_requests_that_it_holds(tmp_path):
    """Each of them fills the window in which requests are put in order by its own share: else none are put in order."""
    recorded = har(calls())
    recorded["log"]["entries"][3]["comment"] = "x" * 200_000
    log = tmp_path / "log.har"
    log.write_text(json.dumps(recorded))
    read = [one for one in records(str(log)) if isinstance(one, Placed)]
    assert len(read) == len(calls())
    assert sum(one.size for one in read) <= log.stat().st_size


def test_a_fan_out_that_is_cold_behind_a_warm_front_is_told(tmp_path):
    """What was read as expected confirms the count of it: what siblings pay anew behind it is no error of counting."""
    system = prose("handbook", 3_000)
    lead = Conversation(system=system, seed=0)
    lines = [lead.line(1_000, agent="lead", response_started_ts=1_001, response_ended_ts=1_002)]
    front = counted(str(lead.body()["tools"])) + counted(system)
    document = prose("document", 800)
    for at in range(5):
        talk = Conversation(system=system, seed=1)
        talk.messages = [
            {"role": "user", "content": document},
            {"role": "assistant", "content": "Parts follow."},
            {"role": "user", "content": prose(("part", at), 60)},
        ]
        asked = 1_100 + 0.004 * at
        lines.append(talk.line(asked, agent=f"w{at}", response_started_ts=asked + 2, response_ended_ts=asked + 3))
    answered(lines)
    for line in lines[1:]:
        line["usage"]["prompt_tokens_details"]["cached_tokens"] = front // 128 * 128
    found = breaks(tmp_path / "log.jsonl", lines)
    assert {at: cause for at, (cause, _, _) in found.items()} == dict.fromkeys((2, 3, 4, 5), "concurrent_cold_start")
    assert all(lost == pytest.approx(counted(document), abs=256) for _, _, lost in found.values())


def test_an_end_that_was_read_is_not_taken_for_the_next_one_by_an_odd_token(tmp_path):
    """Without the answers' times: what siblings did not read is what one of them was writing, not the old front."""
    system, document = prose("handbook", 2_400), prose("document", 1_500)
    lines = []
    for at in range(4):
        asked = [{"type": "text", "text": one} for one in (prose("other", 300), prose("other end", 30))]
        if at:
            asked = [{"type": "text", "text": one} for one in (document, prose(("part", at), 60))]
        asked[0]["cache_control"] = {"type": "ephemeral"}
        body = anthropic(system, [{"role": "user", "content": asked}])
        ours = decode(body, "anthropic").totals
        # The provider counts less than we do in front, and as much in all.
        front, whole = int(0.985 * ours[0]), ours[-1]
        usage = {"input_tokens": 0, "cache_read_input_tokens": front if at else 0}
        usage["cache_creation_input_tokens"] = whole - usage["cache_read_input_tokens"]
        lines.append({"ts": 1_000 + 60 * (at > 0) + 0.004 * at, "provider": "anthropic", "request": body})
        lines[-1]["usage"] = usage
    found = {at: cause for at, (cause, _, _) in breaks(tmp_path / "log.jsonl", lines).items()}
    assert found == dict.fromkeys((2, 3), "concurrent_cold_start")


def test_going_back_to_all_tools_loses_what_was_said_without_them(tmp_path):
    """One call without tools, as for a summary: the next reads what stood before that call, and pays its messages."""
    lines = []
    talk = Conversation(seed=4, tools=tuple(f"tool_{at}" for at in range(12)), words=300)
    for turn in range(6):
        if turn:
            talk.turn()
        line = talk.line(1_000 + 20 * turn, agent="a")
        if turn == 3:
            line["request"]["tools"] = []
        lines.append(line)
    found = breaks(tmp_path / "log.jsonl", answered(lines))
    assert {at: cause for at, (cause, _, _) in found.items()} == {3: "tools_changed", 4: "tools_changed"}
    said = counted(talk.messages[5]["content"]) + counted(talk.messages[6]["content"])
    assert found[4][2] == pytest.approx(said, rel=0.25)


def test_a_result_that_is_cut_with_nothing_behind_it_costs_nothing(tmp_path):
    """Of a long result that stood last little is sent any more: that what went is not read is no loss."""
    talk = Conversation(seed=6, words=100)
    first = talk.line(1_000, agent="a")
    first["request"]["messages"].append({"role": "tool", "tool_call_id": "c1", "content": prose("rows", 1_500)})
    talk.turn()
    second = talk.line(1_020, agent="a")
    cut = {"role": "tool", "tool_call_id": "c1", "content": prose("rows", 40) + " [cut]"}
    second["request"]["messages"][2:2] = [cut]
    assert breaks(tmp_path / "log.jsonl", answered([first, second])) == {}


def anthropic(system, messages):
    """A request with a mark behind the system text and one behind the last block."""
    mark = {"cache_control": {"type": "ephemeral"}}
    *earlier, last = messages
    return {
        "model": "claude-sonnet-4-5",
        "max_tokens": 9,
        "system": [{"type": "text", "text": system, **mark}],
        "messages": [*earlier, {**last, "content": [*last["content"][:-1], {**last["content"][-1], **mark}]}],
    }


def test_a_last_block_that_is_dropped_takes_what_stands_before_it_along(tmp_path):
    """A reminder behind each question, with the mark on it: without it no entry ends behind the question any more."""
    system, lines, said = prose("handbook", 2_000), [], []
    read, front = 0, 3_000
    total = front
    for turn in range(4):
        asked = {"role": "user", "content": [{"type": "text", "text": prose(("asked", turn), 500)}]}
        reminder = {"type": "text", "text": f"<reminder>{prose(('reminder', turn), 60)}</reminder>"}
        shown = {"role": "user", "content": [*asked["content"], reminder] if turn < 3 else asked["content"]}
        total += 750
        usage = {"input_tokens": 90, "cache_read_input_tokens": read, "cache_creation_input_tokens": total - read}
        body = anthropic(system, [*said, shown])
        lines.append({"ts": 1_000 + 20 * turn, "provider": "anthropic", "agent": "a", "session": "s"})
        lines[-1] |= {"request": body, "usage": usage}
        read = front
        answer = {"role": "assistant", "content": [{"type": "text", "text": prose(("answer", turn), 60)}]}
        said += [asked, answer]
        total += 90
    found = breaks(tmp_path / "log.jsonl", lines)
    assert {at: cause for at, (cause, _, _) in found.items()} == dict.fromkeys((1, 2, 3), "history_truncated")
    assert found[1][2] == pytest.approx(750, rel=0.2)


def test_a_field_that_no_rule_knows_explains_what_was_read_in_part(tmp_path):
    """Another call with the same value left the beginning: what stands behind it was never sent with that value."""
    lines = []
    for number in range(2):
        talk = Conversation(system=prose("handbook", 1_600), seed=number)
        for turn in range(4):
            if turn:
                talk.turn()
            line = talk.line(1_000 + 200 * number + 20 * turn, agent="a")
            if turn == 2:
                line["request"]["render_mode"] = "strict"
            lines.append(line)
    answered(lines)
    for number in range(2):
        lines[4 * number + 2]["usage"]["prompt_tokens_details"]["cached_tokens"] = 1_536 * number
        back = lines[4 * number + 3]["usage"]["prompt_tokens_details"]
        back["cached_tokens"] = lines[4 * number + 1]["usage"]["prompt_tokens"] // 128 * 128
    found = breaks(tmp_path / "log.jsonl", lines)
    assert [found[at][:2] for at in (2, 6)] == [("settings_changed", "render_mode")] * 2


def unnamed(talk, at, messages):
    """A call of which the log says nothing but its body."""
    body = {"model": "gpt-4.1", "tools": [chat_tool("search")], "messages": messages}
    return {"ts": 1_000 + 20 * at, "provider": "openai", "request": body}


def test_a_system_prompt_that_moves_behind_a_picture_is_no_other_agents(tmp_path):
    """A picture is a section of its own: the system prompt still stands behind the first message."""
    talk, lines = Conversation(seed=1), []
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * 40}}
    asked = {"role": "user", "content": [{"type": "text", "text": prose("question", 100)}, picture]}
    system = {"role": "system", "content": prose("handbook", 1_600)}
    for turn in range(5):
        if turn:
            talk.turn()
        front = [system, asked] if turn < 3 else [asked, system]
        lines.append(unnamed(talk, turn, [*front, *talk.messages[1:]]))
        total, read = 3_000 + 360 * turn, (2_600 + 360 * turn) * (turn not in (0, 3))
        usage = {"prompt_tokens": total, "prompt_tokens_details": {"cached_tokens": read // 128 * 128}}
        lines[-1]["usage"] = {**usage, "completion_tokens": 1}
    found = {at: cause for at, (cause, _, _) in breaks(tmp_path / "log.jsonl", lines).items()}
    assert found == {3: "system_changed"}


def test_memories_in_a_system_prompt_are_no_other_agents_where_an_early_message_was_edited_too(tmp_path):
    """Without names: a paragraph of the system text is another each time, and the first question gets a name."""
    talk, lines = Conversation(seed=2, words=100), []
    for turn in range(5):
        if turn:
            talk.turn()
        system = f"{prose('handbook', 1_600)} {' '.join(f'memory-{turn}-{at}' for at in range(80))}"
        first = {**talk.messages[0], **({"name": "alice"} if turn > 2 else {})}
        lines.append(unnamed(talk, turn, [{"role": "system", "content": system}, first, *talk.messages[1:]]))
    found = {at: cause for at, (cause, _, _) in breaks(tmp_path / "log.jsonl", answered(lines)).items()}
    assert found == dict.fromkeys((1, 2, 3, 4), "system_changed")


def test_whose_answer_it_is_tells_more_than_a_long_text_that_many_were_given(tmp_path):
    """The system text moves into the first question, where another conversation has it: this one still goes on."""
    system, lines = prose("handbook", 1_600), []
    for number in range(2):
        talk = Conversation(seed=number, words=80)
        for turn in range(4):
            if turn:
                talk.turn()
            first, *rest = talk.messages
            parts = [{"type": "text", "text": system}, {"type": "text", "text": first["content"]}]
            moved = [{"role": "user", "content": parts}]
            kept = [{"role": "system", "content": system}, first]
            lines.append(unnamed(talk, 10 * number + turn, [*(moved if turn > 1 else kept), *rest]))
            total = 2_100 + 170 * turn
            read = 0 if not turn or turn == 2 else total - 200
            usage = {"prompt_tokens": total, "prompt_tokens_details": {"cached_tokens": read // 128 * 128}}
            lines[-1]["usage"] = {**usage, "completion_tokens": 1}
    for at in (4, 6):  # What the other conversation left.
        lines[at]["usage"]["prompt_tokens_details"]["cached_tokens"] = 1_920
    found = {at: cause for at, (cause, _, _) in breaks(tmp_path / "log.jsonl", lines).items()}
    assert found == {2: "system_changed", 6: "system_changed"}


def test_calls_of_tools_that_begin_with_the_same_fields_are_no_sign_of_a_conversation(tmp_path):
    """The first question has another time in each call, and all else is the first call of a tool."""
    system, lines = prose("handbook", 1_600), []
    for turn in range(2):
        for number in range(3):
            text = f"[10:0{turn}:0{number}] {prose(('task', number), 700)}"
            said = [{"role": "user", "content": [{"type": "text", "text": text}]}]
            if turn:
                called = {
                    "type": "tool_use",
                    "id": f"toolu_01{number}",
                    "name": "search",
                    "input": {"q": prose(number, 40)},
                }
                result = {
                    "type": "tool_result",
                    "tool_use_id": f"toolu_01{number}",
                    "content": prose(("r", number), 90),
                }
                said += [{"role": "assistant", "content": [called]}, {"role": "user", "content": [result]}]
            usage = {"input_tokens": 5, "cache_read_input_tokens": 1_850 * (turn + number > 0)}
            usage["cache_creation_input_tokens"] = 2_700 + 160 * turn - usage["cache_read_input_tokens"]
            lines.append({"ts": 1_000 + 60 * turn + 20 * number, "provider": "anthropic", "usage": usage})
            lines[-1]["request"] = anthropic(system, said)
    found = breaks(tmp_path / "log.jsonl", lines)
    assert {at: cause for at, (cause, _, _) in found.items()} == dict.fromkeys((3, 4, 5), "history_edited")
