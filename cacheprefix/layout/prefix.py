"""The frozen part that all agents of a team begin with: system text, tools in a fixed order, role cards."""

from __future__ import annotations

import copy
import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import partial
from hashlib import blake2b
from types import MappingProxyType
from typing import Any

from cacheprefix.errors import SetupError, ToolClashError
from cacheprefix.layout.framing import CARDS
from cacheprefix.prompt import digest_of, dumps, loads

_KEY_BYTES = 12
_LEAST_READ = 1_024
"""Characters in which all texts agree that may share something: no provider that routes by a key keeps fewer tokens,
and a token has a character at least (OpenAI, prompt caching guide: 1,024 tokens)."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool of the union: its name and the JSON schema it had when it was frozen.

    ``schema`` is the JSON of ``{"name", "description", "parameters"}``; ``native`` is the framework's own
    object, kept for the adapter and left out of equality.
    """

    name: str
    schema: bytes
    native: Any = field(default=None, compare=False, repr=False)
    _digest: str | None = field(init=False, default=None, repr=False, compare=False)

    @property
    def version(self) -> tuple[str, str]:
        """Tells this version of the tool from others of its name."""
        if self._digest is None:
            object.__setattr__(self, "_digest", digest_of(self.saved))
        return self.name, self._digest or ""

    @property
    def saved(self) -> str:
        """What defines it as JSON, for another process: as the application wrote it, where that is a dict."""
        return (dumps(self.native, self.name) if isinstance(self.native, dict) else self.schema).decode()


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """What every agent of a team begins with. Immutable: later changes to what was passed in have no effect.

    ``tools`` may be tool dicts (OpenAI or Anthropic form) or a framework's own tool objects; they are
    put in order of their names, so that the order in which agents were built does not matter.
    ``roles`` (name to text) is needed for tail placement ``cards``, where all role texts stand in the shared system
    text, and says of two and more that they are a team before the second one is made. ``context`` holds durable
    keyed text (project facts, memories), one block a key.
    """

    system: str = ""
    _: KW_ONLY
    tools: Sequence[Any] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    context: Mapping[str, str] = field(default_factory=dict)
    _text: str | None = field(init=False, default=None, repr=False, compare=False)
    _key: str | None = field(init=False, default=None, repr=False, compare=False)
    _route: str | None = field(init=False, default=None, repr=False, compare=False)
    _ordered: bool | None = field(init=False, default=None, repr=False, compare=False)
    _names: tuple[str, ...] | None = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        _checked(self.system)
        frozen = tuple(tool if isinstance(tool, Tool) else _kept(tool) for tool in _listed(self.tools))
        object.__setattr__(self, "tools", frozen)
        object.__setattr__(self, "roles", MappingProxyType(_named("roles", self.roles)))
        object.__setattr__(self, "context", MappingProxyType(_named("context", self.context)))

    def __reduce__(self) -> tuple[Any, ...]:
        # The fields' read-only views cannot be pickled or copied.
        given: dict[str, Any] = {
            "system": self.system,
            "tools": self.tools,
            "roles": dict(self.roles),
            "context": dict(self.context),
        }
        return partial(type(self), **given), ()

    @property
    def text(self) -> str:
        """The whole shared system text: system, durable context, role cards."""
        if self._text is None:
            object.__setattr__(self, "_text", self._written())
        return self._text or ""

    def _written(self) -> str:
        parts = [self.system]
        parts += [context_block(key, value) for key, value in self.context.items()]
        if self.roles:
            cards = "\n".join(f'<role name="{name}">\n{text}\n</role>' for name, text in self.roles.items())
            parts.append(f"{CARDS}\n{cards}")
        return "\n\n".join(part for part in parts if part)

    @property
    def key(self) -> str:
        """A short stable name of this prefix: digest of the text and of the tools frozen so far."""
        if self._key is None:
            object.__setattr__(self, "_key", self._digested(self.text))
        return self._key or ""

    @property
    def route(self) -> str:
        """A name that prefixes have in common which may share something: of the tools, and of how the text begins."""
        # Money: with users' own data behind a common handbook, another name for each would part what they share.
        if self._route is None:
            object.__setattr__(self, "_route", self._digested(self.text[:_LEAST_READ]))
        return self._route or ""

    def _digested(self, text: str) -> str:
        state = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES)
        state.update(b"\0".join([b"", *(tool.schema for tool in self.tools if isinstance(tool, Tool))]))
        return f"cacheprefix-{state.hexdigest()}"

    def frozen(self, render: Callable[[Any], Mapping[str, Any]] | None = None) -> SharedPrefix:
        """This prefix with every tool rendered once and the union in order of names.

        ``render`` turns a framework's tool object into ``{"name", "description", "parameters"}``; dicts are
        read by the core. Raises ``ToolClashError`` when one name has two schemas.
        """
        return replace(self, tools=union_tools(self.tools, render=render))

    def with_tools(
        self, tools: Iterable[Any], render: Callable[[Any], Mapping[str, Any]] | None = None
    ) -> SharedPrefix:
        """A prefix whose union also holds ``tools``; this very one where it holds them already."""
        tools = list(tools)
        known = (self.tool(tool.name) if isinstance(tool, Tool) else None for tool in tools)
        if not self.unfrozen and all(one is not None and one == tool for one, tool in zip(known, tools, strict=True)):
            return self
        if self.unfrozen or not self._in_order:
            return replace(self, tools=union_tools((*self.tools, *tools), render=render))
        return self._grown(union_tools(tools, render=render))

    @property
    def _in_order(self) -> bool:
        """Whether its tools stand in order of their names, each once, as those of a union do."""
        if self._ordered is None:
            names = self.tool_names
            object.__setattr__(self, "_ordered", all(map(operator.lt, names, names[1:])))
        return bool(self._ordered)

    def _grown(self, news: Iterable[Tool]) -> SharedPrefix:
        """This union with more tools, put in where they belong.

        A session of many users may have thousands, and each request bring one: those that are there are copied, and
        not read.
        """
        tools, names = self.tools, self.tool_names
        for tool in news:
            known = self.tool(tool.name)
            if known is None:
                at = bisect_left(names, tool.name)
                tools, names = (*tools[:at], tool, *tools[at:]), (*names[:at], tool.name, *names[at:])
            else:
                _same(known, tool)
        made = object.__new__(type(self))
        filled = {"tools": tools, "_names": names, "_ordered": True, "_text": self._text, "_key": None, "_route": None}
        for one in fields(self):
            object.__setattr__(made, one.name, filled[one.name] if one.name in filled else getattr(self, one.name))
        return made

    @property
    def tool_names(self) -> tuple[str, ...]:
        """Names of the union, in its order."""
        if self._names is None:
            object.__setattr__(self, "_names", tuple(tool.name for tool in self.tools if isinstance(tool, Tool)))
        return self._names or ()

    @property
    def unfrozen(self) -> bool:
        """Whether some of its tools wait for their adapter to read them."""
        return len(self.tool_names) < len(self.tools)

    def _place(self, name: str) -> int | None:
        """Where the tool of a name stands; None where there is none."""
        if self.unfrozen or not self._in_order:
            places = {tool.name: index for index, tool in enumerate(self.tools) if isinstance(tool, Tool)}
            return places.get(name)
        names = self.tool_names
        at = bisect_left(names, name)
        return at if names[at : at + 1] == (name,) else None

    def tool(self, name: str) -> Tool | None:
        """The union's tool of a name; None where it has none."""
        at = self._place(name)
        found = None if at is None else self.tools[at]
        return found if isinstance(found, Tool) else None

    def among(self, names: Iterable[str]) -> tuple[Tool, ...]:
        """The union's tools of these names, in its order."""
        places = {at for at in map(self._place, names) if at is not None}
        return tuple(self.tools[at] for at in sorted(places))


