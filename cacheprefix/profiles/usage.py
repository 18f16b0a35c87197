"""Token counts of calls in one shape, and how usage reports of providers, SDKs and frameworks are read into it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, Final

from cacheprefix.errors import told
from cacheprefix.profiles.profile import Profile

_SUMMED = ("input_tokens", "cache_read_tokens", "output_tokens", "reasoning_tokens")


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the provider reported them. ``None`` means not reported, which is not zero.

    ``input_tokens`` is the whole input: uncached, read and written together, whatever the provider's own
    count includes. ``usage_a + usage_b`` adds calls up; a field that only some calls reported is the sum of
    those, a lower bound, and its name stands in ``partial``.
    """

    input_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write: Mapping[str, int] | None = field(default=None, hash=False)
    """Written tokens by lifetime (``5m``, ``1h``, ``30m``, ``12h``); ``""`` where none was stated."""

    output_tokens: int | None = None
    """All generated tokens, reasoning included."""

    reasoning_tokens: int | None = None
    calls: int = 1
    partial: frozenset[str] = frozenset()
    """Fields to which some of the calls contributed nothing because it was not reported."""

    summed: bool = False
    """Whether the provider added up passes of its own (server-side tools): no single prompt's count."""

    problems: tuple[str, ...] = ()
    """What was wrong with the report; the fields concerned are left unreported."""

    @property
    def cache_write_tokens(self) -> int | None:
        """Written tokens of all lifetimes; ``None`` if not reported."""
        return None if self.cache_write is None else sum(self.cache_write.values())

    @property
    def uncached_tokens(self) -> int | None:
        """Input that was neither read nor, as far as reported, written; ``None`` if the input is unknown."""
        if self.input_tokens is None:
            return None
        return max(0, self.input_tokens - (self.cache_read_tokens or 0) - (self.cache_write_tokens or 0))

    @property
    def reported(self) -> bool:
        """Whether the provider said what it read from its cache."""
        return self.cache_read_tokens is not None

    @property
    def cached_share(self) -> float | None:
        """Read tokens as a share of the input, 0 to 1; ``None`` if either is unknown."""
        if self.cache_read_tokens is None or not self.input_tokens:
            return None
        return self.cache_read_tokens / self.input_tokens

    def __add__(self, other: Usage) -> Usage:
        if not isinstance(other, Usage):
            return NotImplemented
        if not self.calls or not other.calls:
            return other if not self.calls else self
        partial = set(self.partial | other.partial)
        values: dict[str, Any] = {}
        for name in _SUMMED:
            mine, theirs = getattr(self, name), getattr(other, name)
            values[name] = None if mine is theirs is None else (mine or 0) + (theirs or 0)
            if (mine is None) is not (theirs is None):
                partial.add(name)
        if (self.cache_write is None) is not (other.cache_write is None):
            partial.add("cache_write")
        return Usage(
            **values,
            cache_write=_added(self.cache_write, other.cache_write),
            calls=self.calls + other.calls,
            partial=frozenset(partial),
            summed=self.summed or other.summed,
            # A long process adds up without end; a few distinct reports say what is wrong.
            problems=tuple(dict.fromkeys(self.problems + other.problems))[:8],
        )

    def __radd__(self, other: object) -> Usage:
        # sum() starts with 0.
        return self if other == 0 else NotImplemented

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; ``usage_from_dict`` reads them back."""
        plain = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        plain["cache_write"] = None if self.cache_write is None else dict(self.cache_write)
        plain["partial"], plain["problems"] = sorted(self.partial), list(self.problems)
        return plain


def usage_from_dict(plain: Mapping[str, Any]) -> Usage:
    """The usage that ``Usage.as_dict`` wrote. Raises TypeError for anything else."""
    values = dict(plain)
    values["partial"] = frozenset(values.get("partial", ()))
    values["problems"] = tuple(values.get("problems", ()))
    write = values.get("cache_write")
    values["cache_write"] = None if write is None else dict(write)
    return Usage(**values)


NO_CALLS = Usage(calls=0)
"""The usage of no call at all: adding to it gives the other summand."""


def _added(mine: Mapping[str, int] | None, theirs: Mapping[str, int] | None) -> Mapping[str, int] | None:
    if mine is None and theirs is None:
        return None
    mine, theirs = mine or {}, theirs or {}
    return {name: mine.get(name, 0) + theirs.get(name, 0) for name in {**mine, **theirs}}


@dataclass(frozen=True, slots=True)
class Shape:
    """Where one family of reports keeps its counts.

    A path is dotted, ``a|b`` takes the first that holds a count, ``a+b`` adds what is there.
    """

    name: str
    marks: tuple[str, ...]
    """The shape fits when one of these paths exists, even with a null in it."""

    input: str
    read: str
    includes_cached: bool
    write: str = ""
    splits: Mapping[str, str] = field(default_factory=dict)
    """Written tokens by lifetime; what ``write`` has beyond them was written without a stated lifetime."""

    output: str = ""
    reasoning: str = ""
    absent_is_zero: bool = False
    """Whether the wire format leaves zeros out, so that a missing read count means zero."""


_LANGCHAIN = "input_token_details"
_CHAT_DETAILS = "prompt_tokens_details"
SHAPES = (
    # Amazon Bedrock Converse, botocore service model: inputTokens excludes both cache counts.
    Shape(
        "bedrock",
        ("inputTokens",),
        input="inputTokens",
        read="cacheReadInputTokens|cacheReadInputTokenCount",
        includes_cached=False,
        write="cacheWriteInputTokens|cacheWriteInputTokenCount",
        splits={"5m": "cacheDetails[ttl=5m].inputTokens", "1h": "cacheDetails[ttl=1h].inputTokens"},
        output="outputTokens",
    ),
    # Gemini: protobuf JSON leaves zeros out. Tool-use and thought tokens are counted beside, not within.
    Shape(
        "gemini",
        ("promptTokenCount", "prompt_token_count"),
        input="promptTokenCount+toolUsePromptTokenCount|prompt_token_count+tool_use_prompt_token_count",
        read="cachedContentTokenCount|cached_content_token_count|cached_prompt_tokens",
        includes_cached=True,
        output="candidatesTokenCount+thoughtsTokenCount|candidates_token_count+thoughts_token_count",
        reasoning="thoughtsTokenCount|thoughts_token_count",
        absent_is_zero=True,
    ),
    # Ollama 0.x: prompt_eval_count is the whole prompt; nothing says what came from the slot's cache.
    Shape(
        "ollama",
        ("prompt_eval_count",),
        input="prompt_eval_count",
        read="",
        includes_cached=True,
        output="eval_count",
    ),
    # LangChain usage_metadata: input includes cached; with a service tier the details carry its prefix, and
    # cache_creation is set to 0 once the 5m and 1h counts are there (langchain_anthropic 1.7.7).
    Shape(
        "langchain",
        (_LANGCHAIN,),
        input="input_tokens",
        read=f"{_LANGCHAIN}.cache_read+{_LANGCHAIN}.priority_cache_read+{_LANGCHAIN}.flex_cache_read",
        includes_cached=True,
        write=f"{_LANGCHAIN}.cache_creation+{_LANGCHAIN}.priority_cache_creation+{_LANGCHAIN}.flex_cache_creation",
        splits={
            "5m": f"{_LANGCHAIN}.ephemeral_5m_input_tokens",
            "1h": f"{_LANGCHAIN}.ephemeral_1h_input_tokens",
        },
        output="output_tokens",
        reasoning="output_token_details.reasoning+output_token_details.priority_reasoning"
        "+output_token_details.flex_reasoning",
    ),
    # OpenAI chat completions and all who copy it (DeepSeek, xAI, Mistral, Groq, vLLM, SGLang, llama.cpp,
    # AutoGen, LiteLLM with Anthropic's names beside, CrewAI).
    Shape(
        "openai-chat",
        ("prompt_tokens",),
        input="prompt_tokens",
        read=f"{_CHAT_DETAILS}.cached_tokens|prompt_cache_hit_tokens|cached_prompt_tokens"
        "|cache_read_input_tokens|cached_prompt_text_tokens|cached_tokens|timings.cache_n",
        includes_cached=True,
        write=f"{_CHAT_DETAILS}.cache_write_tokens|{_CHAT_DETAILS}.cache_creation_tokens"
        f"|cache_creation_input_tokens|cache_creation_tokens|{_CHAT_DETAILS}.created_cache_tokens",
        splits={
            "5m": f"{_CHAT_DETAILS}.cache_creation_token_details.ephemeral_5m_input_tokens"
            "|cache_creation.ephemeral_5m_input_tokens",
            "1h": f"{_CHAT_DETAILS}.cache_creation_token_details.ephemeral_1h_input_tokens"
            "|cache_creation.ephemeral_1h_input_tokens",
        },
        output="completion_tokens",
        reasoning="completion_tokens_details.reasoning_tokens|reasoning_tokens",
    ),
    # OpenAI responses.
    Shape(
        "openai-responses",
        ("input_tokens_details", "cached_prompt_tokens"),
        input="input_tokens",
        read="input_tokens_details.cached_tokens|cached_prompt_tokens|cached_prompt_text_tokens",
        includes_cached=True,
        write="input_tokens_details.cache_write_tokens|cache_creation_tokens",
        output="output_tokens",
        reasoning="output_tokens_details.reasoning_tokens|reasoning_tokens",
    ),
    # Anthropic: input_tokens is only what was neither read nor written.
    Shape(
        "anthropic",
        ("cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation", "server_tool_use"),
        input="input_tokens",
        read="cache_read_input_tokens",
        includes_cached=False,
        write="cache_creation_input_tokens",
        splits={
            "5m": "cache_creation.ephemeral_5m_input_tokens",
            "1h": "cache_creation.ephemeral_1h_input_tokens",
        },
        output="output_tokens",
        reasoning="output_tokens_details.thinking_tokens|output_tokens_details.reasoning_tokens",
    ),
    # OpenTelemetry GenAI attributes; the conventions ask for input_tokens with the cached ones included.
    Shape(
        "opentelemetry",
        ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
        input="gen_ai.usage.input_tokens|gen_ai.usage.prompt_tokens",
        read="gen_ai.usage.cache_read.input_tokens|gen_ai.usage.cache_read_input_tokens",
        includes_cached=True,
        write="gen_ai.usage.cache_creation.input_tokens|gen_ai.usage.cache_creation_input_tokens",
        output="gen_ai.usage.output_tokens|gen_ai.usage.completion_tokens",
    ),
    # llama.cpp without a usage object: prompt_n is what had to be computed.
    Shape(
        "llama.cpp",
        ("timings",),
        input="timings.prompt_n",
        read="timings.cache_n",
        includes_cached=False,
        output="timings.predicted_n",
    ),
    # The whole input under its plain name, cache counts (if any) under ours.
    Shape(
        "plain",
        ("input_tokens",),
        input="input_tokens",
        read="cache_read_tokens",
        includes_cached=True,
        write="cache_write_tokens",
        splits={ttl: f"cache_write_{ttl}_tokens|cache_write.{ttl}" for ttl in ("5m", "1h", "30m", "12h")},
        output="output_tokens",
    ),
)
PLAIN = SHAPES[-1]


def shape_from(profile: Profile) -> Shape:
    """The shape that a profile's ``usage_fields`` describe."""
    paths = profile.usage_fields
    named = {name.removeprefix("write_"): path for name, path in paths.items() if name.startswith("write_")}
    return Shape(
        profile.name,
        tuple(paths.get("input", "").split("|")),
        input=paths.get("input", ""),
        read=paths.get("read", ""),
        includes_cached=profile.input_includes_cached,
        write=paths.get("write", ""),
        splits=named,
        output=paths.get("output", ""),
    )


