"""Every chat model class and every way LangChain dresses one up, as forks on the wire."""

import asyncio
import itertools
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import httpx
import pytest
from langchain.agents import create_agent
from langchain.chat_models import init_chat_model
from langchain_anthropic import ChatAnthropic
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import ConfigurableField
from langchain_core.runnables.config import ContextThreadPoolExecutor
from langchain_core.tools import StructuredTool, tool
from langchain_google_genai import ChatGoogleGenerativeAI
from langchain_openai import AzureChatOpenAI, ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import BaseModel, Field

from cacheprefix import CacheprefixWarning, Caching, Session, SharedPrefix
from cacheprefix.errors import SetupError
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Fault, Queue, Reply, ToolCall
from cacheprefix_langgraph import PrefixMiddleware, ask, forked, wrap_model
from cacheprefix_langgraph.model import session_of

HANDBOOK = "The handbook says that every statement needs a source. " * 90
ROLES = {"planner": "You plan.", "critic": "You criticise."}
ASKED = [HumanMessage("Please begin.", id="h")]


class Grade(BaseModel):
    """A grade for a text."""

    score: int = Field(description="0 to 10")


def team(session, call, *, later=False):
    """Two roles in a row that each ``call`` their model with their own system message."""
    graph = StateGraph(MessagesState)
    previous = START
    for role, text in ROLES.items():

        def node(state, text=text):
            """One role's node."""
            call([SystemMessage(text), *state["messages"]])

        async def anode(state, text=text):
            """One role's node, as a coroutine."""
            await call([SystemMessage(text), *state["messages"]])

        graph.add_node(role, forked(session, role=role)(anode if later else node))
        graph.add_edge(previous, role)
        previous = role
    return graph.compile()


def lane(prompt):
    """The settings that might part two prompts."""
    return {name: value for name, value in prompt.settings.items() if not name.startswith("stream")}


def shared_alike(prompts):
    """Whether two prompts are equal but for the last section of each."""
    first, second = prompts
    return first.sections[:-1] == second.sections[: len(first.sections) - 1] and first.sections != second.sections


# ------------------------------------------------------------------ classes


@pytest.fixture(params=["chat", "responses"])
def azure(request, servers):
    """A server, and a function that makes a model of an Azure deployment that names no model."""
    provider = servers("auto")

    def make():
        return AzureChatOpenAI(
            azure_endpoint=provider.url,
            azure_deployment="gpt-5.6",
            api_version="2025-03-01-preview",
            api_key="k",
            max_retries=0,
            use_responses_api=request.param == "responses",
        )

    return provider, make


def test_an_azure_deployment_shares_like_openai(azure):
    """The body gets its marks; the deployment stays where the class had put it."""
    provider, make = azure
    make().invoke(ASKED)
    plain = provider.requests[0].json
    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(counter=ESTIMATE))
    team(session, wrap_model(make(), session).invoke).invoke({"messages": ASKED})
    _, first, second = provider.requests
    assert shared_alike([first.prompt, second.prompt])
    assert second.outcome.read_tokens >= 1_200
    assert [call.verdict.cause for call in session.calls] == ["cold_start", "hit"]
    assert first.json.get("model") == plain.get("model")
    assert not session.failures


@pytest.fixture
def gemini(servers):
    """A server, and a function that makes a Gemini model."""
    provider = servers("auto")

    def make(**options):
        return ChatGoogleGenerativeAI(
            model="gemini-2.5-flash", google_api_key="k", base_url=provider.url, max_retries=1, **options
        )

    return provider, make


@pytest.mark.parametrize("how", ["invoke", "stream", "ainvoke"])
def test_gemini_shares_at_the_level_of_messages_and_is_measured(gemini, how):
    """Its class shows no body that could be marked, and its cache takes no marks."""
    provider, make = gemini
    session = Session(SharedPrefix(system=HANDBOOK, tools=[look_up]), caching=Caching(counter=ESTIMATE))
    model = wrap_model(make(), session)
    if how == "ainvoke":

        async def run():
            await team(session, model.ainvoke, later=True).ainvoke({"messages": ASKED})
            # Google's client opens a session of aiohttp where that is installed, and leaves closing it to its user.
            await model.client.aio.aclose()

        asyncio.run(run())
    else:
        call = model.invoke if how == "invoke" else lambda given: list(model.stream(given))
        team(session, call).invoke({"messages": ASKED})
    first, second = provider.requests
    assert shared_alike([first.prompt, second.prompt])
    assert second.outcome.read_tokens >= 1_200
    assert [call.usage.cache_read_tokens for call in session.calls] == [0, second.outcome.read_tokens]
    assert [call.input_tokens for call in session.calls] == [first.outcome.input_tokens, second.outcome.input_tokens]
    assert sum("takes no marks" in note for note in session.report().notes) == 1


def test_observing_gemini_changes_no_byte(gemini):
    """And every call is counted under its role."""
    provider, make = gemini
    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(counter=ESTIMATE), mode="observe")
    for model in (make(), wrap_model(make(), session)):
        team(session, model.bind_tools([look_up]).invoke).invoke({"messages": ASKED})
    bodies = [record.body for record in provider.requests]
    assert bodies[2:] == bodies[:2]
    assert [call.agent for call in session.calls] == list(ROLES)


