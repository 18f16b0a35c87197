"""From the files of a log to requests in order of time, each with its prompt and its rules."""

from __future__ import annotations

import heapq
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Any

from cacheprefix.audit.log_records import Broken, Record, Remarks, place
from cacheprefix.audit.order import UNTIMED_STEP, Ready, in_time
from cacheprefix.audit.readers import Placed, Reader, records
from cacheprefix.bounded import Bounded
from cacheprefix.errors import BodyError, plain
from cacheprefix.profiles import CacheprefixProfileWarning, Profile, Registry, Usage, normalise_usage
from cacheprefix.prompt import Api, CountTokens, Prompt, default_counter, dumps_sorted, loads
from cacheprefix.wire import Memo, decode, guess_api
from cacheprefix.wire.apis import SHAPES

MERGED_FILES = 64
"""Files read side by side and merged by time; more than that are read one after another."""

_KEPT_FORMS = 10_000
_CHAINS = 2_000
"""Answers whose requests are kept, for requests that go on from them."""

_CHAT_ROLES = frozenset({"system", "developer", "tool", "function"})
_CLIENTS_OWN = frozenset({
    "api_base", "api_key", "api_version", "base_url", "created", "created_at", "custom_llm_provider", "extra_body",
    "extra_headers", "extra_query", "id", "idempotency_key", "litellm_call_id", "litellm_params", "max_retries",
    "num_retries", "object", "request_id", "request_timeout", "session_id", "timeout", "trace_id",
})  # fmt: skip
"""Fields that clients and gateways log beside a body and never send, or that no provider caches by."""
_DRAWING = frozenset({
    "candidateCount", "candidate_count", "frequencyPenalty", "frequency_penalty", "maxOutputTokens", "maxTokens",
    "max_completion_tokens", "max_output_tokens", "max_tokens", "n", "presencePenalty", "presence_penalty", "seed",
    "stop", "stopSequences", "stop_sequences", "temperature", "topK", "topP", "top_k", "top_p",
})  # fmt: skip
"""How an answer is drawn from what a model made of its prompt, and how long it may be: no prompt's cache depends on
that."""
_PLACEHOLDERS = (b"__REDACTED__", b"redacted-by-litellm")
"""What OpenInference and LiteLLM write in place of a message's text when they are told to hide it. Compared as bytes,
one by one: a set would ask for the hash of a text of any length."""
_REDACTED = "texts were hidden from the log: of these calls only the counts are read"
_KEPT_ELSEWHERE = (
    "requests that go on from a conversation that the provider keeps and the log does not: what stood before is unknown"
)
_LESS = (
    "requests whose text is far less than the provider counted (cut, hidden, or tools of the provider's own): "
    "a change in the rest is not seen"
)
_FAR_LESS, _FROM_TOKENS = 8, 2_000
"""How many times the tokens of the text the provider counted, and how many at least, for that to be said."""
_PLAIN_HEADERS = frozenset({"anthropic-beta", "openai-beta"})


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the user knows better than the log."""

    provider: str | None = None
    model: str | None = None
    rules: str | None = None
    """Name of the profile row to judge by."""
    count: CountTokens | None = None


class Reading:
    """Reads logs into requests. One memory of sections for all of them, so a history costs only what is new."""

    def __init__(self, registry: Registry, readers: Sequence[Reader], overrides: Overrides) -> None:
        self._registry = registry
        self.readers = readers
        self._overrides = overrides
        self._memo = Memo()
        self._profiles: dict[tuple[str, str | None, Api | None], Profile] = {}
        self._counters: dict[str, CountTokens] = {}
        self._forms: dict[tuple[str | None, ...], Api] = {}
        self._index = 0
        self._last = 0.0
        self._chains: Bounded[str, Prompt] = Bounded(_CHAINS)
        self.timed = 0
        self.remarks = Remarks()
        self.aside: Counter[str] = Counter()
        """Requests that ask no language model, by what they ask for."""
        self.unknown_models: set[str] = set()
        self.counters: set[str] = set()

    def requests(self, files: Sequence[str], on_bytes: Callable[[int], None] | None = None) -> Iterator[Ready | Broken]:
        """Every request of the files, oldest first, and whatever could not be read.

        Raises SetupError for a file that cannot be opened.
        """
        streams = [self._file(file, on_bytes) for file in files]
        if len(streams) > MERGED_FILES:
            yield from in_time(chain.from_iterable(streams))
        else:
            yield from heapq.merge(*map(in_time, streams), key=_when)

    def _file(self, file: str, on_bytes: Callable[[int], None] | None) -> Iterator[Ready | Broken]:
        """The requests of one log and what of it is broken; those that ask no language model are only counted."""
        for item in records(file, self.readers, on_bytes=on_bytes, remarks=self.remarks):
            if isinstance(item, Broken):
                yield item
                continue
            if item.record.aside:
                self.aside[item.record.aside] += 1
                continue
            try:
                ready = self._ready(item)
            except BodyError as error:
                yield Broken(item.file, item.line, f"request: {error}", item.item)
                continue
            yield ready

    def _ready(self, item: Placed) -> Ready:
        """An entry with its prompt decoded and its usage read; without a prompt where the log has no text of it."""
        record = item.record
        body = record.body
        provider = self._overrides.provider or record.provider
        model = self._overrides.model or _model(record)
        api = None if body is None else record.api or self._form(record.session, body, model, provider)
        prompt: Prompt | None = None
        chained = False
        before = body.get("previous_response_id") if body is not None and api == "openai-responses" else None
        if body is not None and before is not None:
            body = {name: value for name, value in body.items() if name != "previous_response_id"}
        unknown: Mapping[str, str] = {}
        profile = self._profile(model, provider, api if record.wire else None)
        if body is not None and api is not None:
            prompt, unknown = self._without_unknown(self._prompt(body, api, model, record, profile), profile)
        if prompt is not None and api == "openai-responses":
            chained = isinstance(before, str) and before in self._chains
            if (before is not None and not chained) or (body is not None and body.get("conversation") is not None):
                self._remark(item, _KEPT_ELSEWHERE)
            prompt = self._chained(prompt, before, record.response_id)
        if prompt is not None and _is_redacted(prompt):
            self._remark(item, _REDACTED)
            prompt = None
        at = record.ts
        if at is None:
            at = self._last + UNTIMED_STEP
        else:
            self.timed += 1
            if record.usage is None and at == int(at) and at <= self._last < at + 1:
                # A text log tells whole seconds. Where no counts can say otherwise, one call came after the other.
                at = self._last + UNTIMED_STEP
        self._last = at
        usage = None
        if record.usage is not None:
            usage = normalise_usage(record.usage, None if prompt is None else prompt.api, provider, profile=profile)
        # Counted only once it could be read: broken lines have no index.
        index, self._index = self._index, self._index + 1
        if prompt is not None and usage is not None and _holds_less(prompt, usage):
            self._remark(item, _LESS)
        where = place(item.file, item.line, item.item)
        # Its body is in the prompt now, and thousands of requests wait for those before them.
        record.body, record.model, record.provider = None, model, provider
        return Ready(index, where, at, record, prompt, profile, item.size, usage, item.reader, unknown, chained)

    def _remark(self, item: Placed, what: str) -> None:
        self.remarks.add(what, item.file, place(item.file, item.line, item.item))

    def _prompt(self, body: Mapping[str, Any], api: Api, model: str, record: Record, profile: Profile) -> Prompt:
        named = body.get(SHAPES[api].FIELDS.model)
        if not named or self._overrides.model:
            body = {**body, "model": model}
        return decode(
            body, api, headers=_relevant(record.headers, profile), count=self._counter(model), memo=self._memo
        )

    def _chained(self, prompt: Prompt, before: Any, answer: str) -> Prompt:
        """The prompt with what an earlier answer was given to, where a request goes on from that answer's id.

        The provider keeps the messages and the answer; instructions and tools are the request's own. The answer's
        text is not in the log, and no earlier request had it cached.
        """
        earlier = self._chains.get(before) if isinstance(before, str) else None
        if earlier is not None:
            own, kept = prompt.sections, earlier.sections[earlier.head :]
            prompt = replace(prompt, sections=(*own[: prompt.head], *kept, *own[prompt.head :]))
        if answer:
            self._chains[answer] = prompt
        return prompt

    def _without_unknown(self, prompt: Prompt, profile: Profile) -> tuple[Prompt, Mapping[str, str]]:
        """The prompt without fields that no rule knows, and those fields.

        A client's own (an id, a time-out) would part each call from all others. What they explain is looked at
        where nothing else explains a miss.
        """
        unknown = {name: value for name, value in prompt.settings.items() if name not in profile.settings}
        if not unknown:
            return prompt, unknown
        kept = {name: value for name, value in prompt.settings.items() if name not in unknown}
        named = {name: _undrawn(value) for name, value in unknown.items() if name not in _CLIENTS_OWN | _DRAWING}
        return prompt.with_settings(kept), {name: value for name, value in named.items() if value != "{}"}

    def count(self, text: str, model: str) -> int:
        """Tokens of a text, by the counter that the model's prompts are read with."""
        return self._counter(model)(text, model)

    def _counter(self, model: str) -> CountTokens:
        found = self._counters.get(model)
        if found is None:
            found = self._counters[model] = self._overrides.count or default_counter(model)
            self.counters.add(getattr(found, "name", "the given counter"))
        return found

    def _profile(self, model: str, provider: str | None, api: Api | None) -> Profile:
        """The cache rules of a model, looked up once; a model without any is noted."""
        key = (model, provider, api)
        found = self._profiles.get(key)
        if found is None:
            with warnings.catch_warnings():
                # Said in the report, once, instead of as a warning of this process.
                warnings.simplefilter("ignore", CacheprefixProfileWarning)
                found = self._registry.profile_for(model, self._overrides.rules or provider, api)
            self._profiles[key] = found
            if not found.known:
                self.unknown_models.add(model)
        return found

    def _form(self, session: str, body: Mapping[str, Any], model: str, provider: str | None) -> Api:
        """The form of a body, found once for each session and set of fields: looking means reading all of it."""
        key = (session, model, provider, *body)
        found = self._forms.get(key)
        if found is None:
            if len(self._forms) >= _KEPT_FORMS:
                self._forms.clear()
            found = self._forms[key] = self._api(body, model, provider)
        return found

    def _api(self, body: Mapping[str, Any], model: str, provider: str | None) -> Api:
        """The form of a body. One conversation must not change its form on the way, so names count most."""
        guess = guess_api(body)
        if guess != "openai-chat":
            return guess
        served_by = self._profile(model, provider, None).provider
        messages = body.get("messages")
        told = messages if isinstance(messages, list) else []
        roles = {message.get("role") for message in told if isinstance(message, Mapping)}
        if "anthropic" in (provider, served_by) and not roles & _CHAT_ROLES and "max_completion_tokens" not in body:
            return "anthropic"
        if "bedrock" in (provider, served_by) and _has_untyped_blocks(told):
            return "bedrock"
        return guess


