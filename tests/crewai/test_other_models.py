"""Model classes whose requests are left as they are, and compatible ones that are laid out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import openai
import pytest
from crew_wire import INPUTS, heads, outputs, prompts, raw

from benchmarks.crewai_workloads import agents, crew, tasks
from cacheprefix import Caching, Session
from cacheprefix.profiles import cost_units, normalise_usage
from cacheprefix.server import Reply
from cacheprefix_crewai import install

NATIVE = ("gemini", "bedrock", "snowflake")


def native(provider: str, server: Any, llm: Any) -> Any:
    """A model class that stands where CrewAI keeps a provider's; it asks ``server`` through ``llm``'s client."""
    from crewai.llms.base_llm import BaseLLM

    class Native(BaseLLM):
        """As CrewAI's own: a ``call``, and a client that nobody else knows."""

        def call(self, messages: Any, *_: Any, **__: Any) -> str:
            """One answer."""
            plain = [{key: one[key] for key in ("role", "content")} for one in messages]
            answer = llm._get_sync_client().chat.completions.create(model="native", messages=plain)
            return str(answer.choices[0].message.content)

    Native.__module__ = f"crewai.llms.providers.{provider}.completion"
    Native.__qualname__ = f"{provider.title()}Completion"
    return Native(model="native")


@pytest.mark.parametrize("provider", NATIVE)
def test_native_models_without_a_layout_are_left_alone_and_named_once(servers, new_llm, provider) -> None:
    """Gemini's, Bedrock's and anyone's class: every byte as it was, one note, and no word per request."""
    server = servers("openai")
    plain_llm = new_llm(server)
    who = agents(lambda: native(provider, server, plain_llm), tools=False)
    team = crew(who, tasks(who))
    expected = outputs(team.kickoff(inputs=INPUTS))
    before = raw(server)
    server.reset()
    session = Session()
    with install(team, session):
        assert outputs(team.kickoff(inputs=INPUTS)) == expected
    assert raw(server) == before
    assert session.calls == ()
    assert session.failures == {}
    notes = [note for note in session.report().notes if "neither changed nor measured" in note]
    assert len(notes) == 1
    assert f"crewai.llms.providers.{provider}.completion" in notes[0]


def test_a_crew_of_several_providers_shares_what_it_can(servers, new_llm) -> None:
    """Two agents on OpenAI's class are forks, the third is left alone, and the work is the same."""
    server = servers("openai")
    llm = new_llm(server)
    who = agents(lambda: llm, tools=False)
    who[1].llm = native("gemini", server, llm)
    team = crew(who, tasks(who))
    expected = outputs(team.kickoff(inputs=INPUTS))
    server.reset()
    with install(team) as installed:
        assert outputs(team.kickoff(inputs=INPUTS)) == expected
    sent = prompts(server)
    forks = [one for one in sent if one.model != "native"]
    assert len(forks) == 2
    assert len(heads(forks)) == 1
    assert len(installed.session.calls) == 2


def test_servers_that_speak_openais_api_are_laid_out(servers) -> None:
    """CrewAI's class for compatible providers is OpenAI's with another name: its requests are forks."""
    from crewai import LLM

    server = servers("openai")
    llm = LLM(model="deepseek/deepseek-chat", base_url=server.openai_base_url, api_key="any")
    who = agents(lambda: llm, tools=False)
    team = crew(who, tasks(who))
    with install(team, Session(caching=Caching(provider="openai"))) as installed:
        team.kickoff(inputs=INPUTS)
    assert len(heads(prompts(server))) == 1
    assert len(installed.session.calls) == 3


