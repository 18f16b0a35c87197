"""The pass-through proxy: what comes goes on as it came, and a copy is written down when the call is over.

aiohttp on both sides, since it gives and takes bodies as they come, without undoing their encoding, keeps the case and
order of headers, and lets a connection be cut where the provider cut its own. mitmproxy can be embedded too, but brings
some thirty packages and pins of theirs.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

from typing_extensions import Self

from cacheprefix.errors import MissingExtraError, SetupError
from cacheprefix.record.log import CallLog, Exchange
from cacheprefix.record.routes import Route

if TYPE_CHECKING:
    import aiohttp
    from aiohttp import web
    from multidict import CIMultiDict

    _Socket: TypeAlias = aiohttp.ClientWebSocketResponse[Any] | web.WebSocketResponse[Any]

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that speak of one connection only (RFC 9110, section 7.6.1), with those that each side writes itself."""

_WRITTEN_BY_CLIENT = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers that the client library adds where there are none. The program did not send them, so neither do we."""

_IDLE = 4.0
"""Seconds that a connection to a provider is kept without a request: less than any server's own patience, so that no
request goes out on a connection that is just being closed."""


class Proxy:
    """Listens on 127.0.0.1 and passes each request on by its route. Use it as an asynchronous context manager.

    Args:
        routes: where requests go on to, by the first part of their path.
        log: what is written down. Closed by its owner, after the proxy.
        port: 0 takes a free one; ``port`` of the running proxy says which.

    Raises:
        MissingExtraError: aiohttp is not installed (on construction).
        SetupError: the port is taken (on entering).

    Nothing of ours ends or delays a call: there is no time limit, an answer is passed on chunk by chunk, and what is
    written down is read and written in a thread after the answer's last byte. A provider that cannot be reached, or
    that breaks off, ends the program's connection in the same place; a program that goes away ends the provider's.
    """

    def __init__(self, routes: Sequence[Route], log: CallLog, *, port: int = 0) -> None:
        for package in ("aiohttp", "brotli", "zstandard"):
            if find_spec(package) is None:
                raise MissingExtraError("recording through a proxy", "record", package)
        self._routes = {route.name: route for route in routes}
        self._log = log
        self.port = port
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="cacheprefix-record")
        self._client: aiohttp.ClientSession | None = None
        self._direct: aiohttp.ClientSession | None = None
        self._runner: web.ServerRunner | None = None

    async def __aenter__(self) -> Self:
        from aiohttp import web  # noqa: PLC0415 - an extra

        # Proxies of the environment hold for us as they would have held for the program; none leads to this machine.
        self._client, self._direct = _session(proxies=True), _session(proxies=False)
        # The handler is cancelled when the program goes away, and with it the request to the provider.
        server = web.Server(
            self._handle, access_log=None, handler_cancellation=True, auto_decompress=False, logger=_Quiet(self._log)
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        try:
            await site.start()
        except OSError as error:
            await self.__aexit__()
            raise SetupError(
                f"cannot listen on 127.0.0.1:{self.port} ({error.strerror}); choose another port, or 0 for a free one"
            ) from error
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        for client in (self._client, self._direct):
            if client is not None:
                await client.close()
        await asyncio.to_thread(self._writing.shutdown)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Pass a request on to the route that its path names and its answer back, and log both."""
        from aiohttp import web  # noqa: PLC0415 - an extra

        # As it came on the wire: parsing and writing it again could change how it is escaped.
        path, asked, query = request.raw_path.partition("?")
        _, name, rest = (*path.split("/", 2), "", "")[:3]
        route = self._routes.get(name)
        if route is None:
            return web.Response(status=404, text=f"cacheprefix record: no route {name[:40]!r}\n")
        headers = {key.lower(): value for key, value in request.headers.items()}
        # The path without its query: a query may hold a key.
        exchange = Exchange(route.name, f"/{rest}", time.time(), headers)
        target = f"/{rest}{asked}{query}"
        if headers.get("upgrade", "").lower() == "websocket":
            return await self._tunnel(request, route, target)
        try:
            return await self._pass_on(request, route, target, exchange)
        finally:
            exchange.ended = time.time()
            if request.method == "POST":
                self._writing.submit(self._log.write, exchange)

    async def _pass_on(
        self, request: web.BaseRequest, route: Route, target: str, exchange: Exchange
    ) -> web.StreamResponse:
        """Send a request on as it came and pass the answer back as it comes, noting both in ``exchange``."""
        import aiohttp  # noqa: PLC0415 - an extra
        from aiohttp import web  # noqa: PLC0415 - an extra
        from yarl import URL  # noqa: PLC0415 - an extra

        response: web.StreamResponse | None = None
        headers = _end_to_end(request.headers)
        if route.authorization:
            # Credentials in an address stand before a header of the program's, as in the SDKs' own HTTP clients.
            headers["Authorization"] = route.authorization
        try:
            async with self._towards(route).request(
                request.method,
                URL(route.onward(target), encoded=True),
                headers=headers,
                data=_body(request, exchange) if request.can_read_body else None,
                allow_redirects=False,
            ) as answer:
                exchange.status = answer.status
                exchange.answer_headers = {key.lower(): value for key, value in answer.headers.items()}
                response = web.StreamResponse(status=answer.status, reason=answer.reason)
                response.headers.clear()
                response.headers.extend(_end_to_end(answer.headers))
                if "Content-Length" not in response.headers and _has_body(request.method, answer.status):
                    response.enable_chunked_encoding()
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    exchange.first_byte = exchange.first_byte or time.time()
                    # Before it is passed on: a program may go away as soon as it has the last event.
                    exchange.take(exchange.answer, chunk)
                    await response.write(chunk)
                await response.write_eof()
                exchange.whole = True
                return response
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            exchange.unreached = isinstance(error, aiohttp.ClientConnectorError)
            # What the provider's connection did, the program's does: it ends where the answer ended, or before it.
            if request.transport is not None:
                request.transport.abort()
            return response or web.Response(status=502)

    def _towards(self, route: Route) -> aiohttp.ClientSession:
        client = self._direct if route.is_local else self._client
        assert client is not None
        return client

    async def _tunnel(self, request: web.BaseRequest, route: Route, target: str) -> web.StreamResponse:
        """Passes a WebSocket's messages both ways (realtime sessions). They are not written down."""
        import aiohttp  # noqa: PLC0415 - an extra
        from aiohttp import web  # noqa: PLC0415 - an extra
        from yarl import URL  # noqa: PLC0415 - an extra

        headers = _end_to_end(request.headers)
        asked = [name.strip() for name in request.headers.get("Sec-WebSocket-Protocol", "").split(",") if name.strip()]
        for name in [name for name in headers if name.lower().startswith("sec-websocket-")]:
            headers.popall(name, None)
        try:
            onward = await self._towards(route).ws_connect(
                URL(route.onward(target), encoded=True),
                headers=headers,
                protocols=asked,
                autoclose=False,
                autoping=False,
                max_msg_size=0,
            )
        except aiohttp.WSServerHandshakeError as error:
            return web.Response(status=error.status)
        except (aiohttp.ClientError, OSError):
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=502)
        chosen = [onward.protocol] if onward.protocol else ()
        here = web.WebSocketResponse(protocols=chosen, compress=False, autoclose=False, autoping=False, max_msg_size=0)
        await here.prepare(request)
        ways = {asyncio.create_task(_relay(onward, here)), asyncio.create_task(_relay(here, onward))}
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            await onward.close()
            await here.close()
        return here


