"""Injected breaks, written to a log and read back, are named as in a running session, with usage and without."""

import json
import sys
from pathlib import Path

import pytest
from audit_logs import write

from cacheprefix.audit import audit
from cacheprefix.cache import mark, plan_breakpoints
from cacheprefix.profiles import Usage, default_registry
from cacheprefix.server import ProviderCache, RefusedError
from cacheprefix.wire import decode

sys.path.insert(0, str(Path(__file__).parents[1] / "cache"))

from faults import RULES, all_cases, undisturbed

WIDE = {"ttl_expired", "concurrent_cold_start"}
"""What expires or starts cold does so for every agent of a case."""


def wire_usage(usage, rules):
    """Usage as the provider would write it."""
    if usage.cache_read_tokens is None:
        return {"prompt_tokens": usage.input_tokens}
    if rules != "anthropic":
        details = {"cached_tokens": usage.cache_read_tokens}
        return {"prompt_tokens": usage.input_tokens, "completion_tokens": 1, "prompt_tokens_details": details}
    return {
        "input_tokens": usage.uncached_tokens,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "output_tokens": 1,
    }


def lines_of(case, *, usage):
    """The case as native JSONL, answered by the simulated provider where ``usage`` is wanted."""
    profile = default_registry().get(case.rules)
    caches, waiting, lines = {}, [], []
    for number, step in enumerate(case.steps):
        waiting.sort(key=lambda item: item[:2])
        while waiting and waiting[0][0] <= step.at:
            when, _, tell = waiting.pop(0)
            tell(when)
        prompt, body = decode(step.body, case.api, headers=step.headers), step.body
        if step.placed:
            body = mark(body, case.api, prompt, plan_breakpoints(prompt, profile, boundary=boundary(prompt, step)))
            prompt = decode(body, case.api, headers=step.headers)
        line = {
            "ts": step.at, "provider": "anthropic" if case.rules == "anthropic" else "openai",
            "session": step.session, "agent": step.agent, "scope": step.scope, "headers": dict(step.headers or {}),
            "request": body, "events": list(step.events), "response_started_ts": step.first,
            "response_ended_ts": step.end,
        }  # fmt: skip
        lines.append(line)
        try:
            serving = caches.setdefault(step.body["model"], ProviderCache(profile)).begin(
                prompt, step.at, scope=step.scope
            )
        except RefusedError:
            continue
        waiting += [(step.first, 2 * number, serving.begun), (step.end, 2 * number + 1, serving.ended)]
        found = serving.outcome
        told = Usage(
            input_tokens=found.input_tokens,
            cache_read_tokens=found.read_tokens,
            cache_write=dict(found.write_tokens),
        )
        told = step.tamper(told) if step.tamper is not None else told
        if usage and told is not None:
            line["usage"] = wire_usage(told, case.rules)
    return lines


def boundary(prompt, step):
    """Sections up to the messages that siblings share."""
    if step.boundary is None:
        return None
    ahead = sum(one.tier != "messages" for one in prompt.sections)
    rows = [one.path for one in prompt.sections if one.tier == "messages"]
    return ahead + sum(int(path[9 : path.index("]")]) < step.boundary for path in rows)


def judged(case, path, *, usage):
    """The rows of a case's audit."""
    log = write(path, [json.loads(json.dumps(line)) for line in lines_of(case, usage=usage)])
    with audit([log], rules=case.rules, what_if=False) as found:
        assert found.totals.broken == []
        return list(found.rows)


@pytest.mark.slow
@pytest.mark.parametrize("usage", [True, False], ids=["reported", "simulated"])
def test_an_injected_break_is_named_from_the_log(tmp_path, usage):
    """Cause and path are right, and nothing else of the case counts as another break."""
    for case in all_cases(80, seed=7_000):
        if not usage and case.cause in {"unreported", "provider_miss"}:
            continue  # Without usage there is nothing the provider could have left out.
        if not usage and case.path == "some_gateway_field":
            continue  # Without usage nothing says whether a field that no rule knows is a setting.
        rows = judged(case, tmp_path / "log.jsonl", usage=usage)
        call = rows[case.broken].public
        assert call["cause"] == case.cause
        assert case.path is None or call["path"].startswith(case.path)
        others = {row.public["cause"] for row in rows if row.view["broke"]} - {case.cause}
        assert not others


@pytest.mark.parametrize("usage", [True, False], ids=["reported", "simulated"])
def test_an_undisturbed_log_has_no_break(tmp_path, usage):
    """Agents that append and fork, under each rule set."""
    for seed in range(30):
        rows = judged(undisturbed(seed + 500, RULES[seed % 5]), tmp_path / "log.jsonl", usage=usage)
        assert [row.public for row in rows if row.view["broke"]] == []
