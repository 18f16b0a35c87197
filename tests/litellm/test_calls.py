"""LiteLLM's functions and routers on the wire: what is shared, what is left alone, what the application sees."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import pickle
import runpy
import sys
from collections import UserDict
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from pathlib import Path
from threading import Barrier
from types import MappingProxyType

import httpx
import litellm
import pytest
from litellm import CustomStreamWrapper, Router
from litellm_driver import HANDBOOK, MODELS, ROLES, messages, place, router_for
from pydantic import BaseModel

from cacheprefix import CacheprefixWarning, Caching, Session, SharedPrefix
from cacheprefix.errors import SetupError
from cacheprefix.profiles import CacheprefixProfileWarning, cost_units, normalise_usage
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Fault, Queue, Reply, SimulatedProvider, ToolCall
from cacheprefix_litellm import calls, install, role, unwrap, wrap
from cacheprefix_litellm import role as block
from cacheprefix_litellm.plugin import cacheprefix_wrap
from tests.noting import note, noted

ROOT = Path(__file__).resolve().parents[2]
VENDORS = tuple(MODELS)


def session(**options):
    """A session with the handbook, which counts as the providers do."""
    return Session(SharedPrefix(system=HANDBOOK), caching=Caching(counter=ESTIMATE), **options)


def tool(name):
    """A tool in OpenAI's form."""
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": {"type": "object"}}}


def units(provider, own):
    """What a provider's requests cost, by the session's rules."""
    rules = [own.adapter.profile(record.model, record.api) for record in provider.requests]
    both = zip(provider.requests, rules, strict=True)
    return sum(cost_units(normalise_usage(one.usage, one.api, profile=each), each) for one, each in both)


def _openais(usage):
    return usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)


def ask(vendor, provider, call=litellm.completion, **options):
    """A round of the team, each in its role; the answers."""
    answers = []
    for name in ROLES:
        with role(name, conversation="thread-1"):
            answer = call(model=MODELS[vendor], messages=messages(name), **place(vendor, provider), **options)
            answers.append(list(answer) if options.get("stream") else answer)
    return answers


@pytest.mark.slow
@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.parametrize("stream", [False, True], ids=["", "stream"])
def test_three_roles_cost_less_than_unmodified(fresh, vendor, stream):
    """The handbook is written once and read twice; the report says what the provider says."""
    provider, own = fresh(vendor), session()
    ask(vendor, provider, stream=stream)
    plain = units(provider, own)
    provider.reset()
    ask(vendor, provider, wrap(litellm.completion, own), stream=stream)
    read = [record.usage for record in provider.requests]
    assert units(provider, own) < 0.7 * plain
    assert [call.layout for call in own.calls] == ["fork"] * 3
    told = [one.get("cache_read_input_tokens") or _openais(one) for one in read]
    assert own.report().total.cache_read_tokens == sum(told)
    assert not own.failures


def test_what_one_beta_of_anthropics_wrote_is_missed_by_no_other(fresh):
    """Each has a cache of its own at the provider, and so nothing was to be read."""
    provider, own = fresh("anthropic"), session()
    completion = wrap(litellm.completion, own)
    for _ in range(2):
        for more in ({}, {"extra_headers": {"anthropic-beta": "context-management-2025-06-27"}}):
            ask("anthropic", provider, completion, **more)
    assert "provider_miss" not in [call.verdict.cause for call in own.calls]
    sent = [record.headers.get("anthropic-beta", "") for record in provider.requests]
    first = [header not in sent[:at] for at, header in enumerate(sent)]
    assert [call.verdict.expected_tokens > 0 for call in own.calls] == [not one for one in first]


def test_marks_reach_anthropic_as_cache_control(fresh):
    """LiteLLM hands content blocks on with what they are marked by, and no field of OpenAI's."""
    provider = fresh("anthropic")
    ask("anthropic", provider, wrap(litellm.completion, session()))
    for record in provider.requests:
        assert b"cache_control" in record.body
        assert b"prompt_cache" not in record.body


def test_a_streams_chunks_are_those_that_were_asked_for(fresh):
    """Same class, same chunks; the usage that we ask for stays where LiteLLM has it for those who do not."""
    provider = fresh("openai")

    def shapes(chunks):
        return [(type(one), bool(one.choices), getattr(one, "usage", None)) for one in chunks]

    plain = ask("openai", provider, stream=True)
    forked = ask("openai", provider, wrap(litellm.completion, session()), stream=True)
    assert [shapes(one) for one in forked] == [shapes(one) for one in plain]
    assert forked[2][-1]._hidden_params["usage"].prompt_tokens_details.cached_tokens > 1_024
    provider.reset()
    with role("critic"):
        stream = wrap(litellm.completion, session())(
            MODELS["openai"], messages("critic"), stream=True, **place("openai", provider)
        )
    assert isinstance(stream, CustomStreamWrapper)


