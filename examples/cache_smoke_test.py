"""Does this provider, model and key really read from its cache? Three requests tell.

OPENAI_API_KEY=... python examples/cache_smoke_test.py --model gpt-5.5
python examples/cache_smoke_test.py                      # offline, against the simulated provider

The system prompt is padded past the model's minimum, because below it nothing is cached and nobody says so. The second
request repeats the first; the third is a fork of it. Exit code 0: both read from the cache. 1: one did not, and the
verdict says why. 2: the provider could not be asked.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import uuid
from contextlib import ExitStack
from typing import Any

from _plain import HANDBOOK, MODELS, RULES, Example

from cacheprefix import ForkPolicy, Session, SharedPrefix
from cacheprefix.server import SimulatedProvider

QUESTION = {"role": "user", "content": "Answer with the single word: ready."}


def padded(session: Session, model: str, minimum: int) -> str:
    """A system prompt a fifth longer than the minimum (counts may be estimates) that no run before has used."""
    parts = [f"Smoke test {uuid.uuid4()}.", HANDBOOK]
    number = 0
    while session.adapter.count("\n".join(parts), model) < minimum * 1.2:
        number += 1
        parts += [f"Appendix {number}.{line}: {rule}" for line, rule in enumerate(RULES, 1)]
    return "\n".join(parts)


def smoke_test(example: Example) -> list[dict[str, Any]]:
    """Write, read, fork; what each of the three reported."""
    profile = example.session.adapter.profile(example.model, example.kind)
    system = padded(example.session, example.model, profile.min_tokens)
    session = Session(SharedPrefix(system=system))
    example.session = session
    body = example.body([QUESTION], system)
    for _ in range(2):
        # Everything is shared with the request that follows, so the mark stands behind all of it.
        example.call(body, "smoke", boundary=lambda prompt: len(prompt.sections))
    session.fork(
        "Now answer with the single word: done.",
        body=body,
        api=example.kind,
        send=example.send,
        policy=ForkPolicy.ephemeral(),
    )
    names = ("first", "same again", "fork")
    return [
        {
            "request": name,
            "input_tokens": call.usage.input_tokens,
            "cache_read_tokens": call.usage.cache_read_tokens,
            "expected_tokens": call.verdict.expected_tokens,
            "cause": call.verdict.cause,
            "fix": call.verdict.fix,
        }
        for name, call in zip(names, session.calls, strict=True)
    ]


def main() -> int:
    """Run the test, print a line per request, and say by exit code what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--api", choices=("openai", "anthropic"), default="openai")
    parser.add_argument("--model", help="the model to test; MODEL names one too")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.model:
        os.environ["MODEL"] = given.model
    url = os.environ.get(f"{given.api.upper()}_BASE_URL")
    offline = not url and not os.environ.get(f"{given.api.upper()}_API_KEY")
    with ExitStack() as stack:
        if offline:
            provider = stack.enter_context(SimulatedProvider())
            url = provider.openai_base_url if given.api == "openai" else provider.anthropic_base_url
        example = Example("shared", given.api, Session(), url, offline)
        try:
            rows = smoke_test(example)
        except Exception as error:  # whatever an SDK raises: no key, no such model, no network
            print(f"the provider could not be asked: {type(error).__name__}: {error}", file=sys.stderr)
            return 2
        finally:
            for client in example.clients:
                client.close()
    works = all((row["cache_read_tokens"] or 0) > 0 for row in rows[1:])
    model = os.environ.get("MODEL") or MODELS[given.api]
    if given.json:
        print(json.dumps({"model": model, "simulated": offline, "works": works, "requests": rows}, indent=1))
    else:
        for row in rows:
            read = "unreported" if row["cache_read_tokens"] is None else f"{row['cache_read_tokens']:,} read"
            print(f"{row['request']:<11} {row['input_tokens'] or 0:>8,} input, {read}: {row['cause']}")
        print(f"{model}: the cache {'works' if works else 'was not read'}")
    return 0 if works else 1


if __name__ == "__main__":
    sys.exit(main())