def context_block(key: str, text: str) -> str:
    """Durable keyed text as it stands in the shared system text."""
    return f'<context key="{key}">\n{text}\n</context>'


def union_tools(tools: Iterable[Any], *, render: Callable[[Any], Mapping[str, Any]] | None = None) -> tuple[Tool, ...]:
    """The union of tools by name, sorted by name; the same name with another schema raises ``ToolClashError``.

    Keywords in another order are no other schema: the first one's spelling stands for both.
    """
    union: dict[str, Tool] = {}
    for item in tools:
        tool = item if isinstance(item, Tool) else tool_of(item, render)
        known = union.get(tool.name)
        if known is None:
            union[tool.name] = tool
        else:
            _same(known, tool)
    return tuple(union[name] for name in sorted(union))


def _same(known: Tool, tool: Tool) -> None:
    """Raise ``ToolClashError`` where two tools of one name have not the same schema."""
    if known.schema != tool.schema and _meant(known.schema) != _meant(tool.schema):
        raise ToolClashError(tool.name, _first_difference(known.schema, tool.schema))


def tool_of(item: Any, render: Callable[[Any], Mapping[str, Any]] | None = None) -> Tool:
    """Freeze one tool: a dict in OpenAI's or Anthropic's form, or anything ``render`` understands."""
    plain = item if isinstance(item, Mapping) else None
    if plain is None:
        if render is None:
            raise SetupError(
                f"a tool of type {type(item).__name__} needs an adapter to be read; "
                "pass tool dicts, or use the session with a framework adapter"
            )
        plain = render(item)
    inner = plain.get("function")
    plain = inner if isinstance(inner, Mapping) else plain
    name = plain.get("name")
    if not isinstance(name, str) or not name:
        raise SetupError(f"a tool has no name: {type(item).__name__}")
    schema = {
        "name": name,
        "description": plain.get("description") or "",
        "parameters": plain.get("parameters", plain.get("input_schema")) or {},
    }
    return Tool(name, dumps(schema, f"tool {name}"), item)