def test_roles_that_ask_several_models_in_turn_do_not_ask_another_one_than_all(fresh):
    """As those of a router with fallbacks do: they share with one another on each model."""
    own, providers = session(mode="strict"), {vendor: fresh(vendor) for vendor in VENDORS}
    for name in ROLES:
        for vendor in VENDORS:
            with role(name, conversation=vendor):
                wrap(litellm.completion, own)(MODELS[vendor], messages(name), **place(vendor, providers[vendor]))
    assert {one.why for call in own.calls for one in call.reasons} == {"shares"}


@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_the_usage_of_a_stream_is_the_providers_own(fresh, vendor, later):
    """LiteLLM knows it only once the provider's stream has ended, after the last chunk was handed out."""
    provider, own = fresh(vendor), session()
    where = place(vendor, provider)

    async def read():
        stream = await wrap(litellm.acompletion, own)(MODELS[vendor], messages("critic"), stream=True, **where)
        assert [chunk async for chunk in stream]

    for _ in range(2):
        with role("critic"):
            if later:
                asyncio.run(read())
            else:
                assert list(wrap(litellm.completion, own)(MODELS[vendor], messages("critic"), stream=True, **where))
    read_tokens = [record.outcome.read_tokens for record in provider.requests]
    assert read_tokens[1] > 1_024
    assert [call.usage.cache_read_tokens for call in own.calls] == read_tokens


@pytest.mark.parametrize("vendor", VENDORS)
def test_observing_changes_no_byte(fresh, vendor):
    """And neither does a call outside of any role."""
    provider, seen = fresh(vendor), []
    for call in (litellm.completion, wrap(litellm.completion, session(mode="observe"))):
        provider.reset()
        ask(vendor, provider, call)
        seen.append([record.body for record in provider.requests])
    own = session()
    provider.reset()
    for name in ROLES:
        wrap(litellm.completion, own)(MODELS[vendor], messages(name), **place(vendor, provider))
    seen.append([record.body for record in provider.requests])
    assert seen[0] == seen[1] == seen[2]
    assert [call.reasons[0].why for call in own.calls] == ["outside_fork"] * 3


def test_a_fallback_is_laid_out_for_its_own_model(fresh):
    """Each attempt of a router is a request of its own: that of Anthropic has Anthropic's marks."""
    claude, own = fresh("anthropic"), session()
    with SimulatedProvider("openai-5.6", lambda request: Reply(fault=Fault(status=500))) as broken:
        router = router_for(("openai", broken), ("anthropic", claude), fallbacks=[{"openai": ["anthropic"]}])
        for name in ROLES:
            with role(name, conversation="thread-1"):
                assert wrap(router, own).completion("openai", messages(name)).choices[0].message.content
    assert [call.model for call in own.calls] == [MODELS["anthropic"]] * 3
    assert all(b"cache_control" in record.body for record in claude.requests)


def test_a_router_asked_inside_an_event_loop_knows_the_role(fresh):
    """It then answers in a thread of its own (a notebook); ``unwrap`` gives it its class again."""
    provider, own = fresh("openai"), session()
    router = router_for(("openai", provider))
    plain = type(router)

    async def cell():
        for name in ROLES:
            with role(name, conversation="thread-1"):
                wrap(router, own).completion("openai", messages(name))

    asyncio.run(cell())
    assert [call.agent for call in own.calls] == list(ROLES)
    assert type(unwrap(router)) is plain
    router.completion("openai", messages("critic"))
    assert len(own.calls) == 3


WAYS = {
    "abatch_completion": {"models": ["openai"]},
    "abatch_completion_fastest_response": {"model": "openai"},
    "schedule_acompletion": {"model": "openai", "priority": 0},
}


@pytest.mark.parametrize("way", WAYS)
def test_what_a_router_asks_itself_for_is_a_fork(fresh, way):
    """From LiteLLM 1.110 on it asks what is inside it, and went by unseen; ``unwrap`` takes that back too."""
    provider, own = fresh("openai"), session()
    router = wrap(router_for(("openai", provider)), own)

    async def ask():
        with role("critic", conversation="thread-1"):
            await getattr(router, way)(messages=messages("critic"), **WAYS[way])

    asyncio.run(ask())
    assert [call.layout for call in own.calls] == ["fork"]
    unwrap(router)
    asyncio.run(ask())
    assert len(own.calls) == 1
    assert len(provider.requests) == 2


