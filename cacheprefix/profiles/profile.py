"""What a provider's prompt cache does, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cacheprefix.prompt import SettingScope

Confidence = Literal["high", "medium", "low", "contested"]
"""How far a value can be trusted.

``high``: the provider's documentation or SDK says so, or it was measured. ``medium``: a maintained
third party says so. ``low``: background knowledge, to be re-checked. ``contested``: sources disagree,
and the note says how.
"""

Control = Literal["automatic", "explicit", "both", "named", "none"]
Match = Literal["block", "breakpoint", "unit"]
Readable = Literal["start", "first_token", "end"]
Restriction = Literal["keep", "none", "allowed_tools"]
MarkerForm = Literal["anthropic", "bedrock", "openai", "gemini"]


class CacheprefixProfileWarning(UserWarning):
    """A model has no profile: its cache rules are guessed as "automatic, nothing known"."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where a value comes from, when that was last looked at, and how far to trust it."""

    source: str
    checked_on: date
    confidence: Confidence
    note: str = ""


@dataclass(frozen=True, slots=True)
class Ttl:
    """One lifetime a cache entry can be written with."""

    name: str
    """The provider's own word for it: ``5m``, ``1h``, ``30m``, ``in_memory``."""

    write: float
    """Price of a written token, in uncached input tokens."""

    seconds: float | None = None
    """How long an entry can be relied on. ``None``: the provider promises nothing; ``inf``: for ever."""

    refreshed_by_read: bool = True
    """Whether a read starts the lifetime anew."""

    max_seconds: float | None = None
    """Longest life in all, however often it is read. ``None``: no such limit known."""


