"""A forked node that calls a graph on a LangGraph server over HTTP; our own on one: ``tests/more/test_served.py``."""

import json
import threading
import time

import pytest
import uvicorn
from langchain_core.messages import HumanMessage, SystemMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel.remote import RemoteGraph
from langgraph_sdk import get_sync_client
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

from cacheprefix.errors import SetupError
from cacheprefix_langgraph import PrefixState, forked, subgraph, wrap_model

HANDBOOK = "The handbook says that every statement needs a source. " * 90


class State(MessagesState, PrefixState):
    """A thread's messages and decisions."""


def team(model, session, roles=("planner", "critic"), last=None):
    """Roles in a row, each a forked node; ``last`` stands behind them as it is."""

    def speak(role):
        def node(state):
            return {"messages": [model.invoke([SystemMessage(f"You are the {role}."), *state["messages"]])]}

        return forked(session, role=role)(node)

    steps = [(role, speak(role)) for role in roles] + ([] if last is None else [("last", last)])
    return StateGraph(State).add_sequence(steps).add_edge(START, steps[0][0]).compile()


@pytest.fixture
def served():
    """Serves a graph as LangGraph's server does, as far as ``RemoteGraph`` asks; ``served(graph)`` calls it."""
    started = []

    def serve(graph, configs):
        async def run(request):
            asked = await request.json()
            configs.append(asked["config"].get("configurable", {}))
            out = await graph.ainvoke(asked["input"], {"configurable": configs[-1]})
            values = {**out, "messages": [one.model_dump() for one in out["messages"]]}
            event = f"event: values\ndata: {json.dumps(values)}\n\n"
            return StreamingResponse(iter([event]), media_type="text/event-stream")

        routes = [Route(path, run, methods=["POST"]) for path in ("/runs/stream", "/threads/{thread}/runs/stream")]
        server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), port=0, log_level="error"))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        client = get_sync_client(url=f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}")
        started.append((server, thread, client))
        return RemoteGraph("team", sync_client=client)

    yield serve
    for server, thread, client in started:
        client.close()
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize("how", ["called", "node"])
def test_a_remote_graph_makes_its_own_forks_where_it_is_served(chat, served, how):
    """The caller's fork ends with its process; the tenant goes along, and both sides write and read one cache."""
    there, here, configs = chat.session(HANDBOOK), chat.session(HANDBOOK), []
    remote = served(team(wrap_model(chat.model(), there), there, ("tester",)), configs)

    @forked(here, role="caller")
    def call(state, config: RunnableConfig):
        answer = remote.invoke({"messages": state["messages"]}, config)
        return {"messages": convert_to_messages(answer["messages"])[-1:]}

    graph = team(wrap_model(chat.model(), here), here, last=call if how == "called" else remote)
    config = {"configurable": {"thread_id": "one", "cacheprefix_scope": "ada"}}
    out = graph.invoke({"messages": [HumanMessage("Begin.", id="h")]}, config)
    assert [message.type for message in out["messages"]] == ["human", "ai", "ai", "ai"]
    assert [call.agent for call in here.calls] == ["planner", "critic"]
    assert [call.agent for call in there.calls] == ["tester"]
    assert here.failures == there.failures == {}
    assert [one["cacheprefix_scope"] for one in configs] == ["ada"]
    planner, critic, tester = chat.prompts()
    assert "You are the tester." in tester.sections[-1].text
    assert tester.sections[: len(critic.sections) - 1] == critic.sections[:-1]
    assert chat.provider.requests[-1].outcome.read_tokens >= 1_200
    assert planner.sections[0] == tester.sections[0]


def test_a_remote_graph_is_refused_as_a_subgraph_with_what_to_do():
    """Its models are asked elsewhere, so there is nothing to wrap here."""
    with get_sync_client(url="http://127.0.0.1:9") as client, pytest.raises(SetupError, match="where it is served"):
        subgraph(RemoteGraph("team", sync_client=client), None)
