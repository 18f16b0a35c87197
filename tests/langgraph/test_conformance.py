"""The LangGraph adapter passes the conformance suite that third parties run on adapters of their own."""

from __future__ import annotations

import asyncio

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from cacheprefix.testing import AdapterConformance
from cacheprefix_langgraph import PrefixState, forked, wrap_model
from tests.role_as import said_as


class State(MessagesState, PrefixState):
    """A conversation and its ledger."""


class GraphDriver:
    """Builds the team as a graph: a node a role, which calls the model until it has run all tools."""

    # The other ways are held to the wire in test_wire.py.
    ways = ("invoke", "astream")
    budgets = True
    loop = None

    def __init__(self, api):
        self.api = api
        self.rules = "anthropic" if api == "anthropic" else "openai-5.6"

    def run(self, team, provider, session):
        """One run of the graph a question, in one thread."""
        model = self._model(provider)
        graph = self._graph(team, model if session is None else wrap_model(model, session), session)
        config = {"configurable": {"thread_id": team.thread}}
        texts = []

        async def later():
            for question in team.questions:
                texts.extend(_texts(await graph.ainvoke({"messages": [HumanMessage(question)]}, config), team))

        if team.way.startswith("a"):
            self.loop.run_until_complete(later())
        else:
            for question in team.questions:
                texts.extend(_texts(graph.invoke({"messages": [HumanMessage(question)]}, config), team))
        return texts

    def _model(self, provider):
        if self.api == "anthropic":
            address = {"base_url": provider.anthropic_base_url, "model": "claude-opus-4-1"}
            return ChatAnthropic(**address, api_key="k", max_retries=0)
        return ChatOpenAI(model="gpt-5.6", base_url=provider.openai_base_url, api_key="k", max_retries=0)

    def _graph(self, team, model, session):
        bound = model.bind_tools([{"type": "function", "function": dict(tool)} for tool in team.tools])
        bound = bound if team.tools else model

        def node(role):
            def begun(state):
                return [SystemMessage(team.system(role)), *state["messages"]]

            def ended(own, answer):
                return {"messages": [*own, HumanMessage(f"{role.name}: {answer.text}", name=role.name)]}

            def now(state):
                own, answer = [], bound.invoke(begun(state))
                while answer.tool_calls:
                    own += [answer, *_results(team, answer)]
                    answer = bound.invoke([*begun(state), *own])
                return ended(own, answer)

            async def streamed(messages):
                whole = None
                async for chunk in bound.astream(messages):
                    whole = chunk if whole is None else whole + chunk
                return whole

            async def later(state):
                own, answer = [], await streamed(begun(state))
                while answer.tool_calls:
                    own += [answer, *_results(team, answer)]
                    answer = await streamed([*begun(state), *own])
                return ended(own, answer)

            made = later if team.way.startswith("a") else now
            return made if session is None else forked(session, role=role.name)(made)

        graph = StateGraph(State)
        previous = START
        for role in team.roles:
            graph.add_node(role.name, node(role))
            graph.add_edge(previous, role.name)
            previous = role.name
        graph.add_edge(previous, END)
        return graph.compile(checkpointer=InMemorySaver())


def _results(team, answer):
    return [
        ToolMessage(team.run_tool(call["name"], call["args"]), tool_call_id=call["id"]) for call in answer.tool_calls
    ]


def _texts(state, team):
    names = {role.name for role in team.roles}
    said = [message.text for message in state["messages"] if message.name in names]
    return said[-len(names) :]


@pytest.fixture(scope="module", autouse=True)
def one_loop():
    """One event loop for all runs: LangChain's clients keep their connections, which would fail in another."""
    GraphDriver.loop = asyncio.new_event_loop()
    yield
    GraphDriver.loop.close()


class TestChat(AdapterConformance):
    """With OpenAI's chat completions."""

    def make_driver(self):
        return GraphDriver("openai-chat")


class TestMessages(AdapterConformance):
    """With Anthropic's messages."""

    def make_driver(self):
        return GraphDriver("anthropic")


@pytest.mark.parametrize(("api", "role"), [("openai-chat", "developer"), ("anthropic", "user")])
def test_role_texts_are_said_with_authority_where_the_model_takes_it(api, role):
    """OpenAI's models take a developer's message behind the conversation, most of Anthropic's none but the user's."""
    assert said_as(GraphDriver(api)) == {role}
