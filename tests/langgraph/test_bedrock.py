"""LangChain's class for Amazon Bedrock, with a real boto3 client against the simulated provider."""

import asyncio
import copy
import warnings
from unittest.mock import MagicMock

import pytest

pytest.importorskip("langchain_aws", reason="it asks for a newer langchain-core than the adapter does")

from langchain.agents import create_agent
from langchain_aws import ChatBedrockConverse
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import ConfigurableField
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from cacheprefix import Caching, Gate, Session, SharedPrefix, preview
from cacheprefix.profiles import cost_units, normalise_usage
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Latency, Reply, Rule, Rules, ToolCall
from cacheprefix.wire import structure_errors
from cacheprefix_langgraph import PrefixMiddleware, forked, wrap_model
from cacheprefix_langgraph.model import shadow
from tests.langgraph.test_gate import WORKERS, fan, go

HANDBOOK = "The handbook says that every statement needs a source. " * 120
ROLES = {"planner": "You plan.", "critic": "You criticise.", "writer": "You write."}
BEGIN = HumanMessage("Please begin.", id="h")
CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
CLIENTS = {}
"""boto3's, by the server that they ask: making one takes longer than the requests of a test."""
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(64))
POINT = {"cachePoint": {"type": "default"}}
"""What ends a part that is to be cached."""


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word}: a word"


@tool
def count(text: str) -> str:
    """Count the words of a text."""
    return str(len(text.split()))


class Plan(BaseModel):
    """A plan."""

    steps: list[str]


@pytest.fixture
def provider(servers):
    """The provider, with Bedrock's rules."""
    return servers("bedrock")


def claude(server, kind=ChatBedrockConverse, **options):
    """The application's model."""
    known = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "region_name": "us-east-1"}
    known |= CLIENTS.get(server.url, {})
    made = kind(**{"model": CLAUDE, "endpoint_url": server.url, **known, **options})
    if "client" not in options:
        CLIENTS.setdefault(server.url, {"client": made.client, "bedrock_client": made.bedrock_client})
    return made


def new_session(**options):
    """A session with the handbook, and tools."""
    prefix = SharedPrefix(system=HANDBOOK, tools=options.pop("tools", [look_up, count]))
    return Session(prefix, caching=Caching(counter=ESTIMATE), **options)


def said(role):
    """A role's system message as applications write it."""
    return SystemMessage(f"{ROLES[role]}\n\n{HANDBOOK}")


async def astreamed(model, given):
    """An answer that is streamed, put together."""
    chunks = [chunk async for chunk in model.astream(given)]
    return sum(chunks[1:], chunks[0])


def streamed(model, given):
    """An answer that is streamed, put together."""
    chunks = list(model.stream(given))
    return sum(chunks[1:], chunks[0])


WAYS = {
    "invoke": lambda model, given: model.invoke(given),
    "ainvoke": lambda model, given: asyncio.run(model.ainvoke(given)),
    "stream": streamed,
    "astream": lambda model, given: asyncio.run(astreamed(model, given)),
}


def team(model, session=None, way="invoke", *, roles=ROLES, **options):
    """Three roles, one after the other, each with its own words and then what all share; the second binds a tool."""
    graph, before = StateGraph(MessagesState), START
    for role in roles:
        bound = model.bind_tools([look_up]) if role == "critic" else model

        def node(state, role=role, bound=bound):
            return {"messages": [WAYS[way](bound, [said(role), *state["messages"]])]}

        graph.add_node(role, node if session is None else forked(session, role=role, **options)(node))
        graph.add_edge(before, role)
        before = role
    return graph.compile()


def units(provider):
    """What the requests cost, by the server's own rules."""
    rules = provider.simulator.profile_for
    return sum(cost_units(normalise_usage(one.usage, one.api), rules(one.model, one.api)) for one in provider.requests)


