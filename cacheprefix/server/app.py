"""The simulated provider on HTTP: routes, streams, and the pace of both."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from hashlib import blake2b
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from cacheprefix.errors import BodyError
from cacheprefix.prompt import Api, dumps, loads
from cacheprefix.server.outcome import RefusedError
from cacheprefix.server.simulator import WIRES, Exchange, Simulator, scope_of
from cacheprefix.wire.content_encoding import decoded

_SSE = "text/event-stream; charset=utf-8"
_FRAMES = "application/vnd.amazon.eventstream"
_DIMENSIONS = 64
_MOST_DIMENSIONS = 8_192

Handler = Callable[[Request], Awaitable[Response]]


class CutError(Exception):
    """Raised inside an answer to break the connection on purpose."""


def create_app(simulator: Simulator) -> Starlette:
    """The ASGI application around a simulator."""
    chat = _answering(simulator, "openai-chat")
    routes = [Route("/healthz", _healthy)]
    for base in ("", "/v1"):
        routes += [
            Route(f"{base}/chat/completions", chat, methods=["POST"]),
            Route(f"{base}/responses", _answering(simulator, "openai-responses"), methods=["POST"]),
            Route(f"{base}/messages", _answering(simulator, "anthropic"), methods=["POST"]),
            Route(f"{base}/messages/count_tokens", _counting(simulator), methods=["POST"]),
            Route(f"{base}/embeddings", _embed, methods=["POST"]),
            Route(f"{base}/models", _models),
            Route(f"{base}/models/{{model:path}}", _models),
        ]
    routes += [
        Route("/openai/deployments/{model}/chat/completions", chat, methods=["POST"]),
        Route("/openai/v1/chat/completions", chat, methods=["POST"]),
        Route("/openai/responses", _answering(simulator, "openai-responses"), methods=["POST"]),
        Route("/openai/v1/responses", _answering(simulator, "openai-responses"), methods=["POST"]),
        Route("/model/{model:path}/converse", _converse(simulator, stream=False), methods=["POST"]),
        Route("/model/{model:path}/converse-stream", _converse(simulator, stream=True), methods=["POST"]),
        Route("/{version}/cachedContents", _named(simulator), methods=["POST", "GET"]),
        Route("/{version}/cachedContents/{name}", _named_one(simulator), methods=["GET", "PATCH", "DELETE"]),
        Route("/{version}/models/{target:path}", _gemini(simulator), methods=["POST"]),
        Route("/{version}/{where:path}/models/{target:path}", _gemini(simulator), methods=["POST"]),
    ]
    return Starlette(routes=routes)


async def _respond(
    simulator: Simulator,
    request: Request,
    api: Api,
    *,
    model: str | None,
    stream: bool | None = None,
) -> Response:
    """Answer one model request, whole or as a stream, after the simulated provider's time."""
    body = await request.body()
    headers = {name.lower(): value for name, value in request.headers.items()}
    exchange = simulator.accept(api, request.url.path, body, headers, model=model, stream=stream)
    record, fault, scale = exchange.record, exchange.fault, simulator.latency.scale
    ahead = record.modelled_ttft * scale if scale and record.modelled_ttft is not None and record.status < 400 else 0.0
    early = 0
    if record.asked.stream and exchange.turn is not None and fault.body is None:
        early = exchange.wire.EARLY
    if ahead and not early:
        await asyncio.sleep(ahead)
    if record.status >= 400:
        simulator.end(exchange)
        kind = {"x-amzn-errortype": "ValidationException"} if api == "bedrock" else {}
        return JSONResponse(exchange.error_body(), record.status, {**kind, **fault.headers})
    if exchange.turn is None or fault.body is not None:
        simulator.begin(exchange)
        simulator.end(exchange)
        return Response(fault.body or b"", fault.status or 200, media_type="application/json")
    names = {"x-request-id": exchange.turn.seed[:24], "request-id": exchange.turn.seed[:24]}
    if record.asked.stream:
        kind_of = _FRAMES if api == "bedrock" else _SSE
        paced = _paced(simulator, exchange, exchange.wire.events(exchange.turn), fault.cut_after, early, ahead)
        return StreamingResponse(paced, headers=names, media_type=kind_of)
    answer = dumps(exchange.wire.answer(exchange.turn), "answer")
    simulator.begin(exchange)
    if scale:
        await asyncio.sleep(simulator.latency.rest(record.output_tokens) * scale)
    if fault.cut_after is not None:
        simulator.end(exchange, broken=True)
        names["content-length"] = str(len(answer))
        return StreamingResponse(_broken(answer[: fault.cut_after]), headers=names, media_type="application/json")
    simulator.end(exchange)
    return Response(answer, headers=names, media_type="application/json")


async def _paced(
    simulator: Simulator,
    exchange: Exchange,
    events: Iterable[bytes],
    cut_after: int | None,
    early: int,
    ahead: float,
) -> AsyncIterator[bytes]:
    """The events, spread over the modelled time of the answer; ``early`` of them, then ``ahead`` seconds of reading."""
    chunks = list(events)
    rest = simulator.latency.rest(exchange.record.output_tokens) * simulator.latency.scale
    pause = rest / max(1, len(chunks) - 1 - early)
    whole = False
    try:
        for index, chunk in enumerate(chunks):
            if cut_after is not None and index >= cut_after:
                raise CutError
            if index == early:
                if early and ahead:
                    await asyncio.sleep(ahead)
                simulator.begin(exchange)
            elif pause and index > early:
                await asyncio.sleep(pause)
            yield chunk
        whole = True
    finally:
        simulator.end(exchange, broken=not whole)