async def _relay(source: _Socket, target: _Socket) -> None:
    """Each message as it comes, until one side closes; the other is then closed with the same code."""
    import aiohttp  # noqa: PLC0415 - an extra

    while True:
        message = await source.receive()
        if message.type is aiohttp.WSMsgType.TEXT:
            await target.send_str(message.data)
        elif message.type is aiohttp.WSMsgType.BINARY:
            await target.send_bytes(message.data)
        elif message.type is aiohttp.WSMsgType.PING:
            await target.ping(message.data)
        elif message.type is aiohttp.WSMsgType.PONG:
            await target.pong(message.data)
        else:
            await target.close(code=source.close_code or aiohttp.WSCloseCode.GOING_AWAY)
            return


async def _body(request: web.BaseRequest, exchange: Exchange) -> AsyncIterator[bytes]:
    async for chunk in request.content.iter_any():
        exchange.take(exchange.body, chunk)
        yield chunk


def _end_to_end(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """The headers that are meant for the other end, each as often and in the case as it came."""
    from multidict import CIMultiDict  # noqa: PLC0415 - an extra

    named = {part.strip().lower() for part in headers.get("Connection", "").split(",")}
    dropped = _HOP_BY_HOP | named
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in dropped)


def _has_body(method: str, status: int) -> bool:
    return method != "HEAD" and status >= 200 and status not in (204, 304)


class _Quiet(logging.Logger):
    """Counts what the server cannot read. Its own words would show the bytes that came, keys and texts among them."""

    def __init__(self, log: CallLog) -> None:
        super().__init__("cacheprefix.record")
        self._refusals = log

    def handle(self, record: logging.LogRecord) -> None:
        """Only errors tell of a request."""
        if record.levelno >= logging.ERROR:
            self._refusals.refused()


def _session(*, proxies: bool) -> aiohttp.ClientSession:
    """A client that sends what it is given: no cookies, no decoding, no headers of its own, no limit on time."""
    import aiohttp  # noqa: PLC0415 - an extra

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE, ssl=_certificates()),
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=proxies,
        skip_auto_headers=_WRITTEN_BY_CLIENT,
    )


def _certificates() -> ssl.SSLContext:
    """The certificates that the providers' SDKs trust: those of the environment, else of certifi where it is there."""
    context = ssl.create_default_context()
    if find_spec("certifi") is not None:
        import certifi  # noqa: PLC0415 - comes with the SDKs

        context.load_verify_locations(certifi.where())
    return context