@pytest.mark.parametrize("when", ["before", "wrapped"])
@pytest.mark.parametrize("name", ["completion", *(["_completion"] if hasattr(Router, "_completion") else [])])
def test_a_method_that_a_router_was_given_is_asked_as_it_was(fresh, name, when):
    """It was lost, or could not be given, or was gone with ``unwrap``."""
    provider, own, heard = fresh("openai"), session(), []
    router = router_for(("openai", provider))
    if when == "wrapped":
        wrap(router, own)
    asked = getattr(router, name)

    def mine(*given, **named):
        heard.append(name)
        return asked(*given, **named)

    setattr(router, name, mine)
    if when == "before":
        wrap(router, own)
    with role("critic", conversation="thread-1"):
        router.completion("openai", messages("critic"))
    assert heard == [name]
    assert [call.layout for call in own.calls] == ["fork"]
    unwrap(router)
    assert getattr(router, name) is mine
    delattr(router, name)
    router.completion("openai", messages("critic"))
    assert (len(heard), len(own.calls)) == (1, 1)


def test_a_router_is_in_one_session_and_role_at_a_time(fresh):
    """Whose came last had all its calls, another tenant's too; ``unwrap`` comes first, or a block around each call."""
    provider, own, other = fresh("openai"), session(), session()
    router = router_for(("openai", provider))
    assert wrap(wrap(router, own), own) is router
    for more in ({"session": other}, {"session": own, "role": "critic"}, {"session": session(mode="off")}):
        with pytest.raises(SetupError, match=r"wrapped already.*unwrap\(router\)"):
            wrap(router, **more)
    with role("critic", conversation="one"):
        router.completion("openai", messages("critic"))
        wrap(unwrap(router), other).completion("openai", messages("critic"))
    assert [[call.agent for call in each.calls] for each in (own, other)] == [["critic"]] * 2
    unwrap(router)


def test_a_router_of_a_wrapped_ones_class_is_in_no_session(fresh):
    """As an application's own class makes a second one, for another tenant (``type(self)(...)``); a copy is in it."""

    def described(one):
        return [(each.name, each.kind) for each in inspect.signature(type(one)).parameters.values()]

    provider, own = fresh("openai"), session()
    plain = router_for(("openai", provider))
    router = wrap(copy.copy(plain), own)
    group = {"model_name": "openai", "litellm_params": {"model": MODELS["openai"], **place("openai", provider)}}
    made = type(router)(model_list=[group])
    assert described(router) == described(plain)
    assert type(made) is type(plain)
    copied = copy.copy(router)
    with role("critic", conversation="one"):
        made.completion("openai", messages("critic"))
        assert own.calls == ()
        copied.completion("openai", messages("critic"))
    assert [call.layout for call in own.calls] == ["fork"]


@pytest.mark.skipif("_completion" not in calls._ATTEMPTS, reason="from 1.110 on a router has no method for one attempt")
def test_methods_of_a_wrapped_router_are_taken_and_replaced_as_a_plain_ones(fresh, monkeypatch):
    """One that is not there is no attribute; a test's stand-in for all routers is asked; the role is the caller's."""
    provider, own = fresh("openai"), session()
    router, said = wrap(router_for(("openai", provider)), own), []
    with pytest.raises(AttributeError, match="'Router' object has no attribute '_completion'"):
        del router._completion
    with role("planner", conversation="one"):
        held = router._completion
    with role("critic", conversation="one"):
        held("openai", messages("critic"))
    assert [call.agent for call in own.calls] == ["critic"]
    monkeypatch.setattr(Router, "_completion", partial(lambda **named: said.append(named["messages"]) or "mocked"))
    assert router.completion("openai", messages("critic")) == "mocked"
    assert said == [messages("critic")]


def test_install_covers_what_calls_litellm_by_its_module(fresh):
    """A library's call is a fork inside the block; behind it, and by ``from litellm import``, LiteLLM's own."""
    provider, own = fresh("openai"), session()
    with install(own, role="critic") as given:
        litellm.completion(MODELS["openai"], messages("critic"), **place("openai", provider))
    litellm.completion(MODELS["openai"], messages("critic"), **place("openai", provider))
    assert given is own
    assert [call.agent for call in own.calls] == ["critic"]


