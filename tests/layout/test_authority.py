"""A role's text as the application's own message, where the API takes one there."""

from __future__ import annotations

import pytest

from cacheprefix.layout import said_with_authority
from cacheprefix.profiles import default_registry
from cacheprefix.wire import structure_errors

TEXT = "You are the critic."
USER = {"role": "user", "content": "The task."}
SAID = {"role": "user", "name": "user", "content": TEXT}


@pytest.mark.parametrize("content", [TEXT, [{"type": "text", "text": TEXT}], [{"type": "input_text", "text": TEXT}]])
def test_the_last_message_that_says_it_changes_its_role_and_nothing_else_does(content):
    """Everybody else's message stays the very same object; the name said which user it was."""
    body = {"messages": [{"role": "system", "content": "s"}, SAID, USER, {**SAID, "content": content}, USER]}
    made = said_with_authority(body, "openai-chat", TEXT, "developer")
    assert made["messages"][3] == {"role": "developer", "content": content}
    assert all(a is b for at, (a, b) in enumerate(zip(made["messages"], body["messages"], strict=True)) if at != 3)


@pytest.mark.parametrize(
    ("api", "history"),
    [
        ("openai-chat", [{"role": "system", "content": "s"}, SAID, USER]),
        ("openai-chat", [SAID, USER]),
        ("openai-chat", [USER, {"role": "user", "content": f"{TEXT} And the task."}]),
        ("anthropic", [USER, {"role": "assistant", "content": "Yes."}, SAID]),
        ("anthropic", [SAID]),
    ],
    ids=["behind the system text", "first", "among other text", "behind an answer", "alone"],
)
def test_where_it_would_be_something_else_it_stays_the_users(api, history):
    """At the front it would be a system text, which all later requests would have to begin with."""
    assert said_with_authority({"messages": history}, api, TEXT, "system") is None


def test_what_is_made_is_valid_by_anthropics_rules():
    """A system message directly behind a user's, also where a user's follows."""
    history = [USER, {"role": "user", "content": TEXT}, {"role": "user", "content": "Go on."}]
    made = said_with_authority({"model": "claude-opus-4-8", "messages": history}, "anthropic", TEXT, "system")
    assert [one["role"] for one in made["messages"]] == ["user", "system", "user"]
    assert structure_errors(made, "anthropic") == []


@pytest.mark.parametrize(
    ("model", "takes"),
    [("gpt-4o", "developer"), ("gpt-5.6", "developer"), ("o1-mini", None), ("o1-preview-2024-09-12", None),
     ("o3", "developer"),
     ("claude-opus-4-8", "system"), ("claude-sonnet-4-5", None), ("deepseek-chat", "system")],
)  # fmt: skip
def test_a_models_rules_say_which_message_it_takes(model, takes):
    """As the providers document it; what is not known is a user's message."""
    rules = default_registry().profile_for(model)
    assert (None if not rules.mid_system else "developer" if rules.developer else "system") == takes
