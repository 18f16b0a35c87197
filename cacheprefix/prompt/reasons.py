"""Why a request went out as it did: one closed list, each with its numbers and, where there is one, the way out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from cacheprefix.errors import named

Layout = Literal["fork", "own", "observed"]
"""``fork``: laid out by us; ``own``: as the application made it, by a decision of ours; ``observed``: only measured."""

Why = Literal[
    # a fork
    "shares",
    "own_tools",
    "role_kept",
    # the application's own layout, since it costs less
    "no_cache",
    "prefix_below_minimum",
    "text_longer_than_shared",
    "role_costs_more",
    "tools_cost_more",
    "little_to_share",
    "alone",
    "lane_of_its_own",
    # the application's own layout, since a fork would show it what is not its own
    "other_text",
    # the application's own layout, since the request is of another kind
    "response_schema",
    "forced_tool",
    "provider_tools",
    "kept_by_provider",
    "own_prompt",
    "own_history",
    "marks_hidden",
    "rules_unknown",
    "asked_again",
    "list_refused",
    # the application's own layout, since the user forks a share of the conversations
    "not_in_fork_share",
    "dearer_as_fork",
    # the application's own layout, since the conversation began without us
    "began_without_us",
    # what the user can remove
    "text_not_found",
    "text_taken",
    "tool_schema_differs",
    "made_too_late",
    "other_model",
    # nothing of ours
    "observe_mode",
    "outside_fork",
    "failed",
]
"""One or more of these explain every request; ``SAID`` says each in a sentence, ``FIXES`` what the user can do."""

SAID: Mapping[Why, str] = MappingProxyType(
    {
        "shares": "laid out as a fork: {shared:,} tokens stand before the role's text, and its siblings' requests "
        "begin with as many of them as stand before their own",
        "own_tools": "carries its own tools: reading the others' {foreign:,} tokens with each request would cost more",
        "role_kept": "the role's text ({size:,} tokens) stays where it last stood, since moving it would cost more",
        "no_cache": "the provider ({name}) has no prompt cache",
        "prefix_below_minimum": "{shared:,} tokens are shared, and the provider ({name}) caches none below {minimum:,}",
        "text_longer_than_shared": "the role brings {size:,} tokens of its own and shares {shared:,} with others",
        "role_costs_more": "at the end the role's text ({size:,} tokens) would cost more than sharing saves",
        "tools_cost_more": "nobody else carries the same tools, and the others' ({foreign:,} tokens) would cost more",
        "little_to_share": "sharing costs {cost:,} tokens and saves {saved:,}",
        "alone": "no other role is there with which sharing pays",
        "lane_of_its_own": "no other role gains by requests that begin like these, by model, schema and tools",
        "other_text": (
            "it does not hold the text that others have in common, and is not shown that ({name}); what all teams have "
            "in common is shared by all as Session(SharedPrefix(system=...))"
        ),
        "response_schema": "its answer follows a schema, which is another prompt for the provider",
        "forced_tool": "it must call a tool, which is another prompt for the provider",
        "provider_tools": "it has tools that the provider defines, whoever runs them ({name})",
        "kept_by_provider": "it goes on from a history that the provider keeps; given whole, it could be shared",
        "own_prompt": "the application words this prompt itself ({name})",
        "own_history": "the history is not ours to lay out ({name})",
        "marks_hidden": "its model class ({name}) shows no place for marks, without which nothing is cached",
        "rules_unknown": "how its provider caches is not known ({name})",
        "asked_again": "its answers called other roles' tools ({name}): asked anew as the application made it",
        "list_refused": "the endpoint refused the list of allowed tools: asked anew as the application made it",
        "not_in_fork_share": "its conversation is one of those that fork_share leaves as they are",
        "dearer_as_fork": "as forks requests {name} cost {forked:,} cost units each, in the application's own layout "
        "{own:,}",
        "began_without_us": "its conversation began without cacheprefix, and the provider may still hold its requests",
        "text_not_found": "the text to share does not stand in it as it was given, and is not shared there ({name})",
        "text_taken": "the first team's text was taken as the shared one; it lacks that, and is not shown it ({name})",
        "tool_schema_differs": "tool {name!r} has another schema than the shared one of that name",
        "made_too_late": "tool {name!r} was not known before the first request and stays outside the shared tools",
        "other_model": "it asks {name}, and all others so far another model: nothing is shared between models",
        "observe_mode": "the session only observes",
        "outside_fork": "the call was made outside of any role",
        "failed": "a step of ours failed ({name})",
    }
)

_NO_OTHERS: Mapping[Why, str] = MappingProxyType(
    {
        "own_tools": "carries its own tools, all of the shared ones among them",
        "tools_cost_more": "nobody else is known to carry the same tools",
    }
)
"""What is said where others have no tool that the role lacks (no ``foreign``): what is its own alone parts them."""

_AS_FORK: Mapping[Why, str] = MappingProxyType(
    {
        "alone": "laid out as a fork for roles that may come: {shared:,} tokens stand before the role's text, and no "
        "other role is there yet"
    }
)
"""What is said of a fork (``shared``) for which requests in the application's own layout have the same reason."""

