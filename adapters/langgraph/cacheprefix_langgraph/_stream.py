"""Streams, passed on unchanged while their first chunk and their usage are noted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from langchain_core.messages.ai import UsageMetadata, add_usage

from cacheprefix_langgraph._sending import SENDING, Sending, fail, traced

if TYPE_CHECKING:
    from langchain_core.outputs import ChatGenerationChunk


def within(sending: Sending | None, chunks: Iterator[Any]) -> Iterator[Any]:
    """Iterate with the request in force only while the wrapped code runs."""
    while True:
        token = SENDING.set(sending)
        try:
            chunk = next(chunks)
        except StopIteration:
            return
        finally:
            SENDING.reset(token)
        yield chunk


async def awithin(sending: Sending | None, chunks: AsyncIterator[Any]) -> AsyncIterator[Any]:
    while True:
        token = SENDING.set(sending)
        try:
            chunk = await chunks.__anext__()
        except StopAsyncIteration:
            return
        finally:
            SENDING.reset(token)
        yield chunk


def watch(sending: Sending, chunks: Iterator[ChatGenerationChunk]) -> Iterator[ChatGenerationChunk]:
    """Pass a stream on; note its first chunk and add up its usage."""
    usage: UsageMetadata | None = None
    try:
        for chunk in within(sending, chunks):
            if sending.turn is not None:
                sending.turn.first_token()
            usage = _added(usage, chunk)
            yield chunk
    except GeneratorExit:
        _close(sending, usage)
        raise
    except BaseException:
        fail(sending)
        raise
    _close(sending, usage)


async def awatch(sending: Sending, chunks: AsyncIterator[ChatGenerationChunk]) -> AsyncIterator[ChatGenerationChunk]:
    usage: UsageMetadata | None = None
    try:
        async for chunk in awithin(sending, chunks):
            if sending.turn is not None:
                sending.turn.first_token()
            usage = _added(usage, chunk)
            yield chunk
    except GeneratorExit:
        _close(sending, usage)
        raise
    except BaseException:
        fail(sending)
        raise
    _close(sending, usage)


def _added(usage: UsageMetadata | None, chunk: ChatGenerationChunk) -> UsageMetadata | None:
    found = getattr(chunk.message, "usage_metadata", None)
    if not found:
        return usage
    return found if usage is None else add_usage(usage, found)


def _close(sending: Sending, usage: UsageMetadata | None) -> None:
    if sending.turn is not None:
        traced(sending, sending.turn.finish(usage))
