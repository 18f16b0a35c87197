"""LangGraph and LangChain: what an application sees of its models, nodes, graphs and agents."""

import asyncio
import copy
import functools
import itertools
import operator
import pickle
import re
import warnings
from dataclasses import dataclass, field
from typing import Annotated

import pytest

pytest.importorskip("langgraph", reason="the LangGraph adapter is tested in its own environment (make test)")

import openai
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    TodoListMiddleware,
    ToolRetryMiddleware,
    dynamic_prompt,
)
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain.chat_models import init_chat_model
from langchain_anthropic import ChatAnthropic
from langchain_anthropic._client_utils import _get_default_async_httpx_client
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler, UsageMetadataCallbackHandler
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.load import dumpd
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_core.runnables import ConfigurableField, RunnableLambda, RunnableParallel
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, custom_tool
from langchain_openai.chat_models._client_utils import _cached_async_httpx_client
from langgraph.cache.memory import InMemoryCache as NodeCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.store.memory import InMemoryStore
from langgraph.types import CachePolicy, Command, RetryPolicy, Send, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from cacheprefix import Caching, Session, SharedPrefix, ToolResultBudget
from cacheprefix.prompt import ESTIMATE
from cacheprefix.server import Fault, Reply, Rule, Rules, ToolCall
from cacheprefix_langgraph import PrefixMiddleware, PrefixState, forked, subgraph, wrap_model
from tests.transparent.compare import allowed_in
from tests.transparent.harness import Constructs, Stage