_MARKS = frozenset(mark for shape in SHAPES for mark in shape.marks[:2])
_ALL_MARKS = frozenset(mark for shape in SHAPES[:-1] for mark in shape.marks)
_ABSENT: Final = object()
_SELECTOR = re.compile(r"^(\w+)\[(\w+)=([^\]]*)\]$")
_DEEPEST = 3
_MOST_NAMES = 64
"""Names of an object that may be the form of a report: forms are kept."""


def normalise_usage(
    raw: object, api: str | None = None, provider: str | None = None, *, profile: Profile | None = None
) -> Usage:
    """A provider's, SDK's or framework's report as Usage.

    ``raw`` is the usage object, the response that carries it, or a list of a stream's events (their counts
    are cumulative). Mappings and objects with attributes are read alike. Which counts mean what is told by
    their names; ``api``, ``provider`` or a ``profile`` with its own ``usage_fields`` decide where names do
    not. Never raises: what cannot be used is left unreported and named in ``problems``.
    """
    try:
        return _normalised(raw, api, provider, profile)
    except Exception as error:  # a report may be any object, with properties that raise
        return Usage(problems=(f"usage cannot be read ({told(error)})",))


def _normalised(raw: object, api: str | None, provider: str | None, profile: Profile | None) -> Usage:
    """The usage of one report, or of a stream's several; what cannot be read is told under ``problems``."""
    if isinstance(raw, Usage):
        return raw
    if type(raw) is not dict and isinstance(raw, Sequence) and not isinstance(raw, (str, bytes)):
        raw = merge_usage(*raw)
    if raw is None:
        return Usage(problems=("no usage was reported",))
    inner, outer = _descend(raw)
    shape = _shape_of(inner, api, provider, profile)
    if shape is None:
        found = f"{type(raw).__name__}" if not isinstance(raw, Mapping) else f"keys {sorted(map(str, raw))[:6]}"
        return Usage(problems=(f"usage of no known form ({found})",))
    return _Reader(inner, outer).read(shape)


