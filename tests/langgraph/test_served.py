"""Graphs on a LangGraph server: ours served, and a forked node that calls one over HTTP."""

import json
import os
import subprocess
import sys
import threading
import time
from itertools import pairwise

import httpx
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
from cacheprefix.server import SimulatedProvider
from cacheprefix_langgraph import PrefixState, forked, subgraph, wrap_model

HANDBOOK = "The handbook says that every statement needs a source. " * 90
APPLICATION = f"""
from langchain_core.messages import SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

from cacheprefix import Session, SharedPrefix, ToolResultBudget
from cacheprefix_langgraph import PrefixState, forked, wrap_model

session = Session(SharedPrefix(system={HANDBOOK!r}), budget=ToolResultBudget(max_tokens=200))
model = wrap_model(ChatOpenAI(model="gpt-5.6", api_key="k", max_retries=0), session)


class State(MessagesState, PrefixState):
    pass


def speak(role):
    @forked(session, role=role)
    def node(state):
        return {{"messages": [model.invoke([SystemMessage(f"You are the {{role}}."), *state["messages"]])]}}

    return node


graph = StateGraph(State)
graph.add_sequence([(role, speak(role)) for role in ("planner", "critic")])
team = graph.add_edge(START, "planner").compile()
"""


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


@pytest.fixture
def server(tmp_path):
    """LangGraph's own development server with a team of ours, and the provider that the team asks."""
    pytest.importorskip("langgraph_api", reason="needs pip install 'langgraph-cli[inmem]', LangGraph's own server")
    (tmp_path / "application.py").write_text(APPLICATION)
    (tmp_path / "langgraph.json").write_text('{"dependencies": ["."], "graphs": {"team": "./application.py:team"}}')
    with SimulatedProvider("openai-5.6") as provider:
        port = httpx.URL(provider.openai_base_url).port + 1
        given = {"OPENAI_BASE_URL": provider.openai_base_url, "LANGSMITH_TRACING": "false"}
        command = [sys.executable, "-m", "langgraph_cli", "dev", "--no-browser", "--no-reload", "--port", str(port)]
        process = subprocess.Popen(
            command, cwd=tmp_path, env={**os.environ, **given}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        address = f"http://127.0.0.1:{port}"
        try:
            for _ in range(300):
                try:
                    if httpx.get(f"{address}/ok").is_success:
                        break
                except httpx.TransportError:
                    time.sleep(0.2)
            yield address, provider
        finally:
            process.terminate()
            process.wait(30)


def test_a_served_team_shares_its_prefix_and_keeps_its_decisions_in_the_servers_checkpoints(server):
    """Two runs of one thread and one of another: each request begins with what its thread sent before."""
    address, provider = server
    client = get_sync_client(url=address)
    graph = RemoteGraph("team", sync_client=client)
    page = "a line that somebody read once. " * 200
    call = {"id": "c", "name": "read", "args": {}, "type": "tool_call"}
    first = [
        {"role": "user", "content": "Begin."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": page, "tool_call_id": "c"},
    ]
    config = {"configurable": {"thread_id": client.threads.create()["thread_id"]}}
    out = graph.invoke({"messages": first}, config)
    assert len(out["messages"]) == 5
    assert out["cacheprefix"]["results"]
    list(graph.stream({"messages": [{"role": "user", "content": "Go on."}]}, config, stream_mode=["messages"]))
    prompts = [record.prompt for record in provider.requests]
    assert len(prompts) == 4
    for earlier, later in pairwise(prompts):
        assert later.sections[: len(earlier.sections) - 1] == earlier.sections[:-1]
    assert all(page not in section.text for prompt in prompts for section in prompt.sections)
    assert provider.requests[-1].outcome.read_tokens >= 1_200
    client.close()