def test_of_sessions_installed_side_by_side_each_has_its_own_calls(fresh):
    """What runs in a thread of neither is left alone: whose it is is not guessed."""
    provider, both, barrier = fresh("openai"), [session(), session()], Barrier(2)

    def answered(name):
        litellm.completion(MODELS["openai"], messages(name), **place("openai", provider))

    def tenant(own, name):
        with install(own, role=name):
            barrier.wait(30)
            answered(name)
            barrier.wait(30)
            if name == "critic":
                with ThreadPoolExecutor(1) as libraries:
                    libraries.submit(answered, "planner").result()
            barrier.wait(30)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(tenant, both, ["critic", "writer"]))
    assert [[call.agent for call in own.calls] for own in both] == [["critic"], ["writer"]]
    assert provider.requests[-1].json["messages"] == messages("planner")


def test_a_thread_without_a_block_is_in_nobodys_conversation(fresh):
    """A user's block is not guessed, also where it is the only one: another's may have left the thread running."""
    provider, own, barrier = fresh("openai"), session(), Barrier(2)

    def answered():
        litellm.completion(MODELS["openai"], messages("critic"), **place("openai", provider))

    def user(name):
        own.conversation(name).set_zone("memories", f"{name}'s memories")
        with install(own, role="critic", conversation=name):
            barrier.wait(30)
            answered()
            barrier.wait(30)
            if name == "alice":
                with ThreadPoolExecutor(1) as background:
                    background.submit(answered).result()
            barrier.wait(30)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(user, ["alice", "bob"]))
    with install(own, role="critic", conversation="bob"), ThreadPoolExecutor(1) as background:
        background.submit(answered).result()
    asked = [(call.agent, call.conversation in ("alice", "bob")) for call in own.calls]
    assert sorted(asked[:2]) == [("critic", True)] * 2
    assert asked[2:] == [("critic", False)] * 2
    assert all(b"memories" not in record.body for record in list(provider.requests)[2:])


def test_a_tool_of_another_role_is_refused(fresh):
    """Roles are kept to their tools in words, since LiteLLM takes no list as ``tool_choice``."""
    provider, own = fresh("openai"), session()
    ask_ = wrap(litellm.completion, own)
    place_ = place("openai", provider)
    with role("reader", conversation="t"):
        ask_(MODELS["openai"], messages("reader"), tools=[tool("read")], **place_)
    with role("writer", conversation="t"):
        answer = ask_(MODELS["openai"], messages("writer", "Look it up"), tools=[tool("write")], **place_)
    assert not answer.choices[0].message.tool_calls
    assert all("allowed_tools" not in str(record.json.get("tool_choice")) for record in provider.requests)


def test_messages_of_litellm_go_on_in_a_history(fresh):
    """Applications append the answer's own message object, and give a schema as a class."""

    class Verdict(BaseModel):
        good: bool

    provider, own = fresh("openai"), session()
    ask_ = wrap(litellm.completion, own)
    history = messages("critic")
    with role("critic", conversation="t"):
        answer = ask_(MODELS["openai"], history, **place("openai", provider))
        history += [answer.choices[0].message, {"role": "user", "content": "And now?"}]
        ask_(MODELS["openai"], history, response_format=Verdict, **place("openai", provider))
    assert not own.failures
    assert provider.requests[1].json["messages"][2]["role"] == "assistant"
    assert provider.requests[1].json["response_format"]["json_schema"]["name"] == "Verdict"


@pytest.mark.parametrize("vendor", VENDORS)
def test_calls_of_litellms_own_go_on_in_a_message_of_the_applications(fresh, vendor):
    """As many applications write the answer down: a dictionary that holds the calls as they came."""
    provider, own = fresh(vendor), session()
    function = litellm.types.utils.Function(name="read_log", arguments="{}")
    called = litellm.ChatCompletionMessageToolCall(id="t1", type="function", function=function)
    said = [
        *messages("critic"),
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "t1", "content": "found"},
    ]
    for name in ROLES:
        with role(name, conversation="t"):
            wrap(litellm.completion, own)(
                model=MODELS[vendor], messages=said, tools=[tool("read_log")], **place(vendor, provider)
            )
    assert own.failures == {}
    assert [call.layout for call in own.calls] == ["fork"] * len(ROLES)


@pytest.mark.parametrize(
    ("vendor", "model", "said"),
    [("anthropic", "anthropic/claude-sonnet-4-5", {}), ("openai", "deepseek/deepseek-chat", {"prefix": True})],
    ids=["told by its place", "told by a field"],
)
def test_an_answer_that_is_begun_stays_the_end_of_the_request(fresh, vendor, model, said):
    """The model goes on from it, and the application puts the two together."""
    provider, own = fresh(vendor), session()
    asked = [*messages("critic"), {"role": "assistant", "content": "It is", **said}]
    with role("critic"):
        wrap(litellm.completion, own)(model, asked, **place(vendor, provider))
    *_, told, last = (one.text for one in provider.requests[0].prompt.sections if one.kind == "text")
    assert last == "It is"
    assert "<role" in told
    assert own.failures == {}


