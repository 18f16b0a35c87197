"""A crew on the model class of one extra of the adapter, against the simulated provider: ``crewai_extra.py EXTRA``."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

os.environ.update(CREWAI_TRACING_ENABLED="false", OTEL_SDK_DISABLED="true", CREWAI_DISABLE_TELEMETRY="true")
os.environ.update(CREWAI_STORAGE_DIR=tempfile.mkdtemp(), LITELLM_LOCAL_MODEL_COST_MAP="True")

from crewai import LLM, Agent, Crew, Task

from cacheprefix import Caching, Session
from cacheprefix.server import SimulatedProvider
from cacheprefix_crewai import install

_LINE = "{}. The product line covers pumps and valves for district heating of medium towns."
BRIEF = " ".join(_LINE.format(number) for number in range(150))


def model(extra: str, server: Any) -> Any:
    """The extra's model; OpenAI's where there is none."""
    if extra == "anthropic":
        url = server.anthropic_base_url
        return LLM(model="anthropic/claude-sonnet-4-5-20250929", base_url=url, api_key="any", temperature=0.3)
    if extra == "azure":
        endpoint = f"{server.url}/openai/deployments/gpt-5"
        return LLM(model="azure/gpt-5", endpoint=endpoint, api_key="any", api_version="2024-10-21")
    if extra == "gemini":
        where = {"http_options": {"base_url": server.url}}
        return LLM(model="gemini/gemini-2.5-flash", api_key="any", client_params=where)
    if extra == "bedrock":
        os.environ["AWS_ENDPOINT_URL_BEDROCK_RUNTIME"] = server.url
        known = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "region_name": "us-east-1"}
        return LLM(model="bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0", **known)
    url, by_litellm = server.openai_base_url, extra == "litellm"
    return LLM(model="openai/gpt-4.1", base_url=url, api_key="any", is_litellm=by_litellm)


def main(extra: str) -> None:
    """Kick off, and say how many requests were forks."""
    with SimulatedProvider("auto") as server:
        llm = model(extra, server)
        who = [Agent(role=role, goal="Do well.", backstory="Long at it.", llm=llm) for role in ("one", "two", "three")]
        work = [Task(description="Do your part.\n\n{brief}", expected_output="A text.", agent=agent) for agent in who]
        session = Session(caching=Caching(provider="openai") if extra == "azure" else Caching())
        team = Crew(agents=who, tasks=work)
        with install(team, session):
            team.kickoff(inputs={"brief": BRIEF})
        layouts = [call.layout for call in session.calls]
        assert layouts == ["fork"] * 3, (layouts, session.report().notes)
        assert session.failures == {}
        print("forks", len(layouts))


if __name__ == "__main__":
    main(sys.argv[1])
