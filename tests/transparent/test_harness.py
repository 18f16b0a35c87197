"""The harness itself: what it shows, what it compares, and that pages say what is listed."""

from dataclasses import replace

import pytest
from pydantic import BaseModel

from tests.transparent.compare import Allowed, allowed, differences
from tests.transparent.harness import Constructs, Stage
from tests.transparent.pages import PAGES, current, driven, section
from tests.transparent.plain import normalised, plain


class Message(BaseModel):
    content: object
    id: str | None = None


def paths(before, after):
    """Where two trees differ, and how."""
    return [(one.path, one.change) for one in differences(before, after)]


def test_a_tree_shows_types_and_which_fields_were_set():
    """A model that prints alike but was made otherwise is another one."""
    assert paths(plain(Message(content="a")), plain(Message(content="a", id=None))) == [("fields set[1]", "added")]
    assert paths(plain([Message(content="a")]), plain([Message(content=["a"])])) == [("[0].content", "type")]
    assert paths(plain((1,)), plain([1])) == [("", "type")]


def test_an_error_is_shown_with_its_class_text_and_cause():
    """An application may look at any of them."""
    error = ValueError("outer")
    error.__cause__ = KeyError("inner")
    cause = {"is": "KeyError", "says": "'inner'", "cause": None}
    assert plain(error) == {"is": "ValueError", "says": "outer", "cause": cause}


def test_random_names_are_numbered_so_that_equal_ones_stay_equal():
    """An id that is the same in two places must be so in every mode."""
    one = ["chatcmpl-aaaaaaaa", "chatcmpl-bbbbbbbb", "chatcmpl-aaaaaaaa"]
    other = ["chatcmpl-cccccccc", "chatcmpl-dddddddd", "chatcmpl-cccccccc"]
    assert normalised(one) == normalised(other) == ["<id 1>", "<id 2>", "<id 1>"]
    assert normalised([*other[:2], other[1]]) != normalised(one)


def test_what_was_put_into_a_list_is_named_at_its_place():
    """One event more does not make all that follow differ."""
    assert paths({"events": ["a", "b", "c"]}, {"events": ["a", "x", "b", "c"]}) == [("events[1]", "added")]
    assert paths(["a", "b", "c"], ["a", "c"]) == [("[1]", "removed")]


def test_one_event_more_leaves_the_others_where_they_are():
    """Also where each of them says something else, as token counts do."""
    before = [{"is": "Request"}, {"is": "Usage", "tokens": 1}, {"is": "Answer", "tokens": 1}]
    after = [{"is": "Request"}, {"is": "State"}, {"is": "Usage", "tokens": 2}, {"is": "Answer", "tokens": 2}]
    assert paths(before, after) == [("[1]", "added"), ("[1].tokens", "value"), ("[2].tokens", "value")]


def test_an_allowed_difference_covers_its_place_and_its_kind_of_change_only():
    """A token count may be another one; that it is missing is another matter."""
    entry = Allowed(("x",), "stream*", "saw*.input_tokens", ("value",), "", "")
    found = list(differences({"saw": [{"input_tokens": 1}]}, {"saw": [{"input_tokens": 2}]}))
    gone = list(differences({"saw": [{"input_tokens": 1}]}, {"saw": [{}]}))
    assert entry.covers("stream_values", found[0])
    assert not entry.covers("invoke", found[0])
    assert not entry.covers("stream_values", gone[0])
    assert replace(entry, shows="*2").covers("stream_values", found[0])
    assert not replace(entry, shows="*3").covers("stream_values", found[0])


def test_a_difference_fails_and_so_does_a_listed_one_that_is_not_there():
    """The harness notices both ways."""
    constructs = Constructs("none", Stage)

    @constructs.add(forks=False)
    def differs(stage):
        return {"mode": stage.mode}

    with pytest.raises(pytest.fail.Exception, match=r"saw\.mode: value"):
        constructs.check("differs", "observed")
    constructs.check_used(Allowed(("none",), "*", "saw.mode", ("value",), "", ""))
    with pytest.raises(pytest.fail.Exception, match="take it out"):
        constructs.check_used(Allowed(("none",), "*", "saw.other", ("value",), "", ""))


def test_every_listed_difference_names_its_frameworks_and_its_reason():
    """Nothing is excused without a word, nor for a framework that is not there."""
    for entry in allowed():
        assert entry.frameworks
        assert set(entry.frameworks) <= set(PAGES)
        assert len(entry.what) > 20
        assert len(entry.reason) > 20


@pytest.mark.parametrize("framework", driven())
def test_the_page_of_an_adapter_says_what_is_listed(framework):
    """Made by ``python -m tests.transparent``."""
    assert current(framework) == section(framework)
