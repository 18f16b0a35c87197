"""What every experiment works with: prompts of a known size that no cache has seen, and the bill so far."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cacheprefix.errors import CacheprefixError
from cacheprefix.profiles import Profile, Usage, priced
from cacheprefix.prompt import Api

Body = dict[str, Any]

ANSWER_TOKENS = 16
"""Longest answer that an experiment asks for, in tokens: OpenAI's APIs take no less."""

STREAMED_TOKENS = 200
"""The same for an answer that another request is sent during."""

_TOGETHER = 0.1
"""Share of the shorter of two answers that must have come while the other one came too."""

_TOGETHER_SECONDS = 0.1
"""And how long that must have lasted: on a busy machine a thread may read the end of an answer as late as this."""

_LINE = "Record {:05d}: the pump was checked, its pressure written down, and the sheet signed.\n"


class LimitReachedError(CacheprefixError):
    """The next request could cost more than the user gave leave for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request."""

    usage: Usage
    refused: str = ""
    """What the provider said when it refused the request (a 4xx status); empty when it answered."""
    seconds: float | None = None
    """How long it took; None where no clock was read (a rehearsal)."""
    began_at: float = 0.0
    """When the first token of a streamed answer came. Seconds of a clock that only goes forward."""
    ended_at: float = 1.0
    """When its last token came."""

    @property
    def read(self) -> int:
        """Tokens read from the cache; 0 where it was less than a tenth of the input, as any two prompts may share."""
        found = self.usage.cache_read_tokens or 0
        return found if found * 10 >= self.total else 0

    def beside(self, other: Answer) -> bool:
        """Whether both were being answered at one time; a server that serves one at a time does not do that."""
        together = min(self.ended_at, other.ended_at) - max(self.began_at, other.began_at)
        # By a hair is no proof: two threads note the times, and one may be late.
        shorter = min(self.ended_at - self.began_at, other.ended_at - other.began_at)
        return together > max(_TOGETHER * shorter, _TOGETHER_SECONDS)

    @property
    def total(self) -> int:
        """Tokens of the whole input; 0 where none were reported."""
        return self.usage.input_tokens or 0


class Provider(Protocol):
    """The provider under test. A refusal (4xx) is an ``Answer``; what else goes wrong raises ``CacheprefixError``."""

    def ask(self, body: Body) -> Answer:
        """Send one request and wait for its answer."""

    def ask_during(self, body: Body, other: Body) -> tuple[Answer, Answer]:
        """Stream the answer to ``body``, and send ``other`` when its first token has come and it is not over."""

    def ask_together(self, body: Body, other: Body) -> tuple[Answer, Answer]:
        """Send both at the same moment."""