def sent(provider):
    """The bodies, none of which was refused, and none of which Bedrock would refuse."""
    assert not [one.error for one in provider.requests if one.status != 200]
    bodies = [one.json for one in provider.requests]
    assert [list(structure_errors(body, "bedrock")) for body in bodies] == [[]] * len(bodies)
    return bodies


@pytest.mark.parametrize("way", WAYS)
def test_a_team_costs_half(provider, way):
    """Forked the answers are the same and cost half; observed the very same bytes go out."""
    provider.simulator.script = Rules([Rule(text, Reply(f"As said: {text}"), anywhere=True) for text in ROLES.values()])
    plain = team(claude(provider), way=way).invoke({"messages": [BEGIN]})["messages"]
    before, cost = [one.body for one in provider.requests], units(provider)
    provider.reset()
    watching = new_session(mode="observe")
    team(wrap_model(claude(provider), watching), watching, way).invoke({"messages": [BEGIN]})
    assert [one.body for one in provider.requests] == before
    assert [call.usage.reported for call in watching.calls] == [True] * 3
    provider.reset()
    session = new_session()
    forks = team(wrap_model(claude(provider), session), session, way).invoke({"messages": [BEGIN]})["messages"]
    assert [one.text for one in forks] == [one.text for one in plain]
    assert units(provider) < 0.52 * cost
    first, _, last = bodies = sent(provider)
    assert [one["system"] for one in bodies] == [[{"text": HANDBOOK}, POINT]] * 3
    assert [one["toolConfig"] for one in bodies] == [first["toolConfig"]] * 3
    # Each answer is a block of its own, so that the end of what was cached stands behind a whole one.
    assert [block for block in last["messages"][1]["content"] if block != POINT] == [
        {"text": forks[1].text},
        {"text": forks[2].text},
    ]
    assert [one.outcome.read_tokens > 1_200 for one in provider.requests] == [False, True, True]
    assert {call.layout for call in session.calls} == {"fork"}
    assert [call.usage.cache_read_tokens for call in session.calls] == [
        one.outcome.read_tokens for one in provider.requests
    ]
    assert session.failures == watching.failures == {}


@pytest.mark.parametrize("way", ["invoke", "stream"])
def test_siblings_hear_whether_their_leader_streams(provider, monkeypatch, way):
    """They go on with its first words then, and with its end where it answers as a whole."""
    session, told = new_session(), []
    kind = type(session.adapter.waiting)
    queue = kind.queue

    def noting(self, *args, streams, **known):
        told.append(streams)
        return queue(self, *args, streams=streams, **known)

    monkeypatch.setattr(kind, "queue", noting)
    team(wrap_model(claude(provider), session), session, way).invoke({"messages": [BEGIN]})
    assert told == [way == "stream"] * 3


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_siblings_follow_one_leader(provider, later):
    """The shared part is written once; the answers come whole."""
    provider.simulator.latency = Latency(base=0.2, uncached=0, cached=0, output=0, scale=1)
    session = new_session(gate=Gate(price=0.0))
    go(fan(wrap_model(claude(provider), session), session, later=later), later)
    assert len(sent(provider)) == WORKERS
    assert sorted(one.outcome.read_tokens > 1_200 for one in provider.requests) == [False] + [True] * (WORKERS - 1)
    assert {one.path.rpartition("/")[2] for one in provider.requests} == {"converse"}
    assert session.failures == {}