def merge_usage(*parts: object) -> dict[str, Any]:
    """One report from the events of a stream. Counts are cumulative there, so the highest holds."""
    merged: dict[str, Any] = {}
    for part in parts:
        # Runs inside a user's stream: an event that cannot be read must not end it, it only adds nothing.
        with contextlib.suppress(Exception):
            _merge(merged, _as_dict(_descend(part)[0]))
    return merged


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Put a later report of a stream over an earlier one: what is new, and of counts the larger one."""
    for name, value in more.items():
        old = into.get(name)
        if isinstance(value, Mapping) and isinstance(old, dict):
            _merge(old, value)
        elif isinstance(value, Mapping):
            into[name] = {}
            _merge(into[name], value)
        elif old is None or (_is_count(old) and _is_count(value) and value > old):
            into[name] = value


def _as_dict(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    dump = getattr(value, "model_dump", None)
    dumped = dump() if callable(dump) else getattr(value, "__dict__", None)
    return dict(dumped) if isinstance(dumped, Mapping) else {}


def _plain(value: object) -> object:
    return _as_dict(value) if hasattr(value, "model_dump") else value


def _descend(raw: object) -> tuple[object, object]:
    """The usage object inside ``raw``, and ``raw`` itself for counts that stand beside it."""
    inner = raw
    for _ in range(_DEEPEST):
        # A dict is asked for all of them at once, as fast as for one.
        if not _MARKS.isdisjoint(inner) if type(inner) is dict else any(_has(inner, mark) for mark in _MARKS):
            break
        held = (_find(inner, key) for key in ("usage", "usageMetadata", "usage_metadata", "message", "response"))
        deeper = next((value for value in held if value is not _ABSENT and value is not None), None)
        if deeper is None or isinstance(deeper, (str, int, float)):
            break
        inner = deeper
    if inner is raw:
        beside = _find(raw, "usage")
        # llama.cpp sends timings beside usage; the usage object is the fuller report.
        return (raw if beside is _ABSENT or beside is None else beside), raw
    return inner, raw


def _shape_of(raw: object, api: str | None, provider: str | None, profile: Profile | None) -> Shape | None:
    """In which provider's spelling a report is; None for none that is known."""
    if type(raw) is dict and _ALL_MARKS.isdisjoint(raw):
        fitting = None
    elif type(raw) is dict:
        fitting = _fitting(tuple(raw))
    else:
        fitting = next((shape for shape in SHAPES[:-1] if any(_has(raw, mark) for mark in shape.marks)), None)
    if fitting is None and "anthropic" in {api, provider} and _find(raw, "input_tokens") is not _ABSENT:
        return next(shape for shape in SHAPES if shape.name == "anthropic")
    if fitting is None and profile is not None and profile.usage_fields:
        own = shape_from(profile)
        if any(_find(raw, path) is not _ABSENT for path in own.marks):
            return own
    if fitting is None and _find(raw, "input_tokens") is not _ABSENT:
        return PLAIN
    return fitting