def test_two_users_do_not_mix(fresh):
    """Asked at once on one session: nothing of one stands in the other's requests."""
    provider, own = fresh("openai"), session()
    acall = wrap(litellm.acompletion, own)

    async def user(name):
        with role("critic", conversation=name):
            await acall(MODELS["openai"], messages("critic", f"I am {name}."), **place("openai", provider))
            await acall(MODELS["openai"], messages("critic", f"I am {name}. Go on."), **place("openai", provider))

    async def both():
        await asyncio.gather(user("Anna"), user("Berta"))

    asyncio.run(both())
    assert not [record for record in provider.requests if b"Anna" in record.body and b"Berta" in record.body]
    assert {call.conversation for call in own.calls} == {"Anna", "Berta"}


@pytest.mark.parametrize("tenants", [True, False], ids=["tenants", "conversations"])
def test_nobody_is_shown_a_tool_that_came_with_anothers_call(fresh, tenants):
    """Tenants are children of one session and have a tool of one name; else each person has a conversation."""
    provider, own = fresh("openai"), session()
    for user, other in (("acme", "beta"), ("beta", "acme")) * 2:
        seen, house = len(provider.requests), tool("house" if tenants else f"house_{user}")
        house["function"]["description"] = f"Asks the house of {user}."
        ask_ = wrap(litellm.completion, own.child(user, scope=user) if tenants else own)
        for name, kit in (("planner", {"tools": [house]}), ("critic", {})):
            with role(name, conversation="one" if tenants else user):
                ask_(MODELS["openai"], messages(name), **place("openai", provider), **kit)
        shown = [record.body for record in provider.requests[seen:]]
        assert f"house of {user}".encode() in shown[0]
        assert not [body for body in shown if f"house of {other}".encode() in body]
    assert own.failures == {}


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
@pytest.mark.parametrize("name", ["completion", "acompletion"])
def test_the_shared_text_is_read_where_litellm_asks_the_responses_api(name):
    """LiteLLM drops the mark of a block that is spelled as in chat completions: each role paid the text anew."""
    own = session()
    with SimulatedProvider("openai-5.6") as provider:
        place = {"model": "openai/responses/gpt-5.6", "api_base": provider.openai_base_url, "api_key": "k"}
        call = wrap(getattr(litellm, name), own)
        for one in ("planner", "critic", "coder"):
            with role(one, instruction=f"You are the {one}."):
                answer = call(messages=messages(one), **place)
                if name == "acompletion":
                    asyncio.run(answer)
        reads = [record.outcome.read_tokens for record in provider.requests]
    assert {call.layout for call in own.calls} == {"fork"}
    assert min(reads[1:]) > 1_000
    assert not own.failures


@pytest.fixture(scope="module")
def named_answers():
    """Whoever asked the Responses API through this release may go on from its answer: it has the provider's id."""
    with SimulatedProvider("openai-5.6", Queue(["fine"])) as provider:
        place = {"model": "openai/responses/gpt-5.6", "api_base": provider.openai_base_url, "api_key": "k"}
        if not litellm.completion(messages=messages("planner"), **place).id.startswith("resp_"):
            pytest.skip("this release makes up the ids of answers of the Responses API, from which nobody can go on")


@pytest.mark.usefixtures("named_answers")
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
@pytest.mark.parametrize("calls", [False, True], ids=["", "calls"])
@pytest.mark.parametrize("how", ["whole", "stream", "left"])
def test_what_the_responses_api_keeps_behind_litellm_holds_no_role(how, calls):
    """LiteLLM asks it for some models and hands ``previous_response_id`` on: others would read a role's text there."""
    own, called = session(), Reply("So.", tool_calls=(ToolCall("look", {"at": 1}, id="c1"),) if calls else ())
    with SimulatedProvider("openai-5.6", Queue([called, "fine"])) as provider:
        place = {"model": "openai/responses/gpt-5.6", "api_base": provider.openai_base_url, "api_key": "k"}
        call = wrap(litellm.completion, own)
        with role("critic", instruction="You are the critic.", volatile={"time": "11:59"}):
            stream = how != "whole"
            first = call(messages=messages("planner"), tools=[tool("look")], stream=stream, **place)
            if stream:
                seen = [next(first)] if how == "left" else list(first)
                id_ = seen[0].id
                del first
            else:
                id_ = first.id
        result = {"role": "tool", "tool_call_id": "c1", "content": "seen"}
        said = result if calls and how != "left" else {"role": "user", "content": "and now?"}
        with role("coder", instruction="You are the coder."):
            call(
                messages=[{"role": "system", "content": f"Code.\n\n{HANDBOOK}"}, said],
                tools=[tool("look")], previous_response_id=id_, **place,
            )  # fmt: skip
        one, two = (record for record in provider.requests)
        read = ["\n".join(section.text for section in record.prompt.sections) for record in (one, two)]
    asked = messages("planner")[-1]["content"]
    assert "You are the critic." in read[0]
    assert not [word for word in ("You are the critic.", "11:59", "planner") if word in read[1].replace(asked, "")]
    assert all(read[1].count(word) == 1 for word in (asked, said["content"], "You are the coder.", "Code."))
    assert "So." in read[1]
    called = [item for item in two.json["input"] if item.get("type") == "function_call"]
    assert len(called) == (calls and how != "left")
    assert "previous_response_id" not in two.json
    assert own.failures == {}