async def _broken(part: bytes) -> AsyncIterator[bytes]:
    yield part
    raise CutError


def _answering(simulator: Simulator, api: Api) -> Handler:
    async def handle(request: Request) -> Response:
        return await _respond(simulator, request, api, model=request.path_params.get("model"))

    return handle


def _converse(simulator: Simulator, *, stream: bool) -> Handler:
    async def handle(request: Request) -> Response:
        return await _respond(simulator, request, "bedrock", model=request.path_params["model"], stream=stream)

    return handle


def _gemini(simulator: Simulator) -> Handler:
    """Gemini's ``models/NAME:VERB``: answers, streams and token counts."""
    async def handle(request: Request) -> Response:
        model, _, verb = request.path_params["target"].rpartition(":")
        if verb == "countTokens":
            return await _count(simulator, request, "gemini", model, "totalTokens")
        if verb not in ("generateContent", "streamGenerateContent"):
            return JSONResponse(WIRES["gemini"].error(404, f"unknown method {verb!r}", None), 404)
        return await _respond(simulator, request, "gemini", model=model, stream=verb == "streamGenerateContent")

    return handle


def _counting(simulator: Simulator) -> Handler:
    async def handle(request: Request) -> Response:
        return await _count(simulator, request, "anthropic", None, "input_tokens")

    return handle


async def _count(simulator: Simulator, request: Request, api: Api, model: str | None, field: str) -> Response:
    body = await request.body()
    return _attempt(lambda: {field: simulator.count(api, decoded(body, request.headers), model)}, api)


def _named(simulator: Simulator) -> Handler:
    """Gemini's ``cachedContents``: list all, or make one."""
    async def handle(request: Request) -> Response:
        headers = dict(request.headers)
        if request.method == "GET":
            found = simulator.named.all(scope_of(headers), simulator.clock())
            return JSONResponse({"cachedContents": found})
        body = await request.body()
        return _attempt(lambda: simulator.create_named(body, headers))

    return handle


def _named_one(simulator: Simulator) -> Handler:
    """Gemini's ``cachedContents/NAME``: show it, extend its life, or delete it."""
    async def handle(request: Request) -> Response:
        name, scope, now = (
            f"cachedContents/{request.path_params['name']}",
            scope_of(dict(request.headers)),
            simulator.clock(),
        )
        body = await request.body()
        if request.method == "PATCH":
            return _attempt(lambda: simulator.named.extend(name, loads(body or b"{}"), scope, now))
        if request.method == "DELETE":
            return _attempt(lambda: simulator.named.delete(name, scope, now))
        return _attempt(lambda: simulator.named.get(name, scope, now))

    return handle


def _attempt(action: Callable[[], dict[str, Any]], api: Api = "gemini") -> Response:
    try:
        return JSONResponse(action())
    except RefusedError as error:
        return JSONResponse(WIRES[api].error(error.status, str(error), None), error.status)
    except BodyError as error:
        return JSONResponse(WIRES[api].error(400, str(error), error.path), 400)
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        return JSONResponse(WIRES[api].error(400, f"body: cannot be read ({error})", "body"), 400)


async def _embed(request: Request) -> Response:
    """Vectors that follow from the text, for applications that want some to work at all."""
    try:
        body = loads(decoded(await request.body(), request.headers))
        given = body.get("input", "")
        texts = given if isinstance(given, list) else [given]
        size = min(max(int(body.get("dimensions") or _DIMENSIONS), 1), _MOST_DIMENSIONS)
    except (BodyError, AttributeError, TypeError, ValueError) as error:
        return JSONResponse(WIRES["openai-chat"].error(400, f"body: cannot be read ({error})", "body"), 400)
    data = []
    for index, text in enumerate(texts):
        numbers = _vector(str(text), size)
        packed = base64.b64encode(struct.pack(f"<{size}f", *numbers)).decode()
        embedding: Any = packed if body.get("encoding_format") == "base64" else numbers
        data.append({"object": "embedding", "index": index, "embedding": embedding})
    tokens = sum(len(str(text)) // 4 for text in texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return JSONResponse({"object": "list", "data": data, "model": body.get("model", ""), "usage": usage})


def _vector(text: str, size: int) -> list[float]:
    drawn = b"".join(
        blake2b(f"{number}/{text}".encode("utf-8", "surrogatepass")).digest() for number in range(size // 64 + 1)
    )
    return [byte / 127.5 - 1 for byte in drawn[:size]]


async def _models(request: Request) -> Response:
    """One model, whatever its name: the simulated provider serves any."""
    name = request.path_params.get("model", "simulated")
    model = {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "cacheprefix",
        "type": "model",
        "display_name": name,
        "created_at": "2026-01-01T00:00:00Z",
    }
    if "model" in request.path_params:
        return JSONResponse(model)
    return JSONResponse({"object": "list", "data": [model], "has_more": False, "first_id": name, "last_id": name})


async def _healthy(request: Request) -> Response:  # noqa: ARG001 - starlette passes it
    return JSONResponse({"status": "ok"})
