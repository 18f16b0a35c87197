"""Recorded agent runs as model requests, and the ways of caching them that others and we use.

A strategy turns the requests of one run into prompts as the provider would get them. The traces are not part of this
repository; ``CACHEPREFIX_TRACES`` names their folder, by default the one beside the repository.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any

from benchmarks.context_replay import Message, tau_bench, who_and_when
from benchmarks.traces_at_hand import traces_folder
from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix.adapter import Request
from cacheprefix.audit.formats.text import split
from cacheprefix.bodies import Role, fork_body
from cacheprefix.layout import ForkPolicy, TailPlacement
from cacheprefix.profiles import Profile
from cacheprefix.prompt import ESTIMATE, Marker, Prompt, estimate_tokens, section
from cacheprefix.wire import Memo, decode

SECONDS_A_STEP = 8.0
MODELS = {"anthropic": "claude-sonnet-4-20250514", "openai-5.6": "gpt-5.6"}
_EXPLICIT = {"prompt_cache_options": '{"mode":"explicit"}'}
_MARK = {"cache_control": {"type": "ephemeral"}}


@dataclass(frozen=True)
class Ask:
    """One model request: whose it is, its system text, its messages in OpenAI's form, and when it was made."""

    agent: str
    system: str
    messages: tuple[Message, ...]
    at: float


@dataclass(frozen=True)
class Run:
    """One recorded run. ``roles`` are the system texts of its agents, where each has its own."""

    name: str
    asks: tuple[Ask, ...]
    roles: Mapping[str, str] = field(default_factory=dict)


Strategy = Callable[[Run, Profile], Iterator[Prompt] | None]
"""The prompts of a run, or None where the strategy says nothing to a provider or a content of this kind."""


# ------------------------------------------------------------------ the recorded runs


def lmcache(folder: str, limit: int | None) -> list[Run]:
    """Rendered prompts of real requests, split into messages where the text shows a role."""
    runs = []
    for path in sorted((traces_folder() / "lmcache_agent_trace" / folder).glob("*.jsonl.gz"))[:limit]:
        rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines() if line.strip()]
        start = rows[0]["timestamp"]
        asks = []
        for row, messages in zip(rows, _messages(rows), strict=True):
            system = messages.pop(0)["content"] if messages[0]["role"] == "system" else ""
            asks.append(Ask("", system, tuple(messages), (row["timestamp"] - start) / 1e6))
        runs.append(Run(path.stem, tuple(asks)))
    return runs


def _messages(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[Message]]:
    """The messages of each rendered prompt: by the roles that it shows, else by what earlier prompts ended with."""
    known: dict[str, tuple[list[Message], str]] = {}
    for row in rows:
        text = row["input"]
        messages = split(text)
        if len(messages) == 1:
            before = max((one for one in known if text.startswith(one)), key=len, default="")
            if before and before != text:
                earlier, answer = known[before]
                rest = text[len(before) :]
                said, found, after = rest.partition(answer.strip()) if answer.strip() else (rest, "", "")
                told = [("assistant", said + found), ("user", after)] if found else [("user", rest)]
                messages = [*earlier, *({"role": role, "content": part} for role, part in told if part)]
            elif before:
                messages = list(known[before][0])
            known[text] = messages, row["output"]
        yield [dict(message) for message in messages]


def single(traces: Sequence[Any], limit: int | None) -> list[Run]:
    """Runs of one agent: a request before every answer."""
    return [
        Run(
            trace.name,
            tuple(
                Ask("", trace.system, trace.messages[:step], number * SECONDS_A_STEP)
                for number, step in enumerate(trace.steps)
            ),
        )
        for trace in traces[:limit]
    ]


def generated(limit: int | None) -> list[Run]:
    """Who&When's generated teams: every expert has a system text of its own and sees what was said in the group."""
    path = traces_folder() / "who_and_when" / "Algorithm-Generated.json.gz"
    runs = []
    for name, run in sorted(json.loads(gzip.decompress(path.read_bytes())).items())[:limit]:
        roles = run["system_prompt"]
        asks = []
        for index, message in enumerate(run["history"]):
            speaker = message.get("name") or message["role"]
            if index and speaker in roles:
                at = len(asks) * SECONDS_A_STEP
                asks.append(Ask(speaker, roles[speaker], tuple(_seen(run["history"][:index], speaker)), at))
        if len(asks) > 1:
            runs.append(Run(f"generated {name}", tuple(asks), {name: roles[name] for name in {a.agent for a in asks}}))
    return runs


def _seen(history: Sequence[Message], speaker: str) -> Iterator[Message]:
    for message in history:
        name = message.get("name") or message["role"]
        yield {"role": "assistant" if name == speaker else "user", "name": name, "content": message["content"]}


def trace_sets(limit: int | None) -> dict[str, Callable[[], list[Run]]]:
    """The sets by name, read when asked for; ``limit`` runs of each."""
    return {
        "LMCache Magentic-One": partial(lmcache, "magagent", limit),
        "LMCache mini-SWE": partial(lmcache, "miniswe", limit),
        "LMCache tau-bench": partial(lmcache, "taubench", limit),
        "tau-bench airline": lambda: single(tau_bench(), limit),
        "Who&When hand-crafted": lambda: single([t for t in who_and_when() if t.name.startswith("Hand")], limit),
        "Who&When generated": partial(generated, limit),
    }