class Parrot(BaseChatModel):
    """A chat model of the user's own."""

    heard: list[Any] = Field(default_factory=list)

    @property
    def _llm_type(self):
        return "parrot"

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        self.heard.append(messages)
        usage = {"input_tokens": 10, "output_tokens": 1, "total_tokens": 11}
        return ChatResult(generations=[ChatGeneration(message=AIMessage("Squawk.", usage_metadata=usage))])


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    return word


def test_any_model_shares_its_messages_and_what_is_lost_is_said_once():
    """Also one that binds no tools, and whose rules nobody knows."""
    session = Session(
        SharedPrefix(system=HANDBOOK, tools=[look_up]), caching=Caching(provider="openai", counter=ESTIMATE)
    )
    model = wrap_model(Parrot(), session)
    team(session, model.invoke).invoke({"messages": ASKED})
    first, second = ([message.text for message in heard] for heard in model.heard)
    assert first[:2] == second[:2] == [HANDBOOK, "Please begin."]
    assert "You plan." in first[2]
    assert "You criticise." in second[2]
    assert len(session.calls) == 2
    assert not session.failures
    assert sum("no breakpoints" in note for note in session.report().notes) == 1


class Picky(Parrot):
    """One that binds objects alone."""

    def bind_tools(self, tools, **kwargs):
        return self.bind(tools=[{"type": "function", "function": {"name": one.name}} for one in tools], **kwargs)

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        made = super()._generate(messages)
        self.heard[-1] = [tool["function"]["name"] for tool in kwargs["tools"]]
        return made


def test_a_model_that_binds_objects_alone_goes_on_with_its_roles_own_tools():
    """Of a tool that is gone only the schema is left, which such a class does not take: nothing of ours has failed."""
    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider="openai", counter=ESTIMATE))
    model, number = wrap_model(Picky(), session), itertools.count()

    def ask(messages):
        made = StructuredTool.from_function(lambda at: at, name=f"look_{next(number)}", description="Look.")
        return model.bind_tools([made]).invoke(messages)

    team(session, ask).invoke({"messages": ASKED}, {"configurable": {"thread_id": "one"}})
    team(session, ask).invoke({"messages": ASKED}, {"configurable": {"thread_id": "one"}})
    assert model.heard == [[f"look_{number}"] for number in range(4)]
    assert session.failures == {}
    assert sum("Picky.bind_tools" in note for note in session.report().notes) == 1


def test_observing_any_model_says_nothing_of_forks():
    """Nothing becomes one."""
    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(counter=ESTIMATE), mode="observe")
    wrap_model(Parrot(), session).invoke(ASKED)
    assert not [note for note in session.report().notes if "fork" in note or "breakpoints" in note]
    assert sum("does not show its request bodies" in note for note in session.report().notes) == 1


class Odd(Parrot):
    """One whose results are not LangChain's own."""

    result: Any = None

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        made = super()._generate(messages)
        made.generations[0].message.usage_metadata = self.result
        made.generations[0].message.response_metadata = {"token_usage": self.result}
        return made


class Grumpy:
    """Usage that cannot be read."""

    def __bool__(self):
        raise ValueError("ask somebody else")


@pytest.mark.parametrize("result", [{"input_tokens": "many"}, {"prompt_tokens": None}, [3], "all of them", Grumpy()])
def test_an_unusual_result_never_costs_the_answer(result):
    """What cannot be read of it is at most a call of which nothing is known."""
    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider="openai", counter=ESTIMATE))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheprefixWarning)
        assert wrap_model(Odd(result=result), session, role="planner").invoke(ASKED).text == "Squawk."
    session.report()


def test_a_result_without_generations_is_the_classs_own(monkeypatch):
    """LangChain's error, or its answer, as without us."""

    class Mute(Parrot):
        def _generate(self, messages, stop=None, run_manager=None, **kwargs):
            return ChatResult.model_construct(generations=[None])

    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider="openai", counter=ESTIMATE))
    wrapped, plain = wrap_model(Mute(), session, role="planner"), Mute()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheprefixWarning)
        assert wrapped._generate(ASKED) == plain._generate(ASKED)


class Sentinel(Parrot):
    """As tests fake a class: its answers are no messages at all."""

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        return "sentinel"

    def _stream(self, messages, stop=None, run_manager=None, **kwargs):
        yield "sentinel"


def test_an_answer_that_is_no_message_is_a_call_of_unknown_usage_and_no_failure_of_ours():
    """Nothing can be said of it; the call itself is counted, and nothing is warned of."""
    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider="openai", counter=ESTIMATE))
    model = wrap_model(Sentinel(), session, role="planner")
    assert model._generate(ASKED) == "sentinel"
    assert list(model._stream(ASKED)) == ["sentinel"]
    assert not session.failures
    assert len(session.calls) == 2


