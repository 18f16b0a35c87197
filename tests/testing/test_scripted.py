"""A scripted model says what it was told to, over HTTP and in this process, and remembers what it was asked."""

from __future__ import annotations

import openai
import pytest

from cacheprefix import Caching, Session
from cacheprefix.testing import Reply, ScriptedModel, ToolCall


def test_queued_answers_come_in_order_over_http():
    """To a real client."""
    model = ScriptedModel("first", Reply("second"))
    with model.serve("openai-5.6") as provider, openai.OpenAI(base_url=provider.openai_base_url, api_key="k") as client:
        said = [
            client.chat.completions.create(model="gpt-5.6", messages=[{"role": "user", "content": text}])
            for text in ("a", "b")
        ]
    assert [one.choices[0].message.content for one in said] == ["first", "second"]
    assert [request.text for request in model.requests] == ["a", "b"]
    assert model.waiting == 0


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses", "anthropic"])
def test_a_side_fork_runs_without_a_server(api):
    """``send`` fits ``Session.fork``, tool calls included."""
    model = ScriptedModel(Reply(tool_calls=(ToolCall("look", {"at": "it"}),)), "done", rules="exact")
    field = "input" if api == "openai-responses" else "messages"
    tools = {
        "openai-chat": {"type": "function", "function": {"name": "look", "parameters": {}}},
        "openai-responses": {"type": "function", "name": "look", "parameters": {}},
        "anthropic": {"name": "look", "input_schema": {"type": "object"}},
    }
    body = {"model": "m", field: [{"role": "user", "content": "hello"}], "tools": [tools[api]], "max_tokens": 99}
    asked = []
    session = Session("handbook", caching=Caching(provider="exact"))
    done = session.fork(
        "and?",
        body=body,
        api=api,
        send=lambda sent: model.send(sent, api),
        tool_executor=lambda _, name, arguments: asked.append((name, arguments)) or "seen",
    )
    assert (done.text, done.turns, asked) == ("done", 2, [("look", {"at": "it"})])
    assert done.verdicts[-1].reported_tokens


def test_behind_the_queue_the_last_script_answers():
    """``enqueue`` adds later on."""
    model = ScriptedModel(then=lambda request: Reply("always"))
    body = {"model": "gpt-5.6", "messages": [{"role": "user", "content": "a"}]}
    model.enqueue("once")
    texts = [model.send(body)["choices"][0]["message"]["content"] for _ in range(3)]
    assert texts == ["once", "always", "always"]


def test_a_refused_body_raises():
    """As the provider's own error would."""
    with pytest.raises(RuntimeError, match="refused the request: messages"):
        ScriptedModel().send({"model": "gpt-5.6", "messages": "none"})
