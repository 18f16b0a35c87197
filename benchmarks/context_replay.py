"""Real agent runs replayed under a context policy: what each request costs, and what it still holds.

The traces are not part of this repository; ``CACHEPREFIX_TRACES`` names their folder, by default the
one beside the repository.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_
from functools import lru_cache
from typing import Any

from benchmarks.traces_at_hand import traces_folder
from cacheprefix.history.situation import names_in
from cacheprefix.profiles import Profile, default_registry
from cacheprefix.prompt import estimate_tokens
from cacheprefix.server import ProviderCache
from cacheprefix.wire import Memo, decode

Message = dict[str, Any]
Policy = Callable[[int, int], Callable[[Sequence[Message]], list[Message]]]
"""``policy(static_tokens, window)`` gives a function from the history so far to the messages to send."""

SECONDS_A_STEP = 8.0
_WORD = re.compile(r"\w+")
_SHINGLE = 4


@dataclass(frozen=True)
class Trace:
    """One run: the system text, the messages in the OpenAI form, and before which of them a model was asked."""

    name: str
    system: str
    messages: tuple[Message, ...]
    steps: tuple[int, ...]
    quotes: tuple[frozenset[Any], ...] = field(repr=False, default=())
    """For each step, what its answer quotes from earlier messages."""

    @property
    def tokens(self) -> int:
        """Tokens of the whole history."""
        return sum(map(tokens_of, self.messages))


@dataclass
class Totals:
    """Sums over all requests of a replay."""

    calls: int = 0
    input_tokens: int = 0
    history_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    uncached_tokens: int = 0
    cost_units: float = 0.0
    invalid: int = 0
    over_window: int = 0
    quoted: int = 0
    kept: int = 0
    names_quoted: int = 0
    names_kept: int = 0

    @property
    def retained(self) -> float:
        """Mean history tokens a step."""
        return self.history_tokens / max(1, self.calls)

    @property
    def retention(self) -> float:
        """Share of quoted word runs and names that stood in the prompt when they were quoted."""
        return self.kept / max(1, self.quoted)

    @property
    def names(self) -> float:
        """The same for names, numbers and paths alone."""
        return self.names_kept / max(1, self.names_quoted)

    def row(self) -> dict[str, Any]:
        """The usage part as results files hold it."""
        fields = ("calls", "input_tokens", "cache_read_tokens", "cache_write_tokens", "uncached_tokens", "cost_units")
        return {name: round(getattr(self, name), 1) for name in fields}


def tau_bench() -> list[Trace]:
    """The tau-bench airline trajectories."""
    path = traces_folder() / "tau_bench" / "gpt-4o-airline.json.gz"
    runs = json.loads(gzip.decompress(path.read_bytes()))
    return _without_phrases([_trace(f"tau {n}", run["traj"]) for n, run in enumerate(runs)])


def who_and_when(minimum: int = 0) -> list[Trace]:
    """Who&When's hand-crafted and generated transcripts of more than ``minimum`` tokens; agents become tools."""
    out = []
    for name in ("Hand-Crafted", "Algorithm-Generated"):
        path = traces_folder() / "who_and_when" / f"{name}.json.gz"
        for file, run in sorted(json.loads(gzip.decompress(path.read_bytes())).items()):
            trace = _trace(f"{name} {file}", _with_tools(run["history"]))
            if trace.tokens > minimum and trace.steps:
                out.append(trace)
    return _without_phrases(out)


def replay(traces: Iterable[Trace], policy: Policy, profile: Profile | None, window: Callable[[Trace], int]) -> Totals:
    """All requests of all traces under one policy and one provider's rules; without rules only tokens."""
    totals = Totals()
    for trace in traces:
        size = window(trace)
        send = policy(estimate_tokens(trace.system) + 3 if trace.system else 0, size)
        cache = None if profile is None else ProviderCache(profile)
        memo, before, now = Memo(), [], 0.0
        for step, quotes in zip(trace.steps, trace.quotes, strict=True):
            messages = send(trace.messages[:step])
            totals.calls += 1
            totals.history_tokens += sum(map(tokens_of, messages))
            if cache is None or profile is None:
                continue
            _measure(totals, messages, quotes)
            totals.over_window += sum(map(tokens_of, messages)) > size
            body = _body(trace.system, messages, profile)
            prompt = decode(body, "anthropic" if profile.match == "breakpoint" else "openai-chat", memo=memo)
            if profile.match == "breakpoint":
                body = _marked(body, before)
                prompt = decode(body, "anthropic", memo=memo)
                before = body["messages"]
            outcome = cache.serve(prompt, now, first_token_at=now + 1)
            now += SECONDS_A_STEP
            totals.input_tokens += outcome.input_tokens
            totals.cache_read_tokens += outcome.read_tokens
            totals.cache_write_tokens += outcome.written_tokens
            totals.uncached_tokens += outcome.uncached_tokens
            totals.cost_units += outcome.cost_units(profile)
    return totals


def profile(rules: str) -> Profile:
    """The rules of a row: the newest models of each provider that it describes without contest."""
    model = {"anthropic": "claude-sonnet-4-20250514", "openai": "gpt-5-2025-08-07"}[rules]
    return default_registry().profile_for(model, provider=rules)


def tokens_of(message: Message) -> int:
    """Tokens of one message by the estimate, calls included."""
    return 3 + sum(estimate_tokens(text) for text in _texts(message))


def _texts(message: Message) -> list[str]:
    texts = [message["content"]] if message.get("content") else []
    for call in message.get("tool_calls") or ():
        texts += [call["function"]["name"], call["function"]["arguments"]]
    return texts


