"""What is recorded of a request, and how a difference is told."""

from __future__ import annotations

import json

from tests.recorded.digests import Side, changes, request, written


def asked(*messages, **settings):
    """A request of OpenAI's chat."""
    talk = [{"role": "user", "content": text} if isinstance(text, str) else text for text in messages]
    return request("/v1/chat/completions", {}, json.dumps({"model": "m", "messages": talk, **settings}).encode())


def told(before, after, **flags):
    """The differences of two runs of one side, in words."""
    old, new = (written({"shared": Side(requests=list(each), **flags)}) for each in (before, after))
    return list(changes(old, new))


def test_a_difference_names_the_request_and_the_section():
    """The agent is the one that the prompt names last, and each of its requests has a number."""
    first, then = asked("You are the coder.", "one"), asked("You are the coder.", "one", "two")
    (said,) = told([first, then], [first, asked("You are the coder.", "one", "three")])
    assert said.startswith("shared: request coder 1 changed messages[2] (")


def test_a_change_shows_once_at_the_first_request_that_has_it():
    """What a request has in common with an earlier one is written by that one's name."""
    runs = [
        [asked(f"You are the coder.{mark}", "one"), asked(f"You are the coder.{mark}", "one", "two")]
        for mark in ("", "!")
    ]
    (said,) = told(*runs)
    assert said.startswith("shared: request coder 0 changed messages[0] (")


def test_the_order_of_fields_and_settings_is_seen():
    """A cache reads bytes, and settings part lanes."""
    (said,) = told([asked("hi", a=1, b=2)], [asked("hi", b=2, a=1)])
    assert "changed form" in said
    (said,) = told([asked("hi", a=1)], [asked("hi", a=2)])
    assert "changed a (" in said


def test_a_mark_is_told_apart_from_what_it_stands_on():
    """A message is the same one with a cache mark and without."""
    block = {"type": "text", "text": "long"}
    marked = {**block, "cache_control": {"type": "ephemeral"}}
    plain, with_mark = (asked({"role": "user", "content": [one]}) for one in (block, marked))
    (said,) = told([plain], [with_mark])
    assert said.startswith("shared: request long 0 with mark on messages[0].content[0]")


def test_random_names_make_no_difference_and_stay_apart():
    """Ids, ports and temporary folders are numbered as they appear."""
    ids = "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "6ba7b811-9dad-11d1-80b4-00c04fd430c8"
    assert told([asked(ids[0])], [asked(ids[1])]) == []
    assert told([asked(ids[0], ids[0])], [asked(ids[0], ids[1])]) != []


def test_of_requests_sent_side_by_side_the_order_makes_no_difference():
    """Nor, where it is chance, which of them is streamed so that the others may follow."""
    one, two = asked("You are the coder.", "one"), asked("You are the coder.", "two")
    assert told([one, two], [two, one]) == []
    leading = asked("You are the coder.", "one", stream=True)
    assert told([one, two], [leading, two], chance=True) == []
    assert told([one, two], [leading, two]) != []


def test_requests_that_are_gone_or_new_are_said():
    """One sentence each."""
    one, two = asked("You are the coder.", "one"), asked("You are the critic.", "two")
    assert told([one], [two]) == ["shared: request coder 0 is gone", "shared: request critic 0 is new"]