pytestmark = [
    # LangChain's models never close their SDK client, and its sockets are found open when it is collected.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

HANDBOOK = "The handbook says that every statement needs a source. " * 120
BEGIN = HumanMessage("Please begin.", id="h")
KINDS = {"chat": "openai", "responses": "openai", "anthropic": "anthropic"}
try:
    from langchain_aws import ChatBedrockConverse
except ImportError:  # it asks for a newer langchain-core than the adapter does
    ChatBedrockConverse = None
else:
    KINDS["bedrock"] = "bedrock"
QUICK = ("invoke", "ainvoke", "astream_every_mode", "batch_and_parallel", "bindings", "callbacks", "copies_of_a_model")
"""The constructs that are run for Bedrock's class each time; the others are slow together."""
ALL_MODES = ["values", "updates", "messages", "custom", "tasks", "checkpoints", "debug"]
THREAD = {"configurable": {"thread_id": "t"}}
_KEPT = []
"""Models whose clients were used in an event loop: kept, or their sockets are found open when they are collected."""


@tool
def look(at: str) -> str:
    """Look at something."""
    return f"seen: {at}"


@tool
def write(text: str) -> str:
    """Write something."""
    return f"written: {text}"


class Grade(BaseModel):
    """A grade for a text."""

    score: int
    why: str = ""


def you(role):
    """The system message of a role, as applications write it: its own words, then what all share."""
    return SystemMessage(f"You are {role}.\n\n{HANDBOOK}")


def calls(name="look", at="x", number=1, text=""):
    """An answer that calls a tool."""
    arguments = {"at": at} if name == "look" else {"text": at}
    return Reply(text, tool_calls=(ToolCall(name, arguments, id=f"call_{name}_{number}"),))


class Graphs(Stage):
    """Models, nodes and agents, with or without us."""

    rules = "openai"
    kind = "chat"
    random = (("a date", re.compile(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT")),)

    def new_session(self, **options):
        return Session(SharedPrefix(system=HANDBOOK, tools=[look, write]), caching=Caching(counter=ESTIMATE), **options)

    def raw(self, **options):
        """The application's model."""
        if self.kind == "bedrock":
            known = {"endpoint_url": self.provider.url, "region_name": "us-east-1", "aws_access_key_id": "k"}
            known |= {"aws_secret_access_key": "k"}
            made = ChatBedrockConverse(
                **{"model": "anthropic.claude-opus-4-1-20250805-v1:0", "max_retries": 0, **known, **options}
            )
        elif self.kind == "anthropic":
            made = ChatAnthropic(
                **{"model": "claude-opus-4-1", "base_url": self.provider.anthropic_base_url, **options},
                api_key="k",
                max_retries=0,
            )
        else:
            options.setdefault("use_responses_api", self.kind == "responses")
            made = ChatOpenAI(
                **{"model": "gpt-4.1", "base_url": self.provider.openai_base_url, **options}, api_key="k", max_retries=0
            )
        _KEPT.append(made)
        return made

    def model(self, **options):
        """It, or its wrapped copy."""
        made = self.raw(**options)
        return made if self.unmodified else wrap_model(made, self.session())

    def node(self, role=None, **options):
        """Decorates a node."""
        return (lambda function: function) if self.unmodified else forked(self.session(), role=role, **options)

    def ours(self, role="agent", **options):
        """Middleware that an agent gets with us."""
        return [] if self.unmodified else [PrefixMiddleware(self.session(), role=role, **options)]

    def speaks(self, role, model, *, later=False, **options):
        """A node that asks a model once."""

        def ask(state):
            return {"messages": [model.invoke([you(role), *state["messages"]])]}

        async def aask(state):
            return {"messages": [await model.ainvoke([you(role), *state["messages"]])]}

        return self.node(role, **options)(aask if later else ask)

    def chain(self, *nodes, state=MessagesState, **options):
        """A compiled graph of nodes, one after the other."""
        graph = StateGraph(state)
        before = START
        for number, node in enumerate(nodes):
            graph.add_node(f"n{number}", node)
            graph.add_edge(before, f"n{number}")
            before = f"n{number}"
        graph.add_edge(before, END)
        return graph.compile(**options)

    def close(self):
        _cached_async_httpx_client.cache_clear()
        _get_default_async_httpx_client.cache_clear()


CONSTRUCTS = Constructs("langgraph", Graphs)


def everywhere(*kinds, **options):
    """Registers a construct once for every kind of model."""

    def register(run):
        for kind in kinds or KINDS:

            def of_kind(stage, kind=kind):
                stage.kind = kind
                return run(stage)

            CONSTRUCTS.add(f"{run.__name__}[{kind}]", rules=KINDS[kind], **options)(of_kind)
        return run

    return register


def once(**options):
    """Registers a construct for chat completions alone, where kinds of models do not differ."""
    return everywhere("chat", **options)


class Recorder(BaseCallbackHandler):
    """Every callback, with everything that it was given."""

    def __init__(self):
        self.events = []

    def __getattribute__(self, name):
        if name.startswith("on_"):
            return lambda *args, **kwargs: self.events.append([name, list(args), dict(kwargs)])
        return super().__getattribute__(name)


def everything(app):
    """What can be known of a graph without running it."""
    return {
        "nodes": sorted(app.nodes),
        "drawing": app.get_graph(xray=True).draw_mermaid(),
        "json": app.get_graph(xray=True).to_json(with_schemas=True),
        "input": app.get_input_jsonschema(),
        "output": app.get_output_jsonschema(),
        "context": app.get_context_jsonschema(),
        "channels": sorted(app.stream_channels_list),
        "name": app.get_name(),
    }


def outcome(run):
    """What a call gives, or the error that it raises."""
    try:
        return run()
    except Exception as error:
        return error


async def gather(stream):
    return [one async for one in stream]


# ------------------------------------------------------------------ nodes that ask once


@everywhere()
def requests_that_ask_nothing(stage):
    """A system message alone, and with nothing or white space to ask; without any. What a provider refuses, it does."""
    stage.script(lambda _: Reply("Yes."))
    llm, gave = stage.model(), []
    blank = [{"type": "text", "text": " "}]
    said = ([], [""], [" \n"], ["", " "], [blank], ["Go on."])
    asked = [[], *([you("alpha"), *map(HumanMessage, texts)] for texts in said)]

    @stage.node("alpha")
    def alpha(state):
        for messages, ask in itertools.product(asked, (llm.invoke, llm.stream)):
            try:
                answer = ask(messages)
                gave.append(answer if isinstance(answer, AIMessage) else list(answer))
            except Exception as error:  # noqa: PERF203 - most of them
                gave.append(error)
        return {}

    @stage.node("beta")
    async def beta(state):
        for messages in asked:
            try:
                gave.append(await llm.ainvoke(messages))
            except Exception as error:  # noqa: PERF203 - most of them
                gave.append(error)
        return {}

    asyncio.run(stage.chain(alpha, beta).ainvoke({"messages": [BEGIN]}))
    return gave


@once()
def refused_for_one_message(stage):
    """A result that answers no call, behind what a long role was answered: the provider names its place."""
    stage.script("So it is.")
    llm, gave = stage.model(), []
    first = [you("alpha. " + "You plan what others build, and say why. " * 60), BEGIN]

    @stage.node("alpha")
    def alpha(state):
        gave.append(llm.invoke(first))
        try:
            llm.invoke([*first, AIMessage("So it is."), ToolMessage("x", tool_call_id="none")])
        except openai.BadRequestError as error:
            gave.append(error)
        return {}

    stage.chain(alpha).invoke({"messages": [BEGIN]}, THREAD)
    return gave


@everywhere()
def invoke(stage):
    stage.script("The first answer.", "The second answer.", "The third answer.")
    llm = stage.model()
    app = stage.chain(stage.speaks("alpha", llm), stage.speaks("beta", llm), checkpointer=InMemorySaver())
    first = app.invoke({"messages": [BEGIN]}, THREAD)
    again = app.invoke({"messages": [HumanMessage("Go on.", id="h2")]}, THREAD)
    return {"first": first, "again": again, "history": list(app.get_state_history(THREAD)), "graph": everything(app)}


@everywhere()
def ainvoke(stage):
    stage.script("The first answer.", "The second answer.")
    llm = stage.model()
    app = stage.chain(stage.speaks("alpha", llm, later=True), stage.speaks("beta", llm, later=True))
    return asyncio.run(app.ainvoke({"messages": [BEGIN]}))


@everywhere()
def stream_every_mode(stage):
    stage.script("The first answer.", "The second answer.")
    llm = stage.model()
    app = stage.chain(stage.speaks("alpha", llm), stage.speaks("beta", llm), checkpointer=InMemorySaver())
    return list(app.stream({"messages": [BEGIN]}, THREAD, stream_mode=ALL_MODES))


@everywhere()
def astream_every_mode(stage):
    stage.script("The first answer.", "The second answer.")
    llm = stage.model()
    nodes = [stage.speaks(role, llm, later=True) for role in ("alpha", "beta")]
    app = stage.chain(*nodes, checkpointer=InMemorySaver())
    return asyncio.run(gather(app.astream({"messages": [BEGIN]}, THREAD, stream_mode=ALL_MODES)))


class Kept(MessagesState):
    """The application's state."""


Plain = Kept


class Kept(MessagesState, PrefixState):
    """The application's state."""


@once()
def a_state_that_keeps_decisions(stage):
    """One node says something, the other gives nothing back."""
    stage.script("The first answer.", "The second answer.")
    llm = stage.model()

    @stage.node("beta")
    def beta(state):
        llm.bind_tools([look]).invoke([you("beta"), *state["messages"]])

    # Observed it is there as well, which is the application's own doing.
    state = Kept if stage.mode == "forked" else Plain
    app = stage.chain(stage.speaks("alpha", llm), beta, state=state, checkpointer=InMemorySaver())
    streamed = list(app.stream({"messages": [BEGIN]}, THREAD, stream_mode="updates"))
    return {"streamed": streamed, "state": app.get_state(THREAD), "graph": everything(app)}


@everywhere()
def stream_messages_of_all_calls(stage):
    """A role without tools and one with them: what a token is must not change with the union."""
    stage.script("The first answer.", "The second answer.", "The third.")
    llm = stage.model()

    @stage.node("alpha")
    def alpha(state):
        return {"messages": [llm.bind_tools([look]).invoke([you("alpha"), *state["messages"]])]}

    app = stage.chain(stage.speaks("gamma", llm), alpha, stage.speaks("beta", llm))
    return list(app.stream({"messages": [BEGIN]}, stream_mode="messages"))


@everywhere()
def events(stage):
    stage.script("The first answer.", "The second answer.", *["More."] * 8)
    llm = stage.model()
    app = stage.chain(stage.speaks("alpha", llm, later=True), stage.speaks("beta", llm, later=True))

    async def run():
        given = {"messages": [BEGIN]}
        return {version: await gather(app.astream_events(given, version=version)) for version in ("v1", "v2")}

    return asyncio.run(run())


@everywhere()
def a_model_streamed_in_a_node(stage):
    stage.script("The first answer.", "The second answer.", calls(), "The fourth.")
    llm = stage.model()
    seen = []

    @stage.node("alpha")
    def alpha(state):
        chunks = list(llm.stream([you("alpha"), *state["messages"]]))
        seen.append(chunks)
        return {"messages": [functools.reduce(operator.add, chunks)]}

    @stage.node("beta")
    async def beta(state):
        chunks = await gather(llm.astream([you("beta"), *state["messages"]]))
        seen.append(chunks)
        return {"messages": [functools.reduce(operator.add, chunks)]}

    @stage.node("gamma")
    def gamma(state):
        chunks = list(llm.bind_tools([look]).stream([you("gamma"), *state["messages"]]))
        seen.append(chunks)
        return {"messages": [HumanMessage("Next.", id="n")]}

    @stage.node("delta")
    def delta(state):
        # Only for what is made when streaming, and no field of a body.
        options = {} if stage.kind in ("responses", "bedrock") else {"stream_usage": True}
        seen.append(list(llm.stream([you("delta"), *state["messages"]], **options)))
        return {"messages": []}

    app = stage.chain(alpha, beta, gamma, delta)
    return {"result": asyncio.run(app.ainvoke({"messages": [BEGIN]})), "chunks": seen}


@everywhere()
def model_events_in_a_node(stage):
    stage.script(*["An answer."] * 4)
    llm = stage.model()
    seen = []

    @stage.node("alpha")
    async def alpha(state):
        given = [you("alpha"), *state["messages"]]
        seen.append(await gather(llm.astream_events(given, version="v2")))
        return {"messages": [AIMessage("Yes.", id="a")]}

    asyncio.run(stage.chain(alpha).ainvoke({"messages": [BEGIN]}))
    return seen


@everywhere()
def v3_streams(stage):
    stage.script(*["An answer."] * 4)
    llm = stage.model()
    seen = []

    @stage.node("alpha")
    def alpha(state):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            stream = llm.stream_events([you("alpha"), *state["messages"]], version="v3")
        seen.append([list(stream), stream.output])
        return {"messages": [AIMessage("Yes.", id="a")]}

    stage.chain(alpha, stage.speaks("beta", llm)).invoke({"messages": [BEGIN]})
    return seen


@everywhere()
def batch_and_parallel(stage):
    stage.script(Rules([Rule(f"ask {n}", Reply(f"Answer {n}.")) for n in "abcdef"], default=lambda _: Reply("Other.")))
    llm = stage.model()

    def given(role, state, n):
        # Nobody's request begins as another's does, so that what one reads does not depend on who came first.
        return [you(f"{role} {n}"), *state["messages"], HumanMessage(f"ask {n}")]

    @stage.node("alpha")
    def alpha(state):
        return {"messages": llm.batch([given("alpha", state, n) for n in "ab"])}

    @stage.node("beta")
    async def beta(state):
        return {"messages": await llm.abatch([given("beta", state, n) for n in "cd"])}

    @stage.node("gamma")
    def gamma(state):
        ways = {n: RunnableLambda(functools.partial(given, "gamma", state)) | llm for n in "ef"}
        both = RunnableParallel({n: RunnableLambda(lambda _, n=n: n) | way for n, way in ways.items()}).invoke("")
        return {"messages": [both["e"], both["f"]]}

    return asyncio.run(stage.chain(alpha, beta, gamma).ainvoke({"messages": [BEGIN]}))


# ------------------------------------------------------------------ fan-outs


class Fan(TypedDict, total=False):
    messages: Annotated[list, add_messages]
    parts: Annotated[list, operator.add]


def fan(stage, later, **options):
    """Three workers of one cold prefix at once."""
    stage.script(
        Rules([Rule(f"part {n}", Reply(f"Answer {n}."), anywhere=True) for n in "abc"], default=lambda _: Reply("Sum."))
    )
    stage.slow(0.05)
    llm = stage.model(**options)
    record = Recorder()

    def asked(part):
        return [you(f"worker {part}"), BEGIN, HumanMessage(f"part {part}")]

    def ask(given):
        return {"parts": [[given["part"], llm.invoke(asked(given["part"]))]]}

    async def aask(given):
        answer = await llm.ainvoke(asked(given["part"]))
        return {"parts": [[given["part"], answer]]}

    graph = StateGraph(Fan)
    graph.add_node("worker", stage.node("worker")(aask if later else ask))
    graph.add_conditional_edges(START, lambda _: [Send("worker", {"part": n}) for n in "abc"], ["worker"])
    graph.add_edge("worker", END)
    app = graph.compile()
    config = {"callbacks": [record]}
    given = {"messages": [BEGIN], "parts": []}
    result = asyncio.run(app.ainvoke(given, config)) if later else app.invoke(given, config)
    return {
        "parts": sorted(result["parts"], key=operator.itemgetter(0)),
        "tokens": sum(name == "on_llm_new_token" for name, *_ in record.events),
        "callbacks": sorted(name for name, *_ in record.events),
    }


@everywhere()
def send(stage):
    return fan(stage, later=False)


@everywhere()
def asend(stage):
    return fan(stage, later=True)


@everywhere("chat")
def send_with_logprobs(stage):
    return fan(stage, later=False, logprobs=True)


@everywhere()
def fan_out_of_nodes(stage):
    roles = ("alpha", "beta", "gamma")
    stage.script(Rules([Rule(f"You are {n}", Reply(f"Answer {n}."), anywhere=True) for n in roles]))
    stage.slow(0.05)
    llm = stage.model()
    graph = StateGraph(MessagesState)
    for role in roles:
        graph.add_node(role, stage.speaks(role, llm))
        graph.add_edge(START, role)
        graph.add_edge(role, END)
    result = graph.compile().invoke({"messages": [BEGIN]})
    return {"messages": result["messages"]}


# ------------------------------------------------------------------ tools


@everywhere()
def tool_loop(stage):
    stage.script(calls(number=1, text="Let me look."), calls("write", number=2), "Done.", "Bye.")
    llm = stage.model()
    bound = llm.bind_tools([look, write])

    @stage.node("alpha")
    def alpha(state):
        return {"messages": [bound.invoke([you("alpha"), *state["messages"]])]}

    graph = StateGraph(MessagesState)
    graph.add_node("alpha", alpha)
    graph.add_node("tools", ToolNode([look, write]))
    graph.add_node("beta", stage.speaks("beta", llm))
    graph.add_edge(START, "alpha")
    graph.add_conditional_edges("alpha", tools_condition, {"tools": "tools", END: "beta"})
    graph.add_edge("tools", "alpha")
    app = graph.compile(checkpointer=InMemorySaver())
    out = list(app.stream({"messages": [BEGIN]}, THREAD, stream_mode=["updates", "messages"]))
    return {"out": out, "state": app.get_state(THREAD), "graph": everything(app)}


@everywhere()
def loop_inside_a_node(stage):
    stage.script(calls(number=1), calls(at="y", number=2), "Done.", "Bye.")
    llm = stage.model()

    @stage.node("alpha", pinned=True)
    def alpha(state):
        said = list(state["messages"])
        while True:
            said.append(llm.bind_tools([look]).invoke([you("alpha"), *said]))
            if not said[-1].tool_calls:
                return {"messages": said[len(state["messages"]) :]}
            said += [look.invoke(call) for call in said[-1].tool_calls]

    return stage.chain(alpha, stage.speaks("beta", llm)).invoke({"messages": [BEGIN]})


@everywhere()
def bindings(stage):
    """What ``bind_tools`` gives in all its forms."""
    stage.script(*["An answer."] * 12)
    llm = stage.model()
    seen = []

    @stage.node("alpha")
    def alpha(state):
        given = [you("alpha"), *state["messages"]]
        ways = ({}, {"tool_choice": "auto"}, {"parallel_tool_calls": False}, {"strict": True})
        ways = ways[:2] + ways[3:] if stage.kind == "bedrock" else ways  # whose class takes no such option
        seen.extend(llm.bind_tools([look], **options).invoke(given) for options in ways)
        return {"messages": [llm.bind_tools([Grade.model_json_schema(), look]).invoke(given)]}

    return [stage.chain(alpha).invoke({"messages": [BEGIN]}), seen]


@everywhere("responses", forks=False)
def custom_tools(stage):
    """Tools that are no functions."""

    @custom_tool
    def code(text: str) -> str:
        """Run code."""
        return text

    stage.script("One.", "Two.")
    llm = stage.model()
    bound = llm.bind_tools([look, code])

    @stage.node("alpha")
    def alpha(state):
        return {"messages": [bound.invoke([you("alpha"), *state["messages"]])]}

    return [stage.chain(alpha).invoke({"messages": [BEGIN]}), bound.kwargs]


# ------------------------------------------------------------------ structured output


@everywhere()
def structured_output(stage):
    answer = Reply('{"score": 7, "why": "good"}')
    call = Reply(tool_calls=(ToolCall("Grade", {"score": 7, "why": "good"}, id="call_grade"),))
    llm = stage.model()
    seen = []
    method = "json_schema" if stage.kind != "anthropic" else "function_calling"

    @stage.node("alpha")
    def alpha(state):
        given = [you("alpha"), *state["messages"]]
        stage.script(call)
        seen.append(llm.with_structured_output(Grade, method="function_calling").invoke(given))
        stage.script(call if method == "function_calling" else answer)
        seen.append(llm.with_structured_output(Grade, method=method).invoke(given))
        stage.script(call if method == "function_calling" else answer)
        seen.append(llm.with_structured_output(Grade, method=method, include_raw=True).invoke(given))
        stage.script(call if method == "function_calling" else answer)
        seen.append(llm.with_structured_output(Grade.model_json_schema(), method=method).invoke(given))
        stage.script("Text.")
        return {"messages": [AIMessage("Yes.", id="a")]}

    app = stage.chain(alpha, stage.speaks("beta", llm))
    chunks = list(app.stream({"messages": [BEGIN]}, stream_mode=["messages", "updates"]))
    result = app.invoke({"messages": [BEGIN]})
    return {"seen": seen, "chunks": chunks, "result": result}


@everywhere("anthropic")
def structured_output_by_the_provider(stage):
    stage.script('{"score": 7, "why": "good"}')
    llm = stage.model()

    @stage.node("alpha")
    def alpha(state):
        given = [you("alpha"), *state["messages"]]
        return {"messages": [AIMessage(repr(llm.with_structured_output(Grade, method="json_schema").invoke(given)))]}

    return stage.chain(alpha).invoke({"messages": [BEGIN]})


@everywhere()
def structured_agent(stage):
    by_tool = Reply(tool_calls=(ToolCall("Grade", {"score": 7}, id="call_grade"),))
    out = []
    for strategy, answer in ((ToolStrategy(Grade), by_tool), (ProviderStrategy(Grade), Reply('{"score": 7}'))):
        stage.script(calls(), answer)
        if not stage.unmodified:
            stage.session().adapter.join("another")
        agent = create_agent(
            stage.model(), [look], system_prompt="You grade.", response_format=strategy, middleware=stage.ours("grader")
        )
        out.append([agent.invoke({"messages": [BEGIN]}), everything(agent)])
    return out


# ------------------------------------------------------------------ agents


def agent_of(stage, *middleware, model=None, alone=False, tools=(look, write), ours=None, **options):
    """An agent as LangChain makes it."""
    if not stage.unmodified and not alone:
        stage.session().adapter.join("another")
    return create_agent(
        stage.model() if model is None else model,
        list(tools),
        system_prompt=f"You code.\n\n{HANDBOOK}",
        middleware=[*middleware, *stage.ours("coder", **(ours or {}))],
        **options,
    )


@everywhere()
def agent(stage):
    stage.script(calls(number=1, text="Let me look."), "Done.", "Again.")
    app = agent_of(stage, checkpointer=InMemorySaver())
    chunks = list(app.stream({"messages": [BEGIN]}, THREAD, stream_mode=ALL_MODES))
    again = app.invoke({"messages": [HumanMessage("More.", id="h2")]}, THREAD)
    return {"chunks": chunks, "again": again, "history": list(app.get_state_history(THREAD)), "graph": everything(app)}


@everywhere()
def async_agent(stage):
    stage.script(calls(number=1), "Done.", calls(number=2), "Again.")
    app = agent_of(stage, checkpointer=InMemorySaver())

    async def run():
        chunks = await gather(app.astream({"messages": [BEGIN]}, THREAD, stream_mode=ALL_MODES))
        events = await gather(app.astream_events({"messages": [HumanMessage("More.", id="h2")]}, THREAD, version="v2"))
        return {"chunks": chunks, "events": events}

    return asyncio.run(run())


@once(forks=False)
def agent_alone(stage):
    """With nobody to share with."""
    stage.script(calls(), "Done.")
    app = agent_of(stage, alone=True, checkpointer=InMemorySaver())
    return {"result": app.invoke({"messages": [BEGIN]}, THREAD), "graph": everything(app)}


@everywhere()
def agent_whose_model_is_not_wrapped(stage):
    stage.script(calls(), "Done.")
    model = stage.raw()
    app = agent_of(stage, model=model)
    return {"result": app.invoke({"messages": [BEGIN]}), "graph": everything(app), "model": sorted(vars(model))}


@once(forks=False)
def agent_on_a_model_with_state(stage):
    """A model that counts, whose binding is itself."""

    class Counting(FakeMessagesListChatModel):
        def bind_tools(self, tools, **options):
            return self

    answers = [AIMessage("", id="a", tool_calls=[{"name": "look", "args": {"at": "1"}, "id": "1"}])]
    model = Counting(responses=[*answers, AIMessage("Done.", id="b"), AIMessage("Never.", id="c")])
    out = agent_of(stage, model=model).invoke({"messages": [BEGIN]})
    return {"messages": [one.text for one in out["messages"]], "asked": model.i, "model": model}


@everywhere()
def agent_pinned(stage):
    stage.script(calls(number=1), calls(at="y", number=2), "Done.", calls(number=3), "Again.")
    app = agent_of(stage, ours={"pinned": True}, checkpointer=InMemorySaver())
    first = app.invoke({"messages": [BEGIN]}, THREAD)
    again = app.invoke({"messages": [HumanMessage("More.", id="h2")]}, THREAD)
    return {"first": first, "again": again, "state": app.get_state(THREAD).values, "graph": everything(app)}


@once()
def agent_with_a_budget(stage):
    """What was decided on its history stands in the state, so that a resumed thread repeats it."""

    @tool
    def long(at: str) -> str:
        """Give a long text."""
        return "\n".join(f"line {n} of {at}" for n in range(400))

    stage.script(Reply(tool_calls=(ToolCall("long", {"at": "x"}, id="call_long"),)), "Done.")
    if not stage.unmodified:
        stage.session(budget=ToolResultBudget(max_tokens=200))
    app = agent_of(stage, tools=[long], checkpointer=InMemorySaver())
    result = app.invoke({"messages": [BEGIN]}, THREAD)
    return {"result": result, "state": app.get_state(THREAD), "graph": everything(app)}


@everywhere()
def agent_without_tools(stage):
    stage.script("Done.")
    app = agent_of(stage, tools=())
    return {"chunks": list(app.stream({"messages": [BEGIN]}, stream_mode=ALL_MODES)), "graph": everything(app)}


@once()
def agent_with_other_middleware(stage):
    class Mine(AgentMiddleware):
        def before_model(self, state, runtime):
            return {"messages": []} if len(state["messages"]) > 9 else None

        def after_model(self, state, runtime):
            return {"jump_to": "model"} if len(state["messages"]) < 4 else None

        def wrap_tool_call(self, request, handler):
            done = handler(request)
            return done.model_copy(update={"content": f"{done.content}!"})

    @dynamic_prompt
    def prompt(request):
        return f"You code at turn {len(request.messages)}.\n\n{HANDBOOK}"

    stage.script("Hm.", "Hm again.", calls(), "Done.", "Done again.")
    others = [Mine(), prompt, ToolRetryMiddleware(), ModelCallLimitMiddleware(run_limit=9), TodoListMiddleware()]
    app = agent_of(stage, *others)
    return {"chunks": list(app.stream({"messages": [BEGIN]}, stream_mode=ALL_MODES)), "graph": everything(app)}


@once()
def agent_that_asks_a_human(stage):
    stage.script(calls(), "Done.")
    app = agent_of(stage, HumanInTheLoopMiddleware(interrupt_on={"look": True}), checkpointer=InMemorySaver())
    first = app.invoke({"messages": [BEGIN]}, THREAD)
    then = app.invoke(Command(resume={"decisions": [{"type": "approve"}]}), THREAD)
    return {"first": first, "then": then, "history": list(app.get_state_history(THREAD))}


@once()
def agent_with_fallbacks(stage):
    stage.script(Reply(fault=Fault(status=500)), "Done.")
    app = agent_of(stage, ModelFallbackMiddleware(stage.model(model="gpt-4.1-mini")))
    return app.invoke({"messages": [BEGIN]})


@once()
def agent_that_meets_an_unknown_tool(stage):
    """LangChain's own message about it."""
    stage.script(Reply(tool_calls=(ToolCall("nothing", {}, id="call_nothing"),)), "Done.")
    return agent_of(stage).invoke({"messages": [BEGIN]})


@once(forks=False)
def agent_whose_tools_others_add(stage):
    """LangChain's own error about tools that no node runs."""

    @tool
    def ghost(at: str) -> str:
        """Is nowhere."""
        return at

    class Adds(AgentMiddleware):
        def wrap_model_call(self, request, handler):
            return handler(request.override(tools=[*request.tools, ghost]))

    stage.script("Done.")
    return outcome(lambda: agent_of(stage, Adds()).invoke({"messages": [BEGIN]}))


@once()
def agents_as_nodes(stage):
    """A graph of agents: what each sees, drawn and streamed through."""
    stage.script(calls(), "Found.", "Written.")
    model = stage.model()
    inner = [
        create_agent(model, [one], system_prompt=f"You {name}.\n\n{HANDBOOK}", middleware=stage.ours(name), name=name)
        for name, one in (("look", look), ("write", write))
    ]
    app = stage.chain(*inner, checkpointer=InMemorySaver())
    chunks = list(app.stream({"messages": [BEGIN]}, THREAD, stream_mode=["updates", "values"], subgraphs=True))
    return {"chunks": chunks, "history": list(app.get_state_history(THREAD)), "graph": everything(app)}


@once()
def graphs_as_nodes(stage):
    stage.script("Found.", "Written.", "Read.")
    llm = stage.model()

    def inner(role):
        def ask(state):
            return {"messages": [llm.invoke([you(role), *state["messages"]])]}

        made = stage.chain(ask, name=role)
        return made if stage.unmodified else subgraph(made, stage.session(), role=role)

    nodes = [inner("alpha"), inner("beta")]
    app = stage.chain(*nodes, checkpointer=InMemorySaver())
    chunks = list(app.stream({"messages": [BEGIN]}, THREAD, stream_mode=ALL_MODES, subgraphs=True))
    return {"chunks": chunks, "graph": everything(app), "inner": everything(nodes[0])}


@once()
@pytest.mark.filterwarnings("ignore")
def supervisor(stage):
    from langgraph_supervisor import create_supervisor

    roles = ("looker", "writer")
    hand = [Reply(tool_calls=(ToolCall(f"transfer_to_{role}", {}, id=f"call_{role}"),)) for role in roles]
    stage.script(hand[0], "Looked.", hand[1], "Written.", "All done.")
    boss = stage.raw()
    workers = []
    for role in roles:
        made = create_agent(stage.model(), [look], name=role, system_prompt=f"You are {role}.\n\n{HANDBOOK}")
        workers.append(made if stage.unmodified else subgraph(made, stage.session(), role=role))
    boss = boss if stage.unmodified else wrap_model(boss, stage.session(), role="supervisor")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        app = create_supervisor(workers, model=boss, prompt=f"You lead.\n\n{HANDBOOK}").compile()
    return {"result": app.invoke({"messages": [BEGIN]}), "graph": everything(app)}


def deep_agents(stage, mode):
    """A lead of deepagents with two helpers, which has its script: it asks both, and writes a file."""
    from deepagents import create_deep_agent

    roles = ("looker", "writer")

    def hand(role):
        asked = {"subagent_type": role, "description": f"Go on as {role}."}
        return Reply(tool_calls=(ToolCall("task", asked, id=f"call_{role}"),))

    noted = ToolCall("write_file", {"file_path": "/notes.md", "content": "Noted."}, id="call_note")
    stage.script(
        hand("looker"), calls(), "Looked.", Reply(tool_calls=(noted,)), hand("writer"), "Written.", "All done."
    )
    helpers = [
        {
            "name": role,
            "description": f"The {role}.",
            "system_prompt": f"You are {role}.\n\n{HANDBOOK}",
            "middleware": stage.ours(role),
            **({"mode": "fork"} if mode == "fork" else {}),
        }
        for role in roles
    ]
    with warnings.catch_warnings():
        # deepagents calls its fork mode a preview.
        warnings.simplefilter("ignore")
        return create_deep_agent(
            stage.model(),
            [look],
            system_prompt=f"You lead.\n\n{HANDBOOK}",
            subagents=helpers,
            middleware=stage.ours("lead"),
            checkpointer=InMemorySaver(),
        )


DEEP = {"stream_mode": ["values", "updates", "custom"], "subgraphs": True}


@everywhere("chat", "anthropic")
def deep_agents_isolated(stage):
    app = deep_agents(stage, "isolated")
    chunks = list(app.stream({"messages": [BEGIN]}, THREAD, **DEEP))
    return {"chunks": chunks, "saved": app.get_state(THREAD).values, "graph": everything(app)}


@everywhere("chat", "anthropic")
def async_deep_agents_forked(stage):
    app = deep_agents(stage, "fork")
    chunks = asyncio.run(gather(app.astream({"messages": [BEGIN]}, THREAD, **DEEP)))
    return {"chunks": chunks, "saved": app.get_state(THREAD).values, "graph": everything(app)}


# ------------------------------------------------------------------ everything that LangGraph takes as a node


class Team:
    """Nodes that are methods."""

    def __init__(self, stage, llm):
        self.alpha_said = []
        self.llm = llm

    def alpha(self, state):
        self.alpha_said.append(len(state["messages"]))
        return {"messages": [self.llm.invoke([you("alpha"), *state["messages"]])]}

    async def beta(self, state):
        return {"messages": [await self.llm.ainvoke([you("beta"), *state["messages"]])]}

    def __call__(self, state):
        return {"messages": [self.llm.invoke([you("gamma"), *state["messages"]])]}


def named(stage, *nodes, **options):
    """A graph whose nodes LangGraph names itself."""
    graph = StateGraph(MessagesState)
    graph.add_sequence(nodes)
    graph.add_edge(START, next(iter(graph.nodes)))
    return graph.compile(**options)


def told(messages):
    """Volatile text of a role's state."""
    return {"count": str(len(messages["messages"]))}


@once()
def methods(stage):
    stage.script("One.", "Two.", "Three.", "Four.")
    team = Team(stage, stage.model())
    if stage.unmodified:
        kind = Team
    else:

        class Decorated(Team):
            alpha = forked(stage.session(), volatile=told)(Team.alpha)
            beta = forked(stage.session(), volatile=told)(Team.beta)

        Decorated.__qualname__ = Decorated.__name__ = "Team"
        kind = Decorated
    made = kind(stage, stage.model())
    app = named(stage, made.alpha, made.beta, stage.node("gamma", volatile=told)(team))
    result = asyncio.run(app.ainvoke({"messages": [BEGIN]}))
    bound = stage.node("alpha", volatile=told)(team.alpha)
    return {"result": result, "graph": everything(app), "bound": bound({"messages": [BEGIN]}), "said": made.alpha_said}


@once()
def generators(stage):
    stage.script("One.", "Two.", "Three.")
    llm = stage.model()

    @stage.node("alpha", volatile=told)
    def alpha(state):
        yield {"messages": [llm.invoke([you("alpha"), *state["messages"]])]}

    @stage.node("beta", volatile=told)
    async def beta(state):
        yield {"messages": [await llm.ainvoke([you("beta"), *state["messages"]])]}

    @stage.node("gamma")
    async def gamma(state):
        for chunk in llm.stream([you("gamma"), *state["messages"]]):
            yield {"messages": [chunk]}

    sync = stage.chain(alpha)
    app = named(stage, alpha, beta, gamma)
    first = outcome(lambda: sync.invoke({"messages": [BEGIN]}))
    chunks = asyncio.run(gather(app.astream({"messages": [BEGIN]}, stream_mode=ALL_MODES)))
    return {"sync": first, "chunks": chunks, "graph": everything(app)}


@once()
def partials_and_lambdas(stage):
    stage.script("One.", "Two.", "Three.")
    llm = stage.model()

    def ask(state, who):
        return {"messages": [llm.invoke([you(who), *state["messages"]])]}

    nodes = [
        stage.node()(functools.partial(ask, who="alpha")),
        stage.node()(lambda state: {"messages": [llm.invoke([you("beta"), *state["messages"]])]}),
        stage.node(volatile=told)(functools.partial(ask, who="gamma")),
    ]
    app = stage.chain(*nodes)
    return {"result": app.invoke({"messages": [BEGIN]}), "graph": everything(app)}


@once()
def runnables(stage):
    """Chains, lambdas and parallels as nodes, drawn and streamed."""
    stage.script("One.", "Two.", "Three.", "Four.", "Five.", "Six.", "Seven.", "Eight.")
    llm = stage.model()
    system = ("system", f"You are {{who}}.\n\n{HANDBOOK}")
    prompt = ChatPromptTemplate.from_messages([system, MessagesPlaceholder("messages")])

    def whole(role):
        return prompt.partial(who=role) | llm | RunnableLambda(lambda answer: {"messages": [answer]})

    chain = stage.node("alpha", volatile=told)(whole("alpha"))
    function = stage.node("beta", volatile=told)(
        RunnableLambda(lambda state: {"messages": [llm.invoke([you("beta"), *state["messages"]])]})
    )
    said = prompt.partial(who="gamma") | llm | StrOutputParser() | (lambda text: {"messages": [text]})
    parser = stage.node("gamma")(said)
    app = stage.chain(chain, function, parser)
    chunks = list(app.stream({"messages": [BEGIN]}, stream_mode=ALL_MODES))
    result = asyncio.run(app.ainvoke({"messages": [BEGIN]}))
    alone = list(chain.stream({"messages": [BEGIN]}))
    return {"chunks": chunks, "result": result, "alone": alone, "graph": everything(app), "name": chain.get_name()}


@once()
def events_of_runnables(stage):
    """Nodes that LangGraph streams step by step, where somebody listens to its events."""
    stage.script(*[f"Answer {number}." for number in range(20)])
    llm = stage.model()

    def said(role):
        return RunnableLambda(lambda state: [you(role), *state["messages"]]) | llm

    chain = said("alpha") | (lambda answer: {"messages": [answer]})
    tagged = (said("beta") | (lambda answer: {"messages": [answer]})).with_config(tags=["t"])
    each = RunnableParallel(messages=said("gamma") | (lambda answer: [answer]))
    asks = RunnableLambda(lambda state: {"messages": [llm.invoke([you("delta"), *state["messages"]])]})
    roles = {"alpha": chain, "beta": tagged, "gamma": each, "delta": asks}
    app = stage.chain(*(stage.node(role)(made) for role, made in roles.items()))
    given = {"messages": [BEGIN]}

    async def run():
        seen = {version: await gather(app.astream_events(given, version=version)) for version in ("v1", "v2")}
        # Behind another step it is given a stream.
        behind = RunnableLambda(lambda _: given) | stage.node("alpha")(chain)
        return seen | {"behind": await gather(behind.astream(1))}

    return asyncio.run(run())


@once()
def compiled_graphs_under_the_decorator(stage):
    stage.script("One.", "Two.")
    llm = stage.model()
    inner = stage.chain(lambda state: {"messages": [llm.invoke([you("alpha"), *state["messages"]])]}, name="inner")
    app = stage.chain(stage.node("alpha")(inner), stage.speaks("beta", llm))
    return {"result": app.invoke({"messages": [BEGIN]}), "graph": everything(app)}


@once()
def decorators_inside_runnables(stage):
    stage.script("One.", "Two.")
    llm = stage.model()
    nodes = [RunnableLambda(stage.speaks(role, llm)) for role in ("alpha", "beta")]
    return stage.chain(*nodes).invoke({"messages": [BEGIN]})


@once()
def nodes_that_are_given_more(stage):
    """Configuration, runtime, store and writer are found by a node's signature."""
    stage.script("One.", "Two.", "Three.")
    llm = stage.model()
    store = InMemoryStore()

    @stage.node("alpha")
    def alpha(state, config):
        get_stream_writer()({"tags": config.get("tags"), "metadata": config["metadata"]})
        return {"messages": [llm.invoke([you("alpha"), *state["messages"]])]}

    @stage.node("beta")
    def beta(state, *, store, writer):
        writer({"store": type(store).__name__})
        return Command(update={"messages": [llm.invoke([you("beta"), *state["messages"]])]}, goto="gamma")

    @stage.node("gamma")
    def gamma(state: MessagesState, runtime) -> Command:
        return [Command(update={"messages": [llm.invoke([you("gamma"), *state["messages"]], {"tags": ["mine"]})]})]

    graph = StateGraph(MessagesState)
    graph.add_node(alpha)
    graph.add_node(beta, destinations=("gamma",), metadata={"m": 1})
    graph.add_node(gamma, defer=True)
    graph.add_edge(START, "alpha")
    graph.add_edge("alpha", "beta")
    app = graph.compile(store=store)
    config = {"tags": ["theirs"], "metadata": {"who": "me"}, "run_name": "run"}
    return {"chunks": list(app.stream({"messages": [BEGIN]}, config, stream_mode=ALL_MODES)), "graph": everything(app)}


class Model(BaseModel):
    messages: Annotated[list, add_messages]
    note: str = ""


@dataclass
class Data:
    messages: Annotated[list, add_messages] = field(default_factory=list)
    note: str = ""


@once()
def states_of_other_shapes(stage):
    stage.script("One.", "Two.")
    llm = stage.model()
    out = []
    for shape in (Model, Data):

        @stage.node("alpha")
        def alpha(state: shape):
            return {"messages": [llm.invoke([you("alpha"), *state.messages])], "note": type(state).__name__}

        app = stage.chain(alpha, state=shape)
        out.append([app.invoke({"messages": [BEGIN]}), everything(app)])
    return out


@once()
def functional_api(stage):
    stage.script("One.", "Two.", "Three.")
    llm = stage.model()

    @task
    @stage.node("alpha")
    def ask(messages):
        return llm.invoke([you("alpha"), *messages])

    @entrypoint(checkpointer=InMemorySaver())
    def app(given):
        return [ask(given).result(), ask([*given, HumanMessage("More.", id="m")]).result()]

    return {"result": app.invoke([BEGIN], THREAD), "chunks": list(app.stream([BEGIN], THREAD, stream_mode=["updates"]))}


@once()
def interrupts(stage):
    stage.script("One.", "Two.", "Three.", "Four.")
    llm = stage.model()

    @stage.node("alpha")
    def alpha(state):
        answer = llm.invoke([you("alpha"), *state["messages"]])
        return {"messages": [answer, HumanMessage(interrupt("Is it good?"), id="d")]}

    app = stage.chain(alpha, stage.speaks("beta", llm), checkpointer=InMemorySaver())
    first = app.invoke({"messages": [BEGIN]}, THREAD)
    waiting = app.get_state(THREAD)
    return {"first": first, "waiting": waiting, "then": app.invoke(Command(resume="Yes."), THREAD)}


@once()
def retries_and_caches_of_nodes(stage):
    stage.script(Reply(fault=Fault(status=500)), "One.", "Two.", "Three.")
    llm = stage.model()
    graph = StateGraph(MessagesState)
    retry = RetryPolicy(initial_interval=0.001, jitter=False, retry_on=Exception)
    graph.add_node("alpha", stage.speaks("alpha", llm), retry_policy=retry)
    graph.add_node("beta", stage.speaks("beta", llm), cache_policy=CachePolicy(key_func=lambda _: "k"))
    graph.add_edge(START, "alpha")
    graph.add_edge("alpha", "beta")
    app = graph.compile(cache=NodeCache())
    given = {"messages": [BEGIN]}
    return [list(app.stream(given, stream_mode=["updates", "values"])), app.invoke(given)]


@once(forks=False)
def volatile_that_raises(stage):
    """The application's own error reaches it."""
    llm = stage.model()

    def broken(state):
        raise LookupError("no clock")

    @stage.node("alpha", volatile=broken)
    def alpha(state):
        if stage.mode != "forked":
            broken(state)
        return {"messages": [llm.invoke([you("alpha"), *state["messages"]])]}

    return outcome(lambda: stage.chain(alpha).invoke({"messages": [BEGIN]}))


# ------------------------------------------------------------------ callbacks, tags, tracing


@everywhere()
def callbacks(stage):
    stage.script("One.", calls(), "Three.")
    record, usage = Recorder(), UsageMetadataCallbackHandler()
    llm = stage.model(tags=["joke"], metadata={"mine": 1})
    bound = llm.bind_tools([look]).with_config(run_name="caller")

    @stage.node("beta")
    def beta(state):
        return {"messages": [bound.invoke([you("beta"), *state["messages"]], {"callbacks": [record], "tags": ["x"]})]}

    app = stage.chain(stage.speaks("alpha", llm), beta)
    result = app.invoke({"messages": [BEGIN]}, {"callbacks": [record, usage], "tags": ["run"], "metadata": {"r": 1}})
    return {"result": result, "events": record.events, "usage": usage.usage_metadata}


@once()
def tokens_filtered_by_tag(stage):
    stage.script("One.", "Two.")
    tagged, other = stage.model(tags=["joke"]), stage.model(tags=["poem"])
    app = stage.chain(stage.speaks("alpha", tagged), stage.speaks("beta", other))
    seen = list(app.stream({"messages": [BEGIN]}, stream_mode="messages"))
    return [chunk for chunk, metadata in seen if metadata["tags"] == ["joke"]]


@once()
def events_filtered_by_tag(stage):
    stage.script("One.", "Two.")
    llm = stage.model(tags=["joke"])
    app = stage.chain(stage.speaks("alpha", llm, later=True))
    found = app.astream_events({"messages": [BEGIN]}, version="v2", include_tags=["joke"])
    return asyncio.run(gather(found))


# ------------------------------------------------------------------ models made from models


@once()
def models_of_models(stage):
    stage.script("One.", "Two.", "Three.", "Four.", "Five.", "Six.", "Seven.")
    llm = stage.model(rate_limiter=InMemoryRateLimiter(requests_per_second=10_000, max_bucket_size=100))
    field, small = ConfigurableField(id="heat"), stage.model(model="gpt-4.1-mini")
    made = {
        "retry": llm.with_retry(stop_after_attempt=2),
        "fallbacks": llm.with_fallbacks([small]),
        "bind": llm.bind(stop=["x"]),
        "config": llm.with_config(tags=["x"], run_name="named"),
        "fields": llm.configurable_fields(temperature=field),
        "alternatives": llm.configurable_alternatives(ConfigurableField(id="which"), small=small),
    }
    out = {}
    for name, model in made.items():
        config = {"configurable": {"heat": 0.3, "which": "small"}}

        @stage.node(name)
        def ask(state, model=model, config=config):
            return {"messages": [model.invoke([you("alpha"), *state["messages"]], config)]}

        out[name] = stage.chain(ask).invoke({"messages": [BEGIN]})
    return out


@once()
def models_made_when_called(stage):
    stage.script("One.", "Two.")
    options = {"base_url": stage.provider.openai_base_url, "api_key": "k", "model_provider": "openai"}
    plain = [init_chat_model("gpt-4.1", **options), init_chat_model(configurable_fields=("model",), **options)]
    models = plain if stage.unmodified else [wrap_model(one, stage.session()) for one in plain]
    config = {"configurable": {"model": "gpt-4.1"}}
    out = []
    for model in models:

        @stage.node("alpha")
        def ask(state, model=model):
            return {"messages": [model.invoke([you("alpha"), *state["messages"]], config)]}

        out.append([stage.chain(ask).invoke({"messages": [BEGIN]}), type(model)])
    return out


@everywhere()
def errors(stage):
    llm = stage.model()
    out = {}
    for name, fault in {
        "bad": Fault(status=400),
        "busy": Fault(status=429, headers={"retry-after": "1"}),
        "broken": Fault(status=500),
        "nonsense": Fault(body=b"{"),
    }.items():
        stage.script(Reply(fault=fault))
        app = stage.chain(stage.speaks("alpha", llm))
        out[name] = outcome(lambda app=app: app.invoke({"messages": [BEGIN]}))
        stage.script(Reply("An answer that is cut off.", fault=fault if fault.status else Fault(cut_after=2)))
        given = {"messages": [BEGIN]}
        out[f"{name} streamed"] = outcome(lambda app=app, given=given: list(app.stream(given, stream_mode="messages")))
    return out


@everywhere()
def streams_cut_short(stage):
    stage.script("A first answer of several words.", "A second one.", "A third one.")
    llm = stage.model()

    @stage.node("alpha")
    def alpha(state):
        stream = llm.stream([you("alpha"), *state["messages"]])
        first = next(stream)
        stream.close()
        return {"messages": [AIMessage(repr(first.content), id="a")]}

    @stage.node("beta")
    async def beta(state):
        stream = llm.astream([you("beta"), *state["messages"]])
        first = await stream.__anext__()
        await stream.aclose()
        return {"messages": [AIMessage(repr(first.content), id="b")]}

    return asyncio.run(stage.chain(alpha, beta, stage.speaks("gamma", llm, later=True)).ainvoke({"messages": [BEGIN]}))


class Endings(BaseCallbackHandler):
    """How a call of a model ended, for its callbacks."""

    def __init__(self):
        self.told = []

    def on_llm_end(self, *_, **__):
        self.told.append("end")

    def on_llm_error(self, error, **_):
        self.told.append(type(error).__name__)


@everywhere()
def callbacks_of_streams_that_are_broken_off(stage):
    """What callbacks have heard by the time that the reader goes on, and whose error they hear of."""
    stage.script(*["An answer of several words."] * 4)
    llm, given = stage.model(), [you("alpha"), BEGIN]

    def read(state):
        closed, thrown = Endings(), Endings()
        stream = llm.stream(given, {"callbacks": [closed]})
        next(stream)
        stream.close()
        heard = list(closed.told)
        other = llm.stream(given, {"callbacks": [thrown]})
        next(other)
        ended = outcome(lambda: other.throw(LookupError("the reader's own")))
        return {"messages": [AIMessage(repr([heard, thrown.told, type(ended)]), id="a")]}

    async def aread(state):
        closed, thrown = Endings(), Endings()
        stream = llm.astream(given, {"callbacks": [closed]})
        await anext(stream)
        await stream.aclose()
        heard = list(closed.told)
        other = llm.astream(given, {"callbacks": [thrown]})
        await anext(other)
        try:
            await other.athrow(LookupError("the reader's own"))
        except LookupError as error:
            heard.append(error)
        return {"messages": [AIMessage(repr([heard, thrown.told]), id="b")]}

    app = stage.chain(stage.node("alpha")(read), stage.node("beta")(aread))
    return asyncio.run(app.ainvoke({"messages": [BEGIN]}))


@once()
def edges_and_functions_that_ask(stage):
    """What a conditional edge answers is where the graph goes on; what a function answers is its caller's."""
    stage.script(*["An answer."] * 9)
    llm = stage.model()

    @stage.node("router")
    def route(state):
        return "n1" if llm.invoke([you("router"), *state["messages"]]).text else END

    @stage.node("helper")
    def asked(state):
        return llm.invoke([you("helper"), *state["messages"]])

    def node(state):
        return {"messages": [asked(state)]}

    graph = StateGraph(Kept)
    graph.add_node("n0", stage.speaks("alpha", llm))
    graph.add_node("n1", node)
    graph.add_edge(START, "n0")
    graph.add_conditional_edges("n0", route, ["n1", END])
    return graph.compile().invoke({"messages": [BEGIN]})["messages"]


@once()
def answers_from_langchains_cache(stage):
    stage.script("One.", "Two.", "Three.")
    llm = stage.model(cache=InMemoryCache())
    app = stage.chain(stage.speaks("alpha", llm), stage.speaks("beta", llm))
    return [app.invoke({"messages": [BEGIN]}) for _ in range(2)]


@everywhere("chat", "responses")
def answers_with_logprobs(stage):
    stage.script("One.", "Two.")
    llm = stage.model(logprobs=True, top_logprobs=2) if stage.kind == "chat" else stage.model(temperature=0.5)
    return stage.chain(stage.speaks("alpha", llm), stage.speaks("beta", llm)).invoke({"messages": [BEGIN]})


@everywhere()
def outputs_of_version_one(stage):
    stage.script("One.", "Two.")
    llm = stage.model(output_version="v1")
    app = stage.chain(stage.speaks("alpha", llm), stage.speaks("beta", llm))
    return list(app.stream({"messages": [BEGIN]}, stream_mode=["messages", "values"]))


@everywhere(forks=False)
def outside_of_any_fork(stage):
    """A wrapped model is the model."""
    stage.script(*["An answer."] * 9)
    llm = stage.model()
    given = [you("alpha"), BEGIN]
    out = [llm.invoke(given), list(llm.stream(given)), llm.bind_tools([look]).invoke(given)]
    out += [asyncio.run(llm.ainvoke(given)), llm.batch([given]), llm.generate([given])]
    return out


@everywhere(forks=False)
def a_model_itself(stage):
    """What can be asked of a model without asking it."""
    llm = stage.model()
    return {
        "repr": repr(llm),
        "str": str(llm),
        "fields": llm.model_dump(mode="python"),
        "json schema": llm.get_input_jsonschema(),
        "output": llm.get_output_jsonschema(),
        "name": llm.get_name(),
        "class": type(llm),
        "isinstance": isinstance(llm, (ChatOpenAI, ChatAnthropic)),
        "dumped": dumpd(llm),
        "identity": llm._identifying_params,
        "kind": llm._llm_type,
        "specs": [spec.id for spec in llm.config_specs],
        "bound": llm.bind_tools([look]).kwargs,
        "structured": everything_of(llm.with_structured_output(Grade)),
        "graph": llm.get_graph().to_json(),
        "profile": llm.profile,
        "set": sorted(llm.model_fields_set),
        "vars": sorted(vars(llm)),
        "methods": sorted(name for name in dir(llm) if not name.startswith("_")),
    }


def everything_of(runnable):
    """A sequence of runnables as JSON."""
    return runnable.get_graph().to_json()


@everywhere(forks=False)
def copies_of_a_model(stage):
    stage.script(*["An answer."] * 9)
    llm = stage.model()
    made = {
        "copy": copy.copy(llm),
        "model copy": llm.model_copy(update={"temperature": 0.25}),
        "deep copy": outcome(lambda: copy.deepcopy(llm)),
        "pickled": outcome(lambda: pickle.loads(pickle.dumps(llm))),
    }
    out = {}
    for name, one in made.items():
        answer = outcome(lambda one=one: one.invoke([you("alpha"), BEGIN])) if not isinstance(one, Exception) else one
        out[name] = [type(one), answer, getattr(one, "temperature", None)]
    return out


@once(forks=False)
def a_pickled_fake(stage):
    """A model that pickles, does so wrapped."""
    model = FakeMessagesListChatModel(responses=[AIMessage("Yes.", id="a")])
    made = model if stage.unmodified else wrap_model(model, stage.session())
    again = pickle.loads(pickle.dumps(made))
    deep = copy.deepcopy(made)
    return [type(again), again.invoke("hello").text, type(deep), deep.invoke("hello").text, made == again, made == deep]


@once(forks=False)
def a_graph_called_twice_at_once(stage):
    """Two runs of one compiled graph."""
    stage.script(Rules([Rule(f"ask {n}", Reply(f"Answer {n}."), anywhere=True) for n in "ab"]))
    llm = stage.model()

    @stage.node("alpha")
    def alpha(state):
        return {"messages": [llm.invoke([you(f"alpha {state['messages'][0].id}"), *state["messages"]])]}

    out = stage.chain(alpha).batch([{"messages": [HumanMessage(f"ask {n}", id=n)]} for n in "ab"])
    return sorted((one["messages"] for one in out), key=lambda messages: messages[0].id)


# ------------------------------------------------------------------


def each(name):
    """A construct, for the test of it."""
    at, kind = name.rstrip("]").partition("[")[::2]
    return pytest.param(name, marks=[pytest.mark.slow] if kind == "bedrock" and at not in QUICK else [])


@pytest.mark.parametrize("mode", ["observed", "forked"])
@pytest.mark.parametrize("name", [*map(each, CONSTRUCTS.names)])
def test_the_application_sees_the_same(name, mode):
    """Observed: everything, and the same bytes go out. Forked: everything but what is listed."""
    CONSTRUCTS.check(name, mode)


@pytest.mark.parametrize("entry", allowed_in("langgraph"), ids=str)
def test_each_listed_difference_is_there(entry):
    """What no construct shows any more is taken off the list, and off the page."""
    if ChatBedrockConverse is None and entry.constructs.endswith("[bedrock]"):
        pytest.skip("LangChain's class for Bedrock is not installed")
    CONSTRUCTS.check_used(entry)