@pytest.mark.invalid_requests
@pytest.mark.parametrize("mode", ["observe", "fork"])
def test_reasoning_that_a_model_goes_on_from_stays_in_front_and_is_read(servers, new_llm, mode) -> None:
    """The SDK's own objects stand in the body; the provider refuses reasoning in front of a question, as without us."""

    def sent(install_on: Callable[[Any], Any]) -> list[Any]:
        server = servers("openai", lambda _: Reply("Yes.", thinking="Hm."))
        llm = new_llm(server, "responses", auto_chain_reasoning=True)
        who = agents(lambda: llm, tools=False)
        with install_on(team := crew(who, tasks(who))), pytest.raises(openai.BadRequestError):
            team.kickoff(inputs=INPUTS)
        return [record.json for record in server.requests]

    session = Session(mode=mode, caching=Caching(provider="openai"))
    plain, ours = sent(contextlib.nullcontext), sent(lambda team: install(team, session))
    assert plain[1]["input"][0]["type"] == "reasoning"
    keys = {one.pop("prompt_cache_key", None) for one in ours}
    assert (keys == {None}) is (mode == "observe")
    assert ours == plain
    assert session.failures == {}
    assert all(one.reason.why in ("own_history", "observe_mode") for one in session.report().layouts)


@pytest.mark.parametrize("volatile", ["", "It is noon."], ids=["", "volatile"])
def test_what_the_provider_keeps_holds_no_agents_text(servers, new_llm, volatile) -> None:
    """Agents of one chained model go on from what others were asked: only CrewAI's own words stay there."""
    server = servers("openai")
    llm, said = new_llm(server, "responses", auto_chain=True), {"time": volatile} if volatile else {}
    who = agents(lambda: llm, tools=False)
    team = crew(who, tasks(who))
    with install(
        team, Session("The team's handbook.", caching=Caching(provider="openai")), volatile=lambda: said
    ) as installed:
        team.kickoff(inputs=INPUTS)
    asked = [record.json for record in server.requests]
    assert [one.get("previous_response_id") is not None for one in asked] == [False, True, True]
    for one, agent in zip(asked, who, strict=True):
        assert agent.backstory in one["instructions"]
        assert "The team's handbook." in one["instructions"]
        assert volatile in one["instructions"]
        assert not [other for other in who if other.backstory in str(one["input"])]
        assert not volatile or volatile not in str(one["input"])
    assert any(one.reason.why == "kept_by_provider" for one in installed.session.report().layouts)
    assert installed.session.failures == {}


def azure(server: Any, **options: Any) -> Any:
    """CrewAI's own class for a deployment on Azure."""
    from crewai import LLM

    endpoint = f"{server.url}/openai/deployments/gpt-5"
    return LLM(model="azure/gpt-5", endpoint=endpoint, api_key="any", api_version="2024-10-21", **options)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("tools", [False, True], ids=["bare", "tools"])
def test_azures_own_class_is_laid_out_and_measured(servers, stream, tools) -> None:
    """Its SDK's objects and arguments stand for the body that goes out: one shared beginning, and the usage is read."""
    server = servers("openai")
    who = agents(lambda: azure(server, stream=stream), tools=tools)
    team = crew(who, tasks(who))
    expected = outputs(team.kickoff(inputs=INPUTS))
    plain = raw(server)
    server.reset()
    with install(team, Session(mode="observe", caching=Caching(provider="openai"))) as installed:
        assert outputs(team.kickoff(inputs=INPUTS)) == expected
    assert raw(server) == plain
    assert all(call.usage.reported for call in installed.session.calls)
    server.reset()
    with install(team, Session(caching=Caching(provider="openai"))) as installed:
        assert outputs(team.kickoff(inputs=INPUTS)) == expected
    assert len(heads(prompts(server))) == 1
    assert len(installed.session.calls) == len(server.requests)
    assert all(call.usage.reported for call in installed.session.calls)
    assert installed.session.failures == {}


def gemini(server: Any, **options: Any) -> Any:
    """CrewAI's own class for Gemini."""
    from crewai import LLM

    where = {"http_options": {"base_url": server.url}}
    return LLM(model="gemini/gemini-2.5-flash", api_key="any", client_params=where, **options)


def bedrock(server: Any, **options: Any) -> Any:
    """CrewAI's own class for Bedrock, asking for Claude."""
    from crewai import LLM

    known = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "region_name": "us-east-1"}
    model = "bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0"
    return LLM(model=model, **known, **options)


