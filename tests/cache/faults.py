"""Makes agents' conversations, breaks their cache in one known way, and says what the verdict must be.

A case is a row of requests of several interleaved agents under one provider's rules. The simulated provider
answers each with its usage; the cache model sees only requests and usage, as it does in real life. One seed
makes one case, so a failure can be made again from its number.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cacheprefix.cache import CacheModel, SentBy, Verdict, mark, plan_breakpoints
from cacheprefix.layout import tail_text
from cacheprefix.profiles import Profile, Usage, default_registry
from cacheprefix.prompt import CountTokens, Prompt, estimate_tokens
from cacheprefix.server import ProviderCache, RefusedError
from cacheprefix.wire import Memo, decode, encode

RULES = ("exact", "openai", "openai-5.6", "openai-5.6-prefix", "anthropic", "deepseek")

CONTENT = (
    "tools_changed", "tools_reordered", "system_changed", "history_edited", "history_reordered",
    "history_truncated", "compacted",
)  # fmt: skip
KEYS = ("model_changed", "settings_changed", "scope_changed")
TIMES = ("ttl_expired", "concurrent_cold_start", "provider_miss", "unreported", "below_minimum")
MARKS = ("breakpoint_missing", "breakpoint_after_change", "lookback_exceeded", "breakpoints_over_limit")

_WORDS = (  # noqa: SIM905 - a row of words reads better than a list of strings
    "ledger harbour invoice lantern quarry saddle timber violet anchor basin candle drawer engine fabric glacier "
    "hammer island jacket kernel ladder magnet needle orchard pepper quiver ribbon signal tunnel uniform valley"
).split()

Body = dict[str, Any]


def causes_for(rules: str) -> tuple[str, ...]:
    """The causes that can happen under a rule set."""
    found = [*CONTENT, "model_changed", "scope_changed", "provider_miss", "unreported"]
    if rules not in ("exact", "deepseek"):
        found += ["ttl_expired", "below_minimum"]
    if rules != "exact":
        found.append("settings_changed")
    if rules != "deepseek":
        found.append("concurrent_cold_start")
    if rules == "anthropic":
        found += MARKS
    if rules.startswith("openai-5.6"):
        found.append("breakpoint_missing")
    if rules == "openai-5.6":
        found += ["breakpoint_after_change", "breakpoints_over_limit"]
    return tuple(found)


@dataclass(slots=True)
class Step:
    """One request. Times are seconds; ``tamper`` changes what the provider reports."""

    agent: str
    body: Body
    at: float
    first: float
    end: float
    session: str = "s"
    scope: str = ""
    events: tuple[Any, ...] = ()
    tamper: Callable[[Usage], Usage | None] | None = None
    headers: Mapping[str, str] | None = None
    placed: bool = True
    """Whether breakpoints are planned for it, as a careful application would."""
    boundary: int | None = None
    """Messages shared with siblings; None when all are."""


@dataclass(slots=True)
class Case:
    """Requests in the order they start, and which of them is broken how."""

    rules: str
    api: str
    steps: list[Step]
    cause: str | None = None
    path: str | None = None
    broken: int | None = None
    """Number of the step that must carry the verdict."""


@dataclass(slots=True)
class Agent:
    """One agent's conversation as it grows."""

    name: str
    body: Body
    turns: int = 0
    lengths: list[int] = field(default_factory=list)
    """Messages in each request that was sent."""


