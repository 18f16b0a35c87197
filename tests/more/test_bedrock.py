"""LangChain's class for Amazon Bedrock, which keeps its request to itself: left as it is, to the byte."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph

from cacheprefix import Session, SharedPrefix
from cacheprefix.server import SimulatedProvider
from cacheprefix_langgraph import forked, wrap_model

PINS = Path(__file__).parents[2] / "constraints" / "bedrock.txt"
HANDBOOK = "The handbook says that every statement needs a source. " * 200


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    return word


@pytest.fixture
def converse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class, installed in a folder that goes with the test."""
    install = ["pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path), "--requirement", str(PINS)]
    subprocess.run([sys.executable, "-m", *install], check=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "k")
    from langchain_aws import ChatBedrockConverse

    return ChatBedrockConverse


@pytest.mark.parametrize("mode", ["observe", "fork"])
def test_bedrocks_requests_are_those_of_the_application(converse: Any, mode: Any) -> None:
    """It caches only what a request marks, and the class shows no place for marks; the report says so."""
    with SimulatedProvider("auto") as provider:
        model = converse(
            model="anthropic.claude-sonnet-4-5-20250929-v1:0", endpoint_url=provider.url,
            region_name="us-east-1", provider="anthropic",
        )  # fmt: skip
        session = Session(SharedPrefix(system=HANDBOOK, tools=[look_up]), mode=mode)

        def node(role: str, model: Any) -> Any:
            said = SystemMessage(f"You are the {role}.\n\n{HANDBOOK}")
            return lambda state: {"messages": [model.invoke([said, *state["messages"]])]}

        for team in ("plain", "ours"):
            asked = model if team == "plain" else wrap_model(model, session)
            graph = StateGraph(MessagesState)
            for role, bound in (("planner", asked), ("critic", asked.bind_tools([look_up]))):
                made = node(role, bound)
                graph.add_node(role, made if team == "plain" else forked(session, role=role)(made))
            graph.add_edge(START, "planner").add_edge("planner", "critic")
            graph.compile().invoke({"messages": [HumanMessage("Begin.")]})
        bodies = [record.body for record in provider.requests]
    assert bodies[2:] == bodies[:2]
    assert len(session.calls) == 2
    assert session.failures == {}
    expected = [("observed", "observe_mode")] if mode == "observe" else [("own", "marks_hidden")]
    assert [(call.layout, call.reasons[-1].why) for call in session.calls] == expected * 2