_OF_ONE: Mapping[Why, str] = MappingProxyType(
    {
        "alone": "it was {name}, where nobody shares with it: agents that work together are wrapped as their team, in "
        "one call; what several begin with is shared as Session(SharedPrefix(system=...))"
    }
)
"""What is said where a reason has a name that its usual sentence has no place for: how an agent came to be alone."""

FIXES: Mapping[Why, str] = MappingProxyType(
    {
        "text_not_found": (
            "give the role the very text of SharedPrefix(system=...), or on CrewAI of shared_context; name in "
            "shared_inputs an input that its task contains; or leave it out"
        ),
        "text_taken": "give Session(SharedPrefix(system=...)) what all teams and agents have in common",
        "tool_schema_differs": "make both declarations equal, or rename one of the tools",
        # LangGraph: an agent made before the first request shows its tools where no middleware may change them;
        # deepagents' helpers have such middleware, and nobody but deepagents makes them.
        "made_too_late": "give all tools to SharedPrefix(tools=...); making all agents before the first request may be "
        "enough, but not for those whose tools a framework's own middleware may change, as deepagents' helpers",
        "other_model": "use one model for all roles that are to share",
    }
)
"""What the user can do, for the reasons that ``mode="strict"`` raises for; never for what costs decide."""


LEFT_ALONE: frozenset[Why] = frozenset({"not_in_fork_share", "dearer_as_fork", "began_without_us"})
"""Reasons for which a request is to be the application's own in all: without our marks and keys too."""


_FROM_BODIES: frozenset[Why] = frozenset(
    {"other_model", "provider_tools", "tool_schema_differs", "made_too_late", "rules_unknown", "asked_again"}
)
"""Reasons whose names are taken from request bodies, or answers."""


Unsure = Literal["minimum", "images", "siblings", "elsewhere", "under_way", "rules", "untold"]
"""What nobody here knows of a request's unmodified cost. ``minimum``: whether a beginning that lies so near the
provider's minimum had been in the cache; ``images``: what an image counts; ``siblings``: whether it had read from one
under way; ``elsewhere``: what of it had been sent that no answered request of this session held; ``under_way``: whether
the provider held the conversation, which had begun before the session saw it; ``rules``: how its provider caches;
``untold``: what the event log of an earlier version does not name."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason, with the numbers that it goes by. Holds names of tools, models and steps, and no prompt text."""

    why: Why
    name: str = ""
    """What it is about: a tool, a model, a provider, a step."""
    numbers: tuple[tuple[str, int], ...] = ()
    """Tokens (of ``forked`` and ``own``: cost units), by what they are of: ``(("shared", 412), ("minimum", 1024))``."""

    @property
    def removable(self) -> bool:
        """Whether the user can take it away, so that ``strict`` raises for it."""
        return self.why in FIXES

    @property
    def fix(self) -> str:
        """What the user can do; empty where nothing is to be done."""
        return FIXES.get(self.why, "")

    @property
    def said(self) -> str:
        """The reason in a sentence."""
        return sentence(self)

    def as_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {"why": self.why, **({"name": self.name} if self.name else {}), **dict(self.numbers)}

    def __str__(self) -> str:
        said = [self.why, *([self.name] if self.name else []), *(f"{key}={value}" for key, value in self.numbers)]
        return " ".join(said)


@dataclass(frozen=True, slots=True)
class _Span:
    """Numbers of several requests, written as one where they are one."""

    least: int
    most: int

    def __format__(self, spec: str) -> str:
        most = format(self.most, spec)
        return most if self.least == self.most else f"{format(self.least, spec)} to {most}"


def sentence(one: Reason, spans: Mapping[str, tuple[int, int]] = MappingProxyType({})) -> str:
    """A reason in a sentence; of several requests, whose numbers lie from the first to the second of ``spans``."""
    numbers = dict(one.numbers)
    said = SAID[one.why]
    if not numbers.get("foreign"):
        said = _NO_OTHERS.get(one.why, said)
    if "shared" in numbers:
        said = _AS_FORK.get(one.why, said)
    if one.name:
        said = _OF_ONE.get(one.why, said)
    told = {key: _Span(*spans.get(key, (value, value))) for key, value in numbers.items()}
    return said.format_map({"name": one.name, **told})


def reason(why: Why, name: str = "", **numbers: int) -> Reason:
    """A reason with its numbers by name: ``reason("prefix_below_minimum", "openai", shared=412, minimum=1024)``."""
    if why in _FROM_BODIES:
        # Privacy: a damaged body may hold prompt text in the place of a name, and reasons stand in reports and traces.
        name = ", ".join(map(named, name.split(", ")))
    return Reason(why, name, tuple(numbers.items()))


def provider_tools(names: Iterable[str]) -> tuple[Reason, ...]:
    """The reason of that name for tools that the provider defines, which are in no union; empty without any.

    Some it runs itself (web search), some the application (Anthropic's bash, text editor, computer and memory; OpenAI's
    local shell, apply patch and computer use): the definition that stands in the prompt is the provider's all the same.
    """
    found = sorted(set(names))
    return (reason("provider_tools", ", ".join(found)),) if found else ()
