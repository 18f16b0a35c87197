"""Where CrewAI 1.15.30 loses tool calls that it streams: seen with and without cacheprefix, and not the server's."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.crewai_workloads import SearchTool

ASK = [{"role": "user", "content": "Collect the facts. (plan research)"}]


@pytest.fixture
def schema() -> list[dict[str, Any]]:
    """A tool as CrewAI's executor hands it to a model."""
    from crewai.utilities.agent_utils import convert_tools_to_openai_schema

    return convert_tools_to_openai_schema([SearchTool()])[0]


def test_the_responses_api_streams_a_call_that_crewai_drops(servers, new_llm, schema) -> None:
    """OpenAI's own client reads the call from the same stream; CrewAI collects it and answers with nothing."""
    from openai import OpenAI

    provider = servers("openai")
    client = OpenAI(base_url=provider.openai_base_url, api_key="any")
    tools = [{"type": "function", **schema[0]["function"]}]
    with client, client.responses.create(model="gpt-5", input=ASK, tools=tools, stream=True) as stream:
        items = [event.item for event in stream if event.type == "response.output_item.done"]
    assert [(item.type, item.name) for item in items] == [("function_call", "search_market_data")]
    assert items[0].call_id
    assert new_llm(provider, "responses", stream=True).call(ASK, tools=schema) == ""


def test_litellm_streams_the_id_of_a_call_that_crewai_drops(servers, new_llm, schema) -> None:
    """LiteLLM hands the id on in the first piece; CrewAI keeps name and arguments, and Anthropic needs the id."""
    from litellm import completion

    provider = servers("anthropic")
    llm = new_llm(provider, "litellm-anthropic", stream=True)
    pieces = completion(
        model=llm.model, base_url=provider.anthropic_base_url, api_key="any", messages=ASK, tools=schema, stream=True
    )
    calls = [call for piece in pieces for call in piece.choices[0].delta.tool_calls or ()]
    assert calls[0].id.startswith("toolu_")
    kept = llm.call(ASK, tools=schema)
    assert [(call.id, call.function.name) for call in kept] == [(None, "search_market_data")]
