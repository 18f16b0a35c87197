"""A call that has to be made of one of a request's tools: it can only be one of the role's own."""

from __future__ import annotations

import litellm
import pytest
from litellm_driver import HANDBOOK, messages, place

from cacheprefix import Gate, Session, SharedPrefix
from cacheprefix_litellm import role, wrap


def tool(name):
    """A function of that name."""
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("model", ["openai/gpt-5.6", "anthropic/claude-sonnet-4-6"])
def test_a_forced_call_can_only_be_one_of_the_roles_own(fresh, model):
    """Of the union the model could call another role's; without a forced call, and where both are one, it is sent."""
    vendor = model.partition("/")[0]
    provider, union = fresh(vendor), [tool("write"), tool("read")]
    session = Session(SharedPrefix(system=HANDBOOK, tools=union), gate=Gate(price=0.0))
    ask, offered = wrap(litellm.completion, session), []
    for own, choice in ((union[1:], None), (union[1:], "required"), (union, "required")):
        with role("critic"):
            ask(model=model, messages=messages("critic"), tools=own, tool_choice=choice, **place(vendor, provider))
        offered.append(len(provider.requests[-1].json["tools"]))
    assert offered == [2, 1, 2]
    assert ["forced_tool" in [one.why for one in call.reasons] for call in session.calls] == [False, True, False]


@pytest.mark.invalid_requests
@pytest.mark.parametrize("model", ["openai/gpt-5.6", "anthropic/claude-sonnet-4-6"])
def test_a_choice_of_another_roles_tool_is_refused_as_without_us(fresh, model):
    """Of the union the provider took it, and the model called what is not the role's: it was asked again, and paid."""
    vendor = model.partition("/")[0]
    provider, union = fresh(vendor), [tool("write"), tool("read")]
    session = Session(SharedPrefix(system=HANDBOOK, tools=union), gate=Gate(price=0.0))
    told, sent, chosen = [], [], {"type": "function", "function": {"name": "write"}}
    asked = {"model": model, "messages": messages("critic"), "tools": union[1:], **place(vendor, provider)}
    for ask in (litellm.completion, wrap(litellm.completion, session)):
        provider.reset()
        with role("critic"):
            ask(**asked)
            with pytest.raises(litellm.BadRequestError, match="not among the tools") as refused:
                ask(**asked, tool_choice=chosen)
        told.append(str(refused.value))
        sent.append(len(provider.requests))
    assert told[0] == told[1]
    assert sent == [2, 2]
    assert session.failures == {}