def _trace(name: str, messages: Sequence[Message]) -> Trace:
    system = messages[0]["content"] if messages and messages[0]["role"] == "system" else ""
    history = tuple(_clean(message) for message in messages if message["role"] != "system")
    steps = tuple(index for index, message in enumerate(history) if message["role"] == "assistant" and index)
    return Trace(name, system, history, steps, tuple(_quotes(history, steps)))


def _without_phrases(traces: list[Trace]) -> list[Trace]:
    """The traces without quotes that many of them share: "would you like me to" is no quote of anything."""
    runs = Counter(quote for trace in traces for quote in frozenset().union(*trace.quotes))
    common = {quote for quote, number in runs.items() if number > max(2, len(traces) // 20)}
    return [replace_(trace, quotes=tuple(quotes - common for quotes in trace.quotes)) for trace in traces]


def _clean(message: Message) -> Message:
    kept = {name: message[name] for name in ("role", "content", "tool_calls", "tool_call_id") if message.get(name)}
    kept.setdefault("content", "")
    return kept


def _quotes(history: Sequence[Message], steps: Sequence[int]) -> Iterable[frozenset[Any]]:
    seen: set[Any] = set()
    done = 0
    for step in steps:
        for message in history[done:step]:
            for text in _texts(message):
                seen |= quotable(text)
        done = step
        said: set[Any] = set()
        for text in _texts(history[step]):
            said |= quotable(text)
        yield frozenset(said & seen)


@lru_cache(maxsize=50_000)
def quotable(text: str) -> frozenset[Any]:
    """What of a text can be quoted: runs of four words, and names."""
    words = _WORD.findall(text.lower())
    runs = {tuple(words[n : n + _SHINGLE]) for n in range(len(words) - _SHINGLE + 1)}
    return frozenset(runs | names_in(text))


def _measure(totals: Totals, sent: Sequence[Message], quotes: frozenset[Any]) -> None:
    waiting: set[str] = set()
    bad = False
    for message in sent:
        waiting |= {call["id"] for call in message.get("tool_calls") or ()}
        bad |= message["role"] == "tool" and message["tool_call_id"] not in waiting
    totals.invalid += bad
    missing = set(quotes)
    for message in reversed(sent):
        if not missing:
            break
        for text in _texts(message):
            held = quotable(text)
            missing = {quote for quote in missing if quote not in held}
    names = {quote for quote in quotes if isinstance(quote, str)}
    totals.quoted += len(quotes)
    totals.kept += len(quotes) - len(missing)
    totals.names_quoted += len(names)
    totals.names_kept += len(names) - len(names & missing)


def _body(system: str, messages: Sequence[Message], profile: Profile) -> dict[str, Any]:
    if profile.match == "breakpoint":
        blocks = [{"type": "text", "text": system}] if system else []
        return {"model": "claude-sonnet-4-20250514", "system": blocks, "messages": [_anthropic(m) for m in messages]}
    head = [{"role": "system", "content": system}] if system else []
    return {"model": "gpt-5-2025-08-07", "messages": [*head, *messages]}


def _anthropic(message: Message) -> Message:
    if message["role"] == "tool":
        block = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
        return {"role": "user", "content": [block]}
    blocks: list[Message] = [{"type": "text", "text": message["content"]}] if message["content"] else []
    for call in message.get("tool_calls") or ():
        arguments = call["function"]["arguments"]
        try:
            value = json.loads(arguments)
        except ValueError:
            value = {"text": arguments}
        blocks.append({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": value})
    return {"role": message["role"], "content": blocks or [{"type": "text", "text": "-"}]}


def _marked(body: dict[str, Any], before: Sequence[Message]) -> dict[str, Any]:
    """Breakpoints alike for every policy: system, what the last request had too, and the end."""
    marker = {"cache_control": {"type": "ephemeral"}}
    messages = [dict(message) for message in body["messages"]]
    common = 0
    for old, new in zip(before, messages, strict=False):
        if _bare(old) != _bare(new):
            break
        common += 1
    for index in {len(messages) - 1, common - 1} - {-1}:
        blocks = [dict(block) for block in messages[index]["content"]]
        blocks[-1] |= marker
        messages[index]["content"] = blocks
    system = [{**block, **marker} for block in body["system"]]
    return {**body, "system": system, "messages": messages}


def _bare(message: Message) -> Message:
    blocks = [{k: v for k, v in block.items() if k != "cache_control"} for block in message["content"]]
    return {**message, "content": blocks}


_TOOL_OF = {
    "WebSurfer": "web_fetch",
    "FileSurfer": "file_read",
    "ComputerTerminal": "shell",
    "Computer_terminal": "shell",
}


def _with_tools(history: Sequence[Message]) -> list[Message]:
    """A transcript of agents as one agent with tools: what browsers and terminals say are results."""
    out: list[Message] = []
    order = ""
    for number, message in enumerate(history):
        speaker = message.get("name") or message["role"]
        text = message["content"]
        if speaker in _TOOL_OF:
            call = {"name": _TOOL_OF[speaker], "arguments": json.dumps({"task": order})}
            out.append({"role": "assistant", "content": "", "tool_calls": [_call(number, call)]})
            out.append({"role": "tool", "tool_call_id": f"call_{number}", "content": text})
            order = ""
        elif speaker.startswith("Orchestrator (->"):
            order = text
        elif number == 0 or speaker == "human":
            out.append({"role": "user", "content": text})
        else:
            out.append({"role": "assistant", "content": text})
    return out


def _call(number: int, function: Message) -> Message:
    return {"id": f"call_{number}", "type": "function", "function": function}
