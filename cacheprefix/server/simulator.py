"""The simulated provider without HTTP: a request comes in as bytes, an exchange comes out."""

from __future__ import annotations

import re
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, MutableSequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, cast

from cacheprefix.bounded import Bounded
from cacheprefix.errors import BodyError
from cacheprefix.profiles import CacheprefixProfileWarning, Profile, Registry, default_registry
from cacheprefix.prompt import IMAGE_TOKENS, Api, CountTokens, Prompt, estimate_tokens, loads
from cacheprefix.server import wire_anthropic, wire_bedrock, wire_chat, wire_gemini, wire_responses
from cacheprefix.server.diagnostics import Diagnostician
from cacheprefix.server.engine import ProviderCache, Serving
from cacheprefix.server.latency import Latency
from cacheprefix.server.named_caches import NamedCaches
from cacheprefix.server.outcome import RefusedError
from cacheprefix.server.replies import ScriptedTurn, Stop, Wire, cut, obey, seed
from cacheprefix.server.request_log import Log, Record
from cacheprefix.server.script import Asked, Echo, Fault, Reply, Request, Script
from cacheprefix.wire import Memo, decode, structure_errors
from cacheprefix.wire.content_encoding import decoded

WIRES: Mapping[Api, Wire] = {
    "openai-chat": wire_chat,
    "openai-responses": wire_responses,
    "anthropic": wire_anthropic,
    "gemini": wire_gemini,
    "bedrock": wire_bedrock,
}
AUTO = "auto"
"""Rules by the request's own model name."""

_KEYS = ("authorization", "x-api-key", "x-goog-api-key", "api-key")
_STORED = 10_000
_NONSENSE = -1
_NO_FAULT = Fault()


@dataclass(slots=True)
class Exchange:
    """One request and its answer, on their way."""

    record: Record
    wire: Wire
    fault: Fault
    serving: Serving | None = None
    turn: ScriptedTurn | None = None

    def error_body(self) -> dict[str, Any]:
        """What goes out when ``record.status`` is not 200."""
        path, _, rest = (self.record.error or "").partition(": ")
        return self.wire.error(self.record.status, self.record.error or "", path if rest and " " not in path else None)