def test_an_agent_with_tools(provider):
    """A loop of tool calls, in which each request reads the one before."""

    def script():
        called = Reply(tool_calls=(ToolCall("look_up", {"word": "fork"}, id="c1"),))
        return Rules([Rule("a word", Reply("Done."), anywhere=True), Rule("begin", called, anywhere=True)])

    provider.simulator.script = script()
    options = {"tools": [look_up], "system_prompt": said("planner").text}
    plain = create_agent(claude(provider), **options).invoke({"messages": [BEGIN]})["messages"]
    provider.reset()
    provider.simulator.script = script()
    session = new_session()
    session.adapter.join("critic")
    agent = create_agent(claude(provider), **options, middleware=[PrefixMiddleware(session, role="planner")])
    forks = agent.invoke({"messages": [BEGIN]})["messages"]
    assert [(one.type, one.text) for one in forks] == [(one.type, one.text) for one in plain]
    first, second = sent(provider)
    assert provider.requests[1].outcome.read_tokens > 1_200
    # It is kept to its own tool in words: another ``toolChoice`` would void the cached messages.
    assert "toolChoice" not in second["toolConfig"]
    assert "Tools you may use in this role: look_up." in str(first["messages"])
    assert session.failures == {}


def test_structured_answers(provider):
    """By function calling a schema is a tool that must be called; by ``json_schema`` it is another prompt."""
    provider.simulator.script = Rules([])
    session = new_session()
    model = wrap_model(claude(provider), session)
    by_tool = model.with_structured_output(Plan, include_raw=True)
    by_schema = model.with_structured_output(Plan, include_raw=True, method="json_schema")

    @forked(session, role="planner")
    def planner(state):
        by_tool.invoke([said("planner"), *state["messages"]])

    @forked(session, role="writer")
    def writer(state):
        by_schema.invoke([said("writer"), *state["messages"]])

    for node in (planner, writer):
        node({"messages": [BEGIN]})
    whys = [call.reasons[0].why for call in session.calls]
    assert whys == ["forced_tool", "response_schema"]
    assert provider.requests[1].json["outputConfig"]
    assert session.failures == {}


@pytest.mark.parametrize(
    "setting",
    [
        {"raw_blocks": [{"role": "user", "content": [{"text": "Raw."}]}]},
        {"guardrail_config": {"guardrailIdentifier": "g", "guardrailVersion": "1"}},
        {"guardrail_config": {"guardrailIdentifier": "g", "guardrailVersion": "1"}, "guard_last_turn_only": True},
    ],
    ids=["raw", "guarded", "guarded last"],
)
def test_what_only_the_application_can_word_stays_its_own(provider, setting):
    """Raw blocks stand in the place of all messages, and a guardrail judges what stands among a user's."""
    team(claude(provider, **setting)).invoke({"messages": [BEGIN]})
    before = [one.body for one in provider.requests]
    provider.reset()
    session = new_session()
    team(wrap_model(claude(provider, **setting), session), session).invoke({"messages": [BEGIN]})
    assert [one.body for one in provider.requests] == before
    assert {(call.layout, call.reasons[-1].why) for call in session.calls} == {("own", "own_prompt")}
    assert session.failures == {}


def test_a_guardrail_of_one_request_alone_is_heeded_too(provider):
    """Given where the model is asked."""
    session = new_session()
    model = wrap_model(claude(provider), session)

    @forked(session, role="planner")
    def planner(state):
        given = [said("planner"), *state["messages"]]
        model.invoke(given, guardrail_config={"guardrailIdentifier": "g", "guardrailVersion": "1"})

    session.adapter.join("critic")
    planner({"messages": [BEGIN]})
    assert provider.requests[0].json["system"] == [{"text": said("planner").text}]
    assert session.calls[0].reasons[-1].why == "own_prompt"


def test_an_answer_that_the_application_has_begun_is_gone_on_with(provider):
    """``prompt_prefill``: nothing may stand behind its last words."""
    session = new_session()
    model = wrap_model(claude(provider), session)

    @forked(session, role="planner")
    def planner(state):
        model.with_structured_output(Plan, method="prompt_prefill", include_raw=True).invoke(
            [said("planner"), *state["messages"]]
        )

    session.adapter.join("critic")
    planner({"messages": [BEGIN]})
    assert provider.requests[0].json["messages"][-1] == {"role": "assistant", "content": [{"text": "```json"}]}
    assert session.calls[0].reasons[-1].why == "own_prompt"