# ------------------------------------------------------------------ the strategies


def none(run: Run, profile: Profile) -> Iterator[Prompt]:
    """Nothing is cached: every token at the plain price (the caller prices it so)."""
    return _plain(run, profile)


def full(run: Run, profile: Profile) -> Iterator[Prompt]:
    """What a provider does by itself: the whole request, one automatic breakpoint at its end."""
    for prompt in _plain(run, profile):
        yield replace(prompt, top_marker=Marker()) if profile.automatic_breakpoint else prompt


def system_only(run: Run, profile: Profile) -> Iterator[Prompt] | None:
    """Only the system text is cached."""
    if not run.asks[0].system:
        return None
    return (_until(prompt, len(prompt.tier("system")), profile, number) for number, prompt in _numbered(run, profile))


def exclude_tool_results(run: Run, profile: Profile) -> Iterator[Prompt] | None:
    """What stands in front of the first tool result is cached."""
    if not any(message["role"] == "tool" for ask in run.asks for message in ask.messages):
        return None

    def prompts() -> Iterator[Prompt]:
        for number, prompt in _numbered(run, profile):
            results = (at for at, one in enumerate(prompt.sections) if one.kind == "tool_result" or "tool" in one.head)
            yield _until(prompt, next(results, len(prompt.sections)), profile, number)

    return prompts()


def llmbuffer(run: Run, profile: Profile) -> Iterator[Prompt] | None:
    """Llmbuffer's PromptManager, one an agent, with its adapter for the provider and no limit."""
    try:
        from llmbuffer import PromptManager  # noqa: PLC0415 - a peer
        from llmbuffer.adapters import AnthropicAdapter, OpenAIAdapter  # noqa: PLC0415 - the same
    except ImportError:
        return None

    def prompts() -> Iterator[Prompt]:
        memo = Memo()
        held: dict[str, tuple[Any, list[Message]]] = {}
        for ask in run.asks:
            manager, seen = held.get(ask.agent, (None, []))
            if manager is None or list(ask.messages[: len(seen)]) != seen:
                # A history that does not continue the last one is another conversation to it.
                adapter = AnthropicAdapter() if profile.markers == "anthropic" else OpenAIAdapter()
                manager, seen = PromptManager(static_system_prompt=ask.system, adapter=adapter), []
            for message in ask.messages[len(seen) :]:
                manager.append(dict(message))
            held[ask.agent] = manager, list(ask.messages)
            yield _decoded(list(manager.build_messages()), profile, memo)

    return prompts()


def langchain_middleware(run: Run, profile: Profile) -> Iterator[Prompt] | None:
    """LangChain's AnthropicPromptCachingMiddleware on ChatAnthropic; it does nothing for other providers."""
    if profile.markers != "anthropic":
        return None
    try:
        from langchain.agents.middleware.types import ModelRequest  # noqa: PLC0415 - a peer
        from langchain_anthropic import ChatAnthropic  # noqa: PLC0415 - the same
        from langchain_anthropic.middleware import AnthropicPromptCachingMiddleware  # noqa: PLC0415 - the same
        from langchain_core.messages import SystemMessage, convert_to_messages  # noqa: PLC0415 - the same
    except ImportError:
        return None
    model = ChatAnthropic(model=MODELS["anthropic"], api_key="none is needed")
    middleware = AnthropicPromptCachingMiddleware()

    def payload(request: Any) -> Any:
        system = [request.system_message] if request.system_message else []
        # Its only way to a body without a server.
        return model._get_request_payload([*system, *request.messages], **request.model_settings)  # noqa: SLF001

    def prompts() -> Iterator[Prompt]:
        memo = Memo()
        for ask in run.asks:
            system = SystemMessage(ask.system) if ask.system else None
            messages = convert_to_messages([{**one, "content": one["content"] or "-"} for one in ask.messages])
            asked = ModelRequest(
                model=model, messages=messages, system_message=system, tools=[], tool_choice=None, response_format=None
            )
            body = middleware.wrap_model_call(asked, payload)
            yield decode({name: body[name] for name in body if name != "max_tokens"}, "anthropic", memo=memo)

    return prompts()


def ours(run: Run, profile: Profile, *, tail: TailPlacement = "tail") -> Iterator[Prompt] | None:
    """A session with its defaults. Agents with roles of their own are forks: role last, or as cards in the system."""
    if run.roles:
        return _as_forks(run, profile, tail)
    return _as_logged(run, profile) if tail == "tail" else None