class Simulator:
    """Reads requests, asks the cache and the script, and writes records. Thread-safe.

    With ``strict`` it answers 400 to a body that the real provider would not take (``structure_errors``).
    """

    def __init__(
        self,
        rules: str | Profile = AUTO,
        script: Script | None = None,
        *,
        latency: Latency | None = None,
        clock: Callable[[], float] = time.time,
        count: CountTokens = estimate_tokens,
        image_tokens: int = IMAGE_TOKENS,
        registry: Registry | None = None,
        capacity_tokens: int | None = None,
        crowding: bool = False,
        keep: int | None = None,
        log: Log | None = None,
        strict: bool = True,
    ) -> None:
        self.strict = strict
        self.registry = registry or default_registry()
        if isinstance(rules, str) and rules != AUTO:
            self.registry.get(rules)
        self.rules = rules
        self.script: Script = script or Echo()
        self.latency = latency or Latency()
        self.clock = clock
        self.requests: MutableSequence[Record] = [] if keep is None else deque(maxlen=keep)
        self.named = NamedCaches()
        self._count = count
        self._image_tokens = image_tokens
        self._capacity = capacity_tokens
        self._crowding = crowding
        self._log = log
        self._lock = threading.RLock()
        self.reset()

    def reset(self) -> None:
        """Forget all requests and empty all caches."""
        with self._lock:
            self.requests.clear()
            self.named.clear()
            self._memo = Memo()
            self._caches: dict[tuple[str, str], ProviderCache] = {}
            self._sent: dict[str, int] = {}
            self._diagnostician = Diagnostician()
            self._stored: Bounded[str, list[Any]] = Bounded(_STORED)
            self._served = 0

    def profile_for(self, model: str, api: Api) -> Profile:
        """The rules for a model: those of the row asked for, with the model's own values where it has any."""
        if isinstance(self.rules, Profile):
            return self.rules
        row = None if self.rules == AUTO else self.rules
        with warnings.catch_warnings():
            # A provider serves what it is asked for; that a model has no row is the client's news.
            warnings.simplefilter("ignore", CacheprefixProfileWarning)
            found = self.registry.profile_for(model, provider=row, api=api)
        return found if row in (None, found.name) else self.registry.get(str(row))

    def cache_for(self, profile: Profile, model: str) -> ProviderCache:
        """The cache that serves a model."""
        with self._lock:
            return self._caches.setdefault(
                (profile.name, model),
                ProviderCache(profile, count=self._count, capacity_tokens=self._capacity, crowding=self._crowding),
            )

    def accept(
        self,
        api: Api,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        model: str | None = None,
        stream: bool | None = None,
    ) -> Exchange:
        """Take a request. ``model`` and ``stream`` are what the address says, where it does. Never raises."""
        with self._lock:
            record = self._record(api, path, body, headers)
            exchange = Exchange(record, WIRES[api], _NO_FAULT)
            try:
                self._serve(exchange, headers, model, stream=stream)
            except RefusedError as error:
                record.status, record.error = error.status, str(error)
            except BodyError as error:
                record.status, record.error = 400, str(error)
            except Exception as error:
                # Before anything was asked of the script it is the body that cannot be read.
                asked = record.outcome is not None
                status, what = (500, "the script failed") if asked else (400, "body: cannot be read")
                record.status, record.error = status, f"{what}: {type(error).__name__}: {error}"
            if exchange.fault.status >= 400:
                record.status, record.error = exchange.fault.status, exchange.fault.message
            if record.status >= 400 and exchange.serving is not None:
                exchange.serving.failed()
            return exchange

    def begin(self, exchange: Exchange) -> None:
        """The first token goes out."""
        exchange.record.first_token_at = at = self.clock()
        if exchange.serving is not None:
            exchange.serving.begun(at)

    def end(self, exchange: Exchange, *, broken: bool = False) -> None:
        """The answer is out, or the connection broke; either way the record is complete."""
        record = exchange.record
        if record.ended_at is not None:
            return
        record.ended_at = at = self.clock()
        if exchange.serving is not None and record.status < 400:
            if broken:
                exchange.serving.failed()
            else:
                exchange.serving.ended(at, record.output_tokens)
        if self._log is not None:
            self._log.write(record)

    def create_named(self, body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
        """Make a named cache. Raises ``RefusedError`` or ``BodyError``."""
        fields = loads(decoded(body, headers))
        prompt = decode(fields, "gemini", count=self._count, memo=self._memo)
        profile = self.profile_for(prompt.model, "gemini")
        return self.named.create(prompt, fields, profile, scope_of(headers), self.clock())

    def count(self, api: Api, body: bytes, model: str | None = None) -> int:
        """Input tokens of a body. Raises ``BodyError``."""
        fields = _addressed(loads(body), api, model)
        return decode(fields, api, headers={}, count=self._count, memo=self._memo).tokens

    def _record(self, api: Api, path: str, body: bytes, headers: Mapping[str, str]) -> Record:
        """Begin the record of a request and keep it."""
        record = Record(
            self._served,
            api,
            path,
            body,
            {},
            scope=scope_of(headers),
            session=headers.get("x-cacheprefix-session"),
            agent=headers.get("x-cacheprefix-agent"),
            started_at=self.clock(),
        )
        self._served += 1
        self.requests.append(record)
        return record

    def _serve(self, exchange: Exchange, headers: Mapping[str, str], model: str | None, *, stream: bool | None) -> None:
        """Do what the provider does from a request's bytes to its answer, and note each step in its record.

        Raises ``RefusedError`` or ``BodyError`` where the provider would refuse the request.
        """
        record, wire, api = exchange.record, exchange.wire, exchange.record.api
        record.body = decoded(record.body, headers)
        sent = _addressed(loads(record.body), api, model)
        fields = self._continued(sent, api)
        record.model = str(fields.get("model", fields.get("modelId", "")))
        profile = self.profile_for(record.model, api)
        record.rules, record.provider = profile.name, profile.provider
        record.headers = {name: headers[name] for name in profile.headers if headers.get(name)}
        prompt = decode(fields, api, headers=record.headers, count=self._count, memo=self._memo)
        record.prompt = prompt = self._with_images(prompt)
        record.asked = asked = _asked(wire, fields, stream=stream)
        wire.check(fields, profile)
        errors = structure_errors(fields, api, prefill=profile.prefill, mid_system=profile.mid_system)
        record.invalid = tuple(errors)
        if errors and self.strict:
            raise errors[0]
        cache = self.cache_for(profile, record.model)
        exchange.serving = serving = cache.begin(prompt, record.started_at, scope=record.scope)
        outcome = serving.outcome
        named = fields.get("cachedContent")
        if isinstance(named, str) and api == "gemini":
            outcome = self.named.read(outcome, named, record.model, record.scope, record.started_at)
        record.outcome = outcome
        request = Request(api, fields, prompt, asked, record.index)
        record.reply = reply = Reply() if asked.max_output == 0 else _replied(self.script(request))
        exchange.fault = reply.fault or _NO_FAULT
        # An answer says which one its request named, where the history that it goes on with is in ``fields`` instead.
        exchange.turn = turn = self._turn(exchange, profile, {**sent, **fields})
        record.output_tokens, record.usage = turn.output_tokens, turn.usage
        record.modelled_ttft = self.latency.first_token(outcome)

    def _with_images(self, prompt: Prompt) -> Prompt:
        """The prompt with its images counted as this provider counts them."""
        more = self._image_tokens - IMAGE_TOKENS
        if not more or not any(one.kind == "image" for one in prompt.sections):
            return prompt
        counted = (replace(one, tokens=one.tokens + more) if one.kind == "image" else one for one in prompt.sections)
        return replace(prompt, sections=tuple(counted))

    def _turn(self, exchange: Exchange, profile: Profile, fields: Mapping[str, Any]) -> ScriptedTurn:
        """What a scripted reply comes to for this request: its text, calls, stop reason and usage."""
        record, asked, wire = exchange.record, exchange.record.asked, exchange.wire
        prompt, reply, outcome = record.prompt, record.reply, record.outcome
        assert prompt is not None
        assert reply is not None
        assert outcome is not None
        digits = self._seed(prompt)
        text, calls = obey(reply, asked, digits, wire.CALL_ID, record.api)
        text, short = cut(text, asked, self._count, record.model)
        written = reply.thinking + text + "".join(call.name + call.arguments for call in calls)
        output = self._count(written, record.model) if written else 0
        if reply.output_tokens is not None:
            output = reply.output_tokens
        stop: Stop = "length" if short or asked.max_output == 0 else "tools" if calls else "end"
        usage = wire.usage(outcome, output, profile)
        if record.api == "anthropic":
            record.diagnostics = self._diagnostician.explain(fields.get("diagnostics"), prompt)
            self._diagnostician.remember(wire_anthropic.answer_id(digits), prompt)
        turn = ScriptedTurn(
            digits,
            record.model,
            int(record.started_at),
            fields,
            asked,
            text,
            reply.thinking,
            calls,
            stop,
            output,
            _reported(usage, exchange.fault),
            record.diagnostics,
        )
        if record.api == "openai-responses" and fields.get("store") is not False:
            self._store(turn, fields)
        elif record.api == "anthropic" and fields.get("thread") is not None:
            self._stored[wire_anthropic.answer_id(digits)] = [fields, wire_anthropic.answer(turn)]
        return turn

    def _seed(self, prompt: Prompt) -> str:
        first = seed(prompt, 0)
        occurrence = self._sent[first] = self._sent.get(first, -1) + 1
        return seed(prompt, occurrence)

    def _store(self, turn: ScriptedTurn, fields: Mapping[str, Any]) -> None:
        """Keep what a later request may continue by ``previous_response_id``."""
        response = wire_responses.answer(turn)
        self._stored[response["id"]] = [*_items(fields.get("input")), *response["output"]]

    def _continued(self, fields: Mapping[str, Any], api: Api) -> Mapping[str, Any]:
        """A request's fields, in front of its messages the conversation that the provider keeps and it goes on with."""
        thread = fields.get("thread") if api == "anthropic" else None
        if isinstance(thread, Mapping) and thread.get("type") == "continue":
            return self._threaded(fields, str(thread.get("previous_message_id")))
        previous = fields.get("previous_response_id") if api == "openai-responses" else None
        if previous is None:
            return fields
        if previous not in self._stored:
            raise RefusedError(f"previous_response_id: Previous response with id {previous!r} not found.")
        rest = {name: value for name, value in fields.items() if name != "previous_response_id"}
        return {**rest, "input": [*self._stored[previous], *_items(fields.get("input"))]}

    def _threaded(self, fields: Mapping[str, Any], previous: str) -> Mapping[str, Any]:
        """A request of a message thread, with what stands in the thread before it."""
        if previous not in self._stored:
            raise RefusedError(f"thread.previous_message_id: no message {previous!r} was found.")
        for name in ("system", "tools"):
            if name in fields:
                raise RefusedError(f"{name}: is the thread's own and cannot be given again.")
        first, answer = self._stored[previous]
        said = [*first["messages"], {"role": "assistant", "content": answer["content"]}]
        return {**first, **fields, "messages": [*said, *fields["messages"]]}


def scope_of(headers: Mapping[str, str]) -> str:
    """Who may share a cache: a digest of the API key, so that records hold no secret."""
    credential = next((headers[name] for name in _KEYS if name in headers), "")
    signed = re.search(r"Credential=([^/,\s]+)", credential)
    if signed:
        credential = signed.group(1)
    return blake2b(credential.encode(), digest_size=6).hexdigest() if credential else ""


def _addressed(fields: Any, api: Api, model: str | None) -> Mapping[str, Any]:
    if not isinstance(fields, Mapping):
        raise BodyError("body", f"expected an object, found {type(fields).__name__}")
    if model is None or (api == "openai-chat" and isinstance(fields.get("model"), str)):
        # An Azure deployment has a name of its own; where the body names the model too, that says more.
        return fields
    return {**fields, "modelId" if api == "bedrock" else "model": model}


def _asked(wire: Wire, fields: Mapping[str, Any], *, stream: bool | None) -> Asked:
    try:
        found = wire.asked(fields)
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise BodyError("body", f"tools, tool choice or output format cannot be read ({error})") from error
    if stream is None:
        return found
    return Asked(stream, found.tools, found.choice, found.allowed, found.parallel, found.schema, found.max_output)


def _replied(answer: object) -> Reply:
    """What a script gave; a text alone is an answer that says it."""
    if isinstance(answer, str):
        return Reply(answer)
    if not isinstance(answer, Reply):
        raise TypeError(f"it returned {type(answer).__name__}: return Reply(text), or the text alone")
    return answer


def _items(given: Any) -> list[Any]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return list(given or [])


def _reported(usage: dict[str, Any], fault: Fault) -> Mapping[str, Any] | None:
    if fault.usage == "omit":
        return None
    if fault.usage == "nonsense":
        return cast("Mapping[str, Any]", _impossible(usage))
    return usage if fault.usage is None else fault.usage


def _impossible(value: Any) -> Any:
    """Every number negative: counts no provider can have meant."""
    if isinstance(value, Mapping):
        return {name: _impossible(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_impossible(inner) for inner in value]
    return _NONSENSE if isinstance(value, int) else value