class Maker:
    """Texts and conversations from one seed."""

    def __init__(self, seed: int, api: str, material: Sequence[Sequence[Body]] = ()) -> None:
        self.rng = random.Random(seed)
        self.api = api
        self.material = material
        self.small = False
        self._calls = 0

    def words(self, low: int, high: int) -> str:
        """Between ``low`` and ``high`` words, never the same twice."""
        self._calls += 1
        if self.small:
            low, high = max(1, low // 10), max(2, high // 10)
        chosen = self.rng.choices(_WORDS, k=self.rng.randint(low, high))
        return f"{' '.join(chosen)} {self._calls}."

    def tool(self, number: int) -> Body:
        """A tool in the API's form."""
        schema = {
            "type": "object",
            "properties": {name: {"type": "string", "description": self.words(3, 9)} for name in ("query", "scope")},
            "required": ["query"],
        }
        name, text = f"tool_{number}", self.words(15, 60)
        if self.api == "anthropic":
            return {"name": name, "description": text, "input_schema": schema}
        return {"type": "function", "function": {"name": name, "description": text, "parameters": schema}}

    def start(self, name: str, system: str, tools: list[Body], model: str) -> Agent:
        """An agent with its first question."""
        body: Body = {"model": model, "tools": copy.deepcopy(tools)}
        if self.api == "anthropic":
            body |= {"max_tokens": 1000, "system": [{"type": "text", "text": system}], "messages": []}
        else:
            body |= {"messages": [{"role": "system", "content": system}]}
        agent = Agent(name, body)
        body["messages"].append({"role": "user", "content": self.words(20, 200)})
        return agent

    def grow(self, agent: Agent) -> None:
        """What comes before the agent's next request: an answer, and a tool's results or a new question."""
        messages: list[Body] = agent.body["messages"]
        agent.turns += 1
        if self.rng.random() < 0.5:
            self.tool_round(messages)
        else:
            messages.append({"role": "assistant", "content": self.words(10, 120)})
            messages.append({"role": "user", "content": self.words(5, 120)})

    def tool_round(self, messages: list[Body]) -> None:
        """An answer that calls tools, and their results."""
        ids = [f"call_{self.rng.getrandbits(40):x}" for _ in range(self.rng.randint(1, 3))]
        if self.api == "anthropic":
            said = [{"type": "text", "text": self.words(5, 30)}]
            uses = [
                {"type": "tool_use", "id": one, "name": "tool_0", "input": {"query": self.words(2, 9)}} for one in ids
            ]
            results = [{"type": "tool_result", "tool_use_id": one, "content": self.words(20, 200)} for one in ids]
            messages.append({"role": "assistant", "content": said + uses})
            messages.append({"role": "user", "content": results})
            return
        calls = [
            {
                "id": one,
                "type": "function",
                "function": {"name": "tool_0", "arguments": json.dumps({"query": self.words(2, 9)})},
            }
            for one in ids
        ]
        messages.append({"role": "assistant", "content": self.words(5, 30), "tool_calls": calls})
        messages.extend({"role": "tool", "tool_call_id": one, "content": self.words(20, 200)} for one in ids)


def from_traces(folder: Path, limit: int = 60) -> list[list[Body]]:
    """Conversations of the tau-bench traces, in OpenAI's form, without their system message."""
    with gzip.open(folder / "gpt-4o-airline.json.gz", "rt", encoding="utf-8") as file:
        runs = json.load(file)
    found = []
    for run in runs[:limit]:
        messages = [_clean(message) for message in run["traj"] if message["role"] != "system"]
        if len(messages) >= 8:
            found.append(messages)
    return found


def _clean(message: Mapping[str, Any]) -> Body:
    keep = ("role", "content", "tool_calls", "tool_call_id")
    return {name: message[name] for name in keep if message.get(name) is not None}


class TraceMaker(Maker):
    """The same with conversations of a recorded run: what an agent says next is what stands there next."""

    def start(self, name: str, system: str, tools: list[Body], model: str) -> Agent:
        """An agent that goes through one of the recorded conversations."""
        agent = super().start(name, system, tools, model)
        self._rest = getattr(self, "_rest", {})
        rows = copy.deepcopy(list(self.rng.choice(self.material)))
        first = 1 if self.api != "anthropic" else 0
        agent.body["messages"][first:] = [rows.pop(0)]
        agent.body["messages"][-1] = {"role": "user", "content": f"{name}: {agent.body['messages'][-1]['content']}"}
        self._rest[name] = rows
        return agent

    def grow(self, agent: Agent) -> None:
        """Up to the next point at which the recorded agent was asked again."""
        rows = self._rest[agent.name]
        agent.turns += 1
        if len(rows) < 2 or self.api == "anthropic":
            agent.turns -= 1
            super().grow(agent)
            return
        agent.body["messages"].append(rows.pop(0))
        while rows and rows[0]["role"] != "assistant":
            agent.body["messages"].append(rows.pop(0))


def api_of(rules: str) -> str:
    """The wire form used under a rule set."""
    return "anthropic" if rules == "anthropic" else "openai-chat"


def model_of(rules: str) -> str:
    """A model that the rule set is for."""
    return {"anthropic": "claude-sonnet-4-5", "openai": "gpt-5.1", "deepseek": "deepseek-chat"}.get(
        rules, "gpt-5.6" if "5.6" in rules else "exact"
    )


def undisturbed(seed: int, rules: str, material: Sequence[Sequence[Body]] = ()) -> Case:
    """Agents of one team: each appends to its own conversation, or all are forks of a common one."""
    scene = _Scene(seed, rules, material)
    return scene.forks() if seed % 3 == 0 else scene.play()


def injected(seed: int, rules: str, cause: str, material: Sequence[Sequence[Body]] = ()) -> Case:
    """The same with one break."""
    return _Scene(seed, rules, material, cause).play()


class _Scene:
    """One case in the making."""

    def __init__(self, seed: int, rules: str, material: Sequence[Sequence[Body]], cause: str | None = None) -> None:
        self.rules, self.cause, self.api = rules, cause, api_of(rules)
        recorded = bool(material) and self.api != "anthropic" and cause != "below_minimum"
        maker = TraceMaker if recorded else Maker
        self.make = maker(seed, self.api, material)
        self.rng = self.make.rng
        self.case = Case(rules, self.api, [], cause)
        self.now = 1000.0
        self.make.small = cause == "below_minimum"
        self.tools = [self.make.tool(i) for i in range(2 if self.make.small else self.rng.randint(3, 6))]
        self.system = self.make.words(300, 700) if self.make.small else self.make.words(900, 1600)
        self.named = self.rng.random() < 0.8

    def agent(self, number: int) -> Agent:
        """A further member of the team: the same system and tools, a task of its own."""
        return self.make.start(f"agent{number}", self.system, self.tools, model_of(self.rules))

    def send(self, agent: Agent, *, gap: float | None = None, overlap: bool = False, **options: Any) -> Step:
        """One request of an agent, some seconds after the last."""
        if not overlap:
            self.now += self.rng.uniform(0.5, 20) if gap is None else gap
        start = self.now
        first = start + self.rng.uniform(0.2, 2)
        end = first + self.rng.uniform(0.2, 4)
        name = agent.name if self.named else ""
        step = Step(name, copy.deepcopy(agent.body), start, first, end, **options)
        self.case.steps.append(step)
        agent.lengths.append(len(agent.body["messages"]))
        if not overlap:
            self.now = end
        return step

    def play(self) -> Case:
        """A few turns of each agent in turn, the break in one of them, and a few turns more."""
        if self.cause in ("concurrent_cold_start", "breakpoint_after_change"):
            self._siblings()
            return self.case
        team = [self.agent(number) for number in range(self.rng.randint(1, 3))]
        for agent in team:
            self.send(agent)
        for _ in range(self.rng.randint(2, 6)):
            self._turn(team)
        if self.cause is not None:
            victim = self.rng.choice(team)
            if not any(len(agent.lengths) > 1 for agent in [victim]):
                self.make.grow(victim)
                self.send(victim)
            self.make.grow(victim)
            self._break(victim)
            self.case.broken = len(self.case.steps) - 1
        for _ in range(self.rng.randint(0, 2)):
            self._turn(team)
        return self.case

    def forks(self) -> Case:
        """One transcript; each request of a role is the transcript so far and the role's own tail behind it.

        Some roles name the time in their tail, and one of them may run a loop of tools before it is heard: its
        tail then stays where it is, or moves on to the end with each round.
        """
        agent = self.agent(0)
        roles = [self.make.words(20, 90) for _ in range(self.rng.randint(2, 4))]
        clock = self.rng.random() < 0.5
        pinned = self.rng.random() < 0.5
        for turn in range(self.rng.randint(3, 9)):
            number = self.rng.randrange(len(roles))
            text = f"You speak as role {number}. {roles[number]}"
            if pinned and not self.named:
                # A tail that goes without a name at its agent is only known for one by the words of ours.
                text = tail_text(f"role{number}", roles[number])
            tail = {"role": "user", "content": f"{text} It is {1200 + turn} o'clock." if clock else text}
            boundary = len(agent.body["messages"])
            fork = Agent(f"role{number}", copy.deepcopy(agent.body))
            fork.body["messages"].append(tail)
            self.send(fork, boundary=boundary)
            at = boundary
            for _ in range(self.rng.randint(0, 2)):
                if not pinned:
                    del fork.body["messages"][at]
                self.make.tool_round(fork.body["messages"])
                if not pinned:
                    at = len(fork.body["messages"])
                    fork.body["messages"].append(tail)
                self.send(fork, boundary=at)
            del fork.body["messages"][at]
            agent.body["messages"][boundary:] = fork.body["messages"][boundary:]
            agent.body["messages"].append({"role": "assistant", "content": self.make.words(10, 120)})
            agent.body["messages"].append({"role": "user", "content": self.make.words(5, 40)})
        return self.case

    def _turn(self, team: Sequence[Agent]) -> None:
        for agent in self.rng.sample(list(team), len(team)):
            if self.rng.random() < 0.8:
                self.make.grow(agent)
                self.send(agent)

    def _siblings(self) -> None:
        """Forks of one prefix: started together while it is cold, or marked only behind what differs."""
        leader, others = self.agent(0), [self.agent(number) for number in range(1, self.rng.randint(2, 4))]
        if self.cause == "breakpoint_after_change":
            self.send(leader, placed=False)
            _mark_last(self.case.steps[-1].body, self.rules)
            self.send(others[0], placed=False)
            _mark_last(self.case.steps[-1].body, self.rules)
            self.case.path = f"messages[{len(others[0].body['messages']) - 1}]"
        else:
            self.send(leader, overlap=True)
            for other in others:
                self.send(other, overlap=True)
        self.case.broken = len(self.case.steps) - 1

    def _break(self, agent: Agent) -> None:
        getattr(self, f"_{self.cause}")(agent)

    # ------------------------------------------------------------------ what can go wrong

    def _tools_changed(self, agent: Agent) -> None:
        tools: list[Body] = agent.body["tools"]
        at = self.rng.randrange(len(tools))
        kind = self.rng.choice(("text", "added", "removed", "keys"))
        flat = self.api == "anthropic"
        if kind == "text":
            holder = tools[at] if flat else tools[at]["function"]
            holder["description"] = _changed(self.rng, holder["description"])
            self.case.path = f"tools[{at}]" + (".description" if flat else ".function.description")
        elif kind == "added":
            tools.insert(at, self.make.tool(99))
            self.case.path = f"tools[{at}]"
        elif kind == "removed":
            del tools[at]
            self.case.path = f"tools[{at}]"
        else:
            schema = tools[at]["input_schema"] if flat else tools[at]["function"]["parameters"]
            schema["properties"] = dict(reversed(schema["properties"].items()))
            self.case.path = f"tools[{at}]"
        self.send(agent)

    def _tools_reordered(self, agent: Agent) -> None:
        tools: list[Body] = agent.body["tools"]
        old = list(tools)
        while tools == old:
            self.rng.shuffle(tools)
        at = next(i for i, tool in enumerate(tools) if tool != old[i])
        self.case.path = f"tools[{at}]"
        self.send(agent)

    def _system_changed(self, agent: Agent) -> None:
        if self.api == "anthropic":
            block = agent.body["system"][0]
            block["text"] = _changed(self.rng, block["text"])
        else:
            agent.body["messages"][0]["content"] = _changed(self.rng, agent.body["messages"][0]["content"])
        self.case.path = "system[0]"
        self.send(agent)

    def _places(self, agent: Agent) -> range:
        """Messages that stood in the agent's request before."""
        return range(0 if self.api == "anthropic" else 1, agent.lengths[-1])

    def _history_edited(self, agent: Agent) -> None:
        rows = agent.body["messages"]
        at = self.rng.choice([at for at in self._places(agent) if rows[at].get("content") or "tool_calls" in rows[at]])
        message = rows[at]
        content = message.get("content")
        if isinstance(content, list):
            number = self.rng.randrange(len(content))
            block = content[number]
            name = next(key for key in ("text", "content", "input") if key in block)
            if name == "input":
                block["input"] = {"query": _changed(self.rng, block["input"]["query"])}
            else:
                block[name] = self._other(block[name])
            self.case.path = f"messages[{at}].content[{number}]"
        elif content:
            message["content"] = self._other(content)
            self.case.path = f"messages[{at}]"
        else:
            message["tool_calls"][0]["function"]["arguments"] += " "
            self.case.path = f"messages[{at}].tool_calls[0]"
        self.send(agent)

    def _other(self, text: str) -> str:
        return "[old result cleared]" if self.rng.random() < 0.3 else _changed(self.rng, text)

    def _history_reordered(self, agent: Agent) -> None:
        places = self._places(agent)
        messages: list[Body] = agent.body["messages"]
        if len(places) < 2:
            self.make.grow(agent)
        at = self.rng.choice(places[:-1])
        messages[at], messages[at + 1] = messages[at + 1], messages[at]
        self.case.path = f"messages[{at}]"
        self.send(agent)

    def _history_truncated(self, agent: Agent) -> None:
        places = self._places(agent)
        at = self.rng.choice(places)
        most = agent.lengths[-1] - at
        count = self.rng.randint(1, most)
        del agent.body["messages"][at : at + count]
        self.case.path = f"messages[{at}]"
        self.send(agent)

    def _compacted(self, agent: Agent) -> None:
        places = self._places(agent)
        at = self.rng.choice(places)
        count = self.rng.randint(1, agent.lengths[-1] - at)
        messages: list[Body] = agent.body["messages"]
        summary = [{"role": "user", "content": "Summary so far: " + self.make.words(20, 60)}]
        messages[at : at + count] = summary if self.rng.random() < 0.7 else []
        self.case.path = f"messages[{at}]"
        self.send(agent, events=({"type": "compaction"},))

    def _model_changed(self, agent: Agent) -> None:
        agent.body["model"] = {"anthropic": "claude-sonnet-4-6", "openai": "gpt-5.2"}.get(self.rules, "gpt-5.6-mini")
        self.case.path = "model"
        self.send(agent)

    def _settings_changed(self, agent: Agent) -> None:
        if self.api == "anthropic":
            name, value = self.rng.choice(
                (
                    ("tool_choice", {"type": "any"}),
                    ("thinking", {"type": "enabled", "budget_tokens": 2000}),
                    ("speed", "fast"),
                )
            )
        else:
            name, value = self.rng.choice(
                (
                    ("reasoning_effort", "high"),
                    ("response_format", {"type": "json_object"}),
                    ("service_tier", "flex"),
                    ("prompt_cache_key", "other"),
                    ("some_gateway_field", {"a": 1}),
                )
            )
        agent.body[name] = value
        self.case.path = name
        if self.rng.random() < 0.2 and self.api == "anthropic":
            del agent.body[name]
            self.case.path = "header:anthropic-beta"
            self.send(agent, headers={"anthropic-beta": "context-1m-2025-08-07"})
            return
        self.send(agent)

    def _scope_changed(self, agent: Agent) -> None:
        self.case.path = "scope"
        self.send(agent, scope="tenant-b")

    def _ttl_expired(self, agent: Agent) -> None:
        gap = {"anthropic": 301, "openai": 301}.get(self.rules, 1801)
        self.send(agent, gap=gap + self.rng.uniform(0, 4000))

    def _below_minimum(self, agent: Agent) -> None:
        self.send(agent)

    def _provider_miss(self, agent: Agent) -> None:
        self.send(agent, tamper=_unread)

    def _unreported(self, agent: Agent) -> None:
        self.send(
            agent, tamper=lambda usage: None if self.rng.random() < 0.5 else Usage(input_tokens=usage.input_tokens)
        )

    def _breakpoint_missing(self, agent: Agent) -> None:
        if self.rules != "anthropic":
            agent.body["prompt_cache_options"] = {"mode": "explicit"}
        self.send(agent, placed=False)
        agent.body.pop("prompt_cache_options", None)

    def _lookback_exceeded(self, agent: Agent) -> None:
        messages: list[Body] = agent.body["messages"]
        for _ in range(self.rng.randint(11, 30)):
            messages.append({"role": "assistant", "content": self.make.words(5, 20)})
            messages.append({"role": "user", "content": self.make.words(5, 20)})
        self.send(agent, placed=False)
        _mark_last(self.case.steps[-1].body, self.rules)

    def _breakpoints_over_limit(self, agent: Agent) -> None:
        if self.rules == "anthropic":
            self.send(agent, placed=False, tamper=lambda usage: None)
            body = self.case.steps[-1].body
            blocks = [*body["tools"], body["system"][0]]
            for block in blocks[: self.rng.randint(4, len(blocks))]:
                block["cache_control"] = {"type": "ephemeral"}
            _mark_last(body, self.rules)
            if sum("cache_control" in block for block in blocks) < 4:
                body["system"][0]["cache_control"] = {"type": "ephemeral"}
            return
        # The marks of one request push the early one out, and a sibling looks for it there.
        fresh = self.make.words(900, 1600)
        leader = self.make.start(f"{agent.name}x", fresh, self.tools, model_of(self.rules))
        for _ in range(6):
            self.make.grow(leader)
        self.send(leader, placed=False)
        _mark_messages(self.case.steps[-1].body, start=0, count=7)
        sibling = self.make.start(f"{agent.name}y", fresh, self.tools, model_of(self.rules))
        self.send(sibling, placed=False)
        body = self.case.steps[-1].body
        _mark_messages(body, start=0, count=1)
        body["prompt_cache_options"] = {"mode": "explicit"}
        self.case.steps[-2].body["prompt_cache_options"] = {"mode": "explicit"}


def _unread(usage: Usage) -> Usage:
    return Usage(input_tokens=usage.input_tokens, cache_read_tokens=0, cache_write=usage.cache_write)


def _changed(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text))
    return f"{text[:at]}@{rng.getrandbits(24):x}{text[at + rng.randint(0, 3) :]}"


