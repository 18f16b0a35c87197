"""What names a message: all that it says, and nothing else."""

from __future__ import annotations

import pytest

from cacheprefix.prompt.views import make_call, make_message, make_result

SAID = {
    "texts": ("Look.",),
    "calls": (make_call("1", "look", '{"at":"door"}', len),),
    "results": (make_result("1", "look", "A door.", len),),
    "thinking": ((0, "A door, I think."),),
    "media": ("an image",),
}
OTHERWISE = {
    "texts": ("Listen.",),
    "calls": (make_call("1", "look", '{"at":"wall"}', len),),
    "results": (make_result("1", "look", "A wall.", len),),
    "thinking": ((0, "A wall, I think."),),
    "media": ("another image",),
}


def named(**changed):
    """The digest of a message that says a bit of everything."""
    said = {**SAID, **changed}
    return make_message("user", said.pop("texts"), len, **said).digest


@pytest.mark.parametrize("part", SAID)
def test_whatever_a_message_says_otherwise_gives_it_another_name(part):
    """Decisions are found by these names: two messages with one name would share a decision."""
    assert len({named(), named(**{part: OTHERWISE[part]}), named(**{part: ()})}) == 3


def test_ids_of_calls_give_no_other_name():
    """Providers use them again, and make new ones when the same is asked again."""
    call, result = make_call("2", "look", '{"at":"door"}', len), make_result("2", "look", "A door.", len)
    assert named(calls=(call,), results=(result,)) == named()