def test_a_class_without_marks_is_left_alone_where_only_marks_are_cached():
    """A fork of it would be read by nobody; what the user gave to the session alone arrives all the same."""
    session = Session(
        SharedPrefix(system=HANDBOOK, tools=[look_up]), caching=Caching(provider="anthropic", counter=ESTIMATE)
    )
    model = wrap_model(Parrot(), session)
    said = [SystemMessage(f"You plan.\n\n{HANDBOOK}"), *ASKED]
    team(session, lambda given: model.invoke(said)).invoke({"messages": ASKED})
    assert model.heard == [said, said]
    team(session, model.invoke).invoke({"messages": ASKED})
    assert HANDBOOK.strip() in model.heard[-1][0].text
    assert {(call.layout, call.reasons[-1].why) for call in session.calls} == {("own", "marks_hidden")}
    assert sum("stay as they are" in note for note in session.report().notes) == 1


def test_siblings_of_a_model_that_cannot_stream_still_follow_their_leader():
    """The leader is not streamed; the others go when it has answered."""
    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider="openai", counter=ESTIMATE))
    model = wrap_model(Parrot(), session)

    @forked(session, role="worker")
    def worker(state):
        return [message.text for message in model.batch([[SystemMessage(f"You are {n}."), *ASKED] for n in range(3)])]

    assert worker({"messages": ASKED}) == ["Squawk."] * 3


# ------------------------------------------------------------------ bindings


def test_a_role_with_its_own_tools_sends_the_union_and_is_kept_to_its_own(bench):
    """The array is the same for all; what a role may use is said where that does not touch the cache."""
    session = bench.session(HANDBOOK)
    model = wrap_model(bench.model(), session)
    read, run = bench.tools
    bound = {"planner": model.bind_tools([read]), "critic": model.bind_tools([run])}
    for role, text in ROLES.items():

        @forked(session, role=role)
        def node(state, role=role, text=text):
            bound[role].invoke([SystemMessage(text), *state["messages"]])

        node({"messages": ASKED})
    first, second = bench.prompts()
    assert first.tier("tools") == second.tier("tools")
    assert len(first.tier("tools")) == 2
    assert shared_alike([first, second])
    if bench.api == "anthropic":
        assert "read_file" in first.sections[-1].text
        assert "tool_choice" not in first.settings
    else:
        assert "read_file" in first.settings["tool_choice"]
        assert "run_tests" not in first.settings["tool_choice"]
    assert bench.provider.requests[1].outcome.read_tokens >= 1_200


METHODS = {
    "openai-chat": ["json_schema", "function_calling", "json_mode"],
    "openai-responses": ["json_schema", "function_calling", "json_mode"],
    "anthropic": ["json_schema", "function_calling"],
}


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
@pytest.mark.parametrize("raw", [False, True], ids=["parsed", "raw"])
def test_structured_output_is_what_it_was(bench, method, raw):
    """Both roles get their grade; with function calling their tools and system text are shared too."""
    if method not in METHODS[bench.kind]:
        pytest.skip(f"{bench.kind} has no {method}")
    text = '{"score": 7}'
    calls = (ToolCall("Grade", {"score": 7}),) if method == "function_calling" else ()
    bench.script(lambda request: Reply("" if calls else text, tool_calls=calls))
    session = bench.session(HANDBOOK)
    model = wrap_model(bench.model(), session).with_structured_output(Grade, method=method, include_raw=raw)
    found = []
    team(session, lambda given: found.append(model.invoke([*given, HumanMessage("Answer in JSON.")]))).invoke(
        {"messages": ASKED}
    )
    assert [one["parsed"] if raw else one for one in found] == [Grade(score=7)] * 2
    first, second = bench.prompts()
    assert first.sections[:-2] == second.sections[:-2]
    assert lane(first) == lane(second)
    assert bench.provider.requests[1].outcome.read_tokens >= 1_000
    assert not session.failures


def test_a_strict_tool_stays_strict_inside_the_union(bench):
    """A looser schema would change the answers."""
    session = bench.session(HANDBOOK)
    model = wrap_model(bench.model(), session)
    bound = model.bind_tools(bench.tools, strict=True)

    @forked(session, role="planner")
    def planner(state):
        bound.invoke([SystemMessage("You plan."), *state["messages"]])

    planner({"messages": ASKED})
    (prompt,) = bench.prompts()
    assert all(b'"strict":true' in section.data for section in prompt.tier("tools"))


def test_a_retry_sends_the_same_fork_again(bench):
    """The first attempt fails on the wire; the second has the same bytes."""
    bench.script([Reply(fault=Fault(status=500)), Reply("fine")])
    session = bench.session(HANDBOOK)
    model = wrap_model(bench.model(), session).with_retry(stop_after_attempt=2, wait_exponential_jitter=False)
    answers = []

    @forked(session, role="planner")
    def planner(state):
        answers.append(model.invoke([SystemMessage("You plan."), *state["messages"]]).text)

    planner({"messages": ASKED})
    assert answers == ["fine"]
    first, second = bench.prompts()
    assert first.sections == second.sections
    assert len(session.calls) == 1