@dataclass(slots=True)
class Limit:
    """The most that may be spent, and what was."""

    usd: float | None
    """None where nobody knows the model's price: then ``tokens`` holds alone."""
    tokens: int = 3_000_000
    spent_usd: float = 0.0
    spent_tokens: int = 0
    requests: int = 0

    def check(self, usd: float, tokens: int) -> None:
        """Raise ``LimitReachedError`` where a request of this price would go over the limit."""
        if self.usd is not None and self.spent_usd + usd > self.usd:
            raise LimitReachedError(f"stopped before a request that could go over ${self.usd:.2f}")
        if self.spent_tokens + tokens > self.tokens:
            raise LimitReachedError(f"stopped before a request that could go over {self.tokens:,} tokens")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request before it is put into an API's form: texts, and where cache marks stand."""

    tools: Sequence[str] = ()
    """A description a tool."""
    system: str = ""
    messages: Sequence[str] = ()
    """Blocks of text of the one user message."""
    marks: frozenset[str] = frozenset()
    """Which get a mark: ``tools``, ``system``, or the number of a block of the message, such as ``0``."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    longest: int = ANSWER_TOKENS


class Lab:
    """Makes prompts and sends them.

    Args:
        provider: who is asked.
        profile: the row under test.
        model: the model's name, as requests have it.
        api: the form of the requests: ``openai-chat`` or ``anthropic``.
        limit: what may be spent.
        sleep: waits so many seconds (for lifetimes).
    """

    def __init__(
        self,
        provider: Provider,
        profile: Profile,
        model: str,
        api: Api,
        limit: Limit,
        sleep: Callable[[float], None],
    ) -> None:
        self.profile = profile
        self.api = api
        self.model = model
        self.limit = limit
        self.sleep = sleep
        self._provider = provider
        self._fixed, self._a_line = 10.0, 18.0

    def calibrate(self) -> None:
        """Learn how many tokens of the provider's a line of filler has. Two short requests, below any minimum."""
        few, many = (self.send(Asked(system=self._lines(count))).total for count in (4, 34))
        if many > few > 0:
            self._a_line = (many - few) / 30
            self._fixed = max(0.0, few - 4 * self._a_line)

    def text(self, tokens: float) -> str:
        """Filler of about so many tokens, whose first words nobody has sent before."""
        return self._lines(max(1, round((tokens - 10) / self._a_line)))

    def size(self, lines: int) -> float:
        """Tokens of so many lines."""
        return lines * self._a_line

    def _lines(self, count: int) -> str:
        return f"Log {uuid.uuid4().hex[:16]}.\n" + "".join(_LINE.format(number) for number in range(count))

    def send(self, asked: Asked) -> Answer:
        """One request."""
        body = self.body(asked)
        self._may_cost(asked)
        return self._paid(self._provider.ask(body))

    def send_during(self, asked: Asked, other: Asked) -> tuple[Answer, Answer]:
        """The second while the first is being answered."""
        self._may_cost(asked, other)
        first, second = self._provider.ask_during(self.body(asked), self.body(other))
        return self._paid(first), self._paid(second)

    def send_together(self, asked: Asked, other: Asked) -> tuple[Answer, Answer]:
        """Both at once."""
        self._may_cost(asked, other)
        first, second = self._provider.ask_together(self.body(asked), self.body(other))
        return self._paid(first), self._paid(second)

    def body(self, asked: Asked) -> Body:
        """The request in the API's form."""
        return _anthropic(asked, self.model) if self.api == "anthropic" else self._chat(asked)

    def _chat(self, asked: Asked) -> Body:
        """A request in the shape of chat completions, with OpenAI's marks where the row has them."""
        def block(text: str, name: str) -> Body:
            marked = name in asked.marks and self.profile.markers == "openai"
            mark: Body = {"prompt_cache_breakpoint": {"mode": "explicit"}} if marked else {}
            return {"type": "text", "text": text, **mark}

        messages: list[Body] = []
        if asked.system:
            messages.append({"role": "system", "content": [block(asked.system, "system")]})
        texts = asked.messages or ("Go on.",)
        messages.append({"role": "user", "content": [block(text, str(at)) for at, text in enumerate(texts)]})
        # Only OpenAI's own models know the newer name, and they refuse the older one.
        longest = "max_completion_tokens" if self.profile.provider in ("openai", "azure") else "max_tokens"
        body: Body = {"model": self.model, longest: asked.longest, "messages": messages}
        if asked.tools:
            body["tools"] = [
                {"type": "function", "function": {"name": name, "description": text, "parameters": _NO_ARGUMENTS}}
                for name, text in _named(asked)
            ]
        return {**body, **asked.settings}

    def _may_cost(self, *asked: Asked) -> None:
        """Ask leave for the dearest that these can be: nothing read, all of it written where writing costs."""
        tokens = sum(round(self._fixed + len(self._all_text(one)) / len(_LINE) * self._a_line) for one in asked)
        write = max((ttl.write for ttl in self.profile.ttls), default=1.0)
        usd = self._usd(Usage(input_tokens=round(tokens * max(1.0, write)), cache_read_tokens=0))
        self.limit.check(usd, tokens)

    @staticmethod
    def _all_text(asked: Asked) -> str:
        return "".join((*asked.tools, asked.system, *asked.messages))

    def _paid(self, answer: Answer) -> Answer:
        self.limit.requests += 1
        self.limit.spent_tokens += answer.total
        if not answer.refused:
            self.limit.spent_usd += self._usd(answer.usage)
        return answer

    def _usd(self, usage: Usage) -> float:
        found = priced(usage, self.model, self.profile)
        return 0.0 if found is None else found.usd


_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}


def _named(asked: Asked) -> Sequence[tuple[str, str]]:
    """Each tool's name and description. A name goes by the text, so that a tool keeps it in another order."""
    order = {text: at for at, text in enumerate(sorted(asked.tools))}
    return [(f"tool_{order[text]}", text) for text in asked.tools]


def _anthropic(asked: Asked, model: str) -> Body:
    """A request in Anthropic's shape, with the marks that it asks for."""
    def block(text: str, name: str) -> Body:
        marked = name in asked.marks
        return {"type": "text", "text": text, **({"cache_control": {"type": "ephemeral"}} if marked else {})}

    texts = asked.messages or ("Go on.",)
    content = [block(text, str(at)) for at, text in enumerate(texts)]
    body: Body = {"model": model, "max_tokens": asked.longest, "messages": [{"role": "user", "content": content}]}
    if asked.system:
        body["system"] = [block(asked.system, "system")]
    if asked.tools:
        made: list[Body] = [
            {"name": name, "description": text, "input_schema": _NO_ARGUMENTS} for name, text in _named(asked)
        ]
        if "tools" in asked.marks:
            made[-1]["cache_control"] = {"type": "ephemeral"}
        body["tools"] = made
    return {**body, **asked.settings}
