"""A code-review team on LangGraph: planner, three reviewers in parallel, synthesis.

python examples/langgraph/code_review.py --layout shared --json

Talks to whatever OPENAI_BASE_URL and OPENAI_API_KEY (or the ANTHROPIC_ pair) name, and to the simulated provider
when neither key is set. ``--layout unmodified`` is the same team as it is usually written.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from langchain_core.language_models import BaseChatModel

from cacheprefix import Session, SharedPrefix
from cacheprefix_langgraph import wrap_model
from cacheprefix_langgraph.demo.handbook import HANDBOOK, TASK
from cacheprefix_langgraph.demo.run import MODELS, _provider, anthropic_model, as_data, openai_model, row_of
from cacheprefix_langgraph.demo.source import Source, read_source, tools_for
from cacheprefix_langgraph.demo.team import build_team, first_message


@contextmanager
def chat_model(model: str | None, source: Source, rules: str) -> Iterator[BaseChatModel]:
    """The model the environment names; without a key the simulated provider answers from a script."""
    if os.environ.get("ANTHROPIC_API_KEY") and (model or "").startswith("claude"):
        yield anthropic_model(model or MODELS["anthropic"])
    elif os.environ.get("OPENAI_API_KEY"):
        yield openai_model(model or MODELS["openai"])
    else:
        with _provider(rules, source, 0.0) as make:
            yield make()


def main() -> None:
    """Run the team once and print what its calls cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layout", choices=["unmodified", "shared"], default="shared")
    parser.add_argument("--model")
    parser.add_argument("--input", default="starlette", help="an installed package or a folder")
    parser.add_argument("--rules", default="openai", choices=[*MODELS], help="rules of the simulated provider")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()

    source = read_source(given.input)
    tools = tools_for(source)
    prefix = SharedPrefix(system=HANDBOOK, tools=tools)
    session = Session(prefix, mode="fork" if given.layout == "shared" else "observe")
    with chat_model(given.model, source, given.rules) as model:
        team = build_team(wrap_model(model, session), tools, given.layout, session)
        task = TASK.format(package=source.name, files=len(source.files), lines=source.lines)
        began = time.perf_counter()
        report = team.invoke(first_message(task))["messages"][-1].text
        wall = (time.perf_counter() - began) * 1000
    if given.json:
        print(json.dumps(as_data([row_of(session, given.layout, given.rules, wall, "")])))
    else:
        print(report, "\n", file=sys.stdout)
        print(session.report())


if __name__ == "__main__":
    main()