def _mark_last(body: Body, rules: str) -> None:
    """A breakpoint at the very end and nowhere else."""
    if rules == "anthropic":
        message = body["messages"][-1]
        if isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
        message["content"][-1]["cache_control"] = {"type": "ephemeral"}


def _mark_messages(body: Body, start: int, count: int) -> None:
    marked = 0
    for message in body["messages"][start:]:
        if marked < count and isinstance(message.get("content"), str) and message["role"] != "assistant":
            block = {"type": "text", "text": message["content"], "prompt_cache_breakpoint": {"mode": "explicit"}}
            message["content"] = [block]
            marked += 1


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a case."""

    case: Case
    verdicts: tuple[Verdict, ...]
    expected: tuple[int, ...]
    """Expected read tokens by call, as the cache model said before it was told."""
    read: tuple[int | None, ...]
    """Read tokens by call, as the simulated provider had it; None where it refused."""

    @property
    def verdict(self) -> Verdict:
        """The verdict on the broken step."""
        assert self.case.broken is not None
        return self.verdicts[self.case.broken]

    @property
    def right(self) -> bool:
        """Whether cause and path are as they must be."""
        wanted, found = self.case.path, self.verdict.path
        return self.verdict.cause == self.case.cause and (
            wanted is None
            or (found is not None and (found == wanted or found.startswith((f"{wanted}.", f"{wanted}["))))
        )

    @property
    def false_alarms(self) -> tuple[int, ...]:
        """Steps with an alarm for something else than what was done to the case.

        What expires or starts cold does so for every agent, so those alarms may be several.
        """
        wide = ("ttl_expired", "concurrent_cold_start")
        return tuple(
            number
            for number in self.alarms
            if number != self.case.broken
            and not (self.case.cause in wide and self.verdicts[number].cause == self.case.cause)
        )

    @property
    def alarms(self) -> tuple[int, ...]:
        """Numbers of the steps with an alarm."""
        return tuple(index for index, verdict in enumerate(self.verdicts) if verdict.alarm)


def play(
    case: Case,
    *,
    profile: Profile | None = None,
    model: CacheModel | None = None,
    count: CountTokens | None = None,
) -> Played:
    """Send a case through the simulated provider and past the cache model, in the order of time.

    With ``count`` the provider counts tokens its own way, as real ones do.
    """
    base = profile or default_registry().get(case.rules)
    providers: dict[str, tuple[Profile, ProviderCache]] = {}
    watch = model or CacheModel()
    memo = Memo()
    verdicts: dict[int, Verdict] = {}
    expected: dict[int, int] = {}
    read: dict[int, int | None] = {}
    pending: list[tuple[float, int, Callable[[], None]]] = []

    def settle(until: float) -> None:
        for item in sorted(pending, key=lambda item: item[:2]):
            if item[0] <= until:
                pending.remove(item)
                item[2]()

    order = 0
    for number, step in enumerate(case.steps):
        settle(step.at)
        rules, cache = providers.setdefault(
            step.body["model"], (base, ProviderCache(base, **({"count": count} if count else {})))
        )
        prompt = decode(step.body, case.api, headers=step.headers, memo=memo)  # type: ignore[arg-type]
        if step.placed:
            planned = plan_breakpoints(prompt, rules, boundary=_sections_before(prompt, step.boundary))
            if planned:
                body = mark(step.body, case.api, prompt, planned)  # type: ignore[arg-type]
                prompt = decode(body, case.api, headers=step.headers, memo=memo)  # type: ignore[arg-type]
        by = SentBy(step.scope, step.agent, step.session, events=step.events)
        seen = watch.begin(prompt, rules, by, at=step.at)
        expected[number] = seen.expectation.tokens
        try:
            theirs = decode(encode(prompt), case.api, headers=step.headers, count=count) if count else prompt  # type: ignore[arg-type]
            serving = cache.begin(theirs, step.at, scope=step.scope)
        except RefusedError:
            read[number] = None
            verdicts[number] = watch.finish(seen, None, step.end)
            continue
        outcome = serving.outcome
        read[number] = outcome.read_tokens
        usage: Usage | None = Usage(
            input_tokens=outcome.input_tokens,
            cache_read_tokens=outcome.read_tokens,
            cache_write=dict(outcome.write_tokens),
        )
        if step.tamper is not None and usage is not None:
            usage = step.tamper(usage)

        def begun(seen: Any = seen, serving: Any = serving, at: float = step.first) -> None:
            watch.first_token(seen, at)
            serving.begun(at)

        def ended(
            seen: Any = seen, serving: Any = serving, at: float = step.end, usage: Any = usage, number: int = number
        ) -> None:
            serving.ended(at)
            verdicts[number] = watch.finish(seen, usage, at)

        pending += [(step.first, order, begun), (step.end, order + 1, ended)]
        order += 2
    settle(float("inf"))
    rows = range(len(case.steps))
    return Played(
        case, tuple(verdicts[i] for i in rows), tuple(expected[i] for i in rows), tuple(read[i] for i in rows)
    )


def _sections_before(prompt: Prompt, messages: int | None) -> int | None:
    """Sections up to a number of messages of the body."""
    if messages is None:
        return None
    if prompt.api != "anthropic":
        messages -= sum(1 for section in prompt.sections if section.tier == "system")
        first = sum(1 for section in prompt.sections if section.tier == "system")
    else:
        first = 0
    ahead = sum(1 for section in prompt.sections if section.tier != "messages")
    rows = [section for section in prompt.sections if section.tier == "messages"]
    number = [int(section.path[9 : section.path.index("]")]) - first for section in rows]
    return ahead + sum(1 for index in number if index < messages)


def skewed_count(text: str, model: str = "") -> int:
    """Another tokenizer than ours: some texts are 10 % shorter in it and some 40 % longer."""
    return int(estimate_tokens(text, model) * (0.9 + zlib.crc32(text[:8].encode("utf-8", "replace")) % 6 / 10))


def all_cases(count: int, seed: int = 0, material: Sequence[Sequence[Body]] = ()) -> Iterator[Case]:
    """``count`` broken cases, rule sets and causes in turn."""
    plan = [(rules, cause) for rules in RULES for cause in causes_for(rules)]
    for number in range(count):
        rules, cause = plan[number % len(plan)]
        yield injected(seed + number, rules, cause, material)
