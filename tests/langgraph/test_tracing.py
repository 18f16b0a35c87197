"""What callbacks and LangSmith's run tree are told of a call."""

import asyncio

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tracers.base import BaseTracer
from langgraph.graph import START, MessagesState, StateGraph

from cacheprefix_langgraph import forked, wrap_model

HANDBOOK = "The handbook says that every statement needs a source. " * 90
HOWS = ["invoke", "stream", "ainvoke", "astream"]


class Heard(BaseCallbackHandler):
    """Keeps what a handler of the user's own is told."""

    def __init__(self):
        self.starts, self.usages = [], []

    def on_chat_model_start(self, serialized, messages, *, metadata=None, tags=None, **kwargs):
        """Remember metadata, tags and the messages of the call."""
        self.starts.append((metadata, tags, messages[0]))

    def on_llm_end(self, response, **kwargs):
        """Remember the usage."""
        self.usages.append(response.generations[0][0].message.usage_metadata)


class Tree(BaseTracer):
    """Keeps finished runs, as LangSmith's tracer sends them."""

    def __init__(self):
        super().__init__()
        self.done = []

    def _persist_run(self, run):
        pass

    def _on_llm_end(self, run):
        self.done.append(run)


def run(bench, session, how, callbacks):
    """Two roles in a row, with callbacks given to the graph."""
    model = wrap_model(bench.model(), session) if session else bench.model()

    async def speak(given):
        """One call, in the way asked for."""
        if how == "invoke":
            return model.invoke(given)
        if how == "ainvoke":
            return await model.ainvoke(given)
        if how == "stream":
            return list(model.stream(given))
        return [chunk async for chunk in model.astream(given)]

    graph = StateGraph(MessagesState)
    previous = START
    for role in ("planner", "critic"):

        async def node(state, role=role):
            await speak([SystemMessage(f"You are the {role}."), *state["messages"]])

        graph.add_node(role, forked(session, role=role)(node) if session else node)
        graph.add_edge(previous, role)
        previous = role
    config = {"callbacks": callbacks, "metadata": {"mine": 1}, "tags": ["app"]}
    asyncio.run(graph.compile().ainvoke({"messages": [HumanMessage("Please begin.")]}, config))


@pytest.mark.parametrize("how", HOWS)
def test_callbacks_see_role_and_prefix_beside_what_the_application_gave(bench, how):
    """Metadata, and the messages as they are sent; nothing of the application's is lost, and its tags are its own."""
    heard, session = Heard(), bench.session(HANDBOOK)
    run(bench, session, how, [heard])
    assert [metadata["cacheprefix_role"] for metadata, _, _ in heard.starts] == ["planner", "critic"]
    for metadata, tags, messages in heard.starts:
        assert metadata["cacheprefix_prefix"] == session.prefix.key
        assert metadata["mine"] == 1
        assert metadata["langgraph_node"] == metadata["cacheprefix_role"]
        assert "app" in tags
        assert not any("cacheprefix" in tag for tag in tags)
        assert messages[0].text == HANDBOOK
        assert f"You are the {metadata['cacheprefix_role']}." in messages[-1].text


@pytest.mark.parametrize("how", HOWS)
def test_the_run_tree_ends_with_the_cause_of_each_call(bench, how):
    """What a tracer sends when a run ends: what the cache did, and LangChain's own usage."""
    tree, session = Tree(), bench.session(HANDBOOK)
    run(bench, session, how, [tree])
    assert [done.extra["metadata"]["cacheprefix_cause"] for done in tree.done] == ["cold_start", "hit"]
    assert [str(call.verdict.cause) for call in session.calls] == ["cold_start", "hit"]


def test_no_key_comes_to_metadata_that_are_being_read(bench):
    """LangGraph streams the very dictionary: a consumer in another thread would fail while it goes through it."""
    grown, session = [], bench.session(HANDBOOK)

    class Reading(BaseCallbackHandler):
        def on_chat_model_start(self, serialized, messages, *, metadata=None, **kwargs):
            grown.append((metadata, list(metadata)))

    run(bench, session, "invoke", [Reading()])
    assert [metadata["cacheprefix_cause"] for metadata, _ in grown] == ["cold_start", "hit"]
    assert all(list(metadata) == names for metadata, names in grown)


@pytest.mark.parametrize("how", ["invoke", "astream"])
def test_usage_in_the_trace_is_what_the_provider_counted(bench, how):
    """LangSmith prices from it."""
    heard = Heard()
    run(bench, bench.session(HANDBOOK), how, [heard])
    for usage, record in zip(heard.usages, bench.provider.requests, strict=True):
        assert usage["input_tokens"] == record.outcome.input_tokens
        assert usage["input_token_details"]["cache_read"] == record.outcome.read_tokens


def test_without_a_fork_nothing_is_added(bench):
    """A wrapped model elsewhere in the application traces as it always did."""
    heard = Heard()
    model = wrap_model(bench.model(), bench.session(HANDBOOK))
    model.invoke([HumanMessage("Hello")], {"callbacks": [heard], "tags": ["app"]})
    ((metadata, tags, _),) = heard.starts
    assert tags == ["app"]
    assert not any(name.startswith("cacheprefix") for name in metadata)