def test_images_go_as_they_came(provider):
    """boto3 takes bytes; a prompt has them as they stand on the wire."""
    session = new_session()
    shown = HumanMessage([{"image": {"format": "png", "source": {"bytes": PNG}}}, {"type": "text", "text": "See."}])
    team(wrap_model(claude(provider), session), session).invoke({"messages": [shown]})
    images = [body["messages"][0]["content"][0]["image"] for body in sent(provider)]
    assert images == [images[0]] * 3
    assert images[0]["source"]["bytes"].startswith("iVBORw0KGgo")
    assert [one.outcome.read_tokens > 1_200 for one in provider.requests] == [False, True, True]
    assert session.failures == {}


def test_answers_of_version_one_are_sent_as_the_class_sends_them(provider):
    """It translates them in its list of messages, and is asked for its body more than once."""
    thought = {"type": "reasoning", "reasoning": "Hm.", "extras": {"signature": "s"}}
    called = {"type": "tool_call", "name": "look_up", "args": {"word": "a"}, "id": "c1"}
    before = AIMessage(
        [thought, {"type": "text", "text": "So."}, called],
        tool_calls=[called],
        response_metadata={"output_version": "v1", "model_provider": "bedrock_converse"},
    )
    given = {"messages": [BEGIN, before, ToolMessage("a: a word", tool_call_id="c1")]}
    team(claude(provider).bind_tools([look_up]), roles=["planner"]).invoke(given)
    session = new_session()
    session.adapter.join("critic")
    team(wrap_model(claude(provider), session).bind_tools([look_up]), session, roles=["planner"]).invoke(given)
    plain, fork = sent(provider)
    assert fork["messages"][1] == plain["messages"][1]
    assert fork["messages"][1]["content"][0]["reasoningContent"]
    assert session.calls[0].layout == "fork"


def test_answers_that_were_streamed_stay_apart_from_others(provider):
    """The class joins them, a whole one and the sum of a stream's chunks too."""
    session = new_session()
    session.adapter.join("critic")
    model = wrap_model(claude(provider), session)

    @forked(session, role="planner")
    def planner(state):
        model.invoke([said("planner"), *state["messages"]])

    planner({"messages": [BEGIN, AIMessage("One."), AIMessageChunk("Two."), AIMessage("Three.")]})
    said_before = sent(provider)[0]["messages"][1]["content"]
    assert [block["text"] for block in said_before if block != POINT] == ["One.", "Two.", "Three."]


def test_text_for_one_request_stands_behind_all_that_is_marked(provider):
    """As a block of the user's, whose messages must alternate with the assistant's."""
    session = new_session()
    options = {"volatile": lambda _: {"now": "It is noon."}, "pinned": True}
    team(wrap_model(claude(provider), session), session, **options).invoke({"messages": [BEGIN]})
    ends = [body["messages"][-1]["content"][-1] for body in sent(provider)]
    assert ["It is noon." in str(end) for end in ends] == [True] * 3
    assert [one.outcome.read_tokens > 1_200 for one in provider.requests] == [False, True, True]
    assert session.failures == {}


def test_a_system_message_among_others_is_a_roles_text(provider):
    """The class would put it in front, before all that is shared."""
    session = new_session()
    model = wrap_model(claude(provider), session)

    @forked(session, role="planner")
    def planner(state):
        model.invoke([*state["messages"], SystemMessage("Be brief.")])

    session.adapter.join("critic")
    planner({"messages": [BEGIN, AIMessage("Yes?"), HumanMessage("Go on.")]})
    (body,) = sent(provider)
    assert body["system"] == [{"text": HANDBOOK}, POINT]
    assert "Be brief." in body["messages"][-1]["content"][-1]["text"]


# ------------------------------------------------------------------ whatever of ours fails


