"""What a preview says of planned calls is what LiteLLM then sends, and ``doctor`` prints it of a program."""

from __future__ import annotations

import litellm
import pytest
from litellm_driver import HANDBOOK, MODELS, ROLES, messages, place

from cacheprefix import Caching, PlannedRequest, Session, SharedPrefix, cli, preview
from cacheprefix.errors import SetupError
from cacheprefix.prompt import ESTIMATE
from cacheprefix_litellm import role, wrap


def session():
    """A session with the handbook, which counts as the providers do."""
    return Session(SharedPrefix(system=HANDBOOK), caching=Caching(counter=ESTIMATE))


@pytest.mark.parametrize("vendor", tuple(MODELS))
def test_what_was_foreseen_is_what_is_sent(fresh, vendor):
    """Role, layout, reasons and tokens of each call, by the rules of who serves its model."""
    provider, own = fresh(vendor), session()
    planned = [PlannedRequest(n, {"model": MODELS[vendor], "messages": messages(n)}, "openai-chat") for n in ROLES]
    seen = preview(planned, own)
    assert not provider.requests
    assert own.calls == ()
    completion = wrap(litellm.completion, own)
    for name in ROLES:
        with role(name, conversation="thread-1"):
            completion(model=MODELS[vendor], messages=messages(name), **place(vendor, provider))
    assert [one.agent for one in seen.requests] == [call.agent for call in own.calls] == list(ROLES)
    for one, call in zip(seen.requests, own.calls, strict=True):
        assert (one.layout, one.shared_tokens) == (call.layout, pytest.approx(call.shared_tokens, rel=0.05, abs=8))
        assert one.input_tokens == pytest.approx(call.input_tokens, rel=0.05, abs=8)


def test_a_router_says_nothing_before_it_is_asked():
    """What it will be asked is yours to say; the error says how."""
    with pytest.raises(SetupError, match=r"a list of PlannedRequest\(agent, body, api\)"):
        preview(litellm.completion, session())


def test_one_request_is_taken_as_a_list_of_one_and_nothing_else_among_them():
    """The one that is no request is named."""
    one = PlannedRequest("critic", {"model": "openai/gpt-5.6", "messages": messages("critic")}, "openai-chat")
    assert len(preview(one, session()).requests) == 1
    with pytest.raises(SetupError, match="found a dict"):
        preview([one, {}], session())


APP = """
from cacheprefix import PlannedRequest, Session, SharedPrefix

HANDBOOK = "Every statement needs a source. " * 200
session = Session(SharedPrefix(system=HANDBOOK))

def body(name):
    said = [{"role": "system", "content": f"You are the {name}. {HANDBOOK}"}, {"role": "user", "content": "Compare."}]
    return {"model": "anthropic/claude-sonnet-4-6", "messages": said}

def planned():
    return [PlannedRequest(name, body(name), "openai-chat") for name in ("planner", "critic", "writer")]
"""


def test_doctor_says_it_of_a_program(tmp_path, capsys):
    """The session of the same module is the one that will be asked in."""
    path = tmp_path / "litellm_app.py"
    path.write_text(APP, encoding="utf-8")
    assert cli.main(["doctor", f"{path}:planned"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[:3]] == ["planner", "critic", "writer"]
    assert all("fork (laid out as a fork" in line for line in lines[:3])