def test_a_fallback_carries_the_same_fork(bench):
    """Each model of the chain is wrapped; the second one is asked what the first one was."""
    bench.script(lambda request: Reply(fault=Fault(status=500)) if request.index == 0 else Reply("fine"))
    session = bench.session(HANDBOOK)
    other = "claude-opus-4-8" if bench.api == "anthropic" else "gpt-5.6-mini"
    model = wrap_model(bench.model(), session).with_fallbacks([wrap_model(bench.model(model=other), session)])

    @forked(session, role="planner")
    def planner(state):
        return model.invoke([SystemMessage("You plan."), *state["messages"]]).text

    assert planner({"messages": ASKED}) == "fine"
    first, second = bench.prompts()
    assert (first.model, second.model) != (second.model, first.model)
    assert [s.data for s in first.sections] == [s.data for s in second.sections]


def test_configured_fields_make_models_of_the_same_session(bench):
    """LangChain makes such a model anew from its class and fields for each run."""
    session = bench.session(HANDBOOK)
    model = wrap_model(bench.model(), session).configurable_fields(max_tokens=ConfigurableField("length"))

    @forked(session, role="planner")
    def planner(state, config):
        return model.invoke([SystemMessage("You plan."), *state["messages"]], config)

    planner({"messages": ASKED}, {"configurable": {"length": 77}})
    planner({"messages": ASKED}, {})
    first, second = bench.prompts()
    assert "77" in first.settings.values()
    assert "77" not in second.settings.values()
    assert first.sections == second.sections
    assert "You plan." in first.sections[-1].text
    assert len(session.calls) == 2


def test_configured_alternatives_are_wrapped_too(bench):
    """Whichever model the run chooses is a fork."""
    session = bench.session(HANDBOOK)
    other = "claude-opus-4-8" if bench.api == "anthropic" else "gpt-5.6-mini"
    model = wrap_model(bench.model(), session).configurable_alternatives(
        ConfigurableField("which"), small=bench.model(model=other)
    )

    @forked(session, role="planner")
    def planner(state, config):
        return model.invoke([SystemMessage("You plan."), *state["messages"]], config)

    for which in ("default", "small"):
        planner({"messages": ASKED}, {"configurable": {"which": which}})
    first, second = bench.prompts()
    assert second.model == other
    assert [s.data for s in first.sections] == [s.data for s in second.sections]


@pytest.mark.parametrize("bound", [False, True], ids=["bare", "with-tools"])
def test_what_init_chat_model_leaves_open_is_wrapped_when_it_is_made(bench, bound):
    """Also behind operations that were queued before the model existed."""
    name = "anthropic" if bench.api == "anthropic" else "openai"
    url = bench.provider.anthropic_base_url if name == "anthropic" else bench.provider.openai_base_url
    session = bench.session(HANDBOOK)
    options = {"use_responses_api": True} if bench.kind == "openai-responses" else {}
    open_model = init_chat_model(
        model_provider=name, base_url=url, api_key="k", configurable_fields=("model",), **options
    )
    model = wrap_model(open_model, session)
    if bound:
        model = model.bind_tools(bench.tools)
    model = model.with_config(tags=["mine"])
    which = "claude-opus-4-1" if name == "anthropic" else "gpt-5.6"
    config = {"configurable": {"model": which}}
    team(session, lambda given: model.invoke(given, config)).invoke({"messages": ASKED})
    first, second = bench.prompts()
    assert first.model == which
    assert shared_alike([first, second])
    assert len(session.calls) == 2


def left_open(chat, **options):
    """A model of which the run says which one it is."""
    options = {"base_url": chat.provider.openai_base_url, "api_key": "k", "model_provider": "openai", **options}
    return init_chat_model(stream_usage=True, **options)


CHOSEN = {"configurable": {"model": "gpt-5.6", "model_provider": "openai"}}


@pytest.mark.parametrize("way", ["invoke", "stream", "ainvoke", "astream", "batch", "abatch"])
@pytest.mark.parametrize("kind", ["open", "default", "bound", "fallbacks", "alternatives", "model"])
def test_a_model_is_a_node_whatever_it_is_made_of(chat, kind, way):
    """LangChain's Runnables answer for others, some of which are not made yet, and are asked for nothing."""
    session = chat.session(HANDBOOK)
    forked(session, role="critic")(lambda state: state)
    plain = chat.model()
    model = wrap_model(plain if kind in ("fallbacks", "alternatives", "model") else left_open(chat), session)
    if kind == "default":
        # As it stands it cannot be made: it has no key.
        model = wrap_model(init_chat_model("gpt-5.6", model_provider="openai", configurable_fields="any"), session)
    elif kind == "bound":
        model = model.bind_tools(chat.tools).with_config(tags=["mine"])
    elif kind == "fallbacks":
        model = model.with_fallbacks([wrap_model(chat.model(), session)])
    elif kind == "alternatives":
        model = model.configurable_alternatives(ConfigurableField("which"), small=chat.model())
    before = set(vars(model))
    node = forked(session, role="planner")(model)
    said = {"stream_usage": True, "base_url": chat.provider.openai_base_url, "api_key": "k"}
    config = {"configurable": {**CHOSEN["configurable"], **(said if kind == "default" else {})}}
    config = {} if kind in ("fallbacks", "alternatives", "model") else config
    asked = [SystemMessage("You plan."), *ASKED]

    async def later():
        if way == "astream":
            return [one async for one in node.astream(asked, config)]
        return await (node.ainvoke(asked, config) if way == "ainvoke" else node.abatch([asked], config))

    if way in ("ainvoke", "astream", "abatch"):
        asyncio.run(later())
    elif way == "stream":
        list(node.stream(asked, config))
    else:
        node.batch([asked], config) if way == "batch" else node.invoke(asked, config)
    (prompt,) = chat.prompts()
    assert "You plan." in prompt.sections[-1].text
    assert [(call.agent, call.layout) for call in session.calls] == [("planner", "fork")]
    # LangChain itself adds how a model is written in traces.
    assert set(vars(model)) - {"_serialized"} == before
    assert not session.failures


