"""Recorded requests and recorded usage: what real logs look like to the cache model."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from cacheprefix.cache import CacheModel, SentBy, Verdict
from cacheprefix.profiles import Profile, Usage, default_registry
from cacheprefix.prompt import Prompt
from cacheprefix.wire import Memo, decode

_ROLE = re.compile(r"(?:(?<=\n)|^)(user|assistant|system|tool): ")


def sessions(folder: Path) -> Iterator[list[tuple[float, Prompt]]]:
    """The requests of each session in time order, split where the text shows a role."""
    for file in sorted(folder.glob("*.jsonl.gz")):
        memo, rows = Memo(), []
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                parts = _ROLE.split(row["input"])
                messages = [{"role": parts[i], "content": parts[i + 1]} for i in range(1, len(parts) - 1, 2)]
                body = {"model": "m", "messages": messages or [{"role": "user", "content": row["input"]}]}
                rows.append((row["timestamp"] / 1e6, decode(body, "openai-chat", memo=memo)))
        yield sorted(rows, key=lambda pair: pair[0])


def judged(rows: list[tuple[float, Prompt]], profile: Profile) -> list[Verdict]:
    """Verdicts on a session whose provider keeps to its rules."""
    model, verdicts = CacheModel(), []
    for at, prompt in rows:
        seen = model.begin(prompt, profile, at=at)
        usage = Usage(input_tokens=prompt.tokens, cache_read_tokens=seen.expectation.tokens)
        model.first_token(seen, at)
        verdicts.append(model.finish(seen, usage, at))
    return verdicts


def previous_request_alarms(rows: list[tuple[float, Prompt]]) -> int:
    """What the usual rule says: less than the request before by more than 5 % and 2,000 tokens."""
    alarms = 0
    for (_, before), (_, after) in pairwise(rows):
        shared = 0
        for left, right in zip(before.sections, after.sections, strict=False):
            if left.digest != right.digest:
                break
            shared += right.tokens
        missed = before.tokens - shared
        alarms += missed > 2000 and missed > 0.05 * before.tokens
    return alarms


def test_interleaved_agents_are_not_breaks(traces) -> None:
    """Magentic-One: every alarm is the rewritten fact sheet in the first message, less than half as many as usual."""
    profile = default_registry().get("openai")
    ours: list[Verdict] = []
    usual = 0
    for rows in sessions(traces("lmcache_agent_trace") / "magagent"):
        ours += [verdict for verdict in judged(rows, profile) if verdict.alarm]
        usual += previous_request_alarms(rows)
    assert len(ours) * 2 < usual
    for verdict in ours:
        assert (verdict.cause, verdict.path) == ("history_edited", "messages[0].content")
        assert "sheet to consider" in verdict.before


def test_a_single_appending_agent_is_quiet(traces) -> None:
    """Mini-SWE-agent only ever appends: nothing was edited, dropped or reordered."""
    profile = default_registry().get("openai")
    for rows in sessions(traces("lmcache_agent_trace") / "miniswe"):
        causes = {verdict.cause for verdict in judged(rows, profile)}
        assert causes <= {"hit", "cold_start", "below_minimum"}


def test_reported_counts_of_real_providers_raise_no_alarm_within_a_block(traces) -> None:
    """Claude Code and Codex as their providers reported them: alarms only where more than a block is missing."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for line in (traces("tracelab") / "round_trace.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        runs.setdefault(row["session_id"], []).append(row)
    alarms = []
    for session, rows in runs.items():
        claude = rows[0]["provider"] == "claude"
        profile = default_registry().profile_for(rows[0]["model"], "anthropic" if claude else "openai")
        model, texts = CacheModel(count=_characters), []
        before = 0
        for at, row in enumerate(rows):
            total, read = row["input_tokens_total"], row["prefix_tokens"]
            texts.append("x" * max(1, total - sum(map(len, texts))))
            wrote = row["claude_cache_creation_input_tokens"]
            usage = Usage(total, read, {"5m": wrote} if claude else None)
            seen = model.begin(
                _growing(row["model"], texts, claude=claude), profile, SentBy(session=session), at=float(at)
            )
            verdict = model.finish(seen, usage, float(at))
            if verdict.alarm:
                alarms.append((row["provider"], before - read))
            before = (read + wrote) if claude else total
    assert all(provider == "codex" and missing > 128 for provider, missing in alarms)
    assert len(alarms) < 5


def _characters(text: str, model: str = "") -> int:
    return len(text)


def _growing(name: str, texts: list[str], *, claude: bool) -> Prompt:
    messages: list[dict[str, Any]] = [{"role": "user", "content": text} for text in texts]
    if claude:
        messages[-1]["content"] = [{"type": "text", "text": texts[-1], "cache_control": {"type": "ephemeral"}}]
    return decode({"model": name, "messages": messages}, "anthropic" if claude else "openai-chat", count=_characters)