NATIVES = {"gemini": gemini, "bedrock": bedrock}


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("tools", [False, True], ids=["bare", "tools"])
@pytest.mark.parametrize("name", NATIVES)
def test_geminis_and_bedrocks_own_classes_are_laid_out_and_measured(servers, monkeypatch, name, stream, tools) -> None:
    """What their SDKs are given stands for the body: observed byte for byte, forked with one beginning, for less."""
    server, new = servers("auto"), NATIVES[name]
    monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", server.url)
    who = agents(lambda: new(server, stream=stream), tools=tools)
    team = crew(who, tasks(who))
    expected = outputs(team.kickoff(inputs=INPUTS))
    plain, cost = raw(server), units(server)
    server.reset()
    with install(team, Session(mode="observe")) as installed:
        assert outputs(team.kickoff(inputs=INPUTS)) == expected
    assert raw(server) == plain
    assert [call.usage.reported for call in installed.session.calls] == [True] * len(plain)
    server.reset()
    with install(team, Session(), volatile=lambda: {"now": "It is noon."}) as installed:
        assert outputs(team.kickoff(inputs=INPUTS)) == expected
    assert not [record.error for record in server.requests if record.status != 200]
    assert len(heads(prompts(server))) == 1
    assert all("It is noon." in one.sections[-1].text for one in prompts(server))
    assert len(installed.session.calls) == len(server.requests)
    assert all(call.usage.reported and call.layout == "fork" for call in installed.session.calls)
    assert units(server) < 0.95 * cost
    assert installed.session.failures == {}


def test_what_bedrocks_guardrail_judges_is_what_it_judged_without_us(servers, monkeypatch) -> None:
    """It judges what users say and no system text, so that a role's text may not stand among that."""
    server = servers("auto")
    monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", server.url)
    guarded = {"guardrail_config": {"guardrailIdentifier": "g", "guardrailVersion": "1"}}
    who = agents(lambda: bedrock(server, **guarded), tools=False)
    team = crew(who, tasks(who))
    team.kickoff(inputs=INPUTS)
    plain = raw(server)
    server.reset()
    with install(team, Session()) as installed:
        team.kickoff(inputs=INPUTS)
    assert raw(server) == plain
    assert {(call.layout, call.reasons[-1].name) for call in installed.session.calls} == {("own", "guardrail_config")}


def units(server: Any) -> float:
    """What the requests cost, by the server's own rules."""
    rules = server.simulator.profile_for
    return sum(cost_units(normalise_usage(one.usage, one.api), rules(one.model, one.api)) for one in server.requests)


def test_a_temperature_reaches_anthropic(servers, new_llm) -> None:
    """With the SDK that the adapter's extra installs, which is CrewAI's own."""
    server = servers("anthropic")
    llm = new_llm(server, "anthropic", temperature=0.3)
    who = agents(lambda: llm, tools=False)
    with install(crew(who, tasks(who)), Session()) as installed:
        llm.call("Are you there?")
    assert [record.json["temperature"] for record in server.requests] == [0.3]
    assert installed.session.failures == {}