def test_beside_what_was_cached_by_name_nothing_is_added_to_the_system_text():
    """Gemini refuses system text and tools there: what was cached has them. The role's text stands at the end."""
    own = session()
    with SimulatedProvider("gemini-explicit", Queue(["fine"])) as provider:
        cached = {"model": "models/gemini-2.5-flash", "contents": [{"role": "user", "parts": [{"text": HANDBOOK}]}]}
        url, headers = f"{provider.url}/v1beta", {"x-goog-api-key": "k"}
        name = httpx.post(f"{url}/cachedContents", json=cached, headers=headers).json()["name"]
        place = {"model": "gemini/gemini-2.5-flash", "api_base": url, "api_key": "k", "cached_content": name}
        for one in ("critic", "coder"):
            with role(one, instruction=f"I am the {one}.", volatile={"now": "11:59"}):
                wrap(litellm.completion, own)(messages=[{"role": "user", "content": "hello"}], **place)
        sent = [record.json for record in provider.requests]
    for body, one in zip(sent, ("critic", "coder"), strict=True):
        assert body.keys() == {"contents", "cachedContent"}
        said = "".join(part["text"] for content in body["contents"] for part in content["parts"])
        assert all(said.count(word) == 1 for word in ("hello", f"I am the {one}.", "11:59"))
        assert "every statement" not in said
    assert [one.reason.why for one in own.report().layouts] == ["kept_by_provider"] * 2
    assert own.failures == {}


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
def test_an_answer_of_another_process_is_gone_on_from_as_it_was_asked():
    """What this session adds is in the instructions, which are for one request alone."""
    own = session()
    with SimulatedProvider("openai-5.6", Queue(["fine"])) as provider:
        place = {"model": "openai/responses/gpt-5.6", "api_base": provider.openai_base_url, "api_key": "k"}
        kept = {"model": "gpt-5.6", "input": "hello"}
        first = httpx.post(f"{provider.openai_base_url}/responses", json=kept, headers={"authorization": "Bearer k"})
        with role("critic", instruction="You are the critic.", volatile={"time": "11:59"}):
            asked = [{"role": "user", "content": "and now?"}]
            wrap(litellm.completion, own)(messages=asked, previous_response_id=first.json()["id"], **place)
        sent = provider.requests[-1].json
    assert sent["previous_response_id"] == first.json()["id"]
    assert all(word in sent["instructions"] for word in ("You are the critic.", "11:59", HANDBOOK.strip()))
    assert len(sent["input"]) == 1
    assert [one.reason.why for one in own.report().layouts] == ["kept_by_provider"]


def test_a_provider_of_unknown_rules_is_left_alone(fresh):
    """Its requests go out as they were asked, and the report says why."""
    provider, own = fresh("openai"), session()
    with role("critic"), pytest.warns(CacheprefixProfileWarning):
        wrap(litellm.completion, own)("custom_openai/house-model", messages("critic"), **place("openai", provider))
    assert [one.why for one in own.calls[0].reasons] == ["rules_unknown"]
    assert provider.requests[0].json["messages"] == messages("critic")


@pytest.mark.parametrize("guarded", [True, False])
def test_what_bedrocks_guardrail_judges_is_what_it_judged_without_us(guarded):
    """It judges what users say and no system text, so that a role's text may not stand among that."""
    guard = {"guardrailConfig": {"guardrailIdentifier": "g", "guardrailVersion": "1"}} if guarded else {}
    known = {"aws_access_key_id": "k", "aws_secret_access_key": "k", "aws_region_name": "us-east-1", **guard}
    with SimulatedProvider("auto") as provider:
        at, own = {"aws_bedrock_runtime_endpoint": provider.url}, session()
        model = "bedrock/converse/us.anthropic.claude-sonnet-4-5-20250929-v1:0"
        litellm.completion(model, messages("critic"), **known, **at)
        for name in ("planner", "critic"):
            with role(name):
                wrap(litellm.completion, own)(model, messages(name), **known, **at)
        bodies = [record.json for record in provider.requests]
    assert (bodies[2] == bodies[0]) == guarded
    assert {call.layout for call in own.calls} == {"own" if guarded else "fork"}
    assert own.failures == {}


