"""The store of several machines: Redis or Valkey through redis-py."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from cacheprefix.errors import MissingExtraError, StoreError
from cacheprefix.locks import Lock
from cacheprefix.stores.clock import steady
from cacheprefix.stores.protocol import Listener

if TYPE_CHECKING:
    import redis

T = TypeVar("T")

# Milliseconds that a generation is kept (7 days): a forgotten one costs a miss, so it need not stay for ever.
_GENERATION_MS = 7 * 24 * 3600 * 1000

# Each script gives the same answer when sent twice, as a request whose answer was lost is sent again.
_ACQUIRE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[2]) return 1 end
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
return 0
"""
_RENEW = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[2]) return 1 end
return 0
"""
_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) return 1 end
return 0
"""
# The marks of one name are a JSON object, from writer to end in the server's milliseconds; ended marks are removed
# with the next change. A time of 0 ends the writer's mark.
_WRITE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local marks, last = {}, 0
local held = redis.call('GET', KEYS[2])
if held then
  for writer, ends in pairs(cjson.decode(held)) do if ends > now then marks[writer] = ends end end
end
marks[ARGV[2]] = nil
if ARGV[3] ~= '0' then marks[ARGV[2]] = now + ARGV[3] end
for _, ends in pairs(marks) do if ends > last then last = ends end end
if last > 0 then redis.call('SET', KEYS[2], cjson.encode(marks), 'PX', last - now) else redis.call('DEL', KEYS[2]) end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[4])
return 1
"""


class RedisStore:
    """Entries on a Redis or Valkey server, for all processes and machines that reach it.

    ``url`` is redis-py's (``redis://``, ``rediss://``, ``unix://``). A call waits at most
    ``timeout`` seconds to connect and as long for an answer, then raises; after a failure the
    server is not asked for ``cooldown`` seconds, in which every call raises at once. After that
    it is used again as soon as it answers.

    The server bounds its memory itself (``maxmemory`` with an LRU policy); entries that it
    evicts are not reported to listeners. Generations carry the server's run id, so what was
    written before a restart or a failover never counts as current: the restart may have lost
    the last bump. A server that hides its run id must therefore be one that loses no writes.
    ``read`` raises while the server takes no writes: what it would give may be outdated by
    another process, which could not say so.

    Raises:
        MissingExtraError: redis-py is not installed.
        StoreError: the server does not answer in time, or refuses.
    """

    shared = True
    blocking = True

    def __init__(
        self,
        url: str = "redis://localhost:6379/0",
        *,
        timeout: float = 0.5,
        cooldown: float = 1.0,
        clock: Callable[[], float] = steady,
    ) -> None:
        try:
            import redis  # noqa: PLC0415 - an extra, and only for those who use it
            from redis.backoff import NoBackoff  # noqa: PLC0415 - the same
            from redis.retry import Retry  # noqa: PLC0415 - the same
        except ImportError as error:
            raise MissingExtraError("RedisStore", "redis", "redis") from error
        self._cooldown = cooldown
        self._clock = clock
        self._quiet_from = self._quiet_until = 0.0
        self._run_id = b""
        self._lock = Lock()
        self._lost = (redis.ConnectionError, redis.TimeoutError, OSError)
        self._refused = redis.RedisError
        self._client: redis.Redis = redis.Redis.from_url(
            url,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            # One more try and only on a broken connection: a pooled one does not survive a restart,
            # while a second wait for a server that hangs would double the bound.
            retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
            redis_connect_func=self._greet,
            decode_responses=False,
            protocol=2,
        )
        self._where = _without_secret(url)
        self._acquire = self._client.register_script(_ACQUIRE)
        self._renew = self._client.register_script(_RENEW)
        self._release = self._client.register_script(_RELEASE)
        self._change = self._client.register_script(_WRITE)

    def __repr__(self) -> str:
        return f"RedisStore({self._where!r})"

    def get(self, key: str) -> bytes | None:
        """See ``Store.get``."""
        # MGET and not GET: a key of another type reads as absent rather than as an error.
        return _bytes(self._ask(lambda: self._client.mget([f"{key}:v"]))[0])

    def read(self, key: str, names: Sequence[str]) -> tuple[bytes | None, bytes]:
        """See ``Store.read``."""

        def work() -> list[Any]:
            with self._client.pipeline(transaction=False) as pipe:
                pipe.mget([f"{key}:v", *_places(names)])
                # Of a key that is never there: it changes nothing, and is refused where writes are (a full disk, a
                # replica). There another process's change cannot be written down either: the entry may be outdated.
                pipe.pexpire(f"{key}:p", 1)
                return list(pipe.execute()[0])

        value, *found = self._ask(work)
        return _bytes(value), self._tokens(names, found)

    def set(self, key: str, value: bytes, ttl: float | None = None) -> None:
        """See ``Store.set``."""
        if ttl is not None and ttl <= 0:
            self.delete(key)
            return
        px = None if ttl is None else max(1, int(ttl * 1000))
        self._ask(lambda: self._client.set(f"{key}:v", value, px=px))

    def delete(self, key: str) -> bool:
        """See ``Store.delete``."""
        return bool(self._ask(lambda: self._client.unlink(f"{key}:v")))

    def generations(self, names: Sequence[str]) -> bytes:
        """See ``Store.generations``."""
        if not names:
            return self._suffix()
        return self._tokens(names, self._ask(lambda: self._client.mget(_places(names))))

    def mark(self, names: Sequence[str], writer: str, ttl: float) -> None:
        """See ``Store.mark``."""
        self._write(names, writer, _ms(ttl))

    def bump(self, names: Sequence[str], writer: str = "") -> None:
        """See ``Store.bump``."""
        self._write(names, writer, 0)

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """See ``Store.sizes``. Walks the server's whole key space in small steps."""
        sizes: dict[str, int] = {}
        for keys in self._scan(prefix):
            values = [key for key in keys if key.endswith(b":v")]
            with self._client.pipeline(transaction=False) as pipe:
                for key in values:
                    pipe.strlen(key)
                lengths = self._ask(lambda: pipe.execute(raise_on_error=False))
            for key, length in zip(values, lengths, strict=True):
                if isinstance(length, int) and length:
                    sizes[key[:-2].decode("utf-8", "replace")] = length
        return sizes

    def clear(self, prefix: str = "") -> int:
        """See ``Store.clear``. Walks the server's whole key space in small steps.

        Keys of other applications end differently and stay.
        """
        gone = 0
        for keys in self._scan(prefix):
            values = [key for key in keys if key.endswith(b":v")]
            marks = [key for key in keys if key.endswith(b":g")]
            # Generations first: an entry that is written meanwhile is then already outdated.
            for doomed in (marks, values):
                if doomed:
                    count = int(self._ask(lambda: self._client.unlink(*doomed)))  # noqa: B023 - called here
                    gone += count if doomed is values else 0
        return gone

    def acquire(self, key: str, owner: str, ttl: float) -> bool:
        """See ``Store.acquire``."""
        return bool(self._ask(lambda: self._acquire(keys=[f"{key}:l"], args=[owner, _ms(ttl)])))

    def renew(self, key: str, owner: str, ttl: float) -> bool:
        """See ``Store.renew``."""
        return bool(self._ask(lambda: self._renew(keys=[f"{key}:l"], args=[owner, _ms(ttl)])))

    def release(self, key: str, owner: str) -> bool:
        """See ``Store.release``."""
        return bool(self._ask(lambda: self._release(keys=[f"{key}:l"], args=[owner])))

    def listen(self, listener: Listener) -> None:
        """Accept and ignore: the server expires and evicts entries without telling us."""

    def close(self) -> None:
        """Close all connections; the next call opens new ones."""
        self._client.close()

    def _write(self, names: Sequence[str], writer: str, ms: int) -> None:
        def work() -> Any:
            with self._client.pipeline(transaction=True) as pipe:
                for name in names:
                    token = os.urandom(8)
                    self._change(keys=[f"{name}:g", f"{name}:w"], args=[token, writer, ms, _GENERATION_MS], client=pipe)
                return pipe.execute()

        self._ask(work)

    def _ask(self, work: Callable[[], Any]) -> Any:
        """Ask the server; raises ``StoreError`` where it does not answer or refuses, and for a while after that."""
        if self._quiet_from <= self._clock() < self._quiet_until:
            raise StoreError(f"{self._where} did not answer a moment ago; it is asked again soon")
        try:
            return work()
        except self._lost as error:
            with self._lock:
                self._quiet_from = self._clock()
                self._quiet_until = self._quiet_from + self._cooldown
            raise StoreError(f"{self._where} does not answer: {error}") from error
        except self._refused as error:
            # Privacy: of a command that it does not know a server quotes the arguments, among them what was to be kept.
            said = str(error).partition(", with args")[0]
            raise StoreError(f"{self._where} refuses: {said}") from error

    def _greet(self, connection: Any) -> None:
        """Read the server's run id before the first command on a connection.

        It is part of all generations, so that a restarted server, which may have lost writes, outdates everything.
        """
        connection.on_connect()
        connection.send_command("INFO", "server")
        try:
            answer = connection.read_response()
        except self._lost:
            raise
        except self._refused:
            answer = b""
        text = answer if isinstance(answer, bytes) else str(answer).encode()
        for line in text.splitlines():
            if line.startswith(b"run_id:"):
                self._run_id = line[7:].strip()

    def _suffix(self) -> bytes:
        return hashlib.blake2b(self._run_id, digest_size=8).digest()

    def _tokens(self, names: Sequence[str], found: list[Any]) -> bytes:
        """The generations of names as one value, equal while nothing is written; ``found`` is what the server had."""
        if None in found[: len(names)]:
            missing = [f"{name}:g" for name, token in zip(names, found, strict=False) if token is None]

            def work() -> list[Any]:
                with self._client.pipeline(transaction=True) as pipe:
                    for key in missing:
                        pipe.set(key, os.urandom(8), nx=True, px=_GENERATION_MS)
                    pipe.mget(_places(names))
                    return list(pipe.execute()[-1])

            found = self._ask(work)
        # For a name that is being written, or whose token is malformed: a random token, which matches nothing.
        tokens = [
            token if writing is None and isinstance(token, bytes) and len(token) == 8 else os.urandom(8)
            for token, writing in zip(found[: len(names)], found[len(names) :], strict=True)
        ]
        return b"".join(tokens) + self._suffix()

    def _scan(self, prefix: str) -> Iterator[list[bytes]]:
        """The keys that begin with ``prefix``, in batches."""
        pattern = "".join(f"\\{c}" if c in "*?[]\\" else c for c in prefix) + "*"
        cursor = 0
        while True:
            at = cursor
            cursor, keys = self._ask(lambda: self._client.scan(at, match=pattern, count=1_000))  # noqa: B023 - called here
            if keys:
                yield keys
            if not cursor:
                return


def _places(names: Sequence[str]) -> list[str]:
    """Redis keys of the generations of ``names``, followed by the keys of their marks of writers."""
    return [*(f"{name}:g" for name in names), *(f"{name}:w" for name in names)]


def _ms(seconds: float) -> int:
    return max(1, int(seconds * 1000))


def _bytes(value: Any) -> bytes | None:
    return value if isinstance(value, bytes) else None


def _without_secret(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}".partition("?")[0]