@pytest.mark.parametrize("kind", ["open", "default", "fallbacks", "alternatives"])
def test_an_agents_model_may_be_chosen_in_the_run(chat, kind):
    """What is wrapped already inside of it is not wrapped again."""
    session = chat.session(HANDBOOK)
    forked(session, role="critic")(lambda state: state)
    model = wrap_model(chat.model() if kind in ("fallbacks", "alternatives") else left_open(chat), session)
    if kind == "default":
        model = wrap_model(left_open(chat, model="gpt-5.6", configurable_fields=("model",)), session)
    elif kind == "fallbacks":
        model = model.with_fallbacks([wrap_model(chat.model(), session)])
    elif kind == "alternatives":
        model = model.configurable_alternatives(ConfigurableField("which"), small=chat.model())
    assert session_of(model) is session
    middleware = [PrefixMiddleware(session, role="planner")]
    agent = create_agent(model, [], system_prompt="You plan.", middleware=middleware)
    agent.invoke({"messages": ASKED}, CHOSEN)
    (prompt,) = chat.prompts()
    assert "You plan." in prompt.sections[-1].text
    assert [(call.agent, call.layout) for call in session.calls] == [("planner", "fork")]
    assert not session.failures


def test_a_thread_is_not_asked_by_a_model_that_the_run_chooses(chat):
    """Nothing says which one that would be."""
    session = chat.session(HANDBOOK)
    for model in (left_open(chat), left_open(chat, model="gpt-5.6", configurable_fields="any")):
        with pytest.raises(SetupError, match="ask takes a model from wrap_model"):
            ask(wrap_model(model, session), "And?", ASKED, role="planner")


@pytest.mark.parametrize("later", [False, True], ids=["stream", "astream"])
def test_what_cannot_stream_is_laid_out_once_where_a_stream_is_asked_for(bench, later):
    """Its class calls the model itself then, with what is laid out; the role was said twice, so was the time."""
    session = bench.session(HANDBOOK)
    model = wrap_model(bench.model(disable_streaming=True), session)
    asked = [SystemMessage("You plan."), *ASKED]

    async def astreamed():
        return [one async for one in model.astream(asked)]

    how = {"role": "planner", "instruction": "Be short.", "volatile": lambda _: {"now": "noon"}}
    node = forked(session, **how)(lambda state: asyncio.run(astreamed()) if later else list(model.stream(asked)))
    node({"messages": ASKED})
    (prompt,) = bench.prompts()
    text = "\n".join(section.text for section in prompt.sections)
    assert [text.count(one) for one in ("Be short.", "You plan.", "noon")] == [1, 1, 1]


@pytest.mark.parametrize("later", [False, True], ids=["batch", "abatch"])
def test_a_batch_inside_a_node_is_forked_and_follows_one_leader(bench, later):
    """Three questions at once on a cold prefix: one writes, two read."""
    bench.slow(0.03)
    session = bench.session(HANDBOOK * 2)
    model = wrap_model(bench.model(), session)
    given = [[SystemMessage("You plan."), *ASKED, HumanMessage(f"Step {n}?")] for n in range(3)]

    @forked(session, role="planner")
    def planner(state):
        return model.batch(given)

    @forked(session, role="planner")
    async def aplanner(state):
        return await model.abatch(given)

    state = {"messages": ASKED}
    answers = asyncio.run(aplanner(state)) if later else planner(state)
    assert len(answers) == 3
    assert sorted(record.outcome.read_tokens > 0 for record in bench.provider.requests) == [False, True, True]


def test_langchains_answer_cache_never_hands_one_roles_answer_to_another(bench):
    """The cache key is what is sent: the same role is answered from the cache, another is not."""
    bench.script(lambda request: Reply(f"answer {request.index}"))
    session = bench.session(HANDBOOK)
    model = wrap_model(bench.model(), session)
    answers = []

    def ask(role):
        """One call of a role."""
        node = forked(session, role=role)(
            lambda state: answers.append(model.invoke([SystemMessage("You think."), *state["messages"]]).text)
        )
        node({"messages": ASKED})

    set_llm_cache(InMemoryCache())
    try:
        for role in ("planner", "critic", "planner", "critic"):
            ask(role)
    finally:
        set_llm_cache(None)
    assert answers == ["answer 0", "answer 1", "answer 0", "answer 1"]
    assert len(session.calls) == len(bench.provider.requests) == 2