def test_errors_are_the_applications_and_ours_are_nobodys(fresh, monkeypatch):
    """What the provider refuses reaches the caller; a fault of ours sends the request as it was asked."""
    provider, own = fresh("openai"), session()
    ask_ = wrap(litellm.completion, own)
    refusing = SimulatedProvider("openai-5.6", lambda request: Reply(fault=Fault(status=400)))
    with refusing, role("critic"), pytest.raises(litellm.BadRequestError):
        ask_(MODELS["openai"], messages("critic"), **place("openai", refusing))
    assert not own.calls
    monkeypatch.setattr("cacheprefix_litellm.calls._read", lambda *_: 1 / 0)
    with role("critic"), pytest.warns(UserWarning, match="body"):
        ask_(MODELS["openai"], messages("critic"), **place("openai", provider))
    assert provider.requests[0].json["messages"] == messages("critic")
    assert own.failures["body"] == 1


_SAID = [{"role": "user", "content": "hello"}]


@pytest.mark.invalid_requests
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"messages": None},
        {"messages": "hello"},
        {"messages": [1]},
        {"messages": [{"role": 5, "content": "hello"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": [5]}]},
        {"messages": [*_SAID, {"role": "assistant", "tool_calls": "x"}]},
        {"messages": [*_SAID, {"role": "assistant", "tool_calls": [5]}]},
        {"messages": [*_SAID, {"role": "assistant", "tool_calls": [{"function": 5}]}]},
        {"messages": _SAID, "tools": 5},
        {"messages": _SAID, "tools": [5]},
        {"messages": _SAID, "model": None},
        {"messages": [UserDict(_SAID[0])]},
        {"messages": [MappingProxyType(_SAID[0])]},
        {"messages": _SAID, "response_format": int},
    ],
    ids=str,
)
def test_what_is_no_request_is_the_applications_error_and_no_failure_of_ours(fresh, asked):
    """It meets LiteLLM as without us."""
    provider, own = fresh("openai"), session()
    said = []
    for call in (litellm.completion, wrap(litellm.completion, own, role="critic")):
        with pytest.raises(Exception) as raised:
            call(**{"model": MODELS["openai"], **place("openai", provider), **asked})
        said.append((raised.type, str(raised.value)))
    assert said[0] == said[1]
    assert own.failures == {}


def test_a_conversation_without_a_role_is_refused():
    """It would be dropped: calls without a role belong to none."""
    with pytest.raises(SetupError, match="role="):
        wrap(litellm.completion, session(), conversation="alice")
    with pytest.raises(SetupError, match="role="), install(session(), conversation="alice"):
        pass


@pytest.mark.parametrize("named", [{"role": 5}, {"role": b"a"}, {"conversation": 5}, {"conversation": lambda: "a"}])
def test_a_role_or_a_conversation_that_is_no_text_is_refused(named):
    """Each request would fail by it."""
    said = {"role": "critic", **named}
    for begin in (wrap, lambda _, own, **more: install(own, **more).__enter__(), lambda *_, **more: _block(**more)):
        with pytest.raises(SetupError, match=rf"{next(iter(named))} is a text, found .*use str"):
            begin(litellm.completion, session(), **said)


def _block(*, role: object, **named):
    with block(role, **named):
        pass


def test_only_litellms_own_can_be_wrapped():
    """The hook of ``cacheprefix.wrap`` leaves the rest to other adapters."""
    with pytest.raises(SetupError, match="Router"):
        wrap(print)
    assert cacheprefix_wrap(litellm.completion, session()).__name__ == "completion"
    assert cacheprefix_wrap(print, session()) is None


@pytest.mark.parametrize("name", ["completion", "acompletion"])
def test_litellms_functions_are_pickled_by_their_names(name):
    """A pool's worker is given one by name; there it is LiteLLM's own, unless that process wraps too."""
    wrap(litellm.completion, session())
    held = getattr(litellm, name)
    assert held is not getattr(litellm.main, name)
    assert pickle.loads(pickle.dumps(held)) is held
    assert pickle.loads(pickle.dumps(getattr(litellm.main, name))) is getattr(litellm.main, name)
    assert wrap(held, session()) is not held


@pytest.mark.parametrize("hit", [True, False])
def test_an_answer_of_litellms_own_cache_is_no_call(monkeypatch, hit):
    """No provider was asked, and none failed to answer."""
    answer = litellm.ModelResponse()
    answer._hidden_params["cache_hit"] = hit
    # The request is read by LiteLLM's own parameters.
    monkeypatch.setitem(calls._OWN, "completion", wraps(litellm.completion)(lambda *given, **named: answer))
    own = session()
    with role("critic", conversation="t"):
        assert wrap(litellm.completion, own)(MODELS["openai"], messages("critic")) is answer
    assert (len(own.calls), own.report().unanswered) == (0 if hit else 1, 0)


@pytest.mark.parametrize(("pattern", "api"), [("function", "openai"), ("router", "anthropic")])
def test_the_example_runs_offline_in_both_layouts(monkeypatch, capsys, pattern, api):
    """The report of each layout is JSON, and the shared one is the cheaper."""
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "MODEL"):
        monkeypatch.delenv(variable, raising=False)
    cost = {}
    for layout in ("unmodified", "shared"):
        monkeypatch.setattr(sys, "argv", ["team", "--layout", layout, "--pattern", pattern, "--api", api, "--json"])
        runpy.run_path(str(ROOT / "examples" / "litellm" / "team.py"), run_name="__main__")
        report = json.loads(capsys.readouterr().out)["report"]
        assert report["failures"] == {}
        assert report["total"]["calls"] == 6
        cost[layout] = report["total"]["cost_units"]
    assert cost["shared"] < 0.7 * cost["unmodified"]


