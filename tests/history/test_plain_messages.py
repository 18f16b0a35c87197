"""``compaction_hook``: a plain list of messages, shortened to a number of tokens."""

import pytest

from cacheprefix.errors import SetupError
from cacheprefix.history import compaction_hook
from cacheprefix.prompt import estimate_tokens
from cacheprefix.wire import structure_errors, views_of


def talk(turns):
    """A system message, and turns with a tool each."""
    out = [{"role": "system", "content": "Be brief."}]
    for n in range(turns):
        call = {"id": f"c{n}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        out += [
            {"role": "user", "content": f"question {n}"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{n}", "content": f"file {n} " * 300},
            {"role": "assistant", "content": f"answer {n}"},
        ]
    return out


def tokens(messages):
    """What they have."""
    return sum(view.tokens for view in views_of(messages, "openai-chat", estimate_tokens))


@pytest.mark.parametrize("target", [3_000, 1_500])
def test_messages_are_shortened_to_the_target(target):
    """They stay valid, the system's and the newest stay as they are, and what was given is not changed."""
    given = talk(12)
    before = [dict(one) for one in given]
    done = compaction_hook(given, target)
    assert tokens(done) <= target < tokens(given)
    assert not structure_errors({"model": "m", "messages": done}, "openai-chat")
    assert (done[0], done[-1]) == (given[0], given[-1])
    assert given == before


def test_messages_that_fit_are_the_very_same():
    """Nothing is copied where nothing has to change."""
    given = talk(2)
    assert all(a is b for a, b in zip(given, compaction_hook(given, 10**6), strict=True))
    with pytest.raises(SetupError, match="at least 1 token"):
        compaction_hook(given, 0)