def _as_forks(run: Run, profile: Profile, tail: TailPlacement) -> Iterator[Prompt]:
    """Every request as the SDK clients' front door lays it out: a fork of one conversation where that pays.

    What the others and the agent itself said stands there in one role, as the adapters of teams send it.
    """
    now = 0.0
    prefix = SharedPrefix(roles=run.roles) if tail == "cards" else SharedPrefix()
    session = Session(
        prefix, caching=Caching(provider=profile.name, tail=tail, counter=ESTIMATE, clock=lambda: now), gate=None
    )
    for role in {ask.agent for ask in run.asks}:
        session.adapter.join(role)
    memo = Memo()
    for ask in run.asks:
        now = ask.at
        history = [{**message, "role": "user"} for message in ask.messages]
        body = _body([*_system(ask.system), *history], profile)
        turn = fork_body(session.adapter, body, _api(profile), Role(ask.agent, conversation=run.name)).begin()
        turn.finish(None, at=now + 1)
        yield decode(turn.body, _api(profile), memo=memo)


def _as_logged(run: Run, profile: Profile) -> Iterator[Prompt]:
    """The requests as they are, marked where they fork off: an adapter knows that, here the log tells it."""
    now = 0.0
    session = Session(caching=Caching(provider=profile.name, counter=ESTIMATE, clock=lambda: now), gate=None)
    memo = Memo()
    once = ForkPolicy(skip_cache_write=True)
    prompts = list(_plain(run, profile))
    for ask, prompt, shared in zip(run.asks, prompts, _shared(prompts), strict=True):
        now = ask.at
        ends = shared < len(prompt.sections)
        body = _body([*_system(ask.system), *ask.messages], profile)
        turn = session.adapter.begin(Request(body, _api(profile), boundary=shared, policy=once if ends else None))
        turn.finish(None, at=now + 1)
        yield decode(turn.body, _api(profile), memo=memo)


def _shared(prompts: Sequence[Prompt]) -> list[int]:
    """For each prompt, how many of its leading sections some other one begins with."""
    rows = []
    for prompt in prompts:
        state, row = b"", []
        for one in prompt.sections:
            state = blake2b(state + one.digest).digest()
            row.append(state)
        rows.append(row)
    known = Counter(state for row in rows for state in row)
    return [sum(known[state] > 1 for state in row) for row in rows]


STRATEGIES: dict[str, Strategy] = {
    "none": none,
    "system only": system_only,
    "exclude tool results": exclude_tool_results,
    "full": full,
    "llmbuffer": llmbuffer,
    "LangChain middleware": langchain_middleware,
    "ours": ours,
    "ours, cards": partial(ours, tail="cards"),
}


# ------------------------------------------------------------------ bodies


def _api(profile: Profile) -> Any:
    return "anthropic" if profile.markers == "anthropic" else "openai-chat"


def _numbered(run: Run, profile: Profile) -> Iterator[tuple[int, Prompt]]:
    return enumerate(_plain(run, profile))


def _plain(run: Run, profile: Profile) -> Iterator[Prompt]:
    memo = Memo()
    for ask in run.asks:
        yield _decoded([*_system(ask.system), *ask.messages], profile, memo)


def _system(text: str) -> list[Message]:
    return [{"role": "system", "content": text}] if text else []


def _model(profile: Profile) -> str:
    return MODELS.get(profile.name, "gpt-5-2025-08-07")


def _decoded(messages: Sequence[Message], profile: Profile, memo: Memo) -> Prompt:
    return decode(_body(messages, profile), _api(profile), memo=memo)


def _until(prompt: Prompt, end: int, profile: Profile, number: int) -> Prompt:
    """The prompt with its first ``end`` sections cached and no more: by a mark, or by a text that is new each time."""
    sections = list(prompt.sections)
    if profile.match == "breakpoint":
        if end:
            sections[end - 1] = replace(sections[end - 1], marker=Marker())
        settings = {**prompt.settings, **_EXPLICIT} if profile.implicit_breakpoint else prompt.settings
        return replace(prompt, sections=tuple(sections), settings=settings)
    data = f"{number:032x}".encode()
    sections.insert(end, section("messages", "messages[nonce]", "text", "user", data, estimate_tokens))
    return replace(prompt, sections=tuple(sections))


def _body(messages: Sequence[Message], profile: Profile) -> dict[str, Any]:
    model = _model(profile)
    if profile.markers != "anthropic":
        return {"model": model, "messages": list(messages)}
    system = [block for message in messages if message["role"] == "system" for block in _blocks(message)]
    rest = [_anthropic(message) for message in messages if message["role"] != "system"]
    return {"model": model, **({"system": system} if system else {}), "messages": rest}


def _blocks(message: Message) -> list[Message]:
    content = message["content"]
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def _anthropic(message: Message) -> Message:
    blocks = _blocks(message)
    if message["role"] == "tool":
        mark = _MARK if any("cache_control" in block for block in blocks) else {}
        text = "".join(block["text"] for block in blocks)
        result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": text, **mark}
        return {"role": "user", "content": [result]}
    uses = []
    for call in message.get("tool_calls") or ():
        try:
            given = json.loads(call["function"]["arguments"])
        except ValueError:
            given = {"text": call["function"]["arguments"]}
        uses.append({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": given})
    return {"role": message["role"], "content": [*blocks, *uses] or [{"type": "text", "text": "-"}]}