@pytest.mark.parametrize("stream", [False, True], ids=["arguments", "stream"])
def test_what_fails_around_a_call_leaves_it_as_it_was_asked(fresh, monkeypatch, stream):
    """What LiteLLM is given, and its stream; each failure is counted."""
    provider, own = fresh("openai"), session()
    place = (calls.adapter, "watched_stream") if stream else (litellm, "get_supported_openai_params")
    monkeypatch.setattr(*place, lambda *_, **__: {}["gone"])
    with pytest.warns(CacheprefixWarning):
        answers = ask("openai", provider, wrap(litellm.completion, own), stream=stream)
    if not stream:
        assert [record.json["messages"] for record in provider.requests] == [messages(name) for name in ROLES]
    assert len(answers) == len(provider.requests) == 3
    assert own.failures == {"stream" if stream else "body": 3}


def test_a_router_that_threads_wrap_at_once_is_wrapped_once(fresh):
    """Each of a server's threads wraps it for its request; what one derived from another's asked itself for ever."""
    own, router = session(), router_for(("openai", fresh("openai")))
    plain, threads, before = type(router), 4, sys.getswitchinterval()
    together = Barrier(threads)

    def wraps(_):
        together.wait()
        wrap(router, own)

    try:
        with ThreadPoolExecutor(threads) as pool:
            sys.setswitchinterval(1e-6)
            for _ in range(40):
                list(pool.map(wraps, range(threads)))
                unwrap(router)
                assert type(router) is plain
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize(("vendor", "hook"), [("openai", "made"), ("anthropic", "made"), ("openai", "sent")])
async def test_what_a_callback_writes_into_the_tools_of_a_request_is_on_the_wire_of_no_other(
    fresh, vendor, hook, monkeypatch
):
    """Another role asks, and each for another user. Anthropic's form of the tools LiteLLM makes anew for each."""
    provider, own = fresh(vendor), session()

    class Noting(litellm.integrations.custom_logger.CustomLogger):
        async def async_pre_call_deployment_hook(self, kwargs, call_type):
            if hook == "made" and not provider.requests:
                note(kwargs["tools"])

        def log_pre_api_call(self, model, messages, kwargs):
            if hook == "sent" and not provider.requests:
                note(kwargs["additional_args"]["complete_input_dict"]["tools"])

    ways = ("input_callback", "success_callback", "failure_callback")
    for name in ("callbacks", *ways, *map("_async_{}".format, ways)):
        # LiteLLM puts what stands in the first of them into the others.
        monkeypatch.setattr(litellm, name, [Noting()] if name == "callbacks" else [])
    call = wrap(litellm.acompletion, own)
    for name, whose in (("planner", "Ann"), ("critic", "Ann"), ("critic", "Ben"), ("planner", "Ben")):
        with role(name, conversation=whose):
            await call(model=MODELS[vendor], messages=messages(name), tools=[tool("look")], **place(vendor, provider))
    assert noted(provider) == [True, False, False, False]
    assert [each.layout for each in own.calls] == ["fork"] * 4