def _has(raw: object, name: str) -> bool:
    # A dict is asked for first: whether something is a Mapping takes ten times as long to tell.
    if type(raw) is dict or isinstance(raw, Mapping):
        return name in raw
    return _find(raw, name) is not _ABSENT


def _find(raw: object, path: str) -> Any:
    """The value at a dotted path, ``_ABSENT`` if there is none. Whole dotted names win (OpenTelemetry)."""
    if type(raw) is dict or isinstance(raw, Mapping):
        if path in raw:
            return raw[path]
        head, dot, rest = path.partition(".")
        if not dot and head[-1:] != "]":
            return _ABSENT
        if "[" in head and (selected := _SELECTOR.match(head)):
            return _select(raw, selected, rest)
        if head not in raw:
            return _ABSENT
        return _find(raw[head], rest) if rest else raw[head]
    if raw is None or isinstance(raw, (str, bytes, int, float, list, tuple)):
        return _ABSENT
    head, _, rest = path.partition(".")
    value = getattr(raw, head, _ABSENT) if head.isidentifier() else _ABSENT
    return _find(value, rest) if rest and value is not _ABSENT else value


def _select(raw: Mapping[str, Any], selected: re.Match[str], rest: str) -> Any:
    name, key, wanted = selected.groups()
    items = raw.get(name)
    for item in items if isinstance(items, Sequence) and not isinstance(items, (str, bytes)) else ():
        if str(_find(item, key)) == wanted:
            return _find(item, rest) if rest else item
    return _ABSENT


