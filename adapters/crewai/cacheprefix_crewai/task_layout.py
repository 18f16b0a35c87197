"""One task's requests: how CrewAI's executor begins them, and what they are made of as they are sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cacheprefix.adapter import RequestPlan, digest_of
from cacheprefix_crewai.material import SharedText
from cacheprefix_crewai.tools import Offer, canonical_ids

if TYPE_CHECKING:
    from cacheprefix import Prompt

BREAKPOINT = "cache_breakpoint"
"""CrewAI's own mark on a message; the session sets the marks of a fork, and LiteLLM would send this key."""


@dataclass(frozen=True, slots=True)
class LLMCall:
    """What a model object was called with, by CrewAI or the application."""

    llm: Any
    messages: Any
    tools: Any = None
    task: Any = None
    agent: Any = None
    response_model: Any = None
    schema: str = ""
    """A name of the schema that its answer follows, where the model's class sends that beside these messages; or empty.
    """

    @property
    def model(self) -> str:
        """The model's name."""
        return str(getattr(self.llm, "model", ""))

    @property
    def headers(self) -> dict[str, Any]:
        """The headers that the application gave to the model's class, which has no one name for them."""
        params = {
            **(getattr(self.llm, "client_params", None) or {}),
            **(getattr(self.llm, "additional_params", None) or {}),
        }
        named = (getattr(self.llm, "default_headers", None), params.get("default_headers"), params.get("extra_headers"))
        return {name: value for given in named for name, value in (given or {}).items()}


@dataclass(frozen=True, slots=True)
class Opening:
    """How an executor's requests begin: its system text, the user text with the task, and what follows."""

    system: str
    task: str
    rest: int
    """Index of the first message behind both."""

    @property
    def text(self) -> str:
        """All that they say."""
        return f"{self.system}\n{self.task}"

    @property
    def digest(self) -> str:
        """The same for all requests of one execution."""
        return digest_of(self.system, self.task)


def opening_of(messages: Sequence[Mapping[str, Any]]) -> Opening | None:
    """The opening of an executor's request; None for requests of another shape (files, images, templates)."""
    if not messages:
        return None
    system, at = "", 0
    if messages[0].get("role") == "system":
        content = messages[0].get("content")
        if not isinstance(content, str):
            return None
        system, at = content, 1
    if len(messages) <= at or messages[at].get("role") != "user":
        return None
    task = messages[at].get("content")
    if not isinstance(task, str) or not task or messages[at].get("files"):
        return None
    return Opening(system, task, at + 1)


def from_executor(call: LLMCall, opening: Opening) -> bool:
    """Whether a request comes from an agent's executor: it marks its opening, helpers do not."""
    role = str(getattr(call.agent, "role", ""))
    return BREAKPOINT in call.messages[0] or (bool(role) and opening.system.startswith(f"You are {role}."))


def role_of(agent: Any) -> str:
    """An agent's role, which is its name in reports; empty without an agent."""
    return str(getattr(agent, "role", "")).strip()


def unmarked(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The messages without CrewAI's marks; those that carry none are the same objects."""
    return [
        {key: value for key, value in message.items() if key != BREAKPOINT} if BREAKPOINT in message else message
        for message in messages
    ]


@dataclass(frozen=True, slots=True)
class TaskLayout:
    """What all requests of one task are made of.

    A fork's messages, where the agent's text stands behind the results of earlier tasks, or in front of them:

        system text | results | agent's text and task | tool loop
        system text | agent's text | results | task | tool loop
    """

    role: str
    task: str
    """The task's name, or the beginning of its description."""
    opening: Opening
    tools: Sequence[Any] | None
    """As the application passes them."""
    plan: RequestPlan[SharedText] | None = None
    """How the session lays its requests out, and why; None in a session that only observes."""
    offer: Offer = field(default_factory=lambda: Offer(None))
    beginning: str = ""
    """What the system text begins with: the session's shared text; the agent's own, where one does all the tasks."""
    texts: tuple[SharedText, ...] = ()
    """What it shares with other tasks, each in its own words too."""
    results: tuple[SharedText, ...] = ()
    """Results of earlier tasks that later ones need too."""
    tail: str = ""
    """The message behind the results: the task, and the agent's text where that is not in front."""
    front: str = ""
    """The agent's text, where it stands in front of the results and not in the tail."""
    text_mode: bool = False
    """Whether the tools are described in the system text, and called in the answer's text."""
    durable: tuple[str, ...] = ()
    """What the application said to the crew's conversation."""
    beside: str = ""
    """Names what it goes by beside the task's own words and those."""
    missing: str = ""
    """What a request in the application's own layout leaves to the session to say."""
    schema: str = ""
    """A name of the schema that all its answers follow, which it shares with others; empty without one."""

    @property
    def system(self) -> str:
        """The system text of its forks."""
        return "\n\n".join(part for part in (self.beginning, *(text.block for text in self.texts)) if part)

    @property
    def forked(self) -> bool:
        """Whether its requests are forks; they stay the application's where not."""
        return self.plan is not None and self.plan.forks

    @property
    def has_tools(self) -> bool:
        """Whether the task may go on after its first request, since the agent has tools."""
        return bool(self.tools or self.text_mode)

    @property
    def head(self) -> int:
        """Messages of a fork before the tool loop: system text, results, and one or two with the agent and its task."""
        return 2 + bool(self.front) + len(self.results)

    @property
    def key(self) -> bytes:
        """The same for all layouts that share their whole cached part."""
        return digest_of(self.schema, self.system, *(result.block for result in self.results)).encode()

    def own_messages(self, given: Sequence[Mapping[str, Any]]) -> Sequence[Any]:
        """The messages in the application's own layout, with what is missing in front of their first text.

        The very same messages where nothing is.
        """
        if not self.missing:
            return given
        # Without a system message there is none to be: the model may not take one.
        text = "\n\n".join(part for part in (self.missing, str(given[0].get("content") or "")) if part)
        return [{**given[0], "content": text}, *given[1:]]

    def fork_messages(self, given: Sequence[Mapping[str, Any]]) -> list[Any]:
        """The request's messages as a fork; those of the tool loop as they are but for canonical ids."""
        said = [self.front] * bool(self.front) + [result.block for result in self.results] + [self.tail]
        head = [{"role": "system", "content": self.system}, *({"role": "user", "content": text} for text in said)]
        return [*head, *canonical_ids(unmarked(given[self.opening.rest :]))]

    def boundary(self, prompt: Prompt) -> int | None:
        """The number of leading sections shared with the other roles, or with the agent's own next task."""
        return prompt.last_of(self.tail)
