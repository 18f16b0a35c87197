"""A planner, a critic and a writer that ask by LiteLLM, on one prefix: by its function or by a router.

``python examples/litellm/team.py --pattern router --api anthropic`` runs offline against the simulated provider, or
against whatever ``OPENAI_BASE_URL``, ``OPENAI_API_KEY`` and their like of Anthropic name.
"""

from __future__ import annotations

import argparse
import json
import os
from contextlib import ExitStack

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # prices from the package, so that it runs offline

import litellm
from litellm.router import Router

from cacheprefix import Session, SharedPrefix
from cacheprefix.server import SimulatedProvider
from cacheprefix_litellm import role, wrap

HANDBOOK = "Rule: every claim names its source, and a source is read before it is named. " * 120
DUTIES = {
    "planner": "Plan the work in three steps.",
    "critic": "Name the weakest point of what was said.",
    "writer": "Write down what was agreed.",
}
QUESTIONS = ("Our nightly job became slow. How do we find out why?", "The log shows a lock. What now?")
MODELS = {"openai": "openai/gpt-4.1", "anthropic": "anthropic/claude-sonnet-4-6"}


def run(options: argparse.Namespace, place: dict[str, str], session: Session) -> None:
    """Each question goes round; everybody reads the whole conversation."""
    model = os.environ.get("MODEL", MODELS[options.api])
    if options.pattern == "router":
        router = Router(model_list=[{"model_name": "team", "litellm_params": {"model": model, **place}}])
        ask, asked = wrap(router, session).completion, {"model": "team"}
    else:
        ask, asked = wrap(litellm.completion, session), {"model": model, **place}
    transcript: list[dict[str, str]] = []
    for question in QUESTIONS:
        transcript.append({"role": "user", "content": question})
        for name, duty in DUTIES.items():
            system = {"role": "system", "content": f"You are the {name}. {duty}\n\n{HANDBOOK}"}
            with role(name, conversation="review-1"):
                answer = ask(messages=[system, *transcript], max_tokens=500, **asked)
            transcript.append({"role": "user", "content": f"{name}: {answer.choices[0].message.content}"})


def main() -> None:
    """Parse arguments, run the example, print what its input cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", choices=("unmodified", "shared"), default="shared")
    parser.add_argument("--pattern", choices=("function", "router"), default="function")
    parser.add_argument("--api", choices=("openai", "anthropic"), default="openai")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args()
    base_url, key = (os.environ.get(f"{options.api.upper()}_{name}") for name in ("BASE_URL", "API_KEY"))
    offline = not base_url and not key
    session = Session(SharedPrefix(system=HANDBOOK), mode="fork" if options.layout == "shared" else "observe")
    with ExitStack() as stack:
        if offline:
            provider = stack.enter_context(SimulatedProvider(options.api))
            base_url = provider.openai_base_url if options.api == "openai" else provider.anthropic_base_url
        place = {"api_key": key or "offline", **({"api_base": base_url} if base_url else {})}
        run(options, place, session)
    if options.json:
        report = {"layout": options.layout, "api": options.api, "simulated": offline}
        print(json.dumps({**report, "report": session.report().as_dict()}, indent=1))
    else:
        print(session.report())


if __name__ == "__main__":
    main()
