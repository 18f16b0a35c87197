"""Which tools a role's requests carry on the wire of the real clients, and that large ones of others cost nothing."""

from __future__ import annotations

import pytest
from sdk_driver import MODELS, RULES, creator, make_client

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.errors import NotSharedError
from cacheprefix.profiles import default_registry
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Reply, SimulatedProvider
from cacheprefix_sdk import role, wrap

HANDBOOK = "Every statement needs a source that the reader can open. " * 80
NAMES = ("planner", "critic", "writer")


def kit(api, name, count):
    """So many tools of one role, of some two hundred tokens each, in a provider's form."""
    about = " ".join(f"{name}{number}" for number in range(100))
    form = {"type": "object", "properties": {"query": {"type": "string"}}}
    plain = [{"name": f"{name}_{n}", "description": f"{n} {about}"} for n in range(count)]
    if api == "anthropic":
        return [{**one, "input_schema": form} for one in plain]
    if api == "openai-chat":
        return [{"type": "function", "function": {**one, "parameters": form}} for one in plain]
    return [{"type": "function", "strict": False, **one, "parameters": form} for one in plain]


def talk(api, provider, count, rounds, session):
    """Everyone answers in turn with tools of its own; the bodies that came in, and what they cost."""
    provider.reset()
    with make_client(api, provider) as client:
        used = client if session is None else wrap(client, session)
        said = [{"role": "user", "content": "Begin."}]
        for number in range(rounds * len(NAMES)):
            name = NAMES[number % len(NAMES)]
            text, field = f"You are the {name}.\n\n{HANDBOOK}", "input" if api == "openai-responses" else "messages"
            system = {"anthropic": {"system": text, "max_tokens": 64}, "openai-responses": {"instructions": text}}
            lead = [] if api in system else [{"role": "system", "content": text}]
            body = {"model": MODELS[api], field: [*lead, *said], "tools": kit(api, name, count), **system.get(api, {})}
            with role(name, conversation="one"):
                creator(used, api)(**body)
            said.append({"role": "user", "content": f"{name} says {number}."})
    costs = (record.outcome.cost_units(default_registry().get(RULES[api])) for record in provider.requests)
    return [record.body for record in provider.requests], sum(costs)


@pytest.mark.slow
@pytest.mark.parametrize("api", tuple(RULES))
@pytest.mark.parametrize("rounds", [1, 5])
def test_large_toolsets_stay_with_their_roles(api, rounds):
    """Nothing is dearer for the tools of others; where no marks are needed, each request is byte for byte its own."""
    with SimulatedProvider(RULES[api], lambda _: Reply("Noted.")) as provider:
        plain, before = talk(api, provider, 30, rounds, None)
        prefix = SharedPrefix(system=HANDBOOK, tools=[tool for name in NAMES for tool in kit("openai-chat", name, 30)])
        session = Session(prefix, caching=Caching(provider=RULES[api], counter=ESTIMATE))
        sent, cost = talk(api, provider, 30, rounds, session)
    assert session.failures == {}
    assert cost <= before
    said = str(session.report())
    assert "others' (" in said or "carries its own tools" in said
    if api != "anthropic" or rounds == 1:
        assert sent == plain


@pytest.mark.parametrize("api", tuple(RULES))
def test_small_toolsets_are_united(api):
    """Every request carries the same tools, in the same order and the same bytes."""
    with SimulatedProvider(RULES[api], lambda _: Reply("Noted.")) as provider:
        prefix = SharedPrefix(system=HANDBOOK, tools=[tool for name in NAMES for tool in kit("openai-chat", name, 1)])
        talk(api, provider, 1, 2, Session(prefix, caching=Caching(provider=RULES[api], counter=ESTIMATE)))
        listed = [record.json["tools"] for record in provider.requests]
    assert len(listed[0]) == len(NAMES)
    assert all(tools == listed[0] for tools in listed)


def test_a_tool_with_another_schema_stays_its_roles_own():
    """It is no failure of ours, the other role shares as before, and ``strict`` raises for it."""

    def kits(text):
        return [{"type": "function", "function": {"name": "look", "description": text, "parameters": {}}}]

    said = [{"role": "system", "content": HANDBOOK}, {"role": "user", "content": "Begin."}]
    with SimulatedProvider("openai-5.6") as provider, make_client("openai-chat", provider) as client:

        def ask(session, name, text):
            with role(name, conversation="one"):
                creator(wrap(client, session), "openai-chat")(model="gpt-5.6", messages=said, tools=kits(text))

        session = Session(HANDBOOK)
        for name, text in (("a", "One."), ("b", "Another."), ("a", "One.")):
            ask(session, name, text)
        sent = [record.json["tools"] for record in provider.requests]
        strict = Session(HANDBOOK, mode="strict")
        ask(strict, "a", "One.")
        with pytest.raises(NotSharedError, match="look"):
            ask(strict, "b", "Another.")
    assert sent == [kits("One."), kits("Another."), kits("One.")]
    assert session.failures == {}
    assert [[one.why for one in call.reasons if one.why == "tool_schema_differs"] for call in session.calls] == [
        [], ["tool_schema_differs"], []
    ]  # fmt: skip
    assert provider.requests[2].outcome.read_tokens > 1_000
