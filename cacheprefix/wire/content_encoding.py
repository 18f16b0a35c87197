"""Bodies without the encoding they were sent in: clients may compress requests, and providers' fronts their answers."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from importlib import import_module

from cacheprefix.errors import BodyError

_GZIP = 31
"""Windows of any size behind a header of gzip's, as ``zlib`` names them."""


def decoded(data: bytes | bytearray, headers: Mapping[str, str]) -> bytes:
    """A body without its content encoding; ``headers`` by lower-case names.

    Raises ``BodyError`` for an encoding that cannot be undone here.
    """
    plain = bytes(data)
    for encoding in reversed([part.strip().lower() for part in headers.get("content-encoding", "").split(",")]):
        undo = _ENCODINGS.get(encoding)
        if undo is None:
            raise BodyError("content-encoding", f"cannot read {encoding[:20]!r}")
        try:
            plain = undo(plain)
        except Exception as error:  # each library has errors of its own; an answer that broke off ends in one
            raise BodyError("content-encoding", f"{encoding}: {error}") from error
    return plain


def _zstd(data: bytes) -> bytes:
    plain: bytes = import_module("zstandard").ZstdDecompressor().decompressobj().decompress(data)
    return plain


def _brotli(data: bytes) -> bytes:
    plain: bytes = import_module("brotli").decompress(data)
    return plain


_ENCODINGS: Mapping[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "identity": bytes,
    "gzip": lambda data: zlib.decompressobj(_GZIP).decompress(data),
    "x-gzip": lambda data: zlib.decompressobj(_GZIP).decompress(data),
    "deflate": lambda data: zlib.decompressobj(15 if data[:1] == b"\x78" else -15).decompress(data),
    "br": _brotli,
    "zstd": _zstd,
}