def test_a_leader_whose_answers_a_stream_would_change_is_not_streamed(chat):
    """Several choices come in one piece or not at all."""
    session = chat.session(HANDBOOK * 2)
    model = wrap_model(chat.model(), session).bind(n=2)
    forked(session, role="planner")(lambda state: model.invoke([SystemMessage("You plan."), *ASKED]))(
        {"messages": ASKED}
    )
    body = chat.provider.requests[0].json
    assert body["n"] == 2
    assert not body.get("stream")


def test_streaming_that_the_user_disabled_stays_disabled(bench):
    """Also for the leader of a cold prefix."""
    session = bench.session(HANDBOOK * 2)
    model = wrap_model(bench.model(disable_streaming=True), session)
    forked(session, role="planner")(lambda state: model.invoke([SystemMessage("You plan."), *ASKED]))(
        {"messages": ASKED}
    )
    assert not bench.provider.requests[0].json.get("stream")


# ------------------------------------------------------------------ outside of forks


def test_a_plain_thread_pool_inside_a_node_is_named(bench):
    """It loses the fork; LangChain's own pool and a copied context keep it."""
    session = bench.session(HANDBOOK)
    model = wrap_model(bench.model(), session)
    given = [SystemMessage("You plan."), *ASKED]

    def planner(state):
        with ContextThreadPoolExecutor(1) as pool:
            pool.submit(model.invoke, given).result()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(copy_context().run, model.invoke, given).result()
            pool.submit(model.invoke, given).result()

    graph = StateGraph(MessagesState)
    graph.add_node("planner", forked(session)(planner))
    graph.add_edge(START, "planner")
    graph.add_edge("planner", END)
    with pytest.warns(UserWarning, match="thread pool that knows of no fork"):
        graph.compile().invoke({"messages": ASKED})
    first, second, third = bench.prompts()
    assert first.sections == second.sections
    assert [s.text for s in third.sections] == ["You plan.", "Please begin."]


def test_models_that_were_wrapped_alike_are_equal_where_the_plain_ones_are(bench):
    """As caches that are keyed by models ask; another session or role is another model."""
    session = Session()
    plain = bench.model()
    assert wrap_model(plain, session) == wrap_model(plain.model_copy(), session)
    assert wrap_model(plain, session, role="planner") == wrap_model(plain, session, role="planner")
    assert wrap_model(plain, session) != wrap_model(plain, Session())
    assert wrap_model(plain, session, role="planner") != wrap_model(plain, session, role="critic")


def test_what_is_no_chat_model_is_refused_by_name():
    """The error says what to do instead."""
    with pytest.raises(SetupError, match=r"found \w+; wrap the model first"):
        wrap_model(Parrot().bind(stop=["x"]))
    with pytest.raises(SetupError, match=r"found RunnableWithFallbacks; wrap each model: "):
        wrap_model(Parrot().with_fallbacks([Parrot()]))
    with pytest.raises(SetupError, match=r"found str; make the model first"):
        wrap_model("gpt-4.1")


# ------------------------------------------------------------------ one call at a time


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_limit_of_one_tool_call_is_kept_without_leaving_the_lane(bench, later):
    """A supervisor binds it and its workers do not; two calls in an answer become the first one."""
    twice = (ToolCall("read_file", {"path": "a"}, id="c1"), ToolCall("run_tests", {}, id="c2"))
    bench.script(lambda request: Reply("Both.", tool_calls=twice))
    session = bench.session(HANDBOOK)
    model = wrap_model(bench.model(), session)
    boss, worker = model.bind_tools(bench.tools, parallel_tool_calls=False), model.bind_tools(bench.tools)
    answers = []

    @forked(session, role="boss")
    def lead(state):
        given = [SystemMessage("You lead."), *ASKED]
        answers.append(asyncio.run(boss.ainvoke(given)) if later else boss.invoke(given))

    @forked(session, role="worker")
    def work(state):
        answers.append(worker.invoke([SystemMessage("You work."), *ASKED]))

    lead({"messages": ASKED})
    work({"messages": ASKED})
    first, second = bench.prompts()
    assert lane(first) == lane(second)
    assert shared_alike([first, second])
    assert "at most one tool" in first.sections[-1].text
    assert [call["id"] for call in answers[0].tool_calls] == ["c1"]
    assert len(answers[1].tool_calls) == 2
    assert "c2" not in str(answers[0].content)
    assert bench.provider.requests[1].outcome.read_tokens >= 1_200


