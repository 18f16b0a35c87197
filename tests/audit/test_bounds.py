"""What an audit holds and does however a log is: no more bytes than its bounds, no more steps a call as it grows."""

import gc
import sys

import genai_prices
import pytest
from audit_logs import prose, write

from cacheprefix.audit import audit, lint_warnings, replay
from cacheprefix.audit.conversations import AHEAD_BYTES, Conversations
from cacheprefix.audit.duplicates import HELD_BYTES, Duplicates
from cacheprefix.audit.log_records import Record
from cacheprefix.audit.order import Ready
from cacheprefix.audit.previous_request import MOST_BYTES, PreviousRequestRule
from cacheprefix.audit.what_if import PlayedCall, WhatIf
from cacheprefix.cache import CacheModel
from cacheprefix.profiles import default_registry
from cacheprefix.prompt import Prompt, estimate_tokens
from cacheprefix.prompt.sections import section
from cacheprefix.wire import Memo, decode

PROFILE = default_registry().profile_for("gpt-4.1", "openai")


def unlike(calls, *, models=1, named="in-house"):
    """Calls that have nothing in common: names, texts, and where there are several ``models`` those too."""
    for number in range(calls):
        body = {
            "model": f"{named}-{number % models}",
            "messages": [
                {"role": "system", "content": prose(("system", number), 120)},
                {"role": "user", "content": prose(("user", number), 60)},
            ],
        }
        usage = {"prompt_tokens": 400, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
        yield {"ts": 1_000.0 + number, "session": f"s{number}", "agent": f"a{number}", "scope": f"t{number}",
               "provider": "openai", "request": body, "usage": usage}  # fmt: skip


def ready(number, prompt, size):
    """A request of a log whose entry has so many bytes."""
    return Ready(number, f"log:{number}", 1_000.0 + number, Record(body=None), prompt, PROFILE, size)


def steps_of(path):
    """Functions that are called for the audit of a log."""
    steps = 0

    def count(frame, event, given):
        nonlocal steps
        steps += event == "call"

    sys.setprofile(count)
    try:
        with audit([path]):
            pass
    finally:
        sys.setprofile(None)
    return steps


def steps_a_line(path, line):
    """The same for each line of a log of such lines."""
    path.write_bytes(line * 2_000)
    return steps_of(str(path)) / 2_000


def waiting(stage, items):
    """How many items a stage has taken at most and not passed on, while more may come."""
    taken = 0

    def counted():
        nonlocal taken
        for item in items:
            taken += 1
            yield item

    return max(taken - passed for passed, _ in enumerate(stage(counted())))


def with_image(number, size):
    """A prompt that asks about an image of so many bytes."""
    address = f"data:image/png;base64,{number:08}" + "A" * size
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": address}}]
    return decode({"model": "gpt-4.1", "messages": [{"role": "user", "content": parts}]}, "openai-chat")


def test_calls_that_wait_for_their_second_log_are_bounded_by_bytes():
    """Four of a third of the bound go past, and never do more than the bound wait."""
    size = HELD_BYTES // 3
    items = [ready(number, None, size) for number in range(8)]
    assert waiting(Duplicates().once, items) <= 4


def test_images_that_are_read_ahead_are_bounded_by_bytes():
    """Images count few tokens; what is held of them is what they take in the log."""
    size = AHEAD_BYTES // 3
    items = [ready(number, with_image(number, 1_000), size) for number in range(8)]
    assert waiting(Conversations().place, items) <= 4


def test_calls_that_are_played_again_are_bounded_by_bytes_each_text_counted_once():
    """The same large text in a hundred calls is one; seven others end the playing."""
    big = b"x" * 10_000_000

    def call(data):
        made = section("messages", "messages[0].content", "text", "user", data, lambda _: 1)
        prompt = Prompt("openai-chat", "gpt-4.1", (made,))
        return PlayedCall(prompt, PROFILE, "", "s", "a", 0.0, 0.0, 1.0, known=True, units=1.0, lane=(1, "gpt-4.1", ""))

    playing = WhatIf(estimate_tokens)
    same = call(big)
    for _ in range(100):
        playing.add(same)
    assert not playing.full
    for number in range(7):
        playing.add(call(b"%d" % number + big))
    assert playing.full


def test_no_image_is_held_to_tell_agents_apart():
    """Requests of one conversation are remembered by their messages; an image is known by its digest alone."""
    prompts = [with_image(0, 30_000)]
    (image,) = (one for one in prompts[0].sections if len(one.data) > 20_000)
    placing = Conversations()
    stage = placing.place(iter([ready(0, prompts.pop(), 100), ready(1, with_image(1, 10), 100)]))
    assert next(stage).ready.number == 0
    assert [held for held in gc.get_referrers(image) if isinstance(held, (tuple, list))] == []


def test_what_the_previous_request_said_is_bounded_by_bytes():
    """Ten sessions of a fifth of the bound each: the first ones are no longer compared with."""
    rule = PreviousRequestRule(estimate_tokens)
    long, short = (decode({"model": "m", "messages": [{"role": "user", "content": "x " * words}]}, "openai-chat")
                   for words in (20_000, 5))  # fmt: skip
    for number in range(10):
        rule.looks(long, f"s{number}", MOST_BYTES // 5)
    alarms = [rule.looks(short, f"s{number}", 0) for number in range(10)]
    assert alarms == [False] * 5 + [True] * 5


def test_excerpts_hold_no_prompts(tmp_path, monkeypatch):
    """What an excerpt is cut from is the request that the model itself still holds."""
    monkeypatch.setattr(replay, "CacheModel", lambda **given: CacheModel(**given, max_bytes=20_000))
    monkeypatch.setattr("cacheprefix.audit.duplicates.HELD_CALLS", 2)
    monkeypatch.setattr("cacheprefix.audit.conversations.AHEAD_CALLS", 2)
    monkeypatch.setattr("cacheprefix.audit.order.WINDOW_CALLS", 2)
    monkeypatch.setattr("cacheprefix.audit.reading.Memo", lambda: Memo(10_000))
    held = []
    add = replay.Rows.add

    def counting(rows, row):
        if row.public["index"] == 90:
            held.append(sum(type(one) is Prompt and bool(one.sections) for one in gc.get_objects()))
        add(rows, row)

    monkeypatch.setattr(replay.Rows, "add", counting)
    lines = [{**line, "session": "s", "agent": "a", "scope": ""} for line in unlike(100)]
    for text in (False, True):
        with audit([write(tmp_path / "log.jsonl", lines)], include_text=text, what_if=False):
            pass
    assert held[1] <= held[0] + 1


def test_agents_that_speak_once_are_linted_no_more_often_than_others(tmp_path, monkeypatch):
    """A logger that names an agent for each call does not make each of them a prompt to look at."""
    looks = []
    lint = lint_warnings.lint
    monkeypatch.setattr(lint_warnings, "lint", lambda prompt, *given: looks.append(1) or lint(prompt, *given))
    with audit([write(tmp_path / "log.jsonl", unlike(200))]):
        pass
    assert len(looks) <= lint_warnings.LOOKS


def test_a_model_without_a_price_is_looked_for_once(tmp_path, monkeypatch):
    """The library compares a name with those of all its models."""
    asked = []
    price = genai_prices.calc_price
    monkeypatch.setattr(
        genai_prices, "calc_price", lambda usage, **named: asked.append(named["model_ref"]) or price(usage, **named)
    )
    with audit([write(tmp_path / "log.jsonl", unlike(40, models=20, named="elsewhere"))]) as found:
        assert found.calls == 40
    ours = [name for name in asked if name.startswith("elsewhere")]
    assert len(ours) == len(set(ours)) == 20


@pytest.mark.slow
@pytest.mark.parametrize("models", [1, 10_000])
def test_calls_that_share_nothing_take_as_many_steps_each_in_a_longer_log(tmp_path, models):
    """Functions called, not seconds: four times the calls are four times the steps."""
    logs = {calls: write(tmp_path / f"{calls}.jsonl", unlike(calls, models=models)) for calls in (250, 1_000)}
    steps = [steps_of(path) / calls for calls, path in logs.items()]
    assert steps[1] < 1.1 * steps[0]


def test_an_empty_object_costs_next_to_nothing(tmp_path):
    """No reader is asked for it: ten million lines of them took five minutes."""
    assert steps_a_line(tmp_path / "log.jsonl", b"{}\n") < 20


def test_a_line_of_an_applications_log_is_looked_at_only_where_a_request_may_stand(tmp_path):
    """A request among many such lines is to be found, so each is looked at, but not for names that it does not have."""
    line = b'{"level":"info","message":"request done","ts":1760000000.5,"logger":"app.http","ms":12.5}\n'
    assert steps_a_line(tmp_path / "log.jsonl", line) < 75
