"""Whose request is whose: told by content, whatever ids a logger writes; and what a first request is held against."""

import io
import json
import random
import re
import uuid

import pytest
from audit_logs import Conversation, chat_tool, prose, quiet, write

from cacheprefix.audit import audit, write_summary
from cacheprefix.cli import main
from cacheprefix.prompt import estimate_tokens
from cacheprefix.wire import decode


def counted(text):
    """Tokens of another tokenizer than ours: words in pieces of six letters."""
    return sum(-(-len(word) // 6) for word in text.split())


def answered(lines, size=counted):
    """The lines with usage as a provider reports it that keeps every prefix, in order of time."""
    kept = set()
    for line in sorted(lines, key=lambda line: line["ts"]):
        body = line["request"]
        end, total, shared = 0, 0, 0
        for part in (str(body["tools"]), *(message["content"] for message in body["messages"])):
            end, total = hash((end, part)), total + size(part)
            shared = total if end in kept else shared
            kept.add(end)
        details = {"cached_tokens": shared // 128 * 128 if shared >= 1_024 else 0}
        line["usage"] = {"prompt_tokens": total, "completion_tokens": 1, "prompt_tokens_details": details}
    return lines


def interleaved(conversations, turns=5, *, seed=1, leak=True):
    """Conversations side by side that share a system; some edit a message, others get an id into their system."""
    draw = random.Random(seed)
    system = prose("handbook", 1_600)
    lines = []
    for number in range(conversations):
        talk = Conversation(system=system, seed=number)
        at = draw.uniform(0, 30)
        for turn in range(turns):
            if turn:
                talk.turn()
            if leak and turn == 3 and number % 3 == 0:
                talk.messages[2]["content"] += " (edited)"
            line = talk.line(1_000 + at)
            if leak and turn >= 3 and number % 3 == 1:
                line["request"]["messages"][0]["content"] = f"Request {uuid.UUID(int=draw.getrandbits(128))}. {system}"
            del line["session"]
            lines.append({**line, "conversation": number, "turn": turn})
            at += draw.uniform(5, 20)
    return sorted(answered(lines), key=lambda line: line["ts"])


def breaks(path, lines):
    """Cause, path and lost tokens of every break, by the index of its call."""
    with audit([write(path, lines)], what_if=False) as found:
        rows = [row for row in found.rows if row.view["broke"]]
        return {
            row.public["index"]: (row.public["cause"], row.public["path"], row.public["lost_tokens"]) for row in rows
        }


@pytest.mark.parametrize("conversations", [6, 80])
def test_an_id_for_every_call_is_as_good_as_none(tmp_path, conversations):
    """What loggers write that give every call an id of its own shows the same breaks as a log without ids."""
    lines = interleaved(conversations)
    bare = breaks(tmp_path / "bare.jsonl", lines)
    unique = breaks(tmp_path / "unique.jsonl", [{**line, "session": str(uuid.uuid4())} for line in lines])
    named = breaks(tmp_path / "named.jsonl", [{**line, "session": f"s{line['conversation']}"} for line in lines])
    assert unique == bare == named
    due = {
        at: "system_changed" if line["conversation"] % 3 == 1 else "history_edited"
        for at, line in enumerate(lines)
        if (line["conversation"] % 3 == 0 and line["turn"] == 3)
        or (line["conversation"] % 3 == 1 and line["turn"] >= 3)
    }
    assert {at: cause for at, (cause, _, _) in bare.items()} == due


def test_a_note_says_that_sessions_were_told_by_content(tmp_path):
    """Ids that occur once each are named as what they are."""
    lines = [{**line, "session": str(uuid.uuid4())} for line in interleaved(4, leak=False)]
    with audit([write(tmp_path / "log.jsonl", lines)], what_if=False) as found:
        assert any("an id of its own" in note for note in found.notes)


def test_conversations_side_by_side_raise_nothing(tmp_path):
    """Hundreds of healthy conversations at once, without ids."""
    assert breaks(tmp_path / "log.jsonl", interleaved(200, leak=False)) == {}


@pytest.mark.parametrize("ids", ["proper", "none"])
def test_healthy_sessions_hours_apart_pass_the_check(tmp_path, capsys, ids):
    """A session that begins when the last one's entries are long gone is no break."""
    lines = []
    for number in range(30):
        talk = quiet(4, system=prose("handbook", 1_600), seed=number, start=1_000.0 + 10_000 * number)
        lines += [{key: value for key, value in line.items() if ids == "proper" or key != "session"} for line in talk]
    assert main(["check", write(tmp_path / "log.jsonl", lines)]) == 0
    assert "0 tokens lost" in capsys.readouterr().out


@pytest.mark.parametrize("pause", [1_200, 9_000])
def test_the_same_question_long_after_is_asked_anew(tmp_path, pause):
    """A job that sends the same request every few minutes or hours has no break."""
    talk = Conversation(system=prose("handbook", 1_600))
    lines = [{"ts": 1_000 + pause * at, "agent": "job", "request": talk.body()} for at in range(5)]
    assert breaks(tmp_path / "log.jsonl", lines) == {}


@pytest.mark.parametrize(("pause", "found"), [(20, ["history_edited"]), (900, [])])
def test_the_same_task_that_another_run_is_given_is_no_edit(tmp_path, pause, found):
    """A team's question stays the same behind its facts: new facts are an edit, but not a quarter of an hour later."""
    question = prose("what is left to do", 700)
    lines = []
    for run in range(2):
        facts = {"role": "assistant", "content": f"{prose('the task', 500)} {prose(f'facts {run}', 900)}"}
        for turn in range(3):
            said = [{"role": "assistant", "content": prose(f"{run} {at}", 60)} for at in range(turn)]
            body = {"model": "gpt-4.1", "messages": [facts, *said, {"role": "user", "content": question}]}
            lines.append({"ts": 1_000 + pause * run + 5 * turn, "provider": "vllm", "request": body})
    assert [cause for cause, _, _ in breaks(tmp_path / "log.jsonl", lines).values()] == found


def test_a_run_that_says_the_same_word_for_word_goes_on_with_itself(tmp_path):
    """A job whose answers are the same as twenty minutes before reads what this run left, and had no more to read."""
    lines = []
    for run in range(3):
        for line in answered(quiet(4, start=1_000 + 1_200 * run)):
            del line["session"]
            lines.append(line)
    assert breaks(tmp_path / "log.jsonl", lines) == {}


@pytest.mark.parametrize("edit", ["removed", "inserted", "named"])
def test_an_early_edit_by_one_of_several_that_were_asked_the_same_is_told(tmp_path, edit):
    """Its own answers show whose conversation it is, though what it still begins with is another's question too."""
    lines = []
    talks = [Conversation(system=prose(("role", at), 1_400), seed=7) for at in range(2)]
    for turn in range(5):
        for at, talk in enumerate(talks):
            if turn:
                talk.seed = (at, "own")
                talk.turn()
            if turn == 4 and at == 1 and edit == "named":
                for message in talk.messages[1:-1:2]:
                    message["content"] = "[a1]: " + message["content"]
            elif turn == 4 and at == 1:
                talk.messages[1:3] = [] if edit == "removed" else [{"role": "user", "content": "by the way"}]
            line = talk.line(1_000 + 40 * turn + 20 * at, agent=f"a{at}")
            del line["session"]
            lines.append(line)
    found = breaks(tmp_path / "log.jsonl", answered(lines))
    assert {(at, cause.startswith("history")) for at, (cause, _, _) in found.items()} == {(9, True)}


@pytest.mark.parametrize(("agents", "found"), [(True, {"concurrent_cold_start"}), (False, set())])
def test_what_another_call_was_still_writing_is_no_miss_of_the_provider(tmp_path, agents, found):
    """Few logs say when an answer began: calls of a fan-out start cold, and those of strangers met by chance."""
    lines = []
    for at in range(4):
        talk = Conversation(system=prose("handbook", 1_600), seed=at)
        line = talk.line(1_000 + 0.4 * at)
        line["session"] = "team" if agents else f"s{at}"
        usage = {"prompt_tokens": 2_200, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
        lines.append({**line, "usage": usage, **({"agent": f"a{at}"} if agents else {})})
    assert {cause for cause, _, _ in breaks(tmp_path / "log.jsonl", lines).values()} == found


def test_a_fan_out_behind_an_answer_that_all_its_calls_have_is_cold_all_the_same(tmp_path):
    """In a log without the answers' times: the answer that all go on from tells nothing of when theirs came."""
    talk = Conversation(system=prose("handbook", 1_600), seed=1)
    lead = talk.line(1_000)
    talk.turn()
    *plan, _ = talk.messages
    lines = [lead]
    for at in range(4):
        talk.messages = [*plan, {"role": "user", "content": prose(("part", at), 100)}]
        lines.append(talk.line(1_400 + 0.4 * at))
    for line in lines:
        line["usage"] = {"prompt_tokens": 2_300, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
    causes = [cause for cause, _, _ in breaks(tmp_path / "log.jsonl", lines).values()]
    assert causes[-3:] == ["concurrent_cold_start"] * 3


def test_a_mark_that_is_missing_behind_does_not_explain_what_an_earlier_one_did_not_let_read(tmp_path):
    """A fan-out on a marked system and an unmarked document, all at once: none read even the system."""
    system = {"type": "text", "text": prose("handbook", 2_400), "cache_control": {"type": "ephemeral"}}
    lines = []
    for at in range(4):
        part = {"type": "text", "text": prose(("part", at), 100), "cache_control": {"type": "ephemeral"}}
        document = {"type": "text", "text": prose("document", 900)}
        body = {"model": "claude-sonnet-4-5", "max_tokens": 9, "system": [system]}
        body["messages"] = [{"role": "user", "content": [document, part]}]
        usage = {"input_tokens": 3, "cache_creation_input_tokens": 4_700, "cache_read_input_tokens": 0}
        lines.append({"ts": 1_000 + 0.01 * at, "provider": "anthropic", "request": body, "usage": usage})
    assert [one[0] for one in breaks(tmp_path / "log.jsonl", lines).values()] == ["concurrent_cold_start"] * 3


def test_a_call_that_goes_on_from_an_answer_did_not_come_before_it(tmp_path):
    """However soon it comes in a log without the answers' times: what it does not read the provider let go."""
    lines = answered(quiet(5))
    for at, line in enumerate(lines):
        line["ts"] = 1_000 + 6.0 * at
    lines[3]["usage"]["prompt_tokens_details"]["cached_tokens"] = 0
    assert [cause for cause, _, _ in breaks(tmp_path / "log.jsonl", lines).values()] == ["provider_miss"]


@pytest.mark.parametrize(
    ("run_goes_on", "other_words", "found"),
    [(True, False, ["ttl_expired"]), (False, True, []), (False, False, [])],
)
def test_where_no_lifetime_is_promised_silence_may_outlast_it(tmp_path, run_goes_on, other_words, found):
    """Gemini says nothing of how long it keeps: hours later nothing is missed, but by a conversation that goes on."""
    lines, system = [], prose("handbook", 4_000)
    for run in range(2):
        for turn in range(2):
            said = [prose((run * other_words, at), 60) for at in range(4 * run * run_goes_on + 2 * turn + 1)]
            contents = [{"role": ("user", "model")[at % 2], "parts": [{"text": one}]} for at, one in enumerate(said)]
            body = {"systemInstruction": {"parts": [{"text": system}]}, "contents": contents}
            total = 6_000 + 100 * len(said)
            read = total - 200 if turn else 0
            usage = {"promptTokenCount": total, "cachedContentTokenCount": read}
            name = "s" if run_goes_on else f"s{run}"
            lines.append(
                {"ts": 1_000 + 9_000 * run + 20 * turn, "provider": "gemini", "model": "gemini-2.5-flash"}
                | {"session": name, "request": body, "usage": usage}
            )
    assert [cause for cause, _, _ in breaks(tmp_path / "log.jsonl", lines).values()] == found


def test_single_requests_that_differ_in_an_id_alone_are_held_against_each_other(tmp_path):
    """An id in the system prompt of requests that nothing follows: each could have read the one before."""
    system = prose("handbook", 1_600)
    lines = [
        {
            "ts": 1_000 + 20 * at,
            "provider": "openai",
            "request": Conversation(system=f"{uuid.uuid4()} {system}", seed=at).body(),
        }
        for at in range(5)
    ]
    found = breaks(tmp_path / "log.jsonl", lines)
    assert {(cause, path) for cause, path, _ in found.values()} == {("system_changed", "system[0]")}
    assert len(found) == 4


@pytest.mark.parametrize(("marked", "found"), [("system", 3), ("question", 0)])
def test_single_requests_could_read_no_further_than_the_marks_before_their_questions(tmp_path, marked, found):
    """Without the id in the system prompt each would read the entry at a mark there, and none behind a question."""
    lines, mark = [], {"cache_control": {"type": "ephemeral"}}
    for at in range(4):
        system = {"type": "text", "text": f"{uuid.uuid4()} {prose('handbook', 1_600)}"}
        question = {"type": "text", "text": prose(("question", at), 200)}
        (system if marked == "system" else question).update(mark)
        body = {"model": "claude-sonnet-4-5", "max_tokens": 9, "system": [system]}
        body["messages"] = [{"role": "user", "content": [question]}]
        usage = {"input_tokens": 300, "cache_creation_input_tokens": 2_200, "cache_read_input_tokens": 0}
        lines.append({"ts": 1_000 + 20 * at, "provider": "anthropic", "request": body, "usage": usage})
    assert len(breaks(tmp_path / "log.jsonl", lines)) == found


def test_an_id_that_a_conversation_keeps_is_no_break(tmp_path):
    """Each conversation has its own id in its system prompt, and goes on with it."""
    lines = []
    for number in range(5):
        talk = quiet(3, system=f"{uuid.uuid4()} {prose('handbook', 1_600)}", seed=number, start=1_000 + 7.0 * number)
        lines += [{key: value for key, value in line.items() if key != "session"} for line in talk]
    assert breaks(tmp_path / "log.jsonl", sorted(lines, key=lambda line: line["ts"])) == {}


def test_agents_without_names_are_told_apart_by_their_system_prompts(tmp_path):
    """Two roles that hear one conversation and speak in turn do not change each other's system prompt."""
    lines = []
    talk = Conversation(seed=3)
    for turn in range(6):
        if turn:
            talk.turn()
        talk.system = f"{prose('handbook', 1_600)} You are the {('writer', 'critic')[turn % 2]}."
        lines.append(talk.line(1_000 + 20 * turn))
    assert breaks(tmp_path / "log.jsonl", lines) == {}


@pytest.mark.parametrize("where", ["behind the question", "before the question", "nowhere"])
def test_a_system_prompt_that_is_none_any_more_is_no_other_agents(tmp_path, where):
    """Without names: from some call on it stands in a user's message, behind it, or nowhere; the rest goes on."""
    talk = Conversation(system=prose("handbook", 1_600), seed=1)
    if where == "nowhere":
        talk.messages[0]["content"] = prose("question", 1_600)  # Else what is left is too short to be cached.
    lines = []
    for turn in range(5):
        if turn:
            talk.turn()
        line = talk.line(1_000 + 20 * turn)
        del line["session"]
        system, question, *rest = line["request"]["messages"]
        asked = {"role": "user", "content": f"{system['content']}\n\n{question['content']}"}
        moved = {"behind the question": [question, system], "before the question": [asked], "nowhere": [question]}
        if turn > 2:
            line["request"] = {**line["request"], "messages": [*moved[where], *rest]}
        lines.append(line)
    lines = answered(lines)
    lines[3]["usage"]["prompt_tokens_details"]["cached_tokens"] = 0
    found = {at: cause for at, (cause, _, _) in breaks(tmp_path / "log.jsonl", lines).items()}
    assert found == {3: "system_changed"}


@pytest.mark.parametrize("same_tools", [True, False])
def test_another_role_with_other_tools_is_another_agent(tmp_path, same_tools):
    """A worker that speaks once, and one of another role behind it: with the same tools it may be the same, edited."""
    tools = [chat_tool("search"), chat_tool("price" if not same_tools else "search")]
    handbook, said = prose("handbook", 1_600), []
    lines = []
    for turn, role in enumerate([0, 0, 0, 1, 1]):
        said += [{"role": "user" if not turn else "assistant", "content": prose(f"said {turn}", 200)}]
        system = {"role": "system", "content": f"You are the {('researcher', 'buyer')[role]}.\n{handbook}"}
        body = {"model": "gpt-4.1", "messages": [system, *said], "tools": [tools[role]]}
        lines.append({"ts": 1_000 + 20 * turn, "provider": "openai", "request": body})
    found = [cause for cause, _, _ in breaks(tmp_path / "log.jsonl", lines).values()]
    assert found == (["system_changed"] if same_tools else [])


def test_calls_that_get_new_ids_each_time_are_the_same_conversation(tmp_path):
    """Without session ids as well: the texts behind the first new id are those of before."""
    lines, rounds = [], 6
    for turn in range(rounds):
        system = {"role": "system", "content": prose("handbook", 1_600)}
        messages = [system, {"role": "user", "content": prose("ask", 90)}]
        for at in range(turn):
            name = f"call_{turn}{at}" if turn > 2 else f"call_{at}"
            call = {"id": name, "type": "function", "function": {"name": "search", "arguments": "{}"}}
            messages += [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": name, "content": prose(f"found {at}", 400)},
            ]
        body = {"model": "gpt-4.1", "messages": messages, "tools": [chat_tool("search")]}
        lines.append({"ts": 1_000 + 20 * turn, "provider": "openai", "request": body})
    found = breaks(tmp_path / "log.jsonl", lines)
    assert {cause for cause, _, _ in found.values()} == {"history_edited"}
    assert sorted(found) == [3, 4, 5]


def test_going_back_to_the_tools_of_before_is_told(tmp_path):
    """A tool that is there for one call costs twice: when it comes and when it goes."""
    lines = []
    talk = Conversation(seed=4)
    for turn in range(6):
        if turn:
            talk.turn()
        line = talk.line(1_000 + 20 * turn, agent="a")
        if turn == 3:
            line["request"]["tools"].insert(0, chat_tool("extra"))
        lines.append(line)
    found = breaks(tmp_path / "log.jsonl", answered(lines))
    assert {at: cause for at, (cause, _, _) in found.items()} == {3: "tools_changed", 4: "tools_changed"}


def test_what_is_lost_is_what_would_have_been_read(tmp_path):
    """Where every message carries its number of all, all of them are lost, not the first alone."""
    lines = []
    talk = Conversation(seed=5, words=500)
    for turn in range(6):
        if turn:
            talk.turn()
        line = talk.line(1_000 + 20 * turn, agent="a")
        if turn >= 3:
            for at, message in enumerate(line["request"]["messages"][1:], 1):
                message["content"] = f"[{at} of {len(talk.messages)}] {message['content']}"
        lines.append(line)
    answered(lines)
    found = breaks(tmp_path / "log.jsonl", lines)
    for at in (3, 4, 5):
        whole = lines[at - 1]["usage"]["prompt_tokens"] // 128 * 128
        read = lines[at]["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert found[at][2] == pytest.approx(whole - read, rel=0.1)


def test_a_mark_that_stops_being_set_is_a_break(tmp_path):
    """Entries that earlier marks left deeper do not hide it, and it names where the mark should stand."""
    lines = []
    talk = Conversation(api="anthropic", seed=6, words=60)
    for turn in range(8):
        if turn:
            talk.turn()
        if turn == 4:
            talk.words = 900
        line = talk.line(1_000 + 20 * turn, agent="a")
        if turn >= 4:
            last = line["request"]["messages"][-1]["content"][0]
            del last["cache_control"]
        lines.append(line)
    found = breaks(tmp_path / "log.jsonl", lines)
    assert set(found) >= {6, 7}
    assert {cause for cause, _, _ in found.values()} == {"breakpoint_missing"}
    assert found[7][2] > 2_500


def test_a_mark_that_stops_being_set_is_one_also_where_little_stands_behind_it(tmp_path):
    """A tenth of what is common is read no more: where marks never stood there that is well, but here one did."""
    lines = []
    for turn in range(3):
        line = quiet(turn + 1, api="anthropic", system=prose("handbook", 2_000), words=90)[-1]
        if turn == 2:
            del line["request"]["messages"][-1]["content"][0]["cache_control"]
        lines.append({**line, "ts": 1_000 + 20 * turn})
    found = breaks(tmp_path / "log.jsonl", lines)
    assert [(at, cause) for at, (cause, _, _) in found.items()] == [(2, "breakpoint_missing")]


def test_counts_of_mixed_content_with_another_tokenizer_raise_no_miss(tmp_path):
    """Prose, code and JSON have other ratios of tokens to letters than ours: no expectation above what was counted."""
    draw = random.Random(3)

    def dense(words):
        return ", ".join(
            f'{{"{draw.choice("abcdef")}{draw.randint(0, 9)}": [{draw.randint(0, 999)}]}}' for _ in range(words)
        )

    lines = []
    for number in range(12):
        talk = Conversation(system=prose("handbook", 1_600), seed=number, words=40)
        for turn in range(8):
            if turn:
                talk.turn()
                if draw.random() < 0.6:
                    talk.messages[-2]["content"] = dense(draw.randint(20, 200))
            lines.append(talk.line(1_000 + 200 * number + 20 * turn))
    answered(lines, lambda part: len(part) - sum(map(str.isalpha, part)) * 4 // 5)
    assert breaks(tmp_path / "log.jsonl", lines) == {}
    assert estimate_tokens(dense(100)) < 0.7 * len(dense(100))


def heard(order, *, start, seed):
    """A team whose agents hear each other: to each its own messages are answers, and those of others are a user's."""
    rules, lines = prose("house rules", 1_300), []
    said = [("user", prose((seed, "task"), 150)), ("Expert_2", prose((seed, "plan"), 60))]
    for turn, speaker in enumerate(order):
        name = f"Expert_{speaker}"
        system = f"You are {name}. {prose((seed, name), 60)}\n{rules}"
        messages = [{"role": "assistant" if who == name else "user", "content": text} for who, text in said]
        body = {"model": "gpt-4.1", "tools": [], "messages": [{"role": "system", "content": system}, *messages]}
        lines.append({"ts": start + 10 * turn, "provider": "openai", "session": f"team {seed}", "request": body})
        said.append((name, prose((seed, turn), 120)))
    return lines


@pytest.mark.parametrize("ids", ["proper", "unique", "none"])
def test_another_agent_with_much_the_same_system_prompt_is_no_change_of_it(tmp_path, ids):
    """In a team of agents without names one falls silent and the next begins: nobody edited a system prompt."""
    order = (0, 1, 2, 3, 4, 5, 1, 2, 3)
    lines = [line for seed in range(6) for line in heard(order, start=1_000.0 + 3 * seed, seed=seed)]
    for line in answered(lines):
        if ids != "proper":
            del line["session"]
        if ids == "unique":
            line["session"] = str(uuid.uuid4())
    assert breaks(tmp_path / "log.jsonl", sorted(lines, key=lambda line: line["ts"])) == {}


def test_a_named_agent_that_goes_on_from_anothers_messages_is_not_held_against_it(tmp_path):
    """What one was asked begins what another is asked later; each has a system prompt of its own."""
    lines = heard((0, 1, 1, 2, 2, 0, 3), start=1_000.0, seed=1)
    for line in lines:
        line["agent"], line["session"] = line["request"]["messages"][0]["content"].split()[2], str(uuid.uuid4())
    assert breaks(tmp_path / "log.jsonl", answered(lines)) == {}


def test_what_is_too_short_by_the_providers_count_is_no_miss(tmp_path):
    """A handbook of a little less than the minimum is never read, though our counter finds it long enough."""
    handbook = prose("handbook", 980)
    lines = [Conversation(system=handbook, seed=at, tools=()).line(1_000 + 10 * at) for at in range(6)]
    assert counted(handbook) < 1_024 < estimate_tokens(handbook)
    assert breaks(tmp_path / "log.jsonl", answered(lines)) == {}


def reported(api, size, read):
    """Usage of a request that reads ``read`` tokens and leaves all of it in the cache."""
    if api == "anthropic":
        found = {"input_tokens": 0, "cache_read_input_tokens": read, "cache_creation_input_tokens": size - read}
        return {**found, "output_tokens": 1}
    return {"prompt_tokens": size, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": read}}


@pytest.mark.parametrize("api", ["openai-chat", "anthropic"])
def test_what_is_long_enough_by_the_providers_count_is_kept(tmp_path, api):
    """A prompt that is too short by our counter alone was cached, and a change of its system prompt lost it."""
    talk, lines, before = Conversation(api=api, system=prose("handbook", 450), tools=(), words=60), [], 0
    for turn in range(3):
        if turn:
            talk.turn()
        if turn == 2:
            talk.system = f"Now. {talk.system}"
        size = int(1.6 * estimate_tokens(json.dumps(talk.body())))
        kept = before // 128 * 128 if api == "openai-chat" else before
        lines.append(talk.line(1_000 + 20 * turn, usage=reported(api, size, kept if turn == 1 else 0)))
        if turn < 2:
            assert estimate_tokens(json.dumps(talk.body())) < 1_024 < size
            before = size
    assert breaks(tmp_path / "log.jsonl", lines) == {2: ("system_changed", "system[0]", kept)}


def test_a_mark_that_stops_being_set_is_one_on_the_second_call_too(tmp_path):
    """A tenth was lost, less than our counting may be off; but the provider counted both."""
    talk = Conversation(api="anthropic", system=prose("handbook", 1_200), tools=(), words=120)
    first = talk.line(1_000)
    size = int(1.2 * estimate_tokens(json.dumps(first["request"])))
    front = int(1.1 * estimate_tokens(talk.system))
    talk.turn()
    second = talk.line(1_020)
    del second["request"]["messages"][-1]["content"][0]["cache_control"]
    whole = int(1.2 * estimate_tokens(json.dumps(second["request"])))
    first["usage"] = reported("anthropic", size, 0)
    second["usage"] = {**reported("anthropic", front, front), "input_tokens": whole - front}
    found = breaks(tmp_path / "log.jsonl", [first, second])
    assert {at: (cause, lost) for at, (cause, _, lost) in found.items()} == {1: ("breakpoint_missing", size - front)}


def test_marks_that_are_long_enough_by_the_providers_count_are_kept(tmp_path):
    """The last mark is no longer set, and only one that is too short by our counter stays."""
    talk, lines, before = Conversation(api="anthropic", system=prose("handbook", 650), tools=(), words=120), [], 0
    front = int(1.5 * estimate_tokens(talk.system))
    assert estimate_tokens(talk.system) < 1_024
    for turn in range(5):
        if turn:
            talk.turn()
        line = talk.line(1_000 + 20 * turn)
        size = int(1.5 * estimate_tokens(json.dumps(line["request"])))
        line["usage"] = reported("anthropic", size, before)
        if turn == 4:
            del line["request"]["messages"][-1]["content"][0]["cache_control"]
            line["usage"] = {**reported("anthropic", front, front), "input_tokens": size - front}
        lines.append(line)
        lost, before = before - front, size
    found = breaks(tmp_path / "log.jsonl", lines)
    assert {at: cause for at, (cause, _, _) in found.items()} == {4: "breakpoint_missing"}
    assert found[4][2] == pytest.approx(lost, rel=0.1)


@pytest.mark.parametrize("share", [0.83, 1.21, 1.37])
def test_what_is_lost_is_cut_to_the_providers_blocks(tmp_path, share):
    """Where its counts are others than ours, no block is lost twice to rounding."""
    talk, lines, before = Conversation(), [], 0
    for turn in range(4):
        if turn:
            talk.turn()
        if turn == 3:
            talk.system = f"Now. {talk.system}"
        size = int(share * estimate_tokens(json.dumps(talk.body())))
        read = before // 128 * 128 if turn < 3 else 0
        lines.append(talk.line(1_000 + 20 * turn, usage=reported("openai-chat", size, read)))
        lost, before = before // 128 * 128, size
    assert breaks(tmp_path / "log.jsonl", lines)[3][2] == pytest.approx(lost, abs=1)


def test_what_is_has_one_figure_also_where_only_the_first_calls_are_played_again(tmp_path, monkeypatch):
    """The table of changes begins with what the whole log cost, and tells the rest in proportion."""
    monkeypatch.setattr("cacheprefix.audit.what_if.SECTIONS", 20)
    out = io.StringIO()
    with audit([write(tmp_path / "log.jsonl", quiet(8))]) as found:
        assert 0 < found.what_if_calls < found.calls
        write_summary(found, out, plain=True)
    paid = re.search(r"cost ([\d,]+) units", out.getvalue())
    as_it_is = re.search(r"as it is +([\d,]+)", out.getvalue())
    assert paid is not None
    assert as_it_is is not None
    assert paid[1] == as_it_is[1]


@pytest.mark.parametrize("beside", ["tools", "history"])
def test_a_system_prompt_edited_beside_something_else_is_no_other_agent(tmp_path, beside):
    """A few words of a long prompt are no role, although the tools or an earlier message are others too."""
    talk = Conversation(seed=1, tools=("search", "book", "cancel"))
    lines = []
    for turn in range(6):
        if turn:
            talk.turn()
        if turn == 4:
            talk.system = "v2 " + talk.system
            if beside == "tools":
                talk.tools.insert(0, "refund")
            else:
                talk.messages[0]["content"] = "Hello. " + talk.messages[0]["content"]
        lines.append(talk.line(1_000 + 20 * turn))
        del lines[-1]["session"]
    (found,) = breaks(tmp_path / "log.jsonl", answered(lines)).items()
    cause, lost = found[1][0], found[1][2]
    assert (found[0], cause) == (4, "tools_changed" if beside == "tools" else "system_changed")
    assert lost > 1_000


def test_two_applications_that_are_asked_the_same_question_are_not_held_against_each_other(tmp_path):
    """Nothing but the question is the same: neither a tool nor the system prompt."""
    question = "Write the daily report."
    lines = []
    for number in range(2):
        talk = Conversation(seed=number, tools=(f"search_{number}", f"book_{number}"))
        talk.messages[0]["content"] = question
        for turn in range(3):
            if turn:
                talk.turn()
            lines.append(talk.line(1_000 + 200 * number + 15 * turn))
    assert not breaks(tmp_path / "log.jsonl", answered(lines))


def test_a_model_and_a_system_prompt_changed_at_once_lose_what_both_had(tmp_path):
    """Had neither been changed, all of the earlier prompt would have been read."""
    talk = Conversation(seed=1)
    lines = []
    for turn in range(5):
        if turn:
            talk.turn()
        if turn == 4:
            talk.model, talk.system = "gpt-4o", "v2 " + talk.system
        lines.append(talk.line(1_000 + 20 * turn, agent="coder"))
    with_counts = answered(lines)
    with_counts[4]["usage"]["prompt_tokens_details"]["cached_tokens"] = 0
    (found,) = breaks(tmp_path / "log.jsonl", with_counts).values()
    assert found[0] == "model_changed"
    assert found[2] > 0.9 * with_counts[3]["usage"]["prompt_tokens"]


def test_a_prompt_that_happens_to_count_as_ours_does_not_make_our_counter_the_providers(tmp_path):
    """Prose counts less than ours and digits more: where there is as much of either, the sums are the same."""

    def size(text):
        return int(estimate_tokens(text) * (1.2 if text[:1].isdigit() else 0.8))

    lines = []
    for number in range(30):
        talk = Conversation(system=prose(("handbook", number % 15), 1_600), seed=number)
        talk.messages[0]["content"] = " ".join(str(number * 10**6 + at) for at in range(1, 101))
        lines.append(talk.line(1_000 + 8 * number))
        del lines[-1]["session"]
    last = lines[-1]["request"]
    rest = decode({**last, "messages": last["messages"][:1]}, "openai-chat").tokens
    last["messages"][1]["content"] = "1234567 " * (rest // 2)
    answered(lines, size)
    lines[-1]["usage"]["prompt_tokens"] = decode(last, "openai-chat").tokens
    assert not breaks(tmp_path / "log.jsonl", lines)


@pytest.mark.parametrize("speakers", ["ooaobocodoa", "oaobocoa"])
def test_what_one_agent_answered_and_another_was_asked_is_no_edit(tmp_path, speakers):
    """Agents without names and system prompts: each sees its own messages as its answers."""
    words = [800, 275, 50, 70, 118, 235, 35, 64, 295, 289, 67]
    said = [("user", prose("task", 900))]
    lines = []
    for turn, who in enumerate(speakers):
        messages = [{"role": "assistant" if by == who else "user", "content": text} for by, text in said]
        body = {"model": "gpt-4.1", "messages": messages}
        lines.append({"ts": 1_000 + 9 * turn, "provider": "openai", "request": body})
        said.append((who, prose(("said", turn), words[turn])))
    assert not breaks(tmp_path / "log.jsonl", lines)


def test_what_an_agent_answered_is_anothers_also_when_it_comes_back_cut(tmp_path):
    """An application that cuts old messages, of agents without names: the next agent's system prompt is no edit."""
    handbook = prose("handbook", 900)
    answer = prose("answer", 200)
    asked = [{"role": "user", "content": prose("task", 300)}, {"role": "user", "content": answer}]
    cut = [asked[0], {"role": "assistant", "content": answer[: len(answer) * 4 // 5]}]
    lines = []
    for turn, (role, messages) in enumerate(
        [("statistics", asked), ("validation", [*cut, {"role": "user", "content": "Is it so?"}])]
    ):
        system = {"role": "system", "content": f"{prose(role, 300)} {handbook}"}
        body = {"model": "gpt-4.1", "messages": [system, *messages]}
        lines.append({"ts": 1_000 + 9 * turn, "provider": "openai", "request": body})
    assert not breaks(tmp_path / "log.jsonl", lines)


@pytest.mark.parametrize("own_tools", [False, True])
@pytest.mark.parametrize("ids", [False, True])
def test_agents_that_are_given_one_question_and_go_separate_ways_are_not_held_against_each_other(
    tmp_path, ids, own_tools
):
    """Without names and sessions a team of roles on much the same text is still several agents, tools or no tools."""
    shared = prose("handbook", 1_400)
    talks = []
    for role in range(4):
        system = f"Role {role}: {prose(('role', role), 60)}\n{shared}"
        talk = Conversation(system=system, seed=role, tools=(f"tool_{role}" if own_tools else "search", "book"))
        talk.messages = [{"role": "user", "content": prose("the question", 80)}]
        talks.append(talk)
    lines = []
    for turn in range(4):
        for role, talk in enumerate(talks):
            if turn:
                talk.turn()
            line = talk.line(1_000 + 40 * turn + 10 * role)
            del line["session"]
            if ids:
                line["session"] = uuid.UUID(int=len(lines)).hex
            lines.append(line)
    assert breaks(tmp_path / "log", answered(lines)) == {}
