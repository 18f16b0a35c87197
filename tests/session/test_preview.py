"""What requests will look like is said before anything is sent, and nothing else happens."""

from __future__ import annotations

import openai
import pytest

from cacheprefix import Caching, PlannedRequest, Session, SharedPrefix, preview, wrap
from cacheprefix.errors import SetupError
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import SimulatedProvider
from cacheprefix_sdk import role

HANDBOOK = "Every claim names its source and the page on which it stands. " * 200
ROLES = ("reader", "critic", "writer")


def body(name, *, model="gpt-5.2", tools=()):
    """A role's own request, its text in front of the handbook."""
    said = [{"role": "system", "content": f"You are the {name}.\n\n{HANDBOOK}"}, {"role": "user", "content": "Begin."}]
    asked = {"model": model, "messages": said}
    if tools:
        asked["tools"] = [{"type": "function", "function": {"name": one, "parameters": {}}} for one in tools]
    return asked


def planned(*names, **options):
    """Requests of these roles, in this order."""
    return [PlannedRequest(name, body(name, **options), "openai-chat") for name in names]


class Told:
    """A plugin that is told of calls."""

    def __init__(self):
        self.heard = []

    def cacheprefix_before_call(self, prompt):
        self.heard.append(prompt)

    def cacheprefix_after_call(self, call, verdict):
        self.heard.append(call)


def test_what_was_foreseen_is_what_is_sent():
    """Layouts, reasons, sizes and costs of the dry run are those of the run, with the provider's own counts."""
    counted = Caching(provider="exact", counter=ESTIMATE)
    session = Session(SharedPrefix(system=HANDBOOK), caching=counted)
    seen = session.preview(*planned(*ROLES))
    again = Session(SharedPrefix(system=HANDBOOK), caching=counted)
    with SimulatedProvider("exact") as provider:
        client = openai.OpenAI(base_url=provider.openai_base_url, api_key="k", max_retries=0)
        for name in ROLES:
            again.adapter.join(name)
        wrapped = wrap(client, again)
        for name in ROLES:
            with role(name, conversation="one"):
                wrapped.chat.completions.create(**body(name))
        client.close()
    assert [one.layout for one in seen.requests] == ["fork"] * 3
    for foreseen, call in zip(seen.requests, again.calls, strict=True):
        assert (foreseen.agent, foreseen.layout, foreseen.reasons) == (call.agent, call.layout, call.reasons)
        assert (foreseen.input_tokens, foreseen.shared_tokens) == (call.input_tokens, call.shared_tokens)
        assert foreseen.units == pytest.approx(call.units, rel=0.01)
        assert foreseen.unmodified_units == pytest.approx(call.unmodified_units, rel=0.01)
    assert seen.ratio < 1.0


def with_tool(name, task):
    """A role's own request with the handbook first and a tool of its own, so that in one cache its own stay apart."""
    asked = body(name, model="gpt-4.1", tools=(f"look_{name}",))
    asked["messages"][0]["content"] = f"{HANDBOOK}\n\nYou are the {name}."
    asked["tools"][0]["function"]["description"] = "Looks something up in the records. " * 20
    asked["messages"][1]["content"] = task
    return asked


@pytest.mark.parametrize("tools", [False, True])
def test_what_is_foreseen_of_further_conversations_is_what_they_cost(tools):
    """Sent and unmodified, as the report has it from the second conversation on: then both read what came before.

    Where each role's own requests are in the cache by then, that is far from what the first conversation saves.
    """

    def made(name, task):
        return with_tool(name, task) if tools else {**body(name, model="gpt-4.1"), "messages": said(name, task)}

    def said(name, task):
        return [{**body(name)["messages"][0]}, {"role": "user", "content": task}]

    counted = Caching(provider="openai", counter=ESTIMATE)
    given = [PlannedRequest(name, made(name, "First question?"), "openai-chat") for name in ROLES]
    seen = Session(SharedPrefix(system=HANDBOOK), caching=counted).preview(*given)
    session = Session(SharedPrefix(system=HANDBOOK), caching=counted)
    with SimulatedProvider("openai") as provider:
        client = openai.OpenAI(base_url=provider.openai_base_url, api_key="k", max_retries=0)
        for name in ROLES:
            session.adapter.join(name)
        wrapped = wrap(client, session)
        for number in range(4):
            for name in ROLES:
                with role(name, conversation=f"talk {number}"):
                    wrapped.chat.completions.create(**made(name, f"{number}: which question?"))
        client.close()
    further = session.calls[len(ROLES) :]
    for at, call in enumerate(further):
        one = seen.requests[at % len(ROLES)]
        assert one.further_units == pytest.approx(call.units, rel=0.02)
        assert one.further_unmodified_units == pytest.approx(call.unmodified_units, rel=0.02)
    cost, own = sum(one.units for one in further), sum(one.unmodified_units for one in further)
    assert seen.further_ratio == pytest.approx(cost / own, rel=0.01)
    assert seen.further_ratio > 1.0  # each role's own beginning is in the cache by then
    assert tools or seen.ratio < 0.6
    last = str(seen).splitlines()[-1]
    assert f"{seen.ratio:.2f} in a first conversation (cold), {seen.further_ratio:.2f} in each further one" in last