@lru_cache(maxsize=1_024)
def _undrawn(value: str) -> str:
    """A field's JSON without how an answer is drawn, as Gemini's ``generationConfig`` holds it beside other things."""
    if not value.startswith("{") or not any(f'"{name}"' in value for name in _DRAWING):
        return value
    held = loads(value)
    return dumps_sorted({name: inner for name, inner in held.items() if name not in _DRAWING}, "body")


def _is_redacted(prompt: Prompt) -> bool:
    """Whether a word stands in place of the messages' texts. It is looked for in the last: all or none are hidden."""
    return bool(prompt.sections) and prompt.sections[-1].data in _PLACEHOLDERS


def _holds_less(prompt: Prompt, usage: Usage) -> bool:
    """Whether most of what the provider counted is not in the text. Pictures and files count by other rules."""
    counted = usage.input_tokens or 0
    if usage.summed or counted < max(_FROM_TOKENS, _FAR_LESS * prompt.tokens):
        return False
    return not any(one.kind in ("image", "block") for one in prompt.sections)


def _when(item: Ready | Broken) -> float:
    return item.at if isinstance(item, Ready) else -math.inf


def _model(record: Record) -> str:
    body: Mapping[str, Any] = record.body or {}
    named = body.get("model") or body.get("modelId") or record.model
    return plain(named) if isinstance(named, str) else ""


def _has_untyped_blocks(messages: Iterable[Any]) -> bool:
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        for block in content if isinstance(content, list) else []:
            return isinstance(block, Mapping) and "type" not in block
    return False


def _relevant(headers: Mapping[str, str] | None, profile: Profile) -> Mapping[str, str] | None:
    """The headers that matter to the cache; a request id must not make every call a lane of its own."""
    if not headers:
        return None
    wanted = _PLAIN_HEADERS.union(profile.headers)
    return {name: value for name, value in headers.items() if name.lower() in wanted}