@pytest.mark.parametrize("later", [False, True], ids=["invoke", "ainvoke"])
def test_what_the_provider_keeps_holds_no_role(servers, later):
    """A role's text in a kept history would be read by the next role: what is ours is for one request."""
    provider = servers("openai-5.6")
    provider.simulator.script = Queue(["fine"])
    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider="openai-5.6", counter=ESTIMATE))
    options = {"base_url": provider.openai_base_url, "api_key": "k", "max_retries": 0, "use_previous_response_id": True}
    model = wrap_model(ChatOpenAI(model="gpt-5.6", **options), session)
    graph, previous = StateGraph(MessagesState), START
    for name in ROLES:

        def node(state):
            """A role whose text the library knows alone."""
            return {"messages": [model.invoke(state["messages"])]}

        async def anode(state):
            """The same as a coroutine."""
            return {"messages": [await model.ainvoke(state["messages"])]}

        now = {"now": name}
        dressed = forked(session, role=name, instruction=f"I am the {name}.", volatile=lambda _, now=now: now)
        graph.add_node(name, dressed(anode if later else node))
        graph.add_edge(previous, name)
        previous = name
    app = graph.compile()
    asyncio.run(app.ainvoke({"messages": ASKED})) if later else app.invoke({"messages": ASKED})
    first, second = (record.json for record in provider.requests)
    assert [item["content"] for item in first["input"]] == ["Please begin."]
    assert first["instructions"] == f"{HANDBOOK.strip()}\n\nI am the planner.\n\n<now>\nplanner\n</now>"
    assert second["previous_response_id"]
    assert second["instructions"] == f"{HANDBOOK.strip()}\n\nI am the critic.\n\n<now>\ncritic\n</now>"
    assert "planner" not in "".join(one.text for one in provider.requests[1].prompt.sections)
    assert any(one.reason.why == "kept_by_provider" for one in session.report().layouts)
    assert session.failures == {}
    assert len(session.calls) == 2


@pytest.mark.parametrize("rules", ["openai-5.6", "openai-5.6,extra_body", "anthropic", "anthropic,itself"])
def test_where_the_provider_compacts_no_role_stands_in_what_it_reads_as_said(servers, rules):
    """What it makes of all messages comes back in the answer, for whoever goes on from it."""
    rules, _, itself = rules.partition(",")
    provider = servers(rules)
    provider.simulator.script = Queue(["fine"])
    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider=rules, counter=ESTIMATE))
    asked = {}
    if itself == "itself":
        own = ChatAnthropic(
            model="claude-sonnet-4-6",
            api_key="k",
            max_retries=0,
            base_url=provider.anthropic_base_url,
            betas=["compaction-2026-06-01"],
        )
        edits, asked = None, {"compaction": {"type": "summarize"}}
    elif rules == "anthropic":
        options = {"base_url": provider.anthropic_base_url, "betas": ["compact-2026-01-12"]}
        edits = {"edits": [{"type": "compact_20260112"}]}
        own = ChatAnthropic(model="claude-sonnet-4-6", api_key="k", max_retries=0, context_management=edits, **options)
    else:
        options = {"base_url": provider.openai_base_url, "api_key": "k", "max_retries": 0}
        edits = [{"type": "compaction", "compact_threshold": 1000}]
        field = {"context_management": edits}
        more = {"extra_body": field, "use_responses_api": True} if itself else field
        own = ChatOpenAI(model="gpt-5.6", **more, **options)
    model = wrap_model(own, session)

    @forked(session, role="critic", instruction="I am the critic.", volatile=lambda _: {"now": "11:59"})
    def node(state):
        """A role whose text the library knows alone."""
        return {"messages": [model.invoke(state["messages"], **asked)]}

    graph = StateGraph(MessagesState)
    graph.add_node("critic", node)
    graph.add_edge(START, "critic")
    graph.compile().invoke({"messages": ASKED})
    sent = provider.requests[0]
    assert {name: sent.json.get(name) for name in ("context_management", *asked)} == {
        "context_management": edits,
        **asked,
    }
    said = [(one.tier, one.text) for one in sent.prompt.sections]
    assert said[-1] == ("messages", "Please begin.")
    assert {tier for tier, _ in said[:-1]} == {"system"}
    told = "".join(text for _, text in said)
    assert all(told.count(word) == 1 for word in ("I am the critic.", "11:59"))
    assert session.failures == {}


@pytest.mark.parametrize("way", ["paused", "beside the application's"])
def test_a_turn_that_the_provider_paused_goes_on_from_its_end(servers, way):
    """Anthropic refuses a text behind a call of its own tools that has no result yet."""
    provider = servers("anthropic")
    provider.simulator.script = Queue(["fine"])
    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider="anthropic", counter=ESTIMATE))
    options = {"base_url": provider.anthropic_base_url, "api_key": "k", "max_retries": 0}
    own = wrap_model(ChatAnthropic(model="claude-sonnet-4-6", **options), session)
    model = own.bind_tools([{"type": "web_search_20250305", "name": "web_search"}])
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
    turn = [AIMessage([{"type": "text", "text": "I search."}, search])]
    if way != "paused":
        call = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}
        turn = [AIMessage([search, call], tool_calls=[{"id": "toolu_1", "name": "read", "args": {}}])]
        turn.append(ToolMessage("It was read.", tool_call_id="toolu_1"))

    @forked(session, role="critic", instruction="I am the critic.")
    def node(state):
        """A role whose text the library knows alone."""
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("critic", node)
    graph.add_edge(START, "critic")
    graph.compile().invoke({"messages": [*ASKED, *turn]})
    said = provider.requests[0].json["messages"]
    at = next(at for at, message in enumerate(said) if "I am the critic." in str(message))
    assert session.calls[0].layout == "fork"
    assert [message["role"] for message in said[at + 1 :]] == ["assistant", "user"][: len(turn)]
    assert session.failures == {}


