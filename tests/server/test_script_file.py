"""Scripts as files: a team is tried against the simulated provider without a line of Python."""

import json

import httpx
import pytest

from cacheprefix.errors import SetupError
from cacheprefix.server import Echo, SimulatedProvider
from cacheprefix.server.script_file import read_script


def written(tmp_path, content):
    """A file with this content."""
    path = tmp_path / "script.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def answers(path, *prompts):
    """What a provider that goes by the file answers, one request after the other."""
    with SimulatedProvider("openai", read_script(path, Echo())) as provider, httpx.Client() as client:
        found = []
        for system, said in prompts:
            messages = [{"role": "system", "content": system}, {"role": "user", "content": said}]
            body = {"model": "m", "messages": messages}
            made = client.post(f"{provider.openai_base_url}/chat/completions", json=body)
            found.append(made.json()["choices"][0]["message"] if made.status_code == 200 else made.status_code)
        return found


def test_replies_come_by_the_text_that_stands_last_in_the_prompt(tmp_path):
    """Each role has its own, one after the other, and its last one again."""
    script = {"You plan": ["First.", {"tools": [{"name": "look", "arguments": {"at": "a"}}]}], "You write": "Written."}
    ask = ("You plan.", "Go."), ("You plan.", "What of 'You write'?"), ("You write.", "Go."), ("You plan.", "Go on.")
    one, two, three, four = answers(written(tmp_path, script), *ask)
    assert one["content"] == "First."
    assert (two["content"], three["content"]) == ("Written.", "Written.")
    assert four["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at":"a"}'}


def test_a_list_is_answered_in_order_and_then_by_what_else_answers(tmp_path):
    """Errors are replies too."""
    one, two, three = answers(written(tmp_path, ["One.", {"error": 503}]), *[("You plan.", "Go.")] * 3)
    assert (one["content"], two) == ("One.", 503)
    assert three["content"] not in ("", "One.")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "script.json"),
        ("3", "a list of replies"),
        ({"You plan": []}, "has no replies"),
        ({"You plan": ["a", 3]}, "'You plan', reply 2"),
        ([{"answer": "a"}], "error, text, thinking, tools"),
        ([{"tools": [{"arguments": {}}]}], "name and arguments"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, content, said):
    """With its place in the file."""
    with pytest.raises(SetupError, match=said):
        read_script(written(tmp_path, content), Echo())


def test_a_missing_file_is_named(tmp_path):
    """Before anything listens."""
    with pytest.raises(SetupError, match=r"gone\.json"):
        read_script(tmp_path / "gone.json", Echo())