def test_a_further_conversation_counts_no_call_and_costs_nothing_where_all_is_said_before():
    """It is reckoned beside the dry run: neither its requests nor their cost are in what the first one comes to."""
    session = Session(SharedPrefix(system=HANDBOOK))
    seen = session.preview(*planned(*ROLES))
    assert len(seen.requests) == len(ROLES)
    first = seen.requests[0]
    assert first.further_units < 0.5 * first.units
    assert first.further_unmodified_units < 0.5 * first.unmodified_units
    data = seen.as_dict()
    assert data["further_ratio"] == seen.further_ratio
    assert data["requests"][0]["further_cost_units"] == first.further_units


def test_nothing_is_left_of_a_preview():
    """No call, no tool, no conversation, no note; no plugin heard of it; and it says the same a second time."""
    told = Told()
    session = Session(SharedPrefix(system=HANDBOOK), plugins=[told])
    first = session.preview(*planned(*ROLES, tools=("look",)))
    assert session.calls == () == session.prefix.tools
    assert session.report().notes == () == tuple(session.failures)
    assert not session.adapter.shared.conversations
    assert told.heard == []
    assert session.preview(*planned(*ROLES, tools=("look",))).as_dict() == first.as_dict()


def test_what_keeps_a_role_from_sharing_stands_there_before_the_run():
    """Also in strict mode, where the run would raise."""
    session = Session(SharedPrefix(system=HANDBOOK), mode="strict")
    other = HANDBOOK.replace("source", "sauce", 1)
    late = {"model": "gpt-5.2", "messages": [{"role": "system", "content": other}, {"role": "user", "content": "Go."}]}
    last = PlannedRequest("writer", late, "openai-chat")
    seen = session.preview(*planned("reader"), *planned("critic", model="gpt-5.4"), last)
    whys = [[reason.why for reason in one.reasons] for one in seen.requests]
    assert "text_not_found" in whys[2]
    brief = PlannedRequest("a", {**late, "messages": late["messages"][1:]}, "openai-chat")
    short = Session("Be brief.").preview(brief)
    assert [one.layout for one in short.requests] == ["own"]
    assert short.requests[0].reasons[0].why == "prefix_below_minimum"


def test_the_text_of_a_preview_says_who_why_and_how_much():
    """A line a request and the sum; its data hold no prompt text."""
    seen = Session(SharedPrefix(system=HANDBOOK)).preview(*planned(*ROLES))
    lines = str(seen).splitlines()
    assert [line.partition(":")[0] for line in lines[:3]] == list(ROLES)
    assert "shared with an earlier request" in lines[1]
    assert lines[3].startswith("expected cost of these first requests against unmodified: 0.")
    assert "source" not in str(seen.as_dict())


def test_wrong_requests_and_unknown_targets_are_named():
    """With what to give instead."""
    session = Session(HANDBOOK)
    with pytest.raises(SetupError, match=r"found a dict: use PlannedRequest"):
        session.preview(body("reader"))
    with pytest.raises(SetupError, match=r"no installed adapter can preview a builtins\.int"):
        preview(3, session)


def test_a_preview_reckons_with_the_lifetime_that_was_chosen():
    """What is written for an hour costs more than what is written for five minutes."""
    said = {"model": "claude-sonnet-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": "Begin."}]}
    asked = [PlannedRequest(name, said, "anthropic", instruction=f"You are the {name}.") for name in ROLES]
    costs = {
        lifetime: sum(one.units for one in session.preview(*asked).requests)
        for lifetime in (None, "1h")
        if (session := Session(SharedPrefix(system=HANDBOOK), caching=Caching(lifetime=lifetime)))
    }
    assert costs["1h"] > 1.3 * costs[None]