@pytest.mark.parametrize("layout", ["fork", "pinned", "own", "failed", "agent"])
@pytest.mark.parametrize("results", [False, True], ids=["paused", "with results"])
def test_no_passing_text_stands_behind_a_turn_that_the_provider_paused(servers, layout, results, monkeypatch):
    """The turn goes on from its end in every layout."""
    provider = servers("anthropic")
    provider.simulator.script = Queue(["fine"])
    handbook = "Be brief." if layout == "own" else HANDBOOK
    session = Session(SharedPrefix(system=handbook), caching=Caching(provider="anthropic", counter=ESTIMATE))
    forked(session, role="other")(lambda state: state)
    options = {"base_url": provider.anthropic_base_url, "api_key": "k", "max_retries": 0}
    plain = ChatAnthropic(model="claude-sonnet-4-6", **options)
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
    web = {"type": "web_search_20250305", "name": "web_search"}
    turn = [AIMessage([{"type": "text", "text": "I search."}, search])]
    if results:
        call = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}
        turn = [AIMessage([search, call], tool_calls=[{"id": "toolu_1", "name": "read", "args": {}}])]
        turn.append(ToolMessage("It was read.", tool_call_id="toolu_1"))
    how = {"role": "critic", "volatile": lambda _: {"now": "It is noon."}, "pinned": layout == "pinned"}
    broke = layout in ("failed", "agent")
    if broke:
        step = "calls._asked" if layout == "failed" else "middleware.conversation_of"
        monkeypatch.setattr(f"cacheprefix_langgraph.{step}", lambda *_, **__: 1 / 0)
    if layout == "agent":
        agent = create_agent(plain, [web], middleware=[PrefixMiddleware(session, **how)])
        agent.invoke({"messages": [*ASKED, *turn]})
    else:
        model = wrap_model(plain, session).bind_tools([web])
        graph = StateGraph(MessagesState).add_edge(START, "critic")
        graph.add_node("critic", forked(session, **how)(lambda state: {"messages": [model.invoke(state["messages"])]}))
        graph.compile().invoke({"messages": [*ASKED, *turn]})
    said = provider.requests[0].json["messages"]
    (at,) = (at for at, message in enumerate(said) if "It is noon." in str(message))
    assert [message["role"] for message in said[at + 1 :]] == ["assistant", "user"][: len(turn)]
    # A model that the middleware could not wrap is not measured.
    seen = {"agent": [], "fork": ["fork"], "pinned": ["fork"]}.get(layout, ["own"])
    assert [call.layout for call in session.calls] == seen
    assert bool(session.failures) is broke


@pytest.mark.parametrize("way", ["model", "call"])
def test_beside_what_was_cached_by_name_nothing_is_added_to_the_system_text(servers, way):
    """Gemini refuses system text and tools there: what was cached has them. The role's text stands at the end."""
    provider = servers("gemini-explicit")
    provider.simulator.script = Queue(["fine"])
    cached = {"model": "models/gemini-2.5-flash", "contents": [{"role": "user", "parts": [{"text": HANDBOOK}]}]}
    headers = {"x-goog-api-key": "k"}
    name = httpx.post(f"{provider.url}/v1beta/cachedContents", json=cached, headers=headers).json()["name"]
    session = Session(SharedPrefix(system=HANDBOOK), caching=Caching(provider="gemini-explicit", counter=ESTIMATE))
    own = {"cached_content": name} if way == "model" else {}
    gemini = ChatGoogleGenerativeAI(
        model="gemini-2.5-flash", google_api_key="k", base_url=provider.url, max_retries=1, **own
    )
    model = wrap_model(gemini, session)
    graph, previous = StateGraph(MessagesState), START
    for role in ROLES:

        def node(state):
            """A role whose text the library knows alone."""
            named = {} if own else {"cached_content": name}
            model.invoke(state["messages"], **named)
            return {}

        dressed = forked(session, role=role, instruction=f"I am the {role}.", volatile=lambda _: {"now": "11:59"})
        graph.add_node(role, dressed(node))
        graph.add_edge(previous, role)
        previous = role
    graph.compile().invoke({"messages": ASKED})
    for record, role in zip(provider.requests, ROLES, strict=True):
        assert record.json["cachedContent"] == name
        assert "systemInstruction" not in record.json
        said = [part["text"] for content in record.json["contents"] for part in content["parts"]]
        assert said[0] == "Please begin."
        assert all(word in said[1] for word in (f"I am the {role}.", "11:59"))
        assert len(said) == 2
    assert session.failures == {}
