"""Fields that the application puts over a request's body: they are sent as they came, and no part of a fork is lost."""

from __future__ import annotations

import litellm
import openai
import pytest
from litellm_driver import HANDBOOK, ROLES, messages, place

from cacheprefix import Gate, Session, SharedPrefix
from cacheprefix_litellm import role, wrap

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
SAID = [{"role": "user", "content": "What?"}]
CASES = {
    "messages": ("openai/gpt-5.6", {"extra_body": {"messages": SAID}}),
    "tools": ("openai/gpt-5.6", {"extra_body": {"tools": [TOOL], "tool_choice": "required"}}),
    "input": ("openai/responses/gpt-5.6", {"extra_body": {"input": SAID}}),
    "instructions": ("openai/responses/gpt-5.6", {"extra_body": {"instructions": "Be brief."}}),
    "instructions of its own": ("openai/responses/gpt-5.6", {"instructions": "Be brief."}),
    "system": ("anthropic/claude-sonnet-4-6", {"extra_body": {"system": "Be brief."}}),
    "system of its own": ("anthropic/claude-sonnet-4-6", {"system": "Be brief."}),
}


def asked(provider, model, options, session):
    """The bodies of the roles' requests."""
    where = place(model.partition("/")[0], provider)
    ask = litellm.completion if session is None else wrap(litellm.completion, session)
    for name in ROLES:
        with role(name):
            ask(model=model, messages=messages(name), tools=[TOOL], **{**where, **options})
    return [record.json for record in provider.requests]


@pytest.mark.parametrize("kind", CASES)
def test_a_field_that_a_layout_is_made_of_keeps_the_applications(fresh, kind):
    """A fork's parts stood under it, and were lost, or the field came out where LiteLLM had dropped it."""
    model, options = CASES[kind]
    vendor, session = model.partition("/")[0], Session(SharedPrefix(system=HANDBOOK), gate=Gate(price=0.0))
    unmodified = asked(fresh(vendor), model, options, None)
    found = asked(fresh(vendor), model, options, session)
    said = ("input", "messages", "instructions", "system", "tools", "tool_choice")
    texts = [[{name: _plain(body.get(name)) for name in said} for body in bodies] for bodies in (unmodified, found)]
    assert texts[0] == texts[1]
    assert {tuple(one.why for one in call.reasons) for call in session.calls} == {("own_prompt",)}


def _plain(value):
    """Without cache marks, and a text in one block as that text."""
    if isinstance(value, list):
        found = [_plain(one) for one in value]
        return found[0]["text"] if len(found) == 1 and set(found[0]) == {"type", "text"} else found
    marks = ("cache_control", "prompt_cache_breakpoint")
    return {k: _plain(v) for k, v in value.items() if k not in marks} if isinstance(value, dict) else value


@pytest.mark.parametrize("model", ["openai/gpt-5.6", "openai/responses/gpt-5.6"])
def test_cache_settings_of_the_applications_stay(fresh, model):
    """Ours took the place of ``prompt_cache_options``."""
    given = {"prompt_cache_options": {"ttl": "12h"}, "prompt_cache_key": "mine"}
    session = Session(SharedPrefix(system=HANDBOOK), gate=Gate(price=0.0))
    bodies = asked(fresh("openai"), model, {"extra_body": given}, session)
    assert [{name: body.get(name) for name in given} for body in bodies] == [given] * 3
    assert {call.layout for call in session.calls} == {"fork"}


def test_an_answer_that_is_named_there_is_kept_by_the_service(fresh):
    """Its history stands there, so that a fork would say the shared text and the role's in it once more."""
    provider = fresh("openai")
    with openai.OpenAI(base_url=provider.openai_base_url, api_key="k") as client:
        first = client.responses.create(model="gpt-5.6", input="What is there?", store=True)
    session = Session(SharedPrefix(system=HANDBOOK), gate=Gate(price=0.0))
    options = {"extra_body": {"previous_response_id": first.id}}
    bodies = asked(provider, "openai/responses/gpt-5.6", options, session)[1:]
    assert [HANDBOOK.strip() in body["instructions"] for body in bodies] == [True] * 3
    assert [[one.why for one in call.reasons] for call in session.calls] == [["kept_by_provider"]] * 3