@dataclass(frozen=True, slots=True)
class Slots:
    """How an engine keeps lines instead of a tree: each slot holds the prompt it served last, and nothing else."""

    count: int = 1
    """Requests served at once; others wait for a slot."""

    similarity: float = 0.0
    """A slot is chosen by its content where more than this share of the request stands in it, else the one used
    least recently."""

    stored_tokens: int | None = 0
    """Tokens of whole prompts kept beside the slots, from where one moves back into a slot. ``None``: no limit."""

    unified: bool = False
    """Whether slots that serve nothing are emptied into that store whenever another request starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The cache rules in force for one provider and model family.

    Every field's value has an ``Evidence``: ask ``evidence_for``. Prices are multiples of one
    uncached input token.
    """

    name: str
    provider: str
    models: tuple[str, ...] = ()
    """Glob patterns over bare, lower-case model names (provider prefix and date removed)."""

    apis: tuple[str, ...] = ()
    """Wire forms this row speaks, as in ``cacheprefix.prompt.Api``."""

    found_by: Literal["model", "provider", "name"] = "model"
    """What leads here: the model's name alone; only with its provider (Azure, vLLM); only this row's own name
    (another reading or another way to use the same models)."""

    control: Control
    """``automatic``: any request may be read and written. ``explicit``: only what is marked. ``both``: marks
    and an automatic one. ``named``: a resource made beforehand. ``none``: no cache."""

    match: Match
    """``block``: the longest common prefix in whole blocks. ``breakpoint``: only where an earlier request
    set one. ``unit``: only whole units the provider chose to keep."""

    min_tokens: int
    """Prompts (or marked prefixes) shorter than this are neither written nor read. Tokens."""

    block_tokens: int = 1
    """Reads are rounded down to a multiple of this. Tokens; 1 is token-exact."""

    max_breakpoints: int = 0
    """Marks one request may write, the provider's own automatic or implicit one included."""

    lookback: int | None = None
    """Positions searched for an earlier write, from the breakpoint's own back: 20 are it and 19 before it.
    ``None``: no limit."""

    collapse_runs: bool = False
    """Whether a run of tool_use blocks, or of tool_result blocks, counts as one position of the lookback."""

    read_candidates: int | None = None
    """How many of the latest breakpoints are considered for reading. ``None``: all."""

    implicit_breakpoint: bool = False
    """Whether the provider marks the newest message itself; that takes one of ``max_breakpoints``."""

    implicit_reads: Literal["breakpoint", "prefix"] = "breakpoint"
    """Contested for OpenAI from 5.6 on. ``breakpoint``: reads only where an earlier request set one.
    ``prefix``: reads the longest equal run of whole messages of any earlier request."""

    automatic_breakpoint: bool = False
    """Whether a top-level mark exists which the provider moves to the last block; takes one too."""

    ttls: tuple[Ttl, ...]
    """Lifetimes on offer, the default first; never empty."""

    ttl_from: Literal["start", "end"] = "start"
    """Whether a lifetime runs from the start of the request or from its end."""

    read: float
    """Price of a token read from the cache."""

    readable: Readable = "first_token"
    """When an entry written by one request can be read by another."""

    cold_parallel_shares: bool = False
    """Whether requests that start together on a cold prefix read from one another."""

    recomputes_last: bool = False
    """Whether a prompt's last token is computed even where all of it is cached, as it is by engines."""

    slots: Slots | None = None
    """For engines that keep lines (scope ``slot``): how many, and how one is chosen. ``None``: a tree."""

    input_includes_cached: bool = True
    """Whether the reported input count contains the cached tokens."""

    usage_fields: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Dotted paths in the raw usage by ``input``, ``read``, ``write``, ``write_5m`` …, ``output``."""

    routing_key: str | None = None
    """Body field, or ``header:NAME``, that sends like requests to the same machine."""

    rate_per_key: int | None = None
    """Requests a minute for one prefix and key beyond which other machines are used."""

    settings: Mapping[str, SettingScope] = field(default_factory=lambda: {"*": "lane"}, hash=False)
    """Where each body field belongs; headers are ``header:name``. ``*`` stands for all that are not named,
    and is ``lane`` unless the rule is known: that promises nothing which may not hold."""

    markers: MarkerForm | None = None
    """How a mark looks on the wire; ``None`` where marks are not understood."""

    tool_choice_safe: Restriction = "keep"
    """How a fork may narrow its tools without breaking the prefix: not at all, or by this tool_choice."""

    mid_system: bool = False
    """Whether a system message may stand among the messages, after the prefix."""

    developer: bool = False
    """Whether such a message is the role ``developer``'s on this provider; elsewhere it is ``system``'s."""

    prefill: bool = True
    """Whether the model takes a last message of its own as the beginning of its answer; where not, that is a 400."""

    thinking_bound: bool = False
    """Whether thinking blocks are only accepted after the very prefix that produced them."""

    scope: str = "account"
    """Who shares a cache at best: ``workspace``, ``organisation``, ``account``, ``server``, ``slot``."""

    note: str = ""
    source: str
    checked_on: date
    confidence: Confidence
    evidence: Mapping[str, Evidence] = field(default_factory=dict, hash=False)
    """Evidence for single fields, where it differs from the row's."""

    @property
    def known(self) -> bool:
        """False for the stand-in of a model without a row."""
        return self.name != "unknown"

    @property
    def default_ttl(self) -> Ttl:
        """The lifetime of a write that names none."""
        return self.ttls[0]

    def ttl(self, name: str | None) -> Ttl:
        """The lifetime called ``name``; the default for ``None`` and for names this row does not have."""
        if name is not None:
            for ttl in self.ttls:
                if ttl.name == name:
                    return ttl
        return self.ttls[0]

    def placement(self, setting: str) -> SettingScope:
        """Where ``setting`` belongs."""
        return self.settings.get(setting) or self.settings.get("*", "lane")

    @property
    def headers(self) -> tuple[str, ...]:
        """Lower-case names of the request headers that matter to the cache."""
        named = (name for name, where in self.settings.items() if where != "none")
        return tuple(name.removeprefix("header:") for name in named if name.startswith("header:"))

    def evidence_for(self, name: str) -> Evidence:
        """Where the value of field ``name`` comes from; the row's own evidence unless the field has one."""
        own = Evidence(self.source, self.checked_on, self.confidence, self.note)
        return self.evidence.get(name, own)