@lru_cache(maxsize=256)
def _alternatives(paths: str) -> tuple[tuple[str, ...], ...]:
    """The paths of each alternative's summands."""
    return tuple(tuple(part.split("+")) for part in paths.split("|") if part)


@lru_cache(maxsize=256)
def _fitting(names: tuple[object, ...]) -> Shape | None:
    """The first shape with a mark among the names of a report."""
    return next((shape for shape in SHAPES[:-1] if not set(names).isdisjoint(shape.marks)), None)


def _form(raw: dict[Any, Any], deeper: int = _DEEPEST) -> tuple[Any, ...] | None:
    """The names of a report, each with those of the object that it holds; None for what is not looked into."""
    if len(raw) > _MOST_NAMES or not deeper:
        return None
    return tuple([(name, _form(inner, deeper - 1) if type(inner) is dict else None) for name, inner in raw.items()])


@lru_cache(maxsize=256)
def _standing(form: tuple[Any, ...]) -> dict[str, tuple[tuple[str, ...], ...]]:  # noqa: ARG001 - a key
    """What was found to stand in reports of a form, by path: for ``_Reader``."""
    return {}


def _stands(form: tuple[Any, ...], path: str) -> bool:
    """Whether a path may be in a report of a form: most of a shape's many are not."""
    inner = dict(form)
    if path in inner:
        return True
    head, dot, rest = path.partition(".")
    name = head.partition("[")[0]
    if name not in inner or (name == head and not dot):
        return False
    return inner[name] is None or _stands(inner[name], rest)