class Shouting(ChatBedrockConverse):
    """An application's own, which changes what it sends on the way."""

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        louder = [HumanMessage(f"{one.text}!") if one.text == BEGIN.text else one for one in messages]
        return super()._generate(louder, stop, run_manager, **kwargs)


def test_what_an_applications_own_class_changes_goes_out(provider):
    """What was made before of another body is not sent."""
    session = new_session()
    team(wrap_model(claude(provider, Shouting), session), session).invoke({"messages": [BEGIN]})
    for body in sent(provider):
        assert body["messages"][0]["content"][0] == {"text": f"{BEGIN.text}!"}
        assert body["system"][-1] == POINT
    assert [one.outcome.read_tokens > 1_200 for one in provider.requests] == [False, True, True]
    assert len(session.calls) == 3


@pytest.mark.parametrize("step", ["sending.own_body", "calls.in_blocks", "sending._begin"])
@pytest.mark.parametrize("way", WAYS)
def test_where_a_step_fails_the_applications_own_request_goes_out(provider, monkeypatch, step, way):
    """Each time."""

    def broken(*_args, **_kwargs):
        raise RuntimeError("broken on purpose")

    team(claude(provider), way=way, roles=["planner"]).invoke({"messages": [BEGIN]})
    provider.reset()
    real = getattr(__import__(f"cacheprefix_langgraph.{step.split('.')[0]}", fromlist=["x"]), step.split(".")[1])
    times = []

    def once(*args, **kwargs):
        times.append(1)
        return broken() if step != "sending.own_body" or len(times) == 1 else real(*args, **kwargs)

    monkeypatch.setattr(f"cacheprefix_langgraph.{step}", once)
    session = new_session()
    session.adapter.join("critic")
    with pytest.warns(UserWarning, match="broken on purpose"):
        team(wrap_model(claude(provider), session), session, way, roles=["planner"]).invoke({"messages": [BEGIN]})
    (body,) = sent(provider)
    assert body["system"] == [{"text": said("planner").text}]
    assert body["messages"] == [{"role": "user", "content": [{"text": BEGIN.text}]}]


# ------------------------------------------------------------------ the model itself


def test_a_wrapped_model_shows_its_own_client(provider):
    """Also its copies, what is made of it with other settings, and what stands for it; only a request is finished."""
    session = new_session()
    plain = claude(provider)
    wrapped = wrap_model(plain, session)
    assert wrapped.client is plain.client
    assert wrapped.model_copy().client is plain.client
    assert copy.copy(wrapped).client is plain.client
    assert shadow(plain, session.adapter).client is plain.client
    assert vars(wrapped) == vars(plain)
    assert wrapped.model_dump() == plain.model_dump()
    other = MagicMock()
    changed = wrapped.model_copy(update={"client": other})
    assert (changed.client, wrapped.client) == (other, plain.client)
    changed.client = plain.client
    assert changed.client is plain.client
    assert not hasattr(type(wrapped), "client")


def test_the_class_has_one_client_for_all_ways_of_asking():
    """The day it asks by another one in an event loop, that has to be stood for as well."""
    assert vars(ChatBedrockConverse).keys().isdisjoint(("_agenerate", "_astream"))
    assert [name for name in ChatBedrockConverse.model_fields if "client" in name] == ["client", "bedrock_client"]


def test_a_model_with_fields_left_to_be_configured(provider):
    """It is made anew from its class and fields, its client among them."""
    session = new_session()
    known = {"base_model_id": CLAUDE.partition(".")[2]}  # without, the class does not take its own fields
    model = wrap_model(claude(provider, **known), session).configurable_fields(max_tokens=ConfigurableField(id="most"))

    @forked(session, role="planner")
    def planner(state):
        given = [said("planner"), *state["messages"]]
        return [model.invoke(given), model.with_config(configurable={"most": 7}).invoke(given)]

    session.adapter.join("critic")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        planner({"messages": [BEGIN]})
    assert [body["inferenceConfig"].get("maxTokens") for body in sent(provider)] == [None, 7]
    assert {call.layout for call in session.calls} == {"fork"}
    assert session.failures == {}