def _checked(system: object) -> None:
    if not isinstance(system, str):
        raise SetupError(f"SharedPrefix(system=...) takes a string, found {type(system).__name__}")


def _named(option: str, given: Any) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise SetupError(f"SharedPrefix({option}=...) takes texts by name in a dict, found {type(given).__name__}")
    return dict(given)


def _kept(tool: Any) -> Any:
    # A framework's own objects are read by its adapter, later; no framework has Python's own values for tools.
    if not isinstance(tool, Mapping) and type(tool).__module__ == "builtins" and not callable(tool):
        raise SetupError(
            f"SharedPrefix(tools=...) holds {type(tool).__name__} {tool!r:.40}, which is no tool; give tool dicts, "
            "functions or the framework's tool objects themselves"
        )
    return tool_of(copy.deepcopy(dict(tool))) if isinstance(tool, Mapping) else tool


def _listed(tools: Any) -> Sequence[Any]:
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Iterable):
        raise SetupError(f"SharedPrefix(tools=...) takes a list of tools, found {type(tools).__name__}")
    return tuple(tools)


def _meant(schema: bytes) -> bytes:
    """A schema with its keywords in one order. That of a function's arguments counts: a model writes them in it."""

    def ordered(value: Any, name: str = "") -> Any:
        if isinstance(value, Mapping):
            return {key: ordered(value[key], key) for key in (value if name == "properties" else sorted(value))}
        return [ordered(one) for one in value] if isinstance(value, list) else value

    return dumps(ordered(loads(schema)), "schema")


def _first_difference(a: bytes, b: bytes) -> str:
    left, right = loads(a), loads(b)
    name = next(key for key in left if dumps(left[key], key) != dumps(right[key], key))
    return f"{name} differs"