def _is_count(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class _Reader:
    """Reads the counts of one report and keeps what was wrong with it."""

    def __init__(self, inner: object, outer: object) -> None:
        self._inner, self._outer = inner, outer
        self._form = _form(inner) if inner is outer and type(inner) is dict else None
        self._rows = {} if self._form is None else _standing(self._form)
        """Of each path's alternatives those that may stand in this report, looked up once for each form of reports."""
        self._problems: list[str] = []

    def read(self, shape: Shape) -> Usage:
        """The counts as one shape has them; what cannot be is left out and named in ``problems``."""
        given = self._count(shape.input)
        read = self._count(shape.read)
        if read is None and shape.absent_is_zero and given is not None and not self._problems:
            read = 0
        read = self._distrusted(read)
        write = self._written(shape)
        includes = shape.includes_cached
        spent = (read or 0) + sum((write or {}).values())
        if includes and given is not None and spent > given and self._anthropic_names():
            # AutoGen and older proxies pass Anthropic's exclusive input count on as prompt_tokens.
            includes = False
            self._problems.append(f"input {given} is less than read and written {spent}: taken as exclusive")
        total = given if includes or given is None else given + spent
        if total is not None and includes:
            read, write = self._within(total, read, write)
        return Usage(
            input_tokens=total,
            cache_read_tokens=read,
            cache_write=write,
            output_tokens=self._count(shape.output),
            reasoning_tokens=self._count(shape.reasoning),
            calls=self._calls(),
            summed=self._summed(),
            problems=tuple(self._problems),
        )

    def _count(self, paths: str) -> int | None:
        """The first of the alternatives in ``paths`` that the report holds, its summands added up; None without one."""
        rows = self._rows.get(paths)
        if rows is None:
            form = self._form
            rows = _alternatives(paths)
            if form is not None:
                kept = (tuple([path for path in row if _stands(form, path)]) for row in rows)
                rows = tuple(row for row in kept if row)
            self._rows[paths] = rows
        for summands in rows:
            found = [count for path in summands if (count := self._number(path)) is not None]
            if found:
                return sum(found)
        return None

    def _number(self, path: str) -> int | None:
        """The count at a path, 0 or more; None where there is none, and a problem where something else is there."""
        value = _find(self._inner, path)
        if value is _ABSENT and self._outer is not self._inner:
            value = _find(self._outer, path)
        if value is _ABSENT or value is None:
            return None
        if type(value) is int and value >= 0:
            return value
        if not _is_count(value) or not float(value).is_integer():
            self._problems.append(f"{path} is {str(value)[:40]!r}, not a count")
            return None
        if value < 0:
            self._problems.append(f"{path} is {value}, below zero")
            return None
        return int(value)

    def _written(self, shape: Shape) -> dict[str, int] | None:
        total = self._count(shape.write)
        splits = {ttl: count for ttl, path in shape.splits.items() if (count := self._count(path)) is not None}
        if total is None and not splits:
            return None
        rest = max(0, (total or 0) - sum(splits.values()))
        written = {ttl: count for ttl, count in splits.items() if count}
        return {**written, "": rest} if rest else written

    def _within(
        self, total: int, read: int | None, write: dict[str, int] | None
    ) -> tuple[int | None, dict[str, int] | None]:
        """Counts that are parts of the input cannot exceed it; those that do are left unreported."""
        if read is not None and read > total:
            self._problems.append(f"cache read {read} exceeds the input {total} that contains it")
            read = None
        if write is not None and sum(write.values()) + (read or 0) > total:
            self._problems.append(f"cache write {sum(write.values())} and read {read or 0} exceed the input {total}")
            write = None
        return read, write

    def _distrusted(self, read: int | None) -> int | None:
        """CrewAI's UsageMetrics starts at 0 and its LiteLLM path never fills it in: 0 says nothing there."""
        return None if read == 0 and _find(self._inner, "successful_requests") is not _ABSENT else read

    def _anthropic_names(self) -> bool:
        names = ("cache_read_input_tokens", "cache_creation_input_tokens")
        return any(_is_count(_find(self._inner, name)) for name in names)

    def _calls(self) -> int:
        """CrewAI sums calls up and counts those that succeeded; a report is of one call at least."""
        return self._count("successful_requests") or 1

    def _summed(self) -> bool:
        if type(self._inner) is dict and "server_tool_use" not in self._inner:
            return False
        tools = _find(self._inner, "server_tool_use")
        counts = _as_dict(tools).values() if tools is not _ABSENT and tools is not None else ()
        return any(_is_count(count) and count > 0 for count in counts)