def test_a_client_of_the_applications_own_is_asked(provider):
    """A fake, as tests have them, gets what the real one would."""
    client = MagicMock()
    client.meta.region_name = "us-east-1"
    answer = {"output": {"message": {"content": [{"text": "Yes."}]}}, "usage": {"inputTokens": 1, "outputTokens": 1}}
    client.converse.side_effect = lambda **_: copy.deepcopy(answer)
    session = new_session()
    model = wrap_model(claude(provider, client=client), session)
    team(model, session).invoke({"messages": [BEGIN]})
    assert [call.kwargs["system"] for call in client.converse.call_args_list] == [[{"text": HANDBOOK}, POINT]] * 3
    assert client.converse.call_args.kwargs["modelId"] == CLAUDE
    assert "model" not in client.converse.call_args.kwargs


def test_an_inference_profile_goes_by_the_model_behind_it(provider):
    """Its name says nothing of that; it is sent all the same."""
    name = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/a1b2c3"
    session = new_session()
    model = claude(provider, model=name, provider="anthropic", base_model_id=CLAUDE.partition(".")[2])
    team(wrap_model(model, session), session).invoke({"messages": [BEGIN]})
    assert {call.layout for call in session.calls} == {"fork"}
    assert all("application-inference-profile" in one.path for one in provider.requests)
    # By its rules the request is marked.
    assert [one.json["system"][-1] for one in provider.requests] == [POINT] * 3


def test_a_request_that_names_another_model_is_counted_as_that_ones(provider):
    """As an option of the one request."""
    session = new_session()
    model, other = wrap_model(claude(provider), session), "us.amazon.nova-pro-v1:0"

    @forked(session, role="planner")
    def planner(state):
        model.invoke([said("planner"), *state["messages"]], model_id=other)

    planner({"messages": [BEGIN]})
    assert other in provider.requests[0].path
    assert [call.model for call in session.calls] == [other]


def test_tools_that_are_none_of_ours(provider):
    """A cache point among the tools is no tool; what Amazon runs is its role's alone, and is named."""
    session = new_session(tools=[look_up, count])
    model = wrap_model(claude(provider, model="us.amazon.nova-pro-v1:0"), session)
    ran, marked = model.bind_tools(["nova_grounding", count]), model.bind_tools([look_up, POINT])

    def node(role, bound):
        @forked(session, role=role)
        def ask(state):
            return bound.invoke([said(role), *state["messages"]])

        return ask

    for each in (node("planner", ran), node("critic", marked)):
        each({"messages": [BEGIN]})
    assert ("provider_tools", "nova_grounding") in [(one.why, one.name) for one in session.calls[0].reasons]
    assert session.failures == {}
    first, second = (one.json for one in provider.requests)
    assert first["toolConfig"]["tools"][1:] == [{"systemTool": {"name": "nova_grounding"}}]
    # It has no tools of others that it would have to be kept from.
    assert "Tools you may use" not in str(first["messages"])
    assert [tool["toolSpec"]["name"] for tool in second["toolConfig"]["tools"][:2]] == ["count", "look_up"]
    assert second["toolConfig"]["tools"][2:] == [POINT]
    assert "Tools you may use in this role: look_up." in str(second["messages"])


@pytest.mark.parametrize("layout", ["fork", "own"])
def test_a_preview_asks_nobody(provider, layout):
    """It is made of the same bodies."""
    session, options = new_session(), {}
    if layout == "own":
        options["guardrail_config"] = {"guardrailIdentifier": "g", "guardrailVersion": "1"}
    shown = preview(team(wrap_model(claude(provider, **options), session), session), session)
    assert provider.requests == []
    assert [(one.agent, one.layout) for one in shown.requests] == [(role, layout) for role in ROLES]