def narrower(shape: str) -> Any:
    """An application's own class of CrewAI's for OpenAI, whose ``call`` and ``acall`` take less than those."""
    from crewai.llms.providers.openai.completion import OpenAICompletion

    def asked(llm: Any, messages: Any) -> str:
        plain = [{key: one[key] for key in ("role", "content")} for one in messages]
        answer = llm._get_sync_client().chat.completions.create(model=llm.model, messages=plain)
        return str(answer.choices[0].message.content)

    async def aasked(llm: Any, messages: Any) -> str:
        plain = [{key: one[key] for key in ("role", "content")} for one in messages]
        answer = await llm._get_async_client().chat.completions.create(model=llm.model, messages=plain)
        return str(answer.choices[0].message.content)

    class ByKeyword(OpenAICompletion):
        """All but the messages and two more by keyword."""

        def call(self, messages: Any, tools: Any = None, callbacks: Any = None, **_: Any) -> str:
            """One answer."""
            return asked(self, messages)

        async def acall(self, messages: Any, tools: Any = None, callbacks: Any = None, **_: Any) -> str:
            """One answer, later."""
            return await aasked(self, messages)

    class OtherOrder(OpenAICompletion):
        """Callbacks stand where CrewAI has tools."""

        def call(self, messages: Any, callbacks: Any = None, from_agent: Any = None, **_: Any) -> str:
            """One answer."""
            assert callbacks is None or isinstance(callbacks, list)
            return asked(self, messages)

        async def acall(self, messages: Any, callbacks: Any = None, from_agent: Any = None, **_: Any) -> str:
            """One answer, later."""
            assert callbacks is None or isinstance(callbacks, list)
            return await aasked(self, messages)

    class MessagesOnly(OpenAICompletion):
        """Nothing else, as an application calls it itself."""

        def call(self, messages: Any) -> str:  # type: ignore[override]
            """One answer."""
            return asked(self, messages)

        async def acall(self, messages: Any) -> str:  # type: ignore[override]
            """One answer, later."""
            return await aasked(self, messages)

    return {"by keyword": ByKeyword, "other order": OtherOrder, "messages only": MessagesOnly}[shape]


@pytest.mark.parametrize("mode", ["observe", "fork"])
@pytest.mark.parametrize("shape", ["by keyword", "other order"])
def test_a_subclass_whose_call_takes_less_is_called_as_it_was(servers, shape, mode) -> None:
    """CrewAI's arguments come as they came, and what it asks past CrewAI's class goes out so; the report says it."""
    server = servers("openai")
    llm = narrower(shape)(model="gpt-5", base_url=server.openai_base_url, api_key="any")
    who = agents(lambda: llm, tools=False)
    team = crew(who, tasks(who))
    expected = outputs(team.kickoff(inputs=INPUTS))
    before = raw(server)
    server.reset()
    with install(team, Session(mode=mode)) as installed:
        assert outputs(team.kickoff(inputs=INPUTS)) == expected
    assert raw(server) == before
    assert any("its own call answers without CrewAI's" in note for note in installed.session.report().notes)
    assert installed.session.failures == {}


@pytest.mark.parametrize("mode", ["observe", "fork"])
def test_a_subclass_that_takes_messages_only_still_answers(servers, mode) -> None:
    """Asked by the application itself, by position and by name."""
    server = servers("openai")
    llm = narrower("messages only")(model="gpt-5", base_url=server.openai_base_url, api_key="any")
    who = agents(lambda: llm, tools=False)
    asked = [{"role": "user", "content": "Are you there?"}]
    expected = llm.call(asked)
    with install(crew(who, tasks(who)), Session(mode=mode)) as installed:
        assert llm.call(asked) == llm.call(messages=asked) == expected
    assert installed.session.failures == {}


@pytest.mark.parametrize("mode", ["observe", "fork"])
@pytest.mark.parametrize("shape", ["by keyword", "other order", "messages only"])
def test_a_subclass_whose_acall_takes_less_still_answers(servers, shape, mode) -> None:
    """As the application asks it: by position, by name, and as an agent of the crew's where it takes that."""
    server = servers("openai")
    llm = narrower(shape)(model="gpt-5", base_url=server.openai_base_url, api_key="any")
    who = agents(lambda: llm, tools=False)
    asked = [{"role": "user", "content": "Are you there?"}]
    more = {} if shape == "messages only" else {"callbacks": [], "from_agent": who[0], "available_functions": None}

    async def run() -> list[Any]:
        server.reset()
        answers = [await llm.acall(asked), await llm.acall(messages=asked, **more)]
        return [answers, raw(server)]

    async def both() -> None:
        plain = await run()
        with install(crew(who, tasks(who)), Session(mode=mode)) as installed:
            assert await run() == plain
        assert installed.session.failures == {}

    asyncio.run(both())
