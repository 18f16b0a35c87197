"""What the module of an API says of it fits together: paths, tools, choices, answers and results."""

from __future__ import annotations

import pytest

from cacheprefix.layout import with_volatile
from cacheprefix.wire import api_of_path, structure_errors, views_of
from cacheprefix.wire.answers import limited, read_answer, result_messages, user_message
from cacheprefix.wire.apis import CHATS, SHAPES

TOOL = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
ANSWERS = {
    "openai-chat": {
        "choices": [
            {
                "message": {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
                }
            }
        ]
    },
    "openai-responses": {
        "output": [{"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}],
    },
    "anthropic": {"content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {}}]},
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/v1/chat/completions", ("openai-chat", None)),
        ("/v1/responses", ("openai-responses", None)),
        ("/v1/messages", ("anthropic", None)),
        ("/v1beta/models/gemini-3:streamGenerateContent", ("gemini", "gemini-3")),
        ("/model/a.nova%3A0/converse-stream", ("bedrock", "a.nova:0")),
        ("/v1/messages/count_tokens", None),
        ("/v1/embeddings", None),
    ],
)
def test_a_path_tells_its_api_and_the_model_it_names(path, found):
    """A path that asks no model for an answer belongs to none."""
    assert api_of_path(path) == found


@pytest.mark.parametrize("api", CHATS)
def test_a_tool_is_declared_in_the_form_of_its_api_alone(api):
    """No other API takes the declaration for one of its own."""
    declared = CHATS[api].tool(TOOL)
    assert [other for other, shape in CHATS.items() if shape.declares(declared)] == [api]


@pytest.mark.parametrize("api", CHATS)
def test_an_answered_call_goes_back_as_a_valid_history(api):
    """The answer's messages and the results behind them are what the API takes, and read as one call and its result."""
    shape, answer = CHATS[api], read_answer(ANSWERS[api], api)
    told = result_messages([(call, "found", False) for call in answer.calls], api)
    history = [user_message("look"), *answer.messages, *told]
    body = {shape.FIELDS.history: history, "tools": [shape.tool(TOOL)], "tool_choice": shape.allowed_choice(["look"])}
    assert structure_errors(body, api) == []
    views = views_of(history, api)
    assert [call.name for view in views for call in view.calls] == ["look"]
    assert [(result.name, result.text) for view in views for result in view.results] == [("look", "found")]


@pytest.mark.parametrize(
    ("api", "own", "older"),
    [
        ("openai-chat", "max_completion_tokens", "max_tokens"),
        ("openai-responses", "max_output_tokens", "max_output_tokens"),
        ("anthropic", "max_tokens", "max_tokens"),
    ],
)
def test_a_bound_of_the_answer_stands_in_a_field_of_the_api(api, own, older):
    """In the one that the body uses already, or else in the API's own."""
    assert limited({older: 9}, api, 5) == {older: 5}
    assert limited({}, api, 5) == {own: 5}


@pytest.mark.parametrize("api", CHATS)
def test_a_text_behind_a_history_is_its_end_and_leaves_it_valid(api):
    """Under the role that may stand there; what was said before is what it was."""
    history = [user_message("hi"), {"role": "assistant", "content": "so"}]
    shape = CHATS[api]
    made = shape.with_last(history, "now", "user")
    assert made[:2] == history
    assert views_of(made, api)[-1].texts == ("now",)
    assert structure_errors({shape.FIELDS.history: made}, api, prefill=False) == []


@pytest.mark.parametrize("last", ["user", "assistant"])
def test_a_text_behind_a_history_of_bedrocks_is_a_block_of_the_users(last):
    """Its messages alternate: where the user spoke last, it is one message more of theirs, and valid as such."""
    history = [{"role": role, "content": [{"text": "so"}]} for role in ("user", "assistant", "user")]
    body = {"modelId": "m", "messages": history if last == "user" else history[:2]}
    made = with_volatile(body, "bedrock", "now")["messages"]
    assert made[-1] == {"role": "user", "content": [*([{"text": "so"}] if last == "user" else []), {"text": "now"}]}
    assert (len(made), len(history[2]["content"])) == (3, 1)
    assert structure_errors({"messages": made}, "bedrock", prefill=False) == []


def test_every_api_is_known_by_a_field_that_none_asked_later_has():
    """So a bare body is guessed by the first sign in it; chat completions are what is left."""
    known = [shape.FIELDS.signs for shape in SHAPES.values()]
    assert [bool(signs) for signs in known] == [True, True, True, True, False]
    assert len({name for signs in known for name in signs}) == sum(len(signs) for signs in known)


def test_two_texts_of_the_user_are_one_message_of_anthropic():
    """A text behind the user's is a block of it, and the message given stays as it is."""
    history = [user_message("hi")]
    made = CHATS["anthropic"].with_last(history, "now", "system")
    assert [block["text"] for block in made[0]["content"]] == ["hi", "now"]
    assert (len(made), history) == (1, [user_message("hi")])
